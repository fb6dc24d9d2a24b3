"""Finished work on disk, so that a run that was cut short goes on where it was.

One SQLite file (write-ahead log, one writer). A row of `scores` holds what one sequence of token
ids scored, under a digest of the ids and of where scoring starts, NaN for tokens that are still
missing; a transaction a batch. A row of `texts` holds what was written after one prompt, under a
digest of its ids and of how it was asked for; a transaction for what was written side by side.
Rows belong to a fingerprint of everything else that decides them, so another model, dtype or
version of JAX never reads them.
"""

import contextlib
import functools
import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from jaxscore.engine import processes
from jaxscore.engine.writing import TokenRequest, Written
from jaxscore.errors import InputError
from jaxscore.journal import row_format
from jaxscore.plan.forest import TokenSequence
from jaxscore.plan.window import SequenceScores

APPLICATION = 0x6A787363  # `jxsc`, in the file's header: no other program's file is taken for ours
LAYOUT = 2  # of the tables
MAGIC = b"SQLite format 3\0"
TOGETHER = 500  # keys a query; SQLite takes 999 and more

# What SQLite raises of a damaged file; its own messages may quote bytes of it that are no UTF-8.
DAMAGES = (sqlite3.Error, UnicodeDecodeError)
TABLES = """
CREATE TABLE models (
    id INTEGER PRIMARY KEY, fingerprint TEXT UNIQUE NOT NULL, about TEXT NOT NULL,
    used TEXT NOT NULL
);
CREATE TABLE scores (
    model INTEGER NOT NULL REFERENCES models, key BLOB NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (model, key)
) WITHOUT ROWID;
CREATE TABLE texts (
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
    n_texts: int
    n_bytes: int


class Journal:
    """What one fingerprint scored and wrote, in one file.

    The file is begun when it is first asked or told something, and held until `close`.

    Raises:
        InputError: then, where another run holds it, it is no journal or damaged, or its folder
            cannot be written.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Nothing is opened yet.

        Args:
            about: what decides the numbers beside what is asked for, as JSON has it.
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
                    row = database.execute(
                        "SELECT id FROM models WHERE fingerprint = ?", (fingerprint,)
                    ).fetchone()
                    if row is None:  # an index says other than its table
                        raise sqlite3.DatabaseError("damaged: what was written cannot be found")
            self._stack = stack.pop_all()
        return database, row[0]

    def found(
        self, sequences: Sequence[TokenSequence], n_unfed: int = 0
    ) -> dict[int, SequenceScores]:
        """What the journal has, by the place in `sequences`.

        Args:
            n_unfed: tokens at the end of each that are no part of its length.
        """
        keys = [row_format.scores_key(sequence, n_unfed) for sequence in sequences]
        values = self._values("scores", keys)
        held = {}
        for k, (sequence, key) in enumerate(zip(sequences, keys, strict=True)):
            scores = row_format.unpacked_scores(values[key]) if key in values else None
            n_scored = len(sequence.ids) - max(sequence.start, 1)
            if scores is not None and len(scores.logprob) == n_scored:
                held[k] = scores
        return held

    def keep(
        self, finished: Iterable[tuple[TokenSequence, SequenceScores]], n_unfed: int = 0
    ) -> None:
        """Write these, in one transaction."""
        self._write(
            "scores",
            [
                (row_format.scores_key(one, n_unfed), row_format.packed_scores(scores))
                for one, scores in finished
            ],
        )

    def found_texts(self, requests: Sequence[TokenRequest]) -> dict[int, Written]:
        """What the journal has, by the place in `requests`."""
        keys = [row_format.text_key(request) for request in requests]
        values = self._values("texts", keys)
        held = {}
        for k, key in enumerate(keys):
            written = row_format.unpacked_text(values[key]) if key in values else None
            if written is not None:
                held[k] = written
        return held

    def keep_texts(self, finished: Iterable[tuple[TokenRequest, Written]]) -> None:
        """Write these, in one transaction."""
        self._write(
            "texts",
            [
                (row_format.text_key(request), row_format.packed_text(written))
                for request, written in finished
            ],
        )

    def _values(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that are there; of several processes the first one looks."""
        found = self._looked_up(table, keys) if processes.first() else {}
        if processes.several():
            found = dict(row_format.pairs(processes.from_first(row_format.joined(found))))
        return found

    def _looked_up(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        database, model = self._open
        values: dict[bytes, bytes] = {}
        with _explained(self.path):
            for first in range(0, len(keys), TOGETHER):
                some = keys[first : first + TOGETHER]
                marks = ",".join("?" * len(some))
                values |= database.execute(
                    f"SELECT key, value FROM {table} WHERE model = ? AND key IN ({marks})",
                    (model, *some),
                )
        return values

    def _write(self, table: str, rows: Sequence[tuple[bytes, bytes]]) -> None:
        if not processes.first():
            return
        database, model = self._open
        with _explained(self.path), database:
            # A row that is there lacked some tokens, or its checksum failed.
            database.executemany(
                f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)",
                ((model, key, value) for key, value in rows),
            )

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
    except (*DAMAGES, OSError, NotImplementedError) as problem:  # the last: no locks there
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
                "SELECT about, used, COUNT(scored), COUNT(written), COALESCE(SUM(n_bytes), 0) "
                "FROM models LEFT JOIN (SELECT model, key AS scored, NULL AS written, "
                "LENGTH(key) + LENGTH(value) AS n_bytes FROM scores UNION ALL "
                "SELECT model, NULL, key, LENGTH(key) + LENGTH(value) FROM texts) "
                "ON model = id GROUP BY id ORDER BY used DESC"
            ).fetchall()
        return [Held(_facts(about), str(used), *counts) for about, used, *counts in rows]
    except DAMAGES as problem:
        raise InputError(f"journal {path}: {problem}") from None


def _facts(about: object) -> dict[str, Any]:
    """What decides the numbers of a model.

    Raises:
        sqlite3.DatabaseError: it is not what `Journal` writes.
    """
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(about, str) and isinstance(facts := json.loads(about), dict):
            return facts
    raise sqlite3.DatabaseError("damaged: what a model is described by is no JSON object")


def _strange(database: sqlite3.Connection) -> list[object]:
    """Names of what no journal has: a view or a trigger could run for ever."""
    made = database.execute("SELECT type, name FROM sqlite_master").fetchall()
    own = {("table", name) for name in ("models", "scores", "texts")}
    return [name for kind, name in made if (kind, name) not in own and kind != "index"]


def prune(path: Path, keep: int) -> tuple[int, int]:
    """Drop all but the models used last; returns how many went and the bytes freed.

    Raises:
        InputError: as `held`, or another run holds the file.
    """
    before = held(path)
    with _held_by_us(path), contextlib.closing(_opened(path)) as database:
        size = path.stat().st_size
        with database:
            for table, model in (("scores", "model"), ("texts", "model"), ("models", "id")):
                database.execute(
                    f"DELETE FROM {table} WHERE {model} NOT IN "
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
        if not begun and application != APPLICATION:  # nobody else's file is changed
            raise sqlite3.DatabaseError(f"no journal (application {application:#x})")
        if not begun and layout != LAYOUT:
            raise sqlite3.DatabaseError(
                f"found a journal of layout {layout}, as another version of jaxscore makes it, "
                f"expected layout {LAYOUT}; remove it if that version no longer needs it"
            )
        if not begun and (strange := _strange(database)):
            raise sqlite3.DatabaseError(f"damaged, or made by others: it holds {strange[0]!r}")
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
