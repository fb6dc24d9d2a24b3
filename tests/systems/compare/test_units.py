"""Units of records: what the metadata of their fields says of ids, texts, numbers and decisions."""

import dataclasses
import math
from typing import Annotated, TypedDict

import pytest

from jaxscore.io.items import Row
from jaxscore.shell.fields import PAIRED, Decision, Metric, Paired, PerToken
from jaxscore.shell.settings import Settings
from jaxscore.shell.system import System
from jaxscore.systems.compare.units import Asked, Choice, Reader


class Part(TypedDict, total=False):
    step: Annotated[list[str], PAIRED]
    gain: Annotated[
        float,
        Metric("gain"),
        Decision("it gains", is_right=True, value=lambda r: r["gain"] > 0, name="gains"),
    ]
    within_noise: bool


class Forest(TypedDict, total=False):
    id: str | int
    question: Annotated[str, PAIRED]
    parts: list[Part]


class Record(TypedDict, total=False):
    line: int
    question: Annotated[str, PAIRED]
    options: Annotated[list[str], Paired(lambda r: sorted(r["options"]))]
    category: str
    scores: Annotated[
        list[float | None],
        Metric("log-probability of an option", "option_logprob"),
        Metric("sum", "total", lambda r: sum(each or 0.0 for each in r["scores"]), is_main=True),
        Metric("column", value=lambda r: {"extra": r["extra"], "none": None}),
        Decision("first option", name="first", value=lambda r: r["options"][0]),
        Decision("last option", name="last", value=lambda r: r["options"][-1],
                 within=lambda r: r["category"] == "noisy"),
    ]  # fmt: skip
    n_tokens: list[int]


class Texts(TypedDict, total=False):
    id: str | int
    tokens: Annotated[PerToken[str], PAIRED]
    logprob: Annotated[float, Metric("log-probability")]


@dataclasses.dataclass
class Item:
    question: Annotated[str, PAIRED] = "none"
    category: str = ""


def reader(record_type, **declared):
    """The reader of a system with these attributes."""
    attributes = {"name": "toy", "item": Item, "settings": Settings, "record": record_type}
    return Reader(type("Toy", (System,), attributes | declared)())


FOREST = reader(Forest, parts="parts")
NUMBERED = reader(Record, id_field="line", what="questions")
TEXTS = reader(Texts)


def read(reads, *records, **options):
    return list(reads.units(((f"item {k}", each) for k, each in enumerate(records, 1)), **options))


def test_parts_are_units_of_one_group():
    parts = [
        {"step": ["a", "b"], "gain": "Infinity"},
        {"step": ["c"], "error": "too long"},
        {"step": ["d"], "gain": None},
    ]
    good, failed, unknown = read(FOREST, {"id": "q", "question": "Who?", "parts": parts})
    assert FOREST.title == "steps"
    assert [unit.id for unit in (good, failed, unknown)] == ["q: a -> b", "q: c", "q: d"]
    assert (good.numbers, good.choices) == ({"gain": math.inf}, {"gains": Choice(True)})
    assert (failed.error, unknown.numbers) == ("too long", {})
    assert (good.text, failed.text) == (["Who?", ["a", "b"]], None)
    assert {unit.group for unit in (good, failed, unknown)} == {0}
    [bad] = read(FOREST, {"id": "q", "parts": [1]})
    assert 'field "parts" has an entry that is not an object' in bad.error


def test_a_field_may_have_several_metrics_and_decisions():
    record = {
        "line": 5, "question": "Who?", "options": ["b", "a"], "scores": [-1.0, None],
        "category": "noisy", "n_tokens": [1, 2], "extra": 7.0,
    }  # fmt: skip
    good, failed = read(NUMBERED, record, {**record, "error": "failed"})
    assert (good.id, good.name, good.n_tokens) == (None, "line 5: Who?", 3)
    assert (good.text, good.others) == (["Who?", ["a", "b"]], ["noisy"])
    assert list(good.numbers.items()) == [
        ("total", -1.0), ("option_logprob", [-1.0, None]), ("extra", 7.0),
    ]  # fmt: skip
    assert good.choices == {"first": Choice("b"), "last": Choice("a", None, True)}
    assert (failed.name, failed.error, failed.text) == (good.name, "failed", None)


def test_texts_that_records_lack_are_those_of_the_input():
    """An item without an id is identified by its text, whatever the line of the record."""
    records = [{"id": 2, "logprob": -1.0}, {"id": "b", "error": "long"}, {"id": 4, "logprob": -2}]
    rows = [
        Row(2, "in.csv:2", {"question": "Who?"}),
        Row(3, "in.csv:3", {"id": "b", "question": "When?"}),
        Row(4, "in.csv:4", {"question": 5}),
    ]
    assert not TEXTS.has_texts
    assert next(TEXTS.asked(rows)) == Asked(None, ["Who?"])
    good, failed, unusable = read(TEXTS, *records, asked=TEXTS.asked(rows))
    assert (good.id, good.text, good.name) == (None, ["Who?"], "2")
    assert (failed.id, failed.text) == ("b", None)
    assert (unusable.id, unusable.text) == (None, None)
    [beyond] = read(TEXTS, records[0], asked=iter(()))
    assert beyond.text is None


def test_tokens_are_the_text_on_request():
    record = {"id": 2, "logprob": -1.0, "tokens": ["a", "b"]}
    [plain] = read(TEXTS, record)
    [by_tokens] = read(TEXTS, record, by_tokens=True)
    assert (plain.text, by_tokens.text) == (None, [["a", "b"]])
    assert (TEXTS.lists(by_tokens=False), TEXTS.lists(by_tokens=True)) == (set(), {"tokens"})


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ({"question": 1}, 'field "question" is a whole number, expected a text'),
        ({"question": "q", "scores": "x"}, 'field "scores" is a string, expected a list'),
        ({"question": "q", "scores": ["x"]}, 'field "scores" is a string, expected a number'),
        ({"question": "q", "scores": [1.0]}, "the record is not as toy writes it ('extra')"),
    ],
)
def test_a_record_of_another_form_fails_alone(record, part):
    [unit] = read(NUMBERED, record)
    assert part in unit.error


def test_an_item_that_could_not_be_used_has_its_own_error():
    unusable, other = read(TEXTS, {"index": 0, "error": "no field"}, {"question": "Who?"})
    assert (unusable.name, unusable.error, unusable.unread) == ("item 1", "no field", False)
    assert (other.unread, other.error) == (
        True, 'item 2: field "id" is null, expected a text or a whole number',
    )  # fmt: skip
