r"""Numbers as people and models write them, in text and in LaTeX, as exact fractions.

    1,000   1{,}000   1\,000   1 000   1'000      thousands
    3/4   \frac{3}{4}   \frac34   2 1/2           fractions, mixed numbers
    .5   1.5e-3   2.5 \times 10^3   10^{-3}       decimals, powers
    -5   - 5   -3   $18   50%   50\%              signs, currencies, percent

No pattern tries a character of a text more than a bounded number of times.
"""

import collections
import re
from fractions import Fraction
from typing import NamedTuple

LONGEST = 1000  # characters of a number; a longer one is text
MOST_DIGITS = 1000  # of a power that is written out
_DIGITS = r"[0-9]+"
# The separator of thousands is the same throughout a number.
_SEPARATOR = (
    r",\\!|,|\{,\}|\\[,;:! ]|\{\\,\}|\\thinspace\s?|~|['\u2019_]|[ \u00a0\u2007\u2009\u202f]"
)


def _decimal(name: str) -> str:
    """Return the pattern of a decimal, with a group for the separator of its thousands."""
    return (
        rf"(?:(?:[0-9]{{1,3}}(?P<{name}>{_SEPARATOR})[0-9]{{3}}(?:(?P={name})[0-9]{{3}})*+(?![0-9])"
        rf"|[0-9]++)(?:\.[0-9]++)?+|\.[0-9]++)"
    )


_EXPONENT = r"\^\s?(?:\{\s?(?P<braced>[-+\u2212]?[0-9]{1,4})\s?\}|(?P<bare>[-+\u2212]?[0-9]{1,4}))"
_RAISED = r"[\u207b\u2070\xb9\xb2\xb3\u2074-\u2079]"  # superscripts
_UNSIGNED = rf"""(?>
    (?:[$\u20ac\xa3\xa5]|\\\$)?\s?
    (?:
        (?:(?P<mixed>[0-9]++)\s?)?
        \\[dtc]?frac\s?(?:
            \{{\s?(?P<top>[-\u2212]?{_decimal("t")})\s?\}}\s?\{{\s?(?P<bottom>{_decimal("b")})\s?\}}
            | (?P<top1>[0-9])\s?(?:(?P<bottom1>[0-9])|\{{\s?(?P<bottom2>[0-9]++)\s?\}})
        )
      | (?P<whole>[0-9]++)[ ](?P<over>[0-9]++)/(?P<under>[0-9]++)(?![0-9/])
      | (?P<base>{_DIGITS}){_EXPONENT}
      | (?P<number>{_decimal("n")})
        (?:
            [eE](?P<e>[-+\u2212]?[0-9]{{1,4}})(?![\w.])
          | \s?(?:\\times|\\cdot|[\u00d7\u00b7*x])\s?10\s?
            (?:{_EXPONENT.replace("<b", "<times_b")}|(?P<raised>{_RAISED}{{1,5}}))
          | \s?/\s?(?P<divisor>{_decimal("d")})(?![0-9/])
        )?
        (?!\s?\^(?!\{{?\\circ))
    )
    (?P<percent>\s?\\?%)?
)"""
_NUMBER = re.compile(_UNSIGNED, re.VERBOSE)
# In a text a minus belongs to the number if nothing before it can be subtracted from; with a space
# after it, if a word, a colon or an equals sign is before it. Factors (2x, 2\pi) and divisors are
# left out.
_IN_TEXT = re.compile(
    rf"""
    (?<![A-Za-z0-9^.\\/])(?<!\w_)(?<![\w)}}\]]\*)
    (?P<sign>(?<![\w.)}}\]])[-\u2212](?![ ])|(?:(?<=[^\W\d_]{{2}}[ ])|(?<=[:=][ ]))[-\u2212][ ])?
    {_UNSIGNED}(?![abcdefijknopqrtuvwxyz](?![A-Za-z]))
    (?!\s?\\(?:pi|sqrt|[dtc]?frac|times|cdot|left|infty|binom|theta|alpha|ln|log|sin|cos|tan)(?![a-z]))
    """,
    re.VERBOSE,
)
_NAME = re.compile(r"\s*[A-Za-z](?:_\w|\([a-z]\))?\s*=\s*(?!.*=)", re.DOTALL)  # x = 5
_UNIT = re.compile(
    r"\\(?:text|mathrm|textbf|mathbf|operatorname)\s?\{[^{}]*+\}|\s\([^()]*+\)"
    r"|\^?\{?\\circ\}?|\\[,;:! $]"
)
_MATHEMATICS = re.compile(r"[0-9\\^_=+*/{}\[\]<>()]|(?<![A-Za-z])-|-(?![A-Za-z])")
_SUPERSCRIPTS = str.maketrans(
    "\u207b\u2070\xb9\xb2\xb3\u2074\u2075\u2076\u2077\u2078\u2079", "-0123456789"
)


