"""Text between a prompt and its answer: the scores of texts written by hand."""

import math

import pytest

from jaxscore import InputError, evaluate
from jaxscore.cli import app, settings_flags
from jaxscore.systems.chronologic import Settings
from jaxscore.systems.paths import DEFAULT_SYSTEM_PROMPT as SYSTEM

pytestmark = pytest.mark.numeric

PATHS = [{"question": "Where was Ada born?", "paths": [["Ada", "born in", "Oslo"]]}]
SHOT = {"question": "Who ran?", "paths": [["the cat", "ran", "Bo"]]}
QUESTIONS = [
    {"main_question": "Who?", "answer_strings": ["Ada", "Bo"], "answer_probabilities": [1.0, 0.0]}
]
SUITE = {
    "prompt": "Rules.",
    "context": [{"text": "It rains.", "expected": 0}],
    "posttext": "True?",
    "queries": ["Yes", "No"],
}
ITEMS = {"paths": PATHS, "chronologic": QUESTIONS, "probsem": SUITE}


@pytest.fixture
def scorer(scorers):
    return scorers("tiny-gpt2")


def found(scorer, pairs, boundary, what="mean_logprob"):
    values = [getattr(one, what) for one in scorer.score(pairs, boundary=boundary)]
    return pytest.approx(values, abs=1e-4)


@pytest.mark.parametrize(
    ("boundary", "policy"),
    [("separate", "separate"), ("joint", "joint"), ("upstream", "reencoded")],
)
def test_paths_scores_the_separator_with_the_answer(scorer, boundary, policy):
    report = evaluate(
        "paths", scorer, PATHS, answer_separator=" ", boundary=boundary, fewshot=[SHOT]
    )
    [one] = report.items[0]["path_evaluations"]
    asked = "Question: Where was Ada born? Answer:"
    without = f"{SYSTEM}\nQuestion: Who ran? Answer: Bo\n\n{asked}"
    path = "Support Path: the cat -> ran -> Bo\nQuestion: Who ran? Answer: Bo\n\n"
    with_path = f"{SYSTEM}\n{path}Support Path: Ada -> born in -> Oslo\n{asked}"
    got = [math.log(one["baseline_prob"]), math.log(one["retrieved_prob"])]
    assert got == found(scorer, [(without, " Oslo"), (with_path, " Oslo")], policy)
    assert one["answer"] == "Oslo"
    assert report.settings["answer_separator"] == " "


@pytest.mark.parametrize(
    ("boundary", "policy"),
    [("joint", "joint"), ("separate", "separate"), ("upstream", "skip_context")],
)
def test_chronologic_puts_the_separator_in_place_of_its_blank(scorer, boundary, policy):
    how = {"mode": "full", "boundary": boundary}
    for separator in (" ", "", "\n"):
        report = evaluate("chronologic", scorer, QUESTIONS, answer_separator=separator, **how)
        pairs = [("QUESTION: Who?\nANSWER:", separator + text) for text in ("Ada", "Bo")]
        assert report.items[0]["scores"] == found(scorer, pairs, policy)
    shots = [{**QUESTIONS[0], "main_question": "Which?"}]
    report = evaluate("chronologic", scorer, QUESTIONS, answer_separator="\n", fewshot=shots, **how)
    context = "QUESTION: Which?\nANSWER:\nAda\n\nQUESTION: Who?\nANSWER:"
    pairs = [(context, "\nAda"), (context, "\nBo")]
    assert report.items[0]["scores"] == found(scorer, pairs, policy)


@pytest.mark.parametrize(
    ("boundary", "policy"),
    [("joint", "exact"), ("separate", "separate"), ("upstream", "last_query")],
)
def test_probsem_puts_the_separator_in_place_of_its_line_end(scorer, boundary, policy):
    shots = [{"text": "It hails.", "expected": 1}]
    report = evaluate(
        "probsem", scorer, SUITE, answer_separator=" ", fewshot=shots, boundary=boundary
    )
    context = "Rules.\nIt hails.\nTrue? No\n\nIt rains.\nTrue?"
    pairs = [(context, " Yes"), (context, " No")]
    assert report.items[0]["logp"] == found(scorer, pairs, policy, "sum_logprob")


def test_by_default_texts_are_the_published_ones(scorer):
    report = evaluate("chronologic", scorer, QUESTIONS, mode="full")
    pairs = [("QUESTION: Who?\nANSWER: ", text) for text in ("Ada", "Bo")]
    assert report.items[0]["scores"] == found(scorer, pairs, "joint")
    assert report.settings["answer_separator"] is None


@pytest.mark.parametrize("system", ITEMS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"answer_separator": 3}, "setting answer_separator is 3, expected a text"),
        ({"answer_separator": "\ud83d"}, "answer_separator is a text that contains a lone"),
        (
            {"answer_separator": "", "apply_chat_template": True},
            "answer_separator and apply_chat_template: in a conversation the template writes",
        ),
    ],
)
def test_separators_that_cannot_be_used(system, settings, message):
    with pytest.raises(InputError, match=message):
        evaluate(system, None, ITEMS[system], **settings)


def test_chronologic_has_the_flag():
    words = ["m", "q.jsonl", "--answer-separator", ""]
    args = app.values(app.command("chronologic"), words)
    assert settings_flags.values(args, Settings)["answer_separator"] == ""


def test_a_separator_has_no_effect_on_letters(scorer):
    report = evaluate("chronologic", scorer, QUESTIONS, mode="mcq", answer_separator=" ")
    assert "setting answer_separator: of no effect in mode mcq, only in sample and full" in (
        report.remarks
    )
