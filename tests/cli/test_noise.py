"""`--audit-noise`: figures and marks of each command, and nothing of them without the flag."""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import pytest

from jaxscore.cli import model_flags
from jaxscore.shell.rounding_audit import OtherLayouts, Spread
from tests.cli.conftest import QWEN, strict
from tests.conftest import CASES

pytestmark = pytest.mark.numeric

MARK = "≈"
QUESTION = {
    "metadata_frame": "A book of 1887.", "main_question": "Which city?",
    "answer_strings": ["Oslo", "Vael"], "answer_types": ["ground_truth", "manual"],
    "answer_probabilities": [1.0, 0.0],
}  # fmt: skip
LAYOUTS = ["as in the run", "alone", "batches of 2048 tokens", "one request a row"]


@pytest.fixture(autouse=True)
def models(monkeypatch, scorers):
    """The commands take the session's scorers instead of loading a model for each run."""
    monkeypatch.setattr(
        model_flags, "load_scorer", lambda args, model, *_, **__: scorers(Path(model).name)
    )


@pytest.fixture
def spread(monkeypatch):
    """`spread(value)`: every audit from now on finds this as the largest spread of all numbers."""

    def set(value):
        for name in ("scores", "labels"):
            genuine = getattr(OtherLayouts, name)
            if hasattr(genuine, "genuine"):
                genuine = genuine.genuine

            def planted(self, pairs, genuine=genuine, **options):
                noise = genuine(self, pairs, **options)
                every = dict.fromkeys(noise.spread, Spread(value, value))
                return dataclasses.replace(noise, spread=every)

            planted.genuine = genuine
            monkeypatch.setattr(OtherLayouts, name, planted)

    return set


def between(margins: list[float]) -> tuple[float, float]:
    """A spread that reaches the smaller half of the margins, and the largest margin it reaches."""
    ordered = sorted(set(margins))
    k = (len(ordered) - 1) // 2
    return (ordered[k] + ordered[k + 1]) / 4, ordered[k]


def read(path):
    return strict(path.read_text(encoding="utf-8"))


def only(folder, pattern):
    [path] = folder.glob(pattern)
    return path


def check(record, page, out, manifest, n_within):
    """What all reports say of the noise; `n_within` has the count of each kind of decision."""
    noise = record["noise"]
    assert noise["layouts"] == LAYOUTS
    assert [one["n_within"] for one in noise["decisions"]] == n_within
    for name, one in noise["spread"].items():
        assert 0 <= one["mean"] <= one["largest"]
        assert f"{one['largest']:.2g} ({name})" in out
    assert f"noise floor: {noise['n_requests']} requests in 4 layouts move by at most " in out
    made = read(manifest)
    assert made.get("facts", made)["noise"]["spread"] == noise["spread"]
    assert page.index("## Noise floor") < page.index("## Settings and versions")
    assert f"{noise['n_requests']} requests, drawn by the seed, were scored in 4 layouts" in page
    for one in noise["decisions"]:
        assert f"{one['what']} {one['n_within']} of {one['n']}" in out
        assert f"| {one['what']} | {one['n_within']} of {one['n']} | " in page
        assert f" | {one['margin']:.2g} |" in page


def test_score(run, place):
    folder = place(*({"context": "the cat", "continuation": f" ran {k} times"} for k in range(9)))
    words = ("score", "--model", QWEN, "--input", folder / "in.jsonl", "--quiet")
    assert "noise floor" not in run(*words, "--output", folder / "plain.jsonl").out
    ran = run(*words, "--output", folder / "out.jsonl", "--audit-noise", 4)
    assert (ran.code, ran.err) == (0, "")
    assert (folder / "out.jsonl").read_bytes() == (folder / "plain.jsonl").read_bytes()
    noise = read(folder / "out.jsonl.run.json")["facts"]["noise"]
    assert (noise["n_requests"], noise["layouts"]) == (4, LAYOUTS)
    assert read(folder / "out.jsonl.report.json")["noise"]["decisions"] == []
    assert "         noise floor: 4 requests in 4 layouts move by at most " in ran.out
    assert f"greedy differs on 0 of {noise['n_tokens']} tokens" in ran.out
    assert read(folder / "plain.jsonl.run.json")["facts"]["noise"] is None
    assert "noise" not in read(folder / "plain.jsonl.report.json")
    ran = run(*words, "--output", folder / "all.jsonl", "--audit-noise", 100)
    assert "noise floor: 9 requests in 4 layouts" in ran.out


