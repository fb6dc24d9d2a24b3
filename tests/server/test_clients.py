"""Clients against the server: our own, and lm-evaluation-harness' `local-completions`."""

import numpy as np
import pytest

from jaxscore import evaluate
from jaxscore.adapters.lm_eval import JaxscoreLM
from jaxscore.endpoints.completions import CompletionsEndpoint
from jaxscore.plan.requests import TokenSequence
from jaxscore.systems.score import UNKNOWN
from jaxscore.types.requests import GenerationRequest, TextLabelRequest
from tests.adapters.lm_eval.evaluated import assert_same, evaluated
from tests.conftest import CASES
from tests.endpoints.conftest import QUICK
from tests.endpoints.test_completions import ODD, compare, questions
from tests.server.conftest import MODEL


@pytest.fixture
def endpoint(listening, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    served, (host, port) = listening()
    return served.scorer, CompletionsEndpoint("tiny", f"http://{host}:{port}/v1", limits=QUICK)


def test_scores(endpoint):
    scorer, client = endpoint
    requests = [*list(questions())[:6], *ODD]
    assert compare(client.score(requests), scorer.score(requests)) > 50


def test_score_as_a_system(endpoint):
    """Fields that a server tells have the numbers of the scorer, the others are None."""
    scorer, client = endpoint
    texts = [{"id": one.id, "context": one.context, "continuation": one.continuation}
             for one in [*list(questions())[:3], *ODD] if one.continuation]  # fmt: skip
    there, here = (evaluate("score", source, texts) for source in (client, scorer))
    assert there.failures == here.failures == []
    for one, other in zip(there.items, here.items, strict=True):
        assert list(one) == list(other)
        assert one["greedy"] == other["greedy"]
        assert one["sum_logprob"] == pytest.approx(other["sum_logprob"], abs=1e-4)
        assert (one["n_tokens"], one["n_scored"]) == (other["n_tokens"], other["n_scored"])
        assert {name for name, value in one.items() if value is None} - UNKNOWN <= {
            name for name, value in other.items() if value is None
        }
        assert all(one[name] is None for name in UNKNOWN)
    assert there.summary["n_scored"] == here.summary["n_scored"] > 50
    assert there.summary["mean_logprob"] == pytest.approx(here.summary["mean_logprob"], abs=1e-4)


def test_labels_and_texts(endpoint):
    scorer, client = endpoint
    [written] = client.generate([GenerationRequest(0, "Oslo is", 5)])
    assert written.text == scorer.generate(["Oslo is"], max_new_tokens=5)[0].text
    [listed] = client.label([TextLabelRequest(0, "Oslo is", ("\n", " a"))])
    every = scorer.encoder.first_ids(["\n", " a"])
    [whole] = scorer.engine.score_sequences([after(scorer, "Oslo is", every)])
    np.testing.assert_allclose(listed.logprob, whole.logprob, atol=1e-5)


def after(scorer, text, ids):
    [prompt] = scorer.encoder.prompt_ids([text])
    return TokenSequence(prompt, len(prompt), np.array(ids, np.int32))


NAMES = ("choices", "letters", "no_context", "blanks", "rolling", "texts")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of lm-eval's libraries
@pytest.mark.parametrize("together", [{"num_concurrent": 8}, {"num_concurrent": 1}], ids=str)
def test_the_same_numbers(together, listening, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    served, (host, port) = listening()
    over_http = evaluated(
        "local-completions",
        {
            "base_url": f"http://{host}:{port}/v1/completions",
            "model": "tiny",
            "tokenizer": str(CASES / "models" / MODEL),
            "tokenizer_backend": "huggingface",
            "add_bos_token": True,
            "max_length": 512,
            **together,
        },
        *NAMES,
        batch_size=1 if together["num_concurrent"] > 1 else 4,
    )
    itself = evaluated(JaxscoreLM(served.scorer, max_length=512), None, *NAMES)
    # Answers that are equal come in requests of their own, at different times.
    assert_same(over_http, itself, *NAMES, tied=("choices", "no_context"))
