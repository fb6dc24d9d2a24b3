"""How much of a reference text is in a response, without a model.

Each function takes one response and one reference or more and gives the best of the references,
each number by itself. Sources: normalisation, EM and token F1 from SQuAD (arXiv 1606.05250) with
the multiset overlap of its evaluation; character 3-gram recall from BERGEN (arXiv 2407.01102);
ROUGE from Lin 2004 (aclanthology.org/W04-1013) as the PyPI package `rouge` 1.0.1 counts it, see
`rouge`, since published RAG numbers were taken with it.
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
# `regex` and not `re`: here a combining mark belongs to its word, so that the first letter of a
# decomposed "à la carte" is no article.
ARTICLES = regex.compile(r"\b(?:a|an|the)\b")
EPSILON = 1e-8  # of the package `rouge`, in the denominator of F


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, single blanks.

    Punctuation is taken out and not replaced: "well-known" is "wellknown".
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def match(response: str, references: Sequence[str]) -> float:
    """1.0 where a normalised reference occurs in the normalised response, also inside a word.

    A reference that is empty when normalised ("The") occurs in every response.
    """
    whole = normalise(response)
    return float(any(normalise(reference) in whole for reference in references))


def exact_match(response: str, references: Sequence[str]) -> float:
    """1.0 where a normalised reference equals the normalised response."""
    whole = normalise(response)
    return float(any(normalise(reference) == whole for reference in references))


class Overlap(NamedTuple):
    """Shared pieces of a response and a reference, counted as multisets."""

    f1: float
    precision: float
    recall: float


def word_overlap(response: str, references: Sequence[str]) -> Overlap:
    """Overlap of normalised words; F1, precision and recall may be of different references."""
    return _best_overlap(
        normalise(response).split(), [normalise(reference).split() for reference in references]
    )


def trigram_recall(response: str, references: Sequence[str]) -> float:
    """Share of a reference's character 3-grams that the response has.

    3-grams are those of each normalised word; a shorter word counts as one piece.
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
    """F of ROUGE-1, ROUGE-2 and summary-level ROUGE-L."""

    one: float
    two: float
    longest: float


def rouge(response: str, references: Sequence[str]) -> Rouge:
    """ROUGE as the package `rouge` 1.0.1 counts it by default.

    The text is taken as it stands, upper case and punctuation included. It is cut at every "."
    into sentences; words are what blanks separate, and a sentence of blanks alone holds one empty
    word. n-grams run across sentences. All counts are of different n-grams or words, not of
    their occurrences. F is 2pr / (p + r + 1e-8), so a perfect match is 0.999999995.

    A response or a reference without any sentence ("", "...") gives 0. Where the package's
    recursion runs out (sentences of about a thousand words), which BERGEN counts as 0, the value
    by the same formula is given instead.
    """
    candidate = _sentences(response)
    every = [_rouge(candidate, _sentences(reference)) for reference in references]
    return Rouge(*(max(values) for values in zip(*every, strict=True)))


def _sentences(text: str) -> list[list[str]]:
    return [sentence.split() or [""] for sentence in text.split(".") if sentence]


def _rouge(candidate: list[list[str]], reference: list[list[str]]) -> Rouge:
    if not candidate or not reference:
        return Rouge(0.0, 0.0, 0.0)
    words, other = [[word for one in text for word in one] for text in (candidate, reference)]
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
    """Different words of the longest common subsequences of every pair of sentences.

    A pair can only add words that both sentences hold, so a pair that has no such word left is
    passed over. That, and looking at equal sentences once, keeps texts of thousands of sentences
    from costing the product of their numbers.
    """
    holding: dict[str, list[int]] = {}
    candidates = [list(one) for one in dict.fromkeys(map(tuple, candidate))]
    for index, words in enumerate(candidates):
        for word in set(words):
            holding.setdefault(word, []).append(index)
    union: set[str] = set()
    for sentence in dict.fromkeys(map(tuple, reference)):
        done: set[int] = set()
        for word in dict.fromkeys(sentence):
            for index in holding.get(word, ()):
                if word in union:
                    break
                if index not in done:
                    done.add(index)
                    union.update(common_subsequence(sentence, candidates[index]))
    return union


def common_subsequence(rows: Sequence[T], columns: Sequence[T]) -> list[T]:
    """One longest common subsequence, the one that the textbook table gives.

    With L[i, j] the length for the first i rows and j columns, walk back from the last cell:
    along the diagonal where row and column are equal, else to the left, except where
    L[i - 1, j] > L[i, j - 1]. Other ways back give other words of the same number.

    The table is kept as its horizontal steps L[i, j] - L[i, j - 1], which are 0 or 1: one bit a
    cell, a row in one Python integer, computed with one addition per row (Hyyrö, "Bit-parallel LCS
    computation revisited", 2004). Only every √n-th row is kept, and the rows between two of them
    are computed again on the way back: 100,000 by 100,000 items take seconds and a few MB.
    """
    # A column without an equal row is a step of 0 in each row: the walk only passes it by.
    known = set(rows)
    columns = [item for item in columns if item in known]
    where: dict[T, int] = {}
    for place, item in enumerate(columns):
        where[item] = where.get(item, 0) | 1 << place
    stride = max(1, math.isqrt(len(rows)))
    kept = [(1 << len(columns)) - 1]
    for start in range(0, len(rows), stride):
        kept.append(_advance(kept[-1], rows[start : start + stride], where, len(columns))[-1])
    found: list[T] = []
    j = len(columns)
    for start in reversed(range(0, len(rows), stride)):
        part = rows[start : start + stride]
        flat = _advance(kept[start // stride], part, where, len(columns))
        i = len(part)
        while i and j:
            if part[i - 1] == columns[j - 1]:
                found.append(part[i - 1])
                i, j = i - 1, j - 1
            elif flat[i - 1] >> (j - 1) & 1:
                j -= 1
            else:
                i -= 1
    return found[::-1]


def _advance(flat: int, rows: Sequence[T], where: dict[T, int], width: int) -> list[int]:
    """For each row an integer whose bit j is 1 where L does not rise from column j to j + 1."""
    mask = (1 << width) - 1
    out = []
    for item in rows:
        equal = where.get(item, 0)
        rising = flat & equal
        flat = (flat + rising | flat - rising) & mask
        out.append(flat)
    return out
