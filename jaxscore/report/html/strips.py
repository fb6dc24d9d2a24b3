"""Tokens of many texts as arrays, and what a page colours them by."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxscore.types.token_texts import characters_of, is_byte_level, joined_bytes, token_bytes

LARGEST = 32_767  # largest number stored; a larger one is displayed as "at least"
MISSING = -32_768  # in place of a number that does not exist
PER_NAT = 1000  # numbers are stored in thousandths of a nat
SHARE = 99.0  # percentile of a scaled metric from which on a token has the darkest colour
DARKEST = 6.0  # nats below 0 from which on a log-probability has the darkest colour
RANKS = 10_000  # the rank from which on, in a scale of powers of ten


class TokenMetric(NamedTuple):
    """One number of each token.

    Attributes:
        key: name of its array.
        name, unit: as displayed.
        sign: 1: the larger the darker; -1: the smaller the darker; 0: numbers below 0 have another
            colour than those above, and the farther from 0 the darker.
        scaled: it is stored in parts of its own largest value instead of a nat.
    """

    key: str
    name: str
    unit: str = "nats"
    sign: int = 1
    scaled: bool = False


TOKEN_METRICS = (
    TokenMetric("logprob", "Log-probability", "nats below 0", -1),
    TokenMetric("entropy", "Entropy"),
    TokenMetric("self_certainty", "Self-certainty"),
)
RANK = TokenMetric("rank", "Rank", "")


def scale_to_largest(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Numbers as int16 [n] in parts of the largest, and the parts per 1; NaN becomes `MISSING`."""
    known = np.abs(values[np.isfinite(values)].astype(np.float64))
    per = LARGEST / float(known.max()) if known.any() else float(PER_NAT)
    return thousandths(values, per), per


def thousandths(values: np.ndarray, per: float = PER_NAT) -> np.ndarray:
    """int16 [n]: numbers in thousandths, or in other parts of 1; NaN becomes `MISSING`."""
    missing = np.isnan(values)
    whole = np.clip(np.rint(values.astype(np.float64) * per), -LARGEST, LARGEST)
    whole[missing] = MISSING
    return whole.astype(np.int16)


def metric_header(
    metric: TokenMetric, values: np.ndarray, per: float, vocabulary: int | None
) -> dict[str, Any]:
    """What the page's script has to know of a metric.

    Args:
        values: as stored: int16 or, of ranks, uint32 [n].
        per: parts per 1.
        vocabulary: columns of the model's distribution.
    """
    return {
        "key": metric.key,
        "name": metric.name,
        "unit": f"{metric.unit} · " if metric.unit else "",
        "sign": metric.sign,
        "per": per,
        "top": _top(metric, values, per, vocabulary),
        "log": metric is RANK,
    }


def _top(metric: TokenMetric, values: np.ndarray, per: float, vocabulary: int | None) -> float:
    """The number from which on a token has the darkest colour."""
    if metric is RANK:
        return RANKS
    if metric.sign < 0:
        return DARKEST
    if metric.key == "entropy" and vocabulary is not None and vocabulary > 1:
        return math.log(vocabulary)
    known = np.abs(values[values != MISSING].astype(np.int64))
    if metric.scaled:
        return (float(np.percentile(known, SHARE)) or 1.0) / per if known.any() else 1.0
    return max(1, math.ceil(float(known.max(initial=0)) / per))


NUMBERS = tuple(metric.key for metric in TOKEN_METRICS)
NOT_KNOWN = 2  # of `Tokens.greedy`
LARGEST_TABLE = 1 << 20  # ids of a vocabulary; a table of them is faster than sorting all tokens
LONGEST = 10_000  # tokens of one text that a page has, from its first


