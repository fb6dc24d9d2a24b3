"""What `--measures` and `--unit word` add to a scored text.

A measure is declared in two places here: its fields in `MeasureFields`, its formula in `MEASURES`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import numpy as np

from jaxscore.analysis import text_measures
from jaxscore.errors import InputError
from jaxscore.shell.fields import Mean, Metric, PerToken, per_token_fields
from jaxscore.shell.flags import ONE, flag
from jaxscore.shell.settings import Settings
from jaxscore.text.decoder import TokenBytes, split_words
from jaxscore.types.results import ScoredRequest

LOG_BASES = {"2": 2.0, "e": math.e, "10": 10.0}
GROUP = "further measures"


class MeasureFields(TypedDict, total=False):
    """Fields of all measures, and of words; nats if they have a unit."""

    rank: PerToken[np.int32]
    varentropy: PerToken[np.float32]
    renyi2: PerToken[np.float32]
    top_id: PerToken[list[int]]
    top_logprob: PerToken[list[float]]
    top_token: PerToken[list[str]]
    min_k: Annotated[float, Metric("Min-K%, nats"), Mean("Min-K%, nats")]
    min_k_pp: Annotated[float, Metric("Min-K%++"), Mean("Min-K%++")]
    fast_detect: Annotated[float, Metric("Fast-DetectGPT"), Mean("Fast-DetectGPT")]
    words: list[str]
    word_surprisal: list[float | None]


WORD_FIELDS = ("words", "word_surprisal")
PER_TOKEN = per_token_fields(MeasureFields)
BLANK_SURPRISAL = "blank_surprisal"  # of the tokens of spaces alone before words, in all


class Measure(NamedTuple):
    """One name of `--measures`.

    Attributes:
        compute: (scored text, settings) -> its fields; float32 [n] per token, or one number.
        needs: measures of the LM head that it is computed from, see `device.lm_head.sums`.
        fields: names in `MeasureFields`.
    """

    compute: Callable[[ScoredRequest, "MeasureSettings"], Mapping[str, Any]]
    needs: tuple[str, ...]
    fields: tuple[str, ...]

    @property
    def is_per_token(self) -> bool:
        """Whether it has a value for each token, which --summary-only omits."""
        return self.fields[0] in PER_TOKEN


def _values(scored: ScoredRequest, name: str) -> np.ndarray:
    """A measure of the LM head, float32 [n]; empty for a text without tokens."""
    return scored.measures.get(name, np.zeros(0, np.float32))


def _ranks(scored: ScoredRequest, settings: "MeasureSettings") -> dict[str, Any]:
    """int32 [n], or a list with None if a token has no probability."""
    values, known = _values(scored, "rank"), scored.scored
    if known.all():
        return {"rank": values.astype(np.int32)}
    pairs = zip(values, known, strict=True)
    return {"rank": [int(value) if is_known else None for value, is_known in pairs]}


def _top(scored: ScoredRequest, settings: "MeasureSettings") -> dict[str, Any]:
    """The most probable tokens in place of each token; null if it has no probability."""
    top, known = scored.top, scored.scored
    if top is None:  # no tokens at all
        return {"top_id": [], "top_logprob": [], "top_token": []}
    ids: Any = top.id
    names: list[Any] = top.token
    if not known.all():
        rows = zip(top.id.tolist(), known, strict=True)
        ids = [row if is_known else None for row, is_known in rows]
        names = [row if is_known else None for row, is_known in zip(names, known, strict=True)]
    return {"top_id": ids, "top_logprob": top.logprob, "top_token": names}


def _per_token(name: str) -> Measure:
    """A measure of the LM head as it is."""
    return Measure(lambda scored, _: {name: _values(scored, name)}, (name,), (name,))


def _known(scored: ScoredRequest, *names: str) -> list[np.ndarray]:
    """Log-probability, entropy and measures of the LM head at the tokens that have them."""
    known = scored.scored
    measured = (_values(scored, name)[known] for name in names)
    return [scored.logprob[known], scored.entropy[known], *measured]


def _min_k(scored: ScoredRequest, settings: "MeasureSettings") -> dict[str, Any]:
    return {"min_k": text_measures.min_k(_known(scored)[0], settings.min_k)}


def _min_k_pp(scored: ScoredRequest, settings: "MeasureSettings") -> dict[str, Any]:
    logprob, entropy, deviation = _known(scored, "deviation")
    return {"min_k_pp": text_measures.min_k_pp(logprob, entropy, deviation, settings.min_k)}


def _fast_detect(scored: ScoredRequest, settings: "MeasureSettings") -> dict[str, Any]:
    logprob, entropy, deviation = _known(scored, "deviation")
    return {"fast_detect": text_measures.fast_detect(logprob, entropy, deviation)}


MEASURES: Mapping[str, Measure] = {
    "rank": Measure(_ranks, ("rank",), ("rank",)),
    "varentropy": _per_token("varentropy"),
    "renyi2": _per_token("renyi2"),
    "top_k": Measure(_top, (), ("top_id", "top_logprob", "top_token")),
    "min_k": Measure(_min_k, (), ("min_k",)),
    "min_k_pp": Measure(_min_k_pp, ("deviation",), ("min_k_pp",)),
    "fast_detect": Measure(_fast_detect, ("deviation",), ("fast_detect",)),
}


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureSettings(Settings):
    """Settings of what is added to a text's usual numbers."""

    measures: tuple[Literal[tuple(MEASURES)], ...] = flag(  # type: ignore[valid-type]
        (),
        words=ONE,
        read=_names,
        metavar="NAME,NAME",
        group=GROUP,
        help=f"fields to add, of {', '.join(MEASURES)}",
    )
    min_k: float = flag(
        0.2,
        metavar="SHARE",
        group=GROUP,
        is_advanced=True,
        help="of a text's tokens that min_k and min_k_pp take (default 0.2)",
    )
    top_k: int = flag(
        5,
        least=1,
        metavar="K",
        group=GROUP,
        is_advanced=True,
        help="tokens of each place that top_k lists (default 5)",
    )
    unit: Literal["token", "word"] = flag(
        "token", group=GROUP, help="word: add `words` and `word_surprisal`"
    )
    log_base: Literal["2", "e", "10"] = flag(
        "2",
        group=GROUP,
        is_advanced=True,
        help="of word surprisal: 2 is bits (default); all other numbers are nats",
    )
    leading_blank: Literal["count", "skip"] = flag(
        "count",
        group=GROUP,
        is_advanced=True,
        help="count: tokens of spaces alone before a word belong to it (default); skip: "
        "they belong to no word. A warning reports what it changes",
    )

    def __post_init__(self) -> None:
        """Check all values, and make a tuple of the names; see `Settings`."""
        super().__post_init__()
        names = self.measures
        if len(set(names)) < len(names):
            raise InputError(f"setting measures is {list(names)}, expected each name once")
        if not 0 < self.min_k <= 1:
            raise InputError(f"setting min_k is {self.min_k}, expected above 0 and at most 1")
        readers = {
            "min_k": ("--measures min_k", {"min_k", "min_k_pp"} & set(names)),
            "top_k": ("--measures top_k", "top_k" in names),
            **dict.fromkeys(("log_base", "leading_blank"), ("--unit word", self.unit == "word")),
        }
        for name, (reader, is_read) in readers.items():
            value = getattr(self, name)
            if not is_read and value != getattr(MeasureSettings, name):
                raise InputError(
                    f"setting {name} is {value!r}, which has no effect without {reader}; add that, "
                    f"or leave out --{name.replace('_', '-')}"
                )

    @property
    def added_fields(self) -> frozenset[str]:
        """Names of the fields that they add to a record."""
        names = [name for measure in self.measures for name in MEASURES[measure].fields]
        return frozenset([*names, *(WORD_FIELDS if self.unit == "word" else ())])

    def omitted_fields(self) -> frozenset[str]:
        """The fields of all other measures."""
        absent = frozenset(MeasureFields.__annotations__) - self.added_fields
        return super().omitted_fields() | absent


