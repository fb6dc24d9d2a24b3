"""A sample that is scored with a space before the answers, and under the other boundaries."""

import dataclasses
import math

import numpy as np
import pytest
from transformers import AutoTokenizer

from jaxscore import Request, Scorer, evaluate
from jaxscore.io.json_input import read_jsonl
from jaxscore.shell import audits
from jaxscore.shell import evaluate as shell_evaluate
from jaxscore.shell.audits import Effect
from jaxscore.systems.probsem.suite import load
from jaxscore.text.encoder import TextEncoder
from jaxscore.types.results import failed
from tests.conftest import CASES
from tests.systems.probsem.test_system import scored

PATHS = [item for _, item in read_jsonl(CASES / "paths/input.jsonl")]
QUESTIONS = [item for _, item in read_jsonl(CASES / "chronologic/questions.jsonl")]
SUITE = load(CASES / "probsem", "towns", "A")
OTHER_LAYOUT = dataclasses.replace(  # `upstream` writes another text: see `Context.split`
    SUITE, prompt="", queries=("So it is:\nyes", "So it is:\nno", "maybe")
)
ITEMS = {"paths": PATHS[:6], "chronologic": QUESTIONS, "probsem": SUITE}
MODE = {"paths": {}, "chronologic": {"mode": "full"}, "probsem": {}}


@pytest.fixture
def scorer(scorers):
    return scorers("tiny-gpt2")


def result(system, report):
    """The number that the audits are about, over all items."""
    if system == "paths":
        return report.summary["absolute"].mean
    if system == "chronologic":
        return report.summary["overall"]["brier"].mean
    return report.summary["accuracy"].mean


def close(values):
    return pytest.approx(values, rel=1e-3, abs=1e-9)


def test_a_sample_is_spread_over_the_items(scorer, monkeypatch):
    samples = []
    way = audits._way
    monkeypatch.setattr(audits, "_way", lambda *a: (samples.append(a[2]), way(*a))[1])
    monkeypatch.setattr(audits, "SAMPLED", 4)
    items = [{"context": "ANSWER: ", "continuation": f"Oslo {k}"} for k in range(10)]
    report = evaluate("score", scorer, items)
    assert [one.continuation for one in samples[0]] == [f"Oslo {k}" for k in (0, 2, 5, 7)]
    assert report.facts.boundary.n_items == 4


def effect(own, other):
    """Of answers whose results are their mean log-probabilities."""

    def way(results, answer):
        requests = [Request("", "Q:", answer) for _ in results]
        return [[each.mean_logprob] for each in results], list(zip(requests, results, strict=True))

    return audits._effect({"as_published": way(own, "a"), "with_blank": way(other, " a")})


def test_means_are_over_numbers_that_every_way_has():
    one, other = [[1.0], [None], [math.inf], [3.0], []], [[2.0], [5.0], [1.0], [2.0], [1.0]]
    found = audits._effect({"one": (one, []), "other": (other, [])})
    assert found == Effect(2, {"one": 2.0, "other": 2.0})
    assert audits._effect({"one": ([[None]], []), "other": ([[1.0]], [])}).means == {}


def test_a_space_that_raises_most_answers_is_a_finding(scorer):
    own = [scored(-4.0), scored(-2.0), scored(-3.0)]
    found = effect(own, [scored(-1.0), scored(-1.0), scored(-4.0)])
    report = evaluate("paths", scorer, PATHS[:1])
    report = dataclasses.replace(report, facts=dataclasses.replace(report.facts, blank=found))
    assert report.findings == [
        "With a space before the answer the mean improvement is -2 instead of -3; see "
        "--answer-separator (a sample of 3 paths; the space raises the probability of 2 of 3 "
        "answers)"
    ]
    half = effect(own[1:], [scored(-1.0), scored(-4.0)])
    assert (half.n_raised, half.raises_most) == (1, False)


def test_an_answer_that_fails_with_the_space_is_left_out_alone():
    own = [scored(-4.0), scored(-2.0)]
    found = effect(own, [scored(-1.0), failed("", "too long")])
    assert (found.n_items, found.n_answers, found.n_raised) == (1, 1, 1)
    nothing = effect(own, [failed("", "too long")] * 2)
    assert (nothing.n_items, nothing.means, nothing.raises_most) == (0, {}, False)


