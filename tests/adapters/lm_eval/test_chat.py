"""Conversations as text; `test_against_hf` compares them with those of `hf`."""

import logging

import pytest
import transformers

from jaxscore.adapters.lm_eval.encoding import ChatTemplate
from jaxscore.errors import InputError
from tests.adapters.lm_eval.folders import TEMPLATE, case

pytestmark = pytest.mark.lines

USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}


def chat(template, **more):
    tokenizer = transformers.AutoTokenizer.from_pretrained(case("tiny-llama3"))
    tokenizer.chat_template = template
    return ChatTemplate(tokenizer, more)


def test_a_system_message_that_is_refused_is_left_out_and_told_once(caplog):
    one = chat(TEMPLATE, loud=True)
    logging.getLogger("lm_eval").propagate = True
    texts = [one.render([SYSTEM, USER], add_generation_prompt=True) for _ in range(3)]
    assert set(texts) == {"<|begin_of_text|>[user] Hi\n[assistant]!"}
    [reported] = [record.getMessage() for record in caplog.records if "jaxscore" in record.name]
    assert reported.startswith("messages are rendered without system: ")
    assert "refuses messages of system, user (no system here)" in reported


def test_the_beginning_of_an_answer_goes_on():
    said = {"role": "assistant", "content": "So"}
    text = chat(TEMPLATE).render([USER, said], add_generation_prompt=False)
    assert text == "<|begin_of_text|>[user] Hi\n[assistant] So"


def test_a_template_that_expects_parts_gets_parts():
    """`hf` gives it strings, of which it writes nothing."""
    parts = "{% for m in messages %}[{% for p in m.content %}{{ p.text }}{% endfor %}]{% endfor %}"
    one = chat(parts)
    assert one.render([SYSTEM, USER], add_generation_prompt=True) == "[Be brief.][Hi]"
    said = {"role": "assistant", "content": "So "}
    assert one.render([USER, said], add_generation_prompt=False) == "[Hi][So "


@pytest.mark.parametrize(
    ("template", "messages", "why"),
    [
        (None, [USER], "lacks a chat template; leave out --apply_chat_template"),
        ("{{ raise_exception('no') }}", [USER], r"refuses messages of user \(no\)"),
        ("{{ raise_exception('no') }}", [SYSTEM, USER], r"refuses messages of user \(no\)"),
        ("{% if %}", [USER], r"refuses messages of user \(Expected an expression"),
        ("{{ messages[-1].content }}", [SYSTEM, USER], "the template takes no system message"),
        (
            "{{ messages[0].content }}",
            [USER, USER],
            r"leaves out the text of message 2 of 2",
        ),
    ],
)
def test_what_is_refused(template, messages, why):
    with pytest.raises(InputError, match=why):
        chat(template).render(messages, add_generation_prompt=True)
