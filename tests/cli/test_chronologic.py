"""`chronologic`: the expected values, the reports and what goes wrong."""

import datetime
import json
import re
from pathlib import Path

import numpy as np
import pytest

from jaxscore.cli import chronologic as command
from jaxscore.cli import model_flags
from jaxscore.engine import generation as generator_module
from jaxscore.systems.chronologic import multiple_choice
from jaxscore.types.results import Generated
from tests.cli.conftest import QWEN, strict
from tests.conftest import CASES, MODELS

QUESTIONS = CASES / "chronologic/questions.jsonl"
NOTHING = {"n": 0, "mean": None, "low": None, "high": None}
GOOD = {
    "metadata_frame": "A book of 1887.",
    "main_question": "Which city?",
    "question_category": "cloze",
    "answer_strings": ["Oslo", "Vael", "Osk"],
    "answer_types": ["ground_truth", "manual", "negation"],
    "answer_probabilities": [1.0, 0.0, 0.0],
}


@pytest.fixture
def models(monkeypatch, scorers):
    """The command takes the session's scorers instead of loading a model for each run."""
    monkeypatch.setattr(
        model_flags, "load_scorer", lambda args, model, *_, **__: scorers(Path(model).name)
    )


@pytest.fixture
def writes(monkeypatch):
    """`writes(text)`: every response of the model is this text."""

    def set(text):
        class Fake:
            def __init__(self, scorer):
                pass

            def generate(self, requests):
                nothing = np.zeros(0, np.int32)
                return [Generated(r.id, text, nothing, "length") for r in requests]

        monkeypatch.setattr(generator_module, "Generator", Fake)

    return set


def found(folder, kind=""):
    """The one report and the one JSON file of a kind."""
    [report] = folder.glob(f"eval_report_{kind}*.md")
    [results] = folder.glob(f"eval_results_{kind}*.json")
    return report.read_text(encoding="utf-8"), strict(results.read_text(encoding="utf-8"))


def expected(name):
    return strict((CASES / "expected" / name / "chronologic.json").read_text(encoding="utf-8"))


@pytest.mark.slow_after(1, of_each="boundary")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("boundary", ["joint", "upstream"])
def test_the_shared_cases(run, models, tmp_path, name, boundary):
    words = ("--full-eval", "--boundary", boundary, "--output-dir", tmp_path, "--quiet")
    code, out, err = run("chronologic", CASES / "models" / name, QUESTIONS, *words)
    assert (code, err) == (0, "")
    report, results = found(tmp_path, "full_")
    want = expected(name)
    overall = want["summary"][boundary]["overall"]
    assert results["summary"]["overall"]["brier"]["mean"] == pytest.approx(overall, abs=1e-4)
    shown = re.search(r"Overall\W+([0-9]+\.[0-9]+)", report)
    assert float(shown.group(1)) == pytest.approx(overall, abs=1e-4)
    for category, brier in want["summary"][boundary]["by_category"].items():
        got = results["summary"]["by_category"][category]["brier"]
        assert got["mean"] == pytest.approx(brier, abs=1e-4)
        assert got["low"] <= got["mean"] <= got["high"]
    for result, question in zip(results["questions"], want["questions"], strict=True):
        assert result["scores"] == pytest.approx(question[boundary], abs=1e-4)
        assert result["probabilities"] == pytest.approx(question[f"{boundary}_probs"], abs=1e-4)
        assert result["brier"] == pytest.approx(question[f"{boundary}_brier"], abs=1e-4)
        assert result["n_tokens"] == question[f"n_{boundary}"]
    mean = results["summary"]["overall"]["brier"]["mean"]
    assert re.search(
        rf"^result   overall Brier {mean:.5f}, 95% interval 0\.\d+ to 0\.\d+, 9 questions "
        r"\(equal probabilities would get 0\.\d+\)$",
        out,
        re.M,
    )
    files = out[out.index("files ") :].split()[1:]
    assert sorted(files) == sorted(str(one) for one in tmp_path.iterdir())


