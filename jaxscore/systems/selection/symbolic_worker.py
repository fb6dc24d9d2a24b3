"""The process that compares LaTeX: `symbolic.py` starts it, and ends it when it hangs.

Run by path with the seconds that a question may take, and the library: sympy or math_verify. It
imports nothing of jaxscore, so that it starts fast. A question is a line of JSON on stdin, its
answer a line on stdout:

    {"check": TEXT}          {"known": can the library read it, and SymPy simplify it}
    {"compare": [A, B]}      {"equal": sympy: is |simplify(A - B)| < 0.001}

It writes one line unasked when the library is loaded, or was not: {"missing": null or WHY}.
"""

import functools
import json
import os
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MEMORY = 2 << 30  # bytes of address space; a power tower asks for much more
TOLERANCE = 0.001  # the published one: 0.577 is 1/sqrt(3)
_SHARED = runpy.run_path(str(Path(__file__).parents[2] / "io" / "child_process.py"))
_confine = functools.partial(_SHARED["confine"], MEMORY)


def main() -> None:
    limit, library = float(sys.argv[1]), LIBRARIES[sys.argv[2]]
    # What a library prints must not come between our lines.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("ignore")

    try:
        library.parsed("1")  # loads the grammar too
    except Exception as problem:
        _reply(replies, {"missing": str(problem)})
        return
    _reply(replies, {"missing": None})
    _confine()  # from here on, since the import may write compiled modules
    for line in sys.stdin:
        with _SHARED["alarm"](_SHARED["ORPHANED"] * limit):
            answer = _answer(library, json.loads(line))
        _reply(replies, answer)


def _reply(replies: Any, answer: dict[str, Any]) -> None:
    replies.write(json.dumps(answer) + "\n")
    replies.flush()


def _answer(library: "Library", question: dict[str, Any]) -> dict[str, bool]:
    if "check" in question:
        return {"known": library.is_readable(question["check"])}
    return {"equal": library.equal(*question["compare"])}


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    # The parser builds the expression from its own syntax tree; only digits reach `sympify`,
    # which, as `parse_expr`, runs what it is given as Python.
    from sympy.parsing.latex import parse_latex

    return parse_latex(text)


def _is_readable(text: str) -> bool:
    from sympy import simplify

    try:
        parsed = _parsed(text)
    except Exception:
        return False
    try:
        simplify(parsed)
    except (MemoryError, RecursionError):
        return False
    except Exception:  # it may still cancel against another
        return True
    return True


def _equal(first: str, second: str) -> bool:
    from sympy import Abs, simplify

    try:
        return bool(Abs(simplify(_parsed(first) - _parsed(second))) < TOLERANCE)
    except Exception:  # expressions that cannot be subtracted or compared are not equal
        return False


@functools.lru_cache(maxsize=1024)
def _verifiable(text: str) -> list[Any]:
    # Only LaTeX: the reader of plain expressions runs them as Python. The parent limits the time.
    from math_verify import LatexExtractionConfig, parse

    reader = [LatexExtractionConfig()]
    read: list[Any] = parse(f"${text}$", reader, fallback_mode="no_fallback", parsing_timeout=None)
    return read


def _is_verifiable(text: str) -> bool:
    return bool(_verifiable(text))


def _verified(gold: str, answer: str) -> bool:
    from math_verify import verify

    return bool(verify(_verifiable(gold), _verifiable(answer), timeout_seconds=None))


class Library(NamedTuple):
    """The functions of a library: read a text, check that it can be used, compare two."""

    parsed: Callable[[str], Any]
    is_readable: Callable[[str], bool]
    equal: Callable[[str, str], bool]


LIBRARIES = {
    "sympy": Library(_parsed, _is_readable, _equal),
    "math_verify": Library(_verifiable, _is_verifiable, _verified),
}

if __name__ == "__main__":
    main()
