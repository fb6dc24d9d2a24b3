"""Bits of each byte of the texts that two runs scored, so that their tokenizers may differ."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.analysis.bootstrap import ratio
from jaxscore.analysis.text_measures import bits
from jaxscore.errors import InputError
from jaxscore.shell.slices import NONE, value_of
from jaxscore.systems.compare.differences import Draws, Values
from jaxscore.systems.compare.open_run import OpenRun
from jaxscore.systems.compare.pairs import Pairing
from jaxscore.systems.compare.units import UNREADABLE, Asked, read_json_text
from jaxscore.text.character_classes import class_of
from jaxscore.types.token_texts import is_byte_level, token_bytes

TOKEN_FIELDS = ("tokens", "logprob")
EXTRA = "extra"  # column of tables with the other fields of an item
SPAN, N_SPANS = 32, 20  # bytes of a span, and number of spans
BEFORE = 60  # bytes of text before a span
ALL, BOTH = "bits_per_byte", "bits_per_byte_both"
TITLES = {BOTH: "bits per byte, bytes that both scored", ALL: "bits per byte, all bytes"}
SUMS = {  # fields of a pair: bytes, and bits of A and B
    BOTH: ("n_both", "bits_a_both", "bits_b_both"),
    ALL: ("n_bytes", "bits_a", "bits_b"),
}
NO_TOKENS = (
    "the records of {} have no tokens, so bytes that both runs scored, classes of characters and "
    "spans are left out; score the texts with `score` for these"
)
UNSCORED = (
    "{} does not score {:,} of {:,} bytes, such as a first token without a BOS; in the "
    "numbers of all bytes they count as 0 bits, which favours {}"
)
OTHER_BYTES = "the tokens of A and B do not spell the same text"


class ByteScores(NamedTuple):
    """The bytes of one text.

    Attributes:
        text: the UTF-8 bytes.
        a, b: bits of each byte under A and B, float64 [bytes]; NaN without a probability.
    """

    text: bytes
    a: np.ndarray
    b: np.ndarray


@dataclasses.dataclass(frozen=True)
class ByteComparison:
    """Two runs by bytes.

    Attributes:
        columns: name -> title, False (not a right decision), and bits per byte of each text,
            weighted by its bytes.
        pairs: one record per text.
        failures: (name, why) of texts that are left out.
        warnings: valid but suspicious facts.
        by_class: one row per class of character, over the bytes that both runs scored.
        by: field -> one row per value, over the same bytes; over all bytes without tokens.
        spans: spans of `SPAN` bytes with the largest difference per byte, the largest first.
    """

    columns: Mapping[str, tuple[str, bool, Values]]
    pairs: Sequence[dict[str, Any]]
    failures: Sequence[tuple[str, str]]
    warnings: Sequence[str]
    by_class: Sequence[dict[str, Any]]
    by: Mapping[str, Sequence[dict[str, Any]]]
    spans: Sequence[dict[str, Any]]


def compare_bytes(pairing: Pairing, draws: Draws, by: Sequence[str] = ()) -> ByteComparison:
    """Compare the bits per byte of all pairs; classes and spans need tokens.

    Args:
        by: fields of the items, such as a topic, whose values are compared separately.

    Raises:
        InputError: records without tokens or without a field, or no text that both runs spell.
    """
    has_tokens = _has_tokens(pairing.opened[0])
    pairs, failures, places = [], [], []
    classes, spans = GroupSums(), Spans()
    slices = {field: GroupSums() for field in by}
    for index, name, record_a, record_b, text in _paired_records(pairing, has_by=bool(by)):
        try:
            values = {field: _value(record_a, field) for field in by}
            if not has_tokens:
                totals = _totals_of_records(record_a, record_b)
            else:
                scores = byte_scores(record_a, record_b, text)
                totals = _totals(scores)
                _add_classes(classes, scores)
                spans.add(name, scores)
            pairs.append({"name": name, **totals, **_means(totals)})
            places.append(index)
            for field, value in values.items():
                slices[field].add(value, *_counted(totals))
        except InputError as problem:
            failures.append((name, str(problem)))
        except UNREADABLE as problem:  # an edited file
            failures.append((name, f"a record is not as its command writes it ({problem})"))
    if not pairs:
        raise InputError(f"no text can be compared by bytes: {failures[0][0]}: {failures[0][1]}")
    for field, sums in slices.items():
        if {*sums.names} == {NONE}:
            raise InputError(
                f"--by {field}: no record of {pairing.opened[0].label} has this field; expected a "
                "field of the input, which the output repeats"
            )
    columns = {
        name: (title, False, _values(name, pairs, np.array(places), len(failures)))
        for name, title in TITLES.items()
        if SUMS[name][0] in pairs[0]
    }
    return ByteComparison(
        columns,
        pairs,
        failures,
        [*_warnings(pairing.opened, pairs, has_tokens=has_tokens)],
        classes.rows("class", draws),
        {field: sums.rows("value", draws) for field, sums in slices.items()},
        spans.largest_first(),
    )


def check_bytes(opened: OpenRun) -> None:
    """Check that a run's records have tokens, or sums and bytes of whole texts.

    Raises:
        InputError: they have neither.
    """
    if (
        not _has_tokens(opened)
        and "bits_per_byte" not in opened.reader.system.record.__annotations__
    ):
        raise InputError(
            f"--bytes: found a run of {opened.reader.system.name}, expected runs of score or "
            "perplexity; leave --bytes out"
        )


def _has_tokens(opened: OpenRun) -> bool:
    return {*opened.reader.system.record.__annotations__} >= {*TOKEN_FIELDS}


def _paired_records(
    pairing: Pairing, *, has_by: bool
) -> Iterator[tuple[int, str, dict[str, Any], dict[str, Any], str | None]]:
    """Yield each pair: its index, its name, both records, and its text if the input has it.

    The files are read once more, so that only records in another order are in memory.

    Args:
        has_by: if True, records of tables have `extra`, the other fields of their items.

    Raises:
        InputError: a record lacks tokens.
    """
    a, b = pairing.opened
    lists = TOKEN_FIELDS if _has_tokens(a) else ()
    read = (*lists, EXTRA) if has_by else lists
    partners = dict(zip(pairing.matched.a.tolist(), pairing.matched.b.tolist(), strict=True))
    wanted = {*partners.values()}
    others, held = enumerate(b.records(read)), {}
    texts: Iterator[Asked | None] = a.asked() or itertools.repeat(None)
    pair = itertools.count()
    for index, ((where, record), asked) in enumerate(zip(a.records(read), texts, strict=False)):
        if index not in partners:
            continue
        while partners[index] not in held:
            k, (where_b, record_b) = next(others)
            if k in wanted:
                held[k] = where_b, record_b
        where_b, record_b = held.pop(partners[index])
        for run, at, fields in ((a, where, record), (b, where_b, record_b)):
            if any(fields.get(name) is None for name in lists):
                source = "" if run.path is None else f" ({run.path}, {at})"
                raise InputError(
                    f"--bytes: {run.label}{source} lacks tokens, as with --summary-only; run "
                    f"{run.reader.system.name} again without it"
                )
        text = asked.text[-1] if asked is not None and isinstance(asked.text, list) else None
        name = pairing.a.names[index]
        yield next(pair), name, record, record_b, text if isinstance(text, str) else None


def byte_scores(a: Mapping[str, Any], b: Mapping[str, Any], text: str | None) -> ByteScores:
    """Return the bits of each byte under both runs; a token's are spread evenly over its bytes.

    Args:
        a, b: records with `tokens` and `logprob`.
        text: the scored text, if it is known; otherwise the tokens spell it.

    Raises:
        InputError: the tokens spell other texts, or a token has probability 0.
    """
    data, *pieces = _common_text(a["tokens"], b["tokens"], text)
    return ByteScores(
        data,
        *(
            _spread(of_run, run["logprob"], data)
            for of_run, run in zip(pieces, (a, b), strict=True)
        ),
    )


def _common_text(
    names_a: Sequence[str], names_b: Sequence[str], text: str | None
) -> tuple[bytes, list[bytes], list[bytes]]:
    """Return the text that both runs' tokens spell, and the bytes of each of their tokens.

    Two things are not in the names: whether they are byte-level, and whether a leading space is
    one that the tokenizer puts before every text. The text decides, or the other run.

    Raises:
        InputError: there is no such text.
    """
    level_a, level_b = is_byte_level(names_a), is_byte_level(names_b)
    levels = [*itertools.product((level_a, not level_a), (level_b, not level_b))]
    for data in (*([text.encode("utf-8", "surrogatepass")] if text else []), None):
        for byte_level_a, byte_level_b in levels:
            pieces_a = token_bytes(names_a, byte_level=byte_level_a)
            pieces_b = token_bytes(names_b, byte_level=byte_level_b)
            spelled = b"".join(pieces_a), b"".join(pieces_b)
            shared = min(spelled, key=len) if data is None else data
            if shared and all(
                each.endswith(shared) and not each.removesuffix(shared).strip() for each in spelled
            ):
                return shared, pieces_a, pieces_b
    raise InputError(OTHER_BYTES)


def _spread(pieces: Sequence[bytes], logprob: Any, text: bytes) -> np.ndarray:
    """Return the bits of each byte of a text that the tokens' bytes end with, float64 [bytes].

    A token without bytes in the text, such as a space before it, adds its bits to the next token.

    Raises:
        InputError: a token has probability 0.
    """
    token_bits: np.ndarray = np.array(logprob, np.float64) * -bits(1.0)
    if np.isinf(token_bits).any():
        raise InputError("a token has probability 0, so that the text has infinitely many bits")
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    ends = np.maximum(np.cumsum(lengths) - (lengths.sum() - len(text)), 0)
    lengths = np.diff(ends, prepend=0)
    holders = np.flatnonzero(lengths)
    if len(holders) < len(lengths):
        holder = np.searchsorted(holders, np.arange(len(lengths))).clip(max=len(holders) - 1)
        is_scored = np.bincount(holder, ~np.isnan(token_bits)) > 0
        token_bits = np.where(is_scored, np.bincount(holder, np.nan_to_num(token_bits)), np.nan)
        lengths = lengths[holders]
    return np.repeat(token_bits / lengths, lengths)


def _totals(scores: ByteScores) -> dict[str, Any]:
    """Return the bytes and bits of a text: all, and those of the bytes that both runs scored."""
    both = ~np.isnan(scores.a + scores.b)
    return {
        "n_bytes": len(scores.text),
        "bits_a": float(np.nansum(scores.a)),
        "bits_b": float(np.nansum(scores.b)),
        "n_unscored_a": int(np.isnan(scores.a).sum()),
        "n_unscored_b": int(np.isnan(scores.b).sum()),
        "n_both": int(both.sum()),
        "bits_a_both": float(scores.a[both].sum()),
        "bits_b_both": float(scores.b[both].sum()),
    }


def _totals_of_records(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bytes and bits of a document.

    Raises:
        InputError: the runs have other numbers of bytes.
    """
    if a["n_bytes"] != b["n_bytes"]:
        raise InputError(f"A has {a['n_bytes']} bytes of the text, and B {b['n_bytes']}")
    sums = {f"bits_{side}": -bits(float(run["sum_logprob"])) for side, run in (("a", a), ("b", b))}
    if not all(map(math.isfinite, sums.values())):
        raise InputError("a token has probability 0, so that the text has infinitely many bits")
    unscored = {
        f"n_unscored_{side}": run["n_tokens"] - run["n_scored"]
        for side, run in (("a", a), ("b", b))
    }
    return {"n_bytes": a["n_bytes"], **sums, **unscored}


