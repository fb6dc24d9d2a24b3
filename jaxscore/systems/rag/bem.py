"""BEM: classify if a response is equivalent to a reference (Bulian et al., arXiv 2202.07654).

A BERT classifier reads

    [CLS] candidate [SEP] reference [SEP] question [SEP]
    types   0         0      1        1      1       1       the question's type is 2 if there
                                                              are three, as in the authors' model
and returns P(equivalent), its class 1. A record's score is the maximum over its references.
"""

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.lm import Capabilities
from jaxscore.shell.flags import flag
from jaxscore.shell.settings import IntervalSettings
from jaxscore.shell.system import Summary
from jaxscore.systems import rag
from jaxscore.systems.rag import Findings, Item
from jaxscore.systems.rag.judge import JudgeSystem
from jaxscore.text.bounded_tokenizer import BoundedTokenizer, Ids, TextError, encode_each
from jaxscore.text.tokenizer import copy_backend
from jaxscore.text.tokenizer_files import load_tokenizer

DEFAULT_MODEL = "kortukov/answer-equivalence-bem"
EQUIVALENT = 1  # index of the class


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(IntervalSettings):
    """Settings of `bem`; `metric` is the name of the score."""

    metric: str = flag("BEM", is_flag=False)

    def __post_init__(self) -> None:
        """Check all values; see `IntervalSettings`."""
        super().__post_init__()
        if self.truncate:
            raise InputError(
                "truncate (--truncate) is for a causal model's prompts; BEM always leaves out the "
                "ends of texts that are too long"
            )
        if self.audit_noise:
            raise InputError(
                "audit_noise (--audit-noise) audits a causal model's probabilities; leave it out "
                "with BEM"
            )

    def record(self) -> dict[str, Any]:
        """Return the settings that decide the result."""
        return {"seed": self.seed, "n_bootstrap": self.n_bootstrap}


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """BEM's scores of one record.

    Attributes:
        by_reference: P(equivalent) for each reference, in the order of the label.
        best: the reference with the highest P(equivalent).
        trimmed: the number of tokens left out of inputs longer than the model's positions.
    """

    by_reference: tuple[float, ...]
    best: str
    trimmed: int

    @property
    def score(self) -> float:
        """The highest P(equivalent)."""
        return max(self.by_reference)


class Bem:
    """The classifier with its tokenizer. `describe` is the only method that it shares with `LM`."""

    capabilities = Capabilities()
    remarks: Sequence[str] = ()

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
            dtype, reproducible: see `BertClassifier`.
            origin: the model's name and commit, for reports; None names the folder.

        Raises:
            InputError: not a BERT classifier of two classes, or a tokenizer without [CLS], [SEP].
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
        """Return the classifier and how it is computed, for reports."""
        return dict(self._facts)

    def match(self, items: Sequence[Item]) -> list[Match | TextError]:
        """Return the match of each item, or the tokenizer's error for one of its texts."""
        texts = sorted({text for item in items for text in _texts(item)})
        ids: dict[str, Ids] = {}
        errors: dict[str, TextError] = {}
        for text, encoded in zip(texts, encode_each(self._tokenizer.ids, texts), strict=True):
            if isinstance(encoded, TextError):
                errors[text] = encoded
            else:
                ids[text] = encoded
        inputs = [
            [
                self._input([ids[item.response], ids[reference], ids[item.question]])
                for reference in item.label
            ]
            if errors.keys().isdisjoint(_texts(item))
            else []
            for item in items
        ]
        sequences = [sequence for of_item in inputs for sequence, _ in of_item]
        equivalent = iter(self.classifier.probabilities(sequences)[:, EQUIVALENT].tolist())
        matches: list[Match | TextError] = []
        for item, of_item in zip(items, inputs, strict=True):
            if not of_item:
                matches.append(next(errors[text] for text in _texts(item) if text in errors))
                continue
            by_reference = tuple(next(equivalent) for _ in of_item)
            best = item.label[by_reference.index(max(by_reference))]
            matches.append(Match(by_reference, best, sum(trimmed for _, trimmed in of_item)))
        return matches

    def _input(self, parts: list[Ids]) -> tuple[tuple[np.ndarray, np.ndarray], int]:
        """Return ids and types, and the number of tokens cut from the ends of the longest parts."""
        room = self.classifier.max_positions - len(parts) - 1
        lengths = fitted([len(ids_of_part) for ids_of_part in parts], room)
        ids, types = [self._cls], [0]
        for k, (ids_of_part, length) in enumerate(zip(parts, lengths, strict=True)):
            ids += [*ids_of_part[:length], self._sep]
            types += [min(k, self.classifier.n_types - 1)] * (length + 1)
        over = sum(map(len, parts)) - sum(lengths)
        return (np.array(ids, np.int32), np.array(types, np.int32)), over


def _texts(item: Item) -> tuple[str, ...]:
    return item.response, item.question, *item.label


def fitted(lengths: Sequence[int], room: int) -> list[int]:
    """Return the lengths, each cut to the highest common limit with which their sum fits."""

    def cut(limit: int) -> list[int]:
        return [min(length, limit) for length in lengths]

    limits = range(max(lengths) + 1)
    return cut(bisect.bisect_right(limits, room, key=lambda limit: sum(cut(limit))) - 1)


def load(model: str, revision: str | None, *, dtype: str, reproducible: bool = False) -> Bem:
    """Load the classifier of a name: a folder or a hub id.

    Raises:
        InputError: see `Bem`; or there is no such model.
    """
    from jaxscore.models.weights.folder import resolve  # which imports JAX

    folder = resolve(model, revision)
    origin = model, provenance.commit(model, revision)
    return Bem(folder, dtype=dtype, reproducible=reproducible, origin=origin)


class BemSystem(JudgeSystem):
    """Is a response equivalent to a reference? See `judge --bem`."""

    name = "bem"
    settings = Settings

    def needs(self, settings: Settings) -> tuple[str | type, ...]:
        """Return the classifier's type: it is not a language model."""
        return (Bem,)

    def score(self, lm: Any, items: Sequence[Item], settings: Settings) -> Iterator[dict[str, Any]]:
        """Compare each response with its references."""
        with lm.timed():
            matches = lm.match([*items])
        for item, match in zip(items, matches, strict=True):
            if isinstance(match, TextError):
                yield {**item.repeated(), "error": str(match)}
                continue
            yield {
                **item.repeated(),
                "score": match.score,
                "known": True,
                "by_reference": list(match.by_reference),
                "best": match.best,
                **({"trimmed": match.trimmed} if match.trimmed else {}),
            }

    def summarize(self, records: Sequence[Any], settings: Settings) -> Summary:
        """Return the mean over the records."""
        scores = [rag.score_of(record) for record in rag.judged(records)]
        mean = rag.mean_of(scores, settings.n_bootstrap, settings.seed)
        n_trimmed = sum("trimmed" in record for record in records)
        warnings = []
        if n_trimmed:
            warnings.append(
                f"{n_trimmed} records are longer than the classifier's positions; the ends of "
                "their longest texts were left out"
            )
        summary = {
            **rag.summary_of(mean),
            "n_equivalent": sum(score > 0.5 for score in scores),
            "n_trimmed": n_trimmed,
        }
        findings = Findings("bem", {"mean": mean}, summary, warnings)
        return rag.summary_of_findings(findings, records, settings.metric)


SYSTEM = BemSystem()