def test_the_report_has_what_matters_first_and_what_made_it_last(run, models, tmp_path):
    words = ("--full-eval", "--seed", 5, "--output-dir", tmp_path, "--quiet")
    assert run("chronologic", QWEN, QUESTIONS, *words).code == 0
    report, results = found(tmp_path, "full_")
    order = ["| Brier |", "says where answers start", "| Overall |", "| topic\\_sentence |",
             "## Calibration", "## Questions: worst first", "## Settings and versions"]  # fmt: skip
    places = [report.index(part) for part in order]
    assert places == sorted(places)
    briers = [float(value) for value in re.findall(r"; Brier: (0\.\d+);", report, re.M)]
    asked = [one["question"] for one in sorted(results["questions"], key=lambda q: -q["brier"])]
    assert re.findall(r"^### (.*)$", report, re.M) == asked
    assert briers == sorted(briers, reverse=True)
    assert len(briers) == 9
    settings = results["settings"]
    assert settings["model"] == QWEN
    assert (settings["seed"], settings["boundary"], settings["dtype"]) == (5, "joint", "float32")
    for name in ("model", "dtype", "device", "boundary", "seed", "date", "jaxscore", "jax"):
        assert f"| {name} | " in report
    audit = results["boundary_audit"]
    assert audit["n_requests"] == sum(len(q["answers"]) for q in results["questions"])
    assert set(audit["changed"]) == {"separate", "upstream"}
    assert f"`upstream` would change {audit['changed']['upstream']} of them" in report
    ece = results["calibration"]["ece"]
    assert f"Expected calibration error {ece:.5f}" in report


@pytest.mark.slow
def test_without_a_mode_a_few_questions_are_drawn(run, models, tmp_path):
    lines = []
    for k, words in enumerate(((), ("--seed", 0), ("--seed", 1), ("--samples", 2))):
        folder = tmp_path / str(k)
        words = (*words, "--output_dir", folder, "--quiet")
        assert run("chronologic", QWEN, QUESTIONS, *words).code == 0
        report, results = found(folder)
        assert report.startswith("# ChronoLogic")
        assert not list(folder.glob("*full*"))
        lines.append([question["line"] for question in results["questions"]])
    assert lines[0] == lines[1] != lines[2]
    assert [len(one) for one in lines] == [5, 5, 5, 2]
    scores = {q["line"]: q["scores"] for q in results["questions"]}
    want = {k + 1: q["joint"] for k, q in enumerate(expected("tiny-qwen2")["questions"])}
    for line, values in scores.items():
        assert values == pytest.approx(want[line], abs=1e-4)


def test_the_files_lie_beside_the_questions_and_none_is_written_over(
    run, models, place, monkeypatch
):
    class Noon(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 12, 0, 1)

    monkeypatch.setattr(command.datetime, "datetime", Noon)
    folder = place(GOOD)
    for _ in range(2):
        assert run("chronologic", QWEN, folder / "in.jsonl", "--quiet").code == 0
    mark = f"{QWEN.replace('/', '_')}_20260102_120001"[-100:]
    names = sorted(one.name for one in folder.iterdir())
    assert [name.endswith(f"{mark}{end}") for name, end in zip(
        names,
        (
            ".html", ".md", ".md.run.json", "_2.html", "_2.md", "_2.md.run.json",
            ".json", "_2.json", "in.jsonl",
        ),
        strict=True,
    )] == [True] * 8 + [False]  # fmt: skip


def test_mcq(run, models, tmp_path):
    words = ("--mcq", "--seed", 3, "--output-dir", tmp_path, "--quiet")
    code, out, err = run("chronologic", QWEN, QUESTIONS, *words)
    assert (code, err) == (0, "")
    assert re.search(
        r"^result   overall accuracy \d\.\d+, 95% interval .*, skill .*, 9 quest", out, re.M
    )
    report, results = found(tmp_path, "mcq_")
    assert "Skill score" in report
    for result in results["questions"]:
        for field in ("prompt", "choices", "response", "chosen", "correct", "skill"):
            assert field in result
        assert sum(result["letter_probabilities"]) == pytest.approx(1.0)
        assert 0 < result["letter_outside"] < 1
    mean = np.mean([result["skill"] for result in results["questions"]])
    assert results["summary"]["overall"]["skill"]["mean"] == pytest.approx(mean)
    letters = np.mean([result["letter_brier"] for result in results["questions"]])
    assert results["summary"]["overall"]["letter_brier"]["mean"] == pytest.approx(letters)


