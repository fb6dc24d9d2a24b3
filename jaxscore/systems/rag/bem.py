"""`judge --bem`: is a response equivalent to a reference? (BEM, Bulian et al., arXiv 2202.07654)

A BERT classifier reads

    [CLS] candidate [SEP] reference [SEP] question [SEP]
    types   0         0      1        1      1       1       the question's is 2 where there are
                                                              three, as in the authors' model
and gives P(equivalent), its class 1. A record's score is the best of its references.
"""

import bisect
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.systems.rag.records import Record
from jaxscore.text.bounded_tokenizer import BoundedTokenizer, Ids, TextError, encode_each
from jaxscore.text.tokenizer import copy_backend, load_tokenizer

DEFAULT_MODEL = "kortukov/answer-equivalence-bem"
EQUIVALENT = 1  # the class


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """What BEM says of one record.

    Attributes:
        by_reference: P(equivalent) for each reference, in the order of the label.
        trimmed: tokens left out of the inputs, which were longer than the model's positions.
    """

    record: Record
    by_reference: tuple[float, ...]
    trimmed: int

    @property
    def score(self) -> float:
        return max(self.by_reference)

    @property
    def best(self) -> str:
        """The reference that the score is of."""
        return self.record.label[self.by_reference.index(self.score)]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Over all records; the mean is None where there are none."""

    n_known: int
    mean: float | None
    n_equivalent: int
    n_trimmed: int


class Bem:
    """The classifier with its tokenizer."""

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str = "auto",
        reproducible: bool = False,
        origin: tuple[str, str | None] | None = None,
    ) -> None:
        """Load a checkpoint.

        Args:
            dtype, reproducible: as `BertClassifier` has them.
            origin: the model's name and commit, for reports; None is the folder.

        Raises:
            InputError: no BERT classifier of two classes, or a tokenizer without [CLS] and [SEP].
        """
        from jaxscore.models.transformers_flax.bert_classifier import BertClassifier

        self.classifier = BertClassifier(folder, dtype=dtype, reproducible=reproducible)
        name, commit = origin or (str(folder), None)
        self._facts = {
            "model": name,
            "revision": commit,
            "dtype": "float32" if dtype == "auto" else dtype,
            **({"reproducible": True} if reproducible else {}),
        }
        if self.classifier.n_classes != 2:
            raise InputError(
                f"{folder}: a classifier of {self.classifier.n_classes} classes, expected two: "
                "not equivalent, equivalent"
            )
        tokenizer = load_tokenizer(folder)
        self._tokenizer = BoundedTokenizer(copy_backend(tokenizer))
        self._cls, self._sep = tokenizer.cls_token_id, tokenizer.sep_token_id
        if self._cls is None or self._sep is None:
            raise InputError(f"{folder}: its tokenizer has no [CLS] or no [SEP]")

    def describe(self) -> dict[str, Any]:
        """The classifier and how it is computed, for reports."""
        return dict(self._facts)

    def match(self, records: Sequence[Record]) -> tuple[list[Match], list[tuple[Record, str]]]:
        """P(equivalent) of each record's response and each of its references.

        Returns:
            The matches; the records with a text that the tokenizer cannot read, and why.
        """
        texts = sorted({text for record in records for text in _texts(record)})
        found = dict(zip(texts, encode_each(self._tokenizer.ids, texts), strict=True))
        ids = {text: each for text, each in found.items() if not isinstance(each, TextError)}
        read, unread = [], []
        for record in records:
            errors = [str(found[text]) for text in _texts(record) if text not in ids]
            if errors:
                unread.append((record, errors[0]))
            else:
                read.append(record)
        inputs, trimmed = [], []
        for record in read:
            left_out = 0
            for reference in record.label:
                parts = [ids[record.response], ids[reference], ids[record.question]]
                sequence, over = self._input(parts)
                inputs.append(sequence)
                left_out += over
            trimmed.append(left_out)
        equivalent = iter(self.classifier.probabilities(inputs)[:, EQUIVALENT].tolist())
        matches = [
            Match(record, tuple(next(equivalent) for _ in record.label), left_out)
            for record, left_out in zip(read, trimmed, strict=True)
        ]
        return matches, unread

    def _input(self, parts: list[Ids]) -> tuple[tuple[np.ndarray, np.ndarray], int]:
        """ids and types, and how many tokens were left out at the end of the longest parts."""
        room = self.classifier.max_positions - len(parts) - 1
        lengths = fitted([len(part) for part in parts], room)
        ids, types = [self._cls], [0]
        for k, (part, length) in enumerate(zip(parts, lengths, strict=True)):
            ids += [*part[:length], self._sep]
            types += [min(k, self.classifier.n_types - 1)] * (length + 1)
        over = sum(map(len, parts)) - sum(lengths)
        return (np.array(ids, np.int32), np.array(types, np.int32)), over


def _texts(record: Record) -> tuple[str, ...]:
    return record.response, record.question, *record.label


def fitted(lengths: Sequence[int], room: int) -> list[int]:
    """The lengths, each cut to one limit, the highest with which they fit."""

    def cut(limit: int) -> list[int]:
        return [min(length, limit) for length in lengths]

    limits = range(max(lengths) + 1)
    return cut(bisect.bisect_right(limits, room, key=lambda limit: sum(cut(limit))) - 1)


def summarise(matches: Sequence[Match]) -> Summary:
    """The mean over records."""
    scores = [match.score for match in matches]
    return Summary(
        n_known=len(scores),
        mean=math.fsum(scores) / len(scores) if scores else None,
        n_equivalent=sum(score > 0.5 for score in scores),
        n_trimmed=sum(match.trimmed > 0 for match in matches),
    )


def load(model: str, revision: str | None, *, dtype: str, reproducible: bool = False) -> Bem:
    """The classifier by name: a folder or a hub id.

    Raises:
        InputError: as `Bem`, or there is no such model.
    """
    from jaxscore.models.weights import checkpoint  # which imports JAX

    folder = checkpoint.resolve(model, revision)
    origin = model, provenance.commit(model, revision)
    return Bem(folder, dtype=dtype, reproducible=reproducible, origin=origin)
