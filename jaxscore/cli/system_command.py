"""The command of a system that scores the items of a file: flags, run, files, closing block."""

import argparse
import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.cli import messages, model_flags, outputs, settings_flags, shards
from jaxscore.cli.app import Command
from jaxscore.cli.flags import (
    Option,
    column_flag,
    flag,
    limit_flag,
    options_of,
    options_of_settings,
)
from jaxscore.cli.messages import remark
from jaxscore.cli.model_flags import ModelSpec, PairSpec, model_options
from jaxscore.cli.outputs import ReportFiles
from jaxscore.errors import InputError, NoItems, NothingUsable
from jaxscore.evaluate import Report, run_declared
from jaxscore.io import records as record_files
from jaxscore.io import run_files
from jaxscore.io.atomic import atomic
from jaxscore.io.input_files import InputFiles
from jaxscore.io.items import read_previous_output
from jaxscore.io.json_output import GrowingArray, array_writer
from jaxscore.io.manifest import output_difference, read_manifest
from jaxscore.io.records import METADATA, record_writer
from jaxscore.io.run_files import file_digest
from jaxscore.shell.system import System as NewSystem
from jaxscore.systems.entries import Entry, check_file, iterate_file, read_file, with_examples
from jaxscore.systems.evaluation import Evaluation
from jaxscore.systems.prompt_settings import PromptSettings
from jaxscore.systems.remarks import Remark
from jaxscore.systems.settings import MODEL_GROUP, fields_of
from jaxscore.systems.system import System
from jaxscore.version import VERSION

if TYPE_CHECKING:
    from jaxscore.endpoints.completions import CompletionsEndpoint
    from jaxscore.systems.resuming import Work


@dataclasses.dataclass(kw_only=True)
class ApiFlags:
    """The flag of a command whose model may be an endpoint."""

    api_base: str | None = flag(
        None,
        metavar="URL",
        help="use this OpenAI-compatible server: its /completions with echo and logprobs; the "
        "model is then the name that it has there",
    )


def api_endpoint(
    args: argparse.Namespace, url: str | None, settings: PromptSettings
) -> "CompletionsEndpoint | None":
    """The server's model, by the name that `--model` gives.

    Args:
        url: of the server; None for a local model, which has no endpoint.

    Raises:
        InputError: a flag or a setting that no endpoint supports; an invalid URL; a key in the
            environment that is malformed.
    """
    if url is None:
        return None
    from jaxscore.endpoints.completions import CompletionsEndpoint  # imports an HTTP client

    settings.check_model(CompletionsEndpoint.CAPABILITIES)
    ModelSpec.of(args).check_endpoint()
    return CompletionsEndpoint(args.model, url, progress=not args.quiet)


PAIR = "compares_models"  # capability of a model pair


def file_options(
    what: str, fields: Sequence[str], ending: str | None, limits: Sequence[str], *, is_array: bool
) -> list[Option]:
    """The flags of input and output.

    Args:
        what: the items, in the plural, and further forms of the input.
        ending: how the default name of the output ends; None if --output is required.
        limits: further spellings of --limit.
    """
    forms = "JSON of results" if is_array else f"results: {record_files.FORMS}"
    if ending is not None:
        forms = f"JSON (default: next to the input, its name with {ending})"

    @dataclasses.dataclass(kw_only=True)
    class Flags:
        input: list[Path] = flag(
            dataclasses.MISSING,
            *(() if ending is None else ("--input-file",)),
            takes_address=True,
            metavar="FILE",
            help=f"{what} {settings_flags.FORMS}; also several files, patterns, folders, addresses "
            "such as s3://bucket/file, or -",
        )
        column: list[str] = column_flag(fields)
        output: Path = flag(
            dataclasses.MISSING if ending is None else None,
            *(() if ending is None else ("--output-file",)),
            takes_address=True,
            metavar="FILE",
            help=f"{forms}; - is stdout",
        )
        limit: int | None = limit_flag(what.partition(":")[0], *limits)

    return options_of(Flags)


