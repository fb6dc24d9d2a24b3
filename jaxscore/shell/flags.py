"""Flags: dataclass fields, declared once for the command line, `--config`, Python and schemas.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Settings:
        limit: int | None = flag(None, "--max-samples", least=1, metavar="N", help="the first N")

The annotation says what a value is; `flags_of` reads both.
"""

import contextlib
import dataclasses
import functools
import math
import operator
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxscore.errors import describe_choice, is_valid_unicode
from jaxscore.io import remote, streams
from jaxscore.io.local_path import ADDRESS, check_local, local_path

FLAG = "flag"  # key of a field's metadata
OPTIONS = "options"  # title of the help's main section
SWITCH, ONE, MAYBE, ANY, SOME = "0", "1", "?", "*", "+"  # how many words follow a flag
OUTPUTS = ("output", "output_dir", "html")  # flags whose path may be a stream
HALF_PAIR = "contains a lone surrogate (invalid Unicode)"
NAMES = {str: "a text", int: "a whole number", float: "a finite number", bool: "True or False"}


class ValueType(NamedTuple):
    """The values that a field takes.

    Attributes:
        base: type of one value, without None and the list around it.
        choices: the allowed values of a `Literal`.
        is_list: several values.
        is_optional: None is allowed.
        least: the smallest allowed whole number.
        expected: description of a valid text, which is then not empty.
    """

    base: Any = str
    choices: tuple[Any, ...] = ()
    is_list: bool = False
    is_optional: bool = False
    least: int | None = None
    expected: str | None = None

    def check(self, value: object) -> None:
        """Check a value that Python gives.

        Raises:
            ValueError: it is not of this type; the message says what it is and what is expected.
        """
        if not self.is_list:
            self._check_one(value)
        elif value is not None or not self.is_optional:
            noun = "strings" if self.base is str else "examples"
            if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
                names = {type(None): "None", str: "a string"}
                shown = names.get(type(value), f"of type {type(value).__name__}")
                raise ValueError(f"{shown}, expected a list of {noun}")
            for each in value:
                if self.base is str and not isinstance(each, str):
                    raise ValueError(f"{value!r}, expected a list of {noun}")
                self._check_one(each)

    def _check_one(self, value: Any) -> None:
        if (value is None and self.is_optional) or self.base is Any:
            return
        if self.choices:
            if value not in self.choices:
                choices = (None,) * self.is_optional + self.choices
                raise ValueError(describe_choice(value, choices))
            return
        accepted = (int, float) if self.base is float else self.base
        is_right = isinstance(value, accepted) and not (
            (isinstance(value, bool) and self.base is not bool)
            or (isinstance(value, float) and not math.isfinite(value))
            or (self.least is not None and value < self.least)
            or (self.expected and not value)
        )
        if not is_right:
            name = getattr(self.base, "__name__", str(self.base))  # a union does not have a name
            bound = "" if self.least is None else f" of at least {self.least}"
            wanted = self.expected or f"{NAMES.get(self.base, name)}{bound}"
            raise ValueError(f"{value!r}, expected {wanted}")
        if isinstance(value, str) and not is_valid_unicode(value):
            raise ValueError(f"a text that {HALF_PAIR}")

    def convert(self, word: str) -> Any:
        """Convert a word of the command line.

        Raises:
            ValueError: see `check`.
        """
        value: Any = word
        if self.base in (int, float):
            with contextlib.suppress(ValueError):  # `check` names it
                value = self.base(word)
        self._replace(is_list=False, is_optional=False).check(value)
        return value