def test_mcq_options_and_responses(run, models, writes, place):
    writes(" A, I think | `A`\n<b>")
    folder = place(GOOD, {**GOOD, "answer_probabilities": [1.0, 1.0, 0.0]})
    for k, (words, n) in enumerate((((), 2), (("--no-shuffle", "--include-negation"), 3))):
        out = folder / str(k)
        ran = run("chronologic", QWEN, folder / "in.jsonl", "--mcq", "--output-dir", out, *words)
        assert ran.code == 0
        report, results = found(out, "mcq_")
        assert [len(one["choices"]) for one in results["questions"]] == [n, n]
        assert r"Response: A, I think \| \`A\` ↵ &lt;b>" in report
    one, two = results["questions"]
    assert one["choices"] == GOOD["answer_strings"]
    assert "A) Oslo\nB) Vael\nC) Osk\nRespond only with" in one["prompt"]
    assert [(r["chosen"], r["correct"], r["skill"]) for r in (one, two)] == [("A", True, 1.0)] * 2
    assert results["summary"]["overall"]["accuracy"]["mean"] == 1.0


def test_unparsable_responses_are_counted(run, models, writes, place):
    writes("no idea")
    folder = place(GOOD, GOOD)
    code, out, _ = run("chronologic", QWEN, folder / "in.jsonl", "--mcq", "--quiet")
    assert code == 0
    assert "2 responses without a letter" in out
    report, results = found(folder, "mcq_")
    assert "name no letter: 2 of 2 (100.0%)" in report
    assert results["summary"]["overall"]["accuracy"]["mean"] == 0.0
    assert "Line: 1; Category: cloze; Chosen: no letter; Right?: no; " in report


def test_a_vocabulary_without_letters_still_lets_the_model_write_them(
    run, models, writes, place, monkeypatch
):
    writes("A")
    monkeypatch.setattr(multiple_choice, "SPACES", ("no such blank",))
    folder = place(GOOD)
    code, _, err = run("chronologic", QWEN, folder / "in.jsonl", "--mcq", "--quiet")
    assert (code, err) == (0, "")
    report, results = found(folder, "mcq_")
    assert (
        "the tokenizer lacks a token for the letters A, B"
        in results["questions"][0]["letter_error"]
    )
    assert results["summary"]["overall"]["letter_brier"]["mean"] is None
    assert "For 1 questions the letters' probabilities are unknown" in report


def test_questions_that_cannot_be_quizzes_are_listed(run, models, writes, place):
    writes("A")
    many = {
        **GOOD, "main_question": "Too many?", "answer_strings": [f"a{k}" for k in range(27)],
        "answer_types": ["x"] * 27, "answer_probabilities": [1.0] + [0.0] * 26,
    }  # fmt: skip
    none = {**GOOD, "main_question": "None?", "answer_probabilities": [0.0, 0.0, 1.0]}
    folder = place(GOOD, many, none)
    code, out, err = run("chronologic", QWEN, folder / "in.jsonl", "--mcq", "--quiet")
    assert code == 1
    assert ", 1 question, " in out
    assert out.startswith("done     3 questions, 2 failed in ")
    assert "failed: in.jsonl:2 'Too many?': 27 options, and there are letters for 26" in err
    assert "failed: in.jsonl:3 'None?': no answer is correct among those" in err
    report, results = found(folder, "mcq_")
    assert [one["name"] for one in results["failures"]] == ["line 2", "line 3"]
    assert "## Failed: 2 questions, in no mean" in report
    assert ["error" in one for one in results["questions"]] == [False, True, True]


def test_nothing_but_failures(run, models, writes, place):
    writes("A")
    folder = place({**GOOD, "answer_probabilities": [0.0, 0.0, 0.0]})
    code, out, err = run("chronologic", QWEN, folder / "in.jsonl", "--mcq")
    assert code == 1
    assert "result   no question was answered\n" in out
    assert "1 failed, the others are kept" in err
    _, results = found(folder, "mcq_")
    assert [one["line"] for one in results["questions"] if "error" in one] == [1]
    assert results["summary"]["overall"]["accuracy"] == NOTHING
    long = {**GOOD, "main_question": " and" * 1100}
    folder = place(long)
    words = ("--quiet", "--output", folder / "long")
    code, out, err = run("chronologic", QWEN, folder / "in.jsonl", *words)
    assert code == 1
    assert "result   no question was scored\n" in out
    report, results = found(folder / "long")
    assert results["summary"]["overall"]["brier"] == NOTHING
    assert results["calibration"]["ece"] is None
    assert "| Overall | - | - | - | 0 | - | - | 0 |" in report
    assert "answer 1: " in err
    assert "1024 positions" in err