def command_of(system: Any) -> Command:
    """Declare the command of a system."""
    if isinstance(system, NewSystem):
        from jaxscore.cli import execute

        help, layout, model_field = f"{inspect.getdoc(system)}\n", system.layout, ""
        ending = layout.ending if layout is not None and layout.ending else None
        has_page = type(system).report is not NewSystem.report
        needs, what, limits = system.needs(None), f"{system.what}:", system.aliases.get("limit", ())
        run_file, run_all, published = functools.partial(execute.run, system), shards.run, None
    else:
        help, layout, model_field = system.help, system.array, system.model_field
        ending = layout.name if layout is not None and layout.ending is not None else None
        has_page, needs = system.report is not None, system.needs
        what, limits = f"{system.what}: {system.forms}".strip(), system.limit_aliases
        run_file, published = functools.partial(run, system), system.published_flags
        run_all = shards.run
    settings = options_of_settings(system.settings)
    options = [
        *file_options(what, system.item_fields, ending, limits, is_array=layout is not None),
        *(option for option in settings if option.group == "options"),
        *(option for option in settings if option.group not in ("options", MODEL_GROUP)),
        *(options_of(outputs.PageFlags) if has_page else ()),
        *(options_of(ApiFlags) if issubclass(system.settings, PromptSettings) else ()),
    ]
    if needs:
        spec = PairSpec if PAIR in needs else ModelSpec
        options += model_options((), system.settings, spec=spec, model_field=model_field)
    else:
        options += options_of(messages.Quiet)
    options += options_of(shards.ShardFlags)
    made = shards.command(
        system.name, help, options, run_all, run_file, is_array=layout is not None
    )
    return made if published is None else published(made)


def run(system: System, args: argparse.Namespace) -> int:
    """Read, evaluate and write; nothing is left behind if the input is unusable."""
    # Over 60 lines: the order of these steps is what a killed or repeated run relies on.
    named = settings_flags.input_files(args, system.settings).values()
    inputs = [path for path in (args.input, args.part.beside, *named) if path is not None]
    if args.output is not None:
        outputs.check_outputs([args.output], *inputs)  # before one of them is read
    files_read = InputFiles(inputs)
    settings = with_examples(
        system, system.settings(**settings_flags.values(args, system.settings))
    )
    about = settings_flags.about_files(args, system.settings, files_read)
    endpoint = work = None
    model_name: str = args.model if system.needs else ""
    if isinstance(settings, PromptSettings):
        endpoint = api_endpoint(args, args.api_base, settings)
    try:
        entries, settings, output, reports = _inputs(system, args, settings, inputs)
    except NoItems:
        if not args.part.prefix:
            raise
        return _finish_empty(system, args, settings, files_read)
    files = [output, *reports.paths]
    if system.work is not None:
        model_name = _model(system, args, entries)
        entries = work = _work(system, args, model_name, entries, settings, output)
    is_done = work is not None and work.is_done
    was_done = work is not None and is_done and bool(work.output.records)
    before = file_digest(output) if was_done else None
    digests = settings_flags.file_digests(args, system.settings, files_read)
    scorer = None

    def metadata() -> dict[str, str]:
        about = None if scorer is None else scorer.about
        digest = run_files.made_digest(vars(args), about, digests)
        made = {"version": VERSION, "system": system.name, run_files.MADE: digest}
        return {METADATA: json.dumps(made)}

    n_records = 0

    with (
        _writer(
            system, settings, output, work, args.input, bool(args.part.prefix), metadata
        ) as write_record,
        reports.opened() as write_reports,
        _naming(args.input),
    ):
        if system.needs and endpoint is None and not is_done:
            generates = "generates" in system.needs_with(settings)
            scorer = model_flags.load_scorer(args, model_name, *files, generates=generates)
            args.part.check_dtype(scorer)
            if args.part.tokenizer is not None:
                digests[run_files.TOKENIZER] = args.part.tokenizer

        def write(record: Mapping[str, Any]) -> None:
            nonlocal n_records
            write_record(record)
            n_records += 1

        # A model that is not loaded does not say which one computed.
        model = work.output.model if work is not None and scorer is None else None
        if work is not None and not was_done:  # whose output grows while it runs
            run_files.remove_manifest(output)
        report = run_declared(
            system,
            endpoint or scorer,
            entries,
            settings,
            about={**(model or {}), **outputs.about_input(args, files_read), **about},
            on_item=write if system.streams else None,
            with_page=reports.has_page,
        )
        for record in report.items:
            write(record)
        write_reports(report)
        files_read.check_unchanged()
        if work is None:
            run_files.remove_manifest(output)
    found = report.evaluation
    messages.print_findings(report)
    if was_done:
        print(f"nothing was left to do in {output}")
    earlier = read_manifest(output) if was_done else None
    is_unmarked = args.part.identity is not None and earlier is None  # a shard without a manifest
    if not was_done or is_unmarked or file_digest(output) != before:
        if was_done:  # by a run that may have audited the noise
            report = dataclasses.replace(
                report, evaluation=dataclasses.replace(found, audited=False)
            )
        more = {**about, **digests, **found.counts}
        if scorer is not None or system.work is None:
            about_model = None if scorer is None else scorer.about
            more[run_files.MADE] = run_files.made_digest(vars(args), about_model, digests)
        if system.work is not None and args.model is None:
            more["model_name"] = model_name
        data = [path for path in reports.paths if path.suffix == ".json" and work is None]
        written = outputs.write_manifest(
            args,
            scorer,
            output,
            report,
            earlier=earlier,
            n_records=n_records,
            files=[output, *data],
            files_read=files_read,
            **more,
        )
        files.append(written)
    for line in found.lines:
        print(line)
    code = messages.close_run(args, report, system.what, files, scorer)
    return code or int(not found.is_complete)


