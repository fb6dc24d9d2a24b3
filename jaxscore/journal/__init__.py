"""Finished scores and generated texts on disk, so that an interrupted run can resume.

The journal is one SQLite file with a write-ahead log. A row of `scores` holds the scores of one
token sequence, with NaN for missing tokens; its key is the digest of the ids, the start of scoring
and the score options. A row of `texts` holds the generated ids of one prompt; its key is the digest
of the prompt and its generation options. Rows belong to a fingerprint of everything else that
determines the numbers, so a run with another model, dtype or JAX version never reads them.
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
from collections.abc import Iterable, Sequence
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

TOGETHER = 400  # rows per statement; SQLite allows 999 values, and a row has two
FINISHES = ("eos", "stop", "length")  # stored as the index, one byte
NO_EOS = -1


class Journal:
    """Scores and texts of one fingerprint, in one file.

    The first read or write opens or creates the file and locks it until `close`. Threads may
    share a journal.

    Raises:
        InputError: on the first read or write: another run holds the file, it is damaged or not a
            jaxscore journal, or its folder is not writable.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Describe a journal without opening it.

        Args:
            about: JSON object of everything that determines the numbers, except the requests.
        """
        self.path = path
        self._about = json.dumps(about, sort_keys=True)
        self._file: os.stat_result | None = None  # of the opened file
        self._stack = contextlib.ExitStack()
        self._writing = threading.RLock()  # one transaction at a time
        # One statement at a time: readers wait for a statement, not for a whole transaction.
        self._lock = threading.RLock()

    @functools.cached_property
    def _open(self) -> tuple[sqlite3.Connection, int]:
        """The open database, and the id of this fingerprint's row in `models`."""
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
                if row is None:  # an index contradicts its table
                    raise sqlite3.DatabaseError("damaged: cannot read back a row just written")
            self._file = self.path.stat()
            self._stack = stack.pop_all()
        return database, row[0]

    def has_scores_of(self, about: dict[str, Any]) -> bool:
        """Return True if the journal's fingerprint is that of `about`."""
        return self._about == json.dumps(about, sort_keys=True)

    @property
    def is_lost(self) -> bool:
        """True if the opened file was removed or replaced, so that no run can resume from it."""
        if self._file is None:
            return False
        try:
            return not os.path.samestat(self._file, self.path.stat())
        except OSError:
            return True

    def read_scores(
        self, sequences: Sequence[TokenSequence], options: ScoreOptions = BASE_SCORES
    ) -> dict[int, SequenceScores]:
        """Read journaled scores, by index in `sequences`; damaged rows are left out."""
        key = options.key()
        rows = self._read("scores", [sequence.digest(key) for sequence in sequences])
        scores_by_index = {}
        for k, value in rows.items():
            scores = unpack_scores(value, options)
            if scores is not None and len(scores.logprob) == sequences[k].n_scored:
                scores_by_index[k] = scores
        return scores_by_index

    def write_scores(
        self,
        finished: Iterable[tuple[TokenSequence, SequenceScores]],
        options: ScoreOptions = BASE_SCORES,
    ) -> None:
        """Write scores in one transaction."""
        key = options.key()
        rows = [(sequence.digest(key), pack_scores(scores)) for sequence, scores in finished]
        self._write("scores", rows)

    def read_texts(self, requests: Sequence[TokenRequest]) -> dict[int, GeneratedTokens]:
        """Read journaled texts, by index in `requests`; damaged rows are left out."""
        rows = self._read("texts", [request.digest() for request in requests])
        texts = {k: unpack_text(value) for k, value in rows.items()}
        return {k: text for k, text in texts.items() if text is not None}

    def write_texts(self, finished: Iterable[tuple[TokenRequest, GeneratedTokens]]) -> None:
        """Write texts in one transaction."""
        self._write("texts", [(request.digest(), pack_text(text)) for request, text in finished])

    def _read(self, table: str, keys: Sequence[bytes]) -> dict[int, bytes]:
        """Read the values of a table, by index in `keys`."""
        values: dict[bytes, bytes] = {}
        with explain_errors(self.path, REMEDY):
            with self._lock:
                _ = self._open  # so that an unusable file is an error even without keys
            for first in range(0, len(keys), TOGETHER):
                chunk = keys[first : first + TOGETHER]
                marks = ",".join("?" * len(chunk))
                with self._lock:
                    database, model = self._open  # another thread may have closed it
                    values |= database.execute(
                        f"SELECT key, value FROM {table} WHERE model = ? AND key IN ({marks})",
                        (model, *chunk),
                    )
        return {k: values[key] for k, key in enumerate(keys) if key in values}

    def _write(self, table: str, rows: Sequence[tuple[bytes, bytes]]) -> None:
        with self._writing, explain_errors(self.path, REMEDY):
            with self._lock:
                database, model = self._open
            try:
                # Many rows per statement: each statement releases the interpreter lock and has to
                # wait to reacquire it.
                for first in range(0, len(rows), TOGETHER):
                    chunk = rows[first : first + TOGETHER]
                    marks = ",".join([f"({model},?,?)"] * len(chunk))
                    # REPLACE: an existing row may lack some tokens, or have a wrong checksum.
                    with self._lock:
                        database.execute(
                            f"INSERT OR REPLACE INTO {table} VALUES {marks}",
                            [*itertools.chain.from_iterable(chunk)],
                        )
                with self._lock:
                    database.commit()
            except BaseException:
                with self._lock:
                    database.rollback()
                raise

    @property
    def n_written(self) -> int:
        """Number of rows written since the file was opened; 0 before."""
        with self._lock:
            return self._open[0].total_changes if "_open" in self.__dict__ else 0

    def copy(self, path: Path) -> None:
        """Copy all committed rows to a new file, which no run holds.

        Raises:
            InputError: one of the files cannot be used.
        """
        with (
            self._writing,
            self._lock,
            explain_errors(path),
            contextlib.closing(sqlite3.connect(path)) as target,
        ):
            self._open[0].backup(target)

    def close(self) -> None:
        """Release the file for other runs; the next read or write opens it again."""
        with self._writing, self._lock:
            self._stack.close()
            self.__dict__.pop("_open", None)


