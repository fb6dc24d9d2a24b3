"""A finished run from its file: which system, its records, and what it was made with."""

import codecs
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from jaxscore.errors import InputError
from jaxscore.io.items import read_items
from jaxscore.io.json_input import read_json, read_jsonl, unreadable_file
from jaxscore.io.records import read_jsonl_records, read_parquet_records
from jaxscore.io.run_files import file_digest
from jaxscore.io.tables import DELIMITERS
from jaxscore.systems.compare import facts as run_facts
from jaxscore.systems.compare import recognised
from jaxscore.systems.compare.run import Run, collect, units
from jaxscore.systems.compare.unit import System, shown

LOOKED_AT = 1000  # records before one that did not fail
LISTS = ("options", "sum_logprob")  # columns of lists in a table of `choose` that are compared


@dataclasses.dataclass(frozen=True)
class Opened:
    """A run before its records are read.

    Attributes:
        path: None for records from Python.
        records: (where it is, for messages; the record); of a file they are read once.
        failures: (name, why) as its report lists them; None where its records alone tell.
        facts: by name.
        has_manifest: whether the facts come from one.
    """

    path: Path | None
    system: System
    records: Iterable[tuple[str, Any]]
    failures: list[tuple[str, str]] | None
    facts: Mapping[str, Any]
    has_manifest: bool

    def load(self, *, with_texts: bool) -> Run:
        """All of its units.

        Args:
            with_texts: take the texts from the input that the manifest names, where the records
                do not hold them.
        """
        texts = self._texts() if with_texts else None
        return collect(units(self.system, self.records, self.facts, texts))

    def _texts(self) -> Iterator[object] | None:
        """The texts of the run's input, line by line; None where it is not there, or another."""
        fields, given = self.system.input_fields, self.facts.get("input")
        wanted = self.facts.get("input_sha256")
        if fields is None or not isinstance(given, str) or wanted is None:
            return None
        path = Path(given)
        if self.facts.get("column") or path.suffix.lower() != ".jsonl":
            return None
        try:
            return _line_texts(path, fields) if file_digest(path) == wanted else None
        except OSError:  # a folder of somebody else, or a name that no file can have
            return None


def _line_texts(path: Path, fields: tuple[str, ...]) -> Iterator[object]:
    for _, line in read_jsonl(path):
        yield tuple(line.get(name, "") for name in fields)


def same_input(a: Opened, b: Opened) -> bool:
    """Whether both runs read the same bytes in the same way, so that equal ids are equal texts."""
    one, other = (run.facts.get("input_sha256") for run in (a, b))
    columns = [run.facts.get("column") for run in (a, b)]
    return one is not None and one == other and columns[0] == columns[1]


def open_run(path: Path) -> Opened:
    """Look at a run's file and its manifest; most of its records are not read yet.

    Raises:
        InputError: it cannot be read, or is no result that can be compared.
    """
    if path.suffix.lower() in DELIMITERS:
        raise InputError(
            f"{path}: found a table in text, whose numbers have no types; run the command again "
            "with an --output that ends in .jsonl or .parquet, and compare that"
        )
    try:
        kind = _kind(path)
    except (OSError, ValueError) as problem:
        raise unreadable_file(path, problem, recognised.EXPECTED) from None
    made = run_facts.manifest(path)
    if kind == "object":
        return _of_report(path, made)
    if kind == "table":
        records = (
            (f"row {k}", row) for k, row in enumerate(read_parquet_records(path, LISTS), start=1)
        )
    elif kind == "array":
        found = read_items(path)
        records = ((f"item {k}", one) for k, one in enumerate(found, start=1))
    else:
        records = ((f"line {k}", one) for k, one in read_jsonl_records(path))
    start = list(itertools.islice(records, LOOKED_AT))
    good = (one for _, one in start if isinstance(one, dict) and one.get("error") is None)
    command = None if made is None else made["command"]
    first = next(good, start[0][1] if start else {})
    system = recognised.of_records(command, first, path)
    every = itertools.chain(start, records)
    facts = run_facts.flat(made, first.get("confidence_settings"))
    return Opened(path, system, every, None, facts, made is not None)


def of_items(system: str, items: Iterable[Any], settings: Mapping[str, Any]) -> Opened:
    """A run from Python.

    Args:
        system: its name, as of `evaluate`.
        items: its records, as the system's output file has them.

    Raises:
        InputError: results of that system are not compared, or there are none.
    """
    records = [(f"item {k}", one) for k, one in enumerate(items, start=1)]
    if not records:
        raise InputError("the report of a run has no items, as with on_item; compare its file")
    good = (one for _, one in records if isinstance(one, Mapping) and one.get("error") is None)
    found = recognised.of_command(system, next(good, records[0][1]))
    return Opened(None, found, records, None, {"command": system, **settings}, False)


def _of_report(path: Path, made: Mapping[str, Any] | None) -> Opened:
    found = read_json(path, recognised.EXPECTED)
    system, items = recognised.of_report(found, path)
    facts = run_facts.flat(made, found["settings"])
    failed = found.get("failures")
    listed = None
    if isinstance(failed, list):
        pairs = ((one.get("name"), one.get("error")) for one in failed if isinstance(one, dict))
        listed = [(shown(name), str(error)) for name, error in pairs]
    records = ((f"item {k}", one) for k, one in enumerate(items, start=1))
    return Opened(path, system, records, listed, facts, made is not None)


def _kind(path: Path) -> str:
    """What a file holds: "table", "array", "object" (one in the whole file) or "lines".

    Raises:
        OSError: it cannot be read.
    """
    if path.suffix.lower() == ".parquet":
        return "table"
    with open(path, "rb") as file:
        if not path.is_file():
            raise ValueError("found a pipe or a device")
        lines = (line.removeprefix(codecs.BOM_UTF8).strip() for line in file)
        first = next((line for line in lines if line), b"")
    if first.startswith(b"["):
        return "array"
    if path.suffix.lower() == ".json" and not _is_record(first):
        return "object"
    return "lines"


def _is_record(line: bytes) -> bool:
    """Whether a line is an object, and not that of a report."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and "settings" not in found
