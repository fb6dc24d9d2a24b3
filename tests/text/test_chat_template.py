"""Chat templates: what comes out, and what is said where one is missing or refuses."""

import copy
import hashlib
import json
import re

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
        ("{# system #}{% for m in messages %}{{ m['content'] }}{% endfor %}", True),
        (GEMMA, False),  # it mentions system in order to refuse it
        ("{# system #}{{ messages[-1]['content'] }}", False),
    ],
)
def test_which_templates_take_a_system_turn(tokenizer, template, taken):
    tokenizer.chat_template = template
    assert chat_template.takes_system(tokenizer) is taken


def test_a_template_may_be_one_of_several(tokenizer):
    tokenizer.chat_template = {"default": "{{ messages[0]['content'] }}!", "tool_use": "no"}
    assert chat_template.render(tokenizer, SYSTEM[:1]) == "Be brief.!"
    tokenizer.chat_template = {"rag": "a", "tool_use": "b"}
    with pytest.raises(InputError, match="lacks a chat template"):
        chat_template.render(tokenizer, SYSTEM)


def test_no_template(tokenizer):
    tokenizer.chat_template = None
    for ask in (chat_template.takes_system, lambda t: chat_template.render(t, SYSTEM)):
        with pytest.raises(
            InputError, match=r"tiny-qwen2: its tokenizer lacks a chat template.*\.ji"
        ):
            ask(tokenizer)


def test_a_template_that_refuses_is_named(tokenizer):
    tokenizer.chat_template = GEMMA
    with pytest.raises(InputError, match=r"refuses messages of system, user \(no system role\)"):
        chat_template.render(tokenizer, SYSTEM)
    for broken in ("{% for %}", "{{ 'a' + 1 }}", "{{ messages[9].content }}", "{{ 1 / 0 }}"):
        tokenizer.chat_template = broken
        with pytest.raises(InputError, match=r"(refuses|fails on) messages"):
            chat_template.render(tokenizer, SYSTEM)


def conversation(n_answered=0, *, system=False):
    roles = ["system"] * system + ["user", "assistant"] * n_answered + ["user"]
    return [{"role": role, "content": f"Text {k} of it."} for k, role in enumerate(roles)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("system", [False, True])
def test_the_prompt_is_that_of_transformers(name, system):
    tokenizer = load_tokenizer(CASES / "models" / name)
    for n in (0, 3):
        messages = conversation(n, system=system)
        want = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert chat_template.render(tokenizer, messages) == want
    assert chat_template.answer_start(tokenizer) == ""


ALL = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
USERS = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
PARTS = (
    "{% for m in messages %}<{{ m['role'] }}>{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
FIRST_PART = "{% for m in messages %}<{{ m.role }}>{{ m.content[0].text }}{% endfor %}"
NO_STRING = "{{ raise_exception('a list') if messages[0].content is string }}" + PARTS
BOTH = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for p in m['content'] %}[{{ p['text'] | trim }}]{% endfor %}{% endif %}"
    "{% endfor %}"
)
PARTS_OF_USERS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'system' %}{{ m.content | trim }}"
    "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)
# Each half fails with a TypeError or an UndefinedError for the other form.
ADDED_PARTS_OF_USERS = (
    "{% for m in messages %}{{ '<' + m.role + '>' + (m.content if m.role == 'system' else "
    "m.content[0]['text']) }}{% endfor %}"
)
ADDED = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}"
# Mistral's writes the system message into the last message of the user.
MISTRAL = (
    "{% set said = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}[INST] "
    "{% if loop.last %}{{ said }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    "template",
    [ALL, PARTS, FIRST_PART, NO_STRING, BOTH, PARTS_OF_USERS, ADDED_PARTS_OF_USERS],
)
def test_a_string_is_written_by_templates_that_expect_strings_or_parts(tokenizer, template):
    tokenizer.chat_template = template
    assert chat_template.render(tokenizer, SYSTEM) == "<system>Be brief.<user>Who?"
    assert chat_template.render(tokenizer, [{"role": "user", "content": " a\n"}]) == "<user> a\n"


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (ALL, "<user>a b"),  # and not the list as Python writes it
        (ADDED, "<user>a b"),  # it fails with a TypeError for a list
        (PARTS, "<user>a b"),
        (BOTH, "<user>[a][b]"),  # as transformers renders these parts
    ],
)
def test_text_parts_are_written_by_templates_that_expect_strings_or_parts(
    tokenizer, template, prompt
):
    tokenizer.chat_template = template
    parts = [{"type": "text", "text": text} for text in ("a ", "b")]
    assert chat_template.render(tokenizer, [{"role": "user", "content": parts}]) == prompt


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_blank_content_is_not_an_error(tokenizer, blank):
    for template in (ALL, PARTS, MISTRAL, "{{ messages | length }}"):
        tokenizer.chat_template = template
        chat_template.render(tokenizer, [{"role": "user", "content": blank}])


