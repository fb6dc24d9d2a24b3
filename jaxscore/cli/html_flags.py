"""--html and --no-html: where a run's page for a browser is written."""

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from jaxscore.cli import outputs
from jaxscore.cli.help_pages import advanced
from jaxscore.errors import InputError
from jaxscore.io import streams
from jaxscore.io.atomic import atomic
from jaxscore.io.streams import NOWHERE


def add(parser: argparse.ArgumentParser) -> None:
    """Both flags; the page is written unless --no-html is given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--html",
        type=Path,
        metavar="PATH",
        help="the page for a browser (default: named as the report, with .html)",
    )
    advanced(group, "--no-html", action="store_true", help="write no page for a browser")


def pages(args: argparse.Namespace, report: Path, *inputs: Path | None) -> list[Path]:
    """The page's file: --html, else beside the Markdown report.

    None with --no-html, and none by default where the output is a stream.

    Raises:
        InputError: --html is an input of the run, or standard output as the output is.
    """
    if args.no_html or (args.html is None and report == NOWHERE):
        return []
    if args.html is None:
        return [report.with_suffix(".html")]
    number = streams.descriptor(args.html)
    if number is not None and number == streams.descriptor(getattr(args, "output", Path())):
        raise InputError(f"--html {args.html}: --output is the same stream; give a file")
    outputs.check_place(args.html, *inputs, flag="--html")
    return [args.html]


@contextlib.contextmanager
def opened(pages: Sequence[Path]) -> Iterator[TextIO | None]:
    """The file of the page, as `io.atomic`; None where there is none.

    Raises:
        InputError: as `io.atomic`.
    """
    if not pages:
        yield None
        return
    with atomic(pages[0]) as file:
        yield file
