"""Items in any form of file: the same items, and the messages about bad ones."""

import builtins
import csv
import datetime
import decimal
import io
import json
import math

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from jaxscore.errors import InputError
from jaxscore.io.items import item_label, read_items, read_previous_output, read_rows
from tests.hostile.inputs import FILES, HOSTILE, contents, outcome, put, refused

ITEMS = [
    {"id": "a", "text": 'two\nlines, a "quote"', "options": [" x", " y"]},
    {"id": "b\u202e", "text": "", "options": []},
]


def saved(folder, form, items=ITEMS):
    """The items as a file of one form; of a table whose cells are text, lists are JSON text."""
    if form == "dataset":
        import datasets

        datasets.Dataset.from_list(items).save_to_disk(str(folder / "set"))
        return folder / "set"
    path = folder / f"in.{form}"
    if form == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(items), path)
    elif form in ("csv", "tsv"):
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.writer(file, delimiter="," if form == "csv" else "\t")
            writer.writerow(items[0])
            for one in items:
                writer.writerow(v if isinstance(v, str) else json.dumps(v) for v in one.values())
    else:
        lines = [json.dumps(one) for one in items]
        text = f"[{','.join(lines)}]" if form == "json" else "\n\n".join(lines)
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "tsv", "parquet", "dataset"])
def test_every_form_has_the_same_items(tmp_path, form):
    found = list(read_rows(saved(tmp_path, form), lists=["options"]))
    assert [row.item for row in found] == ITEMS
    # Lines where the file has lines: the first item begins on line 2 of a csv, and has two.
    lines = {"jsonl": [1, 3], "csv": [2, 4], "tsv": [2, 4]}
    assert [row.number for row in found] == lines.get(form, [1, 2])
    assert found[1].where == (
        f"{tmp_path}/in.{form}:{lines[form][1]}"
        if form in lines
        else f"{tmp_path}/{'set' if form == 'dataset' else f'in.{form}'}: item 2"
    )


def test_a_json_file_may_hold_lines(tmp_path):
    path = tmp_path / "in.json"
    path.write_text('\n {"a": 1}\n{"a": 2}\n', encoding="utf-8")
    assert [row.item for row in read_rows(path)] == [{"a": 1}, {"a": 2}]


def test_names_of_the_file(tmp_path):
    path = saved(tmp_path, "csv")
    found = list(read_rows(path, {"context": "text", "choices": "options"}, lists=["choices"]))
    assert found[0].item == {"id": "a", "context": ITEMS[0]["text"], "choices": [" x", " y"]}
    # Two may change places, and a field of the file that has the name of another one is left out.
    [first, _] = read_rows(path, {"text": "id", "id": "text"})
    assert first.item == {"text": "a", "id": ITEMS[0]["text"], "options": '[" x", " y"]'}
    [first, _] = read_rows(path, {"text": "id"})
    assert first.item == {"text": "a", "options": '[" x", " y"]'}


def test_a_name_that_the_file_has_not(tmp_path):
    with pytest.raises(InputError) as caught:
        list(read_rows(saved(tmp_path, "csv"), {"context": "texts"}))
    assert str(caught.value) == (
        f"{tmp_path}/in.csv:2: no column 'texts', which should be 'context'; is it 'text'? "
        "there are 'id', 'text', 'options'"
    )


def test_a_field_that_later_items_lack_is_left_out(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"k": 1, "t": "x"}\n{"t": "y"}\n', encoding="utf-8")
    assert [row.item for row in read_rows(path, {"kind": "k"})] == [
        {"t": "x", "kind": 1},
        {"t": "y"},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty, expected the names of the columns and at least one row"),
        ("\n\n", "the file is empty"),
        ("a,b\n", "found no rows, expected the names"),
        ("a,b,a\n1,2,3\n", "in.csv:1: two columns have the name 'a'"),
        (
            "a,b\n1,2\n\n1\n",
            "in.csv:4: found 1 cells, expected 2, one for each column of the",
        ),
        ("a,b\n1,2,3\n", "in.csv:2: found 3 cells, expected 2"),
        (
            'a,b\n1,"2\n3,4\n',
            "in.csv:2: the row that begins here is not valid CSV (unexpected end of",
        ),
        ('a,b\n1,"2"x\n', "in.csv:2: the row that begins here is not valid CSV ("),
        (
            "a,b\n1,2\r3,4\n",
            "in.csv:2: the row that begins here is not valid CSV (new-line character",
        ),
        (b"a,b\n1,\xff\n", "in.csv:2: byte 3 is not UTF-8; save the file as UTF-8"),
    ],
)
def test_what_is_no_table(tmp_path, text, message):
    path = put(tmp_path / "in.csv", text if isinstance(text, bytes) else text.encode())
    assert message in refused(lambda: list(read_rows(path)), path)


def test_a_cell_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxscore.io.tables.LONGEST_CELL", 200_000)
    path = put(tmp_path / "in.csv", b'a\n"' + b"x" * 150_000 + b'"\n')
    [row] = read_rows(path)
    assert len(row.item["a"]) == 150_000
    before = csv.field_size_limit(200_000)
    try:
        path = put(tmp_path / "in.csv", b'a\nb\n"' + b"x\n" * 150_000)
        assert "in.csv:3: " in refused(lambda: list(read_rows(path)))
    finally:
        csv.field_size_limit(before)


