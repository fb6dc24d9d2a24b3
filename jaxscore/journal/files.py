"""Journal files: paths, opening and locking; `journal info` and `journal prune`.

The lock is SQLite's: in exclusive locking mode a connection to a database with a write-ahead log
holds the lock from its first read until it is closed, and needs no `-shm` file. The lock ends with
its process, however the process ends, so no stale lock file can remain.
"""

import contextlib
import json
import os
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import Held, InputError
from jaxscore.io.local_path import create_private_folder, refuse_planted_link

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FOLDER = ".jaxscore"
OF_A_FOLDER = "jaxscore"  # name of the journal if the output is a folder
SUFFIX = ".journal"

APPLICATION = 0x6A787363  # `jxsc`, the application id in the header of every journal
LAYOUT = 4  # version of the tables and of the format of their rows
TRIES, PAUSE = 20, 0.05  # attempts to lock, mean seconds between; `journal info` locks briefly

# Errors of SQLite about a damaged file; its messages may quote bytes that are not UTF-8.
DAMAGES = (sqlite3.Error, UnicodeDecodeError)
# Tables with row ids: rows are appended in the order of writing, and only their keys are sorted.
TABLES = """
CREATE TABLE models (
    id INTEGER PRIMARY KEY, fingerprint TEXT UNIQUE NOT NULL, about TEXT NOT NULL,
    used TEXT NOT NULL
);
CREATE TABLE scores (
    model INTEGER NOT NULL REFERENCES models, key BLOB NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (model, key)
);
CREATE TABLE texts (
    model INTEGER NOT NULL REFERENCES models, key BLOB NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (model, key)
);
"""
REMEDY = (  # for a run, which can choose its journal
    "; finished results are kept if the file is intact; make room, or give --journal PATH, or "
    "--journal off"
)


def default_path(output: Path) -> Path:
    """Return the path of the journal of an output, a file or a folder of files."""
    if output.is_dir():
        return output / FOLDER / f"{OF_A_FOLDER}{SUFFIX}"
    return output.parent / FOLDER / f"{output.name}{SUFFIX}"


def check_path(path: Path, *others: Path | None) -> None:
    """Refuse a path that cannot be a journal, before anything is loaded.

    Args:
        others: other files of the same run; the journal must be a different file.

    Raises:
        InputError: `path` lacks a file name, is a folder, is one of `others`, is a file but not a
            journal, or its parent is a file.
    """
    problem = None
    try:
        if not path.name or path.is_dir():
            problem = "found a folder, expected the name of a file"
        elif any(other is not None and path.resolve() == other.resolve() for other in others):
            problem = "another file of this run has this name, expected a separate file"
        elif path.parent.exists() and not path.parent.is_dir():
            problem = f"{path.parent} is a file, expected a folder"
        elif path.is_file() and not _is_sqlite(path):
            problem = "not a jaxscore journal; it was not changed"
    except OSError as error:  # a name that is too long, a loop of links
        problem = error.strerror or str(error)
    if problem is not None:
        raise InputError(f"--journal {path}: {problem}; give another name, or --journal off")


def find_journal(path: Path) -> Path:
    """Find a journal by its path, its output's path or its output's folder.

    Raises:
        InputError: there is none; the message names the journals in that folder.
    """
    try:
        if path.is_dir() and path.name == FOLDER:
            folder, expected = path, "the name of a journal"
        else:
            if (journal := default_path(path)).is_file():
                return journal
            if path.is_file() and _is_sqlite(path):
                return path
            folder, expected = journal.parent, f"a journal, or an output whose journal is {journal}"
        if path.is_dir():
            problem = "a folder"
        else:
            problem = "not a jaxscore journal" if path.exists() else "no such file"
        journals = sorted(folder.glob(f"*{SUFFIX}"))
    except OSError as error:
        raise InputError(f"journal {path}: {error.strerror or error}") from None
    hint = f"; give one of {', '.join(map(str, journals[:5]))}" if journals else ""
    raise InputError(f"journal {path}: {problem}, expected {expected}{hint}")


def remove_emptied(folder: Path) -> None:
    """Remove a `.jaxscore` folder if it is empty; keep any other folder."""
    if folder.name == FOLDER:
        with contextlib.suppress(OSError):  # not empty, or another run has started to use it
            folder.rmdir()