def _means(totals: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the bits per byte of a text; None without bytes."""
    return {
        f"{name}_{side}": totals[field] / totals[n] if totals[n] else None
        for name, (n, *fields) in SUMS.items()
        if n in totals
        for side, field in zip("ab", fields, strict=True)
    }


def _values(
    name: str, pairs: Sequence[Mapping[str, Any]], places: np.ndarray, n_failed: int
) -> Values:
    """Return the bits per byte of the texts with bytes, weighted by their bytes."""
    n_bytes, a, b = (
        np.array([pair[field] for pair in pairs], np.float64)
        for field in (SUMS[name][0], f"{name}_a", f"{name}_b")
    )
    has_bytes = n_bytes > 0
    n_left_out = n_failed + int((~has_bytes).sum())
    return Values(
        a[has_bytes], b[has_bytes], places[has_bytes], None, n_left_out, n_bytes[has_bytes]
    )


def _warnings(
    opened: Sequence[OpenRun], pairs: Sequence[Mapping[str, Any]], *, has_tokens: bool
) -> Iterator[str]:
    if not has_tokens:
        yield NO_TOKENS.format(opened[0].reader.system.name)
    total = sum(pair["n_bytes"] for pair in pairs)
    for run, field in zip(opened, ("n_unscored_a", "n_unscored_b"), strict=True):
        if n := sum(pair[field] for pair in pairs):
            if has_tokens:
                yield UNSCORED.format(run.label, n, total, run.label)
            else:
                yield (
                    f"{run.label} does not score {n:,} tokens, such as a first token without a "
                    f"BOS; they count as 0 bits, which favours {run.label}"
                )


def _characters(text: bytes) -> tuple[str, list[int]]:
    """Return a text, and the number of bytes of each character; an invalid byte is one."""
    characters = text.decode("utf-8", "surrogateescape")
    if text.isascii():
        return characters, [1] * len(characters)
    return characters, [len(each.encode("utf-8", "surrogateescape")) for each in characters]


def _value(record: Mapping[str, Any], field: str) -> str:
    """Return an item's value of a field, which tables have in `extra`."""
    if field not in record and isinstance(record.get(EXTRA), str):
        record = read_json_text(record[EXTRA], EXTRA)
    return value_of(record, field)


def _counted(totals: Mapping[str, Any]) -> list[float]:
    """Return the bytes and bits that tables of groups have: of both runs, if they are known."""
    return [totals[name] for name in (SUMS[BOTH] if "n_both" in totals else SUMS[ALL])]


class GroupSums:
    """Bytes and bits by class of character or by value of a field, text by text."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[float, float, float]]] = {}  # bytes, bits of A and B

    @property
    def names(self) -> Iterable[str]:
        """Names of the groups."""
        return self._rows.keys()

    def add(self, name: str, n_bytes: float, bits_a: float, bits_b: float) -> None:
        """Add the bytes of a text that are in a group."""
        rows = self._rows.setdefault(name, [])
        if n_bytes:
            rows.append((n_bytes, bits_a, bits_b))

    def rows(self, title: str, draws: Draws) -> list[dict[str, Any]]:
        """Return one row per group with bytes, most bytes first; intervals resample texts."""
        out = []
        for name, rows in self._rows.items():
            n_bytes, bits_a, bits_b = np.array(rows, np.float64).reshape(-1, 3).T
            if not len(n_bytes):
                continue
            total = n_bytes.sum()
            out.append(
                {
                    title: name,
                    "n_bytes": int(total),
                    "mean_a": float(bits_a.sum() / total),
                    "mean_b": float(bits_b.sum() / total),
                    "difference": ratio(bits_b - bits_a, n_bytes, draws.n_bootstrap, draws.seed),
                }
            )
        return sorted(out, key=lambda row: (-row["n_bytes"], row[title]))


def _add_classes(sums: GroupSums, scores: ByteScores) -> None:
    """Add the bytes of a text that both runs scored, by class of their characters."""
    characters, lengths = _characters(scores.text)
    indices: dict[str, int] = {}
    classes = [indices.setdefault(class_of(each), len(indices)) for each in characters]
    both = ~np.isnan(scores.a + scores.b)
    of_byte = np.repeat(classes, lengths)[both]
    n_bytes, *bits_of_runs = (
        np.bincount(of_byte, values, minlength=len(indices)).tolist()
        for values in (None, scores.a[both], scores.b[both])
    )
    for name, *row in zip(indices, n_bytes, *bits_of_runs, strict=True):
        sums.add(name, *row)


class Spans:
    """The spans of `SPAN` bytes with the largest difference per byte; those of a text are disjoint.

    Both runs scored all bytes of a span.
    """

    def __init__(self) -> None:
        self._largest: list[tuple[float, dict[str, Any]]] = []

    def add(self, name: str, scores: ByteScores) -> None:
        """Add the spans of a text that are among the largest ones."""
        if len(scores.text) < SPAN:
            return
        difference = scores.b - scores.a
        sums = np.cumsum(np.concatenate([[0], np.nan_to_num(difference)]))
        n_unscored = np.cumsum(np.concatenate([[0], np.isnan(difference)]))
        size = np.abs(sums[SPAN:] - sums[:-SPAN]) / SPAN
        size[n_unscored[SPAN:] > n_unscored[:-SPAN]] = 0
        least = self._largest[-1][0] if len(self._largest) == N_SPANS else 0.0
        for _ in range(N_SPANS):
            start = int(size.argmax())
            if size[start] <= least:
                break
            self._largest.append((float(size[start]), _span(name, scores, start)))
            size[max(0, start - SPAN + 1) : start + SPAN] = 0
        self._largest = sorted(self._largest, key=lambda span: -span[0])[:N_SPANS]

    def largest_first(self) -> list[dict[str, Any]]:
        """Return the spans."""
        return [span for _, span in self._largest]


def _span(name: str, scores: ByteScores, start: int) -> dict[str, Any]:
    """Return a span with whole characters; a part is a run of characters of equal bits per byte."""
    characters, lengths = _characters(scores.text)
    starts = np.cumsum([0, *lengths])
    first = int(np.searchsorted(starts, start, "right")) - 1
    end = int(np.searchsorted(starts, start + SPAN))
    parts: list[dict[str, Any]] = []
    for k in range(first, end):
        a, b = (float(run[starts[k] : starts[k + 1]].mean()) for run in (scores.a, scores.b))
        values = {
            side: None if math.isnan(value) else round(value, 6)
            for side, value in (("a", a), ("b", b), ("difference", b - a))
        }
        character = characters[k].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if parts and values == {side: parts[-1][side] for side in values}:
            parts[-1]["text"] += character
        else:
            parts.append({"text": character, **values})
    a, b = (float(run[start : start + SPAN].mean()) for run in (scores.a, scores.b))
    before = scores.text[max(0, int(starts[first]) - BEFORE) : int(starts[first])]
    return {
        "name": name,
        "start": start,
        "before": before.decode("utf-8", "ignore"),
        "text": "".join(piece["text"] for piece in parts),
        "a": a,
        "b": b,
        "difference": b - a,
        "parts": parts,
    }
