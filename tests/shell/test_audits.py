"""Audits: what a model notes, the system run again on a sample, and facts that add up."""

import inspect
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore import InputError, Request, evaluate
from jaxscore.endpoints import Endpoint
from jaxscore.endpoints.completions import CompletionsEndpoint
from jaxscore.lm import LM
from jaxscore.shell import audits
from jaxscore.shell.audits import AuditedLM, Effect, Facts
from jaxscore.shell.rounding_audit import Noise, Spread
from jaxscore.shell.system import Aside, Rewritten
from jaxscore.systems import paths
from jaxscore.systems.choose import Settings
from jaxscore.text.encoder import audit_boundaries
from jaxscore.types.requests import LabelRequest

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


ANSWERS = [Request(k, "ANSWER: ", text) for k, text in enumerate(("Oslo", "Rome", "x"))]


def watched(lm, **settings):
    """A model watched with the boundaries of `paths`, whose own one is "separate"."""
    return AuditedLM(lm, paths.Settings(**settings))


def test_requests_that_another_boundary_changes_are_counted(scorers):
    lm = watched(scorers("tiny-gpt2"))
    found = lm.score(ANSWERS, boundary="separate")
    counts = lm.facts().boundaries
    upstream = counts["upstream"]
    # "ANSWER: Oslo" is `ANSWER`, `:`, `ĠOslo` in one, and ends in `Ġ` in the other.
    assert counts == Counter(audited=3, joint=3, upstream=upstream, too_long=0, passed_over=0)
    other = [one.sum_logprob for one in scorers("tiny-gpt2").score(ANSWERS, boundary="reencoded")]
    moved = sum(a.sum_logprob != pytest.approx(b) for a, b in zip(found, other, strict=True))
    assert upstream >= moved > 0


def test_all_requests_are_counted_whatever_passes_together(scorers, monkeypatch):
    whole, parts = watched(scorers("tiny-gpt2")), watched(scorers("tiny-gpt2"))
    whole.score(ANSWERS)
    monkeypatch.setattr(audits, "TOGETHER", 2)
    parts.score(ANSWERS)
    assert parts.facts().boundaries == whole.facts().boundaries


def test_many_requests_are_audited_by_a_sample(scorers, monkeypatch):
    for name, value in (("ALL", 2), ("EVERY", 3), ("TOGETHER", 4)):
        monkeypatch.setattr(audits, name, value)
    lm = watched(scorers("tiny-gpt2"))
    lm.score([Request(k, "ANSWER: ", "Oslo") for k in range(10)])
    counts = lm.facts().boundaries  # of 0 and 1; then of 3, 6 and 9
    assert (counts["audited"], counts["joint"], counts["passed_over"]) == (5, 5, 5)


def test_without_a_context_there_is_no_boundary_to_compare(scorers, monkeypatch):
    def encode(requests, boundary, max_positions):
        assert not requests
        return []

    encoder = scorers("tiny-gpt2").encoder
    monkeypatch.setattr(encoder, "encode", encode)
    own = [Request(k, "", "Oslo") for k in range(3)]
    assert audit_boundaries(encoder, own, "joint", ["separate"]) == {"separate": 0}


def test_long_answers_are_not_encoded_for_each_of_their_tokens(scorers):
    requests = [Request("a", "The cat", " sat"), Request("b", "The cat", " word" * 201)]
    lm = watched(scorers("tiny-gpt2"), truncate="left")
    lm.score(requests, truncate="left")
    counts = lm.facts().boundaries
    assert (counts["audited"], counts["too_long"]) == (1, 1)
    both = AuditedLM(scorers("tiny-gpt2"), Settings())  # whose boundaries encode no token again
    both.score(requests)
    assert both.facts().boundaries["too_long"] == 0


def test_requests_that_a_boundary_writes_otherwise_are_changed_by_it(scorers):
    lm = watched(scorers("tiny-gpt2"))
    same = [Request(k, "The", " cat") for k in range(2)]
    lm.score([*same, Rewritten("x", "The", " cat", boundaries=("joint",))])
    counts = lm.facts().boundaries
    assert (counts["audited"], counts["joint"], counts["upstream"]) == (3, 1, 0)


def test_an_audit_of_nothing(scorers):
    lm = watched(scorers("tiny-gpt2"), audit_noise=3)
    assert lm.score([]) == []
    assert lm.facts().boundaries == Counter(audited=0, joint=0, upstream=0)
    assert lm.facts().noise is None


def test_an_endpoint_has_no_audits():
    class Server(Endpoint):
        CAPABILITIES = CompletionsEndpoint.CAPABILITIES
        NOT_FOUND = ""

        def stream(self, requests, **options):
            return iter([(request, options) for request in requests])

    lm = watched(Server("m", "http://localhost:1"), boundary="upstream", truncate="left")
    options = {"boundary": "reencoded", "truncate": "left"}
    assert list(lm.stream(ANSWERS, **options)) == [(request, options) for request in ANSWERS]
    facts = lm.facts()
    assert (facts.boundaries, facts.noise) == (Counter(), None)


@pytest.mark.slow
def test_the_noise_of_labels(scorers):
    scorer = scorers("tiny-gpt2")
    lm = watched(scorer, audit_noise=1)
    ids = scorer.encoder.tokenizer("The cat")["input_ids"]
    [found] = lm.label([LabelRequest("a", "The cat", tuple(ids))])
    assert found.error is None
    assert set(lm.facts().noise.spread) == {"label_logprob", "label_probability"}


def test_audited_model_has_each_member_of_a_model_by_name():
    """Since Python 3.12 `isinstance` with a protocol ignores `__getattr__`."""
    for name in ("capabilities", "remarks", "describe", "score", "stream", "label", "generate"):
        assert hasattr(LM, name)
        inspect.getattr_static(AuditedLM, name)
