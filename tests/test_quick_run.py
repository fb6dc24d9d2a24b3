"""Which cases of a slow test stay in the quick run, and entries of `runs.toml` that are wrong."""

from types import SimpleNamespace

import pytest

from tests.quick_run import entries, slow

FILE = "test_quick_run.py"


def cases(*kinds):
    return [SimpleNamespace(callspec=SimpleNamespace(params={"kind": one})) for one in kinds]


def test_the_first_cases_stay():
    a, b, c = cases("gpt2", "gpt2", "llama")
    assert slow([a, b, c], 0) == [a, b, c]
    assert slow([a, b, c], 2) == [c]
    assert slow([a, b, c], 5) == []
    assert slow([a, b, c], {"quick": 1, "of_each": "kind"}) == [b]


def test_an_entry_is_a_test_or_a_whole_file():
    by_test = {(FILE, "test_a"): [1, 2], (FILE, "test_b"): [3], ("test_cli.py", "test_a"): [4]}
    runs = {
        "numeric": [FILE],
        "lines": ["text/"],
        "slow": {FILE: {"test_a": 0, "*": 1}, "test_labels.py": {"*": 0}},
    }
    assert list(entries(runs, by_test, complete=True)) == [
        (FILE, "test_a", [1, 2]),
        (FILE, "*", [1, 2, 3]),
        ("test_labels.py", "*", []),  # this run has not collected it
    ]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"numeric": ["test_nothing.py"]}, r"tests/test_nothing\.py does not exist"),
        ({"lines": ["nothing/"]}, "tests/nothing/ does not exist"),
        ({"lines": ["text"]}, "tests/text does not exist"),
        ({"slow": {"no.py": {"*": 0}}}, r"tests/no\.py does not exist"),
        ({"slow": {FILE: {"test_gone": 0}}}, f"tests/{FILE} has no test_gone"),
    ],
)
def test_an_entry_that_matches_nothing(runs, message):
    runs = {"numeric": [], "lines": [], "slow": {}} | runs
    by_test = {(FILE, "test_here"): [1]}
    with pytest.raises(pytest.UsageError, match=message):
        list(entries(runs, by_test, complete=True))
    if FILE in runs["slow"]:  # one test of the file was asked for by its name
        assert list(entries(runs, by_test, complete=False)) == [(FILE, "test_gone", [])]
