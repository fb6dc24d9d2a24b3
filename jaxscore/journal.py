"""Finished scores on disk, so that a run that was cut short goes on where it was.

One SQLite file (write-ahead log, one writer, a transaction a batch). A row holds what one
sequence of token ids scored, under a digest of the ids and of where scoring starts, NaN for
tokens that are still missing; rows belong to a fingerprint of everything else that decides the
numbers, so another model, dtype or version of JAX never reads them.
"""

import contextlib
import functools
import hashlib
import json
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np

from jaxscore.errors import InputError
from jaxscore.forest import TokenSequence
from jaxscore.window import SequenceScores

APPLICATION = 0x6A787363  # `jxsc`, in the file's header: no other program's file is taken for ours
LAYOUT = 1  # of the tables
MAGIC = b"SQLite format 3\0"
TOGETHER = 500  # keys a query; SQLite takes 999 and more

TABLES = """
CREATE TABLE models (
    id INTEGER PRIMARY KEY, fingerprint TEXT UNIQUE NOT NULL, about TEXT NOT NULL,
    used TEXT NOT NULL
);
CREATE TABLE scores (
    model INTEGER NOT NULL REFERENCES models, key BLOB NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (model, key)
) WITHOUT ROWID;
"""


def check_path(path: Path, *others: Path | None) -> None:
    """Refuse a place where no journal can be, before anything is loaded.

    Args:
        others: files of the same run that it may not be.

    Raises:
        InputError: no file name, a folder, one of the others, or a file of another kind.
    """
    found = None
    if not path.name or path.is_dir():
        found = "found a folder, expected the name of a file"
    elif any(other is not None and path.resolve() == other.resolve() for other in others):
        found = "is a file of this run, expected one of its own"
    elif path.is_file() and path.stat().st_size:
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                found = "is no journal, and it is left as it is"
    if found is not None:
        raise InputError(f"--journal {path}: {found}; give another name, or --journal off")


class Held(NamedTuple):
    """What a journal has for one fingerprint; `used` is when a run last opened it, in UTC."""

    about: dict[str, Any]
    used: str
    n_sequences: int
    n_bytes: int


def key(sequence: TokenSequence, n_unfed: int) -> bytes:
    """A digest of the ids, of where scoring starts and of what is no part of the length.

    The last decides where a model has other rotary frequencies for long requests.
    """
    digest = hashlib.blake2b(struct.pack("<qq", sequence.start, n_unfed), digest_size=20)
    digest.update(np.ascontiguousarray(sequence.ids, "<i4").tobytes())
    return digest.digest()


def packed(scores: SequenceScores) -> bytes:
    """The columns one after the other, and a checksum."""
    columns = (scores.logprob, scores.entropy, scores.self_certainty)
    body = b"".join(np.ascontiguousarray(column, "<f4").tobytes() for column in columns)
    body += np.ascontiguousarray(scores.greedy, np.uint8).tobytes()
    return body + struct.pack("<I", zlib.crc32(body))


def unpacked(value: bytes) -> SequenceScores | None:
    """What `packed` made of scores, or None where a bit has changed since."""
    body, checksum = value[:-4], value[-4:]
    n, rest = divmod(len(body), 13)
    if rest or struct.pack("<I", zlib.crc32(body)) != checksum:
        return None
    logprob, entropy, certainty = np.frombuffer(body[: 12 * n], "<f4").reshape(3, n)
    greedy = np.frombuffer(body[12 * n :], np.uint8).astype(bool)
    return SequenceScores(logprob, entropy, certainty, greedy)


