"""Tokens of many texts side by side in arrays, as a page holds them."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxscore.types.token_texts import token_texts

LARGEST = 32_767  # what is held of a number at most; a larger one is shown as "at least"
MISSING = -32_768  # in place of a number that does not exist
PER_NAT = 1000  # numbers of every page are held in thousandths of a nat
SHARE = 99.0  # percent of the tokens that have no darker colour than the darkest, of `Show.scaled`
DARKEST = 6.0  # nats below 0 from which on a log-probability has the darkest colour
RANKS = 10_000  # the rank from which on, in a scale of powers of ten


class Show(NamedTuple):
    """One number of each token.

    Attributes:
        key: name of its array.
        name, unit: for people.
        sign: 1: the larger the darker; -1: the smaller the darker; 0: numbers below 0 have another
            colour than those above, and the farther from 0 the darker.
        scaled: it is held in parts of its own largest value, and not of a nat.
    """

    key: str
    name: str
    unit: str = "nats"
    sign: int = 1
    scaled: bool = False


TOKEN_SHOWS = (
    Show("logprob", "Log-probability", "nats below 0", -1),
    Show("entropy", "Entropy"),
    Show("self_certainty", "Self-certainty"),
)
RANK = Show("rank", "Rank", "")


def in_own_parts(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Numbers of any size, int16 [n], and of how many parts 1 consists; NaN becomes `MISSING`."""
    known = np.abs(values[np.isfinite(values)].astype(np.float64))
    per = LARGEST / float(known.max()) if known.any() else float(PER_NAT)
    return thousandths(values, per), per


def thousandths(values: np.ndarray, per: float = PER_NAT) -> np.ndarray:
    """int16 [n]: numbers in thousandths, or in other parts of 1; NaN becomes `MISSING`."""
    missing = np.isnan(values)
    whole = np.clip(np.rint(values.astype(np.float64) * per), -LARGEST, LARGEST)
    whole[missing] = MISSING
    return whole.astype(np.int16)


def show_header(show: Show, held: np.ndarray, per: float, vocabulary: int | None) -> dict[str, Any]:
    """What the page's script has to know of a number.

    Args:
        held: int16 or, of ranks, uint32 [n].
        vocabulary: columns of the model's distribution.
    """
    return {
        "key": show.key,
        "name": show.name,
        "unit": f"{show.unit} · " if show.unit else "",
        "sign": show.sign,
        "per": per,
        "top": _top(show, held, per, vocabulary),
        "log": show is RANK,
    }


def _top(show: Show, held: np.ndarray, per: float, vocabulary: int | None) -> float:
    """The number from which on a token has the darkest colour."""
    if show is RANK:
        return RANKS
    if show.sign < 0:
        return DARKEST
    if show.key == "entropy" and vocabulary is not None and vocabulary > 1:
        return math.log(vocabulary)
    known = np.abs(held[held != MISSING].astype(np.int64))
    if show.scaled:
        return (float(np.percentile(known, SHARE)) or 1.0) / per if known.any() else 1.0
    return max(1, math.ceil(float(known.max(initial=0)) / per))


NUMBERS = tuple(show.key for show in TOKEN_SHOWS)
NOT_KNOWN = 2  # of `Tokens.greedy`
LARGEST_TABLE = 1 << 20  # ids of a vocabulary; a table of them is faster than sorting all tokens
LONGEST = 10_000  # tokens of one text that a page holds, from its first


