"""Verdicts from labels, from whole labels and from text, against formulas written out."""

import dataclasses
import json
import math

import numpy as np
import pytest

from jaxscore.errors import InputError
from jaxscore.plan.requests import TokenSequence
from jaxscore.shell.settings import IntervalSettings
from jaxscore.systems.rag import Item, experiment_folder, judge, pointwise
from jaxscore.systems.rag.evaluator_file import UNKNOWN, Question, find, load
from jaxscore.text import chat_template
from jaxscore.types.requests import ChatRequest
from jaxscore.types.results import Generated, LabelScores, failed
from tests.conftest import CASES

MULTI = Question({"Correct": 1.0, "Partially correct": 0.5, "Wrong": 0.0}, "", "")


def item(response: str = "r") -> Item:
    return Item("q", response, ["a", "it's"], "who")


def written(*texts: str) -> list[Generated]:
    return [Generated(k, text, np.zeros(0, np.int32), "eos") for k, text in enumerate(texts)]


def texts(*answers: str) -> list[dict]:
    return pointwise.by_texts(MULTI, written(*answers))


def summarise(kind, verdicts, question=MULTI):
    return pointwise.compute_findings(question, verdicts, IntervalSettings(), kind).summary


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Correct", 1.0),
        (" Partially correct.", 0.5),  # its "correct" is no "Correct"
        ("I say: Wrong\n", 0.0),
        ("correct", UNKNOWN),
        ("", UNKNOWN),
        ("Correct, not Wrong", UNKNOWN),
        ("Correct Correct", 1.0),
        ("Incorrect", UNKNOWN),
        ("InCorrect", UNKNOWN),  # a whole word, unlike in the published scripts
    ],
)
def test_the_one_label_in_a_text(text, score):
    [verdict] = texts(text)
    assert (verdict["score"], verdict["known"]) == (score, score != UNKNOWN)
    assert verdict["texts"] == [text]


@pytest.mark.parametrize(
    ("options", "text", "labels"),
    [
        (("CORRECT", "INCORRECT"), "INCORRECT", ["INCORRECT"]),
        (("CORRECT", "INCORRECT"), "The response is CORRECT.", ["CORRECT"]),
        (("CORRECT", "INCORRECT"), "CORRECT or INCORRECT?", ["INCORRECT", "CORRECT"]),
        (("1", "10"), "10", ["10"]),
        (("1", "10"), "**1**", ["1"]),
        (("1", "5", "10"), "0.5, -1, 1.5, 100", []),
        (("Yes", "No"), "Not sure.", []),
        (("Yes", "No"), "None of the No-one's, north.", []),
        (("Yes", "No"), "'No'.", ["No"]),
        (("Yes", "No"), "Yesterday, no", []),
        (("Correct", "Partially Correct"), "Partially Correct", ["Partially Correct"]),
        (("Correct", "Not Correct"), "Not Correct, then Correct", ["Not Correct", "Correct"]),
        (("\u6b63\u786e", "\u4e0d\u6b63\u786e"), "\u56de\u7b54\u4e0d\u6b63\u786e\u3002",
         ["\u4e0d\u6b63\u786e"]),
        (("\u6b63\u786e", "\u4e0d\u6b63\u786e"), "\u56de\u7b54\u6b63\u786e\u3002",
         ["\u6b63\u786e"]),
        (("A)", "(B"), "A) or(B", ["A)", "(B"]),
    ],
)  # fmt: skip
def test_labels_are_whole_words_and_the_longest_wins(options, text, labels):
    question = Question(dict.fromkeys(options, 1.0), "", "")
    assert question.labels_in(text) == labels
    published = dataclasses.replace(question, label_match="substring")
    assert published.labels_in(text) == [label for label in options if label in text]


@pytest.mark.parametrize("text", ["No" * 200_000, "Yes No " * 50_000, "-" * 400_000 + "No"])
def test_labels_of_long_answers_are_read_in_linear_time(text):
    Question({"Yes": 1.0, "No": 0.0}, "", "").labels_in(text)


def test_what_names_no_label_or_several_is_outside_the_mean():
    summary = summarise("text", texts("Correct", "?", "Wrong", "Correct Wrong", "Correct"))
    assert summary["mean"] == pytest.approx(2 / 3)
    assert (summary["n"], summary["n_none"], summary["n_several"]) == (3, 1, 1)
    assert summary["labels"] == {
        "Correct": {"worth": 1.0, "n": 2, "probability": None},
        "Partially correct": {"worth": 0.5, "n": 0, "probability": None},
        "Wrong": {"worth": 0.0, "n": 1, "probability": None},
    }
    assert summary["outside"] is None


def test_a_mean_over_nothing():
    """Nothing, and not 0, whether the judge was asked or not."""
    assert summarise("text", texts("?", ""))["mean"] is None
    assert summarise("text", [])["mean"] is None
    error = Generated(0, "", np.zeros(0, np.int32), None, error="gone")
    [verdict] = pointwise.by_texts(MULTI, [error])
    assert (verdict["score"], verdict["known"], verdict["error"]) == (None, None, "gone")
    summary = summarise("logits", [verdict])
    assert (summary["mean"], summary["n_none"]) == (None, 0)


def label_scores(logprob: list[float]) -> LabelScores:
    weights = np.exp(logprob)
    return LabelScores(0, np.array(logprob), weights / weights.sum(), 1 - float(weights.sum()))


