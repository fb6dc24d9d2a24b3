"""The provider of inspect_ai: texts and log-probabilities are those of the generator and scorer."""

import asyncio
import importlib.util

import numpy as np
import pytest

from jaxscore import GenerationRequest, InputError
from jaxscore.plan.requests import TokenSequence
from jaxscore.text import chat_template
from tests.conftest import CASES

if importlib.util.find_spec("inspect_ai") is None:
    pytest.skip(
        "inspect_ai is not installed; pip install -e '.[inspect]', see tests/README.md",
        allow_module_level=True,
    )

from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    get_model,
)
from inspect_ai.tool import ToolCall, ToolInfo

pytestmark = pytest.mark.filterwarnings("ignore")  # those of its libraries

import jaxscore.adapters.inspect_ai  # noqa: F401  registers the provider

MODEL = CASES / "models/tiny-llama3"
TALK = [
    ChatMessageSystem(content="Be brief."),
    ChatMessageUser(content=[ContentText(text="Who sat?")]),
    ChatMessageAssistant(content="The cat."),
    ChatMessageUser(content="Where?"),
]
CALLS = [ToolCall(id="1", function="f", arguments={})]
REASONING = [ContentReasoning(reasoning="hm"), ContentText(text="a")]
ROLES = [{"role": one.role, "content": one.text} for one in TALK]


@pytest.fixture(scope="module")
def model():
    with get_model(f"jaxscore/{MODEL}", dtype="float32", batch_tokens=1024, memoize=False) as one:
        yield one


def ask(model, messages=TALK, tools=(), **config):
    call = model.api.generate(list(messages), list(tools), "none", GenerateConfig(**config))
    return asyncio.run(call)


def prompt_ids(model):
    encoder = model.api._scorer.encoder
    [ids] = encoder.prompt_ids([chat_template.render(encoder.tokenizer, ROLES)])
    return ids


def test_text_and_log_probabilities(model):
    scorer, ids = model.api._scorer, prompt_ids(model)
    found = ask(
        model, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3, prompt_logprobs=1
    )
    [text] = scorer.generate([GenerationRequest(0, ids, 5, 0.0)])
    assert found.completion == text.text
    [choice] = found.choices
    assert choice.stop_reason == ("max_tokens" if text.finish == "length" else "stop")
    assert found.usage.input_tokens == len(ids)
    listed = choice.logprobs.content
    whole = np.concatenate([ids, text.token_ids])
    [scores] = scorer.score_sequences([TokenSequence(whole, 1)], top=3)
    n = len(text.token_ids)
    np.testing.assert_allclose([t.logprob for t in listed[:n]], scores.logprob[-n:], atol=1e-4)
    for token, top in zip(listed[:n], scores.top_logprob[-n:], strict=True):
        np.testing.assert_allclose([t.logprob for t in token.top_logprobs], top, atol=1e-4)
        assert token.bytes is not None
    before = choice.prompt_logprobs.content
    assert len(before) == len(ids) - 1  # the first token has nothing before it
    np.testing.assert_allclose([t.logprob for t in before], scores.logprob[:-n], atol=1e-4)


def test_a_template_that_expects_parts_writes_all_text(model, monkeypatch):
    encoder = model.api._scorer.encoder
    template = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    monkeypatch.setattr(encoder.tokenizer, "chat_template", template)
    [ids] = encoder.prompt_ids(["".join(one.text for one in TALK)], special_tokens=False)
    assert ask(model, max_tokens=1).usage.input_tokens == len(ids)


def test_samples_and_seeds(model):
    config = {"max_tokens": 6, "num_choices": 3, "seed": 7, "temperature": 1.0}
    first, again = (ask(model, **config) for _ in range(2))
    texts = [[one.message.text for one in found.choices] for found in (first, again)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
    assert first.choices[0].logprobs is None


def test_conversations_that_are_sent_together(model):
    async def both():
        config = GenerateConfig(max_tokens=4, temperature=0)
        calls = [model.api.generate(TALK[:n], [], "none", config) for n in (2, 4, 2)]
        return await asyncio.gather(*calls)

    first, second, third = asyncio.run(both())
    assert first.completion == third.completion
    assert second.completion == ask(model, max_tokens=4, temperature=0).completion


def test_a_conversation_that_does_not_fit(model):
    long = [ChatMessageUser(content="The cat sat. " * 400)]
    found = ask(model, long, max_tokens=5)
    assert found.choices[0].stop_reason == "model_length"
    assert "1024" in found.error


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {5: 1.0}}, "logit_bias"),
        ({"top_k": 5}, "top_k"),
        ({"best_of": 2}, "best_of"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"tools": [ToolInfo(name="f", description="g")]}, "tools"),
        ({"messages": [ChatMessageTool(content="a")]}, "a tool's answer"),
        ({"messages": [ChatMessageAssistant(content="a", tool_calls=CALLS)]}, "a tool's call"),
        ({"messages": [ChatMessageAssistant(content=REASONING)]}, "reasoning"),
        ({"messages": [ChatMessageUser(content=[ContentImage(image="a.png")])]}, "image"),
    ],
)
def test_what_is_not_applied_is_refused_by_name(model, given, part):
    with pytest.raises(InputError, match=part):
        ask(model, **given)


@pytest.mark.parametrize("n", [-1, 21])
def test_too_many_log_probabilities_of_the_prompt_are_refused(model, n):
    config = GenerateConfig.model_construct(prompt_logprobs=n)  # new versions check it themselves
    with pytest.raises(InputError, match=f"prompt_logprobs is {n}, expected .* from 0 to 20"):
        asyncio.run(model.api.generate(list(TALK), [], "none", config))
