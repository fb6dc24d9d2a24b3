"""`jaxscore merge`: the outputs of all shards of a folder as one, with one report."""

import argparse
import contextlib
import dataclasses
import json
import tempfile
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.analysis.margins import Decisions, sum_decisions
from jaxscore.cli import messages, outputs, settings_flags
from jaxscore.cli.finished_shards import DIGEST
from jaxscore.cli.help_pages import REMOTE
from jaxscore.cli.outputs import EMPTY, IS_EMPTY, report_paths
from jaxscore.cli.shard_files import (
    LISTING,
    Shard,
    below,
    listings,
    manifests,
    read_json,
)
from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.evaluate import Report
from jaxscore.io import remote, run_files
from jaxscore.io.atomic import atomic
from jaxscore.io.json_input import read_array
from jaxscore.io.json_output import array_writer, json_line, write_array
from jaxscore.io.records import METADATA, TOGETHER, cell_of, csv_line, parse_cell
from jaxscore.io.run_files import OF_THE_DEVICE, OF_THE_RUN, manifest_path
from jaxscore.io.stored_records import StoredRecords
from jaxscore.io.streams import form_of, is_stream, open_binary
from jaxscore.io.tables import DELIMITERS, open_batches, plain_row, read_csv
from jaxscore.io.upload import Upload
from jaxscore.systems.audits import boundary_line, united_blanks, united_boundaries
from jaxscore.systems.evaluation import Evaluation, Failure, failed_records
from jaxscore.systems.remarks import Remark, remark_from, remark_records, united_remarks
from jaxscore.systems.rounding_audit import united_noise
from jaxscore.systems.system import Decision, System, declaration, metadata_of

DESCRIPTION = """\
Put the outputs of all shards into one file, as one run would have written it.

input: a folder that a command wrote with --output FOLDER/, local or in a store

output, in the order of the inputs' names:
  OUT, in the form of the shards' outputs (.jsonl, .csv, .tsv, .parquet, .json;
  compressed or not by its own name), and OUT.run.json. Also the report and the
  page of one run over everything, with means and intervals over all items.
  preferences, sample, select, vote, usc-* and livecode-* get no page, and other
  pages no contexts and no tokens that the outputs do not have. Audits (noise,
  boundaries, blanks) cover the samples of all shards together.

exit code: 0 all there, 1 some shards are missing or some items failed (the
  missing ones are listed on stderr, the others are merged), 2 unusable input.
"""
# Names of facts in messages.
TITLES = {
    "model": "model's weights",
    "jax": "version of jax",
    "numbers": "version of jaxscore's numerics (numbers)",
    "transformers": "version of transformers",
}


AUDITED_PER_FILE = (
    "audits: each of {n} files was audited by itself, and numbers are over all of their samples; "
    "one run would draw one sample"
)
NO_EFFECT = (
    "audits: the effect of boundaries is left out, {n} of {n_files} files do not state it; if an "
    "earlier version made these, score them again with --force"
)
AUDITS = {"boundary_audit": "boundaries", "answer_blank": "blanks", "noise": "noise"}


class Finished(NamedTuple):
    """A finished shard: its name, its output and its manifest."""

    name: str
    output: Path
    manifest: Mapping[str, Any]


class Marks:
    """Marks records that rounding could change, by the noise floor of all shards.

    Attributes:
        is_audited: whether the runs audited rounding errors.
        noise: of all shards; None if it was not audited, or nothing was scored.
        fields: of the records, with the marks; empty if records stay as they are.
    """

    def __init__(self, shards: Sequence[Finished], system: System, settings: Any) -> None:
        found = [shard.manifest.get("noise") for shard in shards]
        # A run that found all results in its output, and so loaded no model, knows no noise.
        self.is_audited = any({"noise", "model"} <= shard.manifest.keys() for shard in shards)
        self.noise = united_noise([noise for noise in found if noise])
        self._mark = None if self.noise is None else system.mark
        self._settings = settings
        declared = [decision.within for _, decision in metadata_of(system.record, Decision)]
        self.fields = [name for name in declared if self._mark and isinstance(name, str)]
        self._decisions: list[Decisions] = []

    def add(self, record: dict[str, Any]) -> None:
        """Mark a record, in place."""
        if self._mark is not None:
            found = self._mark([record], self.noise, self._settings)
            self._decisions = sum_decisions([self._decisions, found])

    def add_to(self, found: Evaluation) -> Evaluation:
        """Return the evaluation with the noise floor and the marked decisions."""
        return dataclasses.replace(
            found, audited=self.is_audited, noise=self.noise, decisions=self._decisions
        )


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command's flags."""
    parser = subparsers.add_parser("merge", description=DESCRIPTION)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="outputs of the shards")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="one file")
    outputs.add_page_flags(parser)
    messages.add_quiet(parser)
    parser.set_defaults(run=run, **{REMOTE: ("folder", "output")})


