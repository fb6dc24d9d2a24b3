"""Choices per token and calibrated, margins and bits per byte, against PyTorch's numbers."""

import json

import numpy as np
import pytest

from jaxscore import evaluate
from tests.conftest import CASES

pytestmark = pytest.mark.numeric

CASE = json.loads((CASES / "choose.json").read_text("utf-8"))
FIELDS = ("choice", "choice_token", "acc", "acc_token", "margin", "choice_calibrated")
ITEMS = [
    {"context": "Where is Oslo?\nAnswer:", "options": ["Norway", "Spain"], "gold": 0},
    {"context": "Where is Rome?\nAnswer:", "options": ["Norway", "Italy"], "gold": 1},
]


@pytest.mark.parametrize("model", ["tiny-qwen2", "tiny-llama3"])
@pytest.mark.parametrize("n_texts", [1, 2])
def test_reference_values(scorers, model, n_texts):
    texts = CASE["calibrate"][:n_texts]
    report = evaluate("choose", scorers(model), CASE["items"], calibrate=texts)
    for record in report.items:
        want = CASE["expected"][model][record["id"]]
        want = {**want, "gold_bpb": want["gold_bpb_with_blank"]}
        if n_texts == 1:
            want |= want["first_text_alone"]
        for name in (*FIELDS, "gold_bpb", "content_free", "probability_calibrated"):
            assert record[name] == pytest.approx(want[name], abs=1e-4), name
        assert record["acc_calibrated"] is (record["choice_calibrated"] == record["gold"])
    right = [record["acc_calibrated"] for record in report.items]
    assert report.summary["overall"]["acc_calibrated"].mean == pytest.approx(np.mean(right))
    assert ", acc_calibrated " in report.headline
    assert "**acc_calibrated** takes the one" in report.markdown()


def test_without_texts_nothing_is_calibrated(scorers):
    report = evaluate("choose", scorers("tiny-qwen2"), CASE["items"])
    assert not [name for record in report.items for name in record if "calibrated" in name]
    assert "acc_calibrated" not in report.headline + report.markdown()


def test_a_text_is_the_context_of_an_item_with_examples_and_separator(scorers):
    scorer = scorers("tiny-qwen2")
    settings = {"answer_separator": " ", "fewshot": ITEMS[1:], "calibrate": ["N/A\nAnswer: "]}
    [record, _] = evaluate("choose", scorer, ITEMS, **settings).items
    shot = "Where is Rome?\nAnswer: Italy\n\n"
    contexts = (f"{shot}{ITEMS[0]['context']}", f"{shot}N/A\nAnswer:")
    results = scorer.score(
        [(text, option) for text in contexts for option in (" Norway", " Spain")]
    )
    p = np.exp([result.sum_logprob for result in results]).reshape(2, 2)
    asked, free = p / p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(record["content_free"], free, atol=1e-5)
    ratio = asked / free
    np.testing.assert_allclose(record["probability_calibrated"], ratio / ratio.sum(), atol=1e-5)
    assert record["gold_bpb"] == pytest.approx(-np.log2(p[0, 0]) / len(" Norway"))
