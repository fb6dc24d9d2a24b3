"""A sample that is scored with a blank before the answers, and under the other boundaries."""

import dataclasses
import math

import numpy as np
import pytest
from jaxscore.systems.audits import Answers
from transformers import AutoTokenizer

from jaxscore import Request, Scorer, evaluate
from jaxscore.io.json_input import read_jsonl
from jaxscore.systems import audits, scoring_run
from jaxscore.systems.probsem.suite import load
from jaxscore.text.encoder import TextEncoder
from jaxscore.types.results import failed
from tests.conftest import CASES
from tests.systems.probsem.test_system import scored

PATHS = [item for _, item in read_jsonl(CASES / "paths/input.jsonl")]
QUESTIONS = [item for _, item in read_jsonl(CASES / "chronologic/questions.jsonl")]
SUITE = load(CASES / "probsem", "towns", "A")
OTHER_LAYOUT = dataclasses.replace(  # `upstream` writes another text: see `Suite.split`
    SUITE, prompt="", queries=("So it is:\nyes", "So it is:\nno", "maybe")
)
ITEMS = {"paths": PATHS[:6], "chronologic": QUESTIONS, "probsem": SUITE}
MODE = {"paths": {}, "chronologic": {"mode": "full"}, "probsem": {}}


@pytest.fixture
def scorer(scorers):
    return scorers("tiny-gpt2")


def result(system, report):
    """The number that a finding names, over all items."""
    if system == "paths":
        return {"mean improvement": report.summary["absolute"].mean}
    if system == "chronologic":
        return {"mean Brier score": report.summary["overall"]["brier"].mean}
    logp = [math.fsum(one["logp"]) / len(one["logp"]) for one in report.items]
    return {"accuracy": report.summary["accuracy"].mean, "mean logp": math.fsum(logp) / len(logp)}


def close(values):
    return pytest.approx(values, rel=1e-3, abs=1e-9)


def test_a_sample_is_spread_over_the_items():
    assert audits.spread(3) == [0, 1, 2]
    assert audits.spread(0) == []
    assert audits.spread(10, most=4) == [0, 2, 5, 7]
    assert len(audits.spread(10_000)) == audits.SAMPLED


def test_means_are_over_items_that_have_a_number_in_every_way():
    ways = {"one": {"x": [1.0, None, math.inf, 3.0], "y": [None] * 4}}
    ways["other"] = {"x": [2.0, 5.0, 1.0, 2.0], "y": [1.0] * 4}
    assert audits.means(ways) == {"x": {"n": 2, "one": 2.0, "other": 2.0}}


def record(own, blanks):
    answers = Answers(
        what="paths",
        units=range(len(own)),
        requests=lambda *_: [Request(0, "", "x")],
        measure=lambda _, found, __: {"mean improvement": found[0].mean_logprob},
    )
    return audits.blank_record(answers, own, blanks, "separate")


def test_a_blank_that_raises_most_answers_is_a_finding():
    own = [scored(-4.0), scored(-2.0), scored(-3.0)]
    found = record(own, [scored(-1.0), scored(-1.0), scored(-4.0)])
    assert found["finding"] == (
        "With a blank before the answer the mean improvement is -2 instead of -3; see "
        "--answer-separator (a sample of 3 paths; the blank raises the probability of 2 of 3 "
        "answers)"
    )
    half = record(own[1:], [scored(-1.0), scored(-4.0)])
    assert (half["n_raised"], half["raises_most"], half["finding"]) == (1, False, None)


def test_an_answer_that_fails_with_the_blank_is_left_out_alone():
    own = [scored(-4.0), scored(-2.0)]
    found = record(own, [scored(-1.0), failed("", "too long")])
    assert (found["n_items"], found["n_answers"], found["n_raised"]) == (1, 1, 1)
    nothing = record(own, [failed("", "too long")] * 2)
    assert (nothing["results"], nothing["raises_most"], nothing["finding"]) == ({}, False, None)