def test_score_of_nothing(run, place):
    folder = place({"context": "the cat", "continuation": ""})
    words = ("--input", folder / "in.jsonl", "--output", folder / "out.jsonl", "--quiet")
    ran = run("score", "--model", QWEN, *words, "--audit-noise", 4)
    assert "noise floor: no request was scored, so none was scored again\n" in ran.out
    assert read(folder / "out.jsonl.report.json")["noise"] is None


def test_paths(run, place, spread):
    paths = [["Ada", "born in", city] for city in ("Oslo", "Vael", "Rome", "Oslo Rome")]
    folder = place({"question": "Where was Ada born?", "paths": paths})
    words = ("paths", "--model", QWEN, "--input", folder / "in.jsonl",
             "--output", folder / "out.json", "--quiet")  # fmt: skip

    def evaluations():
        return read(folder / "out.json")[0]["path_evaluations"]

    assert run(*words, "--system-prompts", "One.", "Two.").code == 0
    plain = evaluations()
    assert not any("within_noise" in one for one in plain)
    margins = [abs(math.log(one["retrieved_prob"] / one["baseline_prob"])) for one in plain]
    value, reached = between(margins)
    spread(value)
    ran = run(*words, "--system-prompts", "One.", "Two.", "--audit-noise", 5)
    assert ran.code == 0
    marked = evaluations()
    marks = [one.pop("within_noise") for one in marked]
    assert marked == plain
    assert marks == [margin <= reached for margin in margins]
    assert sorted(set(marks)) == [False, True]
    record = read(folder / "out_report.json")
    page = (folder / "out_report.md").read_text(encoding="utf-8")
    check(record, page, ran.out, folder / "out.json.run.json", [sum(marks)])
    shown = re.findall(r"; Gain: [-+.e\d]+( ≈)?;", page)
    by_gain = sorted(zip(plain, marks, strict=True), key=lambda x: x[0]["absolute_improvement"])
    assert [bool(mark) for mark in shown] == [mark for _, mark in by_gain]


