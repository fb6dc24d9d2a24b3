"""What the rows of a journal hold: results with a checksum."""

import struct
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from jaxscore.plan.token_requests import SequenceScores, Written

FINISHES = ("eos", "stop", "length")  # by the byte that stands for each
NO_EOS = -1  # in place of the EOS that ended a text


def packed_scores(scores: SequenceScores) -> bytes:
    """The columns one after the other, and a checksum."""
    columns = (scores.logprob, scores.entropy, scores.self_certainty)
    body = b"".join(np.ascontiguousarray(column, "<f4").tobytes() for column in columns)
    return _with_checksum(body + np.ascontiguousarray(scores.greedy, np.uint8).tobytes())


def unpacked_scores(value: bytes) -> SequenceScores | None:
    """What `packed_scores` made of scores, or None where a bit has changed since."""
    body = _checked(value)
    n, rest = divmod(len(body or b""), 13)
    if body is None or rest:
        return None
    logprob, entropy, certainty = np.frombuffer(body[: 12 * n], "<f4").reshape(3, n)
    greedy = np.frombuffer(body[12 * n :], np.uint8).astype(bool)
    return SequenceScores(logprob, entropy, certainty, greedy)


def packed_text(written: Written) -> bytes:
    """How it ended, the EOS that ended it, the ids, and a checksum."""
    eos = NO_EOS if written.eos_id is None else written.eos_id
    head = struct.pack("<Bi", FINISHES.index(written.finish), eos)
    return _with_checksum(head + np.ascontiguousarray(written.ids, "<i4").tobytes())


def unpacked_text(value: bytes) -> Written | None:
    """What `packed_text` made of a text, or None where a bit has changed since."""
    body = _checked(value)
    if body is None or len(body) % 4 != 1 or len(body) < 5 or body[0] >= len(FINISHES):
        return None
    finish, [eos] = FINISHES[body[0]], struct.unpack_from("<i", body, 1)
    if (finish == "eos") != (eos >= 0):
        return None
    return Written(np.frombuffer(body[5:], "<i4"), finish, eos if finish == "eos" else None)


def joined(rows: Mapping[bytes, bytes]) -> bytes:
    """Keys and values in one, for another process."""
    return b"".join(
        struct.pack("<II", len(key), len(value)) + key + value for key, value in rows.items()
    )


def pairs(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """What `joined` was given."""
    at = 0
    while at < len(text):
        n_key, n_value = struct.unpack_from("<II", text, at)
        start, at = at + 8, at + 8 + n_key + n_value
        yield text[start : start + n_key], text[start + n_key : at]


def _with_checksum(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


def _checked(value: bytes) -> bytes | None:
    if not isinstance(value, bytes):  # SQLite keeps any type in any column
        return None
    body, checksum = value[:-4], value[-4:]
    return body if struct.pack("<I", zlib.crc32(body)) == checksum else None
