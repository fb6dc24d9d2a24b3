"""`paths`: the documented JSON and the averages."""

import itertools
import json
import re

import pytest

from jaxscore.systems import paths as path_system
from tests.cli.conftest import QWEN, strict, with_input
from tests.conftest import CASES

LINES = (
    {"id": "q1", "question": "Where was Ada born?", "paths": [["Ada", "born in", "Oslo"], []]},
    {"question": "Who ran?", "paths": [["the cat", "ran"], ["a", "b", "the dog"]]},
)
PATH_FIELDS = [
    "path", "answer", "baseline_prob", "retrieved_prob", "absolute_improvement",
    "relative_improvement", "prompt_results",
]  # fmt: skip


def flags(folder, *more):
    return (
        "paths", "--model", QWEN, "--input", folder / "in.jsonl", "--output", folder / "out.json",
        "--batch-tokens", 1024, *more,
    )  # fmt: skip


def result(folder):
    return strict((folder / "out.json").read_text(encoding="utf-8"))


def test_the_documented_output(run, place):
    folder = place(*LINES)
    code, out, err = run(*flags(folder, "--quiet"))
    assert (code, err) == (0, "")
    got = result(folder)
    assert [list(one) for one in got] == [["id", "question", "path_evaluations"]] * 2
    assert [(one["id"], one["question"]) for one in got] == [
        ("q1", "Where was Ada born?"),
        (2, "Who ran?"),
    ]
    every = [e for one in got for e in one["path_evaluations"]]
    assert [e["answer"] for e in every] == ["Oslo", "ran", "the dog"]
    for e in every:
        assert list(e) == PATH_FIELDS
        assert [p["system_prompt"] for p in e["prompt_results"]] == [
            path_system.DEFAULT_SYSTEM_PROMPT
        ]
        assert 0 < e["baseline_prob"] < 1
        assert e["absolute_improvement"] == e["retrieved_prob"] - e["baseline_prob"]
        assert e["relative_improvement"] == pytest.approx(
            e["absolute_improvement"] / e["baseline_prob"]
        )
    means = {
        name: sum(e[name] for e in every) / 3
        for name in PATH_FIELDS
        if name.endswith("improvement")
    }
    [done] = [line for line in out.splitlines() if line.startswith("done")]
    assert done.startswith("done     2 items, 0 failed in ")
    assert f"Average absolute improvement: {means['absolute_improvement']:.6g}" in out
    assert f"Average relative improvement: {means['relative_improvement']:.6g} (over 3" in out


def test_system_prompts_of_the_command_line_and_the_file(run, place):
    folder = place(*LINES)
    (folder / "s.txt").write_text("Third, snake_case.\n\n", encoding="utf-8")
    words = ("--system_prompts", "One.", "Two.", "--system_prompts_file", folder / "s.txt")
    assert run(*flags(folder, *words, "--max_samples=1")).code == 0
    [one] = result(folder)
    [path] = one["path_evaluations"]
    prompts = path["prompt_results"]
    assert [p["system_prompt"] for p in prompts] == ["One.", "Two.", "Third, snake_case."]
    for name in ("baseline_prob", "retrieved_prob"):
        assert path[name] == pytest.approx(sum(p[name] for p in prompts) / 3, rel=1e-12)


def test_boundaries(run, place):
    folder = place(*LINES)
    found = []
    for words in ((), *(("--boundary", name) for name in ("separate", "joint", "upstream"))):
        code, out, _ = run(*flags(folder, *words))
        assert code == 0
        assert f"boundary {words[-1] if words else 'separate'}: of 6 requests" in out
        found.append(result(folder)[0]["path_evaluations"][0]["baseline_prob"])
    # The document's own is the default; nothing straddles here, so all score the same tokens.
    assert found[0] == found[1]
    assert found == pytest.approx([found[0]] * 4, rel=1e-4)


def test_a_path_that_cannot_be_scored(run, place):
    bad = {"id": "bad", "question": " and" * 1100, "paths": [["a", "b"]]}
    empty = {"id": "empty", "question": "?", "paths": [["a", ""]]}
    folder = place(bad, LINES[0], empty)
    code, out, err = run(*flags(folder, "--quiet"))
    assert code == 1
    assert "\ndone     3 items, 2 failures in " in out
    assert ", 1 path\n" in out
    assert err.startswith("failed: bad: a -> b: ")
    assert "failed: empty: a -> : the answer has 0 tokens" in err
    assert "2 failures, the others are kept" in err
    got = result(folder)
    [evaluation] = got[0]["path_evaluations"]
    assert list(evaluation) == [*PATH_FIELDS, "error"]
    assert [evaluation[name] for name in PATH_FIELDS[2:6]] == [None] * 4
    assert evaluation["prompt_results"] == []
    assert "1024 positions" in evaluation["error"]
    assert "error" not in got[1]["path_evaluations"][0]


