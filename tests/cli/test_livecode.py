"""`livecode-select` and `livecode-parse` as a user runs them."""

import json
import shutil

import pytest

from tests.cli.conftest import strict
from tests.conftest import CASES

WANT = json.loads((CASES / "expected/selection.json").read_text(encoding="utf-8"))
CODE = "```python\nprint({})\n```"


@pytest.fixture
def write(tmp_path):
    def make(value):
        path = tmp_path / "in.json"
        path.write_text(json.dumps(value), encoding="utf-8")
        return path

    return make


def result(path):
    return strict(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("command", "words", "key"),
    [
        ("livecode-select", ("--best-N", 4), "livecode select 4"),
        ("livecode-parse", (), "livecode parse"),
    ],
)
def test_the_shared_cases(run, tmp_path, command, words, key):
    path = shutil.copy(CASES / "livecode/samples.json", tmp_path)
    out = tmp_path / "out.json"
    ran = run(command, "--input_file", path, "--output_file", out, *words)
    assert (ran.code, ran.err) == (0, "")
    n = sum(one["code_list"] == [""] for one in WANT[key])
    assert f"result   {4 - n} of 4 items have code, {n} have none\n" in ran.out
    assert result(out) == WANT[key]


def test_names_beside_the_input(run, write):
    path = write([{"question_id": "q", "output": [CODE.format(1)], "confidence_list": [1]}])
    for command in ("livecode-select", "livecode-parse"):
        assert run(command, "--input-file", path, "--quiet").code == 0
    names = ["in-livecode-16.json", "in-livecode.json"]
    names += [f"{name}.run.json" for name in names]
    names += [f"in-livecode-16_report.{form}" for form in ("md", "json", "html")]
    assert sorted(one.name for one in path.parent.iterdir()) == sorted([*names, "in.json"])


def test_the_most_certain_of_the_first_n(run, write):
    outputs = [CODE.format(k) for k in range(4)]
    path = write(
        [
            {"question_id": "a", "output": outputs, "confidence_list": [1, 3, 3, 9]},
            {"question_id": "b", "output": outputs, "confidence_list": [None, -1, -2, 9]},
            {"question_id": "c", "output": ["x", *outputs], "confidence_list": [5, 1, 1, 1, 1]},
        ]
    )
    code, _, err = run("livecode-select", "--input-file", path, "--best-N", 3)
    assert code == 0
    assert err == "note: item 2 (question_id b): confidence 1 is not a number, so it ranks last\n"
    got = [one["code_list"] for one in result(path.parent / "in-livecode-3.json")]
    assert got == [["print(1)"], ["print(1)"], [""]]


def test_items_that_go_wrong(run, write):
    """They stay in the file with no code, since the grader wants every problem."""
    items = [
        {"question_id": "no output"},
        {"question_id": "empty", "output": [], "confidence_list": []},
        {"question_id": "null", "output": [None], "confidence_list": [1]},
        {"question_id": "short", "output": ["a", "b"], "confidence_list": [1]},
        {"output": [CODE.format(1)], "confidence_list": [1]},
        {"question_id": 7, "output": [CODE.format(2)], "confidence_list": [1]},
    ]
    path = write(items)
    code, out, err = run("livecode-select", "--input-file", path)
    assert code == 1
    assert "done     6 items, 4 failed\n" in out
    assert "result   2 of 6 items have code, 0 have none\n" in out
    for name in ("no output", "empty", "null", "short"):
        assert f"(question_id {name}): " in err
    assert "note: item 5: no field \"question_id\", written as 'unknown_id'" in err
    got = result(path.parent / "in-livecode-16.json")
    assert [one["question_id"] for one in got] == [
        "no output", "empty", "null", "short", "unknown_id", 7,
    ]  # fmt: skip
    assert [one["code_list"] for one in got] == [[""]] * 4 + [["print(1)"], ["print(2)"]]
    assert ["error" in one for one in got] == [True] * 4 + [False] * 2
    code, out, err = run("livecode-parse", "--input-file", path)
    assert code == 1
    assert "done     6 items, 3 failed\n" in out
    assert "short" not in err