def test_bad_lines_fail_alone_and_hostile_texts_are_scored(run, models, place):
    hostile = {
        **GOOD,
        "main_question": "Où | `est` <script>? שלום \u202e\x1b[31m e\u0301\n# Overall 9.99999",
        "question_category": "a|b\nOverall | 7.77777",
        "answer_strings": ["x" * 300, "\u0301\u0301", "عربي"],
    }
    folder = place("", GOOD, {"main_question": "?"}, hostile, {**GOOD, "answer_types": ["a"]})
    (folder / "in.jsonl").write_bytes(
        b"\xef\xbb\xbf" + (folder / "in.jsonl").read_bytes().replace(b"\n", b"\r\n")
    )
    code, _, err = run("chronologic", QWEN, folder / "in.jsonl", "--full-eval", "--quiet")
    assert code == 1
    assert "failed: in.jsonl:3 '?': no field \"answer_strings\", expected a list" in err
    assert "failed: in.jsonl:5 'Which city?': answer_types has 1 entries" in err
    assert "2 failed, the others are kept" in err
    report, results = found(folder, "full_")
    questions = {one["line"]: one for one in results["questions"]}
    assert [line for line, one in questions.items() if "error" in one] == [3, 5]
    assert questions[4]["question"] == hostile["main_question"]
    mean = results["summary"]["overall"]["brier"]["mean"]
    assert re.search(r"Overall\W+([0-9]+\.[0-9]+)", report).group(1) == f"{mean:.6f}"
    for raw in ("<script>", "\u202e", "\x1b", "\n# Overall"):
        assert raw not in report


def test_remarks_are_told_and_kept(run, models, place):
    folder = place({**GOOD, "answer_strings": ["Oslo", "Oslo", "Osk"],
                    "answer_probabilities": [0.0, 0.0, 0.0]})  # fmt: skip
    code, _, err = run("chronologic", QWEN, folder / "in.jsonl", "--full-eval")
    assert code == 0
    assert "line 1: answer 'Oslo' occurs more than once" in err
    report, results = found(folder, "full_")
    assert len(results["remarks"]) == 2
    assert "## Warnings" in report
    [question] = results["questions"]
    assert question["probabilities"][0] == question["probabilities"][1]


def test_calibrate(run, models, tmp_path):
    words = ("--full-eval", "--calibrate", "--output-dir", tmp_path, "--quiet")
    assert run("chronologic", QWEN, QUESTIONS, *words).code == 0
    report, results = found(tmp_path, "full_")
    scaling = results["temperature_scaling"]
    assert sorted(scaling["fitted_on"] + scaling["evaluated_on"]) == list(range(1, 10))
    for measure in ("brier", "cross_entropy", "ece"):
        before, after = scaling["before"][measure], scaling["after"][measure]
        assert f"| {before:.5f} | {after:.5f} |" in report
    rest = [q for q in results["questions"] if q["line"] in scaling["evaluated_on"]]
    brier = np.mean([question["brier"] for question in rest])
    assert scaling["before"]["brier"] == pytest.approx(brier)


def test_calibrate_on_too_few_that_can_be_scored(run, models, place):
    folder = place(GOOD, {**GOOD, "main_question": " and" * 1100})
    code, _, _ = run("chronologic", QWEN, folder / "in.jsonl", "--calibrate", "--quiet")
    assert code == 1
    report, results = found(folder)
    assert results["temperature_scaling"] is None
    assert "Nothing was fitted" in report