THOUGHT = "<think>\nhm\n</think>\n\nOslo."
TALK = [
    {"role": "system", "content": " Be brief. /no_think"},
    {"role": "user", "content": "Where?\n"},
    {"role": "assistant", "content": THOUGHT},
    {"role": "user", "content": "Where is </think>?"},
]
# Qwen 3's, DeepSeek's and others drop the reasoning of earlier turns.
WITHOUT_REASONING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1].lstrip('\n') "
    "if m.role == 'assistant' else m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}",
            f"<system>Be brief. /no_think<user>Where?<assistant>{THOUGHT}<user>Where is </think>?",
        ),
        (
            WITHOUT_REASONING,
            "<system> Be brief. /no_think<user>Where?\n<assistant>Oslo.<user>Where is </think>?",
        ),
        (
            # SmolLM 3's takes flags out of the system message.
            "{% for m in messages %}<{{ m.role }}>"
            "{{ m.content.replace('/no_think', '') | trim }}{% endfor %}",
            f"<system>Be brief.<user>Where?<assistant>{THOUGHT}<user>Where is </think>?",
        ),
        (
            MISTRAL,
            f"[INST] Where?\n[/INST] {THOUGHT}</s>"
            "[INST]  Be brief. /no_think\n\nWhere is </think>?[/INST]",
        ),
    ],
)
def test_templates_may_trim_and_move_and_drop_reasoning(tokenizer, template, prompt):
    tokenizer.chat_template = template
    assert chat_template.render(tokenizer, TALK) == prompt


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (ALL, conversation(2, system=True), None),
        (GEMMA, conversation(2), None),
        (
            GEMMA,
            conversation(system=True),
            r"\(no system role\); the template takes no system message: leave the",
        ),
        (USERS, conversation(), None),
        (USERS, conversation(1), r"leaves out the text of message 2 of 3 \(assistant\); leave"),
        (
            USERS,
            conversation(system=True),
            "takes no system message: leave the system prompt out, or write it into",
        ),
        (USERS, [*conversation(), {"role": "tool", "content": "42"}], r"message 2 of 2 \(tool\)"),
        ("{{ messages[-1]['content'] }}", conversation(1), "leaves out the text of message 1"),
        (
            "{% for m in messages | reverse %}{{ m['content'] }}{% endfor %}",
            conversation(1),
            "leaves out",
        ),
        ("{{ messages[0].content[:40] }}", [{"role": "user", "content": "a " * 50}],
         "leaves out a part of the text of message 1 of 1"),
        ("{{ messages[0].content.split('#')[-1] }}", [{"role": "user", "content": "a#b"}],
         "leaves out a part of the text of message 1 of 1"),
        (
            "{% for p in messages[0].content %}{{ p }}{% endfor %}",
            [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
            None,
        ),
        (
            "{{ messages[0].content[0].text }}",
            [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}],
            "leaves out the text",
        ),
        ("{{ messages[0].content | list | tojson }}", conversation(), "leaves out the text"),
        ("hello", conversation(), "leaves out the text of message 1 of 1"),
        ("{{ 1 / 0 }}", conversation(system=True), "fails on messages of system, user"),
        (None, conversation(), "lacks a chat template"),
    ],
)  # fmt: skip
def test_a_template_that_leaves_out_text_is_refused(tokenizer, template, messages, message):
    tokenizer.chat_template = template
    if message is None:
        chat_template.render(tokenizer, messages)
        return
    with pytest.raises(InputError, match=message):
        chat_template.render(tokenizer, messages)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"content": [{"type": "image_url"}]}, "message 1 has a part of type image_url, expected"),
        ({"content": ["a"]}, "message 1 has a part of type a string, expected only text"),
        ({"content": None}, "message 1: content is null, expected a string or a list of text"),
        ({"content": "a", "tool_calls": [{}]}, "message 1 has tool_calls, which is not passed"),
        ({"content": "a", "reasoning_content": "b"}, "message 1 has reasoning_content, which"),
    ],
)
def test_a_message_that_has_more_than_text_is_refused(tokenizer, message, why):
    with pytest.raises(InputError, match=why):
        chat_template.render(tokenizer, [{"role": "assistant", **message}])
    harmless = {"role": "assistant", "content": "a", "tool_calls": [], "reasoning_content": None}
    assert "a<|im_end|>" in chat_template.render(tokenizer, [harmless])


