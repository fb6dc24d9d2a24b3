"""The contract of a model: who implements it, and what is refused by whom."""

import pytest

from jaxscore import DivergenceScorer, GenerationRequest, InputError, Request
from jaxscore.endpoints import ChatEndpoint, OllamaEndpoint
from jaxscore.endpoints.completions import CompletionsEndpoint
from jaxscore.lm import LM, Capabilities, require, require_local
from jaxscore.types.requests import ChatRequest, LabelRequest

ENDPOINTS = [
    CompletionsEndpoint("m", "http://localhost:1"),
    ChatEndpoint("m", "http://localhost:1"),
    OllamaEndpoint("m", "http://localhost:1"),
]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: type(one).__name__)
def test_endpoints_are_models(endpoint):
    assert isinstance(endpoint, LM)
    assert not endpoint.capabilities.is_local
    assert endpoint.remarks == ()
    assert endpoint.describe() == {"model": "m", "endpoint": "http://localhost:1"}


def test_a_scorer_is_a_local_model(scorers):
    scorer = scorers("tiny-gpt2")
    assert require_local("score", scorer, "scores", "generates") is scorer
    can = scorer.capabilities
    assert can.vocab_size == scorer.model.vocab_size
    assert can.max_positions == scorer.model.max_positions
    assert not can.compares_models


def test_two_models_compare_and_do_not_generate(scorers):
    base = scorers("tiny-gpt2")
    pair = DivergenceScorer(base.model, base.encoder)
    assert require_local("divergence", pair, "compares_models") is pair
    with pytest.raises(InputError, match="a source that is DivergenceScorer, but sample needs"):
        require_local("sample", pair, "generates")
    assert pair.remarks == ()
    pair.is_identical = True
    assert "rounding alone" in pair.remarks[0]


def test_a_missing_capability_is_named():
    for needed, lm, expected in (
        ("scores", None, "NoneType, but s needs a Scorer, as Scorer.from_pretrained makes it, or"),
        ("scores", "demo", "str 'demo', but s needs a Scorer"),
        ("scores", ENDPOINTS[1], "ChatEndpoint, but s needs a Scorer"),
        ("takes_messages", ENDPOINTS[0], "CompletionsEndpoint, but s needs a Scorer, a ChatEnd"),
        ("compares_models", ENDPOINTS[0], "CompletionsEndpoint, but s needs a DivergenceScorer"),
    ):
        with pytest.raises(InputError) as caught:
            require("s", lm, needed)
        assert expected in str(caught.value)
    with pytest.raises(InputError, match="needs a Scorer, as"):
        require_local("s", ENDPOINTS[0], "scores")
    assert Capabilities() == Capabilities(scores=False, boundaries=())


def test_an_endpoint_refuses_what_its_interface_lacks():
    completions, chat, ollama = ENDPOINTS
    request = Request(0, "a", "b")
    for call, message in (
        (lambda: chat.score([request]), "a ChatEndpoint does not score text"),
        (lambda: ollama.stream([request]), "an? OllamaEndpoint does not score text"),
        (lambda: chat.label([]), "does not list probabilities of labels"),
        (lambda: chat.generate([GenerationRequest(0, "a", 1)]), "takes a ChatRequest, found a Gen"),
        (lambda: completions.generate([ChatRequest(0, [], 1)]), "takes a GenerationRequest"),
        (lambda: completions.label([LabelRequest(0, "a", (1,))]), "takes a TextLabelRequest"),
        (lambda: completions.label([], truncate="left"), "cannot drop tokens"),
        (lambda: completions.score([request], special_tokens=False), "decides on special tokens"),
        (lambda: completions.score([request], top=2), "does not return further measures"),
        (lambda: completions.score([request], measures=["rank"]), "not return further measures"),
        (lambda: completions.score([request], boundary="separate"), "boundary separate needs"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_a_conversation_is_answered_through_the_chat_template(scorers):
    scorer = scorers("tiny-qwen2")
    messages = [{"role": "user", "content": "Who?"}]
    if scorer.encoder.tokenizer.chat_template is None:
        with pytest.raises(InputError, match="chat template"):
            scorer.generate([ChatRequest(0, messages, 2)])
        return
    text = scorer.encoder.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    [answer] = scorer.generate([ChatRequest(7, messages, 2)])
    [same] = scorer.generate([GenerationRequest(7, text, 2)])
    assert answer == same
