"""The records of all shards as those of one run, and those of one output as they were.

jaxscore merge FOLDER/ --output OUT     all shards in one file, with one report
jaxscore report OUT                     the report and the page of a finished output, again
"""

import argparse
import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli import execute, messages, outputs, settings_flags
from jaxscore.cli.app import Command
from jaxscore.cli.finished_outputs import (
    Finished,
    are_made_alike,
    merge_rows,
    opened_table,
    other_columns,
    parse_line,
    verified,
)
from jaxscore.cli.made import MADE, mismatch
from jaxscore.cli.shard_files import (
    LISTING,
    Shard,
    listings,
    manifests,
    output_name,
    read_listing,
)
from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.io import remote
from jaxscore.io.atomic import atomic
from jaxscore.io.items import NOTHING
from jaxscore.io.json_input import read_array, read_jsonl_records
from jaxscore.io.manifest import (
    OUTPUTS,
    REMEDY,
    UNVERIFIED,
    manifest_path,
    read_manifest,
    records_path,
    remove_manifest,
)
from jaxscore.io.records import JSON, METADATA, make_column, parse_cell
from jaxscore.io.streams import form_of, is_stream, open_binary
from jaxscore.io.tables import DELIMITERS, read_csv, read_table
from jaxscore.io.upload import Upload
from jaxscore.report.counts import counted
from jaxscore.shell.audits import Facts
from jaxscore.shell.fields import Place, metadata_of
from jaxscore.shell.flags import ONE, flag, options_of
from jaxscore.shell.records import Records
from jaxscore.shell.report import Report, marked, marked_decisions
from jaxscore.shell.settings import BY, SliceSettings
from jaxscore.shell.slices import check_fields
from jaxscore.shell.system import Record, System, table_columns
from jaxscore.systems import SYSTEMS, declaration

DESCRIPTION = """\
Put the outputs of all shards into one file, as one run would have written it.

input: a folder that a command wrote with --output FOLDER/, local or in a store

output, in the order of the inputs' names:
  OUT, in the form of the shards' outputs (.jsonl, .csv, .tsv, .parquet, .json;
  compressed or not by its own name), and OUT.run.json. Also the report and the
  page of one run over everything, if the shards' command writes them, with
  means and intervals over all items. The page lacks contexts and tokens that
  the outputs do not have. Audits (noise, boundaries, spaces before answers,
  windows) cover the samples of all shards together.

exit code: 0 all there, 1 some shards are missing or some items failed (the
  missing ones are listed on stderr, the others are merged), 2 unusable input.
"""
# What the records of a damaged or edited output can raise in a system.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclasses.dataclass(kw_only=True)
class SliceFlags:
    """The flag of a command that adds slices to finished outputs."""

    by: list[str] = flag(
        [],
        words=ONE,
        expected=BY,
        metavar="FIELD",
        help="a table of the means for each value of this field of the items, such as a topic; may "
        "be repeated (default: the fields that the runs named)",
    )


@dataclasses.dataclass(kw_only=True)
class Flags(SliceFlags, outputs.PageFlags, messages.Quiet):
    """The flags of `merge`."""

    folder: Path = flag(
        is_positional=True, takes_address=True, metavar="FOLDER", help="outputs of the shards"
    )
    output: Path = flag(takes_address=True, metavar="FILE", help="one file")
    force: bool = flag(False, help="replace an output of another run in a store")


