"""Makes the pictures of pages that the READMEs show, with Chromium and playwright.

    python tools/report_picture.py

It runs `paths` on the embedded model, opens the page of its report with the tokens of one path, and
writes jaxscore/report/report.png. It then serves the model, opens the page at `/`, and writes
jaxscore/server/page.png.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jaxscore.cli.main import main as jaxscore
from tools.benchmarks.pages import ARGUMENTS, BROWSERS
from tools.requirements import require

INPUT = ROOT / "jaxscore/demo/inputs/paths.jsonl"
WIDTH, HEIGHT = 1040, 1140  # of the window
PAGE_HEIGHT = 800  # likewise, for the page of the server
SHARPNESS = 1.1  # points of the picture for each of the window
ITEM = "item=2"  # the path that is open


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "jaxscore",
        metavar="FOLDER",
        help="pictures are report/report.png and server/page.png in it (default: jaxscore)",
    )
    args = parser.parse_args(arguments)
    require("playwright", "test")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        parser.error("chromium is not installed; apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "paths.json"
        words = ["paths", "--model", "demo", "--input", str(INPUT), "--output", str(output)]
        if (code := jaxscore([*words, "--quiet"])) != 0:
            return code
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
            report_path = output.with_name("paths_report.html")
            photograph_report(browser, report_path, args.output / "report/report.png")
            photograph_server(browser, args.output / "server/page.png")
            browser.close()
    return 0


def photograph_report(browser: Any, report_path: Path, output: Path) -> None:
    """Write the picture of a report whose item `ITEM` is open, with the pointer on a token."""
    page = open_page(browser, HEIGHT)
    page.goto(f"file://{report_path}#{ITEM}")
    page.wait_for_selector("html[data-ready]", state="attached")
    page.hover("#panel .strip .t")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=output)


def photograph_server(browser: Any, output: Path) -> None:
    """Write the picture of the page of a server, with its example text."""
    words = [sys.executable, "-m", "jaxscore", "serve", "--model", "demo", "--port", "0", "--quiet"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            page = open_page(browser, PAGE_HEIGHT)
            page.goto(address)
            page.hover("#strips .strip .t:has-text('Har') >> nth=-1", timeout=120_000)
            page.screenshot(path=output)
        finally:
            server.terminate()


def open_page(browser: Any, height: int) -> Any:
    """Return a new page of the pictures' size."""
    return browser.new_page(
        viewport={"width": WIDTH, "height": height},
        device_scale_factor=SHARPNESS,
        color_scheme="light",
    )


if __name__ == "__main__":
    sys.exit(main())