@pytest.mark.parametrize(
    ("system", "boundary"),
    [("paths", "separate"), ("paths", "upstream"), ("chronologic", "separate"),
     ("chronologic", "upstream"), ("probsem", "joint"), ("probsem", "upstream")],
)  # fmt: skip
def test_the_space_of_the_sample_is_that_of_the_flag(scorer, system, boundary):
    how = {**MODE[system], "boundary": boundary}
    plain = evaluate(system, scorer, ITEMS[system], **how)
    found = plain.to_dict()["answer_blank"]
    flag = evaluate(system, scorer, ITEMS[system], answer_separator=" ", **how)
    [means] = found["results"].values()
    assert means["as_published"] == close(result(system, plain))
    assert means["with_blank"] == close(result(system, flag))
    assert found["raises_most"] == (2 * found["n_raised"] > found["n_answers"])
    assert plain.findings == [found["finding"]] * found["raises_most"]
    reported = f"raises the probability of {found['n_raised']} of {found['n_answers']} answers"
    assert reported in plain.markdown()
    assert reported in plain.html()
    assert "answer_blank" not in flag.to_dict()


def test_the_main_result_is_as_without_audits(scorer, monkeypatch):
    audited = evaluate("paths", scorer, PATHS)
    monkeypatch.setattr(shell_evaluate, "effects_of", lambda *_: {})
    alone = evaluate("paths", scorer, PATHS)
    assert "answer_blank" not in alone.to_dict()
    assert audited.items == alone.items


def test_answers_after_a_space_or_in_a_conversation_have_no_space_to_try(scorer, scorers):
    joint = evaluate("chronologic", scorer, QUESTIONS, mode="full")
    chat = evaluate("paths", scorers("tiny-qwen2"), PATHS[:1], apply_chat_template=True)
    for report in (joint, chat):
        assert "answer_blank" not in report.to_dict()
        assert not any("space before the answers" in line for line in report.remarks)


@pytest.mark.parametrize(
    ("system", "items", "fewshot"),
    [*((system, items, False) for system, items in ITEMS.items()),
     ("probsem", OTHER_LAYOUT, False), ("probsem", OTHER_LAYOUT, True)],
)  # fmt: skip
def test_the_effect_of_a_boundary_is_what_a_run_with_it_gives(scorer, system, items, fewshot):
    own = {"paths": "separate"}.get(system, "joint")
    how = {**MODE[system], **({"fewshot": items.context[:1]} if fewshot else {})}
    report = evaluate(system, scorer, items, **how)
    effect = report.to_dict()["boundary_audit"]["effect"]
    [means] = effect["results"].values()
    for boundary in ("joint", "separate", "upstream"):
        assert means[boundary] == close(
            result(system, evaluate(system, scorer, items, **how, boundary=boundary))
        )
    assert effect["advice"].startswith(f"{own}, the formula of the paper")
    line, moved = report.boundary_lines()
    assert line.startswith(f"{own}: of ")
    assert moved.endswith(f"; believe {effect['advice']}")
    assert f"Which one to believe: {own}, the formula" in report.markdown()


def test_the_audit_counts_queries_that_another_boundary_writes_otherwise(scorers):
    """This tokenizer has the same tokens under `upstream`, which still scores another text."""
    scorer, suite = scorers("tiny-qwen2"), dataclasses.replace(SUITE, prompt="")
    counts = evaluate("probsem", scorer, suite).to_dict()["boundary_audit"]
    assert counts["changed"]["upstream"] == counts["n_requests"] > 0
    back = evaluate("probsem", scorer, suite, boundary="upstream").to_dict()["boundary_audit"]
    assert back["changed"]["joint"] == counts["changed"]["upstream"]


def test_a_long_answer_of_paths_is_compared_under_no_boundary(scorer, monkeypatch):
    """Its tokens would each be encoded after all of its text."""
    monkeypatch.setattr(audits, "LONGEST", 200)
    answers = ("São Tomé", "Oslo", "São Tomé " * 30)
    items = [{"question": "Where?", "paths": [["a", answer]]} for answer in answers]
    report = evaluate("paths", scorer, items)
    found = report.boundary_audit()
    assert found["n_too_long"] == 2  # the answer without and with its path
    assert report.boundary_lines()[0].endswith("; 2 are too long to be audited")
    assert report.facts.boundary.n_items == 2
    short = evaluate("paths", scorer, items[:2])
    assert report.facts.boundary.means == close(short.facts.boundary.means)


