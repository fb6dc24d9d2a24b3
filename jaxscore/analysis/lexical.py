"""Lexical similarity of a response to reference texts.

Each function takes one response and at least one reference, and returns the maximum over the
references, separately for each number. Sources: normalisation, EM and token F1 from SQuAD (arXiv
1606.05250) with the multiset overlap of its evaluation; character 3-gram recall from BERGEN (arXiv
2407.01102); ROUGE from Lin 2004 (aclanthology.org/W04-1013) as computed by the PyPI package `rouge`
1.0.1, with which published RAG numbers were computed.
"""

import itertools
import math
import string
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

import regex

T = TypeVar("T", bound=Hashable)
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# `regex` instead of `re`: combining marks belong to their word, so the first letter of a decomposed
# "à la carte" is not an article.
ARTICLES = regex.compile(r"\b(?:a|an|the)\b")
EPSILON = 1e-8  # in the denominator of F, as in the package `rouge`


def normalise(text: str) -> str:
    """Lowercase a text, remove ASCII punctuation and English articles, and join words by a space.

    Punctuation is not replaced: "well-known" becomes "wellknown".
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def match(response: str, references: Sequence[str]) -> float:
    """Return 1.0 if a normalised reference occurs in the normalised response, even inside a word.

    A reference that is empty when normalised ("The") occurs in every response.
    """
    normalised = normalise(response)
    return float(any(normalise(reference) in normalised for reference in references))


def exact_match(response: str, references: Sequence[str]) -> float:
    """Return 1.0 if a normalised reference equals the normalised response, else 0.0."""
    normalised = normalise(response)
    return float(any(normalise(reference) == normalised for reference in references))


class Overlap(NamedTuple):
    """The overlap of a response and a reference as multisets of words or 3-grams."""

    f1: float
    precision: float
    recall: float


def word_overlap(response: str, references: Sequence[str]) -> Overlap:
    """Compute the overlap of normalised words, with separate maxima over the references."""
    return _best_overlap(
        normalise(response).split(), [normalise(reference).split() for reference in references]
    )


def trigram_recall(response: str, references: Sequence[str]) -> float:
    """Compute the share of a reference's character 3-grams that occur in the response.

    3-grams are taken from each normalised word; a shorter word counts as one 3-gram.
    """
    return _best_overlap(
        _trigrams(response), [_trigrams(reference) for reference in references]
    ).recall


def _trigrams(text: str) -> list[str]:
    return [
        word[start : start + 3]
        for word in normalise(text).split()
        for start in range(max(1, len(word) - 2))
    ]


def _best_overlap(response: list[str], references: Sequence[list[str]]) -> Overlap:
    counted = Counter(response)
    every = [_overlap(counted, Counter(reference)) for reference in references]
    return Overlap(*(max(values) for values in zip(*every, strict=True)))


def _overlap(response: Counter[str], reference: Counter[str]) -> Overlap:
    shared = (response & reference).total()
    if not shared:
        return Overlap(0.0, 0.0, 0.0)
    precision, recall = shared / response.total(), shared / reference.total()
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)


class Rouge(NamedTuple):
    """F1 of ROUGE-1, ROUGE-2 and summary-level ROUGE-L."""

    one: float
    two: float
    longest: float


def rouge(response: str, references: Sequence[str]) -> Rouge:
    """Compute ROUGE like the package `rouge` 1.0.1 with its defaults.

    The text is not normalised. It is split into sentences at every "." and into words at
    whitespace; a sentence of whitespace has one empty word. n-grams run across sentences. Distinct
    n-grams or words are counted, not occurrences. F is 2pr / (p + r + 1e-8), so a perfect match is
    0.999999995.

    The result is 0 if the response or the reference does not have a sentence ("", "..."). For
    sentences of about a thousand words, the package exceeds its recursion limit, which BERGEN
    counts as 0; this function returns the value of the formula instead.
    """
    candidate = _sentences(response)
    every = [_rouge(candidate, _sentences(reference)) for reference in references]
    return Rouge(*(max(values) for values in zip(*every, strict=True)))


def _sentences(text: str) -> list[list[str]]:
    return [sentence.split() or [""] for sentence in text.split(".") if sentence]


def _rouge(candidate: list[list[str]], reference: list[list[str]]) -> Rouge:
    if not candidate or not reference:
        return Rouge(0.0, 0.0, 0.0)
    words, other = [
        [word for sentence in text for word in sentence] for text in (candidate, reference)
    ]
    pairs, other_pairs = (set(itertools.pairwise(text)) for text in (words, other))
    distinct, other_distinct = set(words), set(other)
    union = _union_of_subsequences(candidate, reference)
    return Rouge(
        _f(len(distinct & other_distinct), len(distinct), len(other_distinct)),
        _f(len(pairs & other_pairs), len(pairs), len(other_pairs)),
        _f(len(union), len(distinct), len(other_distinct)),
    )


def _f(shared: int, n_candidate: int, n_reference: int) -> float:
    precision = shared / n_candidate if n_candidate else 0.0
    recall = shared / n_reference if n_reference else 0.0
    return 2.0 * (precision * recall / (precision + recall + EPSILON))


def _union_of_subsequences(candidate: list[list[str]], reference: list[list[str]]) -> set[str]:
    """Return the distinct words in the longest common subsequences of all pairs of sentences.

    A pair can add only words that are in both sentences, so pairs without a new one are skipped.
    Duplicate sentences are processed once. Texts of thousands of sentences thus rarely require all
    pairs.
    """
    sentences_with: dict[str, list[int]] = {}
    candidates = [list(sentence) for sentence in dict.fromkeys(map(tuple, candidate))]
    for index, words in enumerate(candidates):
        for word in set(words):
            sentences_with.setdefault(word, []).append(index)
    union: set[str] = set()
    for sentence in dict.fromkeys(map(tuple, reference)):
        done: set[int] = set()
        for word in dict.fromkeys(sentence):
            for index in sentences_with.get(word, ()):
                if word in union:
                    break
                if index not in done:
                    done.add(index)
                    union.update(common_subsequence(sentence, candidates[index]))
    return union


def common_subsequence(rows: Sequence[T], columns: Sequence[T]) -> list[T]:
    """Return the longest common subsequence that the textbook algorithm finds.

    With L[i, j] the length for the first i rows and j columns, the algorithm backtracks from the
    last cell: along the diagonal if row and column are equal, else to the left, unless
    L[i - 1, j] > L[i, j - 1]. Other tie-breaking rules may find other words, but equally many.

    The table is stored as its horizontal differences L[i, j] - L[i, j - 1], which are 0 or 1: one
    bit per cell, one Python integer per row, computed with one addition per row (Hyyrö,
    "Bit-parallel LCS computation revisited", 2004). Only every √n-th row is kept; the rows between
    are recomputed when backtracking. 100,000 by 100,000 items take seconds and a few MB.
    """
    # Columns without an equal row have differences of 0 only, and do not affect the result.
    row_items = set(rows)
    columns = [item for item in columns if item in row_items]
    column_bits: dict[T, int] = {}
    for index, item in enumerate(columns):
        column_bits[item] = column_bits.get(item, 0) | 1 << index
    stride = max(1, math.isqrt(len(rows)))
    kept = [(1 << len(columns)) - 1]
    for start in range(0, len(rows), stride):
        kept.append(_advance(kept[-1], rows[start : start + stride], column_bits, len(columns))[-1])
    subsequence: list[T] = []
    j = len(columns)
    for start in reversed(range(0, len(rows), stride)):
        block = rows[start : start + stride]
        flat = _advance(kept[start // stride], block, column_bits, len(columns))
        i = len(block)
        while i and j:
            if block[i - 1] == columns[j - 1]:
                subsequence.append(block[i - 1])
                i, j = i - 1, j - 1
            elif flat[i - 1] >> (j - 1) & 1:
                j -= 1
            else:
                i -= 1
    return subsequence[::-1]


def _advance(flat: int, rows: Sequence[T], column_bits: dict[T, int], width: int) -> list[int]:
    """Return for each row an integer whose bit j is 1 if L is equal at columns j and j + 1."""
    mask = (1 << width) - 1
    out = []
    for item in rows:
        equal = column_bits.get(item, 0)
        rising = flat & equal
        flat = (flat + rising | flat - rising) & mask
        out.append(flat)
    return out
