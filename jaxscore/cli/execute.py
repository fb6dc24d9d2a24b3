"""Runs a system on one file: records on disk, output, report and manifest.

A run, `merge` and `report` differ only in where the records come from.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from jaxscore.cli import continuing, messages, model_flags, outputs, settings_flags
from jaxscore.cli.made import MADE, OF_THE_MODEL, digest, made_of
from jaxscore.cli.system_command import api_endpoint
from jaxscore.engine import provenance
from jaxscore.errors import InputError, NoItems, NothingUsable
from jaxscore.io import processes, remote
from jaxscore.io.atomic import atomic
from jaxscore.io.input_files import InputFiles
from jaxscore.io.json_output import write_array
from jaxscore.io.manifest import (
    OUTPUTS,
    output_facts,
    publish_manifest,
    records_path,
    remove_manifest,
)
from jaxscore.io.records import METADATA, NOTHING, record_writer
from jaxscore.io.row_tables import row_writer
from jaxscore.io.streams import NOWHERE, form_of, is_stream
from jaxscore.io.tables import TABLE_FORMS
from jaxscore.report.counts import counted
from jaxscore.shell.audits import Facts
from jaxscore.shell.evaluate import OnRows, run_system
from jaxscore.shell.items import Items, read_file, with_examples
from jaxscore.shell.prompts import PromptSettings
from jaxscore.shell.records import Records
from jaxscore.shell.report import Report
from jaxscore.shell.system import System, id_field, item_fields, table_columns
from jaxscore.version import VERSION

FACTS = "facts"  # field of a manifest: `Facts.to_json`
ABOUT = "about"  # field of a manifest: `Report.about`
GENERATOR = "generator"  # field of generated items with the name of the model


class Setup:
    """The settings of a run, the files that it reads, and its model: known before it has items.

    Attributes:
        inputs: files that the run reads, those of its settings too.
        files_read: the same, as they are before the run.
        about: entries of the report's settings about files of its settings.
        scorer: the loaded model; None before `load`, and if none is loaded.
    """

    def __init__(self, system: System, args: argparse.Namespace, *inputs: Path) -> None:
        """Read the settings.

        Args:
            inputs: files that the run reads.

        Raises:
            InputError: --output would replace an input; settings that cannot be used, or that an
                endpoint does not support.
        """
        self._system, self._args = system, args
        self._files = settings_flags.input_files(args, system.settings)
        self.inputs = (*inputs, *self._files.values())
        if args.output is not None:
            outputs.check_outputs([args.output], *self.inputs)  # before one of them is read
            if not args.shard_run.prefix:  # a shard has the name of its input
                outputs.check_ending(args.output, () if system.layout else (".jsonl", *TABLE_FORMS))
        self.files_read = InputFiles(self.inputs)
        self.settings: Any = with_examples(
            system, system.settings(**settings_flags.values(args, system.settings))
        )
        self.about = settings_flags.about_files(args, system.settings, self.files_read)
        self._endpoint: Any = None
        if isinstance(self.settings, PromptSettings):
            self._endpoint = api_endpoint(args, args.api_base, self.settings)
        self.scorer: Any = None

    def load(self, *files: Path, model: str | None = None) -> Any:
        """Load the model, unless the system needs none or an endpoint has it.

        Args:
            files: files that the run writes, see `model_flags.load_scorer`.
            model: its name; None for --model.
        """
        args, needs = self._args, self._system.needs(self.settings)
        if (load_source := getattr(args, "load_source", None)) is not None:
            self._endpoint = load_source(args)
        if needs and self._endpoint is None:
            generates, name = "generates" in needs, str(model or args.model)
            self.scorer = model_flags.load_scorer(args, name, *files, generates=generates)
            args.shard_run.check_dtype(self.scorer)
        return self._endpoint or self.scorer

    def made(self) -> dict[str, Any]:
        """Describe what decides the records; see `made_of`."""
        digests = {flag: self.files_read.digest(path) for flag, path in self._files.items()}
        return made_of(self._args, digests, self.scorer)

    def facts(self) -> dict[str, Any]:
        """Return the fields of a manifest about the settings, a loaded model and its machine."""
        facts = {} if self.scorer is None else model_facts(self.scorer)
        return {MADE: self.made(), **facts}


def run(system: System, args: argparse.Namespace) -> int:
    """Read, score and write; nothing is left behind if the input is unusable."""
    # Over 60 lines: the order of these steps is what a killed or repeated run relies on.
    beside = args.shard_run.beside
    setup = Setup(system, args, args.input, *([] if beside is None else [beside]))
    settings, files_read = setup.settings, setup.files_read
    renamed = settings_flags.parse_columns(args.column, item_fields(system))
    try:
        items = read_file(
            system,
            args.input,
            settings,
            columns=renamed,
            prefix=args.shard_run.prefix,
            limit=args.limit,
        )
    except NoItems:
        if not args.shard_run.prefix:
            raise
        return _finish_empty(system, args, setup)
    settings = items.settings
    output = _output(system, args, items, settings)
    reports = report_files(system, args, output, *setup.inputs)
    has_rows = bool(settings.row_columns())
    kept = records_path(output, has_rows=has_rows)
    outputs.check_outputs([output, *[kept] * has_rows, *reports.paths], *setup.inputs)
    files = [output, *[kept] * has_rows, *reports.paths]
    model_name = _model_name(system, args, items)
    continuing.check_replaced(system, args, output, model_name)
    earlier = continuing.begin(system, args, items, settings, output, model_name)
    earlier_manifest = (earlier.manifest or {}) if earlier.is_complete else {}

    def metadata() -> dict[str, str]:
        return table_metadata(setup.made())

    is_direct = takes_lines(system, kept) and not getattr(settings, "audit_noise", 0)
    with (
        rows_opened(output, settings, items.shared_columns, metadata) as on_rows,
        atomic(kept) as file,
        scratch(kept) as records,
        reports.opened() as write_reports,
    ):
        lm = None if earlier.is_complete else setup.load(*files, model=model_name)
        if setup.scorer is not None:
            earlier.check_model(items, settings, setup.scorer)
        records.tee = file.buffer if is_direct else None
        try:
            report = run_system(
                system,
                lm,
                items,
                settings,
                records,
                about={
                    **earlier_manifest.get(ABOUT, {}),
                    **outputs.about_input(args, files_read),
                    **setup.about,
                },
                on_rows=on_rows,
            )
        except NothingUsable as problem:
            raise NothingUsable(f"{args.input}: {problem}") from None
        if FACTS in earlier_manifest:
            facts = Facts.from_json(earlier_manifest[FACTS])
            report = dataclasses.replace(
                report, facts=facts, vocabulary=earlier_manifest["vocabulary"]
            )
        if not is_direct:
            columns = columns_of(system, settings, has_text_ids=bool(args.shard_run.prefix))
            replaced = {field: name for field, name in renamed.items() if field != name}
            write_records(file, kept, report, columns, args.input, metadata, replaced)
        write_reports(report)
        _ = (
            report.found,
            report.findings,
            report.decisions,
            report.slices,
        )  # all read the records while open
        files_read.check_unchanged()
        if not earlier.is_complete:
            remove_manifest(output)
    if earlier.is_complete:
        print(f"nothing was left to do in {output}")
    if not earlier.is_unchanged():
        written = {**earlier_manifest, **setup.facts(), **input_facts(args, files_read)}
        if MADE in earlier_manifest:
            written[MADE] |= {name: earlier_manifest[MADE][name] for name in OF_THE_MODEL}
        files.append(write_manifest(vars(args), output, report, written, reports.paths))
    return messages.close(args, report, files, setup.scorer)


def _output(system: System, args: argparse.Namespace, items: Items, settings: Any) -> Path:
    """--output, or the default name next to the input.

    A default name says --limit, so that it replaces no result of all items.

    Raises:
        InputError: it is the name of an input.
    """
    if system.layout is None:
        return args.output
    _, _, ending, ending_of = system.layout
    if ending_of is not None:
        ending = ending_of(items, settings)
    if ending and args.limit is not None:
        ending += f"-first{args.limit}"
    return args.output or args.input.with_name(f"{args.input.stem}{ending}.json")


def report_files(
    system: System, args: argparse.Namespace, output: Path, *inputs: Path
) -> outputs.ReportFiles:
    """Return the paths of the report, if the system makes one.

    Raises:
        InputError: --html is given, and no page is made; or as `ReportFiles`.
    """
    has_report = type(system).report is not System.report
    if not has_report and getattr(args, "html", None) is not None:
        raise InputError(f"--html {args.html}: {system.name} makes no page; leave it out")
    return outputs.ReportFiles(args, *inputs, output=output, has_report=has_report)


def _model_name(system: System, args: argparse.Namespace, items: Items) -> str | None:
    """--model, otherwise the model that the first item names.

    Raises:
        InputError: it names none.
    """
    if not system.needs(None) or args.model is not None:
        return getattr(args, "model", None)
    try:
        name, n_others = items.named_model(GENERATOR)
    except InputError as problem:
        raise InputError(f"{args.input}: {problem}") from None
    if n_others:
        messages.remark(
            args,
            f"{counted(n_others, 'items')} with another {GENERATOR}; all are scored with {name}",
        )
    return name


def takes_lines(system: System, output: Path) -> bool:
    """Return True if an output has the records' JSON lines unchanged."""
    return system.layout is None and (is_stream(output) or form_of(output) not in TABLE_FORMS)


