"""`--gold`: how often the chosen response is right, on stdout, in a report, and in each item."""

import json

import pytest

from tests.cli.conftest import strict
from tests.hostile.inputs import TEXTS


def answer(value):
    return json.dumps({"answer": value})


ITEMS = [
    {"id": k, "output": [*map(answer, ("1", "2", "2"))], "confidence_list": [3.0, 2.0, 1.0], "g": g}
    for k, g in enumerate(("2", "1", ["1", "2"]))
]
CODE = {"question_id": "q", "output": ["```python\nx\n```", "no"], "confidence_list": [1, 2]}
REPLIES = {"output": ["Response 1"], "responses": [answer("1"), answer("2")]}


@pytest.fixture
def write(tmp_path):
    def make(items):
        path = tmp_path / "in.json"
        path.write_text(json.dumps(items), encoding="utf-8")
        return path

    return make


def test_vote(run, write, tmp_path):
    out = tmp_path / "v.json"
    ran = run("vote", "--input", write([*ITEMS, {**ITEMS[0], "g": None}]), "--output", out,
              "--power", 1, "--gold", "g")  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    assert [" ".join(line.split()) for line in ran.out.splitlines()] == [
        "N = 64: the 4 items have 3 responses each; all of them are considered",
        "3 of 4 items are read by the form of their answers: 9 json",
        "share of right choices, 3 items, with 95% intervals",
        "N first sample majority vote Borda vote oracle",
        "1 66.7 % (21 to 94) 66.7 % (21 to 94) 66.7 % (21 to 94) 66.7 % (21 to 94)",
        "2 66.7 % (21 to 94) 66.7 % (21 to 94) 66.7 % (21 to 94) 100.0 % (44 to 100)",
        "3 66.7 % (21 to 94) 66.7 % (21 to 94) 66.7 % (21 to 94) 100.0 % (44 to 100)",
        "N = 3",
        *[f"{name} 66.7 % (21 to 94)" for name in (
            "power 0", "power 0.3", "power 0.5", "power 0.7", "power 1", "power 1.5", "power 2")],
        "done 4 items, 0 failed",
        "result 4 of 4 items decided by votes, 0 by fallback; right: 66.7 % (21 to 94) of 3 "
        "items, 66.7 % (21 to 94) of the first samples",
        f"files {out}",
        str(tmp_path / "v_report.md"),
        str(tmp_path / "v_report.json"),
        str(tmp_path / "v_report.html"),
        f"{out}.run.json",
    ]  # fmt: skip
    items, report = (strict(p.read_text("utf-8")) for p in (out, tmp_path / "v_report.json"))
    assert [one["right"] for one in items] == [False, True, True, None]
    assert report["without_gold"] == ["item 4 (id 0)"]
    assert report["summary"]["accuracy"]["Borda vote"]["n"] == 3
    assert report["settings"]["gold"] == "g"
    assert report["summary"]["n_without_gold"] == 1
    page = (tmp_path / "v_report.md").read_text("utf-8")
    assert page.startswith("# Choices between sampled responses: Borda vote\n\n4 of 4 items")
    assert "| Borda vote, N = 3 | 0.666667 |" in page
    assert "1 items have no gold and are in no share: item 4 (id 0)." in page
    assert "## By power of the vote" in page
    assert "| item 1 (id 0) |" in page.partition("## Wrong choices")[2]


@pytest.mark.parametrize(
    ("command", "items"),
    [
        ("select", ITEMS),
        ("usc-select", [{**REPLIES, "g": "2"}, {**REPLIES, "g": "1"}]),
        ("livecode-select", [{**CODE, "g": [True, False]}, {**CODE, "g": [True, True]}]),
    ],
)
def test_each_command(run, write, tmp_path, command, items):
    out = tmp_path / "o.json"
    words = (command, "--input", write(items), "--output", out)
    assert run(*words).code == 0
    plain = strict(out.read_text("utf-8"))
    assert "No item was graded" in (tmp_path / "o_report.md").read_text("utf-8")
    ran = run(*words, "--gold", "g")
    assert (ran.code, ran.err) == (0, "")
    graded = strict(out.read_text("utf-8"))
    considered = [one.pop("considered") for one in graded]
    has_answers = command != "livecode-select"
    more = {"forms", "n_unreadable"} if has_answers else set()
    assert all({"right", "taken", *more} == one.keys() for one in considered)
    rights = [one.pop("right") for one in graded]
    assert [one.pop("answer_form", None) for one in graded] == [
        "json" if has_answers else None for _ in graded
    ]
    assert graded == plain
    assert sorted(rights) == [False] * (len(rights) - sum(rights)) + [True] * sum(rights)
    assert 0 < sum(rights) < len(rights)
    share = f"{100 * sum(rights) / len(rights):.1f} %"
    assert f"; right: {share} (" in ran.out
    assert (tmp_path / "o_report.json").is_file()


