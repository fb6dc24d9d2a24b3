"""Chat templates: what comes out, and what is said where one is missing or refuses."""

import copy
import json

import pytest

from jaxscore.errors import InputError
from jaxscore.text import chat_template
from jaxscore.text.tokenizer import load_tokenizer
from tests.conftest import CASES, MODELS

SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
GEMMA = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<model>"
)


@pytest.fixture
def tokenizer():
    return copy.copy(load_tokenizer(CASES / "models/tiny-qwen2"))


def test_the_turns_end_where_the_answer_begins(tokenizer):
    assert chat_template.render(tokenizer, SYSTEM) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_template_that_mentions_system_takes_it(name):
    assert chat_template.takes_system(load_tokenizer(CASES / "models" / name))


@pytest.mark.parametrize(
    ("template", "taken"),
    [
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", False),
        ("{# system #}{{ messages[0]['content'] }}", True),
        (GEMMA, False),  # it mentions system in order to refuse it
    ],
)
def test_which_templates_take_a_system_turn(tokenizer, template, taken):
    tokenizer.chat_template = template
    assert chat_template.takes_system(tokenizer) is taken


def test_a_template_may_be_one_of_several(tokenizer):
    tokenizer.chat_template = {"default": "{{ messages[0]['content'] }}!", "tool_use": "no"}
    assert chat_template.render(tokenizer, SYSTEM) == "Be brief.!"
    tokenizer.chat_template = {"rag": "a", "tool_use": "b"}
    with pytest.raises(InputError, match="has no chat template"):
        chat_template.render(tokenizer, SYSTEM)


def test_no_template(tokenizer):
    tokenizer.chat_template = None
    for ask in (chat_template.takes_system, lambda t: chat_template.render(t, SYSTEM)):
        with pytest.raises(
            InputError, match=r"tiny-qwen2: its tokenizer has no chat template.*\.ji"
        ):
            ask(tokenizer)


def test_a_template_that_refuses_is_named(tokenizer):
    tokenizer.chat_template = GEMMA
    with pytest.raises(InputError, match=r"refuses messages of system, user \(no system role\)"):
        chat_template.render(tokenizer, SYSTEM)
    for broken in ("{% for %}", "{{ 'a' + 1 }}", "{{ messages[9].content }}", "{{ 1 / 0 }}"):
        tokenizer.chat_template = broken
        with pytest.raises(InputError, match="refuses messages"):
            chat_template.render(tokenizer, SYSTEM)


@pytest.mark.parametrize("name", MODELS)
def test_a_bos_that_the_template_writes_is_the_only_one(scorers, name):
    encoder = scorers(name).encoder
    [ids] = encoder.prompt_ids([chat_template.render(encoder.tokenizer, SYSTEM)])
    config = json.loads((CASES / "models" / name / "config.json").read_text(encoding="utf-8"))
    bos = encoder.tokenizer.bos_token_id if name == "tiny-llama3" else None
    assert config["model_type"] in name
    assert (ids == bos).sum() == (1 if bos is not None else 0)