def test_probsem(run, tmp_path):
    """A query that is there twice is as probable as itself, and another one is not."""
    suite = {
        "pretext": "Answer.", "posttext": "It is:", "queries": ["True", "False", "True"],
        "context": [
            {"text": "Tova lives in Merrow.", "expected": 0},
            {"text": "Tova lives in Merrow.", "expected": 1},
            {"text": "Nobody knows.", "expected": -1},
        ],
    }  # fmt: skip
    (tmp_path / "p.txt").write_text("A prompt.\n", encoding="utf-8")
    (tmp_path / "p_t.json").write_text(json.dumps(suite), encoding="utf-8")
    words = ("probsem", "--prompt", "p", "--test", "t", "--model", QWEN, "--input-dir", tmp_path,
             "--quiet", "--temperature", 4)  # fmt: skip
    assert run(*words, "--output-dir", tmp_path / "plain").code == 0
    ran = run(*words, "--output-dir", tmp_path / "out", "--audit-noise", 3)
    assert ran.code == 0
    plain, record = (read(only(tmp_path / name, "*_results.json")) for name in ("plain", "out"))
    tables = [only(tmp_path / name, "*.csv").read_bytes() for name in ("plain", "out")]
    assert tables[0] == tables[1]
    marks = [one.pop("within_noise") for one in record["contexts"]]
    assert plain["contexts"] == record["contexts"]
    logp = plain["contexts"][0]["logp"]
    assert logp[0] == logp[2]
    likelier = max(range(2), key=lambda k: plain["contexts"][2]["logp"][k])
    assert marks == [True, False, likelier == 0]
    page = only(tmp_path / "out", "*.md").read_text(encoding="utf-8")
    manifest = only(tmp_path / "out", "*.run.json")
    check(record, page, ran.out, manifest, [sum(marks)])
    largest = record["noise"]["spread"]["sum_logprob"]["largest"]
    assert record["noise"]["decisions"][0]["margin"] == largest / 2  # twice it, over 4
    scores = dict(re.findall(r"^Number: (\d); .*Its score: (.*?)(?:;|$)", page, re.M))
    assert [scores.get(str(k), "").endswith(f" {MARK}") for k in (1, 2, 3)] == marks
    assert "noise" not in plain
    assert MARK not in only(tmp_path / "plain", "*.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_probsem_of_means(run, tmp_path, spread):
    """The statistic of the decision: the spread planted reaches half of the margins of it."""
    for name in ("towns.txt", "towns_A.json"):
        shutil.copy(CASES / "probsem" / name, tmp_path)
    words = ("probsem", "--prompt", "towns", "--test", "A", "--model", QWEN, "--quiet",
             "--input-dir", tmp_path, "--normalize", "--temperature", 0.5)  # fmt: skip
    assert run(*words, "--output-dir", tmp_path / "plain").code == 0
    plain = read(only(tmp_path / "plain", "*_results.json"))["contexts"]
    margins = []
    for one in plain:
        right = one["logp"][one["expected"]]
        wrong = max(p for k, p in enumerate(one["logp"]) if k != one["expected"])
        margins.append(abs(right - wrong))
    value, reached = between(margins)
    spread(value * 0.5)  # before it is divided by the temperature
    ran = run(*words, "--output-dir", tmp_path / "out", "--audit-noise", 3)
    record = read(only(tmp_path / "out", "*_results.json"))
    assert [one["within_noise"] for one in record["contexts"]] == [m <= reached for m in margins]
    [decision] = record["noise"]["decisions"]
    assert (decision["statistic"], decision["margin"]) == ("logp", 2 * value)
    assert "the expected query has the highest score" in ran.out


def test_chronologic(run, place):
    """Two answers of one text, one of them right: nothing but their order decides."""
    folder = place(
        QUESTION,
        QUESTION | {"answer_strings": ["Oslo", "Oslo"]},
        QUESTION | {"answer_strings": ["Oslo", "Oslo"], "answer_probabilities": [1.0, 1.0]},
    )
    words = ("chronologic", QWEN, folder / "in.jsonl", "--full-eval", "--quiet")
    ran = run(*words, "--output-dir", folder / "out", "--audit-noise", 4)
    assert ran.code == 0
    record = read(only(folder / "out", "eval_results*.json"))
    page_path = only(folder / "out", "eval_report*.md")
    page = page_path.read_text(encoding="utf-8")
    found = [(one["within_noise"], one["correct_within_noise"]) for one in record["questions"]]
    assert found == [(False, False), (True, True), (True, False)]
    check(record, page, ran.out, only(folder / "out", "*.run.json"), [2, 1])
    leads = re.findall(r"; Lead: \d\.\d+(.*)$", page, re.M)
    assert sorted(leads) == ["", f" {MARK}", f" {MARK}"]
    assert page.count("\nWithin the noise: right or wrong\n") == 1
    assert run(*words, "--output-dir", folder / "plain").code == 0
    assert MARK not in only(folder / "plain", "eval_report*.md").read_text(encoding="utf-8")
    for one in record["questions"]:
        del one["within_noise"], one["correct_within_noise"]
    plain = read(only(folder / "plain", "eval_results*.json"))
    assert plain["questions"] == record["questions"]
    assert "noise" not in plain


@pytest.mark.slow
def test_chronologic_letters(run, tmp_path, spread):
    words = ("chronologic", QWEN, CASES / "chronologic/questions.jsonl", "--mcq", "--quiet")
    assert run(*words, "--output-dir", tmp_path / "plain").code == 0
    plain = read(only(tmp_path / "plain", "eval_results*.json"))["questions"]
    margins, right = [], []
    for one in plain:
        p = one["letter_probabilities"]
        first, *others = sorted(p, reverse=True)  # one question has a single option
        margins.append(math.log(first / others[0]) if others else math.inf)
        best = [
            max((p[k] for k, t in enumerate(one["truth"]) if (t == 1) is wanted), default=None)
            for wanted in (True, False)
        ]
        right.append(math.inf if None in best else abs(math.log(best[0] / best[1])))
    value, reached = between(margins)
    spread(value)
    ran = run(*words, "--output-dir", tmp_path / "out", "--audit-noise", 4)
    record = read(only(tmp_path / "out", "eval_results*.json"))
    page = only(tmp_path / "out", "eval_report*.md").read_text(encoding="utf-8")
    marks = [one["within_noise"] for one in record["questions"]]
    assert marks == [margin <= reached for margin in margins]
    assert sorted(set(marks)) == [False, True]
    correct = [one["letter_correct_within_noise"] for one in record["questions"]]
    assert correct == [margin <= 2 * value for margin in right]
    assert set(record["noise"]["spread"]) == {"label_logprob", "label_probability"}
    check(record, page, ran.out, only(tmp_path / "out", "*.run.json"), [sum(marks), sum(correct)])
    leads = re.findall(r"; Lead: (.*)$", page, re.M)
    assert sum(lead.endswith(f" {MARK}") for lead in leads) == sum(marks)
    assert page.count("\nWithin the noise: right or wrong\n") == sum(correct)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["first", "sequence"])