def test_boundaries_that_change_nothing_cost_nothing(scorer, monkeypatch):
    monkeypatch.setattr(audits, "_way", None)
    report = evaluate("score", scorer, [("The cat", " sat"), "A text"])
    assert report.boundary_audit() == {"n_requests": 2, "changed": {"separate": 0}}


def test_score_says_how_far_the_other_boundary_moves_it(scorer):
    pairs = [("ANSWER: ", "Oslo"), ("The cat", " sat"), ("", "x")]
    found = evaluate("score", scorer, pairs).boundary_audit()["effect"]["results"]
    [(name, means)] = found.items()
    assert name == "mean log-probability per token"
    assert means["n"] == 2
    for boundary in ("joint", "separate"):
        values = [one.mean_logprob for one in scorer.score(pairs[:2], boundary=boundary)]
        assert means[boundary] == pytest.approx(math.fsum(values) / 2, abs=1e-4)


def test_what_is_scored_again_is_bounded(scorer, monkeypatch):
    item = {"context": "ANSWER: ", "continuation": "Oslo"}
    monkeypatch.setattr(audits, "SAMPLED_CHARACTERS", 150)  # of objects with two such texts
    assert 1 <= evaluate("score", scorer, [item] * 9).facts.boundary.n_items < 9


def test_scoring_again_is_in_no_counter_and_no_journal(tmp_path):
    with Scorer.from_pretrained(
        str(CASES / "models/tiny-gpt2"), dtype="float32", journal=tmp_path / "journal"
    ) as scorer:
        for restored in (0, 1):
            report = evaluate("score", scorer, [("ANSWER: ", "Oslo")])
            assert "effect" in report.boundary_audit()
            assert scorer.statistics.sequences == 1 + restored
            assert scorer.statistics.sequences_restored == restored
        scorer.score([("ANSWER: ", "Oslo")], boundary="separate")
        assert scorer.statistics.sequences_restored == 1


def test_a_run_that_is_resumed_gives_the_same_record(tmp_path):
    records = []
    for _ in range(2):
        with Scorer.from_pretrained(
            str(CASES / "models/tiny-gpt2"), dtype="float32", journal=tmp_path / "journal"
        ) as scorer:
            found = evaluate("chronologic", scorer, QUESTIONS, mode="full", boundary="separate")
            records.append([{**found.to_dict(), "settings": None}, found.items])
    assert records[0] == records[1]
    assert scorer.statistics.sequences_restored == scorer.statistics.sequences


@pytest.mark.parametrize("system", ITEMS)
def test_findings_come_before_all_numbers(scorer, system):
    report = evaluate(system, scorer, ITEMS[system], **MODE[system])
    raised = Effect(4, {"as_published": 1.0, "with_blank": 2.0}, n_answers=4, n_raised=4)
    report = dataclasses.replace(report, facts=dataclasses.replace(report.facts, blank=raised))
    [finding] = report.findings
    assert finding.startswith("With a space before the answer the ")
    first = report.markdown().split("\n\n")[1]
    assert first.removeprefix("**").startswith(finding[:60])
    assert f'<p class="verdict">{finding}. ' in report.html()
    assert report.to_dict()["findings"] == [finding]


@pytest.mark.parametrize(
    ("tokenizer", "space_alone", "space_joint"),
    [("byte_level", False, False), ("metaspace", True, False), ("unigram", True, False)],
)
def test_where_the_answer_of_paths_has_the_scripts_space(tokenizer, space_alone, space_joint):
    """The script encodes it alone: a dummy prefix writes a space, which `joint` has not."""
    encoder = TextEncoder(AutoTokenizer.from_pretrained(CASES / "tokenizers" / tokenizer))
    script = encoder.tokenizer.encode("Oslo", add_special_tokens=False)
    names = encoder.tokens(np.array(script))
    assert names[0].startswith(("▁", "Ġ")) == space_alone
    for policy, space in (("separate", space_alone), ("joint", space_joint)):
        [[one]] = encoder.encode([Request(0, "Question: Where? Answer:", "Oslo")], policy)
        ids = one.ids[one.first_scored :]
        assert encoder.tokens(ids)[0].startswith(("▁", "Ġ")) == space
        assert (ids.tolist() == script) == (space == space_alone)