class TokenText(NamedTuple):
    """One text's tokens with their numbers, arrays of one length.

    Attributes:
        token_ids: int [n]; below 0 if a server does not give them.
        tokens: the tokenizer's names.
        logprob, entropy, self_certainty: nats; NaN for a token without context, and if the number
            is not known.
        greedy: whether each is the most probable one; None if that is not known.
        rank: from 1, if it was requested.
        more: further numbers by name, the same names for all texts of a page.
    """

    token_ids: Any
    tokens: Sequence[str]
    logprob: Any
    entropy: Any
    self_certainty: Any
    greedy: Any
    rank: Any = None
    more: Mapping[str, np.ndarray] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of some texts, one text after the other.

    Attributes:
        length: int64 [texts], number of stored tokens.
        left_out: int64 [texts], number of other tokens: those beyond `LONGEST`, or all.
        ids: int32 [tokens].
        numbers: name -> int16 [tokens], thousandths of a nat.
        greedy: uint8 [tokens], 0, 1 or `NOT_KNOWN`.
        rank: uint32 [tokens], 0 if it is not known.
        more: name -> float32 [tokens], NaN for a number that does not exist.
    """

    length: np.ndarray
    left_out: np.ndarray
    ids: np.ndarray
    numbers: Mapping[str, np.ndarray]
    greedy: np.ndarray
    rank: np.ndarray
    more: Mapping[str, np.ndarray]

    def take(self, places: np.ndarray) -> "Tokens":
        """The texts at these indices, in this order."""
        length = self.length[places]
        start = np.cumsum(self.length) - self.length
        within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        index = np.repeat(start[places], length) + within
        return self._select(length, self.left_out[places], index)

    def first(self, n: int) -> "Tokens":
        """The same texts; only the first n of them have their tokens."""
        end = int(self.length[:n].sum())
        rest = np.arange(len(self.length)) >= n
        left_out = np.where(rest, self.left_out + self.length, self.left_out)
        return self._select(np.where(rest, 0, self.length), left_out, slice(end))

    def _select(
        self, length: np.ndarray, left_out: np.ndarray, index: np.ndarray | slice
    ) -> "Tokens":
        """The tokens at an index, as texts of these lengths."""
        return Tokens(
            length,
            left_out,
            self.ids[index],
            {name: values[index] for name, values in self.numbers.items()},
            self.greedy[index],
            self.rank[index],
            {name: values[index] for name, values in self.more.items()},
        )


def join(parts: Sequence[Tokens]) -> Tokens:
    """The texts of all parts."""

    def joined(values: list[Any]) -> Any:
        if isinstance(values[0], Mapping):  # a part without tokens may lack further numbers
            names = dict.fromkeys(name for value in values for name in value)
            return {
                name: np.concatenate([value[name] for value in values if name in value])
                for name in names
            }
        return np.concatenate(values)

    names = [field.name for field in dataclasses.fields(Tokens)]
    return Tokens(**{name: joined([getattr(part, name) for part in parts]) for name in names})


def tokens(texts: Sequence[TokenText | None], names: dict[int, str]) -> Tokens:
    """The arrays of some texts; None is a text whose tokens are not known.

    Args:
        names: token id -> name; those that it lacks are added.
    """
    sizes = np.array([0 if text is None else len(text.token_ids) for text in texts], np.int64)
    length = np.minimum(sizes, LONGEST)
    known = [_first(text) for text in texts if text is not None and len(text.token_ids)]
    ids = _joined([text.token_ids for text in known], np.int32)
    token_names = [*itertools.chain.from_iterable(text.tokens for text in known)]
    if (ids < 0).any():
        ids = _ids_by_name(names, token_names)
    distinct, index = _distinct(ids)
    place = np.zeros(len(distinct), np.int64)
    place[index] = np.arange(len(ids))  # one position of each id
    for id, k in zip(distinct.tolist(), place.tolist(), strict=True):
        names.setdefault(id, token_names[k])
    greedy = _joined([text.greedy for text in known], np.float32)
    ranks = [np.zeros(len(text.token_ids)) if text.rank is None else text.rank for text in known]
    return Tokens(
        length,
        sizes - length,
        ids,
        {
            name: thousandths(_joined([getattr(text, name) for text in known], np.float64))
            for name in NUMBERS
        },
        np.nan_to_num(greedy, nan=NOT_KNOWN).astype(np.uint8),
        np.nan_to_num(_joined(ranks, np.float64)).astype(np.uint32),
        {
            name: _joined([text.more[name] for text in known], np.float32)
            for name in (known[0].more if known else ())
        },
    )


def _first(text: TokenText) -> TokenText:
    """The first `LONGEST` tokens of a text."""
    if len(text.token_ids) <= LONGEST:
        return text
    *values, more = text
    first = (None if value is None else value[:LONGEST] for value in values)
    return TokenText._make([*first, {name: numbers[:LONGEST] for name, numbers in more.items()}])


def _joined(parts: Sequence[Any], dtype: Any) -> np.ndarray:
    """One array; a list has None for a token without a probability, which becomes NaN."""
    arrays = [np.array(part, np.float64) if isinstance(part, list) else part for part in parts]
    return np.concatenate([np.zeros(0, dtype), *arrays], dtype=dtype, casting="unsafe")


def _distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids, ascending, and the index in them of each."""
    least, most = int(ids.min(initial=0)), int(ids.max(initial=-1))
    if most - least > LARGEST_TABLE:
        return np.unique(ids, return_inverse=True)
    found = np.zeros(most - least + 1, bool)
    found[ids - least] = True
    return np.flatnonzero(found) + least, (np.cumsum(found) - 1)[ids - least]


