"""`choose` after a system prompt, examples and a template, and with letters as options."""

import numpy as np
import pytest

from jaxscore import InputError, evaluate
from jaxscore.systems.choose.item import LETTERS, Item

pytestmark = pytest.mark.numeric

ITEMS = [
    {"id": "a", "context": "Where is Oslo?\nAnswer:", "options": [" Norway", " Spain"], "gold": 0},
    {"id": "b", "context": "Where is Rome?\nAnswer:", "options": [" Norway", " Italy"], "gold": 1},
]
SHOTS = [
    {"context": "Where is Bonn?\nAnswer:", "options": [" Germany", " Peru"], "gold": "A"},
    ITEMS[1],
]
BONN, ROME = "Where is Bonn?\nAnswer: Germany\n\n", "Where is Rome?\nAnswer: Italy\n\n"
LETTERED = [
    "Where is Oslo?\nA. Norway\nB. Spain\nAnswer:",
    "Where is Rome?\nA. Norway\nB. Italy\nAnswer:",
]


@pytest.fixture
def scorer(scorers):
    return scorers("tiny-qwen2")


def close(values):
    return pytest.approx(values, abs=1e-4)


def sums(scorer, pairs, boundary="joint"):
    return close([one.sum_logprob for one in scorer.score(pairs, boundary=boundary)])


def chat(scorer, *turns, system=None):
    """A conversation that ends with the header of the assistant's turn."""
    messages = [{"role": "system", "content": system}] if system else []
    roles = ("user", "assistant")
    messages += [{"role": roles[k % 2], "content": turn} for k, turn in enumerate(turns)]
    tokenizer = scorer.encoder.tokenizer
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def flat(report, field="sum_logprob"):
    return [value for item in report.items for value in item[field]]


def test_examples_and_a_system_prompt_in_plain_text(scorer):
    report = evaluate("choose", scorer, ITEMS, system_prompt="S.", fewshot=SHOTS)
    first = f"S.\n\n{BONN}{ROME}Where is Oslo?\nAnswer:"
    second = f"S.\n\n{BONN}Where is Rome?\nAnswer:"  # it is the second example
    pairs = [(first, " Norway"), (first, " Spain"), (second, " Norway"), (second, " Italy")]
    assert flat(report) == sums(scorer, pairs)
    alone = [("Answer:", option) for _, option in pairs]
    before = [one.sum_logprob for one in scorer.score(alone)]
    assert flat(report, "pmi") == close(np.subtract(flat(report), before).tolist())
    assert [item["context"] for item in report.items] == [item["context"] for item in ITEMS]
    assert report.settings["system_prompt"] == "S."
    assert report.settings["fewshot_left_out"] == 1


def test_a_conversation(scorer):
    settings = {"apply_chat_template": True, "system_prompt": "S.", "fewshot": SHOTS[:1]}
    report = evaluate("choose", scorer, ITEMS[:1], **settings)
    turns = ("Where is Bonn?\nAnswer:", "Germany", "Where is Oslo?\nAnswer:")
    context = chat(scorer, *turns, system="S.")
    assert flat(report) == sums(scorer, [(context, "Norway"), (context, "Spain")], "exact")
    premise = chat(scorer, "Answer:")
    before = [
        one.sum_logprob
        for one in scorer.score(
            [(premise, "Norway"), (premise, "Spain")], boundary="exact", special_tokens=False
        )
    ]
    assert flat(report, "pmi") == close(np.subtract(flat(report), before).tolist())


@pytest.mark.parametrize("chatted", [False, True])
def test_letters(scorer, chatted):
    settings = {"options_as": "letters", "apply_chat_template": chatted, "fewshot": SHOTS[1:]}
    report = evaluate("choose", scorer, ITEMS, **settings)
    shot = LETTERED[1]
    if chatted:
        contexts = [chat(scorer, shot, "B", LETTERED[0]), chat(scorer, LETTERED[1])]
        pairs = [(context, letter) for context in contexts for letter in "AB"]
    else:
        contexts = [f"{shot} B\n\n{LETTERED[0]}", LETTERED[1]]
        pairs = [(context, f" {letter}") for context in contexts for letter in "AB"]
    assert flat(report) == sums(scorer, pairs, "exact" if chatted else "joint")
    for item, asked, prompt in zip(report.items, ITEMS, LETTERED, strict=True):
        assert (item["prompt"], item["context"]) == (prompt, asked["context"])
        assert item["options"] == asked["options"]
        assert item["choice"] == item["choice_norm"] == int(np.argmax(item["sum_logprob"]))
        assert item["acc"] is (item["choice"] == asked["gold"])
    page = report.document.items.fields[0]
    assert {*page.values} == {*LETTERED}


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ("Where?", "Where?\nA. x\nB. y\nAnswer:"),
        ("Q: Where?\nA:", "Q: Where?\nA. x\nB. y\nA:"),
        ("Q: Where?\n\nAnswer: ", "Q: Where?\nA. x\nB. y\nAnswer:"),
        ("Question: Where? Answer:", "Question: Where?\nA. x\nB. y\nAnswer:"),
        ("Rules.\n\nWhere?\nThe answer is", "Rules.\n\nWhere?\nA. x\nB. y\nThe answer is"),
        ("首都是哪里？\n答案：", "首都是哪里？\nA. x\nB. y\n答案："),  # noqa: RUF001
        ("", "A. x\nB. y\nAnswer:"),
        ("Where?\n{options}\nLetter:", "Where?\nA. x\nB. y\nLetter:"),
    ],
)
def test_the_lines_of_letters_are_before_the_request_for_an_answer(context, expected):
    assert Item(context, (" x", "y ")).lettered((0, 1)) == expected


def test_what_cannot_be_asked_fails_alone_or_is_refused(scorer):
    many = {"context": "Which?", "options": [f" {k}" for k in range(len(LETTERS) + 1)], "gold": 0}
    report = evaluate("choose", scorer, [many, ITEMS[0], many], options_as="letters")
    assert [bool(item.get("error")) for item in report.items] == [True, False, True]
    assert "27 options, and there are letters for 26" in report.items[0]["error"]
    blank = {**ITEMS[0], "context": " "}
    report = evaluate("choose", scorer, [blank, ITEMS[0]], system_prompt="S.")
    assert "its context is blank" in report.items[0]["error"]
    assert report.items[1]["sum_logprob"]
    without = {key: value for key, value in ITEMS[0].items() if key != "gold"}
    with pytest.raises(InputError, match='few-shot example 1: no field "gold", expected the right'):
        evaluate("choose", scorer, ITEMS, fewshot=[without])