def test_blanks_of_two_runs_are_those_of_one():
    own, blanks = ([scored(x) for x in values] for values in ((-4.0, -2.0, -3.0), (-1.0, -1.0, -4)))
    parts = [record(own[:1], blanks[:1]), record(own[1:], blanks[1:])]
    none = {"not_scored": "why"}
    assert audits.united_blanks([none, *parts]) == record(own, blanks)
    assert audits.united_blanks([none, none]) == none


def test_boundary_audits_of_two_runs_are_that_of_one():
    def audit(n, changed, own, other, **more):
        results = {"mean": {"n": n, "joint": own, "separate": other}}
        effect = {"what": "requests", "results": results, "advice": "joint"}
        return {"n_requests": n, "changed": {"separate": changed}, **more, "effect": effect}

    same, moved = audit(3, 0, 1.0, 1.0), audit(1, 1, 5.0, 9.0, n_too_long=1)
    assert audits.united_boundaries([same, moved]) == audit(4, 1, 2.0, 3.0, n_too_long=1)
    assert audits.united_boundaries([same, same]) == {"n_requests": 6, "changed": {"separate": 0}}
    without = {"n_requests": 3, "changed": {"separate": 0}}  # as in an earlier version's manifest
    assert "effect" not in audits.united_boundaries([without, moved])
    assert "effect" in audits.united_boundaries([without | {"n_requests": 0}, moved])


def test_results_of_two_runs_have_their_order():
    ways = [f"way {k}" for k in range(40)]
    results = {"mean": {"n": 1, **dict.fromkeys(ways, 1.0)}}
    audit = {"n_requests": 1, "changed": {"separate": 1}, "effect": {"results": results}}
    united = audits.united_boundaries([audit, audit])["effect"]["results"]["mean"]
    assert list(united) == ["n", *ways]


@pytest.mark.parametrize(
    ("system", "boundary"),
    [("paths", "separate"), ("paths", "upstream"), ("chronologic", "separate"),
     ("chronologic", "upstream"), ("probsem", "joint"), ("probsem", "upstream")],
)  # fmt: skip
def test_the_blank_of_the_sample_is_that_of_the_flag(scorer, system, boundary):
    how = {**MODE[system], "boundary": boundary}
    plain = evaluate(system, scorer, ITEMS[system], **how)
    found = plain.to_dict()["answer_blank"]
    flag = evaluate(system, scorer, ITEMS[system], answer_separator=" ", **how)
    for way, report in (("as_published", plain), ("with_blank", flag)):
        assert {name: one[way] for name, one in found["results"].items()} == close(
            result(system, report)
        )
    assert (
        (found["finding"] is not None)
        == found["raises_most"]
        == (2 * found["n_raised"] > found["n_answers"])
    )
    assert plain.evaluation.findings == [found["finding"]] * found["raises_most"]
    reported = f"raises the probability of {found['n_raised']} of {found['n_answers']} answers"
    assert reported in plain.markdown()
    assert reported in plain.html()
    assert flag.to_dict()["answer_blank"] == {"not_scored": "answer_separator is given"}


def test_the_main_result_is_as_without_the_sample(scorers, monkeypatch):
    scorer = scorers("tiny-gpt2", reproducible=True)
    with_sample = evaluate("paths", scorer, PATHS)
    monkeypatch.setattr(audits, "spread", lambda n: [])
    alone = evaluate("paths", scorer, PATHS)
    assert "results" not in alone.to_dict()["answer_blank"]
    assert with_sample.items == alone.items


def test_a_blank_that_is_scored_already_is_not_scored_again(scorer):
    report = evaluate("chronologic", scorer, QUESTIONS, mode="full")
    assert report.to_dict()["answer_blank"] == {
        "not_scored": "a blank is part of the answers already"
    }
    items = [{"question": "?", "paths": [["a", " b"]]}]
    assert evaluate("paths", scorer, items).to_dict()["answer_blank"] == {
        "not_scored": "no sampled answer is without a blank before it"
    }


def test_a_conversation_has_no_blank_to_try(scorers):
    report = evaluate("paths", scorers("tiny-qwen2"), PATHS[:1], apply_chat_template=True)
    assert "the chat template writes" in report.to_dict()["answer_blank"]["not_scored"]


