"""A journal's file, opened and held by one run.

SQLite's own lock on the file holds it: in exclusive locking mode a connection to a database with
a write-ahead log keeps the lock from its first read until it is closed, and needs no `-shm` file.
The lock ends with its process, however that ends, so no lock file can be left behind.
"""

import contextlib
import os
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxscore.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

APPLICATION = 0x6A787363  # `jxsc`, in the file's header: no other program's file is taken for ours
LAYOUT = 4  # of the tables and of what their rows hold
TRIES, PAUSE = 20, 0.05  # for a lock that `journal info` holds for a moment; seconds, on average

# What SQLite raises of a damaged file; its own messages may quote bytes of it that are no UTF-8.
DAMAGES = (sqlite3.Error, UnicodeDecodeError)
# With row ids the rows lie in the order in which they come, and only their keys are sorted.
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


REMEDY = (  # of a run, which can choose its journal
    "; what was finished before is kept if the file is sound; make room or give another place with "
    "--journal PATH, or --journal off"
)


class _Held(Exception):
    """Another connection holds the file."""


def open_database(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """A connection that holds a journal until it is closed.

    Args:
        create: make the file, its folder and the tables where they do not exist.

    Raises:
        InputError: another run holds the file for longer than a second; its file system has no
            locks; it is no journal, is damaged or has another layout; its folder cannot be
            written.
    """
    with explain_errors(path, REMEDY if create else ""):
        for _ in range(TRIES):
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
                # Not opened where it exists: closing it would drop SQLite's locks in this process.
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            with contextlib.suppress(_Held):
                return _held_by_us(path, create)
            time.sleep(PAUSE * random.uniform(0.5, 1.5))
    with explain_errors(path, REMEDY if create else ""):
        _check_locks(path.parent)
    own = ", or give this one a journal of its own with --journal PATH, or --journal off"
    remedy = f"wait for that one{own}" if create else "look again when that one has ended"
    raise InputError(f"journal {path}: another run holds it; {remedy}")


def _check_locks(folder: Path) -> None:
    """Check that the file system supports locks; without them SQLite reports `busy` too.

    Raises:
        sqlite3.OperationalError: it has none.
    """
    if fcntl is None:
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else can hold one on it
        except OSError as problem:
            raise sqlite3.OperationalError(
                f"its file system supports no locks ({problem.strerror}), expected one that does, "
                "such as a local disk"
            ) from None


@contextlib.contextmanager
def explain_errors(path: Path, remedy: str = "") -> Iterator[None]:
    """What goes wrong with a journal, in words for its user."""
    try:
        yield
    except (*DAMAGES, OSError) as problem:
        raise InputError(f"journal {path}: {problem}{remedy}") from None


def _held_by_us(path: Path, create: bool) -> sqlite3.Connection:
    """A connection with the lock; closed again where what it is to is no journal."""
    before = path.stat()
    # `Journal` lets one thread at a time use it.
    database = sqlite3.connect(path, timeout=0, check_same_thread=False)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")  # before anything is read
        _check_or_create(database, create)
        # Another process may have removed the file, and made another, before the lock was ours.
        if not path.exists() or not os.path.samestat(before, path.stat()):
            raise _Held
        return database
    except BaseException as problem:
        database.close()
        # Python's own errors of this kind have no code; the low byte is SQLite's primary code.
        code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
        if isinstance(problem, sqlite3.Error) and code == sqlite3.SQLITE_BUSY:
            raise _Held from None
        raise


def _check_or_create(database: sqlite3.Connection, create: bool) -> None:
    [application] = database.execute("PRAGMA application_id").fetchone()
    [layout] = database.execute("PRAGMA user_version").fetchone()
    empty = not database.execute("SELECT 1 FROM sqlite_master").fetchone()
    new = create and empty and not application
    if not new and application != APPLICATION:  # nobody else's file is changed
        raise sqlite3.DatabaseError(f"no journal (application {application:#x})")
    if not new and layout != LAYOUT:
        raise sqlite3.DatabaseError(
            f"found a journal of layout {layout}, as another version of jaxscore makes it, "
            f"expected layout {LAYOUT}; remove it if that version no longer needs it"
        )
    if not new and (strange := _strange(database)):
        raise sqlite3.DatabaseError(f"damaged, or made by others: it holds {strange[0]!r}")
    # A commit survives the end of this process; a power cut may take the last ones.
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    if new:
        with database:
            database.executescript(
                f"BEGIN; PRAGMA application_id = {APPLICATION}; "
                f"PRAGMA user_version = {LAYOUT}; {TABLES} COMMIT;"
            )


def _strange(database: sqlite3.Connection) -> list[object]:
    """Names of what no journal has: a view or a trigger could run for ever."""
    made = database.execute("SELECT type, name FROM sqlite_master").fetchall()
    own = {("table", name) for name in ("models", "scores", "texts")}
    return [name for kind, name in made if (kind, name) not in own and kind != "index"]


FOLDER = ".jaxscore"
OF_A_FOLDER = "jaxscore"  # the journal's name where the output is a folder
SUFFIX = ".journal"


def default_path(output: Path) -> Path:
    """The journal of an output: a file, or a folder of files."""
    if output.is_dir():
        return output / FOLDER / f"{OF_A_FOLDER}{SUFFIX}"
    return output.parent / FOLDER / f"{output.name}{SUFFIX}"


def check_path(path: Path, *others: Path | None) -> None:
    """Refuse a place where no journal can be, before anything is loaded.

    Args:
        others: files of the same run that it may not be.

    Raises:
        InputError: no file name, a folder, one of the others, a file of another kind, or below
            a file.
    """
    try:
        found = _complaint(path, others)
    except OSError as problem:  # a name that is too long, a loop of links
        found = problem.strerror or str(problem)
    if found is not None:
        raise InputError(f"--journal {path}: {found}; give another name, or --journal off")


def _complaint(path: Path, others: Sequence[Path | None]) -> str | None:
    if not path.name or path.is_dir():
        return "found a folder, expected the name of a file"
    if any(other is not None and path.resolve() == other.resolve() for other in others):
        return "is a file of this run, expected one of its own"
    if path.parent.exists() and not path.parent.is_dir():
        return f"{path.parent} is a file, expected a folder"
    if path.is_file() and not _is_sqlite(path):
        return "is no journal, and it is left as it is"
    return None


def find_journal(given: Path) -> Path:
    """The journal that a user means by its own name, by its output's or by its output's folder.

    Raises:
        InputError: no such journal; the message names those that lie there.
    """
    try:
        if given.is_dir() and given.name == FOLDER:
            near, expected = given, "the name of a journal"
        else:
            if (found := default_path(given)).is_file():
                return found
            if given.is_file() and _is_sqlite(given):
                return given
            near, expected = found.parent, f"a journal, or an output whose journal is {found}"
        kind = "a folder" if given.is_dir() else "no journal" if given.exists() else "no such file"
        listed = sorted(near.glob(f"*{SUFFIX}"))
    except OSError as problem:
        raise InputError(f"journal {given}: {problem.strerror or problem}") from None
    hint = f"; give one of {', '.join(map(str, listed[:5]))}" if listed else ""
    raise InputError(f"journal {given}: {kind}, expected {expected}{hint}")


def remove_emptied(folder: Path) -> None:
    """Remove a `.jaxscore` that holds nothing any more; every other folder stays."""
    if folder.name == FOLDER:
        with contextlib.suppress(OSError):  # not empty, or another run has begun to use it
            folder.rmdir()


def _is_sqlite(path: Path) -> bool:
    """Whether SQLite takes a file for a database, as it takes an empty one.

    SQLite itself looks, since closing a file that was opened otherwise drops the locks that
    another connection of this process has on it. `immutable` takes no lock and writes nothing.
    """
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("PRAGMA schema_version").fetchone()
    except sqlite3.DatabaseError as problem:
        return getattr(problem, "sqlite_errorcode", 0) != sqlite3.SQLITE_NOTADB
    return True
