"""The consistency prompt to the letter, and what a later run keeps of an earlier one."""

import json

import numpy as np
import pytest

from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.systems.samples import usc_prompt
from jaxscore.systems.samples.usc_prompt import NOT_YET
from jaxscore.types.results import Generated

SETTINGS = {"generator": "m", "temperature": 0.0, "seed": None, "dtype": "float32"}
ITEMS = [
    {"id": "a", "chat_history": ["Why?", "Because."], "output": ["one", "two", "three"], "x": 1},
    {"session_id": 5, "input": "Who?", "output": ["me"]},
]


def load(tmp_path, items, n=2):
    (tmp_path / "in.json").write_text(json.dumps(items), encoding="utf-8")
    return usc_prompt.load(tmp_path / "in.json", n)


def generated(text, error=None):
    return Generated("", text, np.zeros(1, np.int32), "eos", error)


def test_the_prompt_to_the_letter(tmp_path):
    first, second = load(tmp_path, ITEMS)
    assert first.prompt == (
        "I have generated the following responses to the question: Why?\n"
        "Response 0: one\n\n"
        "Response 1: two\n\n"
        "Evaluate these responses.\n"
        "Select the most consistent response based on majority consensus.\n"
        'Format your answer as "The most consistent response is Response X" (without quotes).\n'
    )
    assert first.responses == ["one", "two"]
    assert "question: Who?\nResponse 0: me\n\nEvaluate" in second.prompt
    braces = usc_prompt.prompt("{question} مرحبا", ["{0}", "\\n"])
    assert "question: {question} مرحبا\nResponse 0: {0}\n\nResponse 1: \\n\n\n" in braces


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"chat_history": ["### Question:\nAdd.\n\n### Format: code\n"]}, "Add."),
        ({"chat_history": ["### Question:\nAdd ## Instruction x"]}, "Add ## Instruction x"),
        ({"chat_history": ["\n## Question: \n\nWhy?\n\n\n## Instruction \n\nPlease"]}, "Why?"),
        ({"chat_history": ["## Question: Why?"]}, "Why?"),
        ({"chat_history": [" plain "], "model_input": "no"}, " plain "),
        ({"chat_history": [], "model_input": "b"}, "b"),
        ({"chat_history": "a", "model_input": "b", "input": "c"}, "b"),
        ({"chat_history": [None], "model_input": None, "input": "c"}, "c"),
        ({"input": ""}, ""),
    ],
)
def test_where_the_question_is(given, want):
    assert usc_prompt.question(given) == want


def test_items_that_cannot_be_used_do_not_cost_the_others(tmp_path):
    bad = [
        ({"output": ["a"]}, 'no question: expected "chat_history", a list that begins with a'),
        ({"input": "?"}, "no field \"output\", expected a list of strings; there are 'input'"),
        ({"input": "?", "output": "a"}, 'field "output" is a string, expected a list'),
        ({"input": "?", "output": []}, 'field "output" is empty'),
        ({"input": "?", "output": ["a", None]}, 'field "output", response 1: found null'),
        ({"input": "?", "output": [3]}, 'field "output", response 0: found a whole number'),
    ]
    items = load(tmp_path, [given for given, _ in bad] + ITEMS)
    for item, (given, part) in zip(items, bad, strict=False):
        assert part in item.error
        record = usc_prompt.failed(item, item.error)
        assert record == {**given, "output": [], "responses": [], "error": item.error}
    assert [item.error for item in items[-2:]] == [None, None]
    assert load(tmp_path, [{"input": "?", "output": ["a", None]}], n=1)[0].error is None
    with pytest.raises(InputError, match=r"no item can be used; item 1: no question"):
        load(tmp_path, [bad[0][0]])


