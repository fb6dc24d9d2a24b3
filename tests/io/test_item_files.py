"""Arrays and tables of items, and what is said of files that are neither."""

import builtins
import datetime
import decimal
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from jaxscore.errors import InputError
from jaxscore.io.item_files import name_of, read_items, read_previous


def write(tmp_path, text, name="in.json"):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return tmp_path / name


def table(tmp_path, **columns):
    parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")
    return tmp_path / "in.parquet"


def test_an_array_as_windows_and_python_write_it(tmp_path):
    text = '\ufeff[{"a": "مرحبا e\u0301"},\r\n {"b": NaN, "c": "\\ud83d"}]\r\n'
    first, second = read_items(write(tmp_path, text))
    assert first == {"a": "مرحبا e\u0301"}
    assert second["b"] != second["b"]
    assert second["c"] == "\ud83d"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["in.json: the file is empty, expected a JSON array of objects"]),
        (" \n", ["in.json: the file is empty"]),
        ("[]", ["in.json: there is no item in it, expected at least one"]),
        ('"a"', ["in.json: found a string, expected a JSON array of objects"]),
        ('{"a": 1}\n{"a": 2}\n', ["in.json:2: found more than one JSON value (JSONL?)", "commas"]),
        ('[{"a": 1},\n{"a": }]', ["in.json:2: not JSON at column 7", "expected an array"]),
        ('[{"a": 1}] [', ["in.json:1: not JSON at column 12 (Extra data)"]),
        ('[{"a": 1}, 3]', ["in.json: item 2 is a whole number, expected an object"]),
        ('[{"a": 1}, null, []]', ["in.json: item 2 is null, expected an object"]),
        (b'[{"a": "\xff"}]', ["in.json:1: byte 9 is not UTF-8; save the file as UTF-8"]),
        (f"[{{}}, {'[' * 100_000}", ["in.json: not usable JSON", "recursion"]),
        (f'[{{}}, {{"a": {"[" * 150}{"]" * 150}}}]', ["in.json: item 2 is nested more than 100"]),
        (f'[{{"a": {"9" * 5000}}}]', ["in.json: not usable JSON", "digits"]),
    ],
)
def test_what_is_no_array_of_objects(tmp_path, text, parts):
    with pytest.raises(InputError) as found:
        read_items(write(tmp_path, text))
    for part in (str(tmp_path), *parts):
        assert part in str(found.value)


def test_paths_that_cannot_be_read(tmp_path):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "folder.parquet").mkdir()
    for name, part in [
        ("absent.json", "absent.json: No such file or directory; expected a readable file"),
        ("absent.parquet", "absent.parquet: No such file or directory; expected a readable"),
        ("folder.json", "folder.json: Is a directory"),
        ("folder.parquet", "folder.parquet: Is a directory"),
        ("in.txt", "in.txt: found a name ending in '.txt', expected .json, .jsonl, .csv,"),
        ("in", "in: found a name ending in '', expected"),
    ]:
        with pytest.raises(InputError) as found:
            read_items(tmp_path / name)
        assert part in str(found.value)


def test_a_table_becomes_items(tmp_path):
    day = datetime.datetime(2024, 2, 29, 12, 30)
    path = table(
        tmp_path,
        text=["a", None],
        outputs=[["x", None], None],
        when=[day, None],
        price=[decimal.Decimal("1.50"), None],
        nested=[{"k": [1, 2]}, None],
    )
    first, second = read_items(path)
    assert first == {
        "text": "a",
        "outputs": ["x", None],
        "when": "2024-02-29T12:30:00",
        "price": 1.5,
        "nested": {"k": [1, 2]},
    }
    assert set(second.values()) == {None}
    assert json.loads(json.dumps(first)) == first


def test_lists_that_were_numpy_arrays(tmp_path):
    outputs = [np.array(["a", None], object), np.array(["c"])]
    assert read_items(table(tmp_path, output=outputs)) == [
        {"output": ["a", None]},
        {"output": ["c"]},
    ]


def test_text_in_a_table_that_holds_a_list(tmp_path):
    texts = ['["a", 1]', "a", '{"a": 1}', "[" * 101 + "]" * 101, "[" * 5000]
    first, *others = read_items(table(tmp_path, x=texts, y=texts), ["x", "absent"])
    assert first == {"x": ["a", 1], "y": texts[0]}
    assert others == [{"x": text, "y": text} for text in texts[1:]]


def test_tables_that_cannot_be_used(tmp_path):
    for text in (b"", b"not a table at all", b"PAR1" + b"\0" * 40 + b"PAR1"):
        with pytest.raises(InputError, match=r"in\.parquet: .*; expected a readable Parquet file"):
            read_items(write(tmp_path, text, "in.parquet"))
    with pytest.raises(InputError, match=r'item 1, column "image": found bytes, which JSON cannot'):
        read_items(table(tmp_path, image=[b"\x00"]))
    with pytest.raises(InputError, match="there is no item in it"):
        read_items(table(tmp_path, a=[]))


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    path = table(tmp_path, a=["x"])
    genuine = builtins.__import__

    def without(name, *args, **options):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return genuine(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"not installed; pip install pyarrow, or save"):
        read_items(path)


def test_what_an_earlier_run_left(tmp_path):
    assert read_previous(tmp_path / "absent.json") == []
    assert read_previous(tmp_path) == []  # a folder: writing complains of it
    assert read_previous(write(tmp_path, "")) == []
    assert read_previous(write(tmp_path, "[]")) == []
    assert read_previous(write(tmp_path, '[{"a": 1}]', "any.name")) == [{"a": 1}]
    for text in ("half of it", '{"a": 1}', "[1]"):
        with pytest.raises(InputError, match=r"delete it, or give another --output$"):
            read_previous(write(tmp_path, text))


def test_what_an_item_is_called():
    for item, want in (
        ({"session_id": "s", "id": 7}, "item 3 (id 7)"),
        ({"id": None, "session_id": "a\r\nb"}, "item 3 (session_id a b)"),
        ({"question_id": "q" * 99}, f"item 3 (question_id {'q' * 60})"),
        ({"id": "\x1b[2J \u202eשלם e\u0301"}, "item 3 (id \\x1b[2J \\u202eשלם e\u0301)"),
        ({"id": "\ud83d\\'"}, "item 3 (id \\ud83d\\')"),
        ({"id": ["x"]}, "item 3"),
    ):
        assert name_of(2, item) == want


def test_tables_of_other_forms_have_the_same_items(tmp_path):
    items = [{"id": "a", "output": ["x, y", "z"]}, {"id": "b", "output": []}]
    for name, text in (
        ("in.jsonl", "".join(json.dumps(one) + "\n" for one in items)),
        ("in.csv", 'id,output\na,"[""x, y"", ""z""]"\nb,[]\n'),
        ("in.tsv", 'id\toutput\na\t"[""x, y"", ""z""]"\nb\t[]\n'),
    ):
        assert read_items(write(tmp_path, text, name), ["output"]) == items
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(items).save_to_disk(str(tmp_path / "set"))
    assert read_items(tmp_path / "set", ["output"]) == items


def test_a_file_of_one_object_is_read_as_one_item(tmp_path):
    path = tmp_path / "in.json"
    path.write_text('{"output": ["a"], "generator": "demo"}', encoding="utf-8")
    assert read_items(path) == [{"output": ["a"], "generator": "demo"}]
    with pytest.raises(InputError, match="found an object, expected a JSON array"):
        read_previous(path)  # of an earlier run, whose outputs are arrays