def test_the_metadata_and_the_boundary_change_what_is_scored(run, models, tmp_path):
    got = []
    for k, words in enumerate(((), ("--no-metadata",), ("--boundary", "separate"))):
        folder = tmp_path / str(k)
        words = ("--full-eval", *words, "--output-dir", folder, "--quiet")
        assert run("chronologic", QWEN, QUESTIONS, *words).code == 0
        got.append(found(folder, "full_")[1]["questions"][0]["scores"])
    assert len({tuple(scores) for scores in got}) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--full-eval", "--mcq"), "not allowed with"),
        (("--mcq", "--calibrate"), "calibrate scales the scores of answers"),
        (("--calibrate", "--samples", "1"), "1 question to split in two parts"),
        (("--samples", "0"), "0, expected a whole number of at least 1"),
        (("--n-bootstrap", "-1"), "-1, expected a whole number of at least 1"),
        (("--boundary", "exact"), "'exact', expected one of"),
        (("--mcq", "--truncate", "left"), "truncate: mode mcq shows its prompts whole"),
        (("--vllm", "--boundary", "separate"), "an endpoint encodes context and answer as one"),
        (("--api-base", "http://localhost/v1", "--truncate", "left"), "truncate: an endpoint"),
        (("--api-base", "ftp://x"), "is not the URL of a server"),
        (("--api-base", ""), "is not the URL of a server"),
    ],
)
def test_flags_that_do_not_go_together(run, place, monkeypatch, words, message):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    folder = place(GOOD, GOOD)
    code, out, err = run("chronologic", QWEN, folder / "in.jsonl", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert [one.name for one in folder.iterdir()] == ["in.jsonl"]


def test_files_that_cannot_be_used_are_known_before_the_model_is_loaded(run, place, monkeypatch):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    folder = place({"main_question": "?"})
    for name, words, message in (
        ("in.jsonl", (), "no question is usable"),
        ("absent", (), "No such file"),
        ("array", (), "found a JSON array, expected JSONL"),
        ("good", ("--output-dir", folder / "array"), "cannot be written (found a file)"),
    ):
        (folder / "array").write_text(json.dumps([GOOD]), encoding="utf-8")
        (folder / "good").write_text(json.dumps(GOOD), encoding="utf-8")
        code, out, err = run("chronologic", QWEN, folder / name, *words)
        assert (code, out) == (2, "")
        assert message in err
    assert sorted(one.name for one in folder.iterdir()) == ["array", "good", "in.jsonl"]


def test_as_a_user_would_run_it(run, tmp_path):
    """With a model that is loaded from its folder."""
    words = ("--full-eval", "--output-dir", tmp_path, "--dtype", "float32", "--journal", "off")
    code, out, err = run("chronologic", QWEN, QUESTIONS, *words)
    assert code == 0
    assert "result   overall Brier 0.2" in out
    assert "boundary joint: of 27 requests separate would change" in out
    assert "model    qwen2, native, float32" in out
    assert err.count("\n") <= 1, err  # the bar alone


def test_top_accuracy_is_over_questions_that_have_a_right_answer(run, models, place):
    """Two questions have one; of the others one has no truth and one has shares alone."""
    folder = place(
        GOOD,
        GOOD | {"answer_probabilities": [1.0, 1.0, 1.0]},
        GOOD | {"answer_probabilities": [0.0, 0.0, 0.0]},
        GOOD | {"answer_probabilities": [0.5, 0.5, 0.0]},
    )
    code, _, err = run("chronologic", QWEN, folder / "in.jsonl", "--full-eval")
    assert code == 0
    report, results = found(folder, "full_")
    named = [one["top_correct"] for one in results["questions"]]
    assert named[1:] == [True, None, None]
    overall = results["summary"]["overall"]
    assert (overall["brier"]["n"], overall["top_accuracy"]["n"]) == (4, 2)
    assert overall["top_accuracy"]["mean"] == (named[0] + 1) / 2
    assert re.search(
        r"^\| Overall \|.* \| 4 \| [01]\.\d+ \| 0\.\d+ to [01]\.\d+ \| 2 \|$", report, re.M
    )
    assert "line 3: no answer is correct, so" in err
    assert "line 4: no answer has probability 1; top accuracy leaves" in err


def test_shares_have_wilsons_interval_and_no_interval_is_of_zero_width(run, models, writes, place):
    writes("A")
    folder = place(GOOD | {"answer_probabilities": [1.0, 1.0, 0.0]}, GOOD | {
        "main_question": "Who?", "answer_probabilities": [1.0, 1.0, 0.0]})  # fmt: skip
    words = ("chronologic", QWEN, folder / "in.jsonl", "--mcq", "--quiet")
    assert run(*words).code == 0
    report, results = found(folder, "mcq_")
    overall = results["summary"]["overall"]
    assert (overall["accuracy"]["mean"], overall["accuracy"]["high"]) == (1.0, 1.0)
    assert overall["accuracy"]["low"] == pytest.approx(0.3424, abs=1e-4)  # Wilson of 2 of 2
    assert overall["skill"] == {"n": 2, "mean": 1.0, "low": None, "high": None}
    assert "| Overall | 1.000 | 0.342 to 1.000 | 1.000 | - | 2 |" in report
    code, out, _ = run(*words, "--limit", 1, "--output", folder / "one")
    assert code == 0
    assert "overall accuracy 1.0000, skill 1.0000, 1 question" in out
    report, results = found(folder / "one", "mcq_")
    assert "| Overall | 1.000 | - | 1.000 | - | 1 |" in report
    assert results["summary"]["overall"]["accuracy"]["low"] is None


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("--full-eval", "--samples", "2"), "setting samples: of no effect in mode full"),
        (("--mcq", "--samples", "2"), "setting samples: of no effect in mode mcq"),
        (("--mcq", "--boundary", "upstream"), "setting boundary: of no effect in mode mcq"),
        (("--no-shuffle",), "setting shuffle: of no effect in mode sample, only in mcq"),
        (("--full-eval", "--include-negation"), "setting include_negation: of no effect in mode"),
        (("--no-metadata",), "setting metadata: of no effect, none of 1 questions has a metadata"),
    ],
)
def test_flags_of_no_effect_are_told(run, models, writes, place, words, reported):
    writes("A")
    folder = place(GOOD | {"metadata_frame": None})
    code, _, err = run("chronologic", QWEN, folder / "in.jsonl", *words)
    assert code == 0
    assert reported in err
    [path] = folder.glob("eval_results_*.json")
    assert any(line.startswith(reported) for line in strict(path.read_text("utf-8"))["remarks"])
    run("chronologic", QWEN, folder / "in.jsonl", "--output", folder / "plain")
    assert "of no effect" not in (report := found(folder / "plain")[0]), report