def run(args: argparse.Namespace) -> int:
    """Read all shards, write them as one, and report what is missing."""
    listed = listed_shards(args.folder)
    shards, empty, missing = finished_shards(args.folder, listed)
    system = system_of(shards[0])
    settings = settings_of(shards, system, args.by)
    upload = None
    if remote.address_of(args.output) is not None:
        _check_replaced(args)
        upload = Upload(args.output, manifest_path(args.output))
    reports = _report_files(args, listed, system)
    check_forms(shards, args.output)
    header: list[str] = []
    has_rows = bool(settings.row_columns())
    kept = records_path(args.output, has_rows=has_rows)
    outputs.check_outputs([args.output, *[kept] * has_rows, *reports.paths])
    with (
        atomic(args.output) if has_rows else contextlib.nullcontext() as rows_file,
        atomic(kept) as file,
        execute.scratch(kept) as records,
    ):
        for shard in shards:
            with verified(shard) as path:
                if form_of(path) in DELIMITERS:
                    header = check_header(shard, path, shards[0], header)
                add_records(records, path, system, settings)
        if args.by:
            check_slices(system, settings, records, args.folder)
        for shard in empty:
            with verified(shard):
                pass
        if rows_file is not None:
            merge_rows(rows_file, shards)
        report = report_of([*shards, *empty], system, settings, records)
        with reports.opened() as write_reports:
            try:
                if form_of(kept) == ".parquet":
                    _write_table(file.buffer, shards, report)
                else:
                    columns = execute.columns_of(system, settings, has_text_ids=True)
                    execute.write_records(file, kept, report, columns, None, header=header)
                write_reports(report)
                _ = report.found, report.findings, report.decisions, report.slices
            except UNREADABLE as problem:
                raise unreadable(args.folder, shards, report, problem) from problem
            remove_manifest(args.output)
    first = _with_model(shards).manifest
    facts = {
        **{name: first[name] for name in ("machine", "model") if name in first},
        MADE: first[MADE],
        "counts": _added_counts(shards),
        "shards": {
            shard.name: shard.manifest.get("input_identity")
            for shard in sorted([*shards, *empty], key=lambda shard: shard.name)
        },
        "empty": [shard.name for shard in empty],
        "missing": list(missing),
    }
    flags = {**first["flags"], "input": args.folder, "output": args.output}
    flags |= {"by": list(settings.by or ())} if isinstance(settings, SliceSettings) else {}
    flags["command"] = system.name
    files = [args.output, *[kept] * has_rows, *reports.paths]
    files.append(execute.write_manifest(flags, args.output, report, facts, reports.paths))
    n_files = len(shards) + len(empty)
    code = messages.close(args, report, files, of_files=f" of {counted(n_files, 'files')}")
    if upload is not None:
        upload.finish()
    return messages.print_failures([(name, "is not finished") for name in missing]) or code


def settings_of(shards: Sequence[Finished], system: System, by: Sequence[str] = ()) -> Any:
    """The settings of a run, from the flags in its first manifest.

    Args:
        by: fields of slices; empty for those of all shards.

    Raises:
        InputError: a flag has a value that the command does not take, or the records have no means.
    """
    # Files may be gone, and decide no number of the end of a run.
    files = ("fewshot", "num_fewshot", "system_file", "system_prompts_file")
    flags = shards[0].manifest["flags"]
    flags = {**flags, **{name: None for name in files if name in flags}}
    earlier = (name for shard in shards for name in shard.manifest["flags"].get("by") or ())
    flags["by"] = [*by] or [*dict.fromkeys(earlier)]
    if by and not issubclass(system.settings, SliceSettings):
        raise InputError(f"--by {by[0]}: {system.name} does not report means; leave it out")
    try:
        return system.settings(
            **settings_flags.values(argparse.Namespace(**flags), system.settings)
        )
    except InputError as problem:
        raise InputError(
            f"{remote.displayed(manifest_path(shards[0].output))}: flags that {system.name} does "
            f"not take ({problem}); {REMEDY}"
        ) from None


def check_slices(system: System, settings: Any, records: Records, where: Path) -> None:
    """Check the fields of --by in the records; see `check_fields`."""
    try:
        named = ((f"item {system.name_of(record)}", record) for record in records)
        check_fields(system, settings, named)
    except InputError as problem:
        raise InputError(f"{remote.displayed(where)}: {problem}") from None