class Journal:
    """Scores of one fingerprint in one file.

    The file is begun when it is first asked or told something, and held until `close`.

    Raises:
        InputError: then, where another run holds it, it is no journal or damaged, or its folder
            cannot be written.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Nothing is opened yet.

        Args:
            about: everything but the token ids that decides the numbers, as JSON has it.
        """
        self.path = path
        self._about = json.dumps(about, sort_keys=True)
        self._stack = contextlib.ExitStack()

    @functools.cached_property
    def _open(self) -> tuple[sqlite3.Connection, int]:
        """The database and this fingerprint's number in it."""
        fingerprint = hashlib.sha256(self._about.encode()).hexdigest()
        with contextlib.ExitStack() as stack:
            with _explained(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_held_by_us(self.path))
            with _explained(self.path):
                database = stack.enter_context(contextlib.closing(_opened(self.path, begin=True)))
                with database:
                    database.execute(
                        "INSERT INTO models (fingerprint, about, used) VALUES (?, ?, "
                        "strftime('%Y-%m-%dT%H:%M:%fZ')) "
                        "ON CONFLICT (fingerprint) DO UPDATE SET used = excluded.used",
                        (fingerprint, self._about),
                    )
                [model] = database.execute(
                    "SELECT id FROM models WHERE fingerprint = ?", (fingerprint,)
                ).fetchone()
            self._stack = stack.pop_all()
        return database, model

    def found(
        self, sequences: Sequence[TokenSequence], n_unfed: int = 0
    ) -> dict[int, SequenceScores]:
        """What the journal has, by the place in `sequences`.

        Args:
            n_unfed: tokens at the end of each that are no part of its length.
        """
        database, model = self._open
        keys = [key(sequence, n_unfed) for sequence in sequences]
        values: dict[bytes, bytes] = {}
        with _explained(self.path):
            for first in range(0, len(keys), TOGETHER):
                some = keys[first : first + TOGETHER]
                marks = ",".join("?" * len(some))
                values |= database.execute(
                    f"SELECT key, value FROM scores WHERE model = ? AND key IN ({marks})",
                    (model, *some),
                )
        held = {}
        for k, (sequence, own) in enumerate(zip(sequences, keys, strict=True)):
            scores = unpacked(values[own]) if own in values else None
            n_scored = len(sequence.ids) - max(sequence.start, 1)
            if scores is not None and len(scores.logprob) == n_scored:
                held[k] = scores
        return held

    def keep(
        self, finished: Iterable[tuple[TokenSequence, SequenceScores]], n_unfed: int = 0
    ) -> None:
        """Write these, in one transaction."""
        database, model = self._open
        rows = [(model, key(one, n_unfed), packed(scores)) for one, scores in finished]
        with _explained(self.path), database:
            # A row that is there lacked some tokens, or its checksum failed.
            database.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        """Let other runs have the file."""
        self._stack.close()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except filelock.Timeout:
        raise InputError(
            f"journal {path}: another run holds it; wait for that one, or give this one a journal "
            "of its own with --journal PATH, or --journal off"
        ) from None
    except (sqlite3.Error, OSError, NotImplementedError) as problem:  # the last: no locks there
        raise InputError(
            f"journal {path}: {problem}; what was finished before is kept if the file is sound; "
            "make room or give another place with --journal PATH, or --journal off"
        ) from None


def held(path: Path) -> list[Held]:
    """What a journal has, read without holding it.

    Raises:
        InputError: no such file, or none of ours.
    """
    if not path.exists():
        raise InputError(f"journal {path}: no such file")
    try:
        with contextlib.closing(_opened(path)) as database:
            rows = database.execute(
                "SELECT about, used, COUNT(key), COALESCE(SUM(LENGTH(key) + LENGTH(value)), 0) "
                "FROM models LEFT JOIN scores ON model = id GROUP BY id ORDER BY used DESC"
            ).fetchall()
    except sqlite3.Error as problem:
        raise InputError(f"journal {path}: {problem}") from None
    return [Held(json.loads(about), *rest) for about, *rest in rows]


def prune(path: Path, keep: int) -> tuple[int, int]:
    """Drop all but the models used last; returns how many went and the bytes freed.

    Raises:
        InputError: as `held`, or another run holds the file.
    """
    before = held(path)
    with _held_by_us(path), contextlib.closing(_opened(path)) as database:
        size = path.stat().st_size
        with database:
            database.execute(
                "DELETE FROM scores WHERE model NOT IN "
                "(SELECT id FROM models ORDER BY used DESC LIMIT ?)",
                (keep,),
            )
            database.execute(
                "DELETE FROM models WHERE id NOT IN "
                "(SELECT id FROM models ORDER BY used DESC LIMIT ?)",
                (keep,),
            )
        n_models = max(0, len(before) - keep)
        if n_models:
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return n_models, max(0, size - path.stat().st_size) if n_models else 0


@contextlib.contextmanager
def _held_by_us(path: Path) -> Iterator[None]:
    """The lock of a journal, and what goes wrong with it in the user's words."""
    lock = filelock.FileLock(path.with_name(path.name + ".lock"), timeout=0)
    with _explained(path):
        lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _opened(path: Path, *, begin: bool = False) -> sqlite3.Connection:
    """A connection to a journal; an empty file becomes one only with `begin`."""
    database = sqlite3.connect(path, timeout=10)
    try:
        [application] = database.execute("PRAGMA application_id").fetchone()
        [layout] = database.execute("PRAGMA user_version").fetchone()
        empty = not database.execute("SELECT 1 FROM sqlite_master").fetchone()
        begun = empty and not application and begin
        if not begun and (application, layout) != (APPLICATION, LAYOUT):  # nobody else's changes
            raise sqlite3.DatabaseError(
                f"no journal of this version (application {application:#x}, layout {layout})"
            )
        # What a commit has written survives this process; a power cut may take the last ones.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        if begun:
            with database:
                database.executescript(
                    f"BEGIN; PRAGMA application_id = {APPLICATION}; "
                    f"PRAGMA user_version = {LAYOUT}; {TABLES} COMMIT;"
                )
        return database
    except BaseException:
        database.close()
        raise
