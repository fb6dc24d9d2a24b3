"""JSON and JSONL that commands write."""

import contextlib
import dataclasses
import json
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import orjson

from jaxscore.io.atomic import atomic
from jaxscore.io.streams import is_stream


def json_number(value: float | None) -> float | str | None:
    """What stands for a number in JSON, which has neither NaN nor Infinity: null, "Infinity"."""
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def json_safe(value: Any) -> Any:
    """`json_number` throughout a structure."""
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_safe(item) for item in value]
    return json_number(value) if isinstance(value, float) else value


HALF_PAIR = re.compile("[\ud800-\udfff]")  # a half surrogate pair, which UTF-8 does not have


def to_json_value(value: Any) -> Any:
    """What JSON has: a dataclass becomes a dict of its fields, a tuple a list; see `json_number`.

    What is none of these stays as it is.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            one.name: to_json_value(getattr(value, one.name)) for one in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    return json_number(value) if isinstance(value, float) else value


def json_text(value: Any) -> str:
    """Strict JSON, indented, with a line end; a dataclass is an object of its fields.

    Numbers that JSON does not have stand as in `json_number`, and a half surrogate pair, which
    a user's JSON may hold and UTF-8 does not have, as its escape.

    Raises:
        TypeError: something in it is neither JSON's nor a dataclass.
    """
    text = json.dumps(to_json_value(value), ensure_ascii=False, allow_nan=False, indent=2)
    return HALF_PAIR.sub(lambda found: f"\\u{ord(found.group()):04x}", text) + "\n"


OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
SAFE = {str, int, bool, type(None)}  # types whose values JSON has, all of them
WRITTEN = SAFE | {np.ndarray}  # and those that orjson writes as they should stand


def json_line(record: Mapping[str, Any]) -> bytes:
    """An object with a line end, in UTF-8; float32 in its shortest form, NaN of an array as null.

    Numbers that JSON does not have stand as in `json_number`, outside arrays.

    Raises:
        TypeError: something in it has no JSON.
    """
    value = {
        key: item if type(item) in WRITTEN or _is_safe(item) else json_safe(item)
        for key, item in record.items()
    }
    try:
        return orjson.dumps(value, option=OPTIONS)
    except TypeError:  # a whole number beyond 64 bits: only Python's own library writes it
        lists = {
            key: _listed(item) if isinstance(item, np.ndarray) else item
            for key, item in value.items()
        }
        text = json.dumps(lists, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return f"{text}\n".encode()


def extra(record: Mapping[str, Any], columns: Collection[str]) -> str | None:
    """The fields of a record that are none of a table's columns, as JSON text; None without one."""
    others = {name: value for name, value in record.items() if name not in columns}
    return json_line(others).decode().rstrip() if others else None


def _listed(array: np.ndarray) -> Any:
    """A list of the numbers that the other records of a file have for such an array."""
    try:
        return orjson.loads(orjson.dumps(np.asarray(array, order="C"), option=OPTIONS))
    except TypeError:  # of texts, objects or another byte order
        return json_safe(array.tolist())


def _is_safe(item: Any) -> bool:
    """Whether orjson writes a value of another type than `WRITTEN` as it should stand."""
    if type(item) is float:
        return math.isfinite(item)
    return type(item) is list and SAFE.issuperset(map(type, item))


PAUSE = 20.0  # seconds between two writings, at least
SHARE = 30  # and at least this many times what the last one took: each writes the whole file


class GrowingArray:
    """Writes an array of objects again and again, each time with more of them.

    A run that ends early, whatever ends it, leaves the last whole file that was written.

    Example:
        >>> growing = GrowingArray(path, lambda: records)
        >>> with growing.open():
        ...     for result in results:
        ...         records.append(result)
        ...         growing.offer()

    Attributes:
        kept: whether a run that has not ended well has written something to the file.
    """

    def __init__(self, path: Path, finished: Callable[[], Iterable[dict[str, Any]]]) -> None:
        """`finished` gives all objects that are finished by now."""
        self.path, self._finished = path, finished
        self.kept = self._has_more = False
        # A stream is written once, at the end.
        self._due = math.inf if is_stream(path) else time.monotonic() + PAUSE

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Write everything when the block ends, whether well or not.

        Raises:
            InputError: as `io.atomic`, which knows at once that a place cannot be written.
        """
        with atomic(self.path) as file:
            try:
                yield
                write_array(file, self._finished())
            except BaseException:  # out of memory, interrupted: what was computed stays
                if self._has_more and not is_stream(self.path):
                    self._write()
                raise

    def offer(self) -> None:
        """More is finished than before: write it, unless the last writing was just now."""
        self._has_more = True
        if time.monotonic() >= self._due:
            self._write()

    def _write(self) -> None:
        started = time.monotonic()
        with atomic(self.path) as file:
            write_array(file, self._finished())
        self.kept, self._has_more = True, False
        ended = time.monotonic()
        self._due = ended + max(PAUSE, SHARE * (ended - started))


def write_array(file: TextIO, items: Iterable[dict[str, Any]]) -> None:
    """The published scripts' layout: four blanks, other scripts than ASCII escaped.

    One object after the other is made text, never all of them at once.
    """
    opening = "["
    for item in items:
        text = json.dumps(json_safe(item), allow_nan=False, indent=4)
        file.write(f"{opening}\n    " + text.replace("\n", "\n    "))
        opening = ","
    file.write("[]\n" if opening == "[" else "\n]\n")