def _finish_empty(
    system: System, args: argparse.Namespace, settings: Any, files_read: InputFiles
) -> int:
    """Finish a shard without an item: an output without records, a manifest and no report."""
    files_read.check_unchanged()
    run_files.remove_manifest(args.output)
    empty = _writer(
        system,
        settings,
        args.output,
        work=None,
        source=args.input,
        has_text_ids=True,
        metadata=dict,
    )
    with empty:
        pass
    reports = outputs.report_paths(args.output)
    outputs.remove([*reports, reports[0].with_suffix(".html")])  # of an earlier input
    remarks = [Remark(outputs.EMPTY, n=1)]
    found = Evaluation(summary={}, n_items=0, headline="", failures=[], remarks=remarks)
    digests = settings_flags.file_digests(args, system.settings, files_read)
    report = Report(system.name, found, {})
    more = {outputs.IS_EMPTY: True, **digests}
    outputs.write_manifest(
        args,
        None,
        args.output,
        report,
        n_records=0,
        files=[args.output],
        files_read=files_read,
        **more,
    )
    remark(args, f"{args.input}: there is no item in it; its output has no records")
    return 0


def _inputs(
    system: System, args: argparse.Namespace, settings: Any, inputs: Sequence[Path]
) -> tuple[Any, Any, Path, ReportFiles]:
    """The entries, the settings with what is known of the entries, the output and its reports."""
    columns = settings_flags.parse_columns(args.column, system.item_fields)
    source = system, args.input, args.limit, columns
    prefix = args.part.prefix
    ending = None if system.array is None else system.array.ending
    if ending is not None:  # the default name may depend on the entries
        entries = read_file(*source, settings, prefix)
        output = _array_path(system, args, ending(settings, entries))
        return entries, settings, output, _report_files(system, args, settings, output, *inputs)
    if system.array is not None:
        settings_flags.array_path(args, "")  # refuses the names of tables
    reports = _report_files(system, args, settings, args.output, *inputs)
    if not system.is_lazy:
        return read_file(*source, settings, prefix), settings, args.output, reports
    n_items = check_file(*source, settings)
    if hasattr(settings, "n_requests"):
        settings = dataclasses.replace(settings, n_requests=n_items)
    return iterate_file(*source, settings, prefix), settings, args.output, reports


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the input in the message that none of its items is usable."""
    try:
        yield
    except NothingUsable as problem:
        raise NothingUsable(f"{path}: {problem}") from None


@contextlib.contextmanager
def _writer(
    system: System,
    settings: Any,
    output: Path,
    work: "Work[Any] | None",
    source: Path,
    has_text_ids: bool,
    metadata: Callable[[], Mapping[str, str]],
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Open a function that writes a record to the output.

    Args:
        source: the input.
        has_text_ids: whether an item without an id gets a text, and not a number.
        metadata: of a Parquet file's schema, once the model is loaded.
    """
    if work is not None:
        with GrowingArray(output, work.output.records).open() as write:
            yield write
        return
    with atomic(output) as file:
        if system.array is not None:
            with array_writer(file, is_ascii=system.array.is_ascii) as write:
                yield write
        else:
            columns = system.columns(settings) | ({"id": "string"} if has_text_ids else {})
            fields = system.item_fields
            with record_writer(output, file, columns, source, fields, metadata) as write:
                yield write


