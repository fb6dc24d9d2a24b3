"""Items: typed, each with its place; an unusable one fails alone."""

import dataclasses
import json
from typing import TypedDict

import pytest

from jaxscore.errors import InputError, NoItems
from jaxscore.shell.items import Items, scored, with_examples
from jaxscore.shell.made import check_made
from jaxscore.shell.settings import Settings
from jaxscore.shell.system import PAGE, Layout, Summary, System


@dataclasses.dataclass(frozen=True)
class Item:
    text: str
    n: int | None = None

    def __post_init__(self):
        if self.text == "bad":
            raise InputError('field "text" is bad')


class Record(TypedDict, total=False):
    id: str | int
    text: str
    length: int


class Lengths(System):
    name, what = "lengths", "texts"
    item, settings, record = Item, Settings, Record
    seen = 0

    def score(self, lm, items, settings):
        for item in items:
            yield {"text": item.text, "length": len(item.text), PAGE: {"n": item.n}}

    def summarize(self, records, settings):
        return Summary(headline="", numbers={})


def items(objects, system=None, **options):
    system = system or Lengths()
    rows = list(system.read(objects))
    return Items(system, lambda: rows, Settings(), **options)


def records(objects, system=None, **options):
    system = system or Lengths()
    found = scored(system, None, items(objects, system, **options), Settings())
    return [record for _, record in found]


def test_records_have_ids_and_other_fields():
    found = records([{"text": "abc", "set": "x"}, {"id": "q", "text": "de", "n": 3}])
    assert found == [
        {"id": 1, "text": "abc", "length": 3, PAGE: {"n": None}, "set": "x"},
        {"id": "q", "text": "de", "length": 2, PAGE: {"n": 3}},
    ]
    assert [one["id"] for one in records([{"text": "a"}, {"text": "b"}], prefix="f:")] == [
        "f:1",
        "f:2",
    ]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"text": 3}, 'field "text" is a whole number, expected a string'),
        ({}, 'no field "text"'),
        ({"text": "bad"}, 'field "text" is bad'),
        ({"text": "a", "length": 3}, 'field "length" is one of the results'),
        ({"text": "a", "error": "x"}, 'field "error" is one of the results'),
        ({"text": "a", "id": [1]}, 'field "id" is a list'),
        ([], "found a list, expected an object"),
    ],
)
def test_an_unusable_item_fails_alone(value, why):
    first, failed, last = records([{"text": "ab"}, value, {"text": "c"}])
    assert (first["length"], last["length"]) == (2, 1)
    assert failed.keys() == {"id", "error"}
    assert why in failed["error"]


def test_the_first_unusable_item_is_named():
    with pytest.raises(NoItems, match="found no texts, expected at least one"):
        items([]).require_usable()
    with pytest.raises(InputError, match=r"no text is usable; the first, item 1: .*text"):
        items([{}, {}]).require_usable()
    some = items([{"text": "a"}, {"id": "q", "text": "bad"}])
    some.require_usable()
    with pytest.raises(InputError, match=r'item 2 \(id q\): field "text" is bad'):
        some.require_usable(all_of_them=True)


def test_items_are_read_anew_and_only_so_many():
    system = Lengths()
    n_read = []

    def rows():
        n_read.append(1)
        return system.read({"text": "a" * k} for k in range(1, 9))

    some = Items(system, rows, Settings(), limit=3)
    assert (len(some), some.n_all, len(n_read)) == (3, 3, 1)
    assert [item.text for item in some] == [item.text for item in some] == ["a", "aa", "aaa"]
    assert len(n_read) == 3


class Recalls(Lengths):
    """Takes over records of the same text and version."""

    def recall(self, entry, record, settings, made):
        if record.get("text") != entry.item.text:
            return None
        check_made(entry.name, record, made)
        return record["length"] > 0

    def score(self, lm, items, settings):
        for place, entry in enumerate(items.entries()):
            yield items.recalled.get(place) or {"text": entry.item.text, "length": 1}


