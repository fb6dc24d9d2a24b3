"""`journal info` and `journal prune`: list the models of a journal, and drop some."""

import contextlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.journal import files
from jaxscore.journal.files import explain_errors, open_database


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
            files.remove_emptied(path.parent)
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
