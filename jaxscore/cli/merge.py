"""`jaxscore merge`: the outputs of all shards of a folder as one, with one report."""

import argparse
import contextlib
import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli import messages, outputs, settings_flags
from jaxscore.cli.app import Command
from jaxscore.cli.finished_shards import DIGEST
from jaxscore.cli.flags import flag, options_of
from jaxscore.cli.made import MADE, mismatch
from jaxscore.cli.merge_records import (
    Finished,
    Marks,
    are_made_alike,
    merged,
    records_of,
    verify_empty,
)
from jaxscore.cli.outputs import EMPTY, IS_EMPTY, report_paths
from jaxscore.cli.shard_files import (
    LISTING,
    Shard,
    listings,
    manifests,
    output_name,
    read_listing,
    read_report,
)
from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.evaluate import Report
from jaxscore.io import remote, run_files
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import StoredRecords, write_array
from jaxscore.io.manifest import (
    OUTPUTS,
    REMEDY,
    UNVERIFIED,
    changed_output,
    output_difference,
    output_facts,
    read_manifest,
)
from jaxscore.io.run_files import OF_THE_DEVICE, OF_THE_RUN, manifest_path
from jaxscore.io.streams import NOWHERE, is_stream
from jaxscore.io.typed_json import COUNT
from jaxscore.io.upload import Upload
from jaxscore.shell.system import System as NewSystem
from jaxscore.systems.audits import (
    boundary_line,
    merge_window_bos,
    united_blanks,
    united_boundaries,
)
from jaxscore.systems.compare.units import UNREADABLE
from jaxscore.systems.evaluation import Evaluation, Failure, failed_records
from jaxscore.systems.remarks import Remark, remark_from, remark_records, united_remarks
from jaxscore.systems.system import SYSTEMS, System, declaration

