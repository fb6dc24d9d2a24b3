"""Many clients at once: each one's numbers are the scorer's, and what they share is shared."""

import numpy as np
import pytest

from jaxscore.server.jobs import after, every_token
from jaxscore.types.requests import Request

PATH = "/v1/completions"
CLIENTS = 200
PREFIX = "Answer the question about towns in one word. " * 8


def texts(n):
    return [f"{PREFIX}Question {k} of {n}: is it Oslo or {k * 7919 % 1000}?" for k in range(n)]


def test_answers_and_the_work_that_they_take(start):
    served = start(gather=1.0)
    given, scorer = texts(CLIENTS), served.scorer
    before = scorer.statistics.tokens_laid_out
    body = {"max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    answers = served.ask_all([(PATH, {"prompt": one, **body}) for one in given])
    n_computed = scorer.statistics.tokens_laid_out - before
    wanted = scorer.score([Request(k, "", one) for k, one in enumerate(given)])
    for answer, one in zip(answers, wanted, strict=True):
        found = answer.json()["choices"][0]["logprobs"]["token_logprobs"]
        np.testing.assert_allclose(found[1:-1], one.logprob, atol=1e-5)
    prompts = scorer.encoder.prompt_ids(given)
    before = scorer.statistics.tokens_laid_out
    scorer.engine.score_sequences(
        [one for ids in prompts for one in (every_token(ids), after(ids))], top=1
    )
    assert n_computed <= 1.1 * (scorer.statistics.tokens_laid_out - before)
    assert sum(map(len, prompts)) > 3 * n_computed


def test_mixed_requests_at_once(served):
    """Each one is answered as it is alone, also where a window has several numbers of tokens."""
    score = {"requests": [{"context": "Oslo is in", "continuation": " Norway"}]}
    label = {"requests": [{"prompt": "Is it?", "labels": ["A", "B"]}]}
    some = [
        (PATH, {"prompt": "Oslo is in", "max_tokens": 0, "echo": True, "logprobs": 5}),
        (PATH, {"prompt": "Oslo is", "max_tokens": 1, "temperature": 0, "logprobs": 20}),
        (PATH, {"prompt": "Oslo", "max_tokens": 9, "temperature": 0, "logprobs": 1}),
        (PATH, {"prompt": "Oslo is", "max_tokens": 0, "echo": True, "logprobs": 0}),
        ("/jaxscore/score", score),
        ("/jaxscore/label", label),
        (PATH, {"prompt": [], "max_tokens": 0}),
        ("/tokenize", {"prompt": "Oslo"}),
    ]
    together = served.ask_all(some * 5)
    for (path, body), answer in zip(some * 5, together, strict=True):
        alone = served.ask(path, body)
        assert answer.status_code == alone.status_code
        same(answer.json(), alone.json())


def same(found, wanted):
    """Equal but for names of answers and rounding."""
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            if name not in ("id", "created", "tokens_computed"):
                same(found[name], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, float):
        # nats to 1e-4; a perplexity is their exponential, so it moves in proportion to itself
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-4)
    else:
        assert found == wanted
