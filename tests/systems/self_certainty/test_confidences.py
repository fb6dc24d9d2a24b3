"""Self-certainty against PyTorch and the formula, and what a later run keeps of an earlier one."""

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from jaxscore.errors import InputError
from jaxscore.systems.self_certainty import ALIGNMENTS, Settings
from jaxscore.systems.self_certainty.confidences import Confidence, read_inputs
from jaxscore.types.results import ScoredRequest, failed
from tests.conftest import CASES, MODELS
from tests.systems.checked import checked_items, recall, run, summaries_agree

pytestmark = pytest.mark.numeric

ITEMS = [
    {
        "session_id": "s",
        "model_input": "Question: where is Osk?\n",
        "output": ["Osk", " By sea.\n"],
    },
    {"input": "", "output": ["مرحبا بالعالم, e\u0301 \u200d👩", "two  blanks\r\n"]},
]
MODEL = str(CASES / "models/tiny-qwen2")
MADE = {"model": MODEL, "revision": None, "dtype": "float32"}


def inputs_of(item, **options):
    return read_inputs("item 1", item, Settings(**options))


@pytest.fixture
def counted(scorers, monkeypatch):
    """The scorer, and the ids of all requests that are scored."""
    scorer, seen = scorers("tiny-qwen2"), []
    stream = scorer.stream

    def watched(requests, **options):
        return stream((seen.append(one.id) or one for one in requests), **options)

    monkeypatch.setattr(scorer, "stream", watched)
    return scorer, seen


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
def test_it_is_the_formula(scorers, name, alignment):
    report = run("self-certainty", scorers(name), ITEMS, alignment=alignment)
    assert report.summary["n_scored"] == 4
    for record in report.items:
        inputs = inputs_of(record)
        assert record["confidence_list"] == pytest.approx(
            [published(name, inputs.context, text, alignment) for text in inputs.outputs], abs=1e-4
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("alignment", "column"), [("formula", "confidence_list"), ("upstream", "published_alignment")]
)
def test_the_shared_cases(scorers, name, alignment, column):
    path = CASES / "self_certainty/samples.json"
    report = run("self-certainty", scorers(name), path, alignment=alignment)
    want = CASES / "expected" / name / "self_certainty.json"
    for record, other in zip(report.items, json.loads(want.read_text()), strict=True):
        assert record["confidence_list"] == pytest.approx(other[column], abs=1e-4)


def test_fields_and_names():
    given = [
        {"id": 7, "q": "a", "r": ["b"], "model_input": "no", "processed_index": 3},
        {"q": "c", "r": [], "confidence_list": [1.0], "confidence_errors": ["old"]},
    ]
    fields = {"input_field": "q", "output_field": "r"}
    items, _ = checked_items("self-certainty", given, **fields)
    assert [entry.name for entry in items.entries()] == ["item 1 (id 7)", "item 2"]
    first, second = (inputs_of(item, **fields) for item in given)
    assert (first.context, first.outputs) == ("a", ["b"])
    assert (second.context, second.outputs) == ("c", [])
    # what an earlier run added does not count as the item's
    assert first.fields == {"id": 7, "q": "a", "r": ["b"], "model_input": "no"}
    assert second.fields == {"q": "c", "r": []}
    assert inputs_of({"model_input": None, "input": "x", "output": ["y"]}).context == "x"
    with pytest.raises(InputError, match='item 1: no field "q", expected a string; there are'):
        checked_items("self-certainty", [{"input": "x", "output": ["y"]}], input_field="q")