def test_recalled_records_stay_and_the_others_are_scored():
    some = items([{"text": text} for text in "abcd"], Recalls())
    earlier = [
        {"text": text, "length": n, "version": 2} for text, n in (("a", 9), ("x", 9), ("c", 0))
    ]
    assert some.recall(earlier, Settings(), {"version": 2}) == 1
    assert some.recalled == {0: earlier[0]}
    found = [record for _, record in scored(Recalls(), None, some, Settings())]
    assert [one["length"] for one in found] == [9, 1, 1, 1]
    assert some.recall(earlier[:1], Settings(), {}) == 0


@pytest.mark.parametrize(
    ("texts", "made", "why"),
    [
        ("abc", {}, "holds 3 items and the input 2, so it is not of this input"),
        ("xy", {}, "none of its items is the one in the same place of this input"),
        ("ab", {"version": 3}, "item 1 was computed with version 2, this run has version 3"),
        ("ab", {"model": "m"}, "item 1 was computed with model None, this run has model m"),
    ],
)
def test_an_output_that_cannot_be_continued(texts, made, why):
    some = items([{"text": text} for text in "ab"], Recalls())
    with pytest.raises(InputError, match=why):
        some.recall([{"text": t, "length": 1, "version": 2} for t in texts], Settings(), made)


def test_the_model_that_the_first_item_names():
    class Named(TypedDict, total=False):
        generator: str

    class Names(Lengths):
        item = Named

    some = items([{"generator": "a"}, {"generator": "b"}, {}], Names())
    assert some.named_model("generator") == ("a", 2)
    with pytest.raises(
        InputError, match='item 1 lacks the string "generator" that names the model'
    ):
        items([{"generator": 3}], Names()).named_model("generator")


def test_more_or_fewer_records_than_items_are_an_error_of_the_system():
    class Twice(Lengths):
        def score(self, lm, items, settings):
            for record in super().score(lm, items, settings):
                yield record
                yield record

    with pytest.raises(AssertionError, match="more records than items"):
        records([{"text": "a"}], Twice())


def test_an_array_that_repeats_nothing_takes_any_fields():
    class Published(Lengths):
        layout = Layout(is_ascii=False, repeats=False)

    [found] = records([{"text": "a", "length": 7, "set": "x"}], Published())
    assert found == {"id": 1, "text": "a", "length": 1, PAGE: {"n": None}}


def test_an_object_as_it_is():
    class Raw(TypedDict, total=False):
        id: str
        text: str

    class Takes(Lengths):
        item = Raw

        def score(self, lm, items, settings):
            yield from ({"text": item["text"], "given": json.dumps(item)} for item in items)

    [found] = records([{"id": "q", "text": "a", "more": [1]}], Takes())
    assert found == {"text": "a", "given": '{"id": "q", "text": "a", "more": [1]}'}


def test_settings_without_examples_stay():
    settings = Settings()
    assert with_examples(Lengths(), settings) is settings


def test_values_from_python_that_json_lacks_become_those_of_a_table():
    pandas = pytest.importorskip("pandas")
    dates = pandas.to_datetime(pandas.Series(["2020-01-01", None]))
    rows = pandas.DataFrame({"text": ["a", "b"], "when": dates, "n_words": [1, 2]})
    read = items([*rows.to_dict("records"), {"text": "c", "value": {1}}, {"text": "d"}])
    entries = list(read.entries())
    assert [dict(entry.extra) for entry in entries] == [
        {"when": "2020-01-01T00:00:00", "n_words": 1},
        {"when": None, "n_words": 2},
        {},
        {},
    ]
    assert "found set, which JSON cannot hold" in entries[2].error
    json.dumps(entries[2].extra)


@pytest.mark.parametrize(
    ("item", "column"),
    [
        ({"answer": "B", "choices": ["a", "b"], "question": "Who?"}, "context=question"),
        ({"A": "a", "B": "b", "answer": "B", "stem": "Who?"}, "context=stem"),
        ({"A": "a", "Prompt": "Who?"}, "context=Prompt"),
        ({"A": "a", "z": "b"}, "context=A"),
    ],
)
def test_a_missing_field_names_the_likely_column(tmp_path, item, column):
    from jaxscore.shell.items import read_file
    from jaxscore.systems import choose

    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(item) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=f"add --column {column}$"):
        read_file(choose.SYSTEM, path, choose.Settings())
