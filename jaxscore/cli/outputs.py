"""Output files of a command: refused places, reports, pages and manifests."""

import argparse
import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.io import processes, remote, streams
from jaxscore.io.atomic import atomic
from jaxscore.io.input_files import InputFiles
from jaxscore.io.manifest import MANIFEST, OUTPUTS, manifest_path, output_facts, publish_manifest
from jaxscore.io.remote import displayed
from jaxscore.io.streams import NOWHERE, is_stream
from jaxscore.shell.flags import flag
from jaxscore.shell.rendered import Rendered

if TYPE_CHECKING:  # importing it imports JAX
    pass

# Endings of names that an output may not have: see `report_paths`.
RESERVED = {MANIFEST: "manifests"} | {
    f"{mark}report{ending_of}": "reports"
    for mark in "_."
    for ending_of in (".md", ".json", ".html")
}


IS_EMPTY = "is_empty"  # field of the manifest of a shard without an item
EMPTY = "input files without an item: {n}"


def check_output(output: Path, *inputs: Path | None, flag: str = "--output") -> None:
    """Refuse to write over what is read, a manifest or a report.

    Raises:
        InputError: naming the place, and the flag to change.
    """
    for ending, content in RESERVED.items():
        if output.name.endswith(ending):
            raise InputError(
                f"{flag} {output}: names that end in {ending} are those of {content}; give "
                "another name"
            )
    _check_place(output, *inputs, flag=flag)


def check_ending(output: Path, endings: Sequence[str]) -> None:
    """Refuse a name with the ending of another form than the output has.

    Args:
        endings: the allowed ones next to `.json`; a name without an ending is allowed too.

    Raises:
        InputError: naming the endings.
    """
    form = streams.form_of(output)
    if is_stream(output) or form in (".json", *endings) or not re.fullmatch(r"\.[a-z]\w*", form):
        return
    hint = "; a spreadsheet opens .csv" if form in streams.SPREADSHEETS and endings else ""
    form = "JSON" if not endings else "JSONL or a table"
    raise InputError(
        f"--output {output}: the output is {form}; give a name ending in "
        f"{', '.join(endings or ['.json'])}{hint}"
    )


def _check_place(output: Path, *inputs: Path | None, flag: str) -> None:
    places = {
        _resolved(input_path, flag): input_path for input_path in (output, manifest_path(output))
    }
    for path in inputs:  # `merge` has two for each shard
        if path is not None and (input_path := places.get(_resolved(path, flag))) is not None:
            raise InputError(f"{flag} {input_path} is an input of this run; give another name")


def check_outputs(outputs: Sequence[Path], *inputs: Path | None, flag: str = "--output") -> None:
    """`check_output` for each file that a run writes, and none of them twice.

    Args:
        outputs: the first one has a manifest, the others may be its reports.

    Raises:
        InputError: naming the flag and the places.
    """
    first, *others = outputs
    if is_stream(first):  # it has no other files
        return
    check_output(first, *inputs, flag=flag)
    for output in others:
        _check_place(output, *inputs, flag=flag)
    for first_path, other in itertools.combinations([*outputs, manifest_path(first)], 2):
        if _resolved(first_path, flag) == _resolved(other, flag):
            raise InputError(
                f"{flag} {first}: {first_path} and {other} are one file, and this run would write "
                "both; give another name"
            )


def _resolved(path: Path, flag: str) -> Path:
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.stat()  # fails at a loop of links, which Python 3.13 resolves to itself
        return path.resolve()
    except (OSError, ValueError) as problem:
        raise InputError(f"{flag} {path}: not usable as a path ({problem})") from None


def report_paths(output: Path) -> tuple[Path, Path]:
    """Paths of the Markdown and the JSON file of an output's report.

        OUT.json    OUT_report.md       OUT_report.json
        OUT.jsonl   OUT.jsonl.report.md OUT.jsonl.report.json   likewise any other name

    No two outputs of one folder share them. Both are `NOWHERE` if the output is a stream.

    Raises:
        InputError: the output is a folder.
    """
    if is_stream(output):
        return NOWHERE, NOWHERE
    if not output.name:
        raise InputError(f"--output {output}: found a folder, expected the name of a file")
    if output.name.endswith(".json"):
        stem = f"{output.name.removesuffix('.json')}_report"
    else:
        stem = f"{output.name}.report"
    return output.with_name(f"{stem}.md"), output.with_name(f"{stem}.json")


