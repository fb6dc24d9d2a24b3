r"""One spelling for a math answer, so that equal answers are equal strings.

The rules are those of the published self-certainty scripts (arXiv 2502.18581), which took them
from the MATH benchmark's answer comparison (arXiv 2103.03874). Some lose information: a mixed
number `3\frac{1}{2}` becomes 31/2, and `\frac{x+1}{2}` becomes x+1/2. They are kept, because
published votes were counted so. Every rule takes time linear in the answer's length.
"""

import ast
import bisect
import contextlib
import operator
import re
import warnings
from collections.abc import Callable

# What people and models write for a LaTeX command.
SYMBOLS = str.maketrans(
    {
        "π": r"\pi", "√": r"\sqrt", "∞": r"\infty", "≤": r"\leq", "≥": r"\geq", "≠": r"\neq",
        "→": r"\rightarrow", "←": r"\leftarrow", "∑": r"\sum", "∫": r"\int", "∂": r"\partial",
        "∧": r"\land", "≈": r"\approx", "∈": r"\in", "⊂": r"\subset", "⊆": r"\subseteq",
        "⊇": r"\supseteq", "⊄": r"\not\subset", "⊕": r"\oplus", "⊗": r"\otimes",
    }
)  # fmt: skip

# In this order: a pair of backslashes is one that JSON escaped twice; degrees have no unit here.
BEFORE_UNITS = (
    ("\n", ""), (r"\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"),
    (r"\left", ""), (r"\right", ""), (r"^{\circ}", ""), (r"^\circ", ""),
)  # fmt: skip
AFTER_UNITS = ((r"\%", ""), (" .", " 0."), ("{.", "{0."))
UNIT = r"\text{ "  # the blank is what tells a unit from a word that is the answer
FRACTION = r"\frac{"
WHOLE_QUOTIENT = re.compile("(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)")

LONGEST = 1000  # characters
POWER_BITS = 4096  # of a whole-number power; above it the answer stays text

Number = int | float
BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class _Irregular(Exception):
    """A rule met what it was not made for; the answer then stays as it was before the rules."""


def sanitise(answer: str) -> str:
    r"""Return the one spelling of a math answer.

    `$42$`, `42.0` and `42` are "42"; `\dfrac12`, `1/2`, `.5` and `0.5` are "0.5"; `3 \%` is "3";
    `1,000` is "1000"; `π/2` and `\frac{\pi}{2}` are `\pi/2`.
    """
    text = answer.strip().replace("$", "").strip().replace(",", "").translate(SYMBOLS)
    with contextlib.suppress(_Irregular):
        text = _regular(text)
    if "frac" in text:
        text = _divisions(text)
        quotient = arithmetic_value(text)
        text = text if quotient is None else str(quotient)
    return _number(text).replace(" ", "")


def _regular(text: str) -> str:
    for old, new in BEFORE_UNITS:
        text = text.replace(old, new)
    text, *units = text.split(UNIT)
    if len(units) > 1:
        raise _Irregular
    for old, new in AFTER_UNITS:
        text = text.replace(old, new)
    if text.startswith("."):
        text = f"0{text}"
    name, *values = text.split("=")
    if len(values) == 1 and len(name) <= 2:  # x = 5, not 2x+1 = 5
        text = values[0]
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    if text == "0.5":
        text = r"\frac{1}{2}"
    if quotient := WHOLE_QUOTIENT.fullmatch(text):
        text = rf"\frac{{{quotient[1]}}}{{{quotient[2]}}}"
    return text


def _braced_roots(text: str) -> str:
    r"""Return a text with `\sqrt{3}` for `\sqrt3`."""
    head, *tails = text.split(r"\sqrt")
    if "" in tails:  # nothing under the root
        raise _Irregular
    braced = (tail if tail[0] == "{" else f"{{{tail[0]}}}{tail[1:]}" for tail in tails)
    return r"\sqrt".join([head, *braced])


def _braced_fractions(text: str) -> str:
    r"""Return a text with `\frac{1}{2}` for `\frac12` and `\frac1{2}`, in all fractions or none."""
    head, *tails = text.split(r"\frac")
    out = [head]
    for tail in tails:
        if not tail:
            raise _Irregular
        if tail[0] == "{":
            out.append(tail)
        elif len(tail) == 1:
            return text
        elif tail[1] == "{":
            out.append(f"{{{tail[0]}}}{tail[1:]}")
        else:
            out.append(f"{{{tail[0]}}}{{{tail[1]}}}{tail[2:]}")
    return r"\frac".join(out)


def _divisions(text: str) -> str:
    r"""Return a text with `a/b` for `\frac{a}{b}`, where neither part has a closing brace.

    Both parts end at the next closing brace, so all braces are located once: a regular expression
    would search for them again from every `\frac{`.
    """
    closing = [at for at, character in enumerate(text) if character == "}"]

    def part_end(start: int) -> int | None:
        """Return the end of the part that starts here; None if it is empty or open."""
        rank = bisect.bisect_left(closing, start)
        return closing[rank] if rank < len(closing) and closing[rank] > start else None

    out, done = [], 0
    start = text.find(FRACTION)
    while start >= 0:
        top = start + len(FRACTION)
        top_end = part_end(top)
        if top_end is not None and text.startswith("{", top_end + 1):
            bottom = top_end + 2
            bottom_end = part_end(bottom)
            if bottom_end is not None:
                out += [text[done:start], text[top:top_end], "/", text[bottom:bottom_end]]
                done = bottom_end + 1
        start = text.find(FRACTION, max(done, start + 1))
    return "".join([*out, text[done:]])


def _number(text: str) -> str:
    """Return a number as Python prints it, whole ones without a point; other text as it is."""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else str(number)


def arithmetic_value(text: str) -> float | None:
    """Evaluate a text of numbers, `+ - * / // % **` and parentheses, as Python does.

    None for everything else, and for a value outside of a float's range.
    """
    if len(text) > LONGEST:
        return None
    try:
        with warnings.catch_warnings():  # for "1/2or3", which is refused below
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval")
        return float(_value(tree.body))
    except (ValueError, TypeError, ArithmeticError, SyntaxError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return +_value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return BINARY[type(op)](_value(left), _value(right))
    raise ValueError(f"{type(node).__name__} is not arithmetic")


def _power(base: Number, exponent: Number) -> Number:
    bits = base.bit_length() if isinstance(base, int) and isinstance(exponent, int) else 0
    if bits * abs(exponent) > POWER_BITS:  # 9**9**9 would take hours
        raise OverflowError("the power is too long to write out")
    return base**exponent
