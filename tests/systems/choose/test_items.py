"""What an item of a multiple choice may look like, and what is said of others."""

import json

import pytest
from hypothesis import given

from jaxscore import InputError, evaluate
from jaxscore.shell.items import Entry, read_entry, read_file, result_fields
from jaxscore.systems.choose import SYSTEM, Item, Settings
from tests.hostile.inputs import HOSTILE, fields, outcome, put

GOOD = {"id": "q", "context": "Q:", "options": [" yes", " no"], "gold": 1, "category": "c"}


def one(**changes):
    item = {k: v for k, v in (GOOD | changes).items() if v != "absent"}
    return read_entry(SYSTEM, item, 2, "item 2", result_fields(SYSTEM, Settings()))


def entries_of(path, **options):
    return [*read_file(SYSTEM, path, Settings(), **options).entries()]


def test_all_fields():
    item = Item("Q:", (" yes", " no"), 1, "c")
    assert one(topic=7) == Entry("item 2 (id q)", "q", item, None, {"topic": 7})
    item = Item("", (" yes", " no"), None, "(none)")
    assert one(id="absent", gold="absent", category=None, context="") == Entry("item 2", 2, item)


@pytest.mark.parametrize(
    ("gold", "options", "want"),
    [
        (0, ["a", "b"], 0),
        (1.0, ["a", "b"], 1),
        (None, ["a", "b"], None),
        ("", ["a", "b"], None),
        (" b", [" a", " b"], 1),
        ("b", [" a", " b"], 1),
        ("1", [" a", " b"], 1),
        ("1", [" 0", " 1"], 1),  # as text and as index
        ("7", [" 7", " 1"], 0),  # no index
        (" 1", ["1", " 1"], 1),  # the exact one of two
        ("a", ["b", "a", "a"], 1),  # the text, not the letter
        ("B", [" x", " y"], 1),
        (" b", ["x", "y"], 1),
        ("(C)", ["x", "y", "z"], 2),
        ("B.", ["x", "y"], 1),
        ("B", {"text": ["x", "y"], "label": ["A", "B"]}, 1),
        ("1", {"text": ["x", "y"], "label": ["1", "2"]}, 0),
        (1, {"text": ["x", "y"], "label": ["A", "B"]}, 1),
        ("y", {"text": ["x", "y"], "label": ["1", "2"]}, 1),
    ],
)
def test_gold(gold, options, want):
    assert one(gold=gold, options=options).item.gold == want


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": "absent"}, 'no field "options", expected a list; there are '),
        ({"options": "a"}, 'field "options" is a string, expected a list'),
        ({"options": []}, 'field "options" has 0 texts, expected at least 2'),
        ({"options": ["a"], "gold": 0}, 'field "options" has 1 texts, expected at least 2'),
        ({"options": ["a", ""]}, 'field "options", entry 2 is empty, expected a text'),
        ({"options": ["a", 7]}, 'field "options", entry 2 is a whole number, expected a text'),
        ({"context": "absent"}, 'no field "context", expected a string'),
        ({"id": 1.5}, 'field "id" is a number, expected a string or a whole number'),
        ({"category": 7}, 'field "category" is a whole number, expected a string or null'),
        ({"gold": 2}, 'field "gold" is 2, expected an index from 0 to 1'),
        ({"gold": 2, "options": ["a", "b"]}, "from 0 to 1; is it counted from 1?"),
        ({"gold": "C"}, "is 'C', expected the text of an option, its letter, or an index from 0"),
        (
            {"gold": 1, "options": {"text": ["a", "b"], "label": ["1", "2"]}},
            "is 1, which is the label of option 0 and the index of option 1; give the label as a",
        ),
        (
            {"gold": "A", "options": {"text": ["B", "A"], "label": ["A", "B"]}},
            'is "A", which is the label of option 0 and the text of option 1; give the index',
        ),
        ({"options": {"text": ["a", "b"]}}, 'expected {"text": [...], "label": [...]}'),
        ({"options": {"text": ["a", "b"], "label": ["A"]}}, "with a label for each text"),
        ({"gold": -1}, 'field "gold" is -1, expected an index from 0 to 1'),
        ({"gold": 10**400}, 'field "gold" is 1000'),
        ({"gold": True}, 'field "gold" is true or false, expected the index of an option from 0'),
        ({"gold": 0.5}, 'field "gold" is a number, expected the index of an option from 0 to 1'),
        ({"gold": [0]}, 'field "gold" is a list, expected the index of an option'),
        (
            {"gold": "maybe"},
            "is 'maybe', expected the text of an option, its letter, or an index",
        ),
        ({"gold": "2"}, "is '2', expected the text of an option, its letter, or an index from 0"),
        (
            {"gold": "1", "options": ["1", "2"]},
            "is the text '1', which is option 0 and also the index of option 1; give the index",
        ),
        (
            {"gold": "a ", "options": ["a", " a"]},
            "is 'a ', and so are several options except for spaces; give the index",
        ),
        ({"acc": 1}, 'field "acc" is one of the results that the output line has; rename it'),
    ],
)
def test_an_item_that_cannot_be_used_fails_alone(changes, message):
    found = one(**changes)
    assert found.item is None
    assert message in found.error
    assert found.name.startswith("item 2")


