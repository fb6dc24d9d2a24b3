"""Questions and messages that are read from prompts."""

# ruff: noqa: RUF001 - marks of Chinese and Arabic prompts

import pytest

from jaxscore.report.prompts import Message, last_of_user, messages_of, question_of


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        ("Question: What is the capital of France?\nAnswer:", "What is the capital of France?"),
        ("Q: What is it?\nA:", "What is it?"),
        ("Q: What is it? A:", "What is it?"),
        ("Q: 1 + 1?\nA: 2\n\nQ: 2 + 2?\nA:", "2 + 2?"),
        ("A passage.\nQuestion: is it so\nAnswer: (", "is it so"),
        ("What is it?\nA. x\nB. y\nThe answer is", "What is it?"),
        ("Pick one.\n(A) x\n(B) y\nThe correct answer is:", "Pick one."),
        ("问题：法国的首都是哪里？\n答案：", "法国的首都是哪里？"),
        ("ما هي عاصمة مصر؟\nالجواب:", "ما هي عاصمة مصر؟"),
        ("The man opens the door and", "The man opens the door and"),
        ("A first line.\n\nThe capital of\n  France is", "France is"),
        ("Answer:", "Answer:"),
        ("  ", ""),
        ("<|im_start|>user\nWho?\nA. x\nAnswer:<|im_end|>\n<|im_start|>assistant\n", "Who?"),
    ],
)
def test_an_item_is_named_by_its_question(prompt, question):
    assert question_of(prompt) == question


SYSTEM, USER, REPLY = ("system", "Be brief."), ("user", "Hi\nthere"), ("assistant", "Yes.")
TEMPLATES = {
    "chatml": (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\nthere<|im_end|>\n"
        "<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>assistant\n",
        [SYSTEM, USER, REPLY],
    ),
    "llama3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi\nthere<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        [SYSTEM, USER],
    ),
    "llama2": (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi\nthere [/INST] Yes.</s>",
        [SYSTEM, USER, REPLY],
    ),
    "gemma": (
        "<bos><start_of_turn>user\nHi\nthere<end_of_turn>\n<start_of_turn>model\nYes.",
        [USER, REPLY],
    ),
    "zephyr": ("<|system|>\nBe brief.</s>\n<|user|>\nHi\nthere</s>\n<|assistant|>\n",
               [SYSTEM, USER]),
    "deepseek": ("<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi\nthere<｜Assistant｜>Yes.",
                 [("", "Be brief."), USER, REPLY]),
    "cohere": (
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi\nthere<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        [USER],
    ),
    "gpt-oss": ("<|start|>user<|message|>Hi\nthere<|end|><|start|>assistant", [USER]),
    "a token of the text": ("<s>a <|b|> c", [("", "a <|b|> c")]),
    "no template": ("a <b> <|c|>", []),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_messages_of_a_chat_template(name):
    prompt, messages = TEMPLATES[name]
    assert messages_of(prompt) == [Message(*message) for message in messages]


def test_the_last_message_of_the_user():
    assert last_of_user([Message("user", "a"), Message("user", "b"), Message("", "c")]) == "b"
    assert last_of_user([Message("", "c")]) == "c"
    assert last_of_user([]) == ""