@contextlib.contextmanager
def scratch(output: Path) -> Iterator[Records]:
    """Open empty records in temporary files, next to the output, where there is room for them."""
    folder = None if is_stream(output) else os.path.dirname(os.path.realpath(output))
    if folder is not None and not os.path.isdir(folder):
        folder = None
    with (
        tempfile.TemporaryFile(dir=folder) as file,
        tempfile.TemporaryFile(dir=folder) as extras,
    ):
        yield Records(file, extras)


@contextlib.contextmanager
def rows_opened(
    output: Path, settings: Any, shared: Callable[[], Mapping[str, str]], metadata: Any = dict
) -> Iterator[OnRows | None]:
    """Open an output that is a table of rows, and a function that writes them; None for another.

    Args:
        shared: computes column -> type of what the rows of an item share; JSONL needs none.
        metadata: see `row_writer`.
    """
    columns = settings.row_columns()
    if not columns:
        yield None
        return
    if form_of(output) in TABLE_FORMS:
        columns = {**shared(), **columns, "error": "string"}
    with atomic(output) as file, row_writer(output, file, columns, metadata) as write:
        yield write


def columns_of(system: System, settings: Any, *, has_text_ids: bool) -> dict[str, str]:
    """Columns of a table -> their types."""
    ids = {id_field(system) or "id": "string"} if has_text_ids else {}
    return table_columns(system, settings) | ids


