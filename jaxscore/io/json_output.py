"""JSON and JSONL that commands write, and sequences whose elements are read when they are needed.

Such sequences keep memory bounded; they are written as lists.
"""

import dataclasses
import json
import math
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TextIO, TypeVar, overload

import numpy as np
import orjson

# Lists of token ids: one id on each line would take five times the space of the text.
TOKEN_IDS = re.compile(r'("(?:prompt_)?token_ids": )(\[(?:[\s\d,\[\]]|null)*\])')
HALF_PAIR = re.compile("[\ud800-\udfff]")  # a lone surrogate, which UTF-8 cannot encode
OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
PLAIN_TYPES = {str, int, bool, type(None)}  # types whose every value is valid JSON
PAUSE = 20.0  # least seconds between two writes of a growing array
SHARE = 30  # and least multiple of the last write's seconds: each writes the whole file

T = TypeVar("T")


def json_number(value: float | None) -> float | str | None:
    """Replace a number that JSON lacks: NaN by null, infinities by "Infinity" and "-Infinity"."""
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def to_json_value(value: Any) -> Any:
    """Convert dataclasses to dicts, tuples to lists, and numbers by `json_number`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: to_json_value(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | LazySequence):
        return [to_json_value(item) for item in value]
    return json_number(value) if isinstance(value, float) else value


def json_text(value: Any) -> str:
    """Return strict, indented JSON with a newline, of values that `to_json_value` takes.

    Lone surrogates, which a user's JSON may contain, are escaped.

    Raises:
        TypeError: a value is neither JSON nor a dataclass.
    """
    return _indented(value) + "\n"


def json_parts(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield `json_text` of an object in parts, of which each has at most one element of a list.

    Raises:
        TypeError: a value is neither JSON nor a dataclass.
    """
    opening = "{"
    for name, value in fields.items():
        yield f"{opening}\n  {_indented(name)}: "
        opening = ","
        if isinstance(value, list | LazySequence) and len(value):
            for index, item in enumerate(value):
                yield f"{',' if index else '['}\n    {_indented(item, 4)}"
            yield "\n  ]"
        else:
            yield _indented(value, 2)
    yield "{}\n" if opening == "{" else "\n}\n"


def _indented(value: Any, margin: int = 0) -> str:
    """Return `json_text` without its newline; all lines but the first begin with a margin."""
    text = json.dumps(to_json_value(value), ensure_ascii=False, allow_nan=False, indent=2)
    return _escape_half_pairs(text).replace("\n", "\n" + " " * margin)


def _on_one_line(text: str) -> str:
    return "".join(text.split()).replace(",", ", ")


def _escape_half_pairs(text: str) -> str:
    return HALF_PAIR.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def json_line(record: Mapping[str, Any]) -> bytes:
    """Return a line of JSONL in UTF-8: float32 in its shortest form, NaN in an array as null.

    Outside arrays, numbers that JSON lacks are written as by `json_number`.

    Raises:
        TypeError: a value cannot be written as JSON.
    """
    value = {key: item if _is_plain(item) else to_json_value(item) for key, item in record.items()}
    try:
        return orjson.dumps(value, option=OPTIONS)
    except TypeError:  # an integer over 64 bits, or a lone surrogate
        lists = {
            key: _to_list(item) if isinstance(item, np.ndarray) else item
            for key, item in value.items()
        }
        text = json.dumps(lists, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return f"{_escape_half_pairs(text)}\n".encode()


def extra_fields(record: Mapping[str, Any], columns: Collection[str]) -> str | None:
    """Return the fields that are not columns of a table as JSON text, or None if all are."""
    others = {name: value for name, value in record.items() if name not in columns}
    return json_line(others).decode().rstrip() if others else None


def _to_list(array: np.ndarray) -> Any:
    """Return the list that orjson writes for an array, so that all records of a file agree."""
    try:
        return orjson.loads(orjson.dumps(np.asarray(array, order="C"), option=OPTIONS))
    except TypeError:  # strings, objects or another byte order
        return to_json_value(array.tolist())


def _is_plain(item: Any) -> bool:
    """Return True if orjson and `to_json_value` serialise a value of a record identically."""
    type_ = type(item)
    if type_ is float:
        return math.isfinite(item)
    if type_ is list:
        return PLAIN_TYPES.issuperset(map(type, item))
    return type_ in PLAIN_TYPES or type_ is np.ndarray


def write_array(file: TextIO, items: Iterable[Mapping[str, Any]], *, is_ascii: bool = True) -> None:
    """Write a JSON array, encoding one object at a time to bound memory.

    Token ids are on one line.

    Args:
        is_ascii: use the published scripts' layout, indented by four and ASCII only; otherwise
            that of `json_text`.
    """
    opening, margin = "[", " " * (4 if is_ascii else 2)
    for item in items:
        text = json.dumps(
            to_json_value(dict(item)), ensure_ascii=is_ascii, allow_nan=False, indent=margin
        )
        text = TOKEN_IDS.sub(lambda match: match[1] + _on_one_line(match[2]), text)
        file.write(f"{opening}\n{margin}" + _escape_half_pairs(text).replace("\n", f"\n{margin}"))
        opening = ","
    file.write("[]\n" if opening == "[" else "\n]\n")


class LazySequence(Sequence[T]):
    """A sequence that computes its elements on access, by `element` of a subclass."""

    def element(self, index: int) -> T:
        """Compute the element at an index from 0."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        indices = range(len(self))[index]
        return self.element(indices) if isinstance(indices, int) else [*map(self.element, indices)]

    def __iter__(self) -> Iterator[T]:
        return map(self.element, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | LazySequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # as of a list


class Lazy(LazySequence[T], Generic[T]):
    """The results of a function of each of some indices."""

    def __init__(self, indices: Sequence[int] | np.ndarray, make: Callable[[int], T]) -> None:
        self._indices, self._make = indices, make

    def __len__(self) -> int:
        return len(self._indices)

    def element(self, index: int) -> T:
        """See `LazySequence.element`."""
        return self._make(int(self._indices[index]))


def where(records: Sequence[T], test: Callable[[T], bool]) -> Lazy[T]:
    """Return the elements that pass a test; only their indices are in memory."""
    indices = array("q", (index for index, record in enumerate(records) if test(record)))
    return Lazy(indices, records.__getitem__)
