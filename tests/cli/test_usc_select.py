"""`usc-select` as a user runs it."""

import json
import shutil

import pytest

from tests.cli.conftest import strict
from tests.conftest import CASES

WANT = json.loads((CASES / "expected/selection.json").read_text(encoding="utf-8"))
GIVEN = CASES / "usc/selected.json"


def result(path):
    return strict(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["open", "close"])
def test_the_shared_cases(run, tmp_path, kind):
    path = shutil.copy(GIVEN, tmp_path)
    ran = run("usc-select", "--input_file", path, "--dataset_type", kind)
    assert ran.code == 0
    out = tmp_path / {"open": "selected-usc.json", "close": "selected-usc-close.json"}[kind]
    assert ran.out == (
        "fallback, 1 of 6 items: the reply names no response\n"
        "fallback, 1 of 6 items: the reply names a response that does not exist\n"
        "done     6 items, 0 failed\n"
        "result   4 of 6 items decided by the reply, 2 by fallback\n"
        f"files    {out}\n"
        + "".join(f"         {out.with_suffix('')}_report.{k}\n" for k in ("md", "json", "html"))
        + f"         {out}.run.json\n"
    )
    assert "note: item 5 (id 4): the reply names response 99 of 8" in ran.err
    got = result(out)
    assert [one.pop("fallback", None) for one in got] == [None] * 4 + ["out_of_range", "none_named"]
    assert [len(one.pop("choice_notes", [])) for one in got] == [0, 0, 0, 0, 1, 1]
    assert got == WANT[f"usc {kind}"]
    given = json.loads(GIVEN.read_text(encoding="utf-8"))
    assert [list(one) for one in got] == [list(one) for one in given]


def test_open_is_the_default(run, tmp_path):
    path = shutil.copy(GIVEN, tmp_path)
    out = tmp_path / "out.json"
    ran = run("usc-select", "--input-file", path, "--output-file", out, "--quiet")
    assert (ran.code, ran.err) == (0, "")
    added = ("fallback", "choice_notes")
    got = [{k: v for k, v in one.items() if k not in added} for one in result(out)]
    assert got == WANT["usc open"]
    assert run("usc-select", "--input-file", path, "--dataset-type", "other").code == 2


def test_items_that_go_wrong(run, tmp_path):
    items = [
        {"id": 0, "output": ["Response 1"], "responses": ["no", "none"]},
        {"id": 1, "output": ["Response 1"]},
        {"id": 2, "output": None, "responses": ["x"]},
        {"id": 3, "output": ["Response 0"], "responses": [None]},
        {"id": 4, "output": ["Response 0"], "responses": ["{" * 200_000]},
    ]
    path = tmp_path / "in.json"
    path.write_text(json.dumps(items), encoding="utf-8")
    code, out, err = run("usc-select", "--input-file", path, "--dataset-type", "close")
    assert code == 1
    assert out.startswith("2 items have no extractable answer in any response\n")
    assert "result   2 of 5 items decided by the reply, 0 by fallback" in out
    assert all(f"failed: item {k + 1} (id {k}): " in err for k in (1, 2, 3))
    got = result(tmp_path / "in-usc-close.json")
    assert [one["output"] for one in got] == [["none"], [], [], [], ["{" * 200_000]]


def test_an_answer_that_the_reply_does_not_name_is_a_fallback(run, tmp_path):
    """`close` takes the first response with an answer, and says that the reply did not."""
    items = [
        {"output": ["Response 0"], "responses": ["no", '{"answer": 1}'], "fallback": "stale"},
        {"output": ["Response 1"], "responses": ["no", '{"answer": 1}'], "fallback": "stale"},
        {"output": ["Response 9"], "responses": ["no", '{"answer": 1}']},
    ]
    path = tmp_path / "in.json"
    path.write_text(json.dumps(items), encoding="utf-8")
    ran = run("usc-select", "--input", path, "--dataset-type", "close")
    assert ran.code == 0
    reported = "the response that the reply names lacks an extractable answer"
    assert f"fallback, 1 of 3 items: {reported}\n" in ran.out
    assert "1 of 3 items decided by the reply, 2 by fallback" in ran.out
    assert "note: item 1: response 0, which the reply names, lacks an extractable answer" in ran.err
    got = result(tmp_path / "in-usc-close.json")
    assert [one.get("fallback") for one in got] == ["no_answer", None, "out_of_range"]
    assert [one["output"] for one in got] == [['{"answer": 1}']] * 3


def test_replies_of_which_none_decides(run, tmp_path):
    path = tmp_path / "in.json"
    path.write_text(json.dumps([{"output": ["?"], "responses": ["a"]}]), encoding="utf-8")
    ran = run("usc-select", "--input", path, "--output", tmp_path / "out.json")
    assert ran.code == 0
    assert "0 of 1 item decided by the reply, 1 by fallback" in ran.out
