"""`html`: how large the page of `score` is, what it costs to write, and when a browser has it."""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxscore.report.document import Source
from jaxscore.report.html.frame import render
from jaxscore.systems.score.report import WorstRequests, report

SIZES, SMALL_SIZES = (10_000, 100_000), (100,)  # requests
LENGTH, VOCABULARY = 20, 20_000  # tokens of each, and how many different ones there are
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


class Written(NamedTuple):
    """One page.

    Attributes:
        taking, writing: CPU seconds of taking the records as they come, and of the rest.
    """

    text: str
    taking: float
    writing: float


def run(turns: int, *, small: bool) -> None:
    """Print a line for each number of requests."""
    print(
        f"\nhtml: requests of {LENGTH} tokens, {VOCABULARY} different ones; least of {turns} "
        f"turns; system load {os.getloadavg()[0]:.2f}\n"
        "requests     bytes  CPU s taking  CPU s writing  ready ms  elements",
        flush=True,
    )
    for n in SMALL_SIZES if small else SIZES:
        records = [record(k, LENGTH, np.random.default_rng(k)) for k in range(n)]
        pages = [written(records) for _ in range(turns)]
        taking, writing = (
            min(getattr(page, name) for page in pages) for name in Written._fields[1:]
        )
        size = len(pages[0].text.encode())
        times = time_in_browser(pages[0].text, turns)
        seen = "no browser" if times is None else f"{times[0]:9.0f}  {times[1]:8d}"
        print(f"{n:8d}  {size:8d}  {taking:12.2f}  {writing:13.2f} {seen}", flush=True)


def record(k: int, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """A record of `score` with n drawn tokens, as the command's page takes it."""
    ids = np.minimum(rng.zipf(1.3, n), VOCABULARY - 1).astype(np.int32)
    logprob = -rng.exponential(2.5, n).astype(np.float32)
    entropy = rng.gamma(3, 0.8, n).astype(np.float32)
    certainty = rng.gamma(30, 0.25, n).astype(np.float32)
    mean = [float(x.astype(float).mean()) if n else None for x in (logprob, entropy, certainty)]
    return {
        "id": f"item-{k}",
        "token_ids": ids,
        "tokens": [f"Ġtok{id:x}" for id in ids],
        "logprob": logprob,
        "entropy": entropy,
        "self_certainty": certainty,
        "greedy": logprob > -0.7,
        "sum_logprob": float(logprob.astype(float).sum()) if n else None,
        "mean_logprob": mean[0],
        "perplexity": None if mean[0] is None else float(np.exp(-mean[0])),
        "mean_entropy": mean[1],
        "mean_self_certainty": mean[2],
        "n_tokens": n,
        "n_scored": n,
    }


def source(items: WorstRequests, failures: list[dict[str, str]]) -> Source:
    """Return the contents of the page of `score`, except its requests."""
    record = {
        "summary": {"n_requests": items.n_all, "n_scored": 7, "mean_logprob": -2.5},
        "boundary_audit": None,
        "remarks": [],
        "failures": failures,
        "settings": {"model": "m", "boundary": "joint"},
    }
    return Source(
        "score", record, "mean log-probability -2.5", items.n_all, vocabulary=50_257, items=items
    )


def written(records: list[dict[str, Any]]) -> Written:
    """The page of these records."""
    started, items = time.process_time(), WorstRequests()
    for k, record in enumerate(records):
        items.add(record, f"Question number {k}: what comes next?")
    taken = time.process_time()
    text = render(report(source(items, [])))
    return Written(text, taken - started, time.process_time() - taken)


def time_in_browser(text: str, turns: int) -> tuple[float, int] | None:
    """Least milliseconds until the table is there, and elements; None without a browser."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if path is None:
        return None
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        file.write_text(text, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        ready = []
        for _ in range(turns):
            page = browser.new_page()
            page.goto(f"file://{file}#item=1")
            page.wait_for_selector("html[data-ready]", state="attached")
            ready.append(float(page.evaluate("document.documentElement.dataset.ready")))
            elements = int(page.evaluate("document.querySelectorAll('*').length"))
            page.close()
        browser.close()
    return min(ready), elements