def test_items_that_cannot_be_used_do_not_cost_the_others(counted):
    scorer, seen = counted
    bad = [
        ({"output": ["y"]}, "no field \"model_input\", expected a string; there are 'output'"),
        ({"model_input": ["x"], "output": ["y"]}, 'field "model_input" is a list, expected a str'),
        ({"model_input": "x"}, 'no field "output", expected a list of strings'),
        ({"model_input": "x", "output": "y"}, 'field "output" is a string, expected a list of str'),
        ({"model_input": "x", "output": None}, 'field "output" is null'),
        ({}, "there are none"),
    ]
    report = run("self-certainty", scorer, [given for given, _ in bad] + ITEMS)
    for place, (given, part) in enumerate(bad):
        name, why = report.failures[place]
        assert (name, part in why) == (f"item {place + 1}", True)
        assert report.items[place] == {
            **given,
            "confidence_list": [],
            "processed_index": place,
            "confidence_errors": [why],
        }
    assert seen == [
        *(f"item 7 (session_id s), output {k}" for k in (1, 2)),
        *(f"item 8, output {k}" for k in (1, 2)),
    ]
    with pytest.raises(InputError, match=r"no item can be used; item 1: no field"):
        checked_items("self-certainty", [bad[0][0], bad[1][0]])


def scored(*values, truncated=0):
    n = len(values)
    values = np.array(values, np.float32)
    ids = np.zeros(n, np.int32)
    greedy = np.zeros(n, bool)
    return ScoredRequest("", ids, ["x"] * n, values, values, values, greedy, truncated)


def test_one_cut_input_marks_its_item():
    inputs = inputs_of({"model_input": "", "output": ["x", "y", "z"]})
    known = Confidence.unknown(inputs, measures=False)
    made = {"model": "m"}
    known.take(0, scored(1.0), made | {"truncate": None})
    assert known.settings["truncate"] is None
    known.take(1, scored(1.0, truncated=5), made)
    known.take(2, scored(1.0), made)
    assert known.settings == {"model": "m", "truncate": "left"}
    assert made == {"model": "m"}


def test_outputs_without_a_confidence():
    outputs = [None, 3, "", "x", "y", "z", "w", ["v"]]
    inputs = inputs_of({"model_input": "", "output": outputs})
    known = Confidence.unknown(inputs, measures=False)
    assert known.missing == [3, 4, 5, 6]
    known.take(3, scored(math.nan, 1.0, 2.0), {"model": "m"})
    known.take(4, scored(), {"model": "m"})
    known.take(5, scored(math.nan), {"model": "m"})
    known.take(6, failed("", "too long"), {"model": "m"})
    record = known.record(inputs, 0)
    assert record["confidence_list"] == [None, None, None, 1.5, None, None, None, None]
    assert record["confidence_errors"] == [
        "output 1: found null, expected a string",
        "output 2: found a whole number, expected a string",
        "output 3: no tokens, so nothing is predicted",
        "output 5: no tokens, so nothing is predicted",
        "output 6: a single token without context, so it is not predicted",
        "output 7: too long",
        "output 8: found a list, expected a string",
    ]
    assert record["confidence_settings"] == {"model": "m"}


def test_a_later_run_computes_what_is_missing_and_gives_the_same(counted):
    scorer, seen = counted
    items = [*ITEMS, {"input": "x", "output": ["a b", None, "c", "d"]}]
    whole = run("self-certainty", scorer, items)
    assert len(seen) == 7
    assert whole.failures == [("item 3", "output 2: found null, expected a string")]
    again = run("self-certainty", None, items, whole.items)  # no model is needed
    assert (again.items, again.summary) == (whole.items, whole.summary)

    holed = json.loads(json.dumps(whole.items))
    holed[0]["confidence_list"][1] = None
    for earlier, n in ((whole.items[:1], 5), (holed, 2)):  # an item is scored again as a whole
        seen.clear()
        found = run("self-certainty", scorer, items, earlier)
        assert len(seen) == n
        for one, other in zip(found.items, whole.items, strict=True):
            close = pytest.approx(other["confidence_list"], abs=1e-5)
            assert one == {**other, "confidence_list": close}


def record(given, values, **more):
    return {**given, "confidence_list": values, **more}


def recalled(items, previous, made=MADE, **options):
    """Places of the records that stay, and the number of those that have changed."""
    found, n_changed = recall("self-certainty", items, previous, made, **options)
    return [*found.recalled], n_changed


