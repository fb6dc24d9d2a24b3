"""Runs of systems that are resumed, before a model is loaded."""

from pathlib import Path

from jaxscore.errors import NothingUsable
from jaxscore.systems.entries import read_file, read_objects
from jaxscore.systems.resuming import Output
from jaxscore.systems.system import declaration

MODEL = {"model": "m"}


def begin(system, source, previous=(), *, model=MODEL, dtype=None, **options):
    """The work of a run; `source` is a path or a list, `previous` the records of out.json."""
    limit, columns = options.pop("limit", None), options.pop("columns", {})
    declared = declaration(system)
    settings = declared.settings(**options)
    output = Output(Path("out.json"), previous, model, dtype)
    if not isinstance(source, Path):
        return declared.work(read_objects(declared, source, settings), settings, output)
    entries = read_file(declared, source, limit, columns, settings)
    try:
        return declared.work(entries, settings, output)
    except NothingUsable as problem:
        raise NothingUsable(f"{source}: {problem}") from None
