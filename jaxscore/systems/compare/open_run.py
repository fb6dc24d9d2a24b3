"""Opens a finished run: its system, its records, its settings, and the texts of its input.

The manifest names the system that wrote the run, otherwise the fields of its records do.
"""

import codecs
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from jaxscore.errors import InputError
from jaxscore.io.items import read_items
from jaxscore.io.json_input import read_json, read_jsonl_records, unreadable_file
from jaxscore.io.manifest import (
    OUTPUTS,
    changed_output,
    file_digest,
    manifest_path,
    output_difference,
    read_manifest_file,
)
from jaxscore.io.streams import form_of, open_binary
from jaxscore.io.tables import DELIMITERS, read_parquet_records
from jaxscore.shell.system import System
from jaxscore.systems import SYSTEMS, declaration
from jaxscore.systems.compare.columns import Run, collect
from jaxscore.systems.compare.units import Asked, Reader, shown
from jaxscore.version import RECORDS

NAMED = 8  # fields in a message
SEARCHED = 1000  # records in which one that did not fail is looked for
# Flags and facts that do not affect the numbers, and those that are compared elsewhere.
NOT_COMPARED = frozenset(
    "output output_dir output_file journal quiet distributed coordinator num_processes process_id "
    "join_timeout trust_remote_code cache_dir date config html no_html by numbers noise failed "
    "input_path".split()
)
ENDINGS = (  # ends of a result's name, and of the file whose name its manifest has
    ("_results.json", "_results.csv"),
    ("_out.json", "_metrics.json"),
    (".json", ".md"),
)


@dataclasses.dataclass(frozen=True)
class OpenRun:
    """A run before its records are read.

    Attributes:
        path: None for records from Python.
        reader: reads its units.
        records: takes the fields with lists that are needed, for tables; gives (place for
            messages, record).
        failures: (name, why) as its report lists them; None if only its records do.
        facts: settings and versions by name; empty if they are not known.
        has_manifest: True if the facts come from one.
        label: its letter in messages and reports.
    """

    path: Path | None
    reader: Reader
    records: "Records"
    failures: list[tuple[str, str]] | None
    facts: Mapping[str, Any]
    has_manifest: bool
    label: str = "A"

    def load(self, asked: Iterator[Asked] | None = None, *, by_tokens: bool = False) -> Run:
        """Read all units; see `Reader.units`."""
        records = self.records(self.reader.lists(by_tokens=by_tokens))
        return collect(self.reader.units(records, asked, by_tokens=by_tokens))

    @property
    def input(self) -> Path | None:
        """The file that the run read, or None if it is missing, unknown or has changed."""
        expected = self.facts.get("input_sha256")
        source = self.facts.get("input_path") or self.facts.get("input")
        if expected is None or not isinstance(source, str):
            return None
        try:
            return path if file_digest(path := Path(source)) == expected else None
        except OSError:  # a folder without access, or an impossible file name
            return None

    def asked(self) -> Iterator[Asked] | None:
        """Yield the requests of the unchanged input, item by item; None without it."""
        path, columns = self.input, self.facts.get("column") or ()
        if path is None:
            return None
        mapping = dict(column.split("=", 1) for column in columns)
        return self.reader.asked(self.reader.system.read(path, mapping))


def have_same_input(a: OpenRun, b: OpenRun) -> bool:
    """Return True if both runs read the same bytes alike, so that equal ids are equal texts."""
    if (a.facts.get("column") or []) != (b.facts.get("column") or []):
        return False
    return a.facts.get("input_sha256") == b.facts.get("input_sha256") is not None