def test_records_of_the_published_script_are_taken_as_they_are(counted):
    scorer, seen = counted
    previous = [record(ITEMS[0], [1.5, 2], processed_index=0)]
    report = run("self-certainty", scorer, [*ITEMS, ITEMS[0]], previous)
    assert len(seen) == 4
    assert report.items[0] == previous[0]
    assert "1 items do not record how they were computed" in report.remarks[-1]


@pytest.mark.parametrize(
    "values",
    [[1.5, math.nan], [1.5], [1.5, None], [1.5, math.inf], [1.5, "2"], [1.5, True], [1.5, 10**400]],
)
def test_an_item_never_mixes_numbers_of_two_origins(counted, values):
    scorer, _ = counted
    stated = run("self-certainty", scorer, ITEMS[:1]).items[0]["confidence_settings"]
    inputs = inputs_of(ITEMS[0])
    for own, known in (({}, [None, None]), ({"confidence_settings": stated}, [1.5, None])):
        previous = record(ITEMS[0], values, **own)
        assert Confidence.of_record(inputs, previous, measures=False).values == known
        assert recalled(ITEMS, [previous]) == ([], 0)


def test_changed_items_are_noticed():
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
        assert recalled(items, [good[0] | change, *good[1:]]) == ([1, 2], 1)
    with pytest.raises(InputError, match="none of its items is "):
        recalled(items, [good[1], good[0]])
    with pytest.raises(InputError, match="holds 4 items and the input 3, "):
        recalled(items, [*good, good[0]])


def test_other_settings_are_refused():
    own = {
        "model": "a", "alignment": "formula", "input_field": "model_input",
        "output_field": "output", "dtype": "float32",
    }  # fmt: skip
    previous = [record(ITEMS[0], [1.0, 2.0], confidence_settings=own)]
    model = {"model": "a"}
    for made in (model, {**model, "dtype": "float32"}, {**model, "revision": None}):
        assert recalled(ITEMS, previous, made) == ([0], 0)
    for name, found, made, options in (
        ("model", "a", {"model": "b"}, {}),
        ("alignment", "formula", model, {"alignment": "upstream"}),
        ("dtype", "float32", {**model, "dtype": "bfloat16"}, {}),
        ("revision", "None", {**model, "revision": "main"}, {}),
    ):
        part = f"item 1 .session_id s. was computed with {name} {found}, this run has"
        with pytest.raises(InputError, match=part):
            recalled(ITEMS, previous, made, **options)
    # where nothing was computed, nothing is mixed
    empty = [previous[0] | {"confidence_list": [None, None]}]
    assert recalled(ITEMS, empty, {"model": "b"}) == ([], 0)


def test_the_noise_floor_is_noted_in_all_records(scorers):
    """A larger earlier one stays."""
    scorer = scorers("tiny-qwen2")
    earlier = run("self-certainty", scorer, ITEMS).items[:1]
    for noted, want in ((None, 0), (0.0, 0), (9.0, 9.0), ("Infinity", "Infinity")):
        earlier[0]["confidence_settings"]["noise"] = noted
        report = run("self-certainty", scorer, ITEMS, earlier, audit_noise=4)
        spread = report.facts.noise.spread["mean_self_certainty"].largest
        floors = [one["confidence_settings"]["noise"] for one in report.items]
        assert floors == [want or spread, spread]


@pytest.mark.parametrize("gold", [None, "g"])
def test_a_summary_is_of_the_records_alone(scorers, gold):
    scorer = scorers("tiny-qwen2")
    items = [
        {"id": k, "model_input": f"{k} + 1 =", "output": [' {"answer": 1}', " 2", ""][: k + 1],
         "g": "1"} for k in range(3)
    ]  # fmt: skip
    items += [{"id": "bad"}, {**items[0], "id": "other", "g": [True, False]}]
    options = {"gold": gold, "n_bootstrap": 9, "batch_size": 2}
    parts = [run("self-certainty", scorer, part, **options) for part in (items[:2], items[2:])]
    report = run("self-certainty", scorer, items, **options)
    assert summaries_agree("self-certainty", report, parts, **options)
