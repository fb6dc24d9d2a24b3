"""What a declaration says about records: their units, metrics, decisions and texts."""

import math
from typing import Annotated, TypedDict

import pytest

from jaxscore.shell.fields import Compared, Decision, Metric, PerToken
from jaxscore.shell.system import System
from jaxscore.systems.compare.columns import units
from jaxscore.systems.compare.units import Choice, Comparison


class Part(TypedDict, total=False):
    steps: list[str]
    gain: Annotated[
        float,
        Metric("gain"),
        Decision("it gains", is_right=True, value=lambda r: r["gain"] > 0, name="gains"),
    ]
    within_noise: bool


class Record(TypedDict, total=False):
    id: str | int
    question: str
    options: list[str]
    scores: Annotated[
        list[float | None],
        Metric("log-probability of an option", "option_logprob"),
        Metric("sum", "total", lambda r: sum(one or 0.0 for one in r["scores"])),
        Decision("first option", name="first", value=lambda r: r["options"][0]),
        Decision("last option", name="last", value=lambda r: r["options"][-1],
                 within=lambda r: r["mode"] == "noisy"),
    ]  # fmt: skip
    tokens: PerToken[str]
    n_tokens: list[int]
    parts: list[Part]


def read(compared, *records, **facts):
    class Toy(System):
        name, record = "toy", Record

    comparison = Comparison(Toy(), compared)
    return list(units(comparison, ((f"item {k}", one) for k, one in enumerate(records, 1)), facts))


def test_parts_are_units_of_one_group():
    compared = Compared(
        text=("question", "steps"), signature=("parts",), parts="parts", part_name="steps"
    )
    parts = [
        {"steps": ["a", "b"], "gain": "Infinity"},
        {"steps": ["c"], "error": "too long"},
        {"steps": ["d"], "gain": None},
    ]
    one, failed, unknown = read(compared, {"id": "q", "question": "Who?", "parts": parts})
    assert [unit.id for unit in (one, failed, unknown)] == ["q: a -> b", "q: c", "q: d"]
    assert (one.numbers, one.choices) == ({"gain": math.inf}, {"gains": Choice(True)})
    assert (failed.error, unknown.numbers) == ("too long", {})
    assert one.text == ("Who?", ["a", "b"])
    assert failed.text == ("Who?", ["c"])
    assert {unit.group for unit in (one, failed, unknown)} == {0}
    [bad] = read(compared, {"id": "q", "parts": [1]})
    assert 'field "parts" has an entry that is no object' in bad.error


def test_a_field_may_have_several_metrics_and_decisions():
    compared = Compared(
        text=lambda record: sorted(record["options"]),
        signature=("scores",),
        id=("name", "id"),
        name=lambda record, place: f"{place}: {record['question']}",
        n_tokens="n_tokens",
        settings=("mode",),
        order=("total",),
        numbers=lambda record: {"own": record["own"]},
    )
    record = {
        "id": 5, "question": "Who?", "options": ["b", "a"], "scores": [-1.0, None],
        "n_tokens": [1, 2], "own": 7.0,
    }  # fmt: skip
    one, other = read(compared, record, {**record, "id": None, "error": "failed"}, mode="noisy")
    assert (one.id, one.name, one.text, one.n_tokens) == (5, "0: Who?", ["a", "b"], 3)
    assert list(one.numbers.items()) == [
        ("total", -1.0), ("option_logprob", [-1.0, None]), ("own", 7.0),
    ]  # fmt: skip
    assert one.choices == {"first": Choice("b"), "last": Choice("a", None, True)}
    assert (other.id, other.name, other.error) == ("item 2", "1: Who?", "failed")


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ({"question": 1}, 'field "question" is a whole number, expected a text'),
        ({"question": "q", "scores": "x"}, 'field "scores" is a string, expected a list'),
        ({"question": "q", "scores": ["x"]}, 'field "scores" is a string, expected a number'),
        ({"question": "q", "scores": [1.0]}, "the record is not as toy writes it ('options')"),
        ({"question": "q", "judged": False}, "not judged"),
    ],
)
def test_a_record_of_another_form_fails_alone(record, part):
    compared = Compared(
        text=("question",),
        signature=(),
        id=(),
        name=lambda record, place: "it",
        error=lambda record: None if record.get("judged", True) else "not judged",
    )
    [unit] = read(compared, record)
    assert part in unit.error


def test_an_item_that_could_not_be_used_has_its_own_error():
    compared = Compared(text=("question",), signature=(), id=("q_id",))
    unusable, other = read(compared, {"index": 0, "error": "no field"}, {"question": "Who?"})
    assert (unusable.name, unusable.error, unusable.unread) == ("item 1", "no field", False)
    assert (other.unread, other.error) == (
        True, 'item 2: field "q_id" is null, expected a text or a whole number',
    )  # fmt: skip
