"""Equal answers: 120 pairs with and without Math-Verify, numbers, and texts made to hang."""

import importlib.util
import json
from fractions import Fraction

import pytest

from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.systems.selection import symbolic
from jaxscore.systems.selection.equal_answers import are_equal, has_words, spelling
from jaxscore.systems.selection.numbers_in_text import first_number, last_number, number_of
from jaxscore.systems.selection.symbolic import UNVERIFIED, SymbolicComparison
from tests.conftest import CASES

PATIENT = 60.0  # seconds
PAIRS = [
    tuple(json.loads(line).values())
    for line in (CASES / "answer_pairs.jsonl").read_text("utf-8").splitlines()
]
# Math-Verify misses these; our comparison alone takes none of them for equal.
MISSED = {("e^{i\\pi}", "-1"), ("i^2", "-1"), ("\\cos 60^\\circ", "\\frac12"), ("ab", "ba")}
verified = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="needs the extra math"
)


@verified
def test_pairs_with_math_verify():
    with SymbolicComparison(PATIENT) as comparison:
        for gold, answer, is_equal in PAIRS:
            comparison.next_item()
            expected = is_equal and (gold, answer) not in MISSED
            assert are_equal(gold, answer, comparison.verify) is expected, (gold, answer)
        assert not comparison.is_unverified


def test_pairs_without_math_verify():
    """No pair is equal that should not be, and numbers, lists and words are compared."""
    equal = [pair for pair in PAIRS if are_equal(*pair[:2])]
    assert all(is_equal for _, _, is_equal in equal)
    assert len(equal) == 44
    for gold, answer, is_equal in PAIRS:
        if number_of(gold) and number_of(answer):
            assert are_equal(gold, answer) is is_equal


def test_equal_spellings_are_equal_answers():
    for gold, answer, is_equal in PAIRS:
        assert is_equal or spelling(gold) != spelling(answer)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1{,}000", 1000), ("12\\,345\\,678", 12345678), ("306,\\!956.63", "306956.63"),
        ("1\u202f000", 1000), ("1'000", 1000), ("1~000", 1000), ("2 1/2", "5/2"), (".5", "1/2"),
        ("- 1/2", "-1/2"), ("\u22125", -5), ("1.5e-3", "0.0015"), ("2.5 \u00d7 10^3", 2500),
        ("10^{-3}", "1/1000"), ("2^{12}", 4096), ("3\\frac{1}{2}", "7/2"),
        ("\\frac{-1}{2}", "-1/2"),
        ("9007199254740993", 9007199254740993), ("$.50", "1/2"), ("50\\%", 50),
        ("1,2", None), ("1,000,2", None), ("1/0", None), ("10^{9999}", None), ("9^9999", None),
        ("2x", None), ("", None), ("nan", None), ("1_0", None), ("9" * 2000, None), ("2.", None),
    ],
)  # fmt: skip
def test_numbers(text, value):
    number = number_of(text)
    assert (number and number.value) == (None if value is None else Fraction(value))


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("12 + 7 = 19. It is 5-3", "12", "3"), ("It is - 5", "- 5", "- 5"), ("3 - 5", "3", "5"),
        ("- 5 apples", "5", "5"), ("x2 and H2O", None, None), ("5kg of 2x", "5", "5"),
        ("the area is 2\\pi", None, None), ("\u7b54\u3048\u306f8\u3067\u3059", "8", "8"),
    ],
)  # fmt: skip
def test_numbers_in_text(text, first, last):
    assert (first_number(text), last_number(text)) == (first, last)


@pytest.mark.parametrize("text", ["Paris", "on", "\\text{even} if", "2021-01-01", "\u5df4\u9ece"])
def test_words_are_not_mathematics(text):
    assert has_words(text)


@verified
@pytest.mark.slow
def test_what_hangs_math_verify_is_ended():
    with SymbolicComparison(1.0) as comparison:
        for tower in (
            "9^{9^{9^9}}",
            "8^{8^{8^{8^8}}}",
            "(x+y+z)^{99999}",
            "\\frac{" * 400,
            "7!!!!!",
        ):
            assert not comparison.verify(tower, "x+1")
        comparison.next_item()
        comparison.time_limit = PATIENT
        assert comparison.verify("x+1", "1+x")


@verified
def test_math_verify_runs_no_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SymbolicComparison(PATIENT) as comparison:
        for text in ("__import__('os').mkdir('ran')", "1+open('ran','w').close()", "x.__class__",
                     "(1).__class__", "\\text{__import__('os').mkdir('ran')}"):  # fmt: skip
            comparison.next_item()
            comparison.verify(text, "1")
            comparison.verify(f"$1+1$ {text}", "2")
    assert list(tmp_path.iterdir()) == []


def test_without_math_verify_expressions_are_compared_as_text(monkeypatch):
    def missing(*_):
        raise InputError("missing")

    monkeypatch.setattr(symbolic, "_started", missing)
    given = {"output": ["\\boxed{1+x}"], "confidence_list": [1.0], "gold": "x+1"}
    report = evaluate("select", None, [given, given | {"gold": "1 + x"}], gold="gold")
    assert [record["right"] for record in report.items] == [False, False]
    assert report.items[0]["choice_notes"] == [UNVERIFIED]
    assert any(UNVERIFIED in warning for warning in report.remarks)
