"""Opens a finished run: its system, its records, and what it was made with.

Its manifest says which system wrote it, otherwise the fields of a record.
"""

import codecs
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from jaxscore.errors import InputError
from jaxscore.io.items import read_items
from jaxscore.io.json_input import (
    read_json,
    read_jsonl,
    read_jsonl_records,
    unreadable_file,
)
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
from jaxscore.systems import SYSTEMS, declaration
from jaxscore.systems.compare.columns import Run, collect, units
from jaxscore.systems.compare.units import Comparison, shown
from jaxscore.version import RECORDS

NAMED = 8  # fields in a message
SEARCHED = 1000  # records in which one that did not fail is looked for
LISTS = ("options", "sum_logprob")  # columns of lists in a table of `choose` that are compared
# Flags and facts that say nothing of the numbers, and those that are compared elsewhere.
NOT_COMPARED = frozenset(
    "output output_dir output_file journal quiet distributed coordinator num_processes process_id "
    "join_timeout trust_remote_code cache_dir date config html no_html numbers noise failed".split()
)
# Settings of later versions, with their value in a run that does not have them yet.
LATER_SETTINGS: Mapping[str, Any] = {"answer_separator": None}
ENDINGS = (  # of a result's name, and of the file beside which its manifest lies
    ("_results.json", "_results.csv"),
    ("_out.json", "_metrics.json"),
    (".json", ".md"),
)


@dataclasses.dataclass(frozen=True)
class OpenRun:
    """A run before its records are read.

    Attributes:
        path: None for records from Python.
        comparison: how its records are compared.
        records: (where it is, for messages; the record); those of a file are read once.
        failures: (name, why) as its report lists them; None if its records alone tell.
        facts: settings and versions by name; empty if they are not known.
        has_manifest: whether the facts come from one.
    """

    path: Path | None
    comparison: Comparison
    records: Iterable[tuple[str, Any]]
    failures: list[tuple[str, str]] | None
    facts: Mapping[str, Any]
    has_manifest: bool

    def load(self, *, with_texts: bool) -> Run:
        """All of its units.

        Args:
            with_texts: take the texts from the input that the manifest names if the records do
                not hold them.
        """
        texts = self._input_texts() if with_texts else None
        return collect(units(self.comparison, self.records, self.facts, texts))

    def _input_texts(self) -> Iterator[object] | None:
        """The texts of the run's input, line by line; None if it is gone or has changed."""
        fields, source = self.comparison.compared.input_fields, self.facts.get("input")
        expected = self.facts.get("input_sha256")
        if fields is None or not isinstance(source, str) or expected is None:
            return None
        path = Path(source)
        if self.facts.get("column") or form_of(path) != ".jsonl":
            return None
        try:
            is_unchanged = file_digest(path) == expected
        except OSError:  # a folder without access, or an impossible file name
            return None
        if not is_unchanged:
            return None
        return (tuple(line.get(name, "") for name in fields) for _, line in read_jsonl(path))


def have_same_input(a: OpenRun, b: OpenRun) -> bool:
    """Whether both runs read the same bytes in the same way, so that equal ids are equal texts."""
    if a.facts.get("column") != b.facts.get("column"):
        return False
    return a.facts.get("input_sha256") == b.facts.get("input_sha256") is not None


def open_run(path: Path) -> OpenRun:
    """Look at a run's file and its manifest; most of its records are not read yet.

    Raises:
        InputError: it cannot be read, or is no result that can be compared.
    """
    if form_of(path) in DELIMITERS:
        raise InputError(
            f"{path}: found a table in text, whose numbers have no types; run the command again "
            "with an --output that ends in .jsonl or .parquet, and compare that"
        )
    try:
        kind = _kind(path)
    except (OSError, ValueError) as problem:
        raise unreadable_file(path, problem, expected_files()) from None
    manifest = read_manifest(path)
    if kind == "object":
        return _open_report(path, manifest)
    records = _records(path, kind)
    start = list(itertools.islice(records, SEARCHED))
    first = _first_good(start)
    command = None if manifest is None else manifest["command"]
    comparison = comparison_of_records(command, first, path)
    _check_version(comparison, manifest, path)
    facts = _facts(manifest, first.get("confidence_settings"))
    every = itertools.chain(start, records)
    return OpenRun(path, comparison, every, None, facts, manifest is not None)


