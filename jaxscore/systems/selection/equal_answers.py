r"""The comparison of answers: numbers, lists, words and expressions.

| answers | are equal if |
|---|---|
| numbers | they have the same exact value: 3/4 and 0.75, 1{,}000 and 1000, 50% and 50 or 0.5 |
| lists, tuples, sets | their entries are; (1,2) in this order, 1,2 and \{1,2\} in any |
| words | they are the same without case, articles and markup |
| expressions | Math-Verify finds so: x+1 and 1+x, \sqrt8 and 2\sqrt2, intervals, matrices |

An answer has one `spelling`; answers of one spelling are equal without further comparison.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

from jaxscore.systems.selection.numbers_in_text import (
    Number,
    number_of,
    only_number,
    without_name,
)
from jaxscore.text.whole_words import whole_words

# Compares two answers of different spellings; of right answers the gold is the first.
Same = Callable[[str, str], bool]

LONGEST = 2000  # characters; longer answers are compared as texts
MOST_ITEMS = 100  # of a list
MOST_COPULAS = 4  # of a clause, such as `are` and `=` in `the roots are x = 0 and x = 1`
REPEATING = 6  # decimals from which on 0.333333 is 1/3
_WRAPPED = re.compile(
    r"(?:\\(?:boxed|fbox|text|textbf|textit|mathrm|mathbf|mathit|operatorname|mbox)\s?)?"
    r"\{((?:[^{}]|\{[^{}]*+\})*+)\}"
)
_DELIMITERS = re.compile(
    r"\\[()\[\]](?!\w)|\\?\$|\\(?:left|right|displaystyle|bigl?|bigr?)(?![a-z])|\\!"
)
_ENDS = ' \t\r\n*`"\u201c\u201d'
_AND = r"\\text\s?\{\s?,?\s?(?:and|or)\s?\}|,?\s+(?:and|or)\s+"
_SEPARATOR = re.compile(rf"{_AND}|[,;](?P<thousand>(?<=[0-9],)[0-9]{{3}}(?![0-9]))?|[{{}}()\[\]]")
_COMMAND = re.compile(r"\\(?:begin|end)\{[a-z]*\*?\}|\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]+")
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc log exp sqrt arcsin arccos arctan lim max min".split()
)
_DATE = re.compile(r"[0-9]{1,4}([-/.])[0-9]{1,2}\1[0-9]{1,4}")
_BASE = re.compile(r"(\w+)_\{?([0-9]+)\}?")
_LETTER = re.compile(r"\(?([A-Za-z])[.)]?")
_ARTICLE = re.compile(r"(?:the|an?)\s+(?=\S)")
_NEGATED = re.compile(
    r"(?:\b(?:not|never|no|nor|neither|than)|n['\u2019]t)\s+(?:(?:an?|the|in|at|by)\s+)?$"
)
_FORMULA = re.compile(
    r"\$\$?([^$\n]++)\$|\\\(((?:[^\\]|\\(?!\)))++)\\\)|\\\[((?:[^\\]|\\(?!\]))++)\\\]"
)
# The end of the first clause of an answer, after which models explain it.
_BREAK = re.compile(
    r"[.;!?](?=\s|$)|[\u3002\uff01\uff1f]|\s\((?=[^()]{0,40}[^\W\d_]{2})|\s[-\u2013\u2014]+\s|(?<![,\s])[,\s]++(?:because|since|as|so|but|"
    r"not|which|where|while|with|due|\u56e0\u4e3a|\u306a\u305c)(?!\w)",
    re.IGNORECASE,
)
_COPULA = re.compile(r"(?<![<>!\\])=|\b(?:is|are|was|were|be|equals)\b\s?:?", re.IGNORECASE)


class Items(NamedTuple):
    """The entries of a list, and its brackets; both are "" of a list without any."""

    entries: tuple[str, ...]
    opening: str
    closing: str

    @property
    def is_ordered(self) -> bool:
        """False of sets, and of lists without brackets."""
        return self.opening not in ("", "\\{")


def spelling(answer: str) -> str:
    """Return the spelling of an answer: equal numbers, lists and words have the same."""
    text = without_name(cleaned(answer))
    if (number := _number(text)) is not None:
        return _decimal(number.value)
    if letter := _LETTER.fullmatch(text):
        return letter[1].casefold()
    if (items := _items(text)) is not None:
        entries = [spelling(entry) for entry in items.entries]
        return (
            items.opening
            + ", ".join(entries if items.is_ordered else sorted(entries))
            + items.closing
        )
    return words(text) if has_words(text) else _BASE.sub(r"\1_\2", re.sub(r"\s+", " ", text))


def _number(text: str) -> Number | None:
    """Return the number that an answer is, without a unit in LaTeX."""
    number = number_of(without_name(text))
    if number is None and "\\" in text and (digits := only_number(text)) is not None:
        number = number_of(digits)
    return number


def cleaned(answer: str) -> str:
    r"""Return an answer without markup, and without what is around all of it: \boxed{}, \text{}."""
    text = answer.translate(_MINUS).strip(_ENDS)
    if len(text) > LONGEST:
        return text
    text = _DELIMITERS.sub("", text).strip(_ENDS)
    for _ in range(8):
        inner = _WRAPPED.fullmatch(text)
        if inner is None:
            break
        text = inner[1].strip(_ENDS)
    if not text.endswith("..."):
        text = text.removesuffix(".").rstrip(_ENDS)
    return text


_MINUS = {0x2212: "-", 0x2013: "-"}


def words(text: str) -> str:
    """Return a text as words are compared: without case, articles and markup."""
    text = re.sub(r"\\[a-z]+\s?\{([^{}]*+)\}", r"\1", text.replace("~", " ").replace("\\ ", " "))
    text = unicodedata.normalize("NFC", text).casefold().strip(" .,;:!?'\"()*_`")
    return re.sub(r"\s+", " ", _ARTICLE.sub("", text, count=1) if _ARTICLE.match(text) else text)


def has_words(text: str) -> bool:
    """Return True if a text is words, not mathematics."""
    if len(text) > LONGEST or _DATE.fullmatch(text):
        return True
    letters = [word for word in _WORD.findall(_COMMAND.sub(" ", text)) if word not in _FUNCTIONS]
    if any(len(word) > 2 or (not word.isascii() and len(word) > 1) for word in letters):
        return True
    return "\\" not in text and len(text) > 1 and text.replace(" ", "").isalpha()


def are_equal(gold: str, answer: str, same: Same | None = None) -> bool:
    """Return True if an answer is the gold's.

    Args:
        same: compares expressions; None to compare these by their spelling.
    """
    gold, answer = cleaned(gold), cleaned(answer)
    if spelling(gold) == spelling(answer):
        return True
    numbers = _number(gold), _number(answer)
    if numbers[0] is not None and numbers[1] is not None:
        return _are_equal_numbers(numbers[0], numbers[1]) or _are_equal_lists(gold, answer, same)
    if _are_equal_lists(gold, answer, same):
        return True
    is_text = has_words(gold) or has_words(answer) or max(len(gold), len(answer)) > LONGEST
    if is_text or same is None or (_BASE.fullmatch(gold) and _BASE.fullmatch(answer)):
        return False
    if min(len(gold), len(answer)) == 1 and max(len(gold), len(answer)) == 1:
        return False
    return same(gold, answer)


def _are_equal_numbers(gold: Number, answer: Number) -> bool:
    if gold.value == answer.value:
        return True
    if gold.is_percent != answer.is_percent:
        percent, plain = (gold, answer) if gold.is_percent else (answer, gold)
        return percent.value == plain.value * 100
    if gold.is_quotient == answer.is_quotient:
        return False
    quotient, rounded = (gold, answer) if gold.is_quotient else (answer, gold)
    unit = Fraction(1)  # of the last decimal
    for n_decimals in range(30):
        if (rounded.value / unit).denominator == 1:
            return n_decimals >= REPEATING and abs(quotient.value - rounded.value) < unit
        unit /= 10
    return False


def _are_equal_lists(gold: str, answer: str, same: Same | None) -> bool:
    for thousands in (True, False):  # 100,200 is a number or a list
        first, other = _items(gold, thousands=thousands), _items(answer, thousands=thousands)
        if first is None or other is None:
            continue
        has_equal_brackets = "" in (first.opening, other.opening) or first[1:] == other[1:]
        if has_equal_brackets and _have_equal_entries(first, other, same):
            return True
    return False


def _have_equal_entries(gold: Items, answer: Items, same: Same | None) -> bool:
    if len(gold.entries) != len(answer.entries):
        return False
    if gold.is_ordered or answer.is_ordered:
        pairs = zip(gold.entries, answer.entries, strict=True)
        return all(are_equal(entry, other, same) for entry, other in pairs)
    left = list(answer.entries)
    for entry in gold.entries:
        match = next((k for k, other in enumerate(left) if are_equal(entry, other, same)), None)
        if match is None:
            return False
        del left[match]
    return True


def _items(text: str, *, thousands: bool = True) -> Items | None:
    r"""Return the entries of a list or of \pm x, or None if a text is neither."""
    if text.startswith("\\pm"):
        rest = text.removeprefix("\\pm").strip()
        return Items((rest, f"-{rest}"), "", "")
    if len(text) > LONGEST:
        return None
    opening = closing = ""
    for first, last in (("\\{", "\\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")):
        if text.startswith(first) and text.endswith(last) and _encloses(text, first):
            opening, closing = first, last
            text = text[len(first) : -len(last)]
            break
    entries = [without_name(entry).strip() for entry in _split(text, thousands=thousands)]
    is_list = len(entries) > 1 or opening == "\\{"
    return (
        Items(tuple(entries), opening, closing) if is_list and len(entries) <= MOST_ITEMS else None
    )


def _encloses(text: str, opening: str) -> bool:
    """Return True if the first bracket is closed by the last one."""
    depth = 0
    for match in re.finditer(r"[{}()\[\]]", text):
        depth += 1 if match.group() in "{([" else -1
        if not depth:
            return match.end() == len(text)
    return False


def _split(text: str, *, thousands: bool) -> Iterator[str]:
    """Split at the separators outside of brackets; at the comma of 1,000 only if asked."""
    depth = start = 0
    for match in _SEPARATOR.finditer(text):
        sign = match.group()
        if sign in "{([":
            depth += 1
        elif sign in "})]":
            depth -= 1
        elif depth == 0 and not (thousands and match["thousand"]):
            yield text[start : match.start()]
            start = match.end() - len(match["thousand"] or "")
    yield text[start:]


def _decimal(value: Fraction) -> str:
    """Return a number in decimals if that is exact, otherwise as a fraction."""
    rest = value.denominator
    n_twos = n_fives = 0
    while rest % 2 == 0:
        rest, n_twos = rest // 2, n_twos + 1
    while rest % 5 == 0:
        rest, n_fives = rest // 5, n_fives + 1
    n_decimals = max(n_twos, n_fives)
    if rest != 1 or n_decimals == 0 or n_decimals > 300:
        return str(value)
    digits = str(abs(value.numerator) * 10**n_decimals // value.denominator).zfill(n_decimals + 1)
    return f"{'-' if value < 0 else ''}{digits[:-n_decimals]}.{digits[-n_decimals:]}"


def readings(answer: str) -> Iterator[str]:
    """Iterate over an answer, its first clause, and what it is: Paris of `It is Paris, as …`."""
    yield answer
    if len(answer) > LONGEST:
        return
    clause = first_clause(answer)
    yield clause
    for copula in [*_COPULA.finditer(clause)][-MOST_COPULAS:]:
        yield clause[copula.end() :]
    before, comma, _ = clause.partition(",")
    if comma and has_words(before):
        yield before


def first_clause(answer: str) -> str:
    """Return an answer without the explanation after it."""
    end = next((match.start() for match in _BREAK.finditer(answer) if match.start()), None)
    return answer[:end]


def is_in_sentence(gold: str, sentence: str, same: Same | None = None) -> bool:
    """Return True if a sentence has the gold as whole words, undenied, or as its last formula."""
    gold = gold.strip(_ENDS)
    if not 0 < len(gold) <= LONGEST:
        return False
    formulas = [next(filter(None, match.groups())) for match in _FORMULA.finditer(sentence)]
    texts = [*readings(sentence), *formulas[-1:]]
    if any(are_equal(gold, text, same) for text in texts):
        return True
    for match in whole_words(gold, ignore_case=not gold.isupper()).finditer(sentence):
        before = sentence[max(0, match.start() - 30) : match.start()].casefold()
        if not _NEGATED.search(before) and (has_words(gold) or not _goes_on(sentence, match)):
            return True
    return False


def _goes_on(sentence: str, match: re.Match[str]) -> bool:
    """Return True if an expression is part of a longer one."""
    before, after = sentence[: match.start()].rstrip()[-1:], sentence[match.end() :].lstrip()[:1]
    return before in tuple("+-*/^(<>\\,") or after in tuple("+-*/^)<>=\\")
