"""Which tests belong to which run, as `runs.toml` says: pytest's hooks, which conftest.py takes.

python -m pytest                 the quick run: all but the slow tests
python -m pytest --all           every test
python -m pytest --all -m slow   what the quick run leaves out
python -m pytest -m numeric      the quick tests of numbers, for another instruction set
python -m pytest -m lines        the quick tests that depend on the line of transformers

A run of whole folders has one worker process per core, four at most, since each holds JAX and
PyTorch; a run that names files or tests has none.
"""

import collections
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
LEFT_OUT = pytest.StashKey[int]()
RUNS_OF_FILES = ("numeric", "lines")  # lists of files, and of folders with a slash at their end


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the slow tests too")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the tests that `runs.toml` names, and deselect the slow ones.

    A test that the command line names (`file.py::test`) runs in any case.
    """
    runs = tomllib.loads((TESTS / "runs.toml").read_text(encoding="utf-8"))
    by_test = collections.defaultdict(list)
    for item in items:
        name = item.path.relative_to(TESTS).as_posix()
        by_test[name, getattr(item, "originalname", item.name)].append(item)
        for run in RUNS_OF_FILES:
            if any(
                name == one or (one.endswith("/") and name.startswith(one)) for one in runs[run]
            ):
                item.add_marker(run)
    named = any("::" in word for word in config.args)
    for file, test, cases in entries(runs, by_test, complete=not named):
        for case in slow(cases, runs["slow"][file][test]):
            case.add_marker("slow")
    config.stash[LEFT_OUT] = 0
    if not config.option.all and not named:
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


def entries(runs: dict[str, Any], by_test: dict[tuple[str, str], list], *, complete: bool):
    """(file, test, its collected cases) of each slow test; "*" is every test of the file.

    Args:
        complete: whether each collected file was collected with all of its tests.

    Raises:
        pytest.UsageError: `runs.toml` names a file or a test that does not exist.
    """
    for file in [*(one for run in RUNS_OF_FILES for one in runs[run]), *runs["slow"]]:
        there = TESTS / file
        if not (there.is_dir() if file.endswith("/") else there.is_file()):
            raise pytest.UsageError(f"tests/runs.toml: tests/{file} does not exist")
    collected = {file for file, _ in by_test}
    for file, tests in runs["slow"].items():
        for test in tests:
            if test == "*":
                cases = [one for key, own in by_test.items() if key[0] == file for one in own]
            else:
                cases = by_test.get((file, test), [])
            if complete and file in collected and not cases:
                raise pytest.UsageError(f"tests/runs.toml: tests/{file} has no {test}")
            yield file, test, cases


def slow(cases: list, quick: int | dict[str, Any]) -> list:
    """All cases but the first, `quick` of them; or `{ quick = 1, of_each = "parameter" }`."""
    if isinstance(quick, int):
        return cases[quick:]
    n_seen, out = collections.Counter(), []
    for case in cases:
        value = str(case.callspec.params[quick["of_each"]])
        n_seen[value] += 1
        if n_seen[value] > quick["quick"]:
            out.append(case)
    return out
