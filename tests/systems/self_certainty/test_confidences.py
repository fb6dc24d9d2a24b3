"""Self-certainty against PyTorch and the formula, and what a later run keeps of an earlier one."""

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from jaxscore.errors import InputError
from jaxscore.systems.drawn_tokens import DrawnTokens
from jaxscore.systems.self_certainty import ALIGNMENTS
from jaxscore.types.results import ScoredRequest, failed
from tests.conftest import CASES, MODELS
from tests.systems.works import begin

pytestmark = pytest.mark.numeric

ITEMS = [
    {
        "session_id": "s",
        "model_input": "Question: where is Osk?\n",
        "output": ["Osk", " By sea.\n"],
    },
    {"input": "", "output": ["مرحبا بالعالم, e\u0301 \u200d👩", "two  blanks\r\n"]},
]


def load(tmp_path, items, previous=(), **options):
    (tmp_path / "in.json").write_text(json.dumps(items), encoding="utf-8")
    return begin("self-certainty", tmp_path / "in.json", previous, **options)


def complete(scorer, work, alignment="formula", only=None):
    """Score what is missing (of the items `only`); returns how many outputs were scored."""
    wanted = [one for one in work.missing_outputs() if only is None or one[0] in only]
    found = scorer.score(
        work.requests(wanted, DrawnTokens(scorer)),
        boundary=ALIGNMENTS[alignment],
        special_tokens=False,
    )
    made = work.made_with({"model": "m"})
    for (place, output), one in zip(wanted, found, strict=True):
        work.known[place].take(output, one, made)
    return len(wanted)


def published(name, context, output, alignment):
    """The formula from whole logits: -1/(nV) sum log(V p), of PyTorch in float64."""
    folder = CASES / "models" / name
    from jaxscore.text.tokenizer_files import load_tokenizer

    tokenizer = load_tokenizer(folder)
    a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (context, output))
    first = len(a) - (alignment == "formula")
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        logits = model(torch.tensor([(a + b)[: first + len(b)]])).logits[0]
    logp = torch.log_softmax(logits.double(), -1)
    terms = -(logp + math.log(logp.shape[1])).mean(-1)
    return terms[max(0, first) :].mean().item()


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_it_is_the_formula(scorers, tmp_path, name, alignment):
    work = load(tmp_path, ITEMS)
    assert complete(scorers(name), work, alignment) == 4
    for inputs, known in zip(work.inputs, work.known, strict=True):
        assert known.values == pytest.approx(
            [published(name, inputs.context, text, alignment) for text in inputs.outputs], abs=1e-4
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("alignment", "column"), [("formula", "confidence_list"), ("upstream", "published_alignment")]
)
def test_the_shared_cases(scorers, name, alignment, column):
    work = begin("self-certainty", CASES / "self_certainty/samples.json")
    complete(scorers(name), work, alignment)
    want = CASES / "expected" / name / "self_certainty.json"
    for known, other in zip(work.known, json.loads(want.read_text()), strict=True):
        assert known.values == pytest.approx(other[column], abs=1e-4)


def test_fields_and_names(tmp_path):
    given = [
        {"id": 7, "q": "a", "r": ["b"], "model_input": "no", "processed_index": 3},
        {"q": "c", "r": [], "confidence_list": [1.0], "confidence_errors": ["old"]},
    ]
    work = load(tmp_path, given, input_field="q", output_field="r")
    first, second = work.inputs
    assert [entry.name for entry in work.entries] == ["item 1 (id 7)", "item 2"]
    assert (first.context, first.outputs) == ("a", ["b"])
    assert (second.context, second.outputs) == ("c", [])
    # what an earlier run added does not count as the item's
    assert first.given == {"id": 7, "q": "a", "r": ["b"], "model_input": "no"}
    assert second.given == {"q": "c", "r": []}
    [one] = load(tmp_path, [{"model_input": None, "input": "x", "output": ["y"]}]).inputs
    assert one.context == "x"
    with pytest.raises(InputError, match='item 1: no field "q", expected a string; there are'):
        load(tmp_path, [{"input": "x", "output": ["y"]}], input_field="q")