@pytest.mark.parametrize("field", ["tool_calls", "reasoning_content", "name"])
@pytest.mark.parametrize("empty", [None, [], ""])
def test_empty_fields_do_not_reach_the_template(tokenizer, field, empty):
    # DeepSeek's, Llama 3.1's and gpt-oss' take a message with `tool_calls` as a call of tools.
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m." + field + " is defined %}{{ m." + field + "[0].x }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    message = {"role": "assistant", "content": "a", field: empty}
    assert chat_template.render(tokenizer, [message]) == "a"


def test_a_name_is_given_to_the_template(tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m.name }}: {{ m.content }}{% endfor %}"
    message = {"role": "user", "name": "Ada", "content": "Who?"}
    assert chat_template.render(tokenizer, [message]) == "Ada: Who?"


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


def answering(opening, closed_by=None):
    """A template that writes `opening` before an answer, unless a variable has a value."""
    end = opening if closed_by is None else f"{{% if not ({closed_by}) %}}{opening}{{% endif %}}"
    return (
        f"{{% for m in messages %}}[{{{{ m.role }}}}]{{{{ m.content }}}}\n{{% endfor %}}[bot]{end}"
    )


@pytest.mark.parametrize(
    "opening",
    [
        "<think>\n",
        "<thinking>",
        "[THINK]",
        "<|START_THINKING|>",
        "<seed:think>",
        "<|begin_of_thought|>",
        "<|channel|>analysis<|message|>",
        "<|channel>thought\n",
        "<think></think><think>",
        "<|start|>assistant{# <|channel|> #}",
    ],
)
def test_an_open_reasoning_block(tokenizer, opening):
    tokenizer.chat_template = answering(opening)
    assert not chat_template.check_answer_start(tokenizer)
    tokenizer.chat_template = answering(
        opening, "enable_thinking is defined and not enable_thinking"
    )
    with pytest.raises(InputError, match="close it with --chat-template-arg enable_thinking=false"):
        chat_template.check_answer_start(tokenizer)
    chat_template.set_variables(tokenizer, {"enable_thinking": False})
    assert chat_template.check_answer_start(tokenizer)
    assert chat_template.render(tokenizer, SYSTEM[1:]) == "[user]Who?\n[bot]"


@pytest.mark.parametrize(
    "opening",
    [
        "",
        "<think>\n\n</think>\n\n",
        "[THINK][/THINK]",
        "<|START_THINKING|><|END_THINKING|>",
        "<|begin_of_thought|><|end_of_thought|>",
        "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel>thought\n<channel|>",
        "Think aloud:",
    ],
)
def test_an_answer_starts_after_a_closed_block(tokenizer, opening):
    tokenizer.chat_template = answering(opening)
    assert chat_template.check_answer_start(tokenizer)


@pytest.mark.parametrize(
    ("name", "value", "condition"),
    [
        ("thinking", False, "thinking is defined and thinking is false"),
        ("thinking_mode", "chat", "thinking_mode == 'chat'"),
        ("reasoning_effort", "none", "reasoning_effort == 'none'"),
    ],
)
def test_the_variable_that_closes_a_block_is_named(tokenizer, name, value, condition):
    tokenizer.chat_template = answering("<think>", condition)
    shown = value if isinstance(value, str) else "false"
    with pytest.raises(InputError, match=f"--chat-template-arg {name}={shown}$"):
        chat_template.check_answer_start(tokenizer)


@pytest.mark.parametrize(
    "value",
    [
        False,
        True,
        None,
        3,
        -1.5,
        "a 'quoted' \"text\" %} {{ x }} 巴黎 🙂\n",
        [1, None],
        {"a": [True]},
    ],
)
def test_variables_have_the_given_values(tokenizer, value):
    tokenizer.chat_template = "{{ messages[0].content }}{{ x | tojson }}"
    chat_template.set_variables(tokenizer, {"x": value})
    text = chat_template.render(tokenizer, SYSTEM[1:])
    assert json.loads(text.removeprefix("Who?")) == value
    text = chat_template.render(tokenizer, SYSTEM[1:], x="other")  # of one conversation
    assert json.loads(text.removeprefix("Who?")) == "other"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("enable_thinkin", "does not use a variable 'enable_thinkin'; is it enable_thinking?"),
        ("messages", "does not use a variable 'messages'"),
        ("add_generation_prompt", "does not use a variable"),
        ("chat_template", "does not use a variable"),
        ("a b", "does not use a variable 'a b'"),
    ],
)
def test_variables_that_cannot_be_set(tokenizer, name, message):
    tokenizer.chat_template = "{{ messages }}{{ enable_thinking }}{{ add_generation_prompt }}a b"
    before = tokenizer.chat_template
    with pytest.raises(InputError, match=re.escape(message)):
        chat_template.set_variables(tokenizer, {name: 1})
    assert tokenizer.chat_template == before
