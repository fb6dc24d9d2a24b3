"""Makes the picture of a report that the README shows, with Chromium and playwright.

    python tools/report_picture.py

It runs `paths` on the embedded model, opens the page of its report with the tokens of one path, and
writes jaxscore/report/report.png.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jaxscore.cli.main import main as jaxscore
from tools.benchmarks.pages import ARGUMENTS, BROWSERS
from tools.requirements import require

INPUT = ROOT / "jaxscore/demo/inputs/paths.jsonl"
WIDTH, HEIGHT = 1040, 1140  # of the window
SHARPNESS = 1.1  # points of the picture for each of the window
ITEM = "item=2"  # the path that is open


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "jaxscore/report/report.png", metavar="FILE"
    )
    args = parser.parse_args(arguments)
    require("playwright", "test")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        parser.error("chromium is not installed; apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "paths.json"
        words = ["paths", "--model", "demo", "--input", str(INPUT), "--output", str(output)]
        if (code := jaxscore([*words, "--quiet"])) != 0:
            return code
        photograph(path, output.with_name("paths_report.html"), args.output)
    return 0


def photograph(browser_path: str, page_path: Path, output: Path) -> None:
    """Write the picture of a page whose item `ITEM` is open, with the pointer on a token."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=ARGUMENTS)
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT},
            device_scale_factor=SHARPNESS,
            color_scheme="light",
        )
        page.goto(f"file://{page_path}#{ITEM}")
        page.wait_for_selector("html[data-ready]", state="attached")
        page.hover("#panel .strip .t")
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=output)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
