"""Declared flags: what follows from name, annotation and default, and the values they take."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest

from jaxscore.shell.flags import (
    MAYBE,
    ONE,
    SOME,
    SWITCH,
    Flag,
    ValueType,
    file_flag,
    flag,
    flags_of,
    options_of,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    seed: int = flag(0, least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(Base):
    n: int = flag()
    mode: Literal["a", "b"] | None = flag(None, "--kind")
    shuffle: bool = flag(True)
    texts: tuple[str, ...] = flag((), also=(file_flag("--texts-file", Path.read_text, "lines"),))
    examples: tuple[Any, ...] = flag((), is_flag=False)
    path: Path | None = flag(None, name="file", words=MAYBE, bare="x")
    unknown: int = 0


def test_the_flags_of_a_class_are_those_of_its_own_fields_and_then_the_inherited_ones():
    assert [each.field for each in flags_of(Flags)] == [
        "n", "mode", "shuffle", "texts", "examples", "path", "seed",
    ]  # fmt: skip
    assert [each.names for each in options_of(Flags, omitted=("seed",))] == [
        ("-n",), ("--mode", "--kind"), ("--no-shuffle",), ("--texts",), ("--texts-file",),
        ("--file",),
    ]  # fmt: skip


def test_words_and_types_follow_from_annotations():
    described = {each.dest: each for each in options_of(Flags)}
    assert {dest: each.words for dest, each in described.items()} == {
        "n": ONE, "mode": ONE, "no_shuffle": SWITCH, "texts": SOME, "texts_file": ONE,
        "file": MAYBE, "seed": ONE,
    }  # fmt: skip
    assert described["mode"].type == ValueType(str, ("a", "b"), is_optional=True)
    assert described["seed"].type == ValueType(int, least=0)
    assert [dest for dest, each in described.items() if each.is_required] == ["n"]
    assert (described["texts_file"].field, described["texts"].absent) == ("texts", [])


def test_arguments():
    described = {each.dest: each for each in options_of(Flags)}
    assert described["n"].argument(["1", "2"]) == 2
    assert described["texts"].argument(["1", "2"]) == ["1", "2"]
    assert described["no_shuffle"].argument([]) is True
    assert described["file"].argument([]) == "x"
    comma = Flag(
        names=("--a",), type=ValueType(is_list=True), read=lambda text: (*text.split(","),)
    )
    assert comma.argument(["a,b", "c"]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("dest", "word", "message"),
    [
        ("n", "x", "'x', expected a whole number"),
        ("seed", "-1", "-1, expected a whole number of at least 0"),
        ("mode", "A", "'A', expected one of 'a', 'b'"),
        ("file", "-", "-: standard input is not read"),
    ],
)
def test_words_that_are_refused(dest, word, message):
    [described] = [each for each in options_of(Flags) if each.dest == dest]
    with pytest.raises(ValueError, match=message):
        described.argument([word])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("n", True, "True, expected a whole number"),
        ("n", None, "None, expected a whole number"),
        ("mode", "c", "'c', expected one of None, 'a', 'b'"),
        ("texts", "ab", "a string, expected a list of strings"),
        ("texts", [1], r"\[1\], expected a list of strings"),
        ("examples", 1, "of type int, expected a list of examples"),
    ],
)
def test_values_of_python_that_are_refused(field, value, message):
    [described] = [each for each in flags_of(Flags) if each.field == field]
    with pytest.raises(ValueError, match=message):
        described.type.check(value)
    ValueType(float).check(1)
    ValueType(is_optional=True).check(None)