def run(args: argparse.Namespace) -> int:
    """Read all shards, write them as one, and report what is missing."""
    listed = _listed(args.folder)
    shards, empty, missing = _finished(args.folder, listed)
    system = declaration(shards[0].manifest["command"])
    flags = shards[0].manifest["flags"]
    settings = system.settings(**settings_flags.values(_without_files(flags), system.settings))
    upload = None
    if remote.address_of(args.output) is not None:
        upload = Upload(args.output, manifest_path(args.output))
    has_report = system.merge is not None and system.report is not None
    has_files = has_report and _is_set(settings, system.has_report_files)
    has_page = has_report and _is_set(settings, system.reports_with or True)
    taken = [path for shard in listed for path in (shard.source, manifest_path(shard.source))]
    taken += listings(args.folder)
    if args.html is not None and not has_page:
        raise InputError(
            f"--html {args.html}: merge makes no page of {system.name} with these flags; leave it "
            "out"
        )
    reports = outputs.ReportFiles(args, *taken, has_page=has_page, has_files=has_files)
    marks = Marks(shards, system, settings)
    folder = None if is_stream(args.output) else args.output.absolute().parent
    with (
        atomic(args.output) as file,
        tempfile.TemporaryFile(dir=folder) as stored,
        contextlib.closing(_merged(shards, args.output, file, system, settings, marks)) as records,
        reports.opened() as write_reports,
    ):
        if system.merge is not None:
            every = StoredRecords(records, stored) if system.merge_rereads else records
            found: Evaluation = system.merge(every, settings)
            if system.merge_rewrites:
                write_array(file, found.items)
        else:
            found = _counted(records, shards, system)
        if not system.has_ids:
            found = _with_failures(found, shards)
        found = _with_remarks_and_counts(found, shards)
        found = _with_audits(marks.add_to(found), shards, settings)
        found = _with_lists(found, shards, system)
        own = list(found.remarks)
        if reports.has_page and system.page_only:
            own.append(f"page: without the {system.page_only}, which the outputs do not have")
        if empty:
            own.append(Remark(EMPTY, n=len(empty)))
        found = dataclasses.replace(found, remarks=own, prompting=_prompting(shards))
        n_files = len(shards) + len(empty)
        made = {**_models(_with_model(shards), system), **settings.record(), **found.prompting}
        made["shards"] = n_files
        report = Report(system.name, found, provenance.of_run(made))
        write_reports(report)
        run_files.remove_manifest(args.output)
    files = [args.output, *reports.paths, _write_manifest(args, shards, empty, missing, found)]
    messages.print_findings(report)
    for line in found.lines:
        print(line)
    code = messages.close_run(args, report, f"{system.what} of {n_files} files", files)
    if upload is not None:
        upload.finish()
    return messages.print_failures([(name, "is not finished") for name in missing]) or code


def _is_set(settings: Any, condition: str | bool) -> bool:
    """A condition, or whether the setting of its name is given."""
    if isinstance(condition, bool):
        return condition
    return getattr(settings, condition) is not None


def _listed(folder: Path) -> list[Shard]:
    """All shards that the folder lists, by name; the source of each is its output.

    Raises:
        InputError: the folder has no list of shards.
    """
    listing: dict[str, str] = {}
    for path in listings(folder):
        listing |= read_json(path) or {}
    if not listing:
        raise InputError(
            f"{remote.displayed(folder)}: found no {LISTING}*.json, expected a folder that "
            "--output FOLDER/ wrote"
        )
    outputs_of = {name: below(folder, listing[name]) for name in sorted(listing)}
    return [Shard(output, name, output, None) for name, output in outputs_of.items()]


