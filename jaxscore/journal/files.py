"""Journal files: where they lie, how one run opens and locks one; `journal info` and `prune`.

The lock is SQLite's own: in exclusive locking mode a connection to a database with a write-ahead
log holds the lock from its first read until it is closed, and needs no `-shm` file. The lock ends
with its process, however that ends, so no lock file can be left behind.
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

from jaxscore.errors import InputError
from jaxscore.io.local_path import create_private_folder, refuse_planted_link

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FOLDER = ".jaxscore"
OF_A_FOLDER = "jaxscore"  # name of the journal if the output is a folder
SUFFIX = ".journal"

APPLICATION = 0x6A787363  # `jxsc`, in the file's header: no other program's file is used
LAYOUT = 4  # of the tables and of the contents of their rows
TRIES, PAUSE = 20, 0.05  # for a lock that `journal info` holds for a moment; mean seconds

# Errors of SQLite about a damaged file; its messages may quote bytes that are not UTF-8.
DAMAGES = (sqlite3.Error, UnicodeDecodeError)
# With row ids, rows lie in the order in which they come, and only their keys are sorted.
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
    "; what was finished before is kept if the file is sound; make room or give another place with "
    "--journal PATH, or --journal off"
)


def default_path(output: Path) -> Path:
    """Journal of an output, which is a file or a folder of files."""
    if output.is_dir():
        return output / FOLDER / f"{OF_A_FOLDER}{SUFFIX}"
    return output.parent / FOLDER / f"{output.name}{SUFFIX}"


def check_path(path: Path, *others: Path | None) -> None:
    """Refuse a path that cannot be a journal, before anything is loaded.

    Args:
        others: files of the same run that the journal may not be.

    Raises:
        InputError: `path` has no file name, or is a folder, one of the others, a file of another
            kind, or below a file.
    """
    problem = None
    try:
        if not path.name or path.is_dir():
            problem = "found a folder, expected the name of a file"
        elif any(other is not None and path.resolve() == other.resolve() for other in others):
            problem = "is a file of this run, expected one of its own"
        elif path.parent.exists() and not path.parent.is_dir():
            problem = f"{path.parent} is a file, expected a folder"
        elif path.is_file() and not _is_sqlite(path):
            problem = "is no journal, and it is left as it is"
    except OSError as error:  # a name that is too long, a loop of links
        problem = error.strerror or str(error)
    if problem is not None:
        raise InputError(f"--journal {path}: {problem}; give another name, or --journal off")


def find_journal(path: Path) -> Path:
    """Find a journal by its own name, its output's name or its output's folder.

    Raises:
        InputError: there is none; the message names the journals in that folder.
    """
    try:
        if path.is_dir() and path.name == FOLDER:
            near, expected = path, "the name of a journal"
        else:
            if (found := default_path(path)).is_file():
                return found
            if path.is_file() and _is_sqlite(path):
                return path
            near, expected = found.parent, f"a journal, or an output whose journal is {found}"
        kind = "a folder" if path.is_dir() else "no journal" if path.exists() else "no such file"
        journals = sorted(near.glob(f"*{SUFFIX}"))
    except OSError as error:
        raise InputError(f"journal {path}: {error.strerror or error}") from None
    hint = f"; give one of {', '.join(map(str, journals[:5]))}" if journals else ""
    raise InputError(f"journal {path}: {kind}, expected {expected}{hint}")


def remove_emptied(folder: Path) -> None:
    """Remove a `.jaxscore` folder if it is empty; every other folder stays."""
    if folder.name == FOLDER:
        with contextlib.suppress(OSError):  # not empty, or another run has begun to use it
            folder.rmdir()


def _is_sqlite(path: Path) -> bool:
    """Whether SQLite accepts a file as a database; it accepts an empty one.

    Opens the file with SQLite, since closing a file that was opened otherwise drops the locks
    of other connections of this process. `immutable` takes no lock and writes nothing.
    """
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("PRAGMA schema_version").fetchone()
    except sqlite3.DatabaseError as error:
        return getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_NOTADB
    return True


class JournalHeld(InputError):
    """Another run holds the journal."""


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
        create: make the file, its folder and the tables if they do not exist.

    Raises:
        JournalHeld: another run holds the file for longer than a second.
        InputError: its file system has no locks; it is not a journal, is damaged or has another
            layout; its folder cannot be written, or others can write to its `.jaxscore`.
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
    own = ", or give this one a journal of its own with --journal PATH, or --journal off"
    remedy = f"wait for that one{own}" if create else "look again when that one has ended"
    raise JournalHeld(f"journal {path}: another run holds it; {remedy}")


def _lock_database(path: Path, create: bool) -> sqlite3.Connection | None:
    """Connect and lock, or return None if another connection holds the file."""
    before = path.stat()
    # `Journal` serializes the use by threads.
    database = sqlite3.connect(path, timeout=0, check_same_thread=False)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")  # before anything is read
        _check_or_create(database, create)
        # Another process may have removed or replaced the file before we locked it.
        if path.exists() and os.path.samestat(before, path.stat()):
            return database
    except BaseException as error:
        # Python's own errors of this kind have no code; the low byte is SQLite's primary code.
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
        raise sqlite3.DatabaseError(f"no journal (application {application:#x})")
    if not is_new and layout != LAYOUT:
        raise sqlite3.DatabaseError(
            f"found a journal of layout {layout}, as another version of jaxscore makes it, "
            f"expected layout {LAYOUT}; remove it if that version no longer needs it"
        )
    for kind, name in entries:  # a view or a trigger could run for ever
        if kind != "index" and (kind != "table" or name not in ("models", "scores", "texts")):
            raise sqlite3.DatabaseError(f"damaged, or made by others: it holds {name!r}")
    # A commit survives the end of this process; a power cut may take the last ones.
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    if is_new:
        with database:
            database.executescript(
                f"BEGIN; PRAGMA application_id = {APPLICATION}; "
                f"PRAGMA user_version = {LAYOUT}; {TABLES} COMMIT;"
            )


def _check_locks(folder: Path) -> None:
    """Check that the file system supports locks; without them SQLite reports `busy` too.

    Raises:
        sqlite3.OperationalError: it has none.
    """
    if fcntl is None:
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no other process can hold one on it
        except OSError as error:
            raise sqlite3.OperationalError(
                f"its file system supports no locks ({error.strerror}), expected one that does, "
                "such as a local disk"
            ) from None


def add_rows(path: Path, other: Path) -> None:
    """Add the rows of another journal that a journal lacks, which need not exist.

    Args:
        other: of the same folder; no run holds it.

    Raises:
        JournalHeld: a run holds the first one.
        InputError: one of them is damaged, no journal, or has another layout.
    """
    open_database(other).close()  # checks it
    with contextlib.suppress(OSError):  # there is a journal, or the file system has no links
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
                    f"INSERT OR IGNORE INTO {table} SELECT own.id, key, value FROM other.{table} "
                    "JOIN other.models AS theirs ON model = theirs.id "
                    "JOIN main.models AS own ON own.fingerprint = theirs.fingerprint"
                )


class JournaledModel(NamedTuple):
    """Rows of one fingerprint; `used` is when a run last opened it, in UTC."""

    about: dict[str, Any]
    used: str
    n_sequences: int
    n_texts: int
    n_bytes: int


def list_models(path: Path) -> list[JournaledModel]:
    """List the models of a journal, the last used first.

    Raises:
        InputError: no such file, no journal, a damaged one, or one that another run holds.
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
    """The JSON object that describes a model.

    Raises:
        sqlite3.DatabaseError: `Journal` did not write it.
    """
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(about, str) and isinstance(facts := json.loads(about), dict):
            return facts
    raise sqlite3.DatabaseError("damaged: what a model is described by is no JSON object")


def prune(path: Path, keep: int) -> tuple[int, int]:
    """Drop all but the last used models. Without any left, remove the file and its `.jaxscore`.

    Returns:
        Number of dropped models, and freed bytes.

    Raises:
        InputError: as `list_models`.
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
    """Remove the file while it is locked, so that no other run has begun to write to it.

    Its write-ahead log goes first: SQLite removes a log by name when it closes, and by then the
    name may be that of another run's log.
    """
    database.execute("PRAGMA journal_mode = MEMORY")
    if os.name == "nt":  # which removes no open file, and none that another run has open
        database.close()
    path.unlink()
