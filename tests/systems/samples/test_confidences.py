"""Self-certainty against PyTorch and the formula, and what a later run keeps of an earlier one."""

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.errors import InputError
from jaxscore.systems.samples import confidences as task
from jaxscore.types.results import ScoredRequest, failed
from tests.conftest import CASES, MODELS

pytestmark = pytest.mark.numeric

ITEMS = [
    {
        "session_id": "s",
        "model_input": "Question: where is Osk?\n",
        "output": ["Osk", " By sea.\n"],
    },
    {"input": "", "output": ["مرحبا بالعالم, e\u0301 \u200d👩", "two  blanks\r\n"]},
]


def load(tmp_path, items, name="in.json", **fields):
    (tmp_path / name).write_text(json.dumps(items), encoding="utf-8")
    return task.load(tmp_path / name, **fields)


def complete(scorer, items, alignment="formula", settings=None, confidences=None, only=None):
    """Score what is missing (of the items `only`); the confidences and how many were computed."""
    confidences = confidences or task.resume(items, [], "out.json")[0]
    wanted = [one for one in task.missing(confidences) if only is None or one[0] in only]
    scored = scorer.score(
        task.requests(items, wanted), boundary=task.ALIGNMENTS[alignment], special_tokens=False
    )
    for (k, place), one in zip(wanted, scored, strict=True):
        confidences[k].take(place, one, settings or {"model": "m"})
    return confidences, len(wanted)


def published(name, context, output, alignment):
    """The formula from whole logits: -1/(nV) sum log(V p), of PyTorch in float64."""
    folder = CASES / "models" / name
    from jaxscore.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder)
    a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (context, output))
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        logits = model(torch.tensor([a + b])).logits[0]
    logp = torch.log_softmax(logits.double(), -1)
    terms = -(logp + math.log(logp.shape[1])).mean(-1)
    first = len(a) - (alignment == "formula")
    return terms[max(0, first) : first + len(b)].mean().item()


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("alignment", task.ALIGNMENTS)
def test_it_is_the_formula(scorers, tmp_path, name, alignment):
    items = load(tmp_path, ITEMS)
    confidences, n = complete(scorers(name), items, alignment)
    assert n == 4
    for item, one in zip(items, confidences, strict=True):
        assert one.values == pytest.approx(
            [published(name, item.context, text, alignment) for text in item.outputs], abs=1e-4
        )


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("alignment", "column"), [("formula", "confidence_list"), ("upstream", "published_alignment")]
)
def test_the_shared_cases(scorers, name, alignment, column):
    items = task.load(CASES / "self_certainty/samples.json")
    confidences, _ = complete(scorers(name), items, alignment)
    want = CASES / "expected" / name / "self_certainty.json"
    for one, other in zip(confidences, json.loads(want.read_text()), strict=True):
        assert one.values == pytest.approx(other[column], abs=1e-4)


def test_fields_and_names(tmp_path):
    given = [
        {"id": 7, "q": "a", "r": ["b"], "model_input": "no", "processed_index": 3},
        {"q": "c", "r": [], "confidence_list": [1.0], "confidence_errors": ["old"]},
    ]
    first, second = load(tmp_path, given, input_field="q", output_field="r")
    assert (first.name, first.context, first.outputs) == ("item 1 (id 7)", "a", ["b"])
    assert (second.name, second.context, second.outputs) == ("item 2", "c", [])
    # what an earlier run added does not count as the item's
    assert first.given == {"id": 7, "q": "a", "r": ["b"], "model_input": "no"}
    assert second.given == {"q": "c", "r": []}
    [one] = load(tmp_path, [{"model_input": None, "input": "x", "output": ["y"]}])
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
    items = load(tmp_path, [given for given, _ in bad] + ITEMS)
    for item, (given, part) in zip(items, bad, strict=False):
        assert part in item.error
        assert (item.given, item.outputs) == (given, [])
    assert [item.error for item in items[-2:]] == [None, None]
    confidences, _ = task.resume(items, [], "out.json")
    assert task.missing(confidences) == [(6, 0), (6, 1), (7, 0), (7, 1)]
    record = next(task.evaluate(items, confidences, 1))
    assert record == {
        "output": ["y"],
        "confidence_list": [],
        "processed_index": 0,
        "confidence_errors": [items[0].error],
    }
    with pytest.raises(InputError, match=r"in\.json: no item can be used; item 1: no field"):
        load(tmp_path, [bad[0][0], bad[1][0]])


def scored(*values, truncated=0):
    n = len(values)
    values = np.array(values, np.float32)
    ids = np.zeros(n, np.int32)
    greedy = np.zeros(n, bool)
    return ScoredRequest("", ids, ["x"] * n, values, values, values, greedy, truncated)


def test_one_cut_input_marks_its_item(tmp_path):
    items = load(tmp_path, [{"model_input": "", "output": ["x", "y", "z"]}])
    [one], _ = task.resume(items, [], "out.json")
    settings = {"model": "m"}
    one.take(0, scored(1.0), settings | {"truncate": None})
    assert one.settings["truncate"] is None
    one.take(1, scored(1.0, truncated=5), settings)
    one.take(2, scored(1.0), settings)
    assert one.settings == {"model": "m", "truncate": "left"}
    assert settings == {"model": "m"}


