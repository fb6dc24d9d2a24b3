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
SHARE = 99.0  # percentile of a scaled metric with the darkest colour
DARKEST = 6.0  # nats below 0 of a log-probability with the darkest colour
RANKS = 10_000  # rank with the darkest colour, on a logarithmic scale


class TokenMetric(NamedTuple):
    """One number of each token.

    Attributes:
        key: the name of its array.
        name, unit: the displayed name and unit.
        sign: 1: the larger the darker; -1: the smaller the darker; 0: numbers below 0 have another
            colour than those above, and the farther from 0 the darker.
        scaled: True if it is stored in parts of its largest value instead of a nat.
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
    """Return int16 [n], in parts of the largest number, and the parts per 1; NaN is `MISSING`."""
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    per = LARGEST / float(finite.max()) if finite.any() else float(PER_NAT)
    return thousandths(values, per), per


def thousandths(values: np.ndarray, per: float = PER_NAT) -> np.ndarray:
    """Return int16 [n], numbers in thousandths or other parts of 1; NaN is `MISSING`."""
    missing = np.isnan(values)
    rounded = np.clip(np.rint(values.astype(np.float64) * per), -LARGEST, LARGEST)
    rounded[missing] = MISSING
    return rounded.astype(np.int16)


def metric_header(
    metric: TokenMetric, values: np.ndarray, per: float, vocabulary: int | None
) -> dict[str, Any]:
    """Return the facts of a metric for the page's script.

    Args:
        values: stored values, int16 or, for ranks, uint32 [n].
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
    """Return the number from which on a token has the darkest colour."""
    if metric is RANK:
        return RANKS
    if metric.sign < 0:
        return DARKEST
    if metric.key == "entropy" and vocabulary is not None and vocabulary > 1:
        return math.log(vocabulary)
    magnitudes = np.abs(values[values != MISSING].astype(np.int64))
    if metric.scaled:
        return (float(np.percentile(magnitudes, SHARE)) or 1.0) / per if magnitudes.any() else 1.0
    return max(1, math.ceil(float(magnitudes.max(initial=0)) / per))


NUMBERS = tuple(metric.key for metric in TOKEN_METRICS)
NOT_KNOWN = 2  # of `Tokens.greedy`
LARGEST_TABLE = 1 << 20  # ids of a vocabulary; a table of them is faster than sorting all tokens
LONGEST = 10_000  # first tokens of a text that a page has


class TokenText(NamedTuple):
    """One text's tokens with their numbers, arrays of one length.

    Attributes:
        token_ids: the ids, int [n]; below 0 if a server does not return them.
        tokens: the tokenizer's names of the tokens.
        logprob, entropy, self_certainty: the measures in nats; NaN for a token without context, and
            for an unknown number.
        greedy: True for each most probable token; None if unknown.
        rank: the ranks from 1, if requested.
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
        length: the number of stored tokens, int64 [texts].
        left_out: the number of other tokens: those beyond `LONGEST`, or all; int64 [texts].
        ids: the token ids, int32 [tokens].
        numbers: name -> int16 [tokens], thousandths of a nat.
        greedy: 0, 1 or `NOT_KNOWN`, uint8 [tokens].
        rank: the ranks, 0 if unknown, uint32 [tokens].
        more: name -> float32 [tokens], NaN for a missing number.
    """

    length: np.ndarray
    left_out: np.ndarray
    ids: np.ndarray
    numbers: Mapping[str, np.ndarray]
    greedy: np.ndarray
    rank: np.ndarray
    more: Mapping[str, np.ndarray]

    def take(self, indices: np.ndarray) -> "Tokens":
        """Return the texts at some indices, in this order."""
        length = self.length[indices]
        start = np.cumsum(self.length) - self.length
        within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        index = np.repeat(start[indices], length) + within
        return self._select(length, self.left_out[indices], index)

    def first(self, n: int) -> "Tokens":
        """Return the same texts without the tokens of all but the first n."""
        end = int(self.length[:n].sum())
        rest = np.arange(len(self.length)) >= n
        left_out = np.where(rest, self.left_out + self.length, self.left_out)
        return self._select(np.where(rest, 0, self.length), left_out, slice(end))

    def _select(
        self, length: np.ndarray, left_out: np.ndarray, index: np.ndarray | slice
    ) -> "Tokens":
        """Return the tokens at an index, as texts of these lengths."""
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
    """Concatenate the texts of all parts."""

    def joined(values: list[Any]) -> Any:
        if isinstance(values[0], Mapping):  # a part without tokens may lack further numbers
            names = dict.fromkeys(name for value in values for name in value)
            return {
                name: np.concatenate([value[name] for value in values if name in value])
                for name in names
            }
        return np.concatenate(values)

    names = [field.name for field in dataclasses.fields(Tokens)]
    return Tokens(**{name: joined([getattr(tokens, name) for tokens in parts]) for name in names})


