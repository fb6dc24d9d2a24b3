"""Every unusable file gets a message with its name, the line and what was expected."""

import io
from pathlib import Path

import pytest

from jaxscore.errors import InputError
from jaxscore.io.json_input import (
    read_array,
    read_json,
    read_jsonl,
    read_jsonl_records,
    read_lines,
    read_text,
    require_field,
)
from jaxscore.io.streams import text_writer
from jaxscore.io.tables import read_csv
from jaxscore.io.yaml_input import read_yaml


@pytest.fixture
def write(tmp_path):
    """`write(bytes)`: the path of a file that holds them."""

    def make(content: bytes):
        path = tmp_path / "lines.jsonl"
        path.write_bytes(content)
        return path

    return make


def test_lines_are_numbered_as_they_stand(write):
    path = write(b'\xef\xbb\xbf{"a": 1}\r\n\r\n   \n{"b": "\xc3\xa9"}\n\n{"c": [null]}')
    assert list(read_jsonl(path)) == [(1, {"a": 1}), (4, {"b": "é"}), (6, {"c": [None]})]


def test_only_line_feeds_end_a_line(write):
    # U+2028 and U+0085 end a line for str.splitlines, not for JSON.
    text = '{"a": "x\u2028y\u0085z"}\n{"b": 2}\n'
    assert list(read_jsonl(write(text.encode()))) == [(1, {"a": "x\u2028y\u0085z"}), (2, {"b": 2})]
    assert list(read_lines(write(b"one \r\ntwo\r\n"))) == [(1, "one "), (2, "two")]


def test_newlines_of_text_files_are_universal(write):
    content = b"\xef\xbb\xbfone\r\ntwo\rthree\n\r\r\nfour\r"
    assert read_text(write(content)) == "one\ntwo\nthree\n\n\nfour\n"
    lines = list(read_lines(write(content)))
    assert lines == [(1, "one"), (2, "two"), (3, "three"), (4, ""), (5, ""), (6, "four")]
    with pytest.raises(InputError, match=r"lines\.jsonl:3: byte 1 is not UTF-8"):
        list(read_lines(write(b"a\rb\r\n\xff\n")))


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_a_newline_of_two_bytes_on_the_border_of_two_reads_is_one_newline(tmp_path, ending):
    if ending == ".zst":
        pytest.importorskip("zstandard")
    path = tmp_path / f"a.txt{ending}"
    lines = ["x" * (n - 1) for n in (io.DEFAULT_BUFFER_SIZE, 1 << 16, 1 << 17, 1 << 20)]
    with path.open("wb") as raw, text_writer(path, raw) as file:
        file.write("\r\n".join([*lines, "end", ""]))
    assert read_text(path) == "\n".join([*lines, "end", ""])
    assert [text for _, text in read_lines(path)] == [*lines, "end"]


def test_newlines_in_strings_of_json_stay(write):
    line = b'{"a": "x\\r\\ny\\r"}'
    assert list(read_jsonl(write(line + b"\r\n"))) == [(1, {"a": "x\r\ny\r"})]
    assert list(read_jsonl(write(line + b"\r" + line))) == [
        (1, {"a": "x\r\ny\r"}),
        (2, {"a": "x\r\ny\r"}),
    ]
    assert read_array(write(b"[" + line + b",\r" + line + b"]\r\n")) == [{"a": "x\r\ny\r"}] * 2