def of_items(system: str, items: Iterable[Any], settings: Mapping[str, Any]) -> OpenRun:
    """A run from Python.

    Args:
        system: its name, as of `evaluate`.
        items: its records, as the system's output file has them.

    Raises:
        InputError: results of that system are not compared, or there are none.
    """
    records = [(f"item {k}", record) for k, record in enumerate(items, start=1)]
    if not records:
        raise InputError("the report of a run has no items, as with on_item; compare its file")
    found = comparison_of_command(system, _first_good(records))
    facts = upgraded({"command": system, **settings})
    return OpenRun(None, found, records, None, facts, has_manifest=False)


def _open_report(path: Path, manifest: Mapping[str, Any] | None) -> OpenRun:
    """A run whose records stand in the JSON file of its report."""
    report = read_json(path, expected_files())
    comparison, items = comparison_of_report(report, path)
    _check_version(comparison, manifest, path)
    listed, failures = report.get("failures"), None
    if isinstance(listed, list):
        failures = [
            (shown(failure.get("name")), str(failure.get("error")))
            for failure in listed
            if isinstance(failure, dict)
        ]
    records = [(f"item {k}", item) for k, item in enumerate(items, start=1)]
    facts = _facts(manifest, report["settings"])
    return OpenRun(path, comparison, records, failures, facts, manifest is not None)


def _check_version(comparison: Comparison, manifest: Mapping[str, Any] | None, path: Path) -> None:
    """Refuse records of another version; one without a manifest is taken as it is.

    Raises:
        InputError: the manifest names another version.
    """
    made = {} if manifest is None else manifest.get("made") or {}
    version = made.get("records", 1) if manifest is not None else RECORDS
    if version != RECORDS:
        raise InputError(
            f"{path}: its records have version {version}, expected version {RECORDS} "
            f"of {comparison.name}; run the command again"
        )


def _first_good(records: Iterable[tuple[str, Any]]) -> Any:
    """The first record that is no failed item; without any, the first one."""
    first: Any = None
    for _, record in records:
        if isinstance(record, dict) and record.get("error") is None:
            return record
        first = record if first is None else first
    return first if isinstance(first, dict) else {}


def _records(path: Path, kind: str) -> Iterator[tuple[str, Any]]:
    """(where it is, the record) of a file of records."""
    if kind == "table":
        rows = enumerate(read_parquet_records(path, LISTS), start=1)
        return ((f"row {k}", row) for k, row in rows)
    if kind == "array":
        return ((f"item {k}", item) for k, item in enumerate(read_items(path), start=1))
    return ((f"line {k}", record) for k, record in read_jsonl_records(path))


def _kind(path: Path) -> str:
    """What a file holds: "table", "array", "object" (one in the whole file) or "lines".

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
    """Whether a line is an object, and not a report."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and "settings" not in value


