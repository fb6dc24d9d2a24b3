"""Fields that `--measures`, `--class` and `--unit word` add to a scored text.

A measure is declared in two places here: its fields in `MeasureFields`, its formula in `MEASURES`.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypedDict

import numpy as np

from jaxscore.analysis import text_measures
from jaxscore.errors import InputError
from jaxscore.plan.requests import MASS, TokenClasses
from jaxscore.shell.fields import Mean, Metric, PerToken, per_token_fields
from jaxscore.shell.flags import MAYBE, ONE, flag
from jaxscore.shell.settings import Settings
from jaxscore.text import token_classes
from jaxscore.text.decoder import TokenBytes, Word, split_words
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
    word_logprob_corrected: list[float | None]


WORD_FIELDS = ("words", "word_surprisal")
CORRECTED = "word_logprob_corrected"
MEAN_MASS = f"mean_{MASS}"
PER_TOKEN = per_token_fields(MeasureFields)
CLASS_NAME = re.compile(r"[A-Za-z0-9_]+")
BORDER = "word border"  # the class of --word-correction, which no --class can name
NO_END = (
    "{n} texts fill the model's positions, so that the correction of their last word is not known; "
    "it is null"
)
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
        """True if it has a value for each token, which --summary-only omits."""
        return self.fields[0] in PER_TOKEN


def _values(scored: ScoredRequest, name: str) -> np.ndarray:
    """Return a measure of the LM head, float32 [n]; NaN if no window scores the text."""
    return scored.measures.get(name, np.full(scored.n_tokens, np.nan, np.float32))


def _ranks(scored: ScoredRequest, settings: "MeasureSettings") -> dict[str, Any]:
    """Return int32 [n], or a list with None for tokens without a probability."""
    values, scored_mask = _values(scored, "rank"), scored.scored
    if scored_mask.all():
        return {"rank": values.astype(np.int32)}
    pairs = zip(values, scored_mask, strict=True)
    return {"rank": [int(value) if is_known else None for value, is_known in pairs]}


def _top(scored: ScoredRequest, settings: "MeasureSettings") -> dict[str, Any]:
    """Return the most probable tokens in place of each token; null without a probability."""
    top, scored_mask = scored.top, scored.scored
    if top is None:  # no window scores the text
        return dict.fromkeys(MEASURES["top_k"].fields, [None] * scored.n_tokens)
    ids: Any = top.id
    names: list[Any] = top.token
    if not scored_mask.all():
        rows = zip(top.id.tolist(), scored_mask, strict=True)
        ids = [row if is_known else None for row, is_known in rows]
        names = [
            row if is_known else None for row, is_known in zip(names, scored_mask, strict=True)
        ]
    return {"top_id": ids, "top_logprob": top.logprob, "top_token": names}


def _per_token(name: str) -> Measure:
    """A measure of the LM head as it is."""
    return Measure(lambda scored, _: {name: _values(scored, name)}, (name,), (name,))


def _known(scored: ScoredRequest, *names: str) -> list[np.ndarray]:
    """Log-probability, entropy and measures of the LM head at the tokens that have them."""
    is_scored = scored.scored
    measured = (_values(scored, name)[is_scored] for name in names)
    return [scored.logprob[is_scored], scored.entropy[is_scored], *measured]


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


def _read_class(word: str) -> str:
    """Return a word of --class, with the ids of its file.

    Raises:
        ValueError: the name or the ids are missing or invalid.
    """
    name, equals, content = word.partition("=")
    if not equals or not CLASS_NAME.fullmatch(name):
        raise ValueError(
            f"{word!r}, expected NAME=IDS, such as {token_classes.WORDS}={token_classes.WORDS} or "
            "digits=15,16,17; a name has letters, digits and underscores"
        )
    if content in (token_classes.WORDS, token_classes.EOS):
        return word
    if not content or token_classes.IDS.fullmatch(content):
        ids = token_classes.parse_ids(content, f"class {name}")
    else:
        ids = token_classes.read_ids(Path(content))
    return f"{name}={','.join(map(str, ids))}"


def _class_word(name: str, content: Any) -> str:
    """Return a class of Python as a word of --class."""
    if isinstance(content, Iterable) and not isinstance(content, str):
        content = ",".join(str(int(id)) for id in content)
    return f"{name}={content}"


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
    classes: tuple[str, ...] = flag(
        (),
        name="class",
        read=_read_class,
        metavar="NAME=IDS",
        group=GROUP,
        help="add `mass_NAME`, the log-probability that some token of a class comes in place of "
        "each token, and its mean. IDS: ids such as 5,17; a file of ids, one a line or a JSON "
        "array; `words`, the ids that begin with whitespace and the EOS; or `eos`",
    )
    word_correction: Literal["any", "space"] | None = flag(
        None,
        words=MAYBE,
        bare="any",
        metavar="space",
        group=GROUP,
        help="with --unit word add `word_logprob_corrected`, with --rows word `corrected`: the "
        "log-probability of each word, with that of a border after it and without that before it "
        "(arXiv 2406.14561). A border is any whitespace or the EOS; `space`: a leading space "
        "alone, as in minicons",
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

    named_fields: ClassVar[Mapping[str, Any]] = {MASS: PerToken[np.float32], MEAN_MASS: float}

    def __post_init__(self) -> None:
        """Check all values, and make tuples of names and classes; see `Settings`."""
        if isinstance(self.classes, Mapping):
            words = tuple(_class_word(*pair) for pair in self.classes.items())
            object.__setattr__(self, "classes", words)
        super().__post_init__()
        try:
            object.__setattr__(self, "classes", tuple(map(_read_class, self.classes)))
        except ValueError as problem:
            raise InputError(f"setting classes is {problem}") from None
        if len(set(self.field_names)) < len(self.classes):
            raise InputError(f"--class: {', '.join(self.field_names)}, expected each name once")
        names = self.measures
        if len(set(names)) < len(names):
            raise InputError(f"setting measures is {list(names)}, expected each name once")
        if not 0 < self.min_k <= 1:
            raise InputError(f"setting min_k is {self.min_k}, expected above 0 and at most 1")
        readers = {
            "min_k": ("--measures min_k", {"min_k", "min_k_pp"} & set(names)),
            "top_k": ("--measures top_k", "top_k" in names),
            **dict.fromkeys(("log_base", "leading_blank"), ("--unit word", self.unit == "word")),
            "word_correction": (
                "--unit word or --rows word",
                "word" in (self.unit, getattr(self, "rows", None)),
            ),
        }
        for name, (reader, is_read) in readers.items():
            value = getattr(self, name)
            if not is_read and value != getattr(MeasureSettings, name):
                raise InputError(
                    f"setting {name} is {value!r}, which only matters with {reader}; add that, "
                    f"or leave out --{name.replace('_', '-')}"
                )

        if self.word_correction is not None and self.leading_blank == "skip":
            raise InputError(
                "setting leading_blank is 'skip', but a corrected word has the spaces before it; "
                "leave out --leading-blank or --word-correction"
            )

    @property
    def field_names(self) -> tuple[str, ...]:
        """See `Settings.field_names`: the classes."""
        return tuple(word.partition("=")[0] for word in self.classes)

    @property
    def added_fields(self) -> frozenset[str]:
        """Names of the fields that they add to a record."""
        names = [name for measure in self.measures for name in MEASURES[measure].fields]
        words = WORD_FIELDS if self.unit == "word" else ()
        corrected = () if self.word_correction is None else (CORRECTED,)
        masses = (f"{MASS}{name}" for name in self.field_names)
        return frozenset([*names, *words, *corrected, *masses])

    def omitted_fields(self) -> frozenset[str]:
        """The fields of all other measures."""
        absent = frozenset(MeasureFields.__annotations__) - self.added_fields
        return super().omitted_fields() | absent

    def token_classes(self, lm: Any) -> dict[str, Sequence[int]]:
        """Return name -> token ids of all classes, `BORDER` included.

        Raises:
            InputError: the model or its tokenizer does not have such ids.
        """
        vocab_size, eos = lm.capabilities.vocab_size, token_classes.eos_ids(lm)

        def border_ids(flag: str, *, space_alone: bool = False) -> list[int]:
            try:
                return token_classes.word_border_ids(
                    lm.encoder, vocab_size, space_alone=space_alone
                )
            except InputError as problem:
                raise InputError(f"{flag}: {problem}") from None

        out: dict[str, Sequence[int]] = {}
        for word in self.classes:
            name, _, content = word.partition("=")
            if content == token_classes.WORDS:
                out[name] = [*border_ids(f"--class {word}"), *eos]
            elif content == token_classes.EOS:
                out[name] = eos
            else:
                out[name] = [int(id) for id in content.split(",")]
            if not out[name]:
                raise InputError(
                    f"--class {word}: the model names no EOS; give its id, as in {name}=2"
                )
        if self.word_correction == "space":
            out[BORDER] = border_ids("--word-correction space", space_alone=True)
        elif self.word_correction is not None:
            out[BORDER] = [*border_ids("--word-correction"), *eos]
        try:
            TokenClasses.of(out, vocab_size)
        except ValueError as problem:
            raise InputError(f"--class: {problem}") from None
        return out


class MeasuredFields:
    """Computes the added fields of scored texts, and notes the tokens of spaces alone before words.

    Attributes:
        requested: arguments of `LM.stream`.
    """

    def __init__(self, settings: Any, lm: Any) -> None:
        """Args:
        settings: `MeasureSettings` with `summary_only`, which leaves out what has a value for
            each token; words remain. With `rows` the table of rows has these.
        lm: the audited model, which counts the tokens before words.
        """
        self._settings, self._lm = settings, lm
        self._has_arrays = has_arrays = settings.rows == "token" or not settings.summary_only
        self._measures = [
            measure
            for name, measure in MEASURES.items()
            if name in settings.measures and (has_arrays or not measure.is_per_token)
        ]
        has_words = settings.unit == "word"
        self._bytes = TokenBytes(lm.encoder.tokenizer) if has_words else None
        self.requested = {
            "measures": sorted({need for measure in self._measures for need in measure.needs}),
            "top": settings.top_k if MEASURES["top_k"] in self._measures else 0,
        }
        if settings.classes or settings.word_correction is not None:
            self.requested["classes"] = settings.token_classes(lm)
        if settings.word_correction is not None:
            self.requested["ends"] = True

    def of(
        self,
        scored: ScoredRequest,
        bounds: Sequence[int] | None = None,
        *,
        starts_text: bool = False,
    ) -> dict[str, Any]:
        """Return the added fields of a scored text; arrays are NumPy arrays or lists.

        Args:
            bounds: index of the first token of each message, and the number of tokens; None for a
                text.
            starts_text: see `text_measures.corrected_words`.
        """
        out: dict[str, Any] = {}
        for measure in self._measures:
            out |= measure.compute(scored, self._settings)
        for name in self._settings.field_names:
            mass = _values(scored, f"{MASS}{name}")
            if self._has_arrays:
                out[f"{MASS}{name}"] = mass
            scored_mass = mass[scored.scored]
            mean = float(scored_mass.mean(dtype=np.float64)) if len(scored_mass) else None
            out[f"{MEAN_MASS}{name}"] = mean
        if self._bytes is None:
            return out
        words: list[Word] = []
        for start, end in itertools.pairwise(bounds or (0, scored.n_tokens)):
            for word in split_words(scored.token_ids[start:end].tolist(), self._bytes):
                tokens, blanks = (
                    tuple(start + k for k in indices) for indices in (word.tokens, word.blanks)
                )
                words.append(word._replace(tokens=tokens, blanks=blanks))
        out |= self._words(scored, words)
        if self._settings.word_correction is not None:
            out[CORRECTED] = self.corrected(scored, words, starts_text=starts_text)
        return out

    def corrected(
        self, scored: ScoredRequest, words: Sequence[Word], *, starts_text: bool
    ) -> list[float | None]:
        """Return `word_logprob_corrected` of a text's words, see `text_measures`."""
        mass = self.border_mass(scored)
        tokens = [(*word.blanks, *word.tokens) for word in words]
        return text_measures.corrected_words(scored.logprob, mass, tokens, starts_text=starts_text)

    def border_mass(self, scored: ScoredRequest) -> np.ndarray:
        """Return ln p of a word border in place of each token and after the last one, [n + 1]."""
        end = scored.end.get(f"{MASS}{BORDER}", math.nan)
        if math.isnan(end):
            self._lm.warnings[NO_END] += 1
        return np.append(_values(scored, f"{MASS}{BORDER}"), end)

    def _words(self, scored: ScoredRequest, words: Sequence[Word]) -> dict[str, Any]:
        is_counted = self._settings.leading_blank == "count"
        scale = -1 / math.log(LOG_BASES[self._settings.log_base])
        surprisal = scored.logprob.astype(np.float64) * scale
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