def test_items_that_cannot_be_used_do_not_cost_the_others(tmp_path):
    bad = [
        ({"output": ["y"]}, "no field \"model_input\", expected a string; there are 'output'"),
        ({"model_input": ["x"], "output": ["y"]}, 'field "model_input" is a list, expected a str'),
        ({"model_input": "x"}, 'no field "output", expected a list of strings'),
        ({"model_input": "x", "output": "y"}, 'field "output" is a string, expected a list of str'),
        ({"model_input": "x", "output": None}, 'field "output" is null'),
        ({}, "there are none"),
    ]
    work = load(tmp_path, [given for given, _ in bad] + ITEMS)
    assert [*work.errors] == [*range(len(bad))]
    for place, (given, part) in enumerate(bad):
        assert part in work.errors[place]
        assert (work.inputs[place].given, work.inputs[place].outputs) == (given, [])
    assert work.missing_outputs() == [(6, 0), (6, 1), (7, 0), (7, 1)]
    assert work.record(0) == {
        "output": ["y"],
        "confidence_list": [],
        "processed_index": 0,
        "confidence_errors": [work.errors[0]],
    }
    with pytest.raises(InputError, match=r"no item can be used; item 1: no field"):
        load(tmp_path, [bad[0][0], bad[1][0]])


def scored(*values, truncated=0):
    n = len(values)
    values = np.array(values, np.float32)
    ids = np.zeros(n, np.int32)
    greedy = np.zeros(n, bool)
    return ScoredRequest("", ids, ["x"] * n, values, values, values, greedy, truncated)


def test_one_cut_input_marks_its_item(tmp_path):
    [known] = load(tmp_path, [{"model_input": "", "output": ["x", "y", "z"]}]).known
    made = {"model": "m"}
    known.take(0, scored(1.0), made | {"truncate": None})
    assert known.made["truncate"] is None
    known.take(1, scored(1.0, truncated=5), made)
    known.take(2, scored(1.0), made)
    assert known.made == {"model": "m", "truncate": "left"}
    assert made == {"model": "m"}


def test_outputs_without_a_confidence(tmp_path):
    outputs = [None, 3, "", "x", "y", "z", "w", ["v"]]
    work = load(tmp_path, [{"model_input": "", "output": outputs}])
    [known] = work.known
    assert known.missing == [3, 4, 5, 6]
    assert work.record(0) is None
    known.take(3, scored(math.nan, 1.0, 2.0), {"model": "m"})
    known.take(4, scored(), {"model": "m"})
    known.take(5, scored(math.nan), {"model": "m"})
    known.take(6, failed("", "too long"), {"model": "m"})
    record = work.record(0)
    assert record["confidence_list"] == [None, None, None, 1.5, None, None, None, None]
    assert record["confidence_errors"] == [
        "output 1: found null, expected a string",
        "output 2: found a whole number, expected a string",
        "output 3: no tokens, so there is no prediction to be certain of",
        "output 5: no tokens, so there is no prediction to be certain of",
        "output 6: one token with nothing before it, so it is not predicted",
        "output 7: too long",
        "output 8: found a list, expected a string",
    ]
    assert record["confidence_settings"] == {"model": "m"}
    assert work.failures()[0] == ("item 1", "output 1: found null, expected a string")
    assert len(work.failures()) == 7


