"""Pages of reports in Chromium."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.browser import browser

__all__ = ["browser"]


class Opened(NamedTuple):
    """A page in the browser.

    Attributes:
        requests: addresses that were loaded.
        complaints: what the browser wrote to its console, and errors of scripts.
    """

    page: Any
    requests: list[str]
    complaints: list[str]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """`opened(html, hash)`: the page from a file, once its table is there."""
    contexts = []

    def call(html: str, fragment: str = "", **options: Any) -> Opened:
        path = tmp_path / "report.html"
        path.write_text(html, encoding="utf-8")
        options = {"viewport": {"width": 1200, "height": 800}, "color_scheme": "light", **options}
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        found = Opened(page, [], [])
        page.on("requestfinished", lambda request: found.requests.append(request.url))
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.goto(f"file://{path}{f'#{fragment}' if fragment else ''}")
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready]", state="attached")
        return found

    yield call
    for context in contexts:
        context.close()