def _finished(
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
        if manifest is None or not {"command", "flags"} <= manifest.keys():
            missing.append(shard.name)
        else:
            found = Finished(shard.name, shard.source, manifest)
            (empty if manifest.get(IS_EMPTY) else shards).append(found)
    if not shards:
        raise InputError(
            f"{remote.displayed(folder)}: found {len(empty)} empty and {len(missing)} unfinished "
            "shards, expected one with an item; finish the run first"
        )
    known = _with_model(shards)
    for other in (*shards, *empty):
        _check_same(known, other)
    return shards, empty, missing


def _with_model(shards: Sequence[Finished]) -> Finished:
    """The first shard whose manifest describes its model, or the first one if none does.

    A run that found all results in its output has loaded no model and describes none.
    """
    return next((shard for shard in shards if shard.manifest.get("model")), shards[0])


def _check_same(first: Finished, other: Finished) -> None:
    """Refuse shards that were made with different flags, files, models or versions."""
    before, now = first.manifest, other.manifest
    pairs: list[tuple[str, Any, Any]] = [("command", before.get("command"), now.get("command"))]
    names = sorted((before["flags"].keys() | now["flags"].keys()) - OF_THE_RUN)
    pairs += [(name, before["flags"].get(name), now["flags"].get(name)) for name in names]
    one_model = before.get("model") or {}
    other_model = now.get("model") or one_model  # an empty shard loads no model
    for name in sorted((one_model.keys() | other_model.keys()) - OF_THE_DEVICE):
        title = TITLES.get(name, name)
        pairs.append((title, one_model.get(name), other_model.get(name)))
    digests, other_digests = _digests(before), _digests(now)
    for name in sorted(digests.keys() | other_digests.keys()):
        title = f"content of --{name.removesuffix(DIGEST).replace('_', '-')}"
        pairs.append((title, digests.get(name), other_digests.get(name)))
    version = run_files.RECORD_VERSION
    pairs.append((version, before.get(version, 1), now.get(version, 1)))
    for name, one, two in pairs:
        if one != two:
            raise InputError(
                f"{remote.displayed(other.output)}: made with another {name} ({two}) than "
                f"{remote.displayed(first.output)} ({one}); score one of them again with --force"
            )


def _digests(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Digests of the files that flags name, except the input's."""
    names = {name for name in manifest if name.endswith(DIGEST)}
    return {name: manifest[name] for name in sorted(names - {"input_sha256", run_files.MADE})}


def _without_files(flags: Mapping[str, Any]) -> argparse.Namespace:
    """Flags of a manifest without files, which may be gone and decide no mean."""
    files = ("fewshot", "num_fewshot", "system_file", "system_prompts_file")
    return argparse.Namespace(**{**flags, **{name: None for name in files if name in flags}})


def _merged(
    shards: Sequence[Finished],
    output: Path,
    file: Any,
    system: System,
    settings: Any,
    marks: Marks,
) -> Generator[Mapping[str, Any]]:
    """Mark all records, write them to the output, and yield each; see `System.merge_rewrites`.

    Raises:
        InputError: a shard's output has another form than the merged one.
    """
    kind = form_of(output)
    for shard in shards:
        if form_of(shard.output) != kind:
            raise InputError(
                f"{remote.displayed(shard.output)}: found {form_of(shard.output) or 'no ending'}, "
                f"and --output is {kind or 'without one'}; give an --output of the shards' form"
            )
    if kind == ".parquet":
        yield from _merged_tables(shards, file, marks)
    elif system.merge_rewrites:
        for record in _records(shards):
            marks.add(record)
            yield record
    elif kind == ".json":
        is_ascii = system.array is None or system.array.is_ascii
        with array_writer(file, is_ascii=is_ascii) as write:
            for record in _records(shards):
                marks.add(record)
                write(record)
                yield record
    elif kind in DELIMITERS:
        yield from _merged_rows(shards, file, DELIMITERS[kind], system.columns(settings), marks)
    else:
        for shard in shards:
            with remote.fetched(shard.output) as path, open_binary(path) as lines:
                for line in lines:
                    record = json.loads(line)
                    marks.add(record)
                    file.buffer.write(json_line(record) if marks.fields else line)
                    yield record


def _records(shards: Sequence[Finished]) -> Iterator[dict[str, Any]]:
    """The records of arrays, one file at a time."""
    for shard in shards:
        with remote.fetched(shard.output) as path:
            yield from read_array(path)


def _merged_rows(
    shards: Sequence[Finished], file: Any, delimiter: str, types: Mapping[str, str], marks: Marks
) -> Iterator[Mapping[str, Any]]:
    """Write the rows of all CSV or TSV files as one run would, and yield the record of each.

    Raises:
        InputError: a shard has other columns than the first one.
    """
    names: list[str] | None = None
    for shard in shards:
        with remote.fetched(shard.output) as path:
            for _, row in read_csv(path):
                if names is None:
                    names = list(row)
                    file.write(csv_line(names, delimiter))
                elif names != list(row):
                    raise _other_columns(shard, ", ".join(row), shards[0], ", ".join(names))
                record = {
                    name: parse_cell(text, types.get(name, "string")) for name, text in row.items()
                }
                if not record["error"]:
                    del record["error"]
                marks.add(record)
                cells = {name: cell_of(record[name]) for name in marks.fields if name in record}
                file.write(csv_line({**row, **cells}.values(), delimiter))
                yield record


def _merged_tables(
    shards: Sequence[Finished], file: Any, marks: Marks
) -> Iterator[Mapping[str, Any]]:
    """Write the rows of all tables in groups as one run would, and yield each.

    Raises:
        InputError: a shard has other columns, or other types of them, than the first one.
    """
    import pyarrow
    from pyarrow import parquet

    writer = waiting = first = None
    try:
        for shard in shards:
            with remote.fetched(shard.output) as path, open_batches(path) as (schema, batches):
                if writer is None:
                    if not _are_made_alike(shards):
                        metadata = dict(schema.metadata or {})
                        metadata.pop(METADATA.encode(), None)
                        schema = schema.with_metadata(metadata or None)
                    first, waiting = schema, schema.empty_table()
                    writer = parquet.ParquetWriter(file.buffer, schema)
                elif not schema.equals(first):
                    found, expected = _difference(schema, first)
                    raise _other_columns(shard, found, shards[0], expected)
                for batch in batches:
                    rows = [plain_row(row, shard.name) for row in batch.to_pylist()]
                    for row in rows:
                        if row["error"] is None:
                            del row["error"]
                        marks.add(row)
                        yield row
                    table = pyarrow.table(batch)
                    for name in marks.fields:
                        field = table.schema.field(name)
                        column = pyarrow.array([row[name] for row in rows], field.type)
                        place = table.schema.get_field_index(name)
                        table = table.set_column(place, field, column)
                    waiting = pyarrow.concat_tables([waiting, table])
                    while waiting.num_rows >= TOGETHER:
                        writer.write_table(waiting.slice(0, TOGETHER).combine_chunks())
                        waiting = waiting.slice(TOGETHER)
        if writer is not None and waiting is not None and waiting.num_rows:
            writer.write_table(waiting.combine_chunks())
    finally:
        if writer is not None:
            writer.close()


def _are_made_alike(shards: Sequence[Finished]) -> bool:
    """Whether all manifests have the digest and the version that a Parquet schema has."""
    manifests = [shard.manifest for shard in shards]
    facts = [(each.get(run_files.MADE), each.get("versions")) for each in manifests]
    made = {(digest, (versions or {}).get("jaxscore")) for digest, versions in facts}
    return len(made) == 1


def _difference(schema: Any, first: Any) -> tuple[str, str]:
    """The fields in which two schemas of Arrow differ, as text; all names if only their order."""
    found, expected = (
        {field.name: f"{field.name}: {field.type}" for field in one} for one in (schema, first)
    )
    names = [name for name in found | expected if found.get(name) != expected.get(name)]
    if not names:
        return ", ".join(found), ", ".join(expected)
    return tuple(  # type: ignore[return-value]
        ", ".join(fields.get(name, f"no {name}") for name in names) for fields in (found, expected)
    )


def _other_columns(shard: Finished, found: str, first: Finished, expected: str) -> InputError:
    return InputError(
        f"{remote.displayed(shard.output)}: found columns {found}, expected those of "
        f"{remote.displayed(first.output)}, {expected}; give the input of {shard.name} the columns "
        "and types of the others, and score it again"
    )


def _counted(
    records: Iterator[Mapping[str, Any]], shards: Sequence[Finished], system: System
) -> Evaluation:
    """The evaluation of a system whose records do not say its result.

    A failure is named by its record's id, or by its shard if the records do not have all of them.
    """
    n, failures = 0, []
    for n, record in enumerate(records, start=1):
        if "error" in record:
            failures += failed_records([{"id": f"item {n}", **record}])
    if len(failures) < _n_failed(shards):
        failures = [
            Failure(shard.name, f"{n_failed} failures, named when it was made")
            for shard in shards
            if (n_failed := _n_failed([shard]))
        ]
    headline = f"merge makes no report of {system.name}"
    return Evaluation(summary={}, n_items=n, headline=headline, failures=failures)


def _with_remarks_and_counts(found: Evaluation, shards: Sequence[Finished]) -> Evaluation:
    """Add the remarks and counts of the shards' manifests.

    A remark that `System.merge` makes counts all records already.
    """
    runs = [
        [_of_all(shard, remark) for remark in map(remark_from, shard.manifest.get("remarks", ()))]
        for shard in shards
    ]
    counts = Counter[str]()
    for shard in shards:
        counts.update(_counts(shard.manifest))
    return dataclasses.replace(
        found,
        remarks=united_remarks(runs, found.remarks),
        counts={**counts, **found.counts},
    )


def _added_counts(shards: Sequence[Finished]) -> dict[str, int]:
    """The texts and tokens of all shards: what was computed, which one run might share more."""
    counts = Counter[str]()
    for shard in shards:
        counts.update(shard.manifest.get("counts") or {})
    return dict(counts)


def _counts(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Select the counts of a system from its manifest."""
    return {
        name: n
        for name, n in manifest.items()
        if name.startswith("n_") or name.endswith("_from_before")
    }


def _of_all(shard: Finished, remark: str) -> str:
    """A remark of a shard as one of all shards."""
    if not isinstance(remark, Remark):
        return _named_below(shard, remark)
    return f"{shard.name}: {remark}" if remark.of_shard else remark


def _named_below(shard: Finished, text: str) -> str:
    """A text that may begin with an item's name, which then has the shard's whole name."""
    place = text.removeprefix(Path(shard.name).name)  # in the shard, such as `:7`
    return f"{shard.name}{place}" if place != text and place[:1] in ("", ":", " ") else text


def _with_failures(found: Evaluation, shards: Sequence[Finished]) -> Evaluation:
    """Add the failed items without a record, which the shards' manifests name."""
    failures = []
    for shard in shards:
        for name, error in shard.manifest.get("failures", ()):
            full = _named_below(shard, name)
            is_named = full != name or name.startswith(shard.name)
            failures.append(Failure(full if is_named else f"{shard.name}: {name}", error))
    n_good = sum("error" not in record for record in found.items)
    return dataclasses.replace(found, failures=failures, n_items=n_good + len(failures))


def _n_failed(shards: Sequence[Finished]) -> int:
    return sum(shard.manifest.get("failed", 0) for shard in shards)


def _with_audits(found: Evaluation, shards: Sequence[Finished], settings: Any) -> Evaluation:
    """Add the audits of all shards, and the details in which they agree."""
    every = [shard.manifest.get("details") or {} for shard in shards]
    out: dict[str, Any] = {}
    boundary, findings, remarks = None, list(found.findings), list(found.remarks)
    n_audited = {"noise": sum(bool(shard.manifest.get("noise")) for shard in shards)}
    for name in dict.fromkeys(name for details in every for name in details):
        values: list[Any] = [details.get(name) for details in every]
        known = [value for value in values if value]
        if name == "boundary_audit":
            out[name] = united_boundaries(known) if known else None
            boundary = boundary_line(settings.boundary, out[name])
            n_audited[name] = len(known)
            n_lacking = sum("effect" not in audit for audit in known)
            is_changed = any(count for audit in known for count in audit["changed"].values())
            if is_changed and n_lacking < len(known) and "effect" not in out[name]:
                remarks.append(Remark(NO_EFFECT, n=n_lacking, n_files=len(known)))
        elif name == "answer_blank":
            out[name] = united_blanks(known)
            findings += filter(None, [out[name].get("finding")])
            n_audited[name] = sum("results" in blank for blank in known)
        elif all(value == values[0] for value in values):
            out[name] = values[0]
    if (n := max(n_audited.values())) and len(shards) > 1:
        remarks.append(Remark(AUDITED_PER_FILE, n=n))
    is_requested = getattr(settings, "audit_noise", 0) > 0
    for name, n in n_audited.items():
        if n < len(shards) and (n or (name == "noise" and is_requested)):
            remarks.append(f"audits: {AUDITS[name]} audited in {n} of {len(shards)} files")
    return dataclasses.replace(
        found,
        details={**out, **found.details},
        boundary=boundary,
        findings=findings,
        remarks=remarks,
    )


def _with_lists(found: Evaluation, shards: Sequence[Finished], system: System) -> Evaluation:
    """Add the lists of the worst from the shards' reports."""
    if system.merge_lists is None:
        return found
    without: list[str] = []
    names = system.merge_lists(()).keys()
    lists = system.merge_lists(_reports(shards, names, without))
    if without:
        why = f"{without[0]} has no report in JSON; score it again with --force"
        line = f"{', '.join(names)}: left out, {why}"
        return dataclasses.replace(found, remarks=[*found.remarks, line])
    return dataclasses.replace(found, long={**found.long, **lists})


def _reports(
    shards: Sequence[Finished], names: Collection[str], without: list[str]
) -> Iterator[Mapping[str, Any]]:
    """The JSON reports of shards, one at a time.

    Args:
        names: of the lists that a report has.
        without: gets the names of the shards without such a report.
    """
    for shard in shards:
        report = read_json(report_paths(shard.output)[1])
        if report is None or not report.keys() >= set(names):
            without.append(shard.name)
        else:
            yield report


def _models(shard: Finished, system: System) -> dict[str, Any]:
    """The models by the names of their flags, and what reports say of how they compute."""
    flags, about = shard.manifest["flags"], shard.manifest.get("model") or {}
    if not system.needs:
        return {}
    own = ("model_type", "implementation", "dtype", "reproducible")
    names = (*own, *(f"reference_{name}" for name in own))
    facts = {name: about[name] for name in names if about.get(name)}
    reference = {"reference": flags["reference"]} if flags.get("reference") else {}
    return {"model": flags["model"] or shard.manifest.get("model_name"), **facts, **reference}


def _prompting(shards: Sequence[Finished]) -> dict[str, Any]:
    """Describe the prompts; items that are examples are counted over all shards."""
    found = [shard.manifest.get("prompting") or {} for shard in shards]
    name = "fewshot_left_out"
    n_left_out = {name: sum(one[name] for one in found)} if name in found[0] else {}
    return {**found[0], **n_left_out}


def _write_manifest(
    args: argparse.Namespace,
    shards: Sequence[Finished],
    empty: Sequence[Finished],
    missing: Sequence[str],
    found: Evaluation,
) -> Path:
    first = _with_model(shards).manifest
    flags = {**first["flags"], "input": args.folder, "output": args.output}
    facts = {
        **{name: first[name] for name in ("versions", "machine", "model") if name in first},
        **{
            name: first[name]
            for name in (run_files.MADE, run_files.RECORD_VERSION)
            if name in first and (name != run_files.MADE or _are_made_alike(shards))
        },
        **_digests(first),
        "remarks": remark_records(found.remarks),
        "counts": _added_counts(shards),
        "seconds": round(sum(shard.manifest.get("seconds", 0) for shard in shards), 3),
        "shards": {
            shard.name: shard.manifest.get("input_identity")
            for shard in sorted([*shards, *empty], key=lambda shard: shard.name)
        },
        "empty": [shard.name for shard in empty],
        "missing": list(missing),
        **found.counts,
        "failed": max(len(found.failures), _n_failed(shards)),
    }
    if found.audited:
        facts["noise"] = None if found.noise is None else found.noise.record(found.decisions)
    if found.prompting:
        facts["prompting"] = dict(found.prompting)
    if found.failures and not declaration(first["command"]).has_ids:  # without records
        facts["failures"] = [list(failure) for failure in found.failures]
    return run_files.write_manifest(args.output, {**flags, "command": first["command"]}, facts)
