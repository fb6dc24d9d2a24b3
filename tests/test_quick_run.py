"""Which tests `-m core` runs, and which cases of a slow test stay in the quick run."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import quick_run
from tests.conftest import ROOT
from tests.quick_run import slow_cases


def cases(mark, kinds):
    return [
        SimpleNamespace(
            nodeid=f"tests/test_file.py::test_name[{kind}-{i}]",
            callspec=SimpleNamespace(params={"kind": kind}),
            iter_markers=lambda name: [mark] if name == mark.name else [],
        )
        for i, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("decorator", "slow"),
    [
        (pytest.mark.slow_after(0), [0, 1, 2, 3]),
        (pytest.mark.slow_after(2), [2, 3]),
        (pytest.mark.slow_after(5), []),
        (pytest.mark.slow_after(1, of_each="kind"), [1, 3]),
        (pytest.mark.slow, []),
    ],
)
def test_first_cases_stay_quick(decorator, slow):
    items = cases(decorator.mark, ["gpt2", "gpt2", "llama", "llama"])
    assert list(slow_cases(items)) == [items[i] for i in slow]


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="each"):
        list(slow_cases(cases(pytest.mark.slow_after(1, each="kind").mark, ["gpt2"])))


@pytest.fixture
def core(monkeypatch):
    """A core of a folder, a file and one test."""
    entries = ("plan/", "test_lm.py", "models/test_parity.py::test_agrees[llama-")
    monkeypatch.setattr(quick_run, "CORE", entries)


@pytest.mark.parametrize(
    ("path", "is_collected"),
    [
        ("", True),
        ("plan", True),
        ("plan/test_tries.py", True),
        ("plan/deeper", True),
        ("models", True),
        ("models/test_parity.py", True),
        ("test_lm.py", True),
        ("models/test_load.py", False),
        ("models/config", False),
        ("plans", False),
        ("text", False),
        ("test_scorer.py", False),
    ],
)
def test_core_ignores_files_and_folders_without_its_tests(core, path, is_collected):
    place = quick_run.TESTS / path
    ignored = {
        expression: quick_run.pytest_ignore_collect(
            place, SimpleNamespace(option=SimpleNamespace(markexpr=expression))
        )
        for expression in ("core", "", "numeric", "core or numeric")
    }
    others = dict.fromkeys(("", "numeric", "core or numeric"))
    assert ignored == {"core": None if is_collected else True, **others}


@pytest.mark.parametrize(
    ("name", "is_core"),
    [
        ("plan/test_tries.py::test_x[1]", True),
        ("test_lm.py::test_x", True),
        ("models/test_parity.py::test_agrees[llama-{}]", True),
        ("models/test_parity.py::test_agrees[llama4-{}]", False),
        ("test_lm_eval.py::test_x", False),
    ],
)
def test_core_marks_the_tests_whose_names_begin_as_an_entry(core, name, is_core):
    assert quick_run.is_core(name) == is_core


def test_each_entry_of_the_core_has_tests_and_other_files_are_not_imported():
    words = ["-m", "pytest", "-m", "core", "--collect-only", "-q", "-n", "0"]
    ran = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stdout[-2000:]
    names = [
        line.removeprefix("tests/") for line in ran.stdout.splitlines() if line.startswith("tests/")
    ]
    assert all(quick_run.is_core(name) for name in names)
    empty = [entry for entry in quick_run.CORE if not any(map(_begins(entry), names))]
    assert empty == []
    assert 1000 <= len(names) <= 2000
    # The others are slow tests and those of other families in the same files.
    [n_collected] = re.findall(r"\d+/(\d+) tests collected", ran.stdout)
    assert int(n_collected) < 2 * len(names)


def _begins(entry):
    return lambda name: name.startswith(entry)