def test_judge(run, tmp_path, spread, how):
    experiments = shutil.copytree(CASES / "judge", tmp_path / "experiments")
    folder = experiments / "ours"
    words = ("judge", "--folder", folder, "--llm", QWEN, "j", "--quiet", "--force",
             "--label-score", how)  # fmt: skip
    report = folder / "eval_dev_judge_LLMeval_j_logits.json"
    assert run(*words).code == 0
    plain, before = read(report), (folder / "eval_dev_out.json").read_bytes()
    margins = []
    for one in plain["records"]:
        first, second = sorted(one["probability"].values(), reverse=True)[:2]
        margins.append(math.log(first / second))
    value, reached = between(margins)
    spread(value)
    ran = run(*words, "--audit-noise", 3)
    assert ran.code == 0
    record = read(report)
    marks = [one.pop("within_noise") for one in record["records"]]
    assert record["records"] == plain["records"]
    assert marks == [margin <= reached for margin in margins]
    assert (folder / "eval_dev_out.json").read_bytes() == before
    page = report.with_suffix(".md").read_text(encoding="utf-8")
    check(record, page, ran.out, Path(f"{report.with_suffix('.md')}.run.json"), [sum(marks)])
    [decision] = record["noise"]["decisions"]
    assert decision["statistic"] == "log-probability of a label"
    lines = re.findall(r"; Score: [.\d]+(.*); Outside: ", page)
    assert sorted(bool(one) for one in lines) == sorted(marks)
    assert "noise" not in plain


def test_self_certainty_to_the_votes(run, tmp_path):
    answers = ['{"answer": "1"}', '{"answer": "2"}', '{"answer": "1"} sure']
    items = [{"id": k, "model_input": f"{k} + 1 =", "output": answers} for k in range(4)]
    given, out = tmp_path / "in.json", tmp_path / "out.json"
    given.write_text(json.dumps(items), encoding="utf-8")
    words = ("self-certainty", "--input-file", given, "--model-name", QWEN, "--quiet")
    assert run(*words, "--output-file", tmp_path / "plain.json").code == 0
    ran = run(*words, "--output-file", out, "--audit-noise", 5)
    assert ran.code == 0
    assert "noise floor: 5 requests in 4 layouts" in ran.out
    found, plain = read(out), read(tmp_path / "plain.json")
    noise = read(tmp_path / "out.json.run.json")["facts"]["noise"]
    largest = noise["spread"]["mean_self_certainty"]["largest"]
    assert {one["confidence_settings"].pop("noise") for one in found} == {largest}
    assert found == plain

    # Near ties are planted: two in the noise, one in it between equal answers, one clear.
    found = read(out)
    for one, lead in zip(found, (1.9, 2.1, 0.0, 40.0), strict=True):
        one["confidence_list"] = [9.0, 9.0 - lead, 1.0]
        one["confidence_settings"]["noise"] = 1.0
    found[2]["output"] = [answers[0], answers[2], answers[1]]
    planted = tmp_path / "planted.json"
    planted.write_text(json.dumps(found), encoding="utf-8")
    ran = run("select", "--input-file", planted, "--output-file", tmp_path / "s.json")
    assert ran.code == 0
    assert "\n1 of 4 within the noise: rounding could turn their answer\n" in ran.out
    marks = [one["within_noise"] for one in read(tmp_path / "s.json")]
    assert marks == [True, False, False, False]
    # Answer 1 has 3 + 1 votes against 2, or 2 + 1 against 3: a tie that it wins as the first.
    ran = run("vote", "--input-file", planted, "--output-file", tmp_path / "v.json", "--power", 1)
    assert "\n0 of 4 within the noise" in ran.out
    # To the second power 9 + 1 against 4, or 4 + 1 against 9.
    ran = run("vote", "--input-file", planted, "--output-file", tmp_path / "v.json", "--power", 2)
    assert "\n1 of 4 within the noise" in ran.out
    marks = [one["within_noise"] for one in read(tmp_path / "v.json")]
    assert marks == [True, False, False, False]

    ran = run("select", "--input-file", tmp_path / "plain.json", "--output-file", planted)
    assert "within" not in ran.out
    assert not any("within_noise" in one for one in read(planted))