def _is_sqlite(path: Path) -> bool:
    """Return True if SQLite accepts a file as a database, also if it is empty.

    The file is opened with SQLite: closing it after a plain `open` would drop the locks of other
    connections of this process. `immutable` takes no lock and writes nothing.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            database.execute("PRAGMA schema_version").fetchone()
    except sqlite3.DatabaseError as error:
        return getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_NOTADB
    return True


@contextlib.contextmanager
def explain_errors(path: Path, remedy: str = "") -> Iterator[None]:
    """Raise errors of SQLite and of the file system as InputError."""
    try:
        yield
    except (*DAMAGES, OSError) as error:
        raise InputError(f"journal {path}: {error}{remedy}") from None


def open_database(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Connect to a journal and lock it until the connection is closed.

    Args:
        create: if True, create the file, its folder and the tables if they do not exist.

    Raises:
        Held: another run holds the file for longer than a second.
        InputError: the file system does not support locks; the file is not a journal, is damaged
            or has another layout; its folder is not writable, or other users can write to its
            `.jaxscore`.
    """
    refuse_planted_link(path)
    with explain_errors(path, REMEDY if create else ""):
        for _ in range(TRIES):
            if create:
                if path.parent.name == FOLDER:
                    create_private_folder(path.parent, path.parent.parent, "give --journal PATH")
                path.parent.mkdir(parents=True, exist_ok=True)
                # An existing file is not opened here: closing it would drop SQLite's locks.
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            if (database := _lock_database(path, create)) is not None:
                return database
            time.sleep(PAUSE * random.uniform(0.5, 1.5))
        _check_locks(path.parent)
    remedy = "try again when that run has ended"
    if create:
        remedy = "wait for that run, or give this run its own journal with --journal PATH, "
        remedy += "or --journal off"
    raise Held(f"journal {path}: another run holds it; {remedy}")


def _lock_database(path: Path, create: bool) -> sqlite3.Connection | None:
    """Connect and lock; return None if another connection holds the file."""
    before = path.stat()
    # `Journal` serializes access from several threads.
    database = sqlite3.connect(path, timeout=0, check_same_thread=False)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")  # before anything is read
        _check_or_create(database, create)
        # Another process may have removed or replaced the file before it was locked.
        if path.exists() and os.path.samestat(before, path.stat()):
            return database
    except BaseException as error:
        # Errors that Python itself raises have no code; the low byte is SQLite's primary code.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if not (isinstance(error, sqlite3.Error) and code == sqlite3.SQLITE_BUSY):
            database.close()
            raise
    database.close()
    return None


def _check_or_create(database: sqlite3.Connection, create: bool) -> None:
    [application] = database.execute("PRAGMA application_id").fetchone()
    [layout] = database.execute("PRAGMA user_version").fetchone()
    entries = database.execute("SELECT type, name FROM sqlite_master").fetchall()
    is_new = create and not entries and not application
    if not is_new and application != APPLICATION:  # another program's file is never changed
        raise sqlite3.DatabaseError(f"not a jaxscore journal (application {application:#x})")
    if not is_new and layout != LAYOUT:
        raise sqlite3.DatabaseError(
            f"found layout {layout}, written by another version of jaxscore, expected layout "
            f"{LAYOUT}; remove the file if that version no longer needs it"
        )
    for entry_type, name in entries:  # a view or a trigger could run forever
        is_ours = entry_type == "table" and name in ("models", "scores", "texts")
        if entry_type != "index" and not is_ours:
            raise sqlite3.DatabaseError(
                f"damaged, or written by another program: it contains {name!r}"
            )
    # Commits survive the end of this process; a power cut may lose the last ones.
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    if is_new:
        with database:
            database.executescript(
                f"BEGIN; PRAGMA application_id = {APPLICATION}; "
                f"PRAGMA user_version = {LAYOUT}; {TABLES} COMMIT;"
            )


def _check_locks(folder: Path) -> None:
    """Check that the file system supports locks; if it does not, SQLite reports `busy` too.

    Raises:
        sqlite3.OperationalError: it does not support locks.
    """
    if fcntl is None:
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no other process can lock it
        except OSError as error:
            raise sqlite3.OperationalError(
                f"its file system does not support locks ({error.strerror}); use another one, such "
                "as a local disk"
            ) from None


