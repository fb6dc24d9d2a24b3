"""`audit_noise`: numbers in other layouts, and the documents that could change."""

import numpy as np
import pytest
from lm_eval.api.instance import Instance

from jaxscore.adapters.lm_eval import JaxscoreLM, outputs

pytestmark = pytest.mark.filterwarnings("ignore")


def request(task, document, choice, context="The cat", continuation=" sat"):
    place = (task, document, 1)
    return Instance("loglikelihood", {}, (context, continuation), choice, place)


def audited(rows, spread):
    """(task, document, choice, context, total) of each request, in a layout `spread` away."""
    totals = [total for *_, total in rows]
    moved = [type("Scores", (), {"logprob": np.float32([one + spread])}) for one in totals]
    other = type("Other", (), {"score_sequences": lambda self, some: [moved[k] for k in some]})()
    scorer = type("Scorer", (), {"other_layouts": lambda self: {"other": other}})()
    requests = [request(*one[:4]) for one in rows]
    return outputs.audit_noise(scorer, len(rows), requests, range(len(rows)), totals)


def test_documents_whose_best_two_are_near():
    rows = [
        ("a", 0, 0, "x", -1.0), ("a", 0, 1, "x", -1.75), ("a", 0, 2, "x", -9.0),  # near
        ("a", 1, 0, "x", -1.0), ("a", 1, 1, "x", -2.25),  # apart
        ("b", 0, 0, "x", -5.0), ("b", 0, 1, "x", -5.0),  # equal
        ("c", 0, 0, "x", -5.0),  # no choices
    ]  # fmt: skip
    found = audited(rows, 0.5)
    assert (found["requests"], found["largest_spread"]) == (8, 0.5)
    assert found["layouts"] == ["as in the run", "other"]
    assert found["tasks"] == {
        "a": {"documents": 2, "undecided": 1},
        "b": {"documents": 1, "undecided": 1},
    }


def test_choices_without_their_context_are_no_choices_of_their_own():
    rows = [
        ("a", 0, 0, "x", -9.0), ("a", 0, 1, "x", -5.0),
        ("a", 0, 2, "", -4.9), ("a", 0, 3, "", -6.0),
        ("b", 0, 0, "", -1.0), ("b", 0, 1, "", -1.1),
    ]  # fmt: skip
    assert audited(rows, 0.125)["tasks"] == {
        "a": {"documents": 1, "undecided": 0},
        "b": {"documents": 1, "undecided": 1},
    }


def test_of_a_model():
    model = JaxscoreLM("demo", audit_noise=3)
    some = [request("a", k // 2, k % 2, continuation=f" sat {k}") for k in range(8)]
    totals = model.loglikelihood(some, disable_tqdm=True)
    [found] = model.get_model_info()["jaxscore"]["noise"]
    assert found["requests"] == 3
    assert len(found["layouts"]) == 4
    assert 0 <= found["largest_spread"] < 1e-3
    assert found["tasks"] == {"a": {"documents": 4, "undecided": 0}}
    assert totals == JaxscoreLM(model.scorer).loglikelihood(some, disable_tqdm=True)
