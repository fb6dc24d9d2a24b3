"""Rows of items, whatever the form of the file: the same items, and what is said of bad ones."""

import builtins
import csv
import io
import json
import math

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from jaxscore.errors import InputError
from jaxscore.io.table_input import rows
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
    found = list(rows(saved(tmp_path, form), lists=["options"]))
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
    assert [row.item for row in rows(path)] == [{"a": 1}, {"a": 2}]


def test_names_of_the_file(tmp_path):
    path = saved(tmp_path, "csv")
    found = list(rows(path, {"context": "text", "choices": "options"}, lists=["choices"]))
    assert found[0].item == {"id": "a", "context": ITEMS[0]["text"], "choices": [" x", " y"]}
    # Two may change places, and a field of the file that has the name of another one is left out.
    [first, _] = rows(path, {"text": "id", "id": "text"})
    assert first.item == {"text": "a", "id": ITEMS[0]["text"], "options": '[" x", " y"]'}
    [first, _] = rows(path, {"text": "id"})
    assert first.item == {"text": "a", "options": '[" x", " y"]'}


def test_a_name_that_the_file_has_not(tmp_path):
    with pytest.raises(InputError) as caught:
        list(rows(saved(tmp_path, "csv"), {"context": "texts"}))
    assert str(caught.value) == (
        f"{tmp_path}/in.csv:2: no column 'texts', which should be 'context'; is it 'text'? "
        "there are 'id', 'text', 'options'"
    )


def test_a_field_that_later_items_lack_is_left_out(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"k": 1, "t": "x"}\n{"t": "y"}\n', encoding="utf-8")
    assert [row.item for row in rows(path, {"kind": "k"})] == [
        {"t": "x", "kind": 1},
        {"t": "y"},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty, expected the names of the columns and at least one row"),
        ("\n\n", "the file is empty"),
        ("a,b\n", "there is no row, expected the names"),
        ("a,b,a\n1,2,3\n", "in.csv:1: two columns have the name 'a'"),
        (
            "a,b\n1,2\n\n1\n",
            "in.csv:4: found 1 cells, expected 2, one for each column of the",
        ),
        ("a,b\n1,2,3\n", "in.csv:2: found 3 cells, expected 2"),
        ('a,b\n1,"2\n3,4\n', "in.csv:2: the row that begins here is no csv (unexpected end of"),
        ('a,b\n1,"2"x\n', "in.csv:2: the row that begins here is no csv ("),
        ("a,b\n1,2\r3,4\n", "in.csv:2: the row that begins here is no csv (new-line character"),
        (b"a,b\n1,\xff\n", "in.csv:2: byte 3 is not UTF-8; save the file as UTF-8"),
    ],
)
def test_what_is_no_table(tmp_path, text, message):
    path = put(tmp_path / "in.csv", text if isinstance(text, bytes) else text.encode())
    assert message in refused(lambda: list(rows(path)), path)


def test_a_cell_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxscore.io.csv_input.MOST", 200_000)
    path = put(tmp_path / "in.csv", b'a\n"' + b"x" * 150_000 + b'"\n')
    [row] = rows(path)
    assert len(row.item["a"]) == 150_000
    before = csv.field_size_limit(200_000)
    try:
        path = put(tmp_path / "in.csv", b'a\nb\n"' + b"x\n" * 150_000)
        assert "in.csv:3: " in refused(lambda: list(rows(path)))
    finally:
        csv.field_size_limit(before)


def test_what_json_has_not_is_null_or_refused(tmp_path):
    path = tmp_path / "in.parquet"
    table = pyarrow.table({"x": [1.5, math.nan, None], "y": [[1.0], [math.nan], None]})
    parquet.write_table(table, path)
    assert [row.item for row in rows(path)] == [
        {"x": 1.5, "y": [1.0]},
        {"x": None, "y": [None]},
        {"x": None, "y": None},
    ]
    parquet.write_table(pyarrow.table({"x": [b"\xff"]}), path)
    assert 'item 1, column "x": found bytes' in refused(lambda: list(rows(path)), path)
    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array([1])] * 2, ["x", "x"]), path)
    assert "two columns have the name 'x'" in refused(lambda: list(rows(path)), path)
    half = put(tmp_path / "in.json", b'[{"a": "\\ud83d"}]')
    assert "item 1: a string has half a surrogate pair" in refused(lambda: list(rows(half)), half)
    half = put(tmp_path / "in.csv", b'a\n"[""\\ud83d""]"\n')
    message = refused(lambda: list(rows(half, lists=["a"])), half)
    assert "in.csv:2: a string has half a surrogate pair" in message


def test_text_that_is_no_list_stays(tmp_path):
    path = put(tmp_path / "in.csv", b'a\nx\n{}\n[NaN]\n[1\n" "\n' + b"[" * 5000 + b"\n")
    found = [row.item["a"] for row in rows(path, lists=["a", "absent"])]
    assert found == ["x", "{}", "[NaN]", "[1", None, "[" * 5000]


def test_folders(tmp_path):
    import datasets

    one = datasets.Dataset.from_list(ITEMS)
    datasets.DatasetDict({"test": one, "train": one}).save_to_disk(str(tmp_path / "both"))
    message = refused(lambda: list(rows(tmp_path / "both")), tmp_path)
    assert f"splits are test, train; give the folder of one split, such as {tmp_path}" in message
    assert len(list(rows(tmp_path / "both/train"))) == 2
    put(tmp_path / "both/train/state.json", b"{")
    message = refused(lambda: list(rows(tmp_path / "both/train")), tmp_path)
    assert "expected a folder that save_to_disk of datasets wrote" in message
    (tmp_path / "plain").mkdir()
    assert "Is a directory" in refused(lambda: list(rows(tmp_path / "plain")), tmp_path)


@pytest.mark.parametrize(("form", "library"), [("parquet", "pyarrow"), ("dataset", "datasets")])
def test_without_the_library_it_says_what_to_install(tmp_path, monkeypatch, form, library):
    path = saved(tmp_path, form)
    genuine = builtins.__import__

    def without(name, *args, **options):
        if name.partition(".")[0] == library:
            raise ImportError(name)
        return genuine(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert f"not installed; pip install {library}" in refused(lambda: list(rows(path)), path)


@HOSTILE
@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=4))
def test_any_cells_are_read_back(tmp_path, cells):
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *cells])
    path = put(tmp_path / "in.csv", text.getvalue().encode())
    assert [tuple(row.item.values()) for row in rows(path)] == cells


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet", "json"])
def test_any_bytes_are_rows_or_a_refusal(tmp_path, form):
    good = saved(tmp_path, form).read_bytes()
    path = tmp_path / f"in.{form}"

    @HOSTILE
    @given(contents(good))
    def check(content):
        outcome(lambda: list(rows(put(path, content), lists=["options"])), path)

    check()
    for content in FILES:
        outcome(lambda content=content: list(rows(put(path, content), lists=["options"])), path)