class Number(NamedTuple):
    """A number of a text.

    Attributes:
        value: exact; of 50% it is 50.
        is_percent: a percent sign follows.
        is_quotient: it is written as a fraction.
    """

    value: Fraction
    is_percent: bool = False
    is_quotient: bool = False


def number_of(text: str) -> Number | None:
    """Return the number that a text is, or None if it is something else."""
    text = text.strip()
    if len(text) > LONGEST:
        return None
    negative = text[:1] in ("-", "\u2212")
    match = _NUMBER.fullmatch(text.lstrip("-\u2212+ ") if negative or text[:1] == "+" else text)
    return None if match is None else _value(match, negative=negative)


def first_number(text: str) -> str | None:
    """Return the first number of a text as it is written, or None if it has none."""
    return next((match.group().strip() for match in _IN_TEXT.finditer(text)), None)


def last_number(text: str) -> str | None:
    """Return the last number of a text as it is written, or None if it has none."""
    last = collections.deque(_IN_TEXT.finditer(text), maxlen=1)
    return last[0].group().strip() if last else None


def without_name(text: str) -> str:
    """Return the right side of `x = 5` or `f(x) = 5`; other texts as they are."""
    match = _NAME.match(text)
    return text if match is None else text[match.end() :]


def only_number(text: str) -> str | None:
    r"""Return the number of a text that has a unit or a name besides: `x = 18 \text{ cm}`."""
    text = without_name(text)
    match = _IN_TEXT.search(text)
    if match is None or _MATHEMATICS.search(_UNIT.sub("", text[: match.start()])):
        return None
    rest = _UNIT.sub("", text[match.end() :])
    return None if _MATHEMATICS.search(rest) else match.group().strip()


def _value(match: re.Match[str], *, negative: bool) -> Number | None:
    try:
        value, is_quotient = _fraction(match)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return Number(-value if negative else value, bool(match["percent"]), is_quotient)


def _fraction(match: re.Match[str]) -> tuple[Fraction, bool]:
    """Return the value without the sign, and True if it is written as a fraction.

    Raises:
        ValueError: it has too many digits.
        ZeroDivisionError: the denominator is 0.
    """
    if (digits := match["over"]) is not None:
        return int(match["whole"]) + Fraction(int(digits), int(match["under"])), True
    if (top := match["top"] or match["top1"]) is not None:
        bottom = match["bottom"] or match["bottom1"] or match["bottom2"]
        return int(match["mixed"] or 0) + _plain(top) / _plain(bottom), True
    if (base := match["base"]) is not None:
        return _power(int(base), match["braced"] or match["bare"]), False
    value = _plain(match["number"])
    if (divisor := match["divisor"]) is not None:
        return value / _plain(divisor), True
    exponent = match["e"] or match["times_braced"] or match["times_bare"] or match["raised"]
    return (value if exponent is None else value * _power(10, exponent)), False


def _plain(digits: str) -> Fraction:
    negative = digits[0] in "-\u2212"
    value = Fraction(re.sub(r"[^0-9.]", "", digits))
    return -value if negative else value


def _power(base: int, exponent: str) -> Fraction:
    power = int(exponent.translate(_SUPERSCRIPTS).replace("\u2212", "-"))
    if len(str(base)) * abs(power) > MOST_DIGITS:
        raise ValueError("the power has too many digits")
    return Fraction(base) ** power