def report_of(
    shards: Sequence[Finished], system: System, settings: Any, records: Records
) -> Report:
    """The finished run of some outputs, as their manifests and records describe it."""
    manifests = [shard.manifest for shard in shards]
    try:
        facts_by_shard = [facts_of(shard) for shard in shards]
        facts = sum(facts_by_shard, Facts())
    except UNREADABLE as problem:
        raise InputError(
            f"{remote.displayed(shards[0].output)}: the facts in its manifest and those of the "
            f"other shards do not add up ({type(problem).__name__}: {problem}); {REMEDY}"
        ) from problem
    if n := sum(not manifest.get(OUTPUTS) for manifest in manifests):
        facts.warnings[UNVERIFIED] += n
    if n := sum(bool(manifest.get(outputs.IS_EMPTY)) for manifest in manifests):
        facts.warnings[outputs.EMPTY] += n
    for audit in ("noise", "boundaries"):
        n = sum(bool(getattr(of_shard, audit)) for of_shard in facts_by_shard)
        if len(shards) > 1 and 0 < n < facts.n_runs:  # a merged output has its own warning
            facts.warnings[f"audits: {audit} audited in {{n}} of {facts.n_runs} files"] += n
    first = next((each for each in manifests if each.get(execute.ABOUT)), manifests[0])
    about = dict(first.get(execute.ABOUT, NOTHING))
    if len(shards) > 1:
        per_shard = ("input", "input_sha256", "limit")
        about = {name: value for name, value in about.items() if name not in per_shard}
        about = provenance.of_run({**about, "shards": len(shards)})
    records = marked(system, settings, records, facts.noise)
    return Report(system, settings, records, facts, about, first.get("vocabulary"))


def facts_of(shard: Finished) -> Facts:
    """The facts in a manifest.

    Raises:
        InputError: it has none, since an earlier version wrote it.
    """
    return Facts.from_json(_field_of(shard, execute.FACTS))


def _field_of(shard: Finished, name: str) -> Mapping[str, Any]:
    """Return a field that the manifests of this version have.

    Raises:
        InputError: the manifest does not have it.
    """
    field: Mapping[str, Any] | None = shard.manifest.get(name)
    if field is None:
        raise InputError(
            f"{remote.displayed(manifest_path(shard.output))}: found no field {name!r}, expected "
            "it: an earlier version of jaxscore wrote this output; score its input again with "
            "--force"
        )
    return field


def check_forms(shards: Sequence[Finished], output: Path) -> None:
    """Refuse shards of several forms, and an output of another form than theirs.

    Raises:
        InputError: naming the first one.
    """
    forms = list(dict.fromkeys(form_of(shard.output) for shard in shards))
    if len(forms) > 1:
        raise InputError(
            f"{remote.displayed(shards[0].output.parent)}: found outputs of several forms "
            f"({', '.join(form or 'no ending' for form in forms)}), expected one; score the inputs "
            "of each form into their own folder, and merge each"
        )
    output_form = forms[0] if is_stream(output) and forms[0] != ".parquet" else form_of(output)
    if forms[0] != output_form:
        raise InputError(
            f"{remote.displayed(shards[0].output)}: found {forms[0] or 'no ending'}, and --output "
            f"is {output_form or 'without one'}; give an --output of the shards' form"
        )


def add_records(records: Records, path: Path, system: System, settings: Any) -> None:
    """Add the records of a finished output; lines of JSONL stay as they are.

    Raises:
        InputError: it cannot be read, or a line is not a record.
    """
    if not execute.takes_lines(system, path):
        numbered = [field for field, _ in metadata_of(system.record, Place)]
        for record in read_records(path, system, settings):
            record.update((name, len(records)) for name in numbered if name in record)
            records.append(record)
        return
    with open_binary(path) as lines:
        for number, line in enumerate(lines, start=1):
            parse_line(line, f"{remote.displayed(path)}:{number}")
            records.append_line(line if line.endswith(b"\n") else line + b"\n")