def _ids_by_name(names: Mapping[int, str], token_names: Sequence[str]) -> np.ndarray:
    """Ids below 0 in place of those that a server does not give: one for each name."""
    known = {name: id for id, name in names.items()}
    return np.array([known.setdefault(name, -1 - len(known)) for name in token_names], np.int32)


@dataclasses.dataclass(frozen=True)
class Strips:
    """The texts of all items of a page, as coloured strips of tokens.

    Attributes:
        first: int64 [items + 1], index of the first strip of each item, and the number of strips.
        titles, contexts: of each strip; the text before it, truncated on the left.
        tokens: one text per strip.
        names: token id -> name.
        vocabulary: columns of the model's distribution; None if it is not known.
        metrics: of the tokens' further numbers; the page starts with the first one.
        token_metrics: metrics of one model's tokens; empty if `metrics` are all.
    """

    first: np.ndarray
    titles: Sequence[str]
    contexts: Sequence[str]
    tokens: Tokens
    names: Mapping[int, str]
    vocabulary: int | None
    metrics: Sequence[TokenMetric] = ()
    token_metrics: Sequence[TokenMetric] = TOKEN_METRICS

    @functools.cached_property
    def table(self) -> "TokenTable":
        """The distinct tokens with their texts, and the index of each token in them."""
        distinct, index = _distinct(self.tokens.ids)
        ids = distinct.tolist()
        pieces = token_bytes(
            [self.names[id] for id in ids],
            byte_level=is_byte_level([self.names[id] for id in self.tokens.ids.tolist()]),
        )
        texts = [joined_bytes([piece]) for piece in pieces]
        continues = np.zeros(len(index), bool)
        entries: dict[tuple[int, str], int] = {}
        for start, end in self._not_ascii(index, pieces):
            places = index[start:end].tolist()
            for first, after, text in characters_of([pieces[place] for place in places]):
                if after - first == 1:
                    continue
                continues[start + first + 1 : start + after] = True
                for k in range(first, after):
                    entry = ids[places[k]], text if k == first else ""
                    index[start + k] = entries.setdefault(entry, len(ids) + len(entries))
        ids += [id for id, _ in entries]
        return TokenTable(index, ids, texts + [text for _, text in entries], continues)

    def _not_ascii(self, index: np.ndarray, pieces: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """Start and end of tokens that may share characters: all but the first begin so."""
        is_late = np.array([not piece[:1].isascii() for piece in pieces], bool)[index]
        length = self.tokens.length
        is_late[(np.cumsum(length) - length)[length > 0]] = False  # a text begins there
        edges = np.flatnonzero(np.diff(is_late, prepend=False, append=False))
        for start, end in edges.reshape(-1, 2).tolist():
            yield start - 1, end


@dataclasses.dataclass(frozen=True)
class TokenTable:
    """The tokens of all strips with their texts.

    Tokens that share characters, such as the bytes of an emoji, have entries with the text of all
    at the first of them and no text at the others. The texts of consecutive tokens thus are the
    text in any case.

    Attributes:
        index: int [tokens], index of each token in `ids` and `texts`.
        continues: bool [tokens], True if the token continues a character of the one before it.
    """

    index: np.ndarray
    ids: list[int]
    texts: list[str]
    continues: np.ndarray

    def heads(self) -> np.ndarray:
        """Index of the first token that shares a character with each token, int [tokens]."""
        return np.maximum.accumulate(np.where(self.continues, 0, np.arange(len(self.index))))