@pytest.mark.parametrize(
    ("system", "items", "fewshot"),
    [*((system, items, False) for system, items in ITEMS.items()),
     ("probsem", OTHER_LAYOUT, False), ("probsem", OTHER_LAYOUT, True)],
)  # fmt: skip
def test_the_effect_of_a_boundary_is_what_a_run_with_it_gives(scorer, system, items, fewshot):
    own = {"paths": "separate"}.get(system, "joint")
    how = {**MODE[system], **({"fewshot": items.contexts[:1]} if fewshot else {})}
    report = evaluate(system, scorer, items, **how)
    effect = report.to_dict()["boundary_audit"]["effect"]
    for boundary in ("joint", "separate", "upstream"):
        want = result(system, evaluate(system, scorer, items, **how, boundary=boundary))
        got = {name: one[boundary] for name, one in effect["results"].items()}
        assert got == close(want)
    assert effect["advice"].startswith(f"{own}, the formula of the paper")
    line, moved = report.evaluation.boundary.split("\n")
    assert line.startswith(f"{own}: of ")
    assert moved.endswith(f"; believe {effect['advice']}")
    assert f"Which one to believe: {own}, the formula" in report.markdown()


def test_the_audit_counts_queries_that_another_boundary_writes_otherwise(scorers):
    """This tokenizer has the same tokens under `upstream`, which still scores another text."""
    scorer, suite = scorers("tiny-qwen2"), dataclasses.replace(SUITE, prompt="")
    counts = evaluate("probsem", scorer, suite).to_dict()["boundary_audit"]
    assert counts["changed"]["upstream"] == counts["n_queries"] > 0
    back = evaluate("probsem", scorer, suite, boundary="upstream").to_dict()["boundary_audit"]
    assert back["changed"]["joint"] == counts["changed"]["upstream"]


def test_a_long_answer_of_paths_is_compared_under_no_boundary(scorer, monkeypatch):
    monkeypatch.setattr(audits, "AUDITED_CHARACTERS", 20)
    answers = ("São Tomé", "Oslo", "São Tomé " * 9)
    items = [{"question": "Where?", "paths": [["a", answer] for answer in answers]}]
    scored_again, score = [], scoring_run.ScoringRun._scores

    def spy(self, requests, policy):
        if policy == "reencoded":
            scored_again.extend(request.continuation for request in requests)
        return score(self, requests, policy)

    monkeypatch.setattr(scoring_run.ScoringRun, "_scores", spy)
    found = evaluate("paths", scorer, items).to_dict()["boundary_audit"]
    assert found["n_too_long"] == 2  # the answer without and with its path
    [moved] = found["effect"]["results"].values()
    assert moved["n"] == 2
    assert scored_again
    assert max(map(len, scored_again)) <= 20
    short = evaluate("paths", scorer, [{**items[0], "paths": items[0]["paths"][:2]}])
    [same] = short.to_dict()["boundary_audit"]["effect"]["results"].values()
    assert moved == close(same)


def test_boundaries_that_change_nothing_cost_nothing(scorer, monkeypatch):
    scored_again = []
    monkeypatch.setattr(audits.BoundaryAudit, "_under", lambda *_: scored_again.append(1))
    report = evaluate("score", scorer, [("The cat", " sat"), "A text"])
    assert report.to_dict()["boundary_audit"] == {"n_requests": 2, "changed": {"separate": 0}}
    assert not scored_again


def test_score_says_how_far_the_other_boundary_moves_it(scorer):
    pairs = [("ANSWER: ", "Oslo"), ("The cat", " sat"), ("", "x")]
    effect = evaluate("score", scorer, pairs).to_dict()["boundary_audit"]["effect"]
    means = {
        boundary: [one.mean_logprob for one in scorer.score(pairs[:2], boundary=boundary)]
        for boundary in ("joint", "separate")
    }
    [(name, found)] = effect["results"].items()
    assert name == "mean log-probability per token"
    assert found["n"] == 2
    for boundary, values in means.items():
        assert found[boundary] == pytest.approx(math.fsum(values) / 2, abs=1e-4)