def test_every_spelling_of_the_places(run, models, place):
    folder = place(GOOD)
    path = folder / "in.jsonl"
    for k, words in enumerate((
        (QWEN, path), ("--model", QWEN, path), (QWEN, "--input", path),
        ("--input", path, "--model", QWEN), (QWEN, path, "--model", QWEN, "--input", path),
        (QWEN, "--seed", 0, path),
    )):  # fmt: skip
        code, _, err = run("chronologic", *words, "--output", folder / str(k), "--quiet")
        assert (code, err) == (0, ""), words
        assert found(folder / str(k))[1]["settings"]["questions"] == str(path)
    for words, message in (
        ((QWEN, path, "--model", "other"), f"'other' is one too many: MODEL is '{QWEN}' already"),
        (
            (QWEN, path, "--input", "other"),
            f"'other' is one too many: QUESTIONS.jsonl is '{path}' already",
        ),
        (("--model", "other", QWEN, path), f"'other' is one too many: MODEL is '{QWEN}' already"),
        ((QWEN, path, "other"), "unrecognized arguments: other"),
        (
            ("--model", QWEN, "--input", path, "--", "other"),
            f"'other' is one too many: MODEL is '{QWEN}' already",
        ),
        ((QWEN,), "QUESTIONS.jsonl is missing; give it by its place or by --input"),
        (("--input", path), "MODEL is missing; give it by its place or by --model"),
        (("--input", path, QWEN), "--input takes all words after it, so give MODEL before it"),
    ):
        code, out, err = run("chronologic", *words)
        assert (code, out) == (2, "")
        assert message in err


def test_a_limit(run, models, tmp_path):
    words = ("chronologic", QWEN, QUESTIONS, "--full-eval", "--limit", 2, "--output", tmp_path)
    assert run(*words, "--quiet").code == 0
    _, results = found(tmp_path, "full_")
    assert [one["line"] for one in results["questions"]] == [1, 2]
    assert results["settings"]["limit"] == 2


def test_a_manifest_with_the_failures(run, models, place):
    folder = place(GOOD, {"main_question": "?"})
    assert run("chronologic", QWEN, folder / "in.jsonl", "--quiet").code == 1
    [path] = folder.glob("eval_report_*.md.run.json")
    manifest = strict(path.read_text(encoding="utf-8"))
    assert (manifest["failed"], manifest["command"]) == (1, "chronologic")
    assert manifest["flags"]["model"] == QWEN