def tokens(texts: Sequence[TokenText | None], names: dict[int, str]) -> Tokens:
    """Return the arrays of some texts; None is a text whose tokens are unknown.

    Args:
        names: token id -> name; missing ones are added.
    """
    sizes = np.array([0 if text is None else len(text.token_ids) for text in texts], np.int64)
    length = np.minimum(sizes, LONGEST)
    with_tokens = [_first(text) for text in texts if text is not None and len(text.token_ids)]
    ids = _joined([text.token_ids for text in with_tokens], np.int32)
    token_names = [*itertools.chain.from_iterable(text.tokens for text in with_tokens)]
    if (ids < 0).any():
        ids = _ids_by_name(names, token_names)
    distinct, index = _distinct(ids)
    position = np.zeros(len(distinct), np.int64)
    position[index] = np.arange(len(ids))  # one position of each id
    for id, k in zip(distinct.tolist(), position.tolist(), strict=True):
        names.setdefault(id, token_names[k])
    greedy = _joined([text.greedy for text in with_tokens], np.float32)
    ranks = [
        np.zeros(len(text.token_ids)) if text.rank is None else text.rank for text in with_tokens
    ]
    return Tokens(
        length,
        sizes - length,
        ids,
        {
            name: thousandths(_joined([getattr(text, name) for text in with_tokens], np.float64))
            for name in NUMBERS
        },
        np.nan_to_num(greedy, nan=NOT_KNOWN).astype(np.uint8),
        np.nan_to_num(_joined(ranks, np.float64)).astype(np.uint32),
        {
            name: _joined([text.more[name] for text in with_tokens], np.float32)
            for name in (with_tokens[0].more if with_tokens else ())
        },
    )


def _first(text: TokenText) -> TokenText:
    """Return the first `LONGEST` tokens of a text."""
    if len(text.token_ids) <= LONGEST:
        return text
    *values, more = text
    first = (None if value is None else value[:LONGEST] for value in values)
    return TokenText._make([*first, {name: numbers[:LONGEST] for name, numbers in more.items()}])


def _joined(parts: Sequence[Any], dtype: Any) -> np.ndarray:
    """Concatenate arrays and lists; None, a token without a probability, becomes NaN."""
    arrays = [np.array(x, np.float64) if isinstance(x, list) else x for x in parts]
    return np.concatenate([np.zeros(0, dtype), *arrays], dtype=dtype, casting="unsafe")


def _distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ids, ascending, and the index of each id in them."""
    smallest, largest = int(ids.min(initial=0)), int(ids.max(initial=-1))
    if largest - smallest > LARGEST_TABLE:
        return np.unique(ids, return_inverse=True)
    is_used = np.zeros(largest - smallest + 1, bool)
    is_used[ids - smallest] = True
    return np.flatnonzero(is_used) + smallest, (np.cumsum(is_used) - 1)[ids - smallest]


def _ids_by_name(names: Mapping[int, str], token_names: Sequence[str]) -> np.ndarray:
    """Return an id below 0 for each name, if a server does not return ids."""
    ids = {name: id for id, name in names.items()}
    return np.array([ids.setdefault(name, -1 - len(ids)) for name in token_names], np.int32)


@dataclasses.dataclass(frozen=True)
class Strips:
    """The texts of all items of a page, as coloured strips of tokens.

    Attributes:
        first: the index of each item's first strip, and the number of strips, int64 [items + 1].
        titles, contexts: the title of each strip, and the text before it, truncated on the left.
        tokens: the tokens, one text per strip.
        names: token id -> name.
        vocabulary: the columns of the model's distribution; None if unknown.
        metrics: the metrics of the tokens' further numbers; the page starts with the first one.
        token_metrics: the metrics of one model's tokens; empty if `metrics` are all.
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
            rows = index[start:end].tolist()
            for first, after, text in characters_of([pieces[row] for row in rows]):
                if after - first == 1:
                    continue
                continues[start + first + 1 : start + after] = True
                for k in range(first, after):
                    entry = ids[rows[k]], text if k == first else ""
                    index[start + k] = entries.setdefault(entry, len(ids) + len(entries))
        ids += [id for id, _ in entries]
        return TokenTable(index, ids, texts + [text for _, text in entries], continues)

    def _not_ascii(self, index: np.ndarray, pieces: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """Yield start and end of tokens that may share characters."""
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