def test_the_record_is_what_usc_select_reads(tmp_path):
    items = load(tmp_path, ITEMS)
    record = usc_prompt.evaluate(items[0], "<p>", generated(" Response 1 \n"), SETTINGS)
    assert list(record.items()) == [
        ("session_id", "a"),
        ("chat_history", [items[0].prompt]),
        ("model_input", "<p>"),
        ("output", ["Response 1"]),
        ("generator", "m"),
        ("configs", {"temperature": 0.0, "dtype": "float32"}),
        ("responses", ["one", "two"]),
        ("id", "a"),
        ("x", 1),
    ]
    lost = usc_prompt.evaluate(items[1], "<p>", generated("", "too long"), SETTINGS)
    assert (lost["output"], lost["error"]) == ([], "too long")

    chosen, failed = evaluate("usc-select", None, [record, lost]).items
    assert chosen["output"] == ["two"]
    assert failed["error"]


def test_each_item_draws_with_a_seed_of_its_own(tmp_path):
    items = load(tmp_path, ITEMS)
    asked = usc_prompt.requests(
        items[1:], ["<p>"], max_new_tokens=7, temperature=0.5, top_p=0.9, seed=10
    )
    assert [(r.prompt, r.max_new_tokens, r.temperature, r.top_p, r.seed) for r in asked] == [
        ("<p>", 7, 0.5, 0.9, 11)
    ]


def test_a_later_run_keeps_replies_to_the_same_prompts(tmp_path):
    items = load(tmp_path, [*ITEMS, ITEMS[1]])
    known = {name: value for name, value in SETTINGS.items() if name != "dtype"}
    made = [usc_prompt.evaluate(item, "<p>", generated("R"), SETTINGS) for item in items]
    made = json.loads(json.dumps(made))
    assert usc_prompt.resume(items, made, known, "out.json") == (made, 0)
    assert usc_prompt.resume(items, made[:1], known, "out.json") == ([made[0], None, None], 0)
    assert usc_prompt.resume(items, [], known, "out.json") == ([None] * 3, 0)

    lost = usc_prompt.failed(items[1], "no room")
    found = usc_prompt.resume(items, [made[0], lost], known, "out.json")
    assert found == ([made[0], None, None], 0)  # tried again, and not called changed
    assert usc_prompt.resume(items, [lost | {"chat_history": 3}, *made[1:]], known, "") == (
        [None, *made[1:]],
        1,
    )
    for output in ([], [None], "R", ["a", "b"], None):
        broken = [made[0] | {"output": output}]
        assert usc_prompt.resume(items, broken, known, "out.json") == ([None] * 3, 0)


def test_files_of_other_inputs_and_settings(tmp_path):
    items = load(tmp_path, ITEMS)
    made = [usc_prompt.evaluate(item, "<p>", generated("R"), SETTINGS) for item in items]
    for name, value in (("generator", "n"), ("temperature", 1.0), ("seed", 3)):
        part = rf"out\.json: item 1 \(id a\) was computed with {name} .* delete it"
        with pytest.raises(InputError, match=part):
            usc_prompt.resume(items, made, SETTINGS | {name: value}, "out.json")
    with pytest.raises(InputError, match="none of its items is the one in the same place"):
        usc_prompt.resume(items, made[::-1], SETTINGS, "out.json")
    with pytest.raises(InputError, match="holds 3 items and the input 2"):
        usc_prompt.resume(items, [*made, made[0]], SETTINGS, "out.json")
    published = made[0] | {"configs": {"engine": "vllm", "temperature": 0}}
    assert usc_prompt.resume(items, [published], {"generator": "m"}, "")[0][0]["output"] == ["R"]
    with pytest.raises(InputError, match="computed with max_tokens None"):
        usc_prompt.resume(items, [published], {"max_tokens": 5}, "out.json")


def test_what_is_written_meanwhile(tmp_path):
    items = load(tmp_path, [*ITEMS, ITEMS[1]])
    made = [usc_prompt.evaluate(item, "<p>", generated("R"), SETTINGS) for item in items]
    assert list(usc_prompt.finished(items, made, 0)) == made
    assert list(usc_prompt.finished(items, [made[0], None, made[2]], 0)) == made[:1]
    held = list(usc_prompt.finished(items, [None, made[1], None], 2))
    assert [one.get("error") for one in held] == [NOT_YET, None]
    assert held[0]["chat_history"] == [items[0].prompt]