DESCRIPTION = """\
Put the outputs of all shards into one file, as one run would have written it.

input: a folder that a command wrote with --output FOLDER/, local or in a store

output, in the order of the inputs' names:
  OUT, in the form of the shards' outputs (.jsonl, .csv, .tsv, .parquet, .json;
  compressed or not by its own name), and OUT.run.json. Also the report and the
  page of one run over everything, with means and intervals over all items.
  preferences, sample, select, vote, usc-* and livecode-* get no page, and other
  pages no contexts and no tokens that the outputs do not have. Audits (noise,
  boundaries, blanks, windows) cover the samples of all shards together.

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


@dataclasses.dataclass(kw_only=True)
class Flags(outputs.PageFlags, messages.Quiet):
    """The flags of `merge`."""

    folder: Path = flag(
        is_positional=True, takes_address=True, metavar="FOLDER", help="outputs of the shards"
    )
    output: Path = flag(takes_address=True, metavar="FILE", help="one file")
    force: bool = flag(False, help="replace an output of another run in a store")


def command() -> Command:
    """Declare the command."""
    return Command("merge", DESCRIPTION, options_of(Flags), run)


def run(args: argparse.Namespace) -> int:
    """Read all shards, write them as one, and report what is missing."""
    system = system_of(finished_shards(args.folder, listed_shards(args.folder))[0][0])
    if isinstance(system, NewSystem):
        from jaxscore.cli import merge_shards

        return merge_shards.run(args, system)
    listed = listed_shards(args.folder)
    shards, empty, missing = finished_shards(args.folder, listed)
    system = system_of(shards[0])
    settings = _settings(shards[0], system)
    upload = None
    if remote.address_of(args.output) is not None:
        check_replaced(args)
        upload = Upload(args.output, manifest_path(args.output))
    reports = _report_files(args, listed, system, settings)
    marks = Marks(shards, system, settings)
    try:
        report = _merge(args, shards, empty, system, settings, marks, reports)
    except UNREADABLE as problem:
        raise _unreadable(args.folder, shards, system, settings, problem) from problem
    found = report.evaluation
    data = [args.output, *(path for path in reports.paths if path.suffix == ".json")]
    facts = {
        path.name: output_facts(path, marks.n_records if path == args.output else None)
        for path in data
        if not is_stream(path)
    }
    written = _write_manifest(args, shards, empty, missing, found, facts)
    files = [args.output, *reports.paths, written]
    messages.print_findings(report)
    for line in found.lines:
        print(line)
    what = f"{system.what} of {len(shards) + len(empty)} files"
    code = messages.close_run(args, report, what, files)
    if upload is not None:
        upload.finish()
    return messages.print_failures([(name, "is not finished") for name in missing]) or code


def _merge(
    args: argparse.Namespace,
    shards: Sequence[Finished],
    empty: Sequence[Finished],
    system: System,
    settings: Any,
    marks: Marks,
    reports: outputs.ReportFiles,
) -> Report:
    """Write all records and their report."""
    # Beside the file, as there is room for that; `atomic` has made the folder by then.
    folder = None if is_stream(args.output) else os.path.dirname(os.path.realpath(args.output))
    with (
        atomic(args.output) as file,
        tempfile.TemporaryFile(dir=folder) as stored,
        contextlib.closing(merged(shards, args.output, file, system, settings, marks)) as records,
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
        verify_empty(empty)
        n_unverified = sum(not shard.manifest.get(OUTPUTS) for shard in (*shards, *empty))
        if n_unverified:
            own.append(Remark(UNVERIFIED, n=n_unverified))
        if empty:
            own.append(Remark(EMPTY, n=len(empty)))
        found = dataclasses.replace(found, remarks=own, prompting=_prompting(shards))
        n_files = len(shards) + len(empty)
        made = {**_models(with_model(shards), system), **settings.record(), **found.prompting}
        made["shards"] = n_files
        report = Report(system.name, found, provenance.of_run(made))
        write_reports(report)
        run_files.remove_manifest(args.output)
    return report


def _unreadable(
    folder: Path, shards: Sequence[Finished], system: System, settings: Any, problem: Exception
) -> InputError:
    """The error of shards that cannot be merged: names the first record that alone cannot be.

    Records and manifests of edited or damaged files can contradict their system in ways that types
    do not show.
    """
    remedy = "score the input of that output again with --force"
    n_good, wrong = 0, None
    for shard, number, record in _numbered(shards, system, settings):
        if n_good and wrong is not None:
            break
        try:
            _merge_alone(record, shards, system, settings)
            n_good += 1
        except UNREADABLE as of_record:
            wrong = wrong or (shard.output, number, of_record)
    if n_good and wrong is not None:  # otherwise no record alone is the reason
        output, number, problem = wrong
        return InputError(
            f"{remote.displayed(output)}: record {number} is not as {system.name} writes it "
            f"({type(problem).__name__}: {problem}); {remedy}"
        )
    return InputError(
        f"{remote.displayed(folder)}: the manifests and records of its shards do not fit together "
        f"({type(problem).__name__}: {problem}); score their inputs again with --force"
    )


def _numbered(
    shards: Sequence[Finished], system: System, settings: Any
) -> Iterator[tuple[Finished, int, Mapping[str, Any]]]:
    for shard in shards:
        records = records_of(shard, system.columns(settings))
        for number, record in enumerate(records, start=1):
            yield shard, number, record


def _merge_alone(
    record: Mapping[str, Any], shards: Sequence[Finished], system: System, settings: Any
) -> None:
    """Merge a record and render its report, to see whether that raises an error."""
    if system.merge is None:
        return
    found = _with_audits(system.merge([record], settings), shards, settings)
    if system.report is not None:
        made = {**_models(with_model(shards), system), **settings.record()}
        report = Report(system.name, found, provenance.of_run(made))
        report.markdown()
        report.html()


def check_replaced(args: argparse.Namespace) -> None:
    """Refuse to replace the finished output of another run in a store.

    Raises:
        InputError: there is one, without --force.
    """
    found = None if args.force else read_manifest(args.output)
    if found is None:
        return
    source = (found.get("flags") or {}).get("input")
    own = remote.displayed(args.folder)
    if "shards" in found and source == own:
        return
    raise InputError(
        f"{remote.displayed(args.output)}: finished by another run, with --input {source}; give "
        "another --output, or --force to replace it"
    )


def _report_files(
    args: argparse.Namespace, listed: Sequence[Shard], system: System, settings: Any
) -> outputs.ReportFiles:
    """Files of the report, none of which is a file of a shard.

    Raises:
        InputError: --html with flags under which the system has no page.
    """
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
    return outputs.ReportFiles(args, *taken, has_page=has_page, has_files=has_files)


def _is_set(settings: Any, condition: str | bool) -> bool:
    """A condition, or whether the setting of its name is given."""
    if isinstance(condition, bool):
        return condition
    return getattr(settings, condition) is not None


def listed_shards(folder: Path) -> list[Shard]:
    """All shards that the folder lists, by name; the source of each is its output.

    Raises:
        InputError: the folder has no list of shards.
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
            found = Finished(shard.name, shard.source, manifest)
            (empty if manifest.get(IS_EMPTY) else shards).append(found)
    if not shards:
        raise InputError(
            f"{remote.displayed(folder)}: found {len(empty)} empty and {len(missing)} unfinished "
            "shards, expected one with an item; finish the run first"
        )
    known = with_model(shards)
    for other in (*shards, *empty):
        if MADE in known.manifest and MADE in other.manifest:
            check_made_alike(known, other)
        else:
            _check_same(known, other)
    return shards, empty, missing


