"""`score --rows`: the tokens, words or regions of each text, as the rows of a table."""

import dataclasses
import math
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np

from jaxscore.analysis.text_measures import bits, corrected_words
from jaxscore.errors import InputError
from jaxscore.io.items import NOTHING
from jaxscore.shell.fields import arrow_type, is_per_token
from jaxscore.shell.flags import flag
from jaxscore.shell.items import NullError
from jaxscore.shell.settings import Settings
from jaxscore.systems.score.measures import MeasuredFields
from jaxscore.text.decoder import TokenBytes, split_words
from jaxscore.text.spans import Span, TokenSpans, regions_of, split_regions, token_spans
from jaxscore.text.whole_words import lacks_spaces
from jaxscore.types.results import ScoredRequest

GROUP = "rows of a table"
REGIONS = "regions"
AT_A_TIME = 4096  # rows
SUMMED = ("against_logprob", "gain")  # per-token fields whose sums over words have a meaning
NAMES = {"token_ids": "token_id", "tokens": "token"}  # of per-token fields, as columns
REWRITTEN = (
    "{n} texts are rewritten by the tokenizer, so that its tokens have other characters; text, "
    "start and end of their rows are those of their tokens"
)
UNSPACED = (
    "{n} texts are written without spaces, so that each is one word: put a space between their "
    "words, or take --rows token"
)


class TokenRow(TypedDict, total=False):
    """First columns of a token, in characters of the continuation, nats and bits (surprisal)."""

    index: int
    text: str
    start: int
    end: int
    token_id: np.int32
    token: str
    logprob: np.float32
    surprisal: np.float32
    entropy: np.float32


class WordRow(TypedDict, total=False):
    """Columns of a word: sums over its tokens, in nats and bits; the entropy before its first."""

    index: int
    text: str
    start: int
    end: int
    n_tokens: int
    logprob: float
    surprisal: float
    entropy: np.float32


class CorrectedWordRow(WordRow, total=False):
    """Columns of a word with --word-correction."""

    corrected: float


class RegionRow(WordRow, total=False):
    """Columns of a region; `crossing` if one of its tokens has characters of the next one."""

    crossing: bool


class MessageColumns(TypedDict, total=False):
    """Further columns of conversations: which message it is, from 0, and its role."""

    message: int
    role: str


class RowFields(TypedDict, total=False):
    """Fields of a record with rows: their number, and in Python the rows."""

    n_rows: int
    rows: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSettings(Settings):
    """Settings of the table of rows."""

    rows: Literal["token", "word", "region", "message"] | None = flag(
        None,
        group=GROUP,
        help="make OUT a table with a row per token, per word between white space, per region, or "
        "per scored message, with the item's other columns; sums and means of the items are in "
        "OUT.records.jsonl",
    )
    regions_field: str = flag(
        REGIONS,
        expected="the name of a field",
        metavar="FIELD",
        group=GROUP,
        is_advanced=True,
        help="field of an item with its regions: a list of texts that joined are the continuation, "
        "one text with | between them, or a list of [start, end) pairs (default: regions)",
    )

    def __post_init__(self) -> None:
        """Check all values; see `Settings`."""
        super().__post_init__()
        if self.regions_field != REGIONS and self.rows != "region":
            raise InputError(
                f"setting regions_field is {self.regions_field!r}, which needs "
                "--rows region; add that, or leave out --regions-field"
            )
        if self.rows is not None:  # the rows have what the arrays have
            object.__setattr__(self, "summary_only", True)

    def omitted_fields(self) -> frozenset[str]:
        """See `Settings.omitted_fields`."""
        fields = () if self.rows is not None else RowFields.__annotations__
        return super().omitted_fields() | frozenset(fields)

    @property
    def list_fields(self) -> tuple[str, ...]:
        """See `Settings.list_fields`."""
        fields = (self.regions_field,) if self.rows == "region" else ()
        return (*super().list_fields, *fields)

    @property
    def further_fields(self) -> tuple[str, ...]:
        """See `Settings.further_fields`."""
        fields = (self.regions_field,) if self.rows == "region" else ()
        return (*super().further_fields, *fields)

    def check_messages(self, messages: Sequence[Any] | None) -> None:
        """Refuse an item that does not have the unit of the rows.

        Raises:
            InputError: a text without messages, or a conversation without regions.
        """
        if self.rows == "message" and messages is None:
            raise InputError(
                "a text, and --rows message is for items with messages; take --rows token, word or "
                "region"
            )
        if self.rows == "region" and messages is not None:
            raise InputError(
                "it has messages, and regions are parts of a continuation; take --rows token, word "
                "or message"
            )

    def regions(self, continuation: str, others: Mapping[str, Any]) -> list[Span] | None:
        """Return the regions of an item; None without --rows region.

        Raises:
            InputError: it has none, or they do not fit the continuation.
        """
        name = self.regions_field
        if self.rows != "region":
            return None
        if name not in others:
            raise InputError(
                f'no field "{name}", expected the regions of --rows region; give --regions-field '
                "FIELD if they have another name"
            )
        if others[name] is None:
            raise NullError(f'field "{name}" is null, expected the regions of the continuation')
        try:
            return regions_of(others[name], continuation)
        except InputError as problem:
            raise InputError(f'field "{name}": {problem}') from None


