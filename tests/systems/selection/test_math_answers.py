"""Equal answers get one spelling; odd ones stay text."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.systems.selection import math_answers
from jaxscore.systems.selection.math_answers import sanitise

ONE_SPELLING = {
    "42": ["42", " $42$ ", "42.0", "4,2", "4 2", "x = 42", "n=42", "\\left42\\right", "42\\!",
           "٤٢"],
    "0.5": ["0.5", ".5", "1/2", "\\frac{1}{2}", "\\frac12", "\\frac1{2}", "\\dfrac12",
            "\\tfrac{1}{2}", "\\\\frac{1}{2}", "x=\\frac{1}{2}", "2/4", "5e-1", "\\frac{.5}{1}"],
    "3": ["3", "3\\%", "3 \\\\%", "3^\\circ", "3^{\\circ}", "3\\text{ cm}", "6/2"],
    "1000": ["1,000", "1000", "1e3", "1_000"],
    "-3": ["-3", "-\\frac{6}{2}", "-6/2"],
    "0.3333333333333333": ["1/3", "\\frac13", "\\frac{1}{3}"],
    "\\pi/2": ["π/2", "\\frac{\\pi}{2}", "$\\pi / 2$"],
    "\\sqrt{3}": ["√3", "\\sqrt3", "\\sqrt{3}"],
    "x^2+1": ["x^2+1", "x^2 + 1", "y=x^2+1"],
    "nan": ["nan", "NaN"],
    "inf": ["inf", "Infinity", "1e999"],
    "": ["", "  ", "$$", ",", "\\%", "x="],
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "spelling"),
    [(answer, spelling) for spelling, all_ in ONE_SPELLING.items() for answer in all_],
)
def test_one_spelling(answer, spelling):
    assert sanitise(answer) == spelling


@pytest.mark.parametrize(
    ("answer", "spelling"),
    [
        ("2x + 1 = 5", "2x+1=5"),  # no name before the sign
        ("a=1=2", "a=1=2"),
        ("3\\frac{1}{2}", "15.5"),  # a mixed number, as published
        ("\\frac{x+1}{2}", "x+1/2"),
        ("\\frac{1}{0}", "1/0"),
        ("1/0", "1/0"),
        ("01/2", "01/2"),
        ("1/2/3", "1/2/3"),
        ("\\frac{2^3}{4}", "2^3/4"),
        ("\\frac{1}{2} or \\frac{3}{4}", "1/2or3/4"),
        ("\\frac{\\frac{1}{2}}{3}", "\\frac{1/2}{3}"),
        ("\\frac{}{2}", "\\frac{}{2}"),
        ("\\frac1", "\\frac1"),
        ("\\sqrt {3}", "\\sqrt{}{3}"),  # the blank is taken for what is under the root
        ("1→2", "1arrow2"),  # \\right is left out, of an arrow too
        # a rule meets what it was not made for, and none is applied
        ("\\sqrt", "\\sqrt"),
        ("\\dfrac", "\\dfrac"),
        ("π \\text{ a} \\text{ b}", "\\pi\\text{a}\\text{b}"),
        ("A", "A"),
        ("\u0661\u0662", "12"),
        ("שלום", "שלום"),
        ("e\u0301", "e\u0301"),
    ],
)
def test_odd_answers(answer, spelling):
    assert sanitise(answer) == spelling


PIECES = st.lists(
    st.sampled_from(["\\frac", "\\frac{", "{", "}", "}{", "1", "x", "\n", "\\"]), max_size=12
).map("".join)


@settings(deadline=None)
@given(PIECES)
def test_divisions_as_by_a_pattern(text):
    slow = re.sub(r"\\frac\{([^}]+)\}\{([^}]+)\}", r"\1/\2", text)
    assert math_answers._divisions(text) == slow


@settings(deadline=None)
@given(st.text(max_size=30) | PIECES)
def test_any_text_has_a_spelling(text):
    assert isinstance(sanitise(text), str)


@pytest.mark.parametrize(
    "piece", ["\\frac{", "\\frac{1", "\\frac{1}{", "\\frac1", "\\sqrt1", "\\text{ ", "{", "9", "="]
)
def test_long_answers_end(piece):
    text = piece * (200_000 // len(piece))
    assert sanitise(text)
    assert sanitise(f"{text}{'}' * 1000}")