def _model(system: System, args: argparse.Namespace, entries: Sequence[Entry[Any]]) -> str:
    """The flag's model, otherwise the one that the first item names.

    Raises:
        InputError: neither names one.
    """
    if args.model is not None:
        return str(args.model)
    named = [(entry.item or {}).get(system.model_field) for entry in entries]
    if not isinstance(named[0], str):
        raise InputError(
            f'{args.input}: {entries[0].name} has no string "{system.model_field}" that names the '
            "model; give --model"
        )
    if others := sum(name != named[0] for name in named):
        messages.remark(
            args,
            f"{others} items name another {system.model_field}; all are scored with {named[0]}",
        )
    return named[0]


def _work(
    system: System,
    args: argparse.Namespace,
    model_name: str,
    entries: Sequence[Entry[Any]],
    settings: Any,
    output: Path,
) -> "Work[Any]":
    """The entries, with what an earlier run has left of their results in the output."""
    from jaxscore.systems.resuming import Output  # deferred: most systems write a new output

    assert system.work is not None
    model = {
        "model": model_name,
        "revision": args.revision,
        "lora": None if args.lora is None else str(args.lora),
        "quantize": args.quantize,
        "reproducible": args.reproducible or None,
    }
    dtype = None if args.dtype == "auto" else args.dtype  # auto depends on the device
    records = [] if args.part.ignores_output else read_previous_output(output)
    known = read_manifest(output) if records else None
    changed = None if known is None else output_difference(output, known)
    earlier = Output(output, records, model, dtype)
    with _naming(args.input):
        work: Work[Any] = system.work(entries, settings, earlier)
    if changed is not None and work.is_done:
        raise InputError(
            f"{output}: not as its manifest describes it ({changed}), so its results may be of "
            "another origin; delete it to compute them again from the journal, or delete "
            f"{run_files.manifest_path(output)} to keep them"
        )
    if changed is not None:
        messages.remark(args, f"{output}: not as its manifest describes it ({changed}), unfinished")
    for line in work.remarks():
        messages.remark(args, line)
    return work


def _array_path(system: System, args: argparse.Namespace, ending: str) -> Path:
    """The output; a default name says --limit, so that it replaces no result of all items."""
    if args.limit is not None and system.work is None:
        ending += f"-first{args.limit}"
    return settings_flags.array_path(args, ending)


def _report_files(
    system: System, args: argparse.Namespace, settings: Any, output: Path, *inputs: Path
) -> ReportFiles:
    """Where the report lies, if the system and the settings make one.

    Raises:
        InputError: --html is given, and no report is made; or as `ReportFiles`.
    """
    setting = system.reports_with
    has_page = system.report is not None
    if setting is not None and getattr(settings, setting) is None:
        if args.html is not None:
            [flag] = [field.flag for field in fields_of(system.settings) if field.name == setting]
            raise InputError(
                f"--html {args.html}: without --{setting} no page is made; give --{setting} "
                f"{flag.metavar}"
            )
        has_page = False
    has_files = system.has_report_files
    if isinstance(has_files, str):
        has_files = getattr(settings, has_files) is not None
    has_files = has_page and has_files
    return ReportFiles(args, *inputs, output=output, has_page=has_page, has_files=has_files)
