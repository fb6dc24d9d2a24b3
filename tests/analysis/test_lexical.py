"""Lexical metrics against slow references, the published values and strange texts."""

import string
import time

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.analysis import lexical
from tests.analysis.test_subsequence import slow

TEXT = st.lists(
    st.sampled_from(["a", "the", "An", "cat", "hat", "b.c", ".", " ", "  ", "\n", ",", "é", "אב"]),
    max_size=14,
).map(lambda parts: " ".join(parts).replace("  ", ""))
TEXTS = st.lists(TEXT, min_size=1, max_size=3)


def slow_normalise(text):
    kept = "".join(one for one in text.lower() if one not in string.punctuation)
    return " ".join(regex.sub(r"\b(a|an|the)\b", " ", kept).split())


def slow_overlap(response, reference):
    """Take equal pieces out of both, one by one."""
    left, shared = list(reference), 0
    for piece in response:
        if piece in left:
            left.remove(piece)
            shared += 1
    if not shared:
        return 0.0, 0.0, 0.0
    precision, recall = shared / len(response), shared / len(reference)
    return 2 * precision * recall / (precision + recall), precision, recall


def slow_trigrams(text):
    out = []
    for word in text.split():
        out += [word[k : k + 3] for k in range(len(word) - 2)] if len(word) >= 3 else [word]
    return out


def slow_f(one, other, shared):
    precision = shared / len(one) if one else 0.0
    recall = shared / len(other) if other else 0.0
    return 2 * (precision * recall / (precision + recall + 1e-8))


def slow_rouge(response, reference):
    """Every pair of sentences by the whole table."""
    sides = []
    for text in (response, reference):
        cut = [" ".join(part.split()).split(" ") for part in text.split(".") if part != ""]
        sides.append(cut)
    if not sides[0] or not sides[1]:
        return 0.0, 0.0, 0.0
    words = [[word for cut in side for word in cut] for side in sides]
    out = []
    for n in (1, 2):
        grams = [{tuple(w[k : k + n]) for k in range(len(w) - n + 1)} for w in words]
        out.append(slow_f(*grams, len(grams[0] & grams[1])))
    union = {w for r in sides[1] for c in sides[0] for w in slow(r, c)}
    return *out, slow_f(set(words[0]), set(words[1]), len(union))


def best(values):
    return tuple(max(one) for one in zip(*values, strict=True))


@given(TEXT, TEXTS)
def test_against_the_slow_references(response, references):
    n = slow_normalise
    assert lexical.normalise(response) == n(response)
    assert lexical.match(response, references) == any(n(r) in n(response) for r in references)
    assert lexical.exact_match(response, references) == any(n(r) == n(response) for r in references)
    words = best(slow_overlap(n(response).split(), n(r).split()) for r in references)
    assert lexical.word_overlap(response, references) == words
    grams = (slow_overlap(slow_trigrams(n(response)), slow_trigrams(n(r))) for r in references)
    assert lexical.trigram_recall(response, references) == best(grams)[2]
    rouge = best(slow_rouge(response, r) for r in references)
    assert lexical.rouge(response, references) == pytest.approx(rouge, abs=1e-15)


@pytest.mark.parametrize(
    ("response", "reference", "want"),
    [  # computed with the PyPI package rouge 1.0.1
        ("the cat sat on the mat", "the cat was on the mat", (0.799999995, 0.599999995, None)),
        (
            "police killed the gunman. the end",
            "the gunman killed police",
            (0.8888888839506174, 0.24999999531250006, 0.4444444395061729),
        ),
        ("a b c. d e. f", "f e d. a c b", (0.999999995, 0.0, 0.6666666616666668)),
        ("It is Oslo. ", "It is Oslo", (0.8571428522448981, 0.7999999952, None)),
        ("x  y\nz", "x y z", (0.999999995, 0.999999995, 0.999999995)),
        ("The Cat", "the cat", (0.0, 0.0, 0.0)),
        ("aa bb aa bb", "bb aa", (0.999999995, 0.6666666622222223, 0.999999995)),
    ],
)
def test_rouge_of_the_published_package(response, reference, want):
    one, two, longest = want
    got = lexical.rouge(response, [reference])
    assert got == pytest.approx((one, two, one if longest is None else longest), abs=1e-12)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("The cat, a dog; AN owl.", "cat dog owl"),
        ("well-known", "wellknown"),  # punctuation goes without a blank
        ("the-a", "thea"),  # and before articles are looked for
        ("a\u0301 la carte", "a\u0301 la carte"),  # the mark belongs to the letter
        ("\u00e0 la carte", "\u00e0 la carte"),
        ("\u05d4\u05d0 the \u05d1", "\u05d4\u05d0 \u05d1"),  # right to left
        ("\u201cOslo\u201d", "\u201coslo\u201d"),  # only ASCII punctuation
        ("x\u00a0 y\u2028z", "x y z"),
        ("The", ""),
    ],
)
def test_normalise(text, want):
    assert lexical.normalise(text) == want


def test_empty_responses_and_references():
    for response in ("", " ", "...", "The!"):
        assert lexical.match(response, ["Oslo"]) == 0.0
        assert lexical.word_overlap(response, ["Oslo"]) == (0.0, 0.0, 0.0)
        assert lexical.trigram_recall(response, ["Oslo"]) == 0.0
        assert lexical.rouge(response, ["Oslo"]) == (0.0, 0.0, 0.0)
    # What is nothing when normalised is in everything, as published.
    assert lexical.match("Oslo", ["The"]) == lexical.exact_match("", ["a", "x"]) == 1.0
    assert lexical.rouge("Oslo", ["", "Oslo"]).one == pytest.approx(0.999999995, abs=1e-15)


def test_the_best_reference_of_each_number_by_itself():
    got = lexical.word_overlap("red green", ["red", "red green blue grey black"])
    assert got == pytest.approx((2 / 3, 1.0, 1.0))


def words(n, of):
    return " ".join(f"w{k * 7919 % of}" for k in range(n))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("response", "reference"),
    [
        ("x" * 200_000, "x" * 200_000),
        (words(33_000, 1009), "Oslo w7"),
        (words(33_000, 1009), words(33_000, 997)),
        ("a " * 100_000, "a " * 100_000),
        ("." * 200_000, ". " * 100_000),
        ("q a. a q. " * 20_000, "q b. b q. " * 20_000),
        (". ".join(words(3, k + 3) for k in range(12_000)),) * 2,
    ],
    ids=["one-word", "short-label", "long-label", "equal", "dots", "sentences", "other-sentences"],
)
def test_200_kb(response, reference):
    started = time.perf_counter()
    lexical.word_overlap(response, [reference])
    lexical.trigram_recall(response, [reference])
    lexical.match(response, [reference])
    rouge = lexical.rouge(response, [reference])
    assert time.perf_counter() - started < 30
    assert all(0 <= value < 1 for value in rouge)
