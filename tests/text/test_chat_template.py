"""Chat templates: what comes out, and what is said where one is missing or refuses."""

import copy
import hashlib
import json

import pytest

from jaxscore.errors import InputError
from jaxscore.text import chat_template
from jaxscore.text.tokenizer_files import load_tokenizer
from tests.conftest import CASES, MODELS

pytestmark = pytest.mark.lines

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
@pytest.mark.parametrize("system", [False, True])
def test_conversations_that_a_template_keeps(name, system):
    tokenizer = load_tokenizer(CASES / "models" / name)
    for n in (0, 3):
        chat_template.check_keeps(tokenizer, n, system=system)
    assert chat_template.answer_start(tokenizer) == ""


ALL = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
USERS = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "n", "system", "message"),
    [
        (ALL, 2, True, None),
        (GEMMA, 2, False, None),
        (GEMMA, 0, True, r"\(no system role\); the template takes no system message: leave the"),
        (USERS, 0, False, None),
        (USERS, 1, False, "leaves out messages of a conversation; leave out the examples"),
        (USERS, 0, True, "takes no system message: leave the system prompt out, or write it into"),
        ("{{ messages[-1]['content'] }}", 1, False, "leaves out messages"),
        ("{% for m in messages | reverse %}{{ m['content'] }}{% endfor %}", 1, False, "leaves out"),
        ("{{ 1 / 0 }}", 0, True, "refuses messages of user"),
        (None, 0, True, "has no chat template"),
    ],
)
def test_conversations_that_it_changes(tokenizer, template, n, system, message):
    tokenizer.chat_template = template
    if message is None:
        chat_template.check_keeps(tokenizer, n, system=system)
        return
    with pytest.raises(InputError, match=message):
        chat_template.check_keeps(tokenizer, n, system=system)


@pytest.mark.parametrize(
    ("between", "start"), [("", ""), (" ", " "), ("  ", "  "), ("\n", ""), ("<think></think>", "")]
)
def test_blanks_that_a_template_writes_before_an_answer(tokenizer, between, start):
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}" + between + "{{ m['content'] }}."
        "{% else %}[{{ m['content'] }}]{% endif %}{% endfor %}"
    )
    assert chat_template.answer_start(tokenizer) == start


def test_an_answer_that_a_template_refuses_or_changes_tells_nothing(tokenizer):
    for template in (
        "{{ raise_exception('x') if messages | length > 1 }}[{{ messages[0]['content'] }}]",
        "{{ messages | length }}{{ messages[-1]['content'] }}",
        "{{ messages[0]['content'] }}",
    ):
        tokenizer.chat_template = template
        assert chat_template.answer_start(tokenizer) == ""


def test_the_digest_is_the_templates(tokenizer):
    text = (CASES / "models/tiny-qwen2/chat_template.jinja").read_text(encoding="utf-8")
    assert chat_template.digest(tokenizer) == hashlib.sha256(text.encode()).hexdigest()
    tokenizer.chat_template = "other"
    assert chat_template.digest(tokenizer) == hashlib.sha256(b"other").hexdigest()


@pytest.mark.parametrize("name", MODELS)
def test_a_bos_that_the_template_writes_is_the_only_one(scorers, name):
    encoder = scorers(name).encoder
    [ids] = encoder.prompt_ids([chat_template.render(encoder.tokenizer, SYSTEM)])
    config = json.loads((CASES / "models" / name / "config.json").read_text(encoding="utf-8"))
    bos = encoder.tokenizer.bos_token_id if name == "tiny-llama3" else None
    assert config["model_type"] in name
    assert (ids == bos).sum() == (1 if bos is not None else 0)