def open_run(path: Path) -> OpenRun:
    """Look at a run's file and its manifest; most of its records are not read yet.

    Raises:
        InputError: it cannot be read, or is not a result that can be compared.
    """
    if form_of(path) in DELIMITERS:
        raise InputError(
            f"{path}: found a table in text, whose numbers have no types; run the command again "
            "with an --output that ends in .jsonl or .parquet, and compare that"
        )
    try:
        form = _form(path)
    except (OSError, ValueError) as problem:
        raise unreadable_file(path, problem, expected_files()) from None
    manifest = read_manifest(path)
    try:
        named = None if manifest is None else _reader_of(str(manifest["command"]))
    except InputError as problem:
        raise InputError(f"{path}: by its manifest, {problem}") from None
    settings: object = None
    failures = None
    if form == "object":
        report = read_json(path, expected_files())
        reader, items = _reader_of_report(report, named, path)
        settings, records, listed = report["settings"], _listed(items), report.get("failures")
        if isinstance(listed, list):
            failures = [
                (shown(failure.get("name")), str(failure.get("error")))
                for failure in listed
                if isinstance(failure, dict)
            ]
    else:
        records = functools.partial(_records, path, form)
        first = first_good(itertools.islice(records(()), SEARCHED))
        if (alike := named or _most_alike(_compared_systems(), first)) is None:
            expected = f"expected {expected_files()}"
            raise InputError(f"{path}: found records with the fields {_names(first)}, {expected}")
        reader = alike
        settings = first.get("confidence_settings")
    system = reader.system
    made = {} if manifest is None else manifest.get("made") or {}
    version = RECORDS if manifest is None else made.get("records", 1)
    if version != RECORDS:
        raise InputError(
            f"{path}: its records have version {version}, expected version {RECORDS} of "
            f"{system.name}; run the command again"
        )
    return OpenRun(
        path, reader, records, failures, _facts(system, manifest, settings), manifest is not None
    )


def of_items(name: str, items: Iterable[Any], settings: Mapping[str, Any]) -> OpenRun:
    """Return a run from Python.

    Args:
        name: the system's.
        items: its records, as the output file has them.

    Raises:
        InputError: results of that system are not compared, or there are none.
    """
    items = list(items)
    if not items:
        raise InputError("the report of a run has no items, as with on_item; compare its file")
    reader = _reader_of(name)
    facts = _with_defaults(reader.system, {"command": name, **settings})
    return OpenRun(None, reader, _listed(items), None, facts, has_manifest=False)


Records = Callable[[Collection[str]], Iterable[tuple[str, Any]]]


def _listed(items: list[Any]) -> Records:
    return lambda _: ((f"item {k}", item) for k, item in enumerate(items, start=1))