def read_records(path: Path, system: System, settings: Any) -> Iterator[Record]:
    """The records of a finished output, of any form.

    Raises:
        InputError: it cannot be read.
    """
    form = form_of(path)
    if system.layout is not None:
        yield from read_array(path)
    elif execute.takes_lines(system, path):
        yield from (record for _, record in read_jsonl_records(path))
    else:
        types = table_columns(system, settings)
        rows = read_table(path) if form == ".parquet" else (row for _, row in read_csv(path))
        for row in rows:
            # The writer's own column is the last; next to a user's table there is none.
            extra = row.pop("extra") if [*row][-1:] == ["extra"] else None
            record = {
                name: parse_cell(value, types.get(name, "string"))
                if form in DELIMITERS or (value and types.get(name) == JSON)
                else value
                for name, value in row.items()
            }
            if not record.get("error"):
                record.pop("error", None)
            yield {**record, **(json.loads(extra) if extra else {})}


def check_header(shard: Finished, path: Path, first: Finished, expected: list[str]) -> list[str]:
    """Return the columns of a text table; none if it has `extra` in place of the input's.

    Args:
        expected: those of the first shard; empty before it.

    Raises:
        InputError: the shard has other columns than the first one.
    """
    names = [*next(iter(read_csv(path)))[1]]
    header = [] if names[-1] == "extra" else names
    if shard is not first and header != expected:
        raise other_columns(shard, ", ".join(names), first, ", ".join(expected))
    return header


def _write_table(file: Any, shards: Sequence[Finished], report: Report) -> None:
    """Write the rows of all tables in groups as one run would, with the marks of all shards.

    Raises:
        InputError: a shard has other columns, or other types of them, than the first one.
    """
    import pyarrow

    system = report.declared
    marks = [] if report.facts.noise is None else marked_decisions(system)
    names = [str(decision.within) for _, decision in marks]
    types = table_columns(system, report.chosen)
    left = iter(report.records)
    metadata = None if are_made_alike(shards) else METADATA
    with opened_table(file, shards, without=metadata) as (batches, write):
        for batch in batches:
            table = pyarrow.table(batch)
            rows = [next(left) for _ in range(table.num_rows)]
            for name in names:
                index = table.schema.get_field_index(name)
                table = table.set_column(index, name, make_column(rows, name, types[name]))
            write(table)


def _report_files(
    args: argparse.Namespace, listed: Sequence[Any], system: System
) -> outputs.ReportFiles:
    """Files of the report, none of which is a file of a shard."""
    taken = [path for shard in listed for path in (shard.source, manifest_path(shard.source))]
    taken += listings(args.folder)
    return execute.report_files(system, args, args.output, *taken)


def unreadable(
    folder: Path, shards: Sequence[Finished], report: Report, problem: Exception
) -> InputError:
    """The error of shards that cannot be merged: names the first record that alone cannot be.

    Records and manifests of edited or damaged files can contradict their system in ways that types
    do not show.
    """
    system, settings = report.declared, report.chosen
    remedy = "score the input of that output again with --force"
    n_good, wrong = 0, None
    for shard in shards:
        for number, record in enumerate(read_records(shard.records, system, settings), start=1):
            with execute.scratch(Path(shard.output)) as alone:
                alone.append(record)
                alone_report = Report(system, settings, alone, report.facts, report.about)
                try:
                    _ = alone_report.found, alone_report.document
                    n_good += 1
                except UNREADABLE as of_record:
                    wrong = wrong or (shard.records, number, of_record)
            if n_good and wrong is not None:
                output, number, why = wrong
                return InputError(
                    f"{remote.displayed(output)}: record {number} is not as {system.name} writes "
                    f"it ({type(why).__name__}: {why}); {remedy}"
                )
    return InputError(
        f"{remote.displayed(folder)}: the manifests and records of its shards do not fit together "
        f"({type(problem).__name__}: {problem}); score their inputs again with --force"
    )


def _check_replaced(args: argparse.Namespace) -> None:
    """Refuse to replace the finished output of another run in a store.

    Raises:
        InputError: there is one, without --force.
    """
    manifest = None if args.force else read_manifest(args.output)
    if manifest is None:
        return
    source = (manifest.get("flags") or {}).get("input")
    folder = remote.displayed(args.folder)
    if "shards" in manifest and source == folder:
        return
    raise InputError(
        f"{remote.displayed(args.output)}: finished by another run, with --input {source}; give "
        "another --output, or --force to replace it"
    )


