"""What holds documents, and which of them cannot be scored."""

import json

import pytest
from hypothesis import given

from jaxscore import InputError
from jaxscore.io.items import NOTHING
from jaxscore.shell.items import Items, rows_of
from jaxscore.systems.perplexity import SYSTEM, Settings
from tests.hostile.inputs import FILES, HOSTILE, contents, fields, outcome, put, refused

GOOD = {"id": "a", "text": "one two", "topic": 7}


def items_of(path, limit=None, columns=NOTHING):
    return Items(SYSTEM, lambda: rows_of(SYSTEM, path, columns), Settings(), limit=limit)


def load(*args):
    return list(items_of(*args).entries())


def check(path):
    SYSTEM.check(items_of(path), Settings())


def read(objects):
    return list(Items(SYSTEM, lambda: SYSTEM.read(objects), Settings()).entries())


def test_a_text_file_is_one_document(tmp_path):
    path = put(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\n\r\ntwo\n")
    [one] = load(path)
    assert (one.id, one.item.text, one.error) == ("a.txt", "one\n\ntwo\n", None)


def test_a_folder_of_text_files(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        put(tmp_path / name, name.encode())
    (tmp_path / "sub").mkdir()
    put(tmp_path / "sub/d.txt", b"d")
    assert [(one.id, one.item.text) for one in load(tmp_path)] == [
        ("a.txt", "a.txt"),
        ("b.txt", "b.txt"),
    ]
    assert len(load(tmp_path, 1)) == 1
    message = refused(lambda: load(tmp_path, None, {"text": "x"}), tmp_path)
    assert "text files have none" in message
    put(tmp_path / "c.txt", b"\xff")
    assert "c.txt:1: byte 1 is not UTF-8" in refused(lambda: check(tmp_path), tmp_path)


def test_a_folder_without_text_files(tmp_path):
    assert "found a folder, whose files give one output each" in refused(
        lambda: check(tmp_path), tmp_path
    )


def test_a_text_file_of_another_name(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("# A page\n", encoding="utf-8")
    assert "the name of a plain text ends in .txt" in refused(lambda: check(path), path)


def test_lines_and_other_names(tmp_path):
    lines = [GOOD, {"text": ""}, {"id": "b"}, {"id": True, "text": "x"}, {"text": "x", "error": 1}]
    path = put(tmp_path / "in.jsonl", "\n".join(map(json.dumps, lines)).encode())
    check(path)
    found = load(path)
    assert [one.id for one in found] == ["a", 2, "b", 4, 5]
    assert [dict(one.extra) for one in found] == [{"topic": 7}, {}, {}, *[{"text": "x"}] * 2]
    errors = [one.error or "" for one in found]
    assert errors[:2] == ["", ""]
    assert errors[2].startswith('no field "text", expected a string')
    assert errors[3].startswith('field "id" is true or false')
    assert errors[4].startswith('field "error" is one of the results that the output line has')
    table = put(tmp_path / "in.csv", b'n,body\n7,"a\nb"\n')
    [one] = load(table, None, {"id": "n", "text": "body"})
    assert (one.id, one.item.text) == ("7", "a\nb")


def test_nothing_usable(tmp_path):
    path = put(tmp_path / "in.jsonl", b'{"id": "x"}\n{"text": 7}\n')
    message = refused(lambda: check(path), path)
    assert "no document is usable; the first, " in message
    assert "in.jsonl:1 (id x): no field" in message


def test_from_python():
    found = read(["one", {"text": "two", "id": 5}, 7, "half \ud83d", {"text": "\ud83d"}])
    assert [one.id for one in found] == [1, 5, 3, 4, 5]
    assert found[2].error == 'field "text" is a whole number, expected a string'
    assert "a lone surrogate" in found[3].error
    assert "a lone surrogate" in found[4].error
    for one in ("text", {"text": "x"}):
        with pytest.raises(InputError, match="found one document, expected a list"):
            read(one)


@HOSTILE
@given(fields(GOOD))
def test_any_values_are_a_document_or_fail_alone(tmp_path, item):
    path = put(tmp_path / "in.jsonl", "\n".join(map(json.dumps, (GOOD, item))).encode())
    found = outcome(lambda: load(path), path)
    if not isinstance(found, InputError):
        good, _ = found
        assert good.error is None


def test_any_bytes_are_a_document_or_a_refusal(tmp_path):
    path = tmp_path / "in.txt"

    @HOSTILE
    @given(contents(b"one two\n"))
    def scored(content):
        outcome(lambda: load(put(path, content)), path)

    scored()
    for content in FILES:
        outcome(lambda content=content: load(put(path, content)), path)