def first_good(records: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the first record without an error; if there is none, the first one."""
    first: Any = None
    for _, record in records:
        if isinstance(record, dict) and record.get("error") is None:
            return record
        first = record if first is None else first
    return first if isinstance(first, dict) else {}


def _records(path: Path, form: str, lists: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield (place for messages, record) of a file of records."""
    if form == "table":
        rows = enumerate(read_parquet_records(path, lists), start=1)
        return ((f"row {k}", row) for k, row in rows)
    if form == "array":
        return ((f"item {k}", item) for k, item in enumerate(read_items(path), start=1))
    return ((f"line {k}", record) for k, record in read_jsonl_records(path))


def _form(path: Path) -> str:
    """Return the form of a file: "table", "array", "object" (one in the whole file) or "lines".

    Raises:
        OSError: it cannot be read.
    """
    if form_of(path) == ".parquet":
        return "table"
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("found a pipe or a device")
    with open_binary(path) as file:
        lines = (line.removeprefix(codecs.BOM_UTF8).strip() for line in file)
        first = next((line for line in lines if line), b"")
    if first.startswith(b"["):
        return "array"
    if form_of(path) == ".json" and not _is_record(first):
        return "object"
    return "lines"


def _is_record(line: bytes) -> bool:
    """Return True if a line is an object, and not a report."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and "settings" not in value


def find_manifest(path: Path) -> Path | None:
    """Return the manifest of a result, or None if there is none.

    It has the name of the result, or of the table, the metrics or the report that was written with
    it: jaxscore/report/README.md has the list.
    """
    name = path.name.replace("eval_results_", "eval_report_", 1)
    others = (
        path.with_name(name.removesuffix(ending) + other)
        for ending, other in ENDINGS
        if name.endswith(ending)
    )
    return next(filter(_is_file, map(manifest_path, (path, *others))), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a long name has no room for the ending
        return False


def read_manifest(path: Path) -> Mapping[str, Any] | None:
    """Read the manifest of a result, or return None if there is none.

    Raises:
        InputError: it is not a manifest, or describes another file of this name.
    """
    manifest_file = find_manifest(path)
    if manifest_file is None:
        return None
    manifest = read_manifest_file(manifest_file)
    assert manifest is not None
    # The file may have been renamed together with its manifest.
    name = path.name
    if manifest_file == manifest_path(path) and name not in manifest.get(OUTPUTS, {}):
        name = Path(manifest.get("output", name)).name
    why = output_difference(path, manifest, name=name)
    if why is not None:
        raise changed_output(path, why)
    return manifest


def _facts(system: System, manifest: Mapping[str, Any] | None, settings: object) -> dict[str, Any]:
    """Return the facts of a run by name: from its manifest, and the settings in its report."""
    facts: dict[str, Any] = dict(settings) if isinstance(settings, dict) else {}
    if manifest is not None:
        flags, model, versions = (
            part if isinstance(part := manifest.get(name), dict) else {}
            for name in ("flags", "model", "versions")
        )
        facts |= flags | {name: model[name] for name in model if name != "model"}
        if "model" in model:  # the hash; the flag has the name
            facts["weights"] = model["model"]
        names = ("command", "input_sha256", "input_path")
        facts |= {name: manifest[name] for name in names if name in manifest}
        facts |= versions
    return _with_defaults(system, facts)


def _with_defaults(system: System, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a run; a fixed setting that it does not have yet has its default."""
    fixed = {
        field.name: field.default
        for field in dataclasses.fields(system.settings)
        if field.name in system.settings.fixed
    }
    return {**fixed, **facts} if facts else facts


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the facts that both runs have and that differ, as `{setting, a, b}`."""
    return [
        {"setting": name, "a": a[name], "b": b[name]}
        for name in a
        if name in b and name not in NOT_COMPARED and a[name] != b[name]
    ]


def _compared_systems() -> list[Reader]:
    """Return readers of the systems whose records declare a number or a decision."""
    readers = map(Reader, map(declaration, SYSTEMS))
    return [reader for reader in readers if reader.is_compared]


def expected_files() -> str:
    """Return a description of the files that can be compared, for messages."""
    return f"the output of {', '.join(reader.system.name for reader in _compared_systems())}"


def _reader_of(name: str) -> Reader:
    """Return the reader of a system.

    Raises:
        InputError: its results are not compared.
    """
    if name in SYSTEMS and (reader := Reader(declaration(name))).is_compared:
        return reader
    raise InputError(f"results of {name} are not compared; expected {expected_files()}")


def _most_alike(readers: Iterable[Reader], record: Mapping[str, Any]) -> Reader | None:
    """Return the reader most of whose result fields a record has, or None."""
    likeness = {reader: each for reader in readers if (each := reader.likeness({*record}))}
    return max(likeness, key=lambda reader: likeness[reader], default=None)


def _reader_of_report(
    report: Mapping[str, Any], named: Reader | None, path: Path
) -> tuple[Reader, list[Any]]:
    """Return the reader of a report's JSON file, and its records: the field with the items' name.

    Raises:
        InputError: the report has no records.
    """
    readers = [named] if named else _compared_systems()
    holding = [reader for reader in readers if isinstance(report.get(reader.system.what), list)]
    if isinstance(report.get("settings"), dict) and holding:
        first = first_good(_listed(report[holding[0].system.what])(()))
        reader = _most_alike(holding, first) or holding[0]
        return reader, report[reader.system.what]
    hint, name = "", path.name.replace("_report.json", ".json").removesuffix(".report.json")
    if "command" in report and "flags" in report:
        hint = "a manifest; give the file without .run.json"
    elif name != path.name and _is_file(path.with_name(name)):
        hint = f"a report without records; give {path.with_name(name)}"
    unknown = f"an object with {_names(report)}, expected {expected_files()}"
    raise InputError(f"{path}: found {hint or unknown}")


def _names(record: Mapping[str, Any]) -> str:
    """Return the names of a record's first fields, for messages."""
    return ", ".join(map(repr, sorted(map(str, record))[:NAMED])) or "nothing"