def test_labels_are_weighed_by_their_probability():
    scores = [label_scores([-1.0, -2.0, -3.0]), label_scores([-9.0, -0.1, -9.0])]
    one, other = pointwise.by_labels(MULTI, scores)
    e = [math.exp(-k) for k in (1, 2, 3)]
    assert one["score"] == pytest.approx((e[0] + 0.5 * e[1]) / sum(e), abs=1e-15)
    assert one["probability"] == pytest.approx(
        {"Correct": e[0] / sum(e), "Partially correct": e[1] / sum(e), "Wrong": e[2] / sum(e)}
    )
    assert one["outside"] == pytest.approx(1 - sum(e))
    summary = summarise("logits", [one, other])
    assert summary["mean"] == pytest.approx((one["score"] + other["score"]) / 2)
    assert summary["outside"] == pytest.approx((one["outside"] + other["outside"]) / 2)
    assert [label["n"] for label in summary["labels"].values()] == [1, 1, 0]
    assert sum(label["probability"] for label in summary["labels"].values()) == pytest.approx(1)


def test_what_could_not_be_scored_keeps_the_others():
    bad = LabelScores(0, np.zeros(0), np.zeros(0), 0.0, "too long")
    one, other = pointwise.by_labels(MULTI, [bad, label_scores([-1.0, -1.0, -1.0])])
    assert (one["score"], one["probability"], one["error"]) == (None, {}, "too long")
    assert other["score"] == pytest.approx(0.5)
    summary = summarise("logits", [one, other])
    assert (summary["n"], summary["mean"]) == (1, pytest.approx(0.5))
    whole = pointwise.by_sequences(MULTI, [failed("0", "too long")] * 3)
    assert (whole[0]["score"], whole[0]["error"]) == (None, "too long")


def test_the_prompt_holds_the_references_as_python_prints_them():
    question = load(find("default_qa")).pointwise
    [messages] = pointwise.render_conversations(question, [item("{question}")], system=True)
    assert messages[1]["content"].endswith(
        "Question: who. \nGolden answer: ['a', \"it's\"] \n Generated answer: {question}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-qwen2"])
@pytest.mark.parametrize("name", ["default_qa", "default_multi_qa"])
def test_the_cases(scorers, model, name):
    """Logit and text mode, both folders."""
    every = json.loads((CASES / f"expected/{model}/judge.json").read_text(encoding="utf-8"))
    evaluator = load(find(name))
    question, scorer = evaluator.pointwise, scorers(model)
    system = chat_template.takes_system(scorer.encoder.tokenizer)
    for side in ("ours", "theirs"):
        want = every[f"{name} {side}"]
        items = experiment_folder.load(CASES / "judge" / side, "dev").usable
        asked = pointwise.render_conversations(question, items, system=system)
        verdicts = judge.weigh(scorer, judge.Settings(evaluator=evaluator), asked)
        ids = [one.q_id for one in items]
        scores = {id: one["score"] for id, one in zip(ids, verdicts, strict=True)}
        assert scores == pytest.approx(want["scores"], abs=1e-5)
        mean = summarise("logits", verdicts, question)["mean"]
        assert mean == pytest.approx(want["mean"], abs=1e-5)
        for one in verdicts:
            assert sum(one["probability"].values()) == pytest.approx(1)
            assert 0 < one["outside"] < 1
        requests = [ChatRequest(k, one, evaluator.max_new_tokens) for k, one in enumerate(asked)]
        verdicts = pointwise.by_texts(question, scorer.generate(requests))
        scores = {id: one["score"] for id, one in zip(ids, verdicts, strict=True)}
        assert scores == want["text_scores"]
        # The published script writes 0 for a mean over nothing.
        known = [score for score in want["text_scores"].values() if score != UNKNOWN]
        mean = summarise("text", verdicts, question)["mean"]
        assert mean == (want["text_mean"] if known else None)


def test_whole_labels_are_the_chain_of_their_tokens(scorers):
    """Against the next-token distributions, one token at a time."""
    scorer = scorers("tiny-gpt2")
    system = chat_template.takes_system(scorer.encoder.tokenizer)
    evaluator = load(find("default_multi_qa"))
    asked = pointwise.render_conversations(evaluator.pointwise, [item()], system=system)
    settings = judge.Settings(evaluator=evaluator, label_score="sequence")
    [verdict] = judge.weigh(scorer, settings, asked)
    prompt = chat_template.render(scorer.encoder.tokenizer, asked[0])
    [context] = scorer.encoder.prompt_ids([prompt])
    sums = []
    for label in evaluator.pointwise.options:
        ids = scorer.encoder.tokenizer.encode(label, add_special_tokens=False)
        assert len(ids) > 1
        text, total = list(context), 0.0
        for id in ids:
            [scores] = scorer.score_sequences(
                [TokenSequence(np.array([*text, id], np.int32), len(text))]
            )
            total += float(scores.logprob[-1])
            text.append(id)
        sums.append(total)
    weights = np.exp(np.array(sums) - max(sums))
    assert list(verdict["probability"].values()) == pytest.approx(weights / weights.sum(), abs=1e-5)
    assert verdict["score"] == pytest.approx((weights @ [1, 0.5, 0]) / weights.sum(), abs=1e-5)
    assert verdict["outside"] == pytest.approx(1 - np.exp(sums).sum(), abs=1e-6)


def test_labels_that_share_their_first_token_are_named(scorers, tmp_path):
    text = find("default_qa").read_text(encoding="utf-8")
    path = tmp_path / "own.yaml"
    path.write_text(text.replace("'No'", "'Yesterday'"), encoding="utf-8")
    scorer = scorers("tiny-gpt2")
    first = [scorer.encoder.tokenizer.encode(label)[0] for label in ("Yes", "Yesterday")]
    assert first[0] == first[1]  # else the case is none
    with pytest.raises(InputError) as caught:
        judge.weigh(scorer, judge.Settings(evaluator=load(path)), [])
    for part in ("own.yaml", "'Yes'", "'Yesterday'", "--label-score sequence"):
        assert part in str(caught.value)