def pack_scores(scores: SequenceScores) -> bytes:
    """Serialize scores as a row of `scores`: the columns concatenated, then a CRC-32."""
    floats = (scores.logprob, scores.entropy, scores.self_certainty, *scores.measures.values())
    columns = [
        *(np.ascontiguousarray(column, "<f4") for column in (*floats, scores.top_logprob)),
        np.ascontiguousarray(scores.top_id, "<i4"),
        np.ascontiguousarray(scores.greedy, np.uint8),
    ]
    body = b"".join(column.tobytes() for column in columns)
    return body + struct.pack("<I", zlib.crc32(body))


def unpack_scores(value: bytes, options: ScoreOptions = BASE_SCORES) -> SequenceScores | None:
    """Deserialize a row of `pack_scores`; return None if it is damaged.

    Args:
        options: the score options of the run that wrote the row.
    """
    body = _checked(value)
    n_columns, k = 3 + len(options.columns), options.top
    n, rest = divmod(len(body or b""), 4 * (n_columns + 2 * k) + 1)
    if body is None or rest:
        return None
    terms = np.frombuffer(body, "<f4", n_columns * n).reshape(n_columns, n)
    logprob = np.frombuffer(body, "<f4", k * n, 4 * n_columns * n).reshape(n, k)
    id = np.frombuffer(body, "<i4", k * n, 4 * (n_columns + k) * n).reshape(n, k)
    greedy = np.frombuffer(body, np.uint8, n, 4 * (n_columns + 2 * k) * n).astype(bool)
    measures = dict(zip(options.columns, terms[3:], strict=True))
    return SequenceScores(terms[0], terms[1], terms[2], greedy, id, logprob, measures)


def pack_text(text: GeneratedTokens) -> bytes:
    """Serialize a text as a row of `texts`: finish reason, EOS id, token ids, then a CRC-32."""
    eos = NO_EOS if text.eos_id is None else text.eos_id
    ids = np.ascontiguousarray(text.ids, "<i4").tobytes()
    body = struct.pack("<Bi", FINISHES.index(text.finish), eos) + ids
    return body + struct.pack("<I", zlib.crc32(body))


def unpack_text(value: bytes) -> GeneratedTokens | None:
    """Deserialize a row of `pack_text`; return None if it is damaged."""
    body = _checked(value)
    if body is None or len(body) % 4 != 1 or len(body) < 5 or body[0] >= len(FINISHES):
        return None
    finish, [eos] = FINISHES[body[0]], struct.unpack_from("<i", body, 1)
    if (finish == "eos") != (eos >= 0):
        return None
    ids = np.frombuffer(body[5:], "<i4")
    return GeneratedTokens(ids, finish, eos if finish == "eos" else None)


def _checked(value: bytes) -> bytes | None:
    """Return a row without its checksum, or None if the checksum is wrong."""
    if not isinstance(value, bytes):  # SQLite stores any type in any column
        return None
    body, checksum = value[:-4], value[-4:]
    return body if struct.pack("<I", zlib.crc32(body)) == checksum else None
