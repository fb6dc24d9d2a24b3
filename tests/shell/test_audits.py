"""Audits: what a model notes, the system run again on a sample, and facts that add up."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore import InputError, Request, evaluate
from jaxscore.shell.audits import AuditedLM, Effect, Facts
from jaxscore.shell.rounding_audit import Noise, Spread
from jaxscore.shell.system import Aside
from jaxscore.systems.choose import Settings

COUNTS = st.dictionaries(st.sampled_from(["a {n}", "b"]), st.integers(0, 9)).map(Counter)
NUMBERS = st.integers(-50, 50).map(float)
EFFECTS = st.none() | st.builds(
    lambda n, a, b, m: Effect(n, {"one": a, "two": b} if n else {}, m + 1, m),
    st.integers(0, 5), NUMBERS, NUMBERS, st.integers(0, 5),
)  # fmt: skip
NOISES = st.none() | st.builds(
    lambda n, largest: Noise(n, ("as in the run", "alone"), {"x": Spread(largest, largest / 2)}),
    st.integers(1, 5), st.integers(0, 9).map(float),
)  # fmt: skip
FACTS = st.builds(
    Facts, seconds=st.integers(0, 9).map(float), warnings=COUNTS, counts=COUNTS, boundaries=COUNTS,
    boundary=EFFECTS, blank=EFFECTS, noise=NOISES, n_runs=st.integers(0, 3),
)  # fmt: skip


def plain(facts):
    """With counts as dicts, and numbers that may round differently as they are compared."""

    def near(value):
        if isinstance(value, dict):
            return {k: near(v) for k, v in value.items()}
        return pytest.approx(value, abs=1e-9) if isinstance(value, float) else value

    return near(facts.to_json())


@given(FACTS, FACTS, FACTS)
def test_facts_add_up_in_any_grouping(a, b, c):
    assert ((a + b) + c).to_json() == plain(a + (b + c))
    assert (a + Facts()).to_json() == plain(a)
    assert (Facts() + a).to_json() == plain(a)


@given(FACTS)
def test_facts_survive_a_manifest(facts):
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_an_infinite_spread_survives_a_manifest():
    facts = Facts(noise=Noise(1, ("a",), {"x": Spread(float("inf"), float("inf"))}))
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


REQUESTS = [
    Request("a", "The cat", " sat"),
    Request("b", "The cat ", "sat"),
    Request("c", "A", " b"),
]


def test_requests_of_no_item_are_in_no_audit(scorers):
    lm = AuditedLM(scorers("tiny-qwen2"), Settings(audit_noise=5))
    aside = Aside("x", "The dog ", "ran")
    found = list(lm.stream([aside, *REQUESTS], boundary="joint", truncate=None))
    assert len(found) == 4
    facts = lm.facts()
    assert facts.boundaries == Counter(audited=3, separate=1, too_long=0, passed_over=0)
    assert facts.noise.n_requests == 3
    assert facts.seconds > 0


def test_results_and_methods_are_those_of_the_model(scorers):
    scorer = scorers("tiny-qwen2")
    lm = AuditedLM(scorer, Settings())
    found = lm.score(REQUESTS, boundary="separate")
    for own, other in zip(found, scorer.score(REQUESTS, boundary="separate"), strict=True):
        np.testing.assert_array_equal(own.logprob, other.logprob)
    assert lm.encoder is scorer.encoder
    assert lm.facts().noise is None


def test_a_drawn_audit_needs_a_model_with_layouts(scorers):
    class Endpoint:
        capabilities = type(scorers("tiny-qwen2").capabilities)(scores=True)
        remarks = ()

    with pytest.raises(InputError, match="an endpoint's layouts are its own"):
        AuditedLM(Endpoint(), Settings(audit_noise=1))


ITEMS = [{"context": f"Q{k}: ", "options": ["yes", " no"], "gold": k % 2} for k in range(5)] + [
    {"context": "The cat", "options": [" sat", " ran"], "gold": 0}
]


def test_the_effect_of_a_boundary_is_that_of_another_run(scorers):
    scorer = scorers("tiny-qwen2")
    joint = evaluate("choose", scorer, ITEMS)
    separate = evaluate("choose", scorer, ITEMS, boundary="separate")
    effect = joint.facts.boundary
    own, other = (run.summary["overall"]["acc"].mean for run in (joint, separate))
    assert effect.n_items == 6
    assert effect.means == {"joint": own, "separate": other}
    assert joint.boundary_audit()["effect"]["results"] == {
        "accuracy": {"n": 6, "joint": own, "separate": other}
    }


def test_a_sample_is_scored_without_counts(scorers):
    scorer = scorers("tiny-qwen2")
    before = scorer.statistics.sequences
    evaluate("choose", scorer, ITEMS)
    n_texts = len({option for item in ITEMS for option in item["options"]})
    assert scorer.statistics.sequences - before == 2 * len(ITEMS) + n_texts