def find_manifest(path: Path) -> Path | None:
    """The manifest of a result, or None if there is none.

    It lies beside the result, or beside the table, the metrics or the page that was written with
    it: jaxscore/report/README.md has the list.
    """
    name = path.name.replace("eval_results_", "eval_report_", 1)
    beside = (
        path.with_name(name.removesuffix(ending) + other)
        for ending, other in ENDINGS
        if name.endswith(ending)
    )
    return next(filter(_is_file, map(manifest_path, (path, *beside))), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name of a long one has no room for the ending
        return False


def read_manifest(path: Path) -> Mapping[str, Any] | None:
    """What the manifest of a result says, or None if there is none.

    Raises:
        InputError: it is not a manifest, or describes another file of this name.
    """
    place = find_manifest(path)
    if place is None:
        return None
    manifest = read_manifest_file(place)
    assert manifest is not None
    # The file may have been renamed together with its manifest.
    name = path.name
    if place == manifest_path(path) and name not in manifest.get(OUTPUTS, {}):
        name = Path(manifest.get("output", name)).name
    why = output_difference(path, manifest, name=name)
    if why is not None:
        raise changed_output(path, why)
    return manifest


def _facts(manifest: Mapping[str, Any] | None, settings: object) -> dict[str, Any]:
    """Facts of a run by name: from its manifest, and the settings in its report."""
    facts: dict[str, Any] = dict(settings) if isinstance(settings, dict) else {}
    if manifest is not None:
        flags, model, versions = (
            part if isinstance(part := manifest.get(name), dict) else {}
            for name in ("flags", "model", "versions")
        )
        facts |= flags | {name: model[name] for name in model if name != "model"}
        if "model" in model:  # the hash; the flag has the name
            facts["weights"] = model["model"]
        facts |= {name: manifest[name] for name in ("command", "input_sha256") if name in manifest}
        facts |= versions
    return upgraded(facts)


def upgraded(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a run of an earlier version as this version writes them."""
    return {**LATER_SETTINGS, **facts} if facts else facts


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Facts that both runs have and that differ, as `{setting, a, b}`."""
    return [
        {"setting": name, "a": a[name], "b": b[name]}
        for name in a
        if name in b and name not in NOT_COMPARED and a[name] != b[name]
    ]


@functools.cache
def comparisons_of(name: str) -> tuple[Comparison, ...]:
    """How the runs of a system are compared; none if they are not, or if there is no such name."""
    if name not in SYSTEMS:
        return ()
    system = declaration(name)
    return tuple(Comparison(system, compared) for compared in system.compared)


def _all_comparisons() -> list[tuple[str, Comparison]]:
    """All systems' comparisons, each with the system's name."""
    return [(name, comparison) for name in SYSTEMS for comparison in comparisons_of(name)]


def expected_files() -> str:
    """The files that can be compared, for messages."""
    patterns = {name: comparison.compared.file for name, comparison in _all_comparisons()}
    files = (f"{name} ({file})" if file else name for name, file in patterns.items())
    return f"the output of {', '.join(files)}"


def _best_fit(comparisons: Iterable[Comparison], record: object) -> Comparison | None:
    """The comparison whose signature a record has; of several that with the most fields."""
    fields = record.keys() if isinstance(record, Mapping) else set()
    fitting = [
        comparison
        for comparison in comparisons
        if fields >= set(comparison.compared.signature)
        and not fields & set(comparison.compared.without)
    ]
    return max(fitting, key=lambda fit: len(fit.compared.signature), default=None)


def comparison_of_report(report: Mapping[str, Any], path: Path) -> tuple[Comparison, list[Any]]:
    """How the items of a report's JSON file are compared, and the items.

    Raises:
        InputError: it is the report of no system whose items it holds.
    """
    if isinstance(report.get("settings"), dict):
        holding = [
            comparison
            for _, comparison in _all_comparisons()
            if isinstance(report.get(comparison.compared.list_in), list)
        ]
        if holding:
            items = report[holding[0].compared.list_in]
            return _best_fit(holding, next(iter(items), {})) or holding[0], items
    hint = ""
    if "by_length" in report:
        hint = "; this is the report of paths, give the file beside it that --output named"
    elif "command" in report and "flags" in report:
        hint = "; this is a manifest, give the file without .run.json"
    raise InputError(
        f"{path}: found an object with {_fields(report)}, expected {expected_files()}{hint}"
    )


def comparison_of_command(command: str, first: object) -> Comparison:
    """How the records of a command, or of `evaluate`, are compared.

    Args:
        first: a record of the run that is no failed item.

    Raises:
        InputError: they are not.
    """
    if not (comparisons := comparisons_of(command)):
        raise InputError(f"results of {command} are not compared; expected {expected_files()}")
    return _best_fit(comparisons, first) or comparisons[0]


def comparison_of_records(command: str | None, first: Mapping[str, Any], path: Path) -> Comparison:
    """How the records of a file with one per item are compared.

    Args:
        command: what the manifest says wrote it; None without one.
        first: a record that is no failed item.

    Raises:
        InputError: they are records of no system, or of one whose results are not compared.
    """
    if command is not None:
        try:
            return comparison_of_command(command, first)
        except InputError as problem:
            raise InputError(f"{path}: by its manifest, {problem}") from None
    of_files = (found for _, found in _all_comparisons() if not found.compared.list_in)
    comparison = _best_fit(of_files, first)
    if comparison is None:
        raise InputError(
            f"{path}: found records with the fields {_fields(first)}, expected {expected_files()}"
        )
    return comparison


def _fields(record: Mapping[str, Any]) -> str:
    """Names of a record's first fields, for messages."""
    return ", ".join(map(repr, sorted(map(str, record))[:NAMED])) or "nothing"
