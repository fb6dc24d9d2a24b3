"""One evaluation's requests: what is scored, timed and audited."""

import dataclasses

import pytest
from jaxscore.systems.scoring_run import ScoringRun

from jaxscore import InputError, Request
from jaxscore.endpoints import Endpoint
from jaxscore.endpoints.completions import CompletionsEndpoint
from jaxscore.shell.settings import ScoringSettings
from jaxscore.systems import audits
from jaxscore.text.encoder import audit_boundaries
from jaxscore.types.requests import LabelRequest

POLICIES = {"separate": "separate", "joint": "joint", "upstream": "reencoded"}
REQUESTS = [Request(k, "ANSWER: ", text) for k, text in enumerate(("Oslo", "Rome", "x"))]


@pytest.fixture
def scorer(scorers):
    return scorers("tiny-gpt2")


def run(source, **options):
    options = {"boundary": "separate", "policies": POLICIES, **options}
    names = [field.name for field in dataclasses.fields(ScoringSettings)]
    settings = {name: options.pop(name) for name in names if name in options}
    return ScoringRun(source, ScoringSettings(**settings), **options)


class Server(Endpoint):
    """An endpoint that notes what it is asked."""

    CAPABILITIES = CompletionsEndpoint.CAPABILITIES
    NOT_FOUND = ""

    def __init__(self):
        super().__init__("m", "http://localhost:1")
        self.asked = []

    def score(self, requests, *, boundary, truncate, special_tokens):
        self.asked.append((list(requests), boundary, truncate))
        return ["scored"] * len(self.asked[-1][0])


def test_what_is_scored_is_what_the_scorer_scores(scorer):
    one = run(scorer, boundary="joint")
    assert one.policy == "joint"
    assert one.seconds == 0
    want = [scored.sum_logprob for scored in scorer.score(REQUESTS, boundary="joint")]
    assert [scored.sum_logprob for scored in one.score(iter(REQUESTS))] == want
    first = one.seconds
    assert first > 0
    found = [scored.sum_logprob for scored in one.stream(REQUESTS, window=2)]
    assert found == pytest.approx(want, abs=1e-4)
    assert one.seconds > first


def test_the_boundary_audit_counts_requests_that_change(scorer):
    one = run(scorer)
    one.score(REQUESTS)
    counts = one.boundaries.counts("answers")
    assert counts == {"n_answers": 3, "changed": one.boundaries.changed}
    assert set(one.boundaries.changed) == {"joint", "upstream"}
    # "ANSWER: Oslo" is `ANSWER`, `:`, `ĠOslo` in one, and ends in `Ġ` in the other.
    assert one.boundaries.changed["joint"] == 3
    assert one.boundaries.line() == (
        f"separate: of 3 requests joint would change 3, upstream would change "
        f"{one.boundaries.changed['upstream']}"
    )


def test_the_audit_looks_at_all_requests_whatever_passes_together(scorer, monkeypatch):
    monkeypatch.setattr(audits, "AUDITED_TOGETHER", 2)
    parts = run(scorer)
    parts.score(REQUESTS)
    monkeypatch.undo()
    whole = run(scorer)
    whole.score(REQUESTS)
    assert (parts.boundaries.n_audited, parts.boundaries.changed) == (3, whole.boundaries.changed)


def test_many_requests_are_audited_by_a_sample(scorer, monkeypatch):
    monkeypatch.setattr(audits, "AUDITED_ALL", 2)
    monkeypatch.setattr(audits, "AUDITED_EVERY", 3)
    monkeypatch.setattr(audits, "AUDITED_TOGETHER", 4)
    one = run(scorer, policies={"separate": "separate", "joint": "joint"})
    one.score([Request(k, "ANSWER: ", "Oslo") for k in range(10)])
    assert one.boundaries.counts("answers") == {  # 0 and 1; then 3, 6 and 9
        "n_answers": 5, "changed": {"joint": 5}, "n_passed_over": 5,
    }  # fmt: skip
    assert one.boundaries.line() == (
        "separate: of 5 requests joint would change 5; a sample, 5 others are not audited"
    )


def test_without_a_context_there_is_no_boundary_to_compare(scorer, monkeypatch):
    def encode(requests, boundary, max_positions):
        assert not requests
        return []

    monkeypatch.setattr(scorer.encoder, "encode", encode)
    own = [Request(k, "", "Oslo") for k in range(3)]
    assert audit_boundaries(scorer.encoder, own, "joint", ["separate"]) == {"separate": 0}


def test_long_continuations_are_not_audited_for_each_of_their_tokens(scorer):
    long = " word" * (audits.AUDITED_CHARACTERS // 5 + 1)
    requests = [Request("a", "The cat", " sat"), Request("b", "The cat", long)]
    one = run(scorer, truncate="left")
    one.score(requests)
    assert (one.boundaries.n_audited, one.boundaries.n_too_long) == (1, 1)
    assert one.boundaries.counts("answers")["n_too_long"] == 1
    assert one.boundaries.line().endswith("; 1 longer than 1000 characters are not audited")
    both = run(scorer, policies={"separate": "separate", "joint": "joint"})
    both.score(requests)
    assert (both.boundaries.n_audited, both.boundaries.n_too_long) == (2, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"audit_boundary": False},
        {"policies": {"separate": "separate"}},
        {"policies": None, "boundary": "joint"},
    ],
)
def test_no_audit(scorer, options):
    one = run(scorer, **options)
    if options.get("policies", POLICIES):
        one.score(REQUESTS)
    assert one.boundaries.counts("answers") is None
    assert one.boundaries.line() is None


def test_an_audit_of_nothing(scorer):
    one = run(scorer)
    assert one.score([]) == []
    assert one.boundaries.counts("answers") == {
        "n_answers": 0,
        "changed": {"joint": 0, "upstream": 0},
    }
    assert one.boundaries.line() is None
    assert run(scorer, audit_noise=3).noise is None


def test_an_endpoint_has_no_audits():
    source = Server()
    one = run(source, truncate="left", boundary="upstream")
    assert one.score(REQUESTS) == ["scored"] * 3
    assert source.asked == [(REQUESTS, "reencoded", "left")]
    assert one.boundaries.counts("answers") is None
    assert one.boundaries.line() is None
    assert one.noise is None
    with pytest.raises(InputError, match="audit_noise: an endpoint's layouts are its own"):
        run(source, audit_noise=2)


@pytest.mark.slow
def test_the_noise_of_scores_and_of_labels(scorer):
    one = run(scorer, audit_noise=2, seed=1)
    one.score(REQUESTS)
    noise = one.noise
    assert noise.n_requests == 2
    assert noise.n_tokens is not None
    assert one.noise is noise  # computed once
    ids = scorer.encoder.tokenizer("The cat")["input_ids"]
    labels = run(scorer, audit_noise=1, policies=None)
    [found] = labels.label([LabelRequest("a", "The cat", tuple(ids))])
    assert found.error is None
    noise = labels.noise
    assert set(noise.spread) == {"label_logprob", "label_probability"}
    assert run(scorer).noise is None