def test_a_byte_order_mark_counts_only_at_the_start(write):
    path = write(b'{"a": 1}\n\xef\xbb\xbf{"b": 2}\n')
    with pytest.raises(InputError, match=r"lines\.jsonl:2: not JSON at column 1"):
        list(read_jsonl(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', r"not JSON at column 8 \(Expecting ',' delimiter\); expected one object"),
        (b"{'a': 1}", r"not JSON at column 2 \(Expecting property name"),
        (b'{"a": 1} {"b": 2}', r"not JSON at column 10 \(Extra data\)"),
        (b'{"a": "x\ty"}', r"not JSON at column 9 \(Invalid control character"),
        (b'{"a": NaN}', r"not usable JSON \(NaN is not a JSON number\)"),
        (b'{"a": [-Infinity]}', r"not usable JSON \(-Infinity is not a JSON number\)"),
        (b'{"a": "\\ud800"}', r"a string contains a lone surrogate.*write the character itself"),
        (b'{"\\udfff": 1}', r"a string contains a lone surrogate"),
        pytest.param(
            b'{"a": ' + b"9" * 5000 + b"}", r"not usable JSON \(.*5000 digits", id="many digits"
        ),
        pytest.param(b'{"a":' * 100_000, r"not usable JSON \(.*recursion", id="deep"),
        (b"3", r"found a whole number, expected an object"),
        (b"null", r"found null, expected an object"),
        (b'"text"', r"found a string, expected an object"),
        (b"[1]", r"found a list, expected an object"),
        (b'{"a": "\xff"}', r"byte 8 is not UTF-8; save the file as UTF-8"),
        (b'{"a": "\xc3"}', r"byte 8 is not UTF-8"),
    ],
)
def test_a_bad_line_is_named(write, line, message):
    path = write(b'{"good": 1}\n\n' + line + b'\n{"good": 2}\n')
    found = read_jsonl(path)
    assert next(found) == (1, {"good": 1})
    with pytest.raises(InputError, match=rf"lines\.jsonl:3: {message}"):
        next(found)


def test_a_surrogate_pair_is_a_character(write):
    assert list(read_jsonl(write(b'{"a": "\\ud83d\\ude42"}'))) == [(1, {"a": "🙂"})]


@pytest.mark.parametrize("content", [b'[{"a": 1}]', b'\n [\n {"a": 1},\n {"a": 2}\n]\n'])
def test_a_json_array_is_told_from_jsonl(write, content):
    with pytest.raises(InputError, match=r":\d: found a JSON array, expected JSONL: one object"):
        list(read_jsonl(write(content)))


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"  \r\n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"]
)
def test_an_empty_file_is_refused(write, content):
    with pytest.raises(InputError, match=r"lines\.jsonl: the file is empty, expected one JSON"):
        list(read_jsonl(write(content)))


READERS = {
    "jsonl": lambda path: list(read_jsonl(path)),
    "json": lambda path: read_json(path, "an object"),
    "csv": lambda path: list(read_csv(path)),
    "tsv": lambda path: list(read_csv(path)),
    "txt": read_text,
    "yaml": read_yaml,
    "array.json": read_array,
    "results.jsonl": lambda path: list(read_jsonl_records(path)),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
        ("utf-32", "UTF-32"),
        ("utf-32-le", "UTF-32LE"),
    ],
)
def test_utf_16_is_named_with_the_command_that_converts_it(tmp_path, kind, encoding, name):
    path = tmp_path / f"a b.{kind}"
    path.write_bytes('{"a": "é"}\n'.encode(encoding))
    with pytest.raises(InputError) as found:
        READERS[kind](path)
    assert str(found.value) == (
        f"{path}: found {name}, expected UTF-8; convert it: iconv -f {name} -t UTF-8 '{path}' > NEW"
    )


def test_a_text_with_zero_bytes_is_not_taken_for_utf_16(tmp_path):
    path = tmp_path / "in.txt"
    for text in ("a\0", "ab\0\0", "\0" * 8):
        path.write_text(text, encoding="utf-8")
        assert read_text(path) == text