def test_what_json_has_not_is_null_or_refused(tmp_path):
    path = tmp_path / "in.parquet"
    table = pyarrow.table({"x": [1.5, math.nan, None], "y": [[1.0], [math.nan], None]})
    parquet.write_table(table, path)
    assert [row.item for row in read_rows(path)] == [
        {"x": 1.5, "y": [1.0]},
        {"x": None, "y": [None]},
        {"x": None, "y": None},
    ]
    parquet.write_table(pyarrow.table({"x": [b"\xff"]}), path)
    assert 'item 1, column "x": found bytes' in refused(lambda: list(read_rows(path)), path)
    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array([1])] * 2, ["x", "x"]), path)
    assert "two columns have the name 'x'" in refused(lambda: list(read_rows(path)), path)
    half = put(tmp_path / "in.json", b'[{"a": "\\ud83d"}]')
    assert "item 1: a string contains a lone surrogate" in refused(
        lambda: list(read_rows(half)), half
    )
    half = put(tmp_path / "in.csv", b'a\n"[""\\ud83d""]"\n')
    message = refused(lambda: list(read_rows(half, lists=["a"])), half)
    assert "in.csv:2: a string contains a lone surrogate" in message


def test_text_that_is_no_list_stays(tmp_path):
    path = put(tmp_path / "in.csv", b'a\nx\n{}\n[NaN]\n[1\n" "\n' + b"[" * 5000 + b"\n")
    found = [row.item["a"] for row in read_rows(path, lists=["a", "absent"])]
    assert found == ["x", "{}", "[NaN]", "[1", None, "[" * 5000]


def test_folders(tmp_path):
    import datasets

    one = datasets.Dataset.from_list(ITEMS)
    datasets.DatasetDict({"test": one, "train": one}).save_to_disk(str(tmp_path / "both"))
    message = refused(lambda: list(read_rows(tmp_path / "both")), tmp_path)
    assert f"splits are test, train; give the folder of one split, such as {tmp_path}" in message
    assert len(list(read_rows(tmp_path / "both/train"))) == 2
    put(tmp_path / "both/train/state.json", b"{")
    message = refused(lambda: list(read_rows(tmp_path / "both/train")), tmp_path)
    assert "expected a folder that save_to_disk of datasets wrote" in message
    (tmp_path / "plain").mkdir()
    assert "plain: found a folder, whose files give" in refused(
        lambda: list(read_rows(tmp_path / "plain")), tmp_path
    )


@pytest.mark.parametrize(("form", "library"), [("parquet", "pyarrow"), ("dataset", "datasets")])
def test_without_the_library_it_says_what_to_install(tmp_path, monkeypatch, form, library):
    path = saved(tmp_path, form)
    genuine = builtins.__import__

    def without(name, *args, **options):
        if name.partition(".")[0] == library:
            raise ImportError(name)
        return genuine(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert f"not installed; pip install {library}" in refused(lambda: list(read_rows(path)), path)


@HOSTILE
@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=4))
def test_any_cells_are_read_back(tmp_path, cells):
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *cells])
    path = put(tmp_path / "in.csv", text.getvalue().encode())
    assert [tuple(row.item.values()) for row in read_rows(path)] == cells


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet", "json"])
def test_any_bytes_are_rows_or_a_refusal(tmp_path, form):
    good = saved(tmp_path, form).read_bytes()
    path = tmp_path / f"in.{form}"

    @HOSTILE
    @given(contents(good))
    def check(content):
        outcome(lambda: list(read_rows(put(path, content), lists=["options"])), path)

    check()
    for content in FILES:
        outcome(
            lambda content=content: list(read_rows(put(path, content), lists=["options"])), path
        )


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
        ("[]", ["in.json: found no items, expected at least one"]),
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
        ("folder.json", "folder.json: found a folder, whose files give one output each"),
        ("folder.parquet", "folder.parquet: found a folder, whose files give one output each"),
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
    with pytest.raises(InputError, match="found no items"):
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
    assert read_previous_output(tmp_path / "absent.json") == []
    assert read_previous_output(tmp_path) == []  # a folder: writing complains of it
    assert read_previous_output(write(tmp_path, "")) == []
    assert read_previous_output(write(tmp_path, "[]")) == []
    assert read_previous_output(write(tmp_path, '[{"a": 1}]', "any.name")) == [{"a": 1}]
    for text in ("half of it", '{"a": 1}', "[1]"):
        with pytest.raises(InputError, match=r"delete it, or give another --output$"):
            read_previous_output(write(tmp_path, text))


def test_what_an_item_is_called():
    for item, want in (
        ({"session_id": "s", "id": 7}, "item 3 (id 7)"),
        ({"id": None, "session_id": "a\r\nb"}, "item 3 (session_id a b)"),
        ({"question_id": "q" * 99}, f"item 3 (question_id {'q' * 60})"),
        ({"id": "\x1b[2J \u202eשלם e\u0301"}, "item 3 (id \\x1b[2J \\u202eשלם e\u0301)"),
        ({"id": "\ud83d\\'"}, "item 3 (id \\ud83d\\')"),
        ({"id": ["x"]}, "item 3"),
    ):
        assert item_label(2, item) == want


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
        read_previous_output(path)  # of an earlier run, whose outputs are arrays