def test_gold_that_cannot_be_used_fails_alone(run, write, tmp_path):
    items = [*ITEMS, {**ITEMS[0], "id": "bad", "g": [True]}]
    ran = run("select", "--input", write(items), "--output", tmp_path / "o.json", "--gold", "g")
    assert ran.code == 1
    assert ran.err == (
        'failed: item 4 (id bad): field "g", the gold, has 1 verdicts for 3 responses, expected '
        "one for each\n1 failed, the others are kept\n"
    )
    last = strict((tmp_path / "o.json").read_text("utf-8"))[-1]
    assert (last["right"], last["output"]) == (None, [answer("1")])
    assert "verdicts for 3 responses" in last["error"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--gold", "h"), 'in.json: no item has gold in field "h"; the first item has the fields'),
        (("--gold", ""), "argument --gold: '', expected the name of a field"),
        (("--gold", "g", "--n-bootstrap", "0"), "0, expected a whole number of at least 1"),
        (("--gold", "g", "--output", "in.json"), "in.json is an input of this run"),
    ],
)
def test_usage_that_cannot_work(run, write, tmp_path, monkeypatch, words, part):
    write(ITEMS)
    monkeypatch.chdir(tmp_path)
    code, out, err = run("vote", "--input", "in.json", "--output", "o.json", *words)
    assert (code, out) == (2, "")
    assert part in err
    assert [one.name for one in tmp_path.iterdir()] == ["in.json"]


def test_an_input_that_is_the_report_of_the_output(run, write, tmp_path, monkeypatch):
    write(ITEMS).rename(tmp_path / "o_report.json")
    monkeypatch.chdir(tmp_path)
    words = "--input", "o_report.json", "--output", "o.json", "--gold", "g"
    code, out, err = run("vote", *words)
    assert (code, out) == (2, "")
    assert "o_report.json is an input of this run" in err
    assert [one.name for one in tmp_path.iterdir()] == ["o_report.json"]


def test_hostile_texts_in_a_report(run, write, tmp_path):
    items = [
        {"id": text, "output": [answer(text), text], "confidence_list": [2, 1], "g": [text, "x"]}
        for text in TEXTS
    ]
    items += [{**one, "g": "no"} for one in items]
    out = tmp_path / "o.json"
    ran = run("vote", "--input", write(items), "--output", out, "--gold", "g", "--quiet")
    assert (ran.code, "Traceback" in ran.err) == (1, False)  # blank texts are no gold
    graded = strict(out.read_text("utf-8"))
    for text, one in zip(TEXTS, graded, strict=False):
        assert one["right"] is (True if text.strip() else None), text
    page = (tmp_path / "o_report.md").read_text("utf-8")
    assert "<script>" not in page
    assert not {"\u202e", "\x1b", "\0"} & set(page)
    strict((tmp_path / "o_report.json").read_text("utf-8"))


def test_a_run_without_readable_answers_has_no_share_and_exit_code_1(run, write, tmp_path):
    out = tmp_path / "o.json"
    item = {"output": ["no", "I pass"], "confidence_list": [2, 1], "g": "19"}
    ran = run("vote", "--input", write([item, item]), "--output", out, "--gold", "g")
    assert ran.code == 1
    assert "no response has a readable answer. Accepted forms: <answer>" in ran.err
    assert "%" not in ran.out
    assert [one["right"] for one in strict(out.read_text("utf-8"))] == [None, None]
    report = strict((tmp_path / "o_report.json").read_text("utf-8"))
    assert report["summary"]["accuracy"]["oracle"]["mean"] is None
    assert "has a readable answer" in (tmp_path / "o_report.html").read_text("utf-8")
    # the answer rule that reads them, by name
    item["output"] = ["It is 19", "\\boxed{18}"]
    words = ("vote", "--input", write([item, item]), "--output", out, "--gold", "g")
    ran = run(*words)
    assert (ran.code, "oracle" in ran.out) == (0, True)
    assert "2 of 2 items are read by the form of their answers: 2 boxed, 2 number" in ran.out
    path, default = out.with_name("in.json"), "in-confidence-2-boxed.json"
    assert run("select", "--input", path, "--answer-rule", "boxed").code == 0
    assert (tmp_path / default).is_file()
    ran = run(*words, "--answer-rule", "json")
    assert (ran.code, "no share" in ran.out) == (1, True)