def _check_described(shard: Shard, manifest: Mapping[str, Any]) -> None:
    """Check that a manifest is of the output beside it.

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


def with_model(shards: Sequence[Finished]) -> Finished:
    """The first shard whose manifest describes its model, or the first one if none does.

    A run that found all results in its output has loaded no model and describes none.
    """
    return next((shard for shard in shards if shard.manifest.get("model")), shards[0])


def check_made_alike(first: Finished, other: Finished) -> None:
    """Refuse shards that were made with different flags, files, models or versions.

    Raises:
        InputError: naming the difference.
    """
    why = mismatch(other.manifest[MADE], first.manifest[MADE])
    if why is not None:
        raise InputError(
            f"{remote.displayed(other.output)}: made with {why.name} {why.before}, and "
            f"{remote.displayed(first.output)} with {why.now}; score one of them again with --force"
        )


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
    one, two = digests.pop(run_files.TOKENIZER, None), other_digests.pop(run_files.TOKENIZER, None)
    if one is not None and two is not None:  # without it, no model was loaded
        pairs.append(("tokenizer or chat template", one, two))
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


def _settings(shard: Finished, system: System) -> Any:
    """The settings of the run, from the flags in a manifest.

    Raises:
        InputError: a flag is missing, or has a value that the command does not take.
    """
    flags = _without_files(shard.manifest["flags"])
    try:
        return system.settings(**settings_flags.values(flags, system.settings))
    except (AttributeError, InputError) as problem:
        raise InputError(
            f"{remote.displayed(manifest_path(shard.output))}: flags that {system.name} does not "
            f"take ({problem}); {REMEDY}"
        ) from None


def _without_files(flags: Mapping[str, Any]) -> argparse.Namespace:
    """Flags of a manifest without files, which may be gone and decide no mean."""
    files = ("fewshot", "num_fewshot", "system_file", "system_prompts_file")
    return argparse.Namespace(**{**flags, **{name: None for name in files if name in flags}})


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


def added_counts(shards: Sequence[Finished]) -> dict[str, int]:
    """The texts and tokens of all shards: what was computed, which one run might share more."""
    counts = Counter[str]()
    for shard in shards:
        counts.update(shard.manifest.get("counts") or {})
    return dict(counts)


def _counts(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Select the counts of a system from its manifest."""
    return {name: n for name, n in manifest.items() if COUNT.fullmatch(name)}


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
        elif name == "window_bos":
            out[name] = merge_window_bos(known)
            findings += filter(None, [out[name]["finding"]])
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
        path, report = report_paths(shard.output)[1], read_report(shard.output)
        why = None if report is None else output_difference(path, shard.manifest)
        if why is not None:
            raise changed_output(path, why)
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
    return {"model": flags.get("model") or shard.manifest.get("model_name"), **facts, **reference}


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
    outputs: Mapping[str, Any],
) -> Path:
    if is_stream(args.output):
        return NOWHERE
    first = with_model(shards).manifest
    flags = {**first["flags"], "input": args.folder, "output": args.output}
    facts = {
        **{name: first[name] for name in ("versions", "machine", "model") if name in first},
        **{
            name: first[name]
            for name in (run_files.MADE, run_files.RECORD_VERSION)
            if name in first and (name != run_files.MADE or are_made_alike(shards))
        },
        **_digests(first),
        "remarks": remark_records(found.remarks),
        "counts": added_counts(shards),
        "seconds": round(sum(shard.manifest.get("seconds", 0) for shard in shards), 3),
        "shards": {
            shard.name: shard.manifest.get("input_identity")
            for shard in sorted([*shards, *empty], key=lambda shard: shard.name)
        },
        "empty": [shard.name for shard in empty],
        "missing": list(missing),
        OUTPUTS: outputs,
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
