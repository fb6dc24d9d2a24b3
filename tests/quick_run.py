"""Pytest's hooks for the runs of the tests, which conftest.py takes.

python -m pytest -m core         the tests of `CORE`, on each edit; other files are not collected
python -m pytest                 the quick run: all but the slow tests
python -m pytest --all           every test
python -m pytest --all -m slow   what the quick run leaves out
python -m pytest -m numeric      the quick tests of numbers, for another instruction set
python -m pytest -m lines        the quick tests of what reads configs, tokenizers, Flax classes

@pytest.mark.slow                            the test is not in the quick run
@pytest.mark.slow_after(2)                   only its first two cases are
@pytest.mark.slow_after(1, of_each="kind")   only the first case of each `kind` is

A run of whole folders has one worker process per core, four at most, since each holds JAX and
PyTorch; a run that names files or tests has none.
"""

import collections
import os
from pathlib import Path

import pytest

from tests import releases

LEFT_OUT = pytest.StashKey[int]()
TESTS = Path(__file__).parent

# What `-m core` runs: folders, files, and beginnings of names of tests, below tests/. Together at
# most 90 seconds on two cores. Each part of the package has its quickest tests here.
CORE = (
    "analysis/",
    "cli/test_choose.py",
    "cli/test_report.py",
    "io/test_items.py",
    "io/test_records.py",
    "models/test_parity.py::test_every_token_agrees_with_torch[llama-",
    "plan/",
    "report/test_markdown.py",
    "shell/",
    "systems/choose/",
    "systems/paths/test_system.py",
    "systems/perplexity/test_evaluation.py",
    "systems/score/",
    "systems/selection/test_ranking.py",
    "systems/test_sample_prompts.py",
    "test_cases.py",
    "test_errors.py",
    "test_lm.py",
    "test_scorer.py",
    "test_shell_merge.py",
    "test_walkthrough.py",
    "text/test_chat_template.py",
    "text/test_decoder.py",
    "text/test_encoder.py",
    "text/test_result_assembly.py",
    "text/test_token_bytes.py",
    "text/test_tokenize_requests.py",
    "text/test_tokenizer.py",
    "text/test_tokenizer_files.py",
    "types/",
)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the slow tests too")


def pytest_ignore_collect(collection_path, config):
    """Ignore what has no test of `CORE`, if these alone are requested."""
    if config.option.markexpr == "core" and not has_core(collection_path):
        return True
    return None


def has_core(path):
    """Return True if a file or a folder may have tests of `CORE`."""
    name = path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""
    if path.suffix == ".py":
        return any(name.startswith(entry.split("::")[0]) for entry in CORE)
    folder = "" if name in ("", ".") else f"{name}/"
    return any(entry.startswith(folder) or folder.startswith(entry) for entry in CORE)


def is_core(name):
    """Return True if a test is one of `CORE`.

    Args:
        name: of the test below tests/, as `plan/test_tries.py::test_x[1]`.
    """
    return name.startswith(CORE)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark core tests, what `slow_after` leaves out, what one line has; deselect slow tests.

    A slow test that the command line names (`file.py::test`) runs.
    """
    for item in items:
        if is_core(item.nodeid.removeprefix("tests/")):
            item.add_marker("core")
        for name, reason in releases.ABSENT.items():
            if item.get_closest_marker(name):
                item.add_marker("lines")
                if reason:
                    item.add_marker(pytest.mark.skip(reason=reason))
    for item in slow_cases(items):
        item.add_marker("slow")
    config.stash[LEFT_OUT] = 0
    if not config.option.all and not any("::" in word for word in config.args):
        left_out = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
        config.stash[LEFT_OUT] = len(left_out)
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Workers of `-n auto`: starting them takes longer than most single files."""
    if any(word.split("::")[0].endswith(".py") for word in config.args):
        return 0
    return min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)


def pytest_sessionfinish(session):
    """A worker tells the number of tests that it left out; each worker collects all tests."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter, config):
    n = config.stash.get(LEFT_OUT, 0)
    terminalreporter.write_line(
        f"{n} slow tests left out: `python -m pytest --all` runs every test, and "
        "`python -m pytest --all -m slow` runs these alone"
        if n
        else "no slow test left out"
    )


def slow_cases(items):
    """Yield the cases that come after those which `slow_after(n, of_each)` keeps quick."""
    n_seen = collections.Counter()
    for item in items:
        for mark in item.iter_markers("slow_after"):
            n_quick, parameter = _limit(*mark.args, **mark.kwargs)
            value = parameter and str(item.callspec.params[parameter])
            n_seen[item.nodeid.split("[")[0], value] += 1
            if n_seen[item.nodeid.split("[")[0], value] > n_quick:
                yield item


def _limit(n, of_each=None):
    """Arguments of `slow_after`."""
    return n, of_each
