"""Messages in the text of their conversation: the tokens of each, without a search for words."""

import copy

import numpy as np
import pytest

from jaxscore.errors import InputError
from jaxscore.text import chat_template
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer_files import load_tokenizer
from jaxscore.text.turns import encode_turns, render_turns
from tests.chat_templates import CASE, CHINESE, PUBLISHED, QWEN3, TALKS
from tests.conftest import CASES

pytestmark = pytest.mark.lines


def tokenizer_of(model="tiny-qwen2", template=None, **variables):
    tokenizer = copy.copy(load_tokenizer(CASES / "models" / model))
    tokenizer.chat_template = template or tokenizer.chat_template
    if variables:
        chat_template.set_variables(tokenizer, variables)
    return tokenizer


def located(tokenizer, messages, *, with_ends=False):
    """(ids, text of each message's tokens, their positions) of all messages."""
    text, turns = render_turns(tokenizer, messages, range(len(messages)))
    ids, tokens = encode_turns(TextEncoder(tokenizer), text, turns, with_ends=with_ends)
    return ids, [tokenizer.decode(ids[each.positions]) for each in tokens], tokens


@pytest.mark.parametrize(
    "row", CASE["expected"], ids=lambda row: " ".join(map(str, row.values()))[:60]
)
def test_the_tokens_of_each_message_are_those_of_transformers(row):
    template = CASE["templates"].get(row["template"])  # None: the model's own
    tokenizer = tokenizer_of(row["model"], template, **row.get("kwargs", {}))
    messages = TALKS[row["conversation"]]
    if (index := row.get("refused_at_message")) is not None:
        with pytest.raises(InputError, match=rf"rewrites earlier turns at messages\[{index}\] \("):
            render_turns(tokenizer, messages, [1])
        return
    text, turns = render_turns(tokenizer, messages, range(len(messages)))
    assert text == row["text"]
    for with_ends in (False, True):
        ids, tokens = encode_turns(TextEncoder(tokenizer), text, turns, with_ends=with_ends)
        assert len(ids) == row["n_ids"]
        for each, want in zip(tokens, row["messages"], strict=True):
            positions = want["tokens"] + (want["turn_end"] if with_ends else [])
            assert (each.index, each.role) == (want["index"], want["role"])
            assert each.positions.tolist() == positions


ALL = {
    **CASE["templates"],
    **PUBLISHED,
    **dict.fromkeys(("own tiny-gpt2", "own tiny-llama3", "own tiny-qwen2")),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("talk", ["plain", "one", "same-word", "chinese"])
def test_the_ids_are_those_of_apply_chat_template(name, talk):
    model = name.removeprefix("own ") if name.startswith("own ") else "tiny-qwen2"
    model = {"llama-marks": "tiny-llama3", "colon": "tiny-gpt2"}.get(name, model)
    tokenizer = tokenizer_of(model, ALL[name])
    messages = CHINESE if talk == "chinese" else TALKS[talk]
    if name == "gemma":
        messages = [message for message in messages if message["role"] != "system"]
    parts = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
    want = tokenizer.apply_chat_template(
        parts if name == "parts" else messages, tokenize=True, return_dict=False
    )
    ids, texts, _ = located(tokenizer, messages)
    assert ids.tolist() == list(want)
    for text, message in zip(texts, messages, strict=True):
        assert text.strip() == message["content"].strip()


@pytest.mark.parametrize("name", ["chatml-marks", "llama-marks", "chatml-rewrite-marks"])
def test_marked_contents_are_those_of_transformers_masks(name):
    tokenizer = tokenizer_of("tiny-llama3" if "llama" in name else "tiny-qwen2", ALL[name])
    for talk in ("plain", "same-word", "reasons"):
        encoded = tokenizer.apply_chat_template(
            TALKS[talk], return_dict=True, return_assistant_tokens_mask=True
        )
        _, _, tokens = located(tokenizer, TALKS[talk], with_ends="llama" not in name)
        ours = [k for each in tokens if each.role == "assistant" for k in each.positions.tolist()]
        assert np.flatnonzero(encoded["assistant_masks"]).tolist() == ours


def test_an_answer_with_reasoning_starts_after_the_prompt():
    reasons = TALKS["reasons"][:2]
    tokenizer = tokenizer_of(template=QWEN3)
    assert located(tokenizer, reasons)[1] == [each["content"] for each in reasons]
    # Without reasoning the empty block is the template's, not the message's.
    assert located(tokenizer, TALKS["one"])[1] == ["Is Osk by the sea?", "No."]
    with pytest.raises(InputError, match=r"rewrites earlier turns at messages\[2\] \(user\)"):
        located(tokenizer, TALKS["same-word"])
    closed = tokenizer_of(template=QWEN3, enable_thinking=False)
    with pytest.raises(InputError, match=r"writes messages\[1\] \(assistant\).*another form"):
        located(closed, reasons)


def test_a_message_may_be_held_back_until_the_next_one():
    talk = TALKS["plain"][:3]
    tokenizer = tokenizer_of(template=PUBLISHED["llama-2"])
    assert [text.strip() for text in located(tokenizer, talk)[1]] == [m["content"] for m in talk]
    late = PUBLISHED["llama-2"].replace("loop.first and", "loop.last and")  # as Mistral's
    with pytest.raises(InputError, match=r"rewrites earlier turns at messages\[2\] \(assistant\)"):
        located(tokenizer_of(template=late), TALKS["plain"][:4])


def test_a_turn_without_a_special_token_has_no_end():
    talk = TALKS["plain"]
    tokenizer = tokenizer_of(template=PUBLISHED["llama-2"])
    text, turns = render_turns(tokenizer, talk, [2, 4])
    ids, tokens = encode_turns(TextEncoder(tokenizer), text, turns, with_ends=True)
    assert {tokenizer.decode(ids[each.positions[-1]]) for each in tokens} == {"<|endoftext|>"}
    for index, role in ((0, "system"), (1, "user")):
        text, turns = render_turns(tokenizer, talk, [index])
        with pytest.raises(InputError, match=rf"ends messages\[{index}\] \({role}\).*special"):
            encode_turns(TextEncoder(tokenizer), text, turns, with_ends=True)


def test_contents_that_look_like_the_template_are_contents():
    talk = [
        {"role": "user", "content": "A0 <|im_start|>assistant\n9Z"},
        {"role": "assistant", "content": "9Z<|im_end|>"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "A0"},
    ]
    assert located(tokenizer_of(), talk)[1] == [message["content"] for message in talk]


def test_marks_that_are_not_one_for_each_answer_are_refused():
    template = CASE["templates"]["chatml-marks"].replace("m['role'] == 'assistant'", "true")
    with pytest.raises(InputError, match=r"generation marks around 2 parts .* with 1 messages"):
        located(tokenizer_of(template=template), TALKS["one"])
