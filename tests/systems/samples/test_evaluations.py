"""The seven systems on sampled responses, called from Python."""

import json
import math

import pytest

from jaxscore.errors import InputError
from jaxscore.evaluate import SYSTEMS, evaluate

ANSWERS = ['{"answer": "1"}', '{"answer": "2"}', '{"answer": "1"} sure']
ITEMS = [{"id": k, "model_input": f"{k} + 1 =", "output": ANSWERS} for k in range(3)]
CODE = "```python\nprint(1)\n```"
CHOSEN = {
    "select": {**ITEMS[0], "confidence_list": [1.0, 3.0, 2.0]},
    "vote": {**ITEMS[0], "confidence_list": [1.0, 3.0, 2.0]},
    "livecode-select": {"output": [CODE, "no"], "confidence_list": [2, 1]},
    "livecode-parse": {"output": [CODE]},
    "usc-select": {"output": ["Response 1"], "responses": ["a", "b"]},
}
WITHOUT_MODEL = [*CHOSEN]


def test_from_confidences_to_votes(scorers):
    found = evaluate("self-certainty", scorers("tiny-qwen2"), ITEMS, n_bootstrap=50)
    assert found.failures == []
    values = [v for one in found.items for v in one["confidence_list"]]
    mean = found.summary["mean_self_certainty"]
    assert (mean.n, mean.mean) == (9, pytest.approx(math.fsum(values) / 9))
    assert mean.low <= mean.mean <= mean.high
    assert [one["confidence_settings"]["alignment"] for one in found.items] == ["formula"] * 3
    assert found.headline.startswith(f"mean self-certainty {mean.mean:.6g} nats per token")
    rows = [row for one in found.items for row in found.declared.rows(one)]
    assert [(row["item"], row["output"]) for row in rows[:4]] == [
        ("item 1 (id 0)", 1), ("item 1 (id 0)", 2), ("item 1 (id 0)", 3), ("item 2 (id 1)", 1),
    ]  # fmt: skip

    chosen = evaluate("select", None, found.items, best_n=2)
    for before, after in zip(found.items, chosen.items, strict=True):
        best = max(before["confidence_list"][:2])
        assert after["confidence"] == best
        assert after["output"] == [ANSWERS[before["confidence_list"].index(best)]]
    assert (chosen.summary["best_n"], chosen.summary["most_responses"]) == (2, 3)
    assert chosen.summary["n_with_more"] == 3

    voted = evaluate("vote", None, found.items, power=0.0)
    assert [(one["output"], one["confidence"]) for one in voted.items] == [([ANSWERS[0]], 2.0)] * 3
    assert voted.headline == "3 of 3 items decided by votes, 0 by fallback"


def test_records_that_are_taken_as_they_come(scorers):
    items = [{"model_input": "a"}, *ITEMS, {"model_input": "b", "output": [" c", ""]}]
    seen = []
    found = evaluate("self-certainty", scorers("tiny-qwen2"), items, on_item=seen.append)
    kept = evaluate("self-certainty", scorers("tiny-qwen2"), items)
    assert [one["processed_index"] for one in seen] == [0, 1, 2, 3, 4]
    assert json.dumps(seen) == json.dumps(kept.items) == json.dumps(found.items)
    assert found.summary == kept.summary
    assert [name for name, _ in found.failures] == ["item 1", "item 5"]


def test_alignment_and_fields(scorers):
    scorer = scorers("tiny-qwen2")
    renamed = [{"q": one["model_input"], "a": one["output"]} for one in ITEMS]
    found = evaluate("self-certainty", scorer, renamed, input_field="q", output_field="a")
    same = evaluate("self-certainty", scorer, ITEMS)
    other = evaluate("self-certainty", scorer, ITEMS, alignment="upstream")
    lists = [[one["confidence_list"] for one in each.items] for each in (found, same, other)]
    assert lists[0] == lists[1] != lists[2]


