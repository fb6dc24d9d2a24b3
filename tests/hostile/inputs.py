"""Hostile bytes, values and texts, and what every reader must make of them."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from jaxscore.errors import LONGEST, UNPRINTABLE, InputError

# The same examples every time; a folder for all of them, since a reader sees one file only.
HOSTILE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

TEXTS = (
    "",
    "\x1b[31mred\x1b[0m \x9b2J",
    "\u202eevil\u2066",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "![a](http://a.no) [b](javascript:alert(1)) www.c.no d@e.no <http://f.no>",
    "a | b || c \\| d \\",
    "`x` ``` *y* __z__ ~~w~~ $v$ # u",
    "\n\n# Overall 9.99\n\n| a | b |\n|---|---|\n- x\r\n---\r1. y\u2028z",
    "../../../etc/passwd",
    "/etc/passwd",
    "C:\\CON",
    "NUL",
    "a\0b",
    "x" * 5000,
    "{question.__class__} {0} %s %n ${x}",
    "__import__('os').system('exit 1')",
    "\ufeff\u200b\u0301",
)
HALF_PAIR = "\ud83d"  # no stream of UTF-8 takes it

texts = st.sampled_from(TEXTS) | st.text(max_size=20)
any_texts = texts | st.just(HALF_PAIR)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**63, 1e308, -0.0])
    | st.floats()
    | any_texts
)
values = st.recursive(
    scalars,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(any_texts, parts, max_size=4),
    max_leaves=10,
)

DEEP = 5000
FILES = (
    b"",
    b"\n\r\n \t",
    b"\0",
    b"\xef\xbb\xbf",
    b"\xff\xfe{\0}\0",
    b"\xef\xbb\xbf[\xff]",
    b"[" * DEEP,
    b'{"a": ' * DEEP,
    b"[" * 150 + b"]" * 150,
    b'[{"a": ' + b"[" * 150 + b"]" * 150 + b"}]",
    b'{"a": 1, "a": 2}',
    b'{"a": 1e999, "b": -1e999}',
    b'{"a": NaN, "b": [Infinity]}',
    b'{"a": ' + b"9" * DEEP + b"}",
    b'{"a": "\\ud800"}',
    b'{"\\udc00": "\\u0000"}',
    b'{"a": "\0"}',
    b'{"a": 1}\r{"b": 2}\r\n{"c": 3}\n\xef\xbb\xbf{"d": 4}',
    b'{"a": "' + b"x" * 1_000_000 + b'"}',
    b"[" + b"{}," * 20_000 + b"{}]",
    b"a: &a [*a]",
    b"%YAML 99999999999999999999.1\n---\na",
    b'"\\UFFFFFFFF"',
    b'!!int ""',
    b"!!python/object/apply:os.system ['exit 1']",
)


def damaged(good: bytes) -> st.SearchStrategy[bytes]:
    """The bytes with some in the middle replaced by others."""
    place = st.integers(0, len(good))
    return st.builds(
        lambda start, length, new: good[:start] + new + good[start + length :],
        place,
        st.integers(0, 30) | place,
        st.binary(max_size=8) | texts.map(lambda text: text.encode()),
    )


def contents(good: bytes) -> st.SearchStrategy[bytes]:
    """Of files: any bytes, any JSON, and a good file that is damaged. `FILES` are for a loop."""
    written = values.map(lambda value: json.dumps(value).encode())
    return st.binary(max_size=60) | written | damaged(good)


def fields(good: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The object with any values in place of some of its own, and some left out."""
    changed = st.dictionaries(st.sampled_from(sorted(good)) | texts, values, max_size=3)
    left_out = st.sets(st.sampled_from(sorted(good)), max_size=1)
    return st.builds(
        lambda new, gone: {k: v for k, v in (good | new).items() if k not in gone},
        changed,
        left_out,
    )


def outcome(read: Callable[[], Any], *names: object) -> Any:
    """What a reader gives; its refusal where it refuses, which must be one line that can be shown
    and name the file. Everything else it raises, a warning too, fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return read()
        except InputError as problem:
            assert_told(problem, *names)
            return problem


def assert_told(problem: InputError, *names: object) -> None:
    message = str(problem)
    assert not UNPRINTABLE.search(message)
    assert len(message) <= LONGEST + 40
    for name in names:
        assert str(name) in message


def refused(read: Callable[[], Any], *names: object) -> str:
    """The message of a reader that must refuse."""
    with pytest.raises(InputError) as caught:
        read()
    assert_told(caught.value, *names)
    return str(caught.value)


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
