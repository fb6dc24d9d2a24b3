"""Where a journal lies: `.jaxscore/` beside the output, unless the user names another place."""

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from jaxscore.errors import InputError

FOLDER = ".jaxscore"
OF_A_FOLDER = "jaxscore"  # the journal's name where the output is a folder
SUFFIX = ".journal"


def beside(output: Path) -> Path:
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


def find(given: Path) -> Path:
    """The journal that a user means by its own name, by its output's or by its output's folder.

    Raises:
        InputError: no such journal; the message names those that lie there.
    """
    try:
        if given.is_dir() and given.name == FOLDER:
            near, expected = given, "the name of a journal"
        else:
            if (found := beside(given)).is_file():
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
