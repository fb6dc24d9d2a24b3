"""Items of sample files, and how they are named."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from jaxscore.errors import InputError
from jaxscore.shell.items import Items, list_fields
from jaxscore.shell.settings import Settings
from jaxscore.systems import selection
from jaxscore.systems.selection.livecode import LIVECODE_PARSE


def entries(path):
    settings = Settings()
    lists = list_fields(LIVECODE_PARSE, settings)
    items = Items(LIVECODE_PARSE, lambda: LIVECODE_PARSE.read(path, {}, lists), settings)
    return list(items.entries())


@pytest.fixture
def load(tmp_path):
    def make(text):
        path = tmp_path / "in.json"
        path.write_text(text, encoding="utf-8")
        return entries(path)

    return make


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ("{}", "item 1"),
        ('{"id": 3}', "item 1 (id 3)"),
        ('{"id": 3, "question_id": "q"}', "item 1 (question_id q)"),
        ('{"session_id": "s"}', "item 1 (session_id s)"),
        ('{"id": null, "session_id": ["s"]}', "item 1"),
        ('{"id": "a\\nb"}', "item 1 (id a b)"),
        ('{"id": "\\ud83d"}', r"item 1 (id \ud83d)"),
        (f'{{"id": "{"x" * 500}"}}', f"item 1 (id {'x' * 60})"),
    ],
)
def test_names(load, fields, name):
    assert [one.name for one in load(f"[{fields}]")] == [name]


def test_a_table_may_hold_its_lists_as_text(tmp_path):
    names = ("output", "confidence_list", "responses")
    columns = {name: [json.dumps([name, None])] for name in names} | {"other": ["[1]"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")
    [one] = entries(tmp_path / "in.parquet")
    assert one.item == {name: [name, None] for name in names} | {"other": "[1]"}


def test_numbers_that_json_does_not_have(load):
    [one] = load('[{"a": NaN, "b": [Infinity, -Infinity, 1.5]}]')
    assert one.item == {"a": None, "b": ["Infinity", "-Infinity", 1.5]}


def test_responses_and_confidences():
    one = {"output": ["a", None, 3, ["b"]], "confidence_list": [1, 2.5, None, 4]}
    assert selection.read_responses(one, "output") == ["a", None, None, None]
    assert selection.read_responses(one, "output", 1) == ["a"]
    assert selection.read_confidences(one, None, 4) == [1.0, 2.5, None, 4.0]
    assert selection.read_confidences(one, 2, 2) == [1.0, 2.5]
    with pytest.raises(InputError, match="has 3 values for 4 responses"):
        selection.read_confidences(one, 3, 4)


def test_oddities():
    assert selection.list_oddities(["a"], [1.0]) == []
    assert selection.list_oddities(["a", None]) == ["response 2 is not text, so it is unanswered"]
    assert selection.list_oddities([], [None]) == ["confidence 1 is not a number, so it ranks last"]