def test_an_id_that_equals_the_line_number_is_named(tmp_path):
    lines = "".join(json.dumps(GOOD | {"id": k, "options": [" a"] * k}) + "\n" for k in (1, 2))
    bad, good = entries_of(put(tmp_path / "in.jsonl", lines.encode()))
    assert [entry.name.rpartition("/")[2] for entry in (bad, good)] == [
        "in.jsonl:1 (id 1)",
        "in.jsonl:2 (id 2)",
    ]


def test_nothing_usable(tmp_path):
    with pytest.raises(InputError, match="found no items, expected at least one"):
        evaluate("choose", None, [])
    with pytest.raises(InputError, match=r"no item is usable; the first, item 1: found null, exp"):
        evaluate("choose", None, [None])
    path = put(tmp_path / "in.jsonl", b'{"id": "x"}\n')
    with pytest.raises(InputError, match=r"in.jsonl: found no items, expected at least one"):
        entries_of(path, limit=0)
    with pytest.raises(InputError, match=r"in.jsonl: no item is usable; the first, .*:1 \(id x\)"):
        entries_of(path)


def test_names_and_lists_of_a_table(tmp_path):
    text = 'q,choices,answer\n"What, now?","["" a"", "" b""]", b\n"So?","["" c"", "" d""]",0\n'
    path = put(tmp_path / "in.csv", text.encode())
    columns = {"context": "q", "options": "choices", "gold": "answer"}
    first, second = entries_of(path, columns=columns)
    assert (first.id, first.item.context, first.item.options, first.item.gold) == (
        2,
        "What, now?",
        (" a", " b"),
        1,
    )
    assert (second.id, second.item.gold) == (3, 0)
    assert len(entries_of(path, columns=columns, limit=1)) == 1


@HOSTILE
@given(fields(GOOD))
def test_any_values_are_an_item_or_fail_alone(tmp_path, item):
    path = tmp_path / "in.jsonl"
    put(path, "".join(json.dumps(one) + "\n" for one in (GOOD, item)).encode())
    found = outcome(lambda: entries_of(path), path)
    if not isinstance(found, InputError):
        good, other = found
        assert good.id == "q"
        assert other.item is not None or other.error


def test_options_in_columns_and_a_gold_letter(tmp_path):
    """Rows with fewer options leave the last columns empty."""
    text = "question,A,B,C,answer\nWhere?, Rome, Oslo,7,B\nYes or no?,yes,no,,A\nBad?,yes,,no,A\n"
    path = put(tmp_path / "in.csv", text.encode())
    whole, short, bad = entries_of(path, columns={"context": "question", "gold": "answer"})
    assert (whole.item.options, whole.item.gold) == ((" Rome", " Oslo", "7"), 1)
    assert (short.item.options, short.item.gold) == (("yes", "no"), 0)
    assert 'column "B" is empty and column "C" is not' in bad.error


def test_forms_of_published_data_sets(tmp_path):
    """MMLU's lists with a letter, and ARC's objects with its own names of columns."""
    choices = ["London", "Paris", "Berlin", "Madrid"]
    mmlu = {"question": "Capital?", "choices": choices, "answer": "B"}
    path = put(tmp_path / "mmlu.jsonl", json.dumps(mmlu).encode())
    columns = {"context": "question", "options": "choices", "gold": "answer"}
    [entry] = entries_of(path, columns=columns)
    assert (entry.item.options, entry.item.gold) == (tuple(choices), 1)
    arc = {"question": "?", "choices": {"text": choices, "label": ["1", "2", "3", "4"]}}
    path = put(tmp_path / "arc.jsonl", json.dumps({**arc, "answerKey": "4"}).encode())
    [entry] = entries_of(path, columns={**columns, "gold": "answerKey"})
    assert (entry.item.options, entry.item.gold) == (tuple(choices), 3)