def add_rows(path: Path, other: Path) -> None:
    """Add the rows of another journal to a journal, which is created if it does not exist.

    Args:
        path: the journal to extend; rows that it already has stay.
        other: a journal in the same folder, which no run holds.

    Raises:
        Held: a run holds `path`.
        InputError: one of the files is damaged, not a journal, or has another layout.
    """
    open_database(other).close()  # checks the file
    with contextlib.suppress(OSError):  # `path` exists, or the file system does not support links
        os.link(other, path)
        return
    with (
        contextlib.closing(open_database(path, create=True)) as database,
        explain_errors(path),
    ):
        database.execute("ATTACH ? AS other", (str(other),))
        with database:
            database.execute(
                "INSERT OR IGNORE INTO models (fingerprint, about, used) "
                "SELECT fingerprint, about, used FROM other.models"
            )
            for table in ("scores", "texts"):
                database.execute(
                    f"INSERT OR IGNORE INTO {table} "
                    f"SELECT target.id, key, value FROM other.{table} "
                    "JOIN other.models AS source ON model = source.id "
                    "JOIN main.models AS target ON target.fingerprint = source.fingerprint"
                )


class JournaledModel(NamedTuple):
    """Number and size of the rows of one fingerprint.

    Attributes:
        about: everything that determines the numbers, except the requests.
        used: the time in UTC at which a run last opened the journal with this fingerprint.
    """

    about: dict[str, Any]
    used: str
    n_sequences: int
    n_texts: int
    n_bytes: int


def list_models(path: Path) -> list[JournaledModel]:
    """List the models of a journal, the most recently used first.

    Raises:
        InputError: the file does not exist, is not a journal, is damaged, or another run holds it.
    """
    if not path.exists():
        raise InputError(f"journal {path}: no such file")
    with contextlib.closing(open_database(path)) as database, explain_errors(path):
        return _rows(database)


def _rows(database: sqlite3.Connection) -> list[JournaledModel]:
    rows = database.execute(
        "SELECT about, used, COUNT(scored), COUNT(written), COALESCE(SUM(n_bytes), 0) "
        "FROM models LEFT JOIN (SELECT model, key AS scored, NULL AS written, "
        "LENGTH(key) + LENGTH(value) AS n_bytes FROM scores UNION ALL "
        "SELECT model, NULL, key, LENGTH(key) + LENGTH(value) FROM texts) "
        "ON model = id GROUP BY id ORDER BY used DESC"
    ).fetchall()
    return [JournaledModel(_facts(about), str(used), *counts) for about, used, *counts in rows]


def _facts(about: object) -> dict[str, Any]:
    """Parse the JSON object that describes a model.

    Raises:
        sqlite3.DatabaseError: it is not a JSON object.
    """
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(about, str) and isinstance(facts := json.loads(about), dict):
            return facts
    raise sqlite3.DatabaseError("damaged: a model's description is not a JSON object")


def prune(path: Path, keep: int) -> tuple[int, int]:
    """Delete all but the most recently used models; if none is left, remove file and `.jaxscore`.

    Args:
        keep: number of models to keep.

    Returns:
        Number of deleted models, and freed bytes.

    Raises:
        InputError: see `list_models`.
    """
    if not path.exists():
        raise InputError(f"journal {path}: no such file")
    with contextlib.closing(open_database(path)) as database, explain_errors(path):
        n_models = len(_rows(database))
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = path.stat().st_size
        if not min(keep, n_models):
            _unlink(database, path)
            remove_emptied(path.parent)
            return n_models, size
        with database:
            for table, model in (("scores", "model"), ("texts", "model"), ("models", "id")):
                database.execute(
                    f"DELETE FROM {table} WHERE {model} NOT IN "
                    "(SELECT id FROM models ORDER BY used DESC LIMIT ?)",
                    (keep,),
                )
        if n_models > keep:
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return max(0, n_models - keep), max(0, size - path.stat().st_size)


def _unlink(database: sqlite3.Connection, path: Path) -> None:
    """Remove the file while it is locked, so that no other run has started to write to it.

    The write-ahead log is removed first: SQLite removes a log by name when it closes, and by then
    another run's log may have that name.
    """
    database.execute("PRAGMA journal_mode = MEMORY")
    if os.name == "nt":  # cannot remove an open file; fails if another run has opened it
        database.close()
    path.unlink()