def test_the_answer_separator_is_a_flag_and_a_setting(run, place):
    folder = place(*LINES)
    code, out, _ = run(*flags(folder, "--quiet", "--answer-separator", " "))
    assert code == 0
    assert "finding" not in out
    report = strict((folder / "out_report.json").read_text(encoding="utf-8"))
    assert report["settings"]["answer_separator"] == " "
    manifest = strict((folder / "out.json.run.json").read_text(encoding="utf-8"))
    assert manifest["flags"]["answer_separator"] == " "
    got = strict((folder / "out.json").read_text(encoding="utf-8"))
    assert got[0]["path_evaluations"][0]["answer"] == "Oslo"
    run(*flags(folder, "--quiet"))
    plain = strict((folder / "out.json").read_text(encoding="utf-8"))
    assert got != plain


def test_a_finding_is_the_first_line(run, place):
    """Every answer of these items is more probable after a space."""
    code, out, _ = run(*flags(place(*LINES), "--quiet"))
    assert code == 0
    assert re.fullmatch(
        r"finding  With a space before the answer the mean improvement is \S+ instead of \S+; see "
        r"--answer-separator \(a sample of 3 paths; the space raises the probability of 6 of 6 "
        r"answers\)",
        out.splitlines()[0],
    )
    assert out.splitlines()[1].startswith("Average baseline probability: ")


def test_no_path_at_all(run, place):
    folder = place({"question": "?", "paths": [[]]})
    code, out, err = run(*flags(folder, "--quiet"))
    assert (code, out) == (2, "")
    reported = "in.jsonl: found no path in 1 item, expected at least one path that is not empty"
    assert reported in err
    assert [one.name for one in folder.iterdir()] == ["in.jsonl"]


def test_no_path_was_scored(run, place):
    folder = place({"question": " and" * 1100, "paths": [["a", "b"], []]})
    code, out, _ = run(*flags(folder, "--quiet"))
    assert (code, out.splitlines()[0]) == (1, "No path was scored")
    assert "result   no path was scored\n" in out


def test_a_baseline_of_zero_is_infinity_in_json(run, place, monkeypatch):
    values = itertools.cycle([0.0, 0.5, 0.25, 0.5, 0.25, 0.25])  # of each scoring of the paths
    monkeypatch.setattr(path_system, "probability", lambda _: next(values))
    folder = place(*LINES)
    code, out, _ = run(*flags(folder, "--quiet"))
    assert code == 0
    text = (folder / "out.json").read_text(encoding="utf-8")
    assert '"relative_improvement": "Infinity"' in text
    relative = [e["relative_improvement"] for one in strict(text) for e in one["path_evaluations"]]
    assert relative == ["Infinity", 1.0, 0.0]
    assert "Average relative improvement: 0.5 (over 2 paths with a baseline above 0)" in out


def test_the_shared_cases_as_a_user_would_run_them(run, tmp_path):
    want = json.loads((CASES / "expected/tiny-qwen2/paths.json").read_text(encoding="utf-8"))
    words = (
        "paths", "--model", QWEN, "--input", CASES / "paths/input.jsonl",
        "--system-prompts-file", CASES / "paths/system_prompts.txt",
        "--output", tmp_path / "out.json", "--quiet",
    )  # fmt: skip
    assert run(*words).code == 0
    got = result(tmp_path)
    assert [one["id"] for one in got] == [one["id"] for one in want]
    for one, other in zip(got, want, strict=True):
        for e, w in zip(one["path_evaluations"], other["path_evaluations"], strict=True):
            assert e["baseline_prob"] == pytest.approx(w["baseline_prob"], rel=1e-4)
            assert e["retrieved_prob"] == pytest.approx(w["retrieved_prob"], rel=1e-4)


def test_the_report_says_what_another_boundary_would_change(run, tmp_path):
    """Also with --quiet: it is a result, as the averages are."""
    given, out = CASES / "paths/input.jsonl", tmp_path / "out.json"
    code, printed, _ = run("paths", "--model", QWEN, "--input", given, "--output", out, "--quiet")
    assert code == 0
    [line] = [line for line in printed.splitlines() if line.startswith("boundary ")]
    n_requests, _, upstream = (int(n) for n in re.findall(r"\d+", line))
    n_paths = sum(len(item["path_evaluations"]) for item in strict(out.read_text(encoding="utf-8")))
    assert n_requests == 2 * n_paths
    assert 0 < upstream < n_requests  # the expected values differ on some answers too