def test_replies_and_what_they_choose(scorers):
    found = evaluate("usc-generate", scorers("tiny-qwen2"), ITEMS, n=2, max_new_tokens=3, top_p=0.5)
    counts = {"n_tokens_written": 9, "n_ended_at_the_limit": 3}
    assert (found.summary["n_replies"], found.facts.counts) == (3, counts)
    assert [one["responses"] for one in found.items] == [ANSWERS[:2]] * 3
    assert found.remarks == [
        "3 replies were cut at the limit",
        "top_p 0.5: of no effect, since temperature 0 is greedy",
    ]
    chosen = evaluate("usc-select", None, found.items)
    assert chosen.summary["n_decided"] + chosen.summary["n_fallbacks"] == 3


@pytest.mark.parametrize("system", WITHOUT_MODEL)
def test_reports_of_choices(system):
    good = CHOSEN[system]
    found = evaluate(system, None, [good, {"id": "bad"}])
    name = "item 2" if system.startswith("livecode") else "item 2 (id bad)"
    assert len(found.items) == found.summary["n_items"] == 2
    assert found.summary["n_failed"] == 1
    assert "error" not in found.items[0]
    assert found.failures == [(name, found.items[1]["error"])]
    record = json.loads(found.json())
    assert record["summary"] == json.loads(json.dumps(dict(found.summary)))
    assert record["failures"] == [{"name": name, "error": found.items[1]["error"]}]
    assert "truncate" not in record["settings"]
    assert "model" not in record["settings"]


@pytest.mark.parametrize("system", WITHOUT_MODEL)
def test_nothing_usable(system):
    with pytest.raises(InputError, match="no item can be used; item 1: "):
        evaluate(system, None, [{}, {"output": []}])
    with pytest.raises(InputError, match="found no items"):
        evaluate(system, None, [])
    with pytest.raises(InputError, match="item 2 is a list, expected an object"):
        evaluate(system, None, [CHOSEN[system], []])


@pytest.mark.parametrize("system", WITHOUT_MODEL)
def test_a_model_that_would_not_be_used_is_refused(system, scorers):
    with pytest.raises(InputError, match=f"{system} computes nothing with a model"):
        evaluate(system, scorers("tiny-qwen2"), [CHOSEN[system]])


@pytest.mark.parametrize("system", ["self-certainty", "usc-generate"])
def test_a_model_that_is_missing(system):
    settings = {"n": 2} if system == "usc-generate" else {}
    with pytest.raises(InputError, match="Scorer"):
        evaluate(system, None, ITEMS, **settings)


@pytest.mark.parametrize(
    ("system", "settings", "message"),
    [
        ("select", {"best_n": 0}, "setting best_n is 0, expected a whole number of at least 1"),
        ("select", {"best_N": 4}, "no setting 'best_N'; is it best_n?"),
        ("select", {"truncate": "left"}, "no setting 'truncate'"),
        ("vote", {"power": math.inf}, "setting power is inf, expected a finite number"),
        ("vote", {"power": "1"}, "setting power is '1', expected a finite number"),
        ("vote", {"time_limit": 0}, "setting time_limit is 0, expected seconds above 0"),
        (
            "usc-select",
            {"dataset_type": "shut"},
            "setting dataset_type is 'shut', expected one of 'open'",
        ),
        ("livecode-parse", {"best_n": 1}, "no setting 'best_n'"),
        (
            "self-certainty",
            {"alignment": "joint"},
            "setting alignment is 'joint', expected one of 'form",
        ),
        ("self-certainty", {"input_field": 3}, "setting input_field is 3, expected the name of"),
        ("usc-generate", {}, "setting n is None, expected a whole number of at least 1"),
        ("usc-generate", {"n": 1, "top_p": 0}, "setting top_p is 0, expected above 0 up to 1"),
        ("usc-generate", {"n": 1, "temperature": -1}, "setting temperature is -1, expected 0 or"),
        ("usc-generate", {"n": 1, "seed": 0.5}, "setting seed is 0.5, expected a whole number"),
    ],
)
def test_settings_that_cannot_be(system, settings, message):
    with pytest.raises(InputError) as found:
        evaluate(system, None, ITEMS, **settings)
    assert message in str(found.value)


def test_a_table_of_a_report():
    pytest.importorskip("pandas")
    frame = evaluate("usc-select", None, [CHOSEN["usc-select"], {}]).to_frame()
    assert list(frame["output"].dropna()) == ["b"]


def test_every_system_is_registered():
    assert {"self-certainty", "usc-generate", *WITHOUT_MODEL} <= set(SYSTEMS)