@dataclasses.dataclass(kw_only=True)
class PageFlags:
    """The flags of a command that writes a page."""

    html: Path | None = flag(
        None,
        metavar="PATH",
        excludes="html",
        help="the page for a browser (default: named as the report, with .html)",
    )
    no_html: bool = flag(
        False, excludes="html", is_advanced=True, help="write no page for a browser"
    )


def page_paths(args: argparse.Namespace, report: Path, *inputs: Path | None) -> list[Path]:
    """Return the path of the page for a browser: --html, otherwise next to the Markdown report.

    Empty with --no-html, and by default if the output is a stream.

    Raises:
        InputError: --html is an input of the run, or the same stream as the output.
    """
    if args.no_html or (args.html is None and report == NOWHERE):
        return []
    if args.html is None:
        return [report.with_suffix(".html")]
    number = streams.descriptor(args.html)
    if number is not None and number == streams.descriptor(getattr(args, "output", Path())):
        raise InputError(f"--html {args.html}: --output is the same stream; give a file")
    _check_place(args.html, *inputs, flag="--html")
    return [args.html]


def open_page(pages: Sequence[Path]) -> contextlib.AbstractContextManager[TextIO | None]:
    """Open the page as `io.atomic` does, or yield None if there is none."""
    return atomic(pages[0]) if pages else contextlib.nullcontext()


def remove(paths: Sequence[Path]) -> None:
    """Remove files, also at their addresses, if they exist."""
    if not processes.is_first():
        return
    for path in paths:
        path.unlink(missing_ok=True)
        if remote.address_of(path) is not None:
            remote.remove(path)


class ReportFiles:
    """The report of `--output`: Markdown, JSON, and a page for a browser, written together.

    Attributes:
        paths: Markdown, JSON, and the page unless --no-html is given.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        *inputs: Path | None,
        output: Path | None = None,
        has_report: bool = True,
        has_records: bool = True,
    ) -> None:
        """Args:
            inputs: files that the run reads.
            output: None for --output.
            has_report: False if none of the three is written.
            has_records: True if the output has records; otherwise the JSON goes to an output that
                is a stream.

        Raises:
            InputError: an output is an input, another output, or has a reserved name.
        """
        output = output or args.output
        markdown, data = report_paths(output)
        data = data if has_records or not is_stream(output) else output
        self._markdown, self._data = (markdown, data) if has_report else (NOWHERE, NOWHERE)
        self._pages = page_paths(args, markdown, *inputs) if has_report else []
        self.paths = [markdown, data, *self._pages] if has_report else []
        check_outputs([output, *self.paths], *inputs)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Callable[[Rendered], None]]:
        """Open a function that writes a report; the files appear when the block ends.

        Raises:
            InputError: see `io.atomic`.
        """
        with (
            atomic(self._markdown) as markdown,
            atomic(self._data) as data,
            open_page(self._pages) as page,
        ):

            def write(report: Rendered) -> None:
                if self._markdown != NOWHERE:
                    markdown.write(report.markdown())
                if self._data != NOWHERE:
                    data.writelines(report.json_parts())
                if page:
                    page.write(report.html())

            yield write


def about_input(args: argparse.Namespace, files_read: InputFiles) -> dict[str, Any]:
    """Entries of a report's settings about the input."""
    return {
        "limit": args.limit,
        "input": displayed(args.input),
        "input_sha256": files_read.digest(args.input),
    }


def write_own_manifest(
    args: argparse.Namespace, output: Path, facts: Mapping[str, Any], files: Sequence[Path]
) -> Path:
    """Write the manifest of a command that is not a system.

    Args:
        output: the file next to which it is.
        facts: the command's facts: inputs, model, failures.
        files: with results, whose digests the manifest has; none that other commands change.

    Returns:
        Its path, or `NOWHERE` if the output is a stream.
    """
    if is_stream(output):
        return NOWHERE
    record = {"versions": provenance.of_run({}), **facts}
    if processes.is_first():
        record[OUTPUTS] = {path.name: output_facts(path) for path in files}
    return publish_manifest(output, vars(args), record)
