"""Which outputs are right, and what their confidences are worth."""

import json
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from jaxscore.analysis.bootstrap import proportion
from jaxscore.errors import InputError, NothingUsable
from jaxscore.evaluate import evaluate
from jaxscore.systems.self_certainty import Settings, right_responses
from jaxscore.systems.self_certainty.confidences import Confidence, read_inputs
from jaxscore.types.requests import Request

NAMES = ("self-certainty", "negative mean entropy", "mean log-probability", "negative perplexity")


def answer(value):
    return json.dumps({"answer": value})


def items(*given):
    return [
        read_inputs(f"item {k}", {"model_input": "q", **one}, Settings())
        for k, one in enumerate(given, start=1)
    ]


def known(*logprobs):
    """Confidences whose four values are -1, -2, 3 and 4 times as far from 0 as these."""
    return Confidence(
        [None if one is None else -one for one in logprobs],
        {k: "why" for k, one in enumerate(logprobs) if one is None},
        {
            "mean_logprob_list": list(logprobs),
            "mean_entropy_list": [None if one is None else one * one for one in logprobs],
            "perplexity_list": [None if one is None else math.exp(-one) for one in logprobs],
        },
    )


def test_rights_and_what_is_left_out():
    found = right_responses.grade_responses(
        items(
            {"output": [answer(1), "no", answer(2)], "g": 2},
            {"output": [answer(1)], "g": None},
            {"output": [answer("x"), None, 7], "g": [False, True, False]},
            {"output": [answer(1)], "g": [True, True]},
            {"output": "bad", "g": "1"},
            {"output": [answer("1/2"), answer("1")], "g": [".5", "7"]},
        ),
        "g",
    )
    assert {place: one.right for place, one in found.graded.items()} == {
        0: [False, False, True], 2: [False, True, False], 5: [True, False],
    }  # fmt: skip
    assert found.without == ["item 2"]
    assert list(found.errors) == [3]
    assert "has 2 verdicts for 1 responses" in found.errors[3]
    assert found.sizes == [1, 2, 3]
    assert found.graded[0].majority == {1: 0, 2: 0, 3: 0}
    with pytest.raises(NothingUsable, match=r'no item has gold in field "h"; .* \'model_input\''):
        right_responses.grade_responses(items({"output": ["a"]}), "h")


def test_the_report_of_known_confidences():
    given = items(
        {"output": [answer(1), answer(2), answer(2)], "g": 1},
        {"output": [answer(3), answer(1)], "g": 1},
        {"output": [answer(5), answer(6)], "g": 6},
        {"output": [answer(5)]},
    )
    logprobs = ([-1.0, -0.5, None], [-3.0, -0.25], [-0.125, -2.0], [-9.0])
    found = right_responses.grade_responses(given, "g")
    report = right_responses.report(given, [known(*one) for one in logprobs], found, 50, 0)
    quality = report["quality"]
    assert (quality["n_items"], quality["n_responses"], quality["n_right"]) == (3, 6, 3)
    assert (quality["n_without_confidence"], quality["without_gold"]) == (1, ["item 4"])
    values = np.array([-1.0, -0.5, -3.0, -0.25, -0.125, -2.0])
    right = [True, False, False, True, False, True]
    assert tuple(quality["confidences"]) == NAMES
    for name, sign in zip(NAMES, (-1, None, 1, 1), strict=True):
        own = -(values**2) if sign is None else sign * values
        one = quality["confidences"][name]
        assert one["auroc"]["value"] == pytest.approx(roc_auc_score(right, own))
        assert (one["ece"] is None) is (name != "negative perplexity")
    # Bins of exp(-1), exp(-.5), exp(-3), exp(-.25), exp(-.125), exp(-2): one response each, but
    # those of 0.78 and 0.88 in bins of their own too.
    gaps = [abs(math.exp(v) - r) for v, r in zip(values, right, strict=True)]
    assert quality["confidences"]["negative perplexity"]["ece"] == pytest.approx(np.mean(gaps))
    rows = {(row["way"], row["best_n"]): row["accuracy"] for row in report["best_of_n"]}
    # The most probable of the first N: 1 of 3 right at N = 1, then items 1 to 3 take 2, 2 and 1.
    assert rows["mean log-probability", 1] == proportion([True, False, False])
    assert rows["mean log-probability", 3] == proportion([False, True, False])
    assert rows["self-certainty", 3] == proportion([True, False, True])
    assert rows["majority vote", 3] == proportion([False, False, False])
    assert rows["oracle", 3] == proportion([True, True, True])
    assert [(one["name"], one["output"]) for one in report["wrong"]] == [
        ("item 2", 1), ("item 1", 2), ("item 3", 1),
    ]  # fmt: skip