def test_a_later_run_computes_what_is_missing_and_gives_the_same(scorers, tmp_path):
    items = [*ITEMS, {"input": "x", "output": ["a b", None, "c", "d"]}]
    whole = load(tmp_path, items)
    assert complete(scorers("tiny-qwen2"), whole) == 7
    records = json.loads(json.dumps(whole.records()))
    again = load(tmp_path, items, records)
    again.record = None  # whether all is done is known without making a record
    assert again.is_done

    begun = load(tmp_path, items)
    complete(scorers("tiny-qwen2"), begun, only=[0])
    assert not begun.is_done
    assert {place for place, _ in begun.missing_outputs()} == {1, 2}
    left = load(tmp_path, items, [begun.record(0)])
    assert (left.missing_outputs(), left.n_changed) == (begun.missing_outputs(), 0)
    assert complete(scorers("tiny-qwen2"), left) == 5
    for one, other in zip(left.known, whole.known, strict=True):
        assert one.errors == other.errors
        for a, b in zip(one.values, other.values, strict=True):
            assert a == b or a == pytest.approx(b, abs=1e-5)

    records[0]["confidence_list"][1] = None
    holed = load(tmp_path, items, records)
    assert holed.missing_outputs() == [(0, 1)]


def record(given, values, **more):
    return {**given, "confidence_list": values, **more}


def test_records_of_the_published_script_are_taken_as_they_are(tmp_path):
    previous = [record(ITEMS[0], [1.5, 2], processed_index=0)]
    work = load(tmp_path, [*ITEMS, ITEMS[0]], previous)
    assert (work.known[0].values, work.known[0].made) == ([1.5, 2], None)
    assert work.n_changed == 0
    assert "1 of them do not say how they were computed" in work.remarks()[-1]
    assert "confidence_settings" not in work.record(0)


@pytest.mark.parametrize(
    "values",
    [[1.5, math.nan], [1.5], [1.5, None], [1.5, math.inf], [1.5, "2"], [1.5, True], [1.5, 10**400]],
)
def test_an_item_never_mixes_numbers_of_two_origins(tmp_path, values):
    unknown = load(tmp_path, ITEMS, [record(ITEMS[0], values)])
    assert unknown.known[0].values == [None, None]
    own = {"confidence_settings": unknown.made_with({"model": "m"})}
    known = load(tmp_path, ITEMS, [record(ITEMS[0], values, **own)])
    assert known.known[0].values == [1.5, None]
    assert known.missing_outputs() == [(0, 1), (1, 0), (1, 1)]


def test_changed_items_are_noticed(tmp_path):
    items = [*ITEMS, ITEMS[0]]
    good = [record(item, [1.0, 2.0]) for item in items]
    for change in (
        {"model_input": "another"},
        {"output": ["Osk", "other"]},
        {"output": ["Osk"]},
        {"confidence_list": [1.0, 2.0, 3.0]},
        {"confidence_list": "1.0"},
        {"confidence_list": None},
    ):
        work = load(tmp_path, items, [good[0] | change, *good[1:]])
        assert work.n_changed == 1
        assert work.known[0].values == [None, None]
        assert work.known[1].values == work.known[2].values == [1.0, 2.0]
    with pytest.raises(InputError, match=r"out\.json: none of its items is .*delete it"):
        load(tmp_path, items, [good[1], good[0]])
    with pytest.raises(InputError, match=r"out\.json: holds 4 items and the input 3, .*delete it"):
        load(tmp_path, items, [*good, good[0]])


def test_other_settings_are_refused(tmp_path):
    own = load(tmp_path, ITEMS).made_with({"model": "a"}) | {"dtype": "float32"}
    previous = [record(ITEMS[0], [1.0, 2.0], confidence_settings=own)]
    for options in ({}, {"dtype": "float32"}, {"model": {"model": "a", "revision": None}}):
        load(tmp_path, ITEMS, previous, **{"model": {"model": "a"}, **options})
    for name, found, options in (
        ("model", "a", {"model": {"model": "b"}}),
        ("alignment", "formula", {"alignment": "upstream"}),
        ("dtype", "float32", {"dtype": "bfloat16"}),
        ("revision", "None", {"model": {"model": "a", "revision": "main"}}),
    ):
        part = f"out.json: item 1 .session_id s. was computed with {name} {found}, this run has"
        with pytest.raises(InputError, match=part):
            load(tmp_path, ITEMS, previous, **{"model": {"model": "a"}, **options})
    # where nothing was computed, nothing is mixed
    load(tmp_path, ITEMS, [previous[0] | {"confidence_list": [None, None]}], model={"model": "b"})