@pytest.mark.parametrize("name", ["none/in.jsonl", "none/deeper/in.jsonl"])
@pytest.mark.parametrize("kind", READERS)
def test_a_missing_folder_is_called_missing(tmp_path, monkeypatch, name, kind):
    monkeypatch.chdir(tmp_path)
    for place, missing in ((Path(name), "none"), (tmp_path / name, tmp_path / "none")):
        path = place.with_suffix(f".{kind}")
        with pytest.raises(InputError) as found:
            READERS[kind](path)
        assert str(found.value).startswith(f"{path}: the folder {missing} is missing; expected a")


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"absent\.jsonl: No such file or directory; expected a"):
        list(read_jsonl(tmp_path / "absent.jsonl"))
    with pytest.raises(InputError, match=r"Is a directory; expected a readable file"):
        list(read_jsonl(tmp_path))
    with pytest.raises(InputError, match=r"File name too long"):
        list(read_jsonl(tmp_path / ("x" * 300)))


def test_a_line_of_megabytes(write):
    text = "x" * 5_000_000
    [(number, item)] = read_jsonl(write(b'{"a": "' + text.encode() + b'"}'))
    assert (number, item["a"]) == (1, text)


def test_take_gives_the_field():
    item = {"s": "x", "i": 3, "f": 0.5, "b": False, "l": [], "n": None}
    assert require_field(item, "s", str, "f:1") == "x"
    assert require_field(item, "i", (str, int), "f:1") == 3
    assert require_field(item, "f", (int, float), "f:1") == 0.5
    assert require_field(item, "b", bool, "f:1") is False
    assert require_field(item, "l", list, "f:1") == []
    assert require_field(item, "n", (str, type(None)), "f:1") is None


@pytest.mark.parametrize(
    ("item", "kinds", "message"),
    [
        ({"b": 1, "a": 2}, str, "f:7: no field \"x\", expected a string; there are 'a', 'b'"),
        ({}, list, 'f:7: no field "x", expected a list; there are none'),
        ({"x": 1}, str, 'f:7: field "x" is a whole number, expected a string'),
        ({"x": 1.5}, (str, int), 'field "x" is a number, expected a string or a whole number'),
        ({"x": None}, dict, 'field "x" is null, expected an object'),
        # A bool is an int for Python, not for a reader of JSON.
        ({"x": True}, (str, int), 'field "x" is true or false, expected a string or a whole'),
    ],
)
def test_take_says_what_is_wrong(item, kinds, message):
    with pytest.raises(InputError) as problem:
        require_field(item, "x", kinds, "f:7")
    assert message in str(problem.value)


@pytest.mark.parametrize("read", [lambda path: list(read_lines(path)), read_text])
@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"\xff", ":1: byte 1 "),
        (b"\xef\xbb\xbfa\xff", ":1: byte 5 "),
        (b"a\nb\n\xc3", ":3: byte 1 "),
    ],
)
def test_the_byte_is_counted_in_its_line_as_an_editor_does(write, read, content, place):
    with pytest.raises(InputError, match=rf"lines\.jsonl{place}is not UTF-8"):
        read(write(content))


@pytest.mark.parametrize("name", ["gone", "", "a\0b", "\ud800", "x" * 5000])
def test_a_file_that_cannot_be_opened(tmp_path, name):
    for read in (read_text, lambda path: list(read_lines(path)), lambda path: read_json(path, "x")):
        with pytest.raises(InputError, match="expected "):
            read(tmp_path / name)


def test_a_whole_file_of_json(write):
    assert str(read_json(write(b'\xef\xbb\xbf{"a": [NaN, 1e999]}'), "x")) == "{'a': [nan, inf]}"
    deep = b"[" * 100 + b"]" * 100
    assert read_json(write(deep), "a list")
    for content, why in (
        (b"[" + deep + b"]", r"lines\.jsonl: not usable JSON \(nested more than 100 deep\)"),
        (
            b'{}\n{"a": 1}',
            r"lines\.jsonl:2: found more than one JSON value \(JSONL\?\); expected x",
        ),
        (b"[1,\n 2", r"lines\.jsonl:2: not JSON at column 3 .*; expected x"),
    ):
        with pytest.raises(InputError, match=why):
            read_json(write(content), "x")
