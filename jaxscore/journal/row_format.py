"""What the rows of a journal hold: results with a checksum."""

import struct
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from jaxscore.plan.token_requests import NOTHING_MORE, SequenceScores, Wanted, Written

FINISHES = ("eos", "stop", "length")  # by the byte that stands for each
NO_EOS = -1  # in place of the EOS that ended a text


def packed_scores(scores: SequenceScores) -> bytes:
    """The columns one after the other, and a checksum."""
    columns = (scores.logprob, scores.entropy, scores.self_certainty, *scores.measures.values())
    parts = [np.ascontiguousarray(column, "<f4").tobytes() for column in columns]
    parts.append(np.ascontiguousarray(scores.top_logprob, "<f4").tobytes())
    parts.append(np.ascontiguousarray(scores.top_id, "<i4").tobytes())
    parts.append(np.ascontiguousarray(scores.greedy, np.uint8).tobytes())
    return _with_checksum(b"".join(parts))


def unpacked_scores(value: bytes, wanted: Wanted = NOTHING_MORE) -> SequenceScores | None:
    """What `packed_scores` made of scores, or None where a bit has changed since.

    Args:
        wanted: of the run that the scores belong to.
    """
    body = _checked(value)
    n_columns, k = 3 + len(wanted.measures), wanted.top
    n, rest = divmod(len(body or b""), 4 * (n_columns + 2 * k) + 1)
    if body is None or rest:
        return None
    terms = np.frombuffer(body, "<f4", n_columns * n).reshape(n_columns, n)
    logprob = np.frombuffer(body, "<f4", k * n, 4 * n_columns * n)
    id = np.frombuffer(body, "<i4", k * n, 4 * (n_columns + k) * n)
    greedy = np.frombuffer(body, np.uint8, n, 4 * (n_columns + 2 * k) * n)
    measures = dict(zip(wanted.measures, terms[3:], strict=True))
    top = id.reshape(n, k), logprob.reshape(n, k)
    return SequenceScores(terms[0], terms[1], terms[2], greedy.astype(bool), *top, measures)


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
