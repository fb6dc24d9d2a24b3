"""What `--measures` and `--unit word` add to a scored text."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxscore.analysis import detection
from jaxscore.errors import InputError
from jaxscore.systems.evaluation import check_at_least, check_list, check_setting
from jaxscore.text.token_bytes import TokenBytes, split_words
from jaxscore.types.results import ScoredRequest

TOP = "top_k"
# name -> the measures of the device that it is computed from
NEEDS: Mapping[str, tuple[str, ...]] = {
    "rank": ("rank",),
    "varentropy": ("varentropy",),
    "renyi2": ("renyi2",),
    TOP: (),
    "min_k": (),
    "min_k_pp": ("deviation",),
    "fast_detect": ("deviation",),
}
PER_TOKEN = {"rank": "[int32]", "varentropy": "[float32]", "renyi2": "[float32]"}
PER_TEXT = ("min_k", "min_k_pp", "fast_detect")
TOP_FIELDS = ("top_id", "top_logprob", "top_token")
WORD_FIELDS = {"words": "[string]", "word_surprisal": "[float64]"}
LOG_BASES = {"2": 2.0, "e": math.e, "10": 10.0}
BLANKS = ("count", "skip")
UNITS = ("token", "word")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """Settings of what is added to a text's usual numbers.

    Attributes:
        measures: names of `NEEDS`.
        min_k: share of a text's tokens whose mean `min_k` and `min_k_pp` are.
        top_k: most probable tokens of each place, of the measure of that name.
        unit: "word" adds the surprisal of each word.
        log_base: of word surprisal: "2" is bits, "e" nats, "10" bans.
        leading_blank: "count" or "skip" the tokens before a word that are blanks alone.
    """

    measures: tuple[str, ...] = ()
    min_k: float = 0.2
    top_k: int = 5
    unit: str = "token"
    log_base: str = "2"
    leading_blank: str = "count"

    def check(self) -> None:
        """Check all values, and make a tuple of the names.

        Raises:
            InputError: naming the setting.
        """
        names = tuple(check_list("measures", self.measures))
        for name in names:
            check_setting("measures", name, tuple(NEEDS))
        if len(set(names)) < len(names):
            raise InputError(f"setting measures is {list(names)}, expected each name once")
        object.__setattr__(self, "measures", names)
        check_at_least("top_k", self.top_k, 1)
        check_setting("unit", self.unit, UNITS)
        check_setting("log_base", self.log_base, tuple(LOG_BASES))
        check_setting("leading_blank", self.leading_blank, BLANKS)
        if isinstance(self.min_k, bool) or not isinstance(self.min_k, int | float):
            raise InputError(f"setting min_k is {self.min_k!r}, expected a number")
        if not 0 < self.min_k <= 1:
            raise InputError(f"setting min_k is {self.min_k}, expected above 0 and at most 1")
        self._check_of_use("min_k", {"min_k", "min_k_pp"} & set(names), "min_k or min_k_pp")
        self._check_of_use("top_k", TOP in names, TOP)
        for name in ("log_base", "leading_blank"):
            self._check_of_use(name, self.unit == "word", 'unit "word"')

    def _check_of_use(self, name: str, used: object, by: str) -> None:
        """Refuse a value that nothing reads.

        Raises:
            InputError: naming the setting.
        """
        if not used and getattr(self, name) != DEFAULTS[name]:
            raise InputError(
                f"setting {name} is {getattr(self, name)!r}, and without {by} nothing reads it; "
                f"ask for {by}, or leave it out"
            )

    def wanted(self, *, arrays: bool) -> dict[str, Any]:
        """Arguments of `Scorer.stream`.

        Args:
            arrays: whether anything reads values of each token.
        """
        read = [name for name in self.measures if arrays or name in PER_TEXT]
        measures = sorted({need for name in read for need in NEEDS[name]})
        return {"measures": measures, "top": self.top_k if TOP in read else 0}

    def columns(self, *, arrays: bool) -> dict[str, str]:
        """Columns of a table, as of `io.records`; `TOP_FIELDS` are in its `extra`.

        Args:
            arrays: whether the table has values for each token.
        """
        out = {name: kind for name, kind in PER_TOKEN.items() if arrays and name in self.measures}
        out |= {name: "float64" for name in PER_TEXT if name in self.measures}
        return out | (WORD_FIELDS if arrays and self.unit == "word" else {})

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields that they add to a record."""
        own = {name for name in self.measures if name != TOP}
        own |= {*TOP_FIELDS} if TOP in self.measures else set()
        return frozenset(own | ({*WORD_FIELDS} if self.unit == "word" else set()))


