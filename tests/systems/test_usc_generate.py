"""The consistency prompt to the letter, and what a later run keeps of an earlier one."""

import json

import numpy as np
import pytest

from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.systems import usc_generate
from jaxscore.systems.generations import Generations
from jaxscore.types.results import Generated
from tests.systems.works import begin

ITEMS = [
    {"id": "a", "chat_history": ["Why?", "Because."], "output": ["one", "two", "three"], "x": 1},
    {"session_id": 5, "input": "Who?", "output": ["me"]},
]


def load(tmp_path, items, previous=(), n=2, **options):
    (tmp_path / "in.json").write_text(json.dumps(items), encoding="utf-8")
    return begin("usc-generate", tmp_path / "in.json", previous, n=n, **options)


def take(work, place, text, error=None):
    """Note a reply; returns the item's record."""
    reply = Generated("", text, np.zeros(1, np.int32), "eos", error)
    made = work.made_with({"model": "m"}) | {"dtype": "float32"}
    work._take(place, [reply], Generations(made, [], [], "<p>", [], [7, 8]), decoder=None)
    return work.record(place)


def test_the_prompt_to_the_letter(tmp_path):
    work = load(tmp_path, ITEMS)
    assert work.prompts[0] == (
        "I have generated the following responses to the question: Why?\n"
        "Response 0: one\n\n"
        "Response 1: two\n\n"
        "Evaluate these responses.\n"
        "Select the most consistent response based on majority consensus.\n"
        'Format your answer as "The most consistent response is Response X" (without quotes).\n'
    )
    assert work.responses[0] == ["one", "two"]
    assert "question: Who?\nResponse 0: me\n\nEvaluate" in work.prompts[1]
    braces = usc_generate.prompt("{question} مرحبا", ["{0}", "\\n"])
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
    assert usc_generate.question(given) == want


def test_items_that_cannot_be_used_do_not_cost_the_others(tmp_path):
    bad = [
        ({"output": ["a"]}, 'no question: expected "chat_history", a list that begins with a'),
        ({"input": "?"}, "no field \"output\", expected a list of strings; there are 'input'"),
        ({"input": "?", "output": "a"}, 'field "output" is a string, expected a list'),
        ({"input": "?", "output": []}, 'field "output" is empty'),
        ({"input": "?", "output": ["a", None]}, 'field "output", response 1: found null'),
        ({"input": "?", "output": [3]}, 'field "output", response 0: found a whole number'),
    ]
    work = load(tmp_path, [given for given, _ in bad] + ITEMS)
    assert [*work.errors] == [*range(len(bad))]
    for place, (given, part) in enumerate(bad):
        assert part in work.errors[place]
        want = {**given, "output": [], "responses": [], "error": work.errors[place]}
        assert work.record(place) == want
    assert load(tmp_path, [{"input": "?", "output": ["a", None]}], n=1).errors == {}
    with pytest.raises(InputError, match=r"no item can be used; item 1: no question"):
        load(tmp_path, [bad[0][0]])


def test_the_record_is_what_usc_select_reads(tmp_path):
    work = load(tmp_path, ITEMS)
    record = take(work, 0, " Response 1 \n")
    assert list(record.items()) == [
        ("session_id", "a"),
        ("chat_history", [work.prompts[0]]),
        ("model_input", "<p>"),
        ("output", ["Response 1"]),
        ("prompt_token_ids", [7, 8]),
        ("token_ids", [[0]]),
        ("generator", "m"),
        ("configs", {"temperature": 0.0, "top_p": 1.0, "max_tokens": 1024, "dtype": "float32"}),
        ("responses", ["one", "two"]),
        ("id", "a"),
        ("x", 1),
    ]
    lost = take(work, 1, "", "too long")
    assert (lost["output"], lost["error"]) == ([], "too long")
    chosen, failed = evaluate("usc-select", None, [record, lost], dataset_type="open").items
    assert chosen["output"] == ["two"]
    assert failed["error"]


def test_each_item_draws_with_a_seed_of_its_own(tmp_path):
    work = load(tmp_path, ITEMS, max_new_tokens=7, temperature=0.5, top_p=0.9, seed=10)
    [r] = work.requests(1, [3, 4])
    assert (r.prompt, r.max_new_tokens, r.temperature, r.top_p, r.seed) == ([3, 4], 7, 0.5, 0.9, 11)


def test_a_later_run_keeps_replies_to_the_same_prompts(tmp_path):
    items = [*ITEMS, ITEMS[1]]
    work = load(tmp_path, items)
    made = json.loads(json.dumps([take(work, place, "R") for place in range(3)]))

    def resumed(previous):
        found = load(tmp_path, items, previous)
        return [found.record(place) for place in range(3)], found.n_changed

    assert resumed(made) == (made, 0)
    assert resumed(made[:1]) == ([made[0], None, None], 0)
    assert resumed([]) == ([None] * 3, 0)
    lost = take(load(tmp_path, items), 1, "", "no room")
    # tried again, and not called changed
    assert resumed([made[0], lost]) == ([made[0], None, None], 0)
    assert resumed([lost | {"chat_history": 3}, *made[1:]]) == ([None, *made[1:]], 1)
    for output in ([], [None], "R", ["a", "b"], None):
        assert resumed([made[0] | {"output": output}]) == ([None] * 3, 0)


def test_files_of_other_inputs_and_settings(tmp_path):
    work = load(tmp_path, ITEMS)
    made = [take(work, place, "R") for place in range(2)]
    for name, options in (
        ("generator", {"model": {"model": "n"}}),
        ("temperature", {"temperature": 1.0}),
        ("max_tokens", {"max_new_tokens": 3}),
        ("dtype", {"dtype": "bfloat16"}),
    ):
        part = rf"out\.json: item 1 \(id a\) was computed with {name} .* delete it"
        with pytest.raises(InputError, match=part):
            load(tmp_path, ITEMS, made, **options)
    with pytest.raises(InputError, match="none of its items is the one in the same place"):
        load(tmp_path, ITEMS, made[::-1])
    with pytest.raises(InputError, match="holds 3 items and the input 2"):
        load(tmp_path, ITEMS, [*made, made[0]])
    published = made[0] | {"configs": {"engine": "vllm", "temperature": 0, "top_p": 1}}
    with pytest.raises(InputError, match="computed with max_tokens None"):
        load(tmp_path, ITEMS, [published])
