"""Finished work on disk, so that an interrupted run continues where it ended.

One SQLite file with a write-ahead log. A row of `scores` holds the scores of one sequence of token
ids, under a digest of the ids, of where scoring starts and of what is wanted, NaN for tokens that
are still missing; `engine.journal_writer` says when it is written. A row of `texts` holds what was
written after one prompt, under a digest of its ids and of how it was asked for; one transaction for
the texts that end in one block of steps. Rows belong to a fingerprint of everything else that
decides them, so another model, dtype or version of JAX never reads them.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import sqlite3
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxscore.journal.files import REMEDY, explain_errors, open_database
from jaxscore.plan.requests import (
    BASE_SCORES,
    GeneratedTokens,
    ScoreOptions,
    SequenceScores,
    TokenRequest,
    TokenSequence,
)

TOGETHER = 400  # rows per statement; SQLite takes 999 values, two of each row


class Journal:
    """What one fingerprint scored and wrote, in one file.

    The file is created on first read or write, and held until `close`. Threads may share it.

    Raises:
        InputError: on first read or write, where another run holds the file, it is no journal or
            damaged, or its folder cannot be written.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Opens nothing.

        Args:
            about: what decides the numbers besides the requests, as JSON has it.
        """
        self.path = path
        self._about = json.dumps(about, sort_keys=True)
        self._file: os.stat_result | None = None  # once it has been open_database
        self._stack = contextlib.ExitStack()
        self._writing = threading.RLock()  # one transaction at a time
        # One statement at a time: who reads waits for a part of a transaction, and not for all.
        self._lock = threading.RLock()

    @functools.cached_property
    def _open(self) -> tuple[sqlite3.Connection, int]:
        """The database and this fingerprint's number in it."""
        fingerprint = hashlib.sha256(self._about.encode()).hexdigest()
        with contextlib.ExitStack() as stack:
            database = stack.enter_context(
                contextlib.closing(open_database(self.path, create=True))
            )
            with explain_errors(self.path, REMEDY), database:
                database.execute(
                    "INSERT INTO models (fingerprint, about, used) VALUES (?, ?, "
                    "strftime('%Y-%m-%dT%H:%M:%fZ')) "
                    "ON CONFLICT (fingerprint) DO UPDATE SET used = excluded.used",
                    (fingerprint, self._about),
                )
                row = database.execute(
                    "SELECT id FROM models WHERE fingerprint = ?", (fingerprint,)
                ).fetchone()
                if row is None:  # an index says other than its table
                    raise sqlite3.DatabaseError("damaged: what was written cannot be found")
            self._file = self.path.stat()
            self._stack = stack.pop_all()
        return database, row[0]

    @property
    def is_lost(self) -> bool:
        """Whether the file that was opened has been removed or replaced: no run can continue."""
        if self._file is None:
            return False
        try:
            return not os.path.samestat(self._file, self.path.stat())
        except OSError:
            return True

    def read_scores(
        self, sequences: Sequence[TokenSequence], wanted: ScoreOptions = BASE_SCORES
    ) -> dict[int, SequenceScores]:
        """What the journal has, by the place in `sequences`."""
        key_of_wanted = wanted.key()
        keys = [sequence.digest(key_of_wanted) for sequence in sequences]
        values = self._values("scores", keys)
        held = {}
        for k, (sequence, key) in enumerate(zip(sequences, keys, strict=True)):
            scores = unpacked_scores(values[key], wanted) if key in values else None
            if scores is not None and len(scores.logprob) == sequence.n_scored:
                held[k] = scores
        return held

    def write_scores(
        self,
        finished: Iterable[tuple[TokenSequence, SequenceScores]],
        wanted: ScoreOptions = BASE_SCORES,
    ) -> None:
        """Write these, in one transaction."""
        key = wanted.key()
        self._write(
            "scores",
            [(one.digest(key), packed_scores(scores)) for one, scores in finished],
        )

    def read_texts(self, requests: Sequence[TokenRequest]) -> dict[int, GeneratedTokens]:
        """What the journal has, by the place in `requests`."""
        keys = [request.digest() for request in requests]
        values = self._values("texts", keys)
        held = {}
        for k, key in enumerate(keys):
            written = unpacked_text(values[key]) if key in values else None
            if written is not None:
                held[k] = written
        return held

    def write_texts(self, finished: Iterable[tuple[TokenRequest, GeneratedTokens]]) -> None:
        """Write these, in one transaction."""
        self._write(
            "texts",
            [(request.digest(), packed_text(written)) for request, written in finished],
        )

    def _values(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that the table has."""
        values: dict[bytes, bytes] = {}
        with explain_errors(self.path, REMEDY):
            with self._lock:
                _ = self._open  # says at once, whatever the keys, that a file cannot be used
            for first in range(0, len(keys), TOGETHER):
                some = keys[first : first + TOGETHER]
                marks = ",".join("?" * len(some))
                with self._lock:
                    database, model = self._open  # which another thread may have closed
                    values |= database.execute(
                        f"SELECT key, value FROM {table} WHERE model = ? AND key IN ({marks})",
                        (model, *some),
                    )
        return values

    def _write(self, table: str, rows: Sequence[tuple[bytes, bytes]]) -> None:
        with self._writing, explain_errors(self.path, REMEDY):
            with self._lock:
                database, model = self._open
            try:
                # Many in a statement: each one lets other threads of Python run, and waits for
                # them.
                for first in range(0, len(rows), TOGETHER):
                    some = rows[first : first + TOGETHER]
                    marks = ",".join([f"({model},?,?)"] * len(some))
                    # A row that exists lacked some tokens, or its checksum failed.
                    with self._lock:
                        database.execute(
                            f"INSERT OR REPLACE INTO {table} VALUES {marks}",
                            [*itertools.chain.from_iterable(some)],
                        )
                with self._lock:
                    database.commit()
            except BaseException:
                with self._lock:
                    database.rollback()
                raise

    def close(self) -> None:
        """Release the file for other runs; the next read or write opens it again."""
        with self._writing, self._lock:
            self._stack.close()
            self.__dict__.pop("_open", None)


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


def unpacked_scores(value: bytes, wanted: ScoreOptions = BASE_SCORES) -> SequenceScores | None:
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


def packed_text(written: GeneratedTokens) -> bytes:
    """How it ended, the EOS that ended it, the ids, and a checksum."""
    eos = NO_EOS if written.eos_id is None else written.eos_id
    head = struct.pack("<Bi", FINISHES.index(written.finish), eos)
    return _with_checksum(head + np.ascontiguousarray(written.ids, "<i4").tobytes())


def unpacked_text(value: bytes) -> GeneratedTokens | None:
    """What `packed_text` made of a text, or None where a bit has changed since."""
    body = _checked(value)
    if body is None or len(body) % 4 != 1 or len(body) < 5 or body[0] >= len(FINISHES):
        return None
    finish, [eos] = FINISHES[body[0]], struct.unpack_from("<i", body, 1)
    if (finish == "eos") != (eos >= 0):
        return None
    return GeneratedTokens(np.frombuffer(body[5:], "<i4"), finish, eos if finish == "eos" else None)


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