def test_the_report_beside_the_output(run, place):
    bad = {"id": "bad", "question": " and" * 1100, "paths": [["a|b\x1b[31m", "b"]]}
    folder = place(*LINES, bad)
    words = flags(folder, "--quiet", "--seed", 4, "--n-bootstrap", 50)
    code, out, err = run(*words)
    assert code == 1
    endings = (".json", "_report.md", "_report.json", "_report.html", ".json.run.json")
    names = [f"out{ending}" for ending in endings]
    assert "files    " + "\n         ".join(str(folder / name) for name in names) in out
    assert "\x1b" not in err
    page = (folder / "out_report.md").read_text(encoding="utf-8")
    record = strict((folder / "out_report.json").read_text(encoding="utf-8"))
    every = [
        one for item in result(folder) for one in item["path_evaluations"] if "error" not in one
    ]
    for name, column in path_system.COLUMNS.items():
        found = record["summary"][name]
        assert (found["n"], found["mean"]) == (3, pytest.approx(sum(e[column] for e in every) / 3))
        assert found["low"] <= found["mean"] <= found["high"]
        mean, low, high = (f"{found[part]:.6g}" for part in ("mean", "low", "high"))
        assert f"| {mean} | {low} to {high} | 3 paths |" in page
    gains = sorted(one["absolute_improvement"] for one in every)
    shown = re.findall(r"; Gain: (\S+);", page)
    assert [float(gain) for gain in shown] == pytest.approx(gains, rel=1e-3)
    assert [(one["entities"], one["gain"]["n"]) for one in record["by_length"]] == [(2, 1), (3, 2)]
    audit = record["boundary_audit"]
    assert (audit["n_requests"], set(audit["changed"])) == (8, {"joint", "upstream"})
    assert "Boundary `separate` says where answers start. Of 8 answers" in page
    assert record["remarks"] == []
    assert [one["name"] for one in record["failures"]] == ["bad: a|b\\x1b[31m -> b"]
    assert "## Failed: 1 path, in no mean" in page
    settings = record["settings"]
    assert (settings["seed"], settings["n_bootstrap"], settings["boundary"]) == (4, 50, "separate")
    assert settings["system_prompts"] == [path_system.DEFAULT_SYSTEM_PROMPT]
    assert page.index("95% interval") < page.index("## Failed") < page.index("## Paths: least gain")
    assert page.index("## Paths: least gain") < page.index("## Settings and versions")


def test_the_intervals_resample_questions(run, place):
    """Paths of one question depend on each other: they are no independent draws."""
    two = {"id": "two", "question": "Who ran?", "paths": [["a", "the cat"], ["b", "the dog"]]}
    folder = place(two)
    assert run(*flags(folder, "--quiet")).code == 0
    gain = strict((folder / "out_report.json").read_text(encoding="utf-8"))["summary"]["absolute"]
    assert (gain["n"], gain["low"], gain["high"]) == (2, None, None)
    page = (folder / "out_report.md").read_text(encoding="utf-8")
    assert re.search(r"^\| Absolute improvement \| \S+ \| - \| 2 paths \|$", page, re.M)
    place(two, {**LINES[0], "paths": [["Ada", "Oslo"], ["Ada", "born in", "Oslo"]]})
    assert run(*flags(folder, "--quiet")).code == 0
    data = strict((folder / "out_report.json").read_text(encoding="utf-8"))
    of = {}
    for item in result(folder):
        of[item["question"]] = [one["absolute_improvement"] for one in item["path_evaluations"]]
    gain, means = data["summary"]["absolute"], sorted(sum(gains) / 2 for gains in of.values())
    # A quarter of the draws holds one question alone, so these are the ends of the interval;
    # single paths lie outside them.
    assert [gain["low"], gain["high"]] == pytest.approx(means)
    assert min(min(gains) for gains in of.values()) < gain["low"]
    assert "resample questions" in (folder / "out_report.md").read_text(encoding="utf-8")


def test_reports_of_two_outputs_lie_apart(run, place):
    folder = place(LINES[0])
    assert run(*flags(folder, "--quiet")).code == 0
    before = (folder / "out_report.json").read_bytes()
    assert run(*flags(folder, "--quiet", "--seed", 3, "--output", folder / "out")).code == 0
    assert (folder / "out_report.json").read_bytes() == before
    assert (folder / "out.report.md").is_file()
    record = strict((folder / "out.report.json").read_text(encoding="utf-8"))
    assert record["settings"]["seed"] == 3


def test_a_report_on_nothing_has_no_empty_tables(run, place):
    folder = place({"question": " and" * 1100, "paths": [["a", "b"]]})
    assert run(*flags(folder, "--quiet")).code == 1
    page = (folder / "out_report.md").read_text(encoding="utf-8")
    assert "| Probability with the path | - | - | 0 paths |" in page
    assert re.findall("^## .*$", page, re.M) == [
        "## Failed: 1 path, in no mean",
        "## Settings and versions",
    ]


def test_a_report_is_not_written_over_an_input(run, place):
    folder = place(*LINES)
    given = (folder / "in.jsonl").rename(folder / "out_report.json")
    before = given.read_bytes()
    code, out, err = run(*with_input(flags(folder), given))
    assert (code, out) == (2, "")
    assert "out_report.json is an input of this run" in err
    assert [one.name for one in folder.iterdir()] == ["out_report.json"]
    assert given.read_bytes() == before