def test_what_is_scored_again_is_bounded(scorer, monkeypatch):
    monkeypatch.setattr(audits, "RESCORED_CHARACTERS", 30)
    effect = evaluate("score", scorer, [("ANSWER: ", "Oslo")] * 9).to_dict()["boundary_audit"][
        "effect"
    ]
    assert effect["results"]["mean log-probability per token"]["n"] == 2


def test_scoring_again_is_in_no_counter_and_no_journal(tmp_path):
    with Scorer.from_pretrained(
        str(CASES / "models/tiny-gpt2"), dtype="float32", journal=tmp_path / "journal"
    ) as scorer:
        for restored in (0, 1):
            report = evaluate("score", scorer, [("ANSWER: ", "Oslo")])
            assert "effect" in report.to_dict()["boundary_audit"]
            assert scorer.statistics.sequences == 1 + restored
            assert scorer.statistics.sequences_restored == restored
        scorer.score([("ANSWER: ", "Oslo")], boundary="separate")
        assert scorer.statistics.sequences_restored == 1


def test_the_blanks_are_counted_by_name(scorer):
    before = scorer.statistics.sequences, scorer.statistics.sampled_with_blank
    answers = [{"question": "Where?", "paths": [["a", "Oslo"], ["a", " Riga"]]}]
    evaluate("paths", scorer, answers)
    after = scorer.statistics.sequences, scorer.statistics.sampled_with_blank
    assert [new - old for new, old in zip(after, before, strict=True)] == [4 + 2, 2]
    assert scorer.facts()["counts"]["answers_sampled_with_blank"] >= 2


def test_a_run_that_is_resumed_gives_the_same_record(tmp_path):
    records = []
    for _ in range(2):
        with Scorer.from_pretrained(
            str(CASES / "models/tiny-gpt2"), dtype="float32", journal=tmp_path / "journal"
        ) as scorer:
            found = evaluate("chronologic", scorer, QUESTIONS, mode="full", boundary="separate")
            records.append({**found.to_dict(), "settings": None})
    assert records[0] == records[1]
    assert scorer.statistics.sequences_restored == scorer.statistics.sequences


@pytest.mark.parametrize("system", ITEMS)
def test_findings_come_before_all_numbers(scorer, system):
    report = evaluate(system, scorer, ITEMS[system], **MODE[system])
    evaluation = dataclasses.replace(report.evaluation, findings=["With a *blank* it is 2"])
    report = dataclasses.replace(report, evaluation=evaluation)
    first = report.markdown().split("\n\n")[1]
    assert first.removeprefix("**").startswith(r"With a \*blank\* it is 2.")
    assert '<p class="verdict">With a *blank* it is 2. ' in report.html()
    assert report.to_dict()["findings"] == ["With a *blank* it is 2"]


@pytest.mark.parametrize(
    ("tokenizer", "blank_alone", "blank_joint"),
    [("byte_level", False, False), ("metaspace", True, False), ("unigram", True, False)],
)
def test_where_the_answer_of_paths_has_the_scripts_blank(tokenizer, blank_alone, blank_joint):
    """The script encodes it alone: a dummy prefix writes a blank, which `joint` has not."""
    encoder = TextEncoder(AutoTokenizer.from_pretrained(CASES / "tokenizers" / tokenizer))
    script = encoder.tokenizer.encode("Oslo", add_special_tokens=False)
    names = encoder.tokens(np.array(script))
    assert names[0].startswith(("▁", "Ġ")) == blank_alone
    for policy, blank in (("separate", blank_alone), ("joint", blank_joint)):
        [[one]] = encoder.encode([Request(0, "Question: Where? Answer:", "Oslo")], policy)
        ids = one.ids[one.first_scored :]
        assert encoder.tokens(ids)[0].startswith(("▁", "Ġ")) == blank
        assert (ids.tolist() == script) == (blank == blank_alone)
