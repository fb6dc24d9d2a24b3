"""The report of an output: its page, its data and its page for a browser, written together."""

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxscore.cli import html_flags, outputs
from jaxscore.evaluate import Report
from jaxscore.io.atomic import atomic
from jaxscore.io.streams import NOWHERE


class ReportFiles:
    """Where the report of `--output` lies.

    Attributes:
        paths: Markdown, JSON, and the page for a browser unless --no-html is given.
        has_page: whether the page for a browser is written.
    """

    def __init__(
        self, args: argparse.Namespace, *inputs: Path | None, is_page_only: bool = False
    ) -> None:
        """Args:
            inputs: what the run reads.
            is_page_only: there is neither Markdown nor JSON.

        Raises:
            InputError: an output is an input, another output, or has a name of other files.
        """
        page, data = outputs.report_paths(args.output)
        self._page, self._data = (NOWHERE, NOWHERE) if is_page_only else (page, data)
        self._browser = html_flags.pages(args, page, *inputs)
        self.has_page = bool(self._browser)
        self.paths = [*([] if is_page_only else [page, data]), *self._browser]
        outputs.check_outputs([args.output, *self.paths], *inputs)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Callable[[Report], None]]:
        """What writes a report; the files appear when the block ends.

        Raises:
            InputError: as `io.atomic`.
        """
        with (
            atomic(self._page) as page,
            atomic(self._data) as data,
            html_flags.opened(self._browser) as browser,
        ):

            def write(report: Report) -> None:
                if self._page != NOWHERE:
                    page.write(report.markdown())
                    data.write(report.json())
                if browser:
                    browser.write(report.html())

            yield write