DEFAULTS = {one.name: one.default for one in dataclasses.fields(MeasureSettings)}


class Measures:
    """Computes the fields that settings ask for, and counts what word surprisal did with blanks.

    Attributes:
        n_blanks: tokens that are blanks alone and stand before a word.
        of_blanks: their surprisal in all, in units of `log_base`.
    """

    def __init__(self, settings: MeasureSettings, tokenizer: Any) -> None:
        """`tokenizer` is that of the model; None where the unit is not "word"."""
        self._settings = settings
        self._bytes = TokenBytes(tokenizer) if settings.unit == "word" else None
        self.n_blanks, self.of_blanks = 0, 0.0

    def fields(self, scored: ScoredRequest, *, summary_only: bool) -> dict[str, Any]:
        """What a record of a text has beside the usual fields; arrays are NumPy arrays or lists.

        Args:
            summary_only: leave out what has a value for each token or word.
        """
        out: dict[str, Any] = {}
        names = self._settings.measures
        if not summary_only:
            out |= {name: _plain(scored, name) for name in PER_TOKEN if name in names}
            if TOP in names:
                out |= _top(scored)
        out |= {name: self._of_text(scored, name) for name in PER_TEXT if name in names}
        if self._bytes is not None and not summary_only:
            out |= self._words(scored, self._bytes)
        return out

    def remarks(self) -> list[str]:
        """What `leading_blank` changes; nothing where no token is blanks alone."""
        if not self.n_blanks:
            return []
        base, chosen = self._settings.log_base, self._settings.leading_blank
        unit = {"2": "bits", "e": "nats", "10": "bans"}[base]
        does = "count for the word after them" if chosen == "count" else "count for no word"
        other = "skip" if chosen == "count" else "count"
        return [
            f"{self.n_blanks} tokens before words are blanks alone and {does}; their surprisal is "
            f"{self.of_blanks:.6g} {unit} in all, by which --leading-blank {other} changes the sum"
        ]

    def _of_text(self, scored: ScoredRequest, name: str) -> float | None:
        known = scored.scored
        logprob, entropy = scored.logprob[known], scored.entropy[known]
        if name == "min_k":
            return detection.min_k(logprob, self._settings.min_k)
        deviation = _measure(scored, "deviation")[known]
        if name == "min_k_pp":
            return detection.min_k_pp(logprob, entropy, deviation, self._settings.min_k)
        return detection.fast_detect(logprob, entropy, deviation)

    def _words(self, scored: ScoredRequest, token_bytes: TokenBytes) -> dict[str, Any]:
        scale = -1 / math.log(LOG_BASES[self._settings.log_base])
        surprisal = scored.logprob.astype(np.float64) * scale
        words = split_words(scored.token_ids.tolist(), token_bytes)
        values = []
        for word in words:
            blanks = surprisal[list(word.blanks)]
            self.n_blanks += len(blanks)
            self.of_blanks += float(np.nansum(blanks))
            counted = word.blanks if self._settings.leading_blank == "count" else ()
            value = math.fsum(surprisal[[*counted, *word.tokens]])
            values.append(None if math.isnan(value) else value)
        return {"words": [word.text for word in words], "word_surprisal": values}


def _measure(scored: ScoredRequest, name: str) -> np.ndarray:
    """float32 [n]; empty of a text without tokens, which no program has seen."""
    return scored.measures.get(name, np.zeros(0, np.float32))


def _plain(scored: ScoredRequest, name: str) -> Any:
    """One measure of each token; of ranks whole numbers."""
    values = _measure(scored, name)
    if name != "rank":
        return values
    known = scored.scored
    if known.all():
        return values.astype(np.int32)
    return [int(value) if one else None for value, one in zip(values, known, strict=True)]


def _top(scored: ScoredRequest) -> dict[str, Any]:
    """The most probable tokens of each token's place. Where it has no probability ids and names
    are null, and so is each log-probability."""
    top, known = scored.top, scored.scored
    if top is None:  # no tokens at all
        return {name: [] for name in TOP_FIELDS}
    if known.all():
        return {"top_id": top.id, "top_logprob": top.logprob, "top_token": top.token}
    return {
        "top_id": [row if one else None for row, one in zip(top.id.tolist(), known, strict=True)],
        "top_logprob": top.logprob,  # NaN there
        "top_token": [row if one else None for row, one in zip(top.token, known, strict=True)],
    }