def row_columns(record: type, settings: Any) -> dict[str, str]:
    """Return column -> Arrow type of a row, without the item's id and other columns.

    Args:
        record: type of the records, whose per-token fields are columns of tokens.
        settings: `RowSettings`.
    """
    is_corrected = settings.rows == "word" and settings.word_correction is not None
    word = CorrectedWordRow if is_corrected else WordRow
    kinds: Mapping[str, type] = {"token": TokenRow, "region": RegionRow}
    hints = typing.get_type_hints(kinds.get(settings.rows, word))
    if settings.score_roles:
        hints = {"index": int, **typing.get_type_hints(MessageColumns), **hints}
    columns = {name: arrow_type(hint) for name, hint in hints.items()}
    for name, hint in settings.record_fields(record).items():
        if is_per_token(hint) and (settings.rows == "token" or name in SUMMED):
            columns[NAMES.get(name, name)] = (
                arrow_type(hint)[1:-1] if settings.rows == "token" else "float64"
            )
    return columns


class Rows:
    """Computes the rows of scored texts, some at a time."""

    def __init__(self, settings: Any, lm: Any, measured: MeasuredFields) -> None:
        """Args:
        settings: `RowSettings`, with `rows`.
        lm: the audited model, which counts warnings.
        measured: computes the correction of words.
        """
        self._unit, self._lm = settings.rows, lm
        self._border_mass = measured.border_mass if settings.word_correction else None
        self._bytes = TokenBytes(lm.encoder.tokenizer)

    def of(
        self,
        text: str,
        regions: Sequence[Span] | None,
        scored: ScoredRequest,
        fields: Mapping[str, Any],
        *,
        starts_text: bool = False,
        messages: Sequence[Mapping[str, Any]] = (),
    ) -> Iterator[dict[str, Any]]:
        """Return the columns of some rows at a time.

        Args:
            text: the continuation as the user wrote it.
            regions: the spans of the text's regions, for rows of regions.
            scored: the text's scores.
            fields: per-token fields of its record, arrays or lists.
            starts_text: see `text_measures.corrected_words`.
            messages: those of a conversation, in place of text and regions, with the indices of
                their tokens; characters are then those of each message.

        Raises:
            InputError: the tokenizer rewrites a text with regions.
        """
        mass = None if self._border_mass is None else self._border_mass(scored)
        if not messages:
            return self._of_text(text, regions, scored, fields, mass, starts_text=starts_text)
        return self._of_messages(messages, scored, fields)

    def _of_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        scored: ScoredRequest,
        fields: Mapping[str, Any],
    ) -> Iterator[dict[str, Any]]:
        n_rows = 0
        for message in messages:
            start, end = message["start"], message["end"]
            content = dataclasses.replace(
                scored,
                token_ids=scored.token_ids[start:end],
                tokens=scored.tokens[start:end],
                logprob=scored.logprob[start:end],
                entropy=scored.entropy[start:end],
            )
            values = {name: column[start:end] for name, column in fields.items()}
            for columns in self._of_text(None, None, content, values, None):
                index = np.asarray(columns.pop("index")) + n_rows
                n_rows += len(index)
                yield {
                    "index": index,
                    "message": [message["index"]] * len(index),
                    "role": [message["role"]] * len(index),
                    **columns,
                }

    def _of_text(
        self,
        text: str | None,
        regions: Sequence[Span] | None,
        scored: ScoredRequest,
        fields: Mapping[str, Any],
        mass: np.ndarray | None,
        *,
        starts_text: bool = False,
    ) -> Iterator[dict[str, Any]]:
        spans = token_spans(scored.token_ids, self._bytes, text)
        if spans.is_rewritten and regions is not None:
            raise InputError(
                "the tokenizer rewrites the text, so that its tokens have other characters than "
                "its regions; give the text as the tokenizer writes it, or another model"
            )
        if spans.is_rewritten:
            self._lm.warnings[REWRITTEN] += 1
        if self._unit == "token":
            return _token_rows(spans, scored, fields)
        units: Iterable[_Unit]
        if self._unit == "message":
            units = [_Unit((0, len(spans.text)), [*range(scored.n_tokens)])]
        elif regions is not None:
            units = _regions(spans, regions)
        else:
            units = self._words(spans, scored, mass, starts_text=starts_text)
        sums = {"logprob": scored.logprob.astype(np.float64)} | {
            name: np.asarray(fields[name], np.float64) for name in SUMMED if name in fields
        }
        return (
            _summed_rows(rows, spans.text, sums, scored.entropy) for rows in _some_at_a_time(units)
        )

    def _words(
        self,
        spans: TokenSpans,
        scored: ScoredRequest,
        mass: np.ndarray | None,
        *,
        starts_text: bool,
    ) -> Iterator["_Unit"]:
        n_words, first = 0, ""
        logprob = scored.logprob.astype(np.float64)
        for word in split_words(scored.token_ids.tolist(), self._bytes):
            n_words, first = n_words + 1, first or word.text
            span = spans.span(word.start, word.start + len(word.text))
            tokens = [*word.blanks, *word.tokens]
            further: Mapping[str, Any] = NOTHING
            if mass is not None:
                [value] = corrected_words(logprob, mass, [tokens], starts_text=starts_text)
                further = {"corrected": value}
            yield _Unit(span, tokens, further)
        if n_words and lacks_spaces(first, len(spans.text.encode()), n_words):
            self._lm.warnings[UNSPACED] += 1