class MeasuredFields:
    """Computes the added fields of scored texts, and notes the tokens of spaces alone before words.

    Attributes:
        requested: arguments of `LM.stream`.
    """

    def __init__(self, settings: Any, lm: Any) -> None:
        """Args:
        settings: `MeasureSettings` with `summary_only`, which leaves out what has a value for
            each token; words remain.
        lm: the audited model, which counts the tokens before words.
        """
        self._settings, self._lm = settings, lm
        self._measures = [
            measure
            for name, measure in MEASURES.items()
            if name in settings.measures and not (settings.summary_only and measure.is_per_token)
        ]
        has_words = settings.unit == "word"
        self._bytes = TokenBytes(lm.encoder.tokenizer) if has_words else None
        self.requested = {
            "measures": sorted({need for measure in self._measures for need in measure.needs}),
            "top": settings.top_k if MEASURES["top_k"] in self._measures else 0,
        }

    def of(self, scored: ScoredRequest) -> dict[str, Any]:
        """The added fields of a scored text; arrays are NumPy arrays or lists."""
        out: dict[str, Any] = {}
        for measure in self._measures:
            out |= measure.compute(scored, self._settings)
        return out if self._bytes is None else out | self._words(scored, self._bytes)

    def _words(self, scored: ScoredRequest, token_bytes: TokenBytes) -> dict[str, Any]:
        is_counted = self._settings.leading_blank == "count"
        scale = -1 / math.log(LOG_BASES[self._settings.log_base])
        surprisal = scored.logprob.astype(np.float64) * scale
        words = split_words(scored.token_ids.tolist(), token_bytes)
        values = []
        for word in words:
            if word.blanks:
                self._note(surprisal[list(word.blanks)], is_counted)
            value = math.fsum(surprisal[[*(word.blanks if is_counted else ()), *word.tokens]])
            values.append(None if math.isnan(value) else value)
        return {"words": [word.text for word in words], "word_surprisal": values}

    def _note(self, surprisal: np.ndarray, is_counted: bool) -> None:
        """Count tokens of spaces alone before a word, and what `leading_blank` would change."""
        does, other = (
            ("for the word after them", "skip") if is_counted else ("for no word", "count")
        )
        unit = {"2": "bits", "e": "nats", "10": "bans"}[self._settings.log_base]
        self._lm.counts[BLANK_SURPRISAL] += float(np.nansum(surprisal))
        self._lm.warnings[
            f"{{n}} tokens before words are blanks alone and count {does}; their surprisal is "
            f"{{{BLANK_SURPRISAL}}} {unit} in all, by which --leading-blank {other} changes the sum"
        ] += len(surprisal)