def test_outputs_without_a_confidence(tmp_path):
    outputs = [None, 3, "", "x", "y", "z", "w", ["v"]]
    items = load(tmp_path, [{"model_input": "", "output": outputs}])
    [one], _ = task.resume(items, [], "out.json")
    assert one.missing == [3, 4, 5, 6]
    one.take(3, scored(math.nan, 1.0, 2.0), {"model": "m"})
    one.take(4, scored(), {"model": "m"})
    one.take(5, scored(math.nan), {"model": "m"})
    one.take(6, failed("", "too long"), {"model": "m"})
    [record] = task.evaluate(items, [one], 0)
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
    summary = task.summarise(items, [one], 10, 0)
    assert (summary.n_items, summary.n_outputs, summary.n_scored) == (1, 8, 1)
    assert summary.mean == Estimate(1, 1.5, None, None)
    assert summary.failures[0] == ("item 1", "output 1: found null, expected a string")
    assert len(summary.failures) == 7
    nothing = task.summarise(items, [task.Confidence([None], {}, None)], 10, 0)
    assert nothing.mean == Estimate(0, None, None, None)


def test_a_later_run_computes_what_is_missing_and_gives_the_same(scorers, tmp_path):
    items = load(tmp_path, [*ITEMS, {"input": "x", "output": ["a b", None, "c", "d"]}])
    whole, n = complete(scorers("tiny-qwen2"), items)
    assert n == 7
    records = json.loads(json.dumps(list(task.evaluate(items, whole, 0))))
    assert task.missing(task.resume(items, records, "out.json")[0]) == []

    begun, _ = complete(scorers("tiny-qwen2"), items, only=[0])
    first = list(task.evaluate(items, begun, 0))
    assert len(first) == 1
    left, n_changed = task.resume(items, first, "out.json")
    assert (task.missing(left), n_changed) == ([(k, p) for k, p in task.missing(left) if k], 0)
    left, n = complete(scorers("tiny-qwen2"), items, confidences=left)
    assert n == 5
    for one, other in zip(left, whole, strict=True):
        assert one.errors == other.errors
        for a, b in zip(one.values, other.values, strict=True):
            assert a == b or a == pytest.approx(b, abs=1e-5)

    # a hole in the middle of what is there: the items after it stay in the file meanwhile
    records[0]["confidence_list"][1] = None
    holed, _ = task.resume(items, records, "out.json")
    assert task.missing(holed) == [(0, 1)]
    assert list(task.evaluate(items, holed, 0)) == []
    assert [r["processed_index"] for r in task.evaluate(items, holed, len(records))] == [0, 1, 2]


def record(item, values, **more):
    return {**item.given, "confidence_list": values, **more}


def test_records_of_the_published_script_are_taken_as_they_are(tmp_path):
    items = load(tmp_path, [*ITEMS, ITEMS[0]])
    previous = [record(items[0], [1.5, 2], processed_index=0)]
    confidences, n_changed = task.resume(items, previous, "out.json")
    assert (confidences[0].values, confidences[0].settings) == ([1.5, 2], None)
    assert n_changed == 0
    assert task.n_of_unknown_origin(confidences) == 1
    task.check_settings(items, confidences, {"model": "m"}, "out.json")
    [first] = task.evaluate(items, confidences, 0)
    assert "confidence_settings" not in first


@pytest.mark.parametrize(
    "values",
    [[1.5, math.nan], [1.5], [1.5, None], [1.5, math.inf], [1.5, "2"], [1.5, True], [1.5, 10**400]],
)
def test_an_item_never_mixes_numbers_of_two_origins(tmp_path, values):
    items = load(tmp_path, ITEMS)
    unknown, _ = task.resume(items, [record(items[0], values)], "out.json")
    assert unknown[0].values == [None, None]
    own = {"confidence_settings": {"model": "m"}}
    known, _ = task.resume(items, [record(items[0], values, **own)], "out.json")
    assert known[0].values == [1.5, None]
    assert task.missing(known) == [(0, 1), (1, 0), (1, 1)]


def test_changed_items_are_noticed(tmp_path):
    items = load(tmp_path, [*ITEMS, ITEMS[0]])
    good = [record(item, [1.0, 2.0]) for item in items]
    for change in (
        {"model_input": "another"},
        {"output": ["Osk", "other"]},
        {"output": ["Osk"]},
        {"confidence_list": [1.0, 2.0, 3.0]},
        {"confidence_list": "1.0"},
        {"confidence_list": None},
    ):
        confidences, n_changed = task.resume(items, [good[0] | change, *good[1:]], "out.json")
        assert n_changed == 1
        assert confidences[0].values == [None, None]
        assert confidences[1].values == confidences[2].values == [1.0, 2.0]
    swapped = [good[1], good[0]]
    with pytest.raises(InputError, match=r"out\.json: none of its items is .*delete it"):
        task.resume(items, swapped, "out.json")
    with pytest.raises(InputError, match=r"out\.json: holds 4 items and the input 3, .*delete it"):
        task.resume(items, [*good, good[0]], "out.json")


def test_other_settings_are_refused(tmp_path):
    items = load(tmp_path, ITEMS)
    own = {"model": "a", "alignment": "formula", "dtype": "float32"}
    previous = [record(items[0], [1.0, 2.0], confidence_settings=own)]
    confidences, _ = task.resume(items, previous, "out.json")
    task.check_settings(items, confidences, own, "out.json")
    task.check_settings(items, confidences, {"model": "a", "revision": None}, "out.json")
    for name, value, found in (
        ("model", "b", "a"),
        ("alignment", "upstream", "formula"),
        ("dtype", "bfloat16", "float32"),
        ("revision", "main", "None"),
    ):
        part = f"out.json: item 1 .session_id s. was computed with {name} {found}, this run has"
        with pytest.raises(InputError, match=part):
            task.check_settings(items, confidences, own | {name: value}, "out.json")
    # where nothing was computed, nothing is mixed
    nothing, _ = task.resume(items, [previous[0] | {"confidence_list": [None, None]}], "out.json")
    task.check_settings(items, nothing, {"model": "b"}, "out.json")