class _Unit(typing.NamedTuple):
    """A word or a region: its characters, its tokens, and further columns."""

    span: Span
    tokens: list[int]
    further: Mapping[str, Any] = NOTHING


def _regions(spans: TokenSpans, regions: Sequence[Span]) -> Iterator[_Unit]:
    for span, (tokens, crossing) in zip(regions, split_regions(spans, regions), strict=True):
        yield _Unit(span, tokens, {"crossing": bool(crossing)})


def _token_rows(
    spans: TokenSpans, scored: ScoredRequest, fields: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    for first in range(0, len(spans.start), AT_A_TIME):
        places = slice(first, first + AT_A_TIME)
        start, end = spans.start[places], spans.end[places]
        pairs = zip(start.tolist(), end.tolist(), strict=True)
        columns = {
            "index": np.arange(first, first + len(start)),
            "text": [spans.text[a:b] for a, b in pairs],
            "start": start,
            "end": end,
            "token_id": scored.token_ids[places],
            "token": scored.tokens[places],
            "logprob": scored.logprob[places],
            "surprisal": _surprisal(scored.logprob[places]),
            "entropy": scored.entropy[places],
        }
        others = {name: values[places] for name, values in fields.items() if name not in NAMES}
        yield {**columns, **others}


def _summed_rows(
    rows: Sequence[tuple[int, _Unit]],
    text: str,
    sums: Mapping[str, np.ndarray],
    entropy: np.ndarray,
) -> dict[str, Any]:
    """Return the columns of words or regions: sums over their tokens."""
    units = [unit for _, unit in rows]
    columns: dict[str, Any] = {
        "index": [index for index, _ in rows],
        "text": [text[slice(*unit.span)] for unit in units],
        "start": [unit.span[0] for unit in units],
        "end": [unit.span[1] for unit in units],
        "n_tokens": [len(unit.tokens) for unit in units],
    }
    for name, values in sums.items():
        columns[name] = np.array(
            [values[unit.tokens].sum() if unit.tokens else math.nan for unit in units]
        )
    columns["surprisal"] = _surprisal(columns["logprob"])
    columns["entropy"] = np.array(
        [entropy[unit.tokens[0]] if unit.tokens else math.nan for unit in units], np.float32
    )
    for name in units[0].further:
        columns[name] = [unit.further[name] for unit in units]
    return columns


def _surprisal(logprob: np.ndarray) -> np.ndarray:
    """Return surprisals in bits; 0 is positive."""
    surprisal: np.ndarray = bits(-logprob) + 0.0
    return surprisal


def _some_at_a_time(units: Iterable[_Unit]) -> Iterator[list[tuple[int, _Unit]]]:
    rows: list[tuple[int, _Unit]] = []
    for row in enumerate(units):
        rows.append(row)
        if len(rows) == AT_A_TIME:
            yield rows
            rows = []
    if rows:
        yield rows