def listed_shards(folder: Path) -> list[Shard]:
    """All shards that the folder lists, by name; the source of each is its output.

    Raises:
        InputError: the folder lacks a list of shards.
    """
    listing: dict[str, str] = {}
    for path in listings(folder):
        listing |= read_listing(path)
    if not listing:
        raise InputError(
            f"{remote.displayed(folder)}: found no {LISTING}*.json, expected a folder that "
            "--output FOLDER/ wrote"
        )
    sources: dict[str, str] = {}  # of outputs
    for name, output in listing.items():
        if (other := sources.setdefault(output, name)) != name:
            raise InputError(
                f"{remote.displayed(folder)}: {other} and {name} have one output in its lists of "
                f"shards, {output}, expected one of each; delete the list of the run that is gone"
            )
    outputs_of = {name: remote.below(folder, listing[name]) for name in sorted(listing)}
    return [Shard(output, name, output, None) for name, output in outputs_of.items()]


def finished_shards(
    folder: Path, listed: Sequence[Shard]
) -> tuple[list[Finished], list[Finished], list[str]]:
    """Finished shards with items, finished ones without, and the names of the unfinished, sorted.

    Raises:
        InputError: none with an item is finished, or they are of two runs.
    """
    shards: list[Finished] = []
    empty: list[Finished] = []
    missing = []
    for shard, manifest in manifests(listed):
        if manifest is None:
            missing.append(shard.name)
        else:
            _check_described(shard, manifest)
            finished = Finished(shard.name, shard.source, manifest)
            (empty if manifest.get(outputs.IS_EMPTY) else shards).append(finished)
    if not shards:
        raise InputError(
            f"{remote.displayed(folder)}: found {len(empty)} empty and {len(missing)} unfinished "
            "shards, expected one with an item; finish the run first"
        )
    reference = _with_model(shards)
    for other in (*shards, *empty):
        _check_made_alike(reference, other)
    return shards, empty, missing


def _check_described(shard: Shard, manifest: Mapping[str, Any]) -> None:
    """Check that a manifest describes the output next to it.

    Raises:
        InputError: both were moved to the place of another shard.
    """
    described = manifest.get("output")
    name = str(output_name(shard)).encode("utf-8", "backslashreplace").decode()
    if described is not None and not f"/{described}".endswith(f"/{name}"):
        raise InputError(
            f"{remote.displayed(manifest_path(shard.source))}: the manifest of {described}, "
            f"expected that of {name}; run the command that wrote it again"
        )


def _with_model(shards: Sequence[Finished]) -> Finished:
    """The first shard whose manifest describes its model, or the first one if none does.

    A run that found all results in its output has loaded no model and describes none.
    """
    return next((shard for shard in shards if shard.manifest.get("model")), shards[0])


def _check_made_alike(first: Finished, other: Finished) -> None:
    """Refuse shards that were made with different flags, files, models or versions.

    Raises:
        InputError: naming the difference.
    """
    why = mismatch(_field_of(other, MADE), _field_of(first, MADE))
    if why is not None:
        raise InputError(
            f"{remote.displayed(other.output)}: made with {why.name} {why.before}, and "
            f"{remote.displayed(first.output)} with {why.now}; score one of them again with --force"
        )


def system_of(shard: Finished) -> System:
    """The system that wrote a shard.

    Raises:
        InputError: there is no such system.
    """
    if (command := shard.manifest["command"]) not in SYSTEMS:
        raise InputError(
            f"{remote.displayed(manifest_path(shard.output))}: field 'command' is {command!r}, "
            f"expected a system; {REMEDY}"
        )
    return declaration(command)


def _added_counts(shards: Sequence[Finished]) -> dict[str, int]:
    """The texts and tokens of all shards: what was computed, which one run might share more."""
    counts = Counter[str]()
    for shard in shards:
        counts.update(shard.manifest.get("counts") or {})
    return dict(counts)


COMMAND = Command("merge", DESCRIPTION, options_of(Flags), run)