def table_metadata(description: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata that the schema of a Parquet file has about the records."""
    facts = {
        "version": VERSION,
        "system": description["command"],
        "made_sha256": digest(description),
    }
    return {METADATA: json.dumps(facts)}


def write_records(
    file: TextIO,
    output: Path,
    report: Report,
    columns: Mapping[str, str],
    source: Path | None,
    metadata: Any = dict,
    replaced: Mapping[str, str] = NOTHING,
    header: Sequence[str] = (),
) -> None:
    """Write all records in the form of an output.

    Args:
        source: the input, whose columns a table has too.
        metadata: a function that returns the metadata of a Parquet file's schema.
        replaced, header: see `record_writer`.
    """
    system = report.declared
    if system.layout is not None:
        write_array(file, report.records, is_ascii=system.layout.is_ascii)
        return
    if takes_lines(system, output):
        for line in report.records.lines():
            file.buffer.write(line)
        return
    fields = item_fields(system)
    described = fields, metadata, replaced, header
    with record_writer(output, file, columns, source, *described) as write:
        for record in report.records:
            write(record)


def input_facts(args: argparse.Namespace, files_read: InputFiles) -> dict[str, Any]:
    """Return the fields of a manifest about the input."""
    facts: dict[str, Any] = {"input_sha256": files_read.digest(args.input)}
    if args.shard_run.identity is not None:
        facts["input_identity"] = dict(args.shard_run.identity)
        if remote.address_of(args.input) is None:
            facts["input_path"] = os.path.realpath(args.input)
    return facts


def model_facts(scorer: Any) -> dict[str, Any]:
    """Return the fields of a manifest about a loaded model and its machine."""
    return {"machine": provenance.machine(), "model": scorer.about, **scorer.facts()}


def write_manifest(
    flags: Mapping[str, Any],
    output: Path,
    report: Report,
    facts: Mapping[str, Any],
    reports: Sequence[Path] = (),
) -> Path:
    """Write an output's manifest next to it.

    Args:
        flags: argparse's result, including defaults and `command`.
        facts: the caller's facts: digests, input, model.
        reports: files of the report; its JSON file is described with the output.

    Returns:
        Its path, or `NOWHERE` if the output is a stream.
    """
    if is_stream(output):
        return NOWHERE
    record = {
        "versions": provenance.of_run({}),
        "seconds": round(report.facts.seconds, 3),
        **facts,
        "failed": len(report.failures),
        FACTS: report.facts.to_json(),
        ABOUT: dict(report.about),
        "vocabulary": report.vocabulary,
    }
    if processes.is_first():
        record[OUTPUTS] = facts_of_files(output, report, reports)
    return publish_manifest(output, flags, record)


def facts_of_files(output: Path, report: Report, reports: Sequence[Path]) -> dict[str, Any]:
    """Return the fields of a manifest about an output and the JSON file of its report."""
    kept = records_path(output, has_rows=bool(report.chosen.row_columns()))
    facts = {path.name: output_facts(path) for path in reports if path.suffix == ".json"}
    if kept != output:
        facts[output.name] = output_facts(output)
    n_records = None if output in reports else len(report.records)
    return {kept.name: output_facts(kept, n_records), **facts}


def _finish_empty(system: System, args: argparse.Namespace, setup: Setup) -> int:
    """Finish a shard without an item: an output without records, a manifest and no report."""
    settings, files_read = setup.settings, setup.files_read
    files_read.check_unchanged()
    remove_manifest(args.output)
    kept = records_path(args.output, has_rows=bool(settings.row_columns()))
    no_columns = {"id": "string"}.copy
    with (
        rows_opened(args.output, settings, no_columns),
        atomic(kept) as file,
        scratch(kept) as records,
    ):
        report = Report(system, settings, records, Facts(), {})
        columns = columns_of(system, settings, has_text_ids=True)
        write_records(file, kept, report, columns, args.input)
        reports = outputs.report_paths(args.output)
        outputs.remove([*reports, reports[0].with_suffix(".html")])  # of an earlier input
    facts = {outputs.IS_EMPTY: True, **setup.facts(), **input_facts(args, files_read), "failed": 0}
    facts |= {FACTS: Facts().to_json(), ABOUT: {}}
    if processes.is_first():
        facts[OUTPUTS] = facts_of_files(args.output, report, [])
    publish_manifest(args.output, vars(args), facts)
    messages.remark(args, f"{args.input}: found no item; its output is empty")
    return 0