TEXT = ValueType()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """A declared field, or a further flag that sets it.

    Attributes:
        field: name of the field.
        names: all spellings; empty if it is given by its position, or by Python alone.
        dest: attribute of the parsed arguments; by default the first spelling.
        help: one or two lines.
        metavar: the placeholder of the value in the help; one for each word.
        group: the title of its section in the help.
        is_advanced: only `--help-all` shows it.
        words: the number of words after it, such as `SOME`.
        type: the type of its values.
        read: converts a word; None to convert it by its type.
        default: the value without the flag; `MISSING` if it has to be given.
        bare: the value without a word, of a flag that may have one.
        is_positional: it may be given by its position.
        takes_address: addresses of stores and standard input are allowed.
        excludes: key of flags of which only one may be given.
        unless: the flag (its `dest`) that replaces it: it has to be given only without that one,
            and never with it.
        load: computes the field's value from the flag's, such as the text of a file.
        also: further flags that set the field.
    """

    # More than 15 attributes: they are the parameters of one declaration.
    field: str = ""
    names: tuple[str, ...] = ()
    dest: str = ""
    help: str = ""
    metavar: str | tuple[str, ...] | None = None
    group: str = OPTIONS
    is_advanced: bool = False
    words: str = ONE
    type: ValueType = TEXT
    read: Callable[[str], Any] | None = None
    default: Any = None
    bare: Any = None
    is_positional: bool = False
    takes_address: bool = False
    excludes: str | None = None
    unless: str | None = None
    load: Callable[[Any], Any] | None = None
    also: "tuple[Flag, ...]" = ()

    def __post_init__(self) -> None:
        """Set the default of `dest`."""
        first = self.field if self.is_positional or not self.names else self.names[0]
        object.__setattr__(self, "dest", self.dest or first.lstrip("-").replace("-", "_"))

    @property
    def title(self) -> str:
        """The name in messages."""
        return "/".join(self.names) or str(self.metavar)

    @property
    def is_required(self) -> bool:
        """True if it has to be given."""
        return self.default is dataclasses.MISSING

    @property
    def absent(self) -> Any:
        """The argument without the flag; a list of the field's default is empty."""
        if self.words == SWITCH:
            return False
        return [] if isinstance(self.default, list | tuple) else self.default

    def argument(self, words: Sequence[str]) -> Any:
        """Convert the words after a flag, of all its repetitions if they add up.

        Raises:
            ValueError: a word cannot be used; the message says why.
        """
        if self.words == SWITCH:
            return True
        if self.words == MAYBE and not words:
            return self.bare
        values = [self._convert(word) for word in words]
        if values and isinstance(values[0], tuple) and self.type.is_list:  # NAME,NAME
            return [element for value in values for element in value]
        return values if self.type.is_list else values[-1]

    def _convert(self, word: str) -> Any:
        if self.read is not None:
            return self.read(word)
        if self.type.base is not Path:
            return self.type.convert(word)
        if self.takes_address and ADDRESS.match(word):
            return remote.stage(word)
        check_local(word)
        path = local_path(word)
        is_input = not self.takes_address and self.dest not in OUTPUTS
        if is_input and (str(path) == "-" or streams.descriptor(path) == 0):
            raise ValueError(
                f"{path}: standard input is not read; write it to a file and give that"
            )
        return path


def flag(
    default: Any = dataclasses.MISSING,
    *names: str,
    name: str | None = None,
    is_flag: bool = True,
    least: int | None = None,
    expected: str | None = None,
    **described: Any,
) -> Any:
    """Declare a field with a flag.

    Args:
        default: without it the field has to be given.
        names: further spellings.
        name: the first spelling without its hyphens, if it is not the field's name.
        is_flag: False for a field that Python alone, or `also`, sets.
        least, expected: see `ValueType`.
        described: attributes of `Flag` that do not follow from name, type and default.
    """
    metadata = {FLAG: (names, name, is_flag, {"least": least, "expected": expected}, described)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def file_flag(name: str, load: Callable[[Path], Any], help: str, **described: Any) -> Flag:
    """Return a flag that names a file with the value of a field, or more values of a list."""
    paths = ValueType(Path)
    return Flag(names=(name,), type=paths, load=load, help=help, metavar="FILE", **described)


def options_of(declared: type, omitted: Collection[str] = ()) -> list[Flag]:
    """The flags of a dataclass, without those of some fields."""
    return [
        option
        for each in flags_of(declared)
        if each.field not in omitted
        for option in (each, *each.also)
        if option.names or option.is_positional
    ]


@functools.cache
def flags_of(declared: type) -> tuple[Flag, ...]:
    """The fields of a dataclass that `flag` declares, its own before the inherited ones."""
    hints = typing.get_type_hints(declared)
    fields = [field for field in dataclasses.fields(declared) if FLAG in field.metadata]
    fields.sort(key=lambda field: field.name not in declared.__annotations__)
    return tuple(_flag(field, hints[field.name]) for field in fields)


def _flag(field: dataclasses.Field[Any], hint: Any) -> Flag:
    names, name, is_flag, limits, described = field.metadata[FLAG]
    factory = field.default_factory
    default = field.default if factory is dataclasses.MISSING else factory()
    value_type = _value_type(hint)._replace(**limits)
    name = name or field.name.replace("_", "-")
    facts = {
        "words": SOME if value_type.is_list else SWITCH if value_type.base is bool else ONE,
        "type": value_type,
        **described,
    }
    if default is True:
        name, facts["load"] = f"no-{name}", operator.not_
    if is_flag and not facts.get("is_positional"):
        facts["names"] = (f"-{name}" if len(name) == 1 else f"--{name}", *names)
    elif is_flag:
        facts["names"] = names
    facts["also"] = tuple(
        dataclasses.replace(each, field=field.name, group=facts.get("group", OPTIONS))
        for each in facts.get("also", ())
    )
    return Flag(field=field.name, default=default, **facts)


def _value_type(hint: Any) -> ValueType:
    """The type that an annotation describes."""
    parts = typing.get_args(hint) if typing.get_origin(hint) is not Literal else ()
    is_optional = type(None) in parts
    if is_optional:
        hint = functools.reduce(
            operator.or_, (argument for argument in parts if argument is not type(None))
        )
    is_list = typing.get_origin(hint) in (tuple, list, Sequence)
    if is_list:
        hint = typing.get_args(hint)[0]
    choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    return ValueType(type(choices[0]) if choices else hint, choices, is_list, is_optional)