@pytest.mark.slow
def test_self_certainty_that_goes_on(run, tmp_path, spread):
    items = [{"model_input": f"{k} + 1 =", "output": [" 1", " 2"]} for k in range(3)]
    given, out = tmp_path / "in.json", tmp_path / "out.json"
    given.write_text(json.dumps(items), encoding="utf-8")
    words = ("self-certainty", "--input-file", given, "--model-name", QWEN, "--output-file", out,
             "--quiet")  # fmt: skip

    def noises():
        return [one["confidence_settings"].get("noise") for one in read(out)]

    assert run(*words).code == 0
    assert noises() == [None] * 3
    ran = run(*words, "--audit-noise", 2)  # nothing is left to score
    assert ran.code == 0
    assert "noise floor: no request was scored, so none was scored again\n" in ran.out
    assert noises() == [None] * 3
    for value, want in ((0.5, 0.5), (0.25, 0.5), (0.75, 0.75)):  # the largest that was seen
        kept = read(out)
        kept[2]["confidence_list"] = [None, None]
        out.write_text(json.dumps(kept), encoding="utf-8")
        spread(value)
        assert run(*words, "--audit-noise", 2).code == 0
        assert noises()[:2] == [want] * 2
        assert noises()[2] == value
    assert run(*words).code == 0  # without the flag what is known stays
    assert noises() == [0.75] * 3


@pytest.mark.parametrize("noise", ["much", -1, True, [1]])
def test_a_noise_that_is_no_number(run, tmp_path, noise):
    item = {"output": ['{"answer": 1}'], "confidence_list": [1]}
    bad = item | {"confidence_settings": {"noise": noise}}
    (tmp_path / "in.json").write_text(json.dumps([bad, item]), encoding="utf-8")
    ran = run("select", "--input-file", tmp_path / "in.json")
    assert ran.code == 1
    assert 'failed: item 1: field "confidence_settings", entry "noise": found ' in ran.err
    assert "expected nats, 0 or more" in ran.err


TEXT_MODE = "use_logits: true", "use_logits: false"


@pytest.mark.parametrize(
    "judge",
    [
        ("--llm-ollama", "m"),
        ("--gpt", "m"),
        ("--bem", "m"),
        ("--llm", QWEN, "--opponent-folder", "theirs", "--opponent-name", "t"),
        ("--llm", QWEN, "--llm-prompt", "text.yaml"),
    ],
)
def test_judges_without_probabilities_refuse_it(run, tmp_path, monkeypatch, judge):
    from jaxscore.systems.rag.evaluator_file import find

    shutil.copytree(CASES / "judge", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    text = find("default_qa").read_text(encoding="utf-8")
    assert TEXT_MODE[0] in text
    (tmp_path / "text.yaml").write_text(text.replace(*TEXT_MODE), encoding="utf-8")
    monkeypatch.setattr(model_flags, "load_scorer", None)
    ran = run("judge", "--folder", "ours", *judge, "--audit-noise", 2)
    assert (ran.code, ran.out) == (2, "")
    assert "audit_noise (--audit-noise) audits" in ran.err


@pytest.mark.parametrize("mode", ["--full-eval", "--mcq"])
def test_an_endpoint_refuses_it(run, place, mode):
    folder = place(QUESTION)
    ran = run("chronologic", "m", folder / "in.jsonl", mode, "--vllm", "--audit-noise", 2)
    assert (ran.code, ran.out) == (2, "")
    assert "audit_noise: an endpoint's layouts are its own" in ran.err


def test_a_number_that_cannot_be(run, place):
    folder = place({"continuation": "a"})
    words = ("score", "--model", QWEN, "--input", folder / "in.jsonl", "--output", folder / "out")
    for value, why in (("-1", "-1, expected a whole"), ("x", "'x', expected a whole")):
        ran = run(*words, f"--audit-noise={value}")
        assert ran.code == 2
        assert why in ran.err


@pytest.mark.parametrize("command", ["usc-generate", "demo"])
def test_commands_without_numbers_of_their_own_have_no_such_flag(run, command):
    assert "--audit-noise" not in run(command, "--help").out
    assert "--audit-noise" in run("score", "--help").out
