"""Reads text, JSON and JSONL of users; every message names file and line."""

import codecs
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from jaxscore.errors import InputError, NoItems
from jaxscore.io.streams import CHUNK, open_binary

UTF8 = "a readable file of UTF-8 text"
MOST_NESTED = 100  # what can be read may still be too deep to be written
TOO_DEEP = f"nested more than {MOST_NESTED} deep"
BYTE_ORDER_MARKS = {  # those of UTF-32 first: one of them starts with one of UTF-16
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
_LONE_CR = re.compile(rb"(?<=\r)(?!\n)")
NULL_PATTERNS = (  # encoding, bytes of an ASCII character, which of them are 0
    ("UTF-16LE", 2, (1,)),
    ("UTF-16BE", 2, (0,)),
    ("UTF-32LE", 4, (1, 2, 3)),
    ("UTF-32BE", 4, (0, 1, 2)),
)
MOST_BYTES = 1 << 30  # of a file that is in memory whole
MOST_SIDE_FILE = 1 << 29  # bytes of a tokenizer.json, say; those of 260,000 tokens have 35 MB
MOST_SETTINGS = 1 << 24  # bytes of a file that people write: a prompt, a template
MOST_LINE = 1 << 28  # bytes; a file of zeros without end is one line
SNIFFED = 8  # bytes at the start of a file that tell its encoding


def read_text(path: Path, expected: str = UTF8, max_bytes: int = MOST_BYTES) -> str:
    r"""Read a UTF-8 file without its byte-order mark, with every newline as `\n`.

    Newlines are universal as in Python's text mode: `\r\n` and `\r` become `\n`. A tokenizer has
    other tokens for them, and editors do not show them. Escaped newlines in strings of JSON stay.

    Args:
        expected: description of a valid file, for the message.
        max_bytes: size limit, also of the memory used, however long the file is.

    Raises:
        InputError: missing, a folder, a device, unreadable, too long, or not UTF-8.
    """
    try:
        with open_binary(path) as file:
            size = path.stat().st_size if path.is_file() else 0
            raw = bytearray()  # in pieces: `read(max_bytes)` takes that much memory at once
            while max(size, len(raw)) <= max_bytes and (piece := file.read(CHUNK)):
                raw += piece
            if max(size, len(raw)) > max_bytes:
                raise InputError(
                    f"{path}: found more than {max_bytes:,} bytes, expected {expected}"
                )
    except (OSError, ValueError) as problem:
        raise unreadable_file(path, problem, expected) from None
    return decode_text(path, raw)


def decode_text(path: Path, raw: bytes | bytearray) -> str:
    """Decode the bytes of a UTF-8 file; see `read_text`.

    Raises:
        InputError: they are not UTF-8.
    """
    check_encoding(path, raw)
    marked = raw.startswith(codecs.BOM_UTF8)
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as problem:
        at = problem.start + len(codecs.BOM_UTF8) * marked
        line, column = raw.count(b"\n", 0, at) + 1, at - raw.rfind(b"\n", 0, at)
        raise _not_utf8(path, line, column) from None


def check_regular(path: Path) -> None:
    """Refuse a pipe or a device among a folder's files: reading it may never end.

    Raises:
        InputError: `path` is one.
    """
    try:
        strange = path.exists() and not path.is_file() and not path.is_dir()
    except (OSError, ValueError):  # reading it reports the reason
        return
    if strange:
        raise InputError(f"{path}: found a pipe or a device, expected a file")


def check_side_file(path: Path, folder: Path) -> None:
    """Refuse a file that a checkpoint folder cannot bring: it may be from a stranger.

    Its text becomes part of prompts, outputs and messages, so a link to another file of this
    machine would publish that file. The hub's cache links files of `models--ORG--NAME/snapshots/`
    to `models--ORG--NAME/blobs/`. Weights may be links to anywhere: numbers alone come from them.

    Args:
        path: a file of the folder that is text.
        folder: the checkpoint.

    Raises:
        InputError: `path` is a link out of the folder, a pipe or a device, or is too long.
    """
    check_regular(path)
    try:
        target, root = path.resolve(), folder.resolve()
        size = target.stat().st_size if target.is_file() else 0
    except (OSError, RuntimeError, ValueError):  # a loop of links; reading it reports the reason
        return
    repositories = [parent.parent for parent in root.parents if parent.name == "snapshots"]
    roots = [root, *(folder / "blobs" for folder in repositories if "--" in folder.name)]
    if not any(target.is_relative_to(allowed) for allowed in roots):
        raise InputError(
            f"{path}: found a link out of the folder, to {target}, expected a file; copy that file "
            "here if you trust who made the folder"
        )
    if size > MOST_SIDE_FILE:
        raise InputError(f"{path}: found {size:,} bytes, expected at most {MOST_SIDE_FILE:,}")


def read_lines(path: Path, *, ends: bool = False) -> Iterator[tuple[int, str]]:
    r"""Read the lines of a UTF-8 file, without a byte-order mark, as (number from 1, text).

    A newline is `\n`, `\r\n` or `\r`, see `read_text`.

    Args:
        ends: keep newlines unchanged, for cells of a table; only `\n` then separates lines.

    Raises:
        InputError: see `read_text`.
    """
    number = 0
    for _, raw in _raw_lines(path, UTF8):
        # `_raw_lines` splits at \n, so the two bytes of a \r\n are together here.
        for line in [raw] if ends else _LONE_CR.split(raw):
            if not line:  # after a \r at the end of the file
                continue
            number += 1
            n_mark = len(codecs.BOM_UTF8) * (number == 1 and line.startswith(codecs.BOM_UTF8))
            try:
                text = line[n_mark:].decode("utf-8")
            except UnicodeDecodeError as problem:
                raise _not_utf8(path, number, n_mark + problem.start + 1) from None
            yield number, text if ends else text.rstrip("\r\n")


def _raw_lines(path: Path, expected: str) -> Iterator[tuple[int, bytes]]:
    try:
        with open_binary(path) as file:
            lines = iter(lambda: file.readline(MOST_LINE + 1), b"")
            for number, raw in enumerate(lines, start=1):
                if number == 1:
                    check_encoding(path, raw)
                if len(raw) > MOST_LINE:
                    raise InputError(
                        f"{path}:{number}: found a line of more than {MOST_LINE:,} bytes, "
                        f"expected {expected}"
                    )
                yield number, raw
    except (OSError, ValueError) as problem:
        raise unreadable_file(path, problem, expected) from None


def _not_utf8(path: Path, line: int, column: int) -> InputError:
    return InputError(
        f"{path}:{line}: byte {column} is not UTF-8; save the file as UTF-8 (in Excel: CSV UTF-8)"
    )


def check_encoding(path: Path, start: bytes | bytearray) -> None:
    """Refuse UTF-16 and UTF-32 by name, with or without a byte-order mark.

    Args:
        start: the first bytes of the file.

    Raises:
        InputError: with the command that converts the file.
    """
    if (encoding := _wide_encoding(start[:SNIFFED])) is not None:
        raise InputError(
            f"{path}: found {encoding}, expected UTF-8; convert it: "
            f"iconv -f {encoding} -t UTF-8 {shlex.quote(str(path))} > NEW"
        )


def _wide_encoding(start: bytes | bytearray) -> str | None:
    """Name of the UTF-16 or UTF-32 encoding that a file starts in, or None if it is neither."""
    for name, marks in BYTE_ORDER_MARKS.items():
        if start.startswith(marks):
            return name
    nulls = [byte == 0 for byte in start]
    for name, period, zeros in NULL_PATTERNS:
        if len(start) >= 2 * period and nulls == [k % period in zeros for k in range(len(start))]:
            return name
    return None


def unreadable_file(path: Path, problem: Exception, expected: str) -> InputError:
    """Return the error for a file that cannot be read; names a missing folder.

    Args:
        problem: an `OSError`, or a `ValueError` for a name with a zero byte or a lone
            surrogate.
        expected: description of a valid file.
    """
    reason = getattr(problem, "strerror", None) or problem
    if isinstance(problem, FileNotFoundError) and not path.parent.exists():
        missing = next(level for level in (*path.parents[-2::-1], path) if not level.exists())
        reason = f"the folder {missing} is missing"
    return InputError(f"{path}: {reason}; expected {expected}")


def read_json(path: Path, expected: str) -> Any:
    """Read a file with one JSON value; NaN and infinities are accepted, as Python writes them.

    Args:
        expected: description of a valid value, for the message.

    Raises:
        InputError: see `read_text` and `parse_json`, or the value is nested too deeply.
    """
    value = parse_json(read_text(path, expected), path, expected)
    if nests_beyond(value, MOST_NESTED):
        raise InputError(f"{path}: not usable JSON ({TOO_DEEP})")
    return value


def parse_json(text: str, path: Path, expected: str) -> Any:
    """Parse a file's text as one JSON value.

    Raises:
        InputError: it is not JSON; has a number of thousands of digits or thousands of brackets.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        several = problem.msg == "Extra data" and text.lstrip().startswith("{")
        actual = f"not JSON at column {problem.colno} ({problem.msg})"
        if several:
            actual = "found more than one JSON value (JSONL?)"
        raise InputError(f"{path}:{problem.lineno}: {actual}; expected {expected}") from None
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path}: not usable JSON ({problem})") from None


def nests_beyond(value: Any, depth: int) -> bool:
    """Return True if lists and objects are nested more than `depth` deep."""
    if not isinstance(value, (dict, list)):
        return False
    entries = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(nests_beyond(entry, depth - 1) for entry in entries)


def read_array(path: Path, *, lone_object: bool = False) -> list[dict[str, Any]]:
    """Read the objects of a JSON array.

    Args:
        lone_object: read a file that is one object as an array of it.

    Raises:
        InputError: the file cannot be read or holds no array of objects.
    """
    expected = "an array of objects: brackets around them and commas between"
    text = read_text(path)
    if not text.strip():
        raise NoItems(f"{path}: the file is empty, expected a JSON array of objects")
    value = parse_json(text, path, expected)
    if lone_object and isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise InputError(f"{path}: found {json_kind(value)}, expected a JSON array of objects")
    for number, item in enumerate(value, start=1):
        if not isinstance(item, dict):
            raise InputError(f"{path}: item {number} is {json_kind(item)}, expected an object")
        if nests_beyond(item, MOST_NESTED):
            raise InputError(f"{path}: item {number} is nested more than {MOST_NESTED} deep")
    return value


def check_unicode(value: Any, where: str) -> None:
    """Refuse lone surrogates in the strings of a JSON value.

    Raises:
        InputError: a string has one.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(
            f"{where}: a string contains a lone surrogate (invalid Unicode); "
            "write the character itself in UTF-8"
        ) from None


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the objects of a JSONL file, as (line number, object); skip empty lines.

    Raises:
        InputError: see `read_lines`; a line is not a JSON object; the file is empty.
    """
    n_objects = 0
    for number, text in read_lines(path):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        if not n_objects and text.lstrip().startswith("["):
            raise InputError(
                f"{where}: found a JSON array, expected JSONL: one object a line, "
                "without brackets around them or commas between"
            )
        if not n_objects and path.suffix.lower() in TEXTS and not text.lstrip().startswith("{"):
            raise InputError(
                f"{where}: found plain text, expected one JSON object a line, such as "
                '{"continuation": "…"}'
            )
        n_objects += 1
        yield number, _parse_object(text, where)
    _check_found(path, n_objects)


def read_jsonl_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a JSONL file that a command wrote; several times as fast as `read_jsonl`.

    Deep nesting is accepted, since the records are not written again.

    Raises:
        InputError: the file cannot be read or is empty, or a line is not a JSON object.
    """
    n_objects = 0
    for number, line in _raw_lines(path, "a readable file"):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            n_objects += 1
            where = f"{path}:{number}"
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError as problem:
                raise InputError(
                    f"{where}: not JSON ({problem}); expected one object a line"
                ) from None
            yield number, _check_object(value, where)
    _check_found(path, n_objects)


def _check_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: found {json_kind(value)}, expected an object")
    return value


def _check_found(path: Path, n_objects: int) -> None:
    if not n_objects:
        raise NoItems(f"{path}: the file is empty, expected one JSON object a line")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


TEXTS = (".txt", ".md", ".text")  # endings of plain texts
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
# Without NaN and infinities. Made once: making it takes as long as reading a short line.
STRICT = json.JSONDecoder(parse_constant=_refuse)


def _parse_object(text: str, where: str) -> dict[str, Any]:
    try:
        value = STRICT.decode(text)
    except json.JSONDecodeError as problem:
        raise InputError(
            f"{where}: not JSON at column {problem.colno} ({problem.msg}); "
            "expected one object a line"
        ) from None
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{where}: not usable JSON ({problem})") from None
    item = _check_object(value, where)
    if nests_beyond(value, MOST_NESTED):
        raise InputError(f"{where}: not usable JSON ({TOO_DEEP})")
    if _HALF_PAIR.search(text):  # the line itself is UTF-8, so only an escape can be one
        check_unicode(value, where)
    return item


def require_field(
    item: dict[str, Any], name: str, field_types: type | tuple[type, ...], where: str
) -> Any:
    """Return a required field of one of these types.

    Raises:
        InputError: it is missing or of another type; lists the fields that exist.
    """
    value = item.get(name)
    allowed = field_types if isinstance(field_types, tuple) else (field_types,)
    if int in allowed and float not in allowed and isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas makes a column with a missing value float
    good = isinstance(value, allowed) and (not isinstance(value, bool) or bool in allowed)
    if good and name in item:
        return value
    expected = " or ".join(NAMES[type_] for type_ in allowed)
    if name in item:
        raise InputError(f'{where}: field "{name}" is {json_kind(value)}, expected {expected}')
    raise InputError(
        f'{where}: no field "{name}", expected {expected}; '
        f"there are {', '.join(map(repr, sorted(item))) or 'none'}"
    )


def check_column_names(names: Sequence[str], where: str) -> None:
    """Refuse a table with two columns of one name.

    Raises:
        InputError: naming it.
    """
    if repeated := [name for k, name in enumerate(names) if name in names[:k]]:
        raise InputError(f"{where}: two columns have the name {repeated[0]!r}; rename one of them")


NAMES: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def json_kind(value: Any) -> str:
    """Return the name of a value's type for messages."""
    return NAMES.get(type(value), type(value).__name__)