class TokenText(NamedTuple):
    """One text's tokens with their numbers, arrays of one length.

    Attributes:
        token_ids: int [n]; below 0 where a server does not tell them.
        tokens: the tokenizer's names.
        logprob, entropy, self_certainty: nats; NaN for a token with nothing before it, and where
            the number is not known.
        greedy: whether each is the most probable one; None where that is not known.
        rank: from 1, where it was asked for.
        more: further numbers by their name, the same names for all texts of a page.
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
    """The tokens of some texts, one text behind the other.

    Attributes:
        length: int64 [texts], of those that are held.
        left_out: int64 [texts], tokens that are not held: beyond `LONGEST`, or all.
        ids: int32 [tokens].
        numbers: name -> int16 [tokens], thousandths of a nat.
        greedy: uint8 [tokens], 0, 1 or `NOT_KNOWN`.
        rank: uint32 [tokens], 0 where it is not known.
        more: name -> float32 [tokens], NaN where a number does not exist.
    """

    length: np.ndarray
    left_out: np.ndarray
    ids: np.ndarray
    numbers: Mapping[str, np.ndarray]
    greedy: np.ndarray
    rank: np.ndarray
    more: Mapping[str, np.ndarray]

    def take(self, places: np.ndarray) -> "Tokens":
        """The texts at these places, in this order."""
        length = self.length[places]
        start = np.cumsum(self.length) - self.length
        within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        where = np.repeat(start[places], length) + within
        return Tokens(
            length,
            self.left_out[places],
            self.ids[where],
            {name: values[where] for name, values in self.numbers.items()},
            self.greedy[where],
            self.rank[where],
            {name: values[where] for name, values in self.more.items()},
        )

    def first(self, n: int) -> "Tokens":
        """The same texts, with the tokens of the first n of them alone."""
        end = int(self.length[:n].sum())
        rest = np.arange(len(self.length)) >= n
        return Tokens(
            np.where(rest, 0, self.length),
            np.where(rest, self.left_out + self.length, self.left_out),
            self.ids[:end],
            {name: values[:end] for name, values in self.numbers.items()},
            self.greedy[:end],
            self.rank[:end],
            {name: values[:end] for name, values in self.more.items()},
        )


def join(parts: Sequence[Tokens]) -> Tokens:
    """All texts of all parts."""

    def every(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    def named(field: str) -> dict[str, np.ndarray]:
        given = [getattr(part, field) for part in parts]
        return {name: np.concatenate([one[name] for one in given]) for name in given[0]}

    return Tokens(
        length=every("length"),
        left_out=every("left_out"),
        ids=every("ids"),
        numbers=named("numbers"),
        greedy=every("greedy"),
        rank=every("rank"),
        more=named("more"),
    )


def tokens(texts: Sequence[TokenText | None], names: dict[int, str]) -> Tokens:
    """The arrays of some texts; None is a text whose tokens are not known.

    Args:
        names: of tokens by their id; those that it lacks are added.
    """
    sizes = np.array([0 if one is None else len(one.token_ids) for one in texts], np.int64)
    length = np.minimum(sizes, LONGEST)
    given = [one for one in texts if one is not None and len(one.token_ids)]
    if (sizes > LONGEST).any():
        given = [_first(one) for one in given]
    ids = _joined([one.token_ids for one in given], np.int32)
    flat = [*itertools.chain.from_iterable(one.tokens for one in given)]
    if (ids < 0).any():
        ids = _by_name(names, flat)
    distinct, index = _distinct(ids)
    place = np.zeros(len(distinct), np.int64)
    place[index] = np.arange(len(ids))  # one of each id's places
    for id, k in zip(distinct.tolist(), place.tolist(), strict=True):
        names.setdefault(id, flat[k])
    return Tokens(
        length,
        sizes - length,
        ids,
        {
            name: thousandths(_joined([getattr(one, name) for one in given], np.float64))
            for name in NUMBERS
        },
        np.nan_to_num(_joined([one.greedy for one in given], np.float32), nan=NOT_KNOWN).astype(
            np.uint8
        ),
        _ranks(given),
        {
            name: _joined([one.more[name] for one in given], np.float32)
            for name in (given[0].more if given else ())
        },
    )


def _first(one: TokenText) -> TokenText:
    """The first `LONGEST` tokens of a text."""

    def cut(values: Any) -> Any:
        return None if values is None else values[:LONGEST]

    return TokenText(
        cut(one.token_ids),
        cut(one.tokens),
        cut(one.logprob),
        cut(one.entropy),
        cut(one.self_certainty),
        cut(one.greedy),
        cut(one.rank),
        {name: cut(values) for name, values in one.more.items()},
    )


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


def _by_name(names: Mapping[int, str], flat: Sequence[str]) -> np.ndarray:
    """Ids below 0 in place of those that a server does not tell: one for each name."""
    known = {name: id for id, name in names.items()}
    return np.array([known.setdefault(name, -1 - len(known)) for name in flat], np.int32)


def _ranks(given: Sequence[TokenText]) -> np.ndarray:
    if all(one.rank is None for one in given):
        return np.zeros(sum(len(one.token_ids) for one in given), np.uint32)
    parts = [np.zeros(len(one.token_ids)) if one.rank is None else one.rank for one in given]
    return np.nan_to_num(_joined(parts, np.float64)).astype(np.uint32)


@dataclasses.dataclass(frozen=True)
class Strips:
    """The texts of all items of a page, as coloured strips of tokens.

    Attributes:
        first: int64 [items + 1], the first strip of each item, and the number of all.
        titles, contexts: of each strip; a context is what stands before the text, cut at its left.
        tokens: one text per strip.
        names: of tokens by their id.
        vocabulary: columns of the model's distribution; None where it is not known.
        shows: what the further numbers of the tokens are; the first one is shown first.
    """

    first: np.ndarray
    titles: Sequence[str]
    contexts: Sequence[str]
    tokens: Tokens
    names: Mapping[int, str]
    vocabulary: int | None
    shows: Sequence[Show] = ()

    @functools.cached_property
    def table(self) -> tuple[np.ndarray, list[int], list[str]]:
        """Place of each token in a table, and of the table's tokens the ids and the texts."""
        distinct, place = _distinct(self.tokens.ids)
        ids = distinct.tolist()
        return place, ids, token_texts([self.names[id] for id in ids])