def test_verdicts_on_outputs_without_answers():
    """Where no output of an item has an answer, the most confident of all is taken."""
    given = items(
        {"output": ["a", "b"], "g": [False, True]}, {"output": ["a", "b"], "g": [True] * 2}
    )
    found = right_responses.grade_responses(given, "g")
    report = right_responses.report(given, [known(-2.0, -1.0)] * 2, found, 9, 0)
    rows = {(row["way"], row["best_n"]): row["accuracy"].mean for row in report["best_of_n"]}
    assert rows["mean log-probability", 2] == 1.0
    assert rows["first sample", 2] == 0.5


def test_lists_are_those_of_the_scorer(scorers):
    scorer = scorers("tiny-qwen2")
    given = [{"id": k, "model_input": f"{k} + 1 =", "g": "2", "output": [answer(2), f" {k}", ""]}
             for k in range(2)]  # fmt: skip
    plain = evaluate("self-certainty", scorer, given)
    found = evaluate("self-certainty", scorer, given, gold="g", n_bootstrap=9)
    for one, before, item in zip(found.items, plain.items, given, strict=True):
        assert one["confidence_list"] == before["confidence_list"]
        assert one["right"] == [True, False, False]
        added = {"right", "answer_forms", "mean_logprob_list", "mean_entropy_list",
                 "perplexity_list"}  # fmt: skip
        assert set(one) - set(before) == added
        for place, text in enumerate(item["output"][:2]):
            asked = [Request(0, item["model_input"], text)]
            [scored] = scorer.score(asked, boundary="separate", special_tokens=False)
            assert one["mean_logprob_list"][place] == pytest.approx(scored.mean_logprob, abs=1e-5)
            assert one["mean_entropy_list"][place] == pytest.approx(scored.mean_entropy, abs=1e-5)
            assert one["perplexity_list"][place] == pytest.approx(scored.perplexity, rel=1e-4)
        assert one["mean_logprob_list"][2] is None
    quality = found.found.details["quality"]
    assert (quality["n_responses"], quality["n_right"], quality["n_without_confidence"]) == (
        4,
        2,
        2,
    )
    assert found.settings["gold"] == "g"
    assert "gold" not in plain.settings
    page = found.markdown()
    assert "4 outputs of 2 items have gold and a confidence; 2 are right." in page
    assert "2 outputs have gold and no confidence, and are left out." in page
    assert "## Right outputs" not in plain.markdown()
    json.loads(found.json())


@pytest.mark.parametrize(
    ("outputs", "golds", "reported"),
    [
        ([" a", " b"], [True, True], "no AUROC: all responses are right"),
        ([" a", " b"], [False, False], "no AUROC: all responses are wrong"),
        ([" a"], [True], "no AUROC: there are fewer than two responses"),
        ([""], [True], "no AUROC: no output has gold and a confidence"),
    ],
)
def test_what_cannot_be_told_says_why(scorers, outputs, golds, reported):
    given = [{"model_input": "Who?", "output": outputs, "g": golds}]
    found = evaluate("self-certainty", scorers("tiny-qwen2"), given, gold="g", n_bootstrap=9)
    assert found.headline.endswith(reported)
    page = found.markdown()
    if len(outputs) < 2:
        assert "| AUROC |" not in page
    else:
        assert f"AUROC and PRR are not defined: {reported.removeprefix('no AUROC: ')}." in page
    json.loads(found.json())


def test_log_probabilities_of_the_published_alignment_are_refused(scorers):
    given = [{"model_input": "Who?", "output": ["a"], "g": "x"}]
    with pytest.raises(InputError, match="take alignment formula"):
        evaluate("self-certainty", None, given, gold="g", alignment="upstream")
    with pytest.raises(InputError, match="setting gold is ''"):
        evaluate("self-certainty", None, given, gold="")
