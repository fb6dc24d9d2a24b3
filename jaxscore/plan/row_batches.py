"""Batches: rows of one length as host arrays, with their scored positions.

A batch has the shape [rows, row length]. Row lengths are the powers of two from 64 tokens on and
the lengths halfway between them, so that a run compiles few programs.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxscore.plan.tries import Forest, range_within

SHORTEST_ROW = 64  # tokens
TAIL = 8  # the last rows of a length go into batches of an eighth of the full size
SMALL_BATCH_COST = 1.1  # cost of a token in such a batch, relative to a full batch
TARGETS_PER_TOKEN = 4  # maximum number of targets per token of a batch


def row_lengths(max_positions: int) -> list[int]:
    """Return powers of two and the lengths halfway between, up to one that holds the longest path.

    With powers of two alone, up to half of a row is padding if tries have similar sizes, such as
    one question with its answers. With the lengths between them it is up to a third.
    """
    lengths = [SHORTEST_ROW]
    while lengths[-1] < max_positions:
        is_power = len(lengths) % 2
        lengths.append(lengths[-1] * 3 // 2 if is_power else lengths[-1] * 4 // 3)
    return lengths


def power_of_two(n: int) -> int:
    """Round n tokens up to a power of two, at least `SHORTEST_ROW`."""
    return max(SHORTEST_ROW, 1 << (max(n, 1) - 1).bit_length())


def tails(*, expensive: bool) -> tuple[int, ...]:
    """Return the allowed sizes of batches for the last rows of a length, as divisors of a full one.

    Args:
        expensive: if True, each batch has a high fixed cost, as with recurrent models; quarters
            are then allowed in addition to eighths.
    """
    return (TAIL, TAIL // 2) if expensive else (TAIL,)


def batch_rows(n_rows: int, length: int, batch_tokens: int, tail: int = TAIL) -> list[int]:
    """Return the number of rows of each batch: full batches, then smaller ones if these pad less.

    There are at most two shapes per row length, so that a run compiles few programs and a few
    short requests do not cost a full batch.

    Args:
        tail: a full batch divided by this is a small one; 1 for a single shape.
    """
    full = max(1, batch_tokens // length)
    small = max(1, full // tail)
    batches = [full] * (n_rows // full)
    last = [small] * -(-(n_rows % full) // small)
    return batches + (last if sum(last) * SMALL_BATCH_COST <= full else [full])


def attention_cost(n: int, width: int) -> float:
    """Return a token's cost in a row of n, in tokens of linear work; attention: n / (6 width)."""
    return 1 + n / (6 * width)


class ScoredPositions(NamedTuple):
    """Scored positions of a batch and their targets: host arrays of `device.rows.ScoredPositions`.

    Attributes:
        query: int32 [batch tokens], scored positions as indices into the flattened rows,
            ascending, then zeros.
        n_queries: number of scored positions.
        slot: int32 [TARGETS_PER_TOKEN * batch tokens], each target's index in `query`.
        answer: int32 [TARGETS_PER_TOKEN * batch tokens], the token id of each target.
        edge: int32 [n_targets], each target's edge in the forest.
    """

    query: np.ndarray
    n_queries: int
    slot: np.ndarray
    answer: np.ndarray
    edge: np.ndarray


@dataclasses.dataclass(frozen=True)
class RowBatch:
    """Host arrays of `device.rows.Rows`.

    Attributes:
        ids, position, subtree_end: int32 [rows, row length].
        n_tokens: number of tokens without padding; 0 if the previous batch had the same rows.
    """

    ids: np.ndarray
    position: np.ndarray
    subtree_end: np.ndarray
    scored: ScoredPositions
    n_tokens: int

    @property
    def edge(self) -> np.ndarray:
        """Edge of each target in the forest, int32 [n_targets]."""
        return self.scored.edge

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and row length: the shape that a program is compiled for."""
        rows, length = self.ids.shape
        return rows, length


def split_scored(
    token: np.ndarray, target: np.ndarray, edge: np.ndarray, n_tokens: int
) -> Iterator[ScoredPositions]:
    """Split a batch's targets into groups of at most TARGETS_PER_TOKEN targets per token.

    Every group has all queries: fewer queries would change the shapes of the matrix products, and
    with them the last bits of scores.

    Args:
        token: int [n], the token that each target follows, as an index into the flattened rows,
            ascending.
        target, edge: int [n], the token id and the edge of each target.
        n_tokens: number of tokens of the batch, including padding.
    """
    room = TARGETS_PER_TOKEN * n_tokens
    positions, slot = np.unique(token, return_inverse=True)
    query = np.zeros(n_tokens, np.int32)
    query[: len(positions)] = positions
    for low in range(0, len(token), room):
        group = slice(low, low + room)
        n_targets = len(token[group])
        slots, answers = np.zeros((2, room), np.int32)
        slots[:n_targets], answers[:n_targets] = slot[group], target[group]
        yield ScoredPositions(query, len(positions), slots, answers, edge[group].astype(np.int32))


@dataclasses.dataclass(frozen=True)
class OnePerRow:
    """Rows of `--reproducible`: one batch for each path of a forest built with `Share.WHOLE`.

    The input of a program then depends on the sequence alone: the row length is the smallest
    power of two that holds the sequence, the queries are its scored tokens in order, and the batch
    holds nothing else. Equal inputs to one program give equal bits, in whatever order the hardware
    sums.

    Has the same interface as `packing.PackedRows`.
    """

    forest: Forest

    @property
    def n_tokens(self) -> int:
        return self.forest.n_nodes

    def layout(self) -> bytes:
        """Return bytes that, together with the forest, determine the batches, for digests."""
        return repr((SHORTEST_ROW, TARGETS_PER_TOKEN)).encode()

    @functools.cached_property
    def rows(self) -> list[tuple[int, int]]:
        """Node range of each row, shorter rows first."""
        bounds = [*np.flatnonzero(self.forest.depth == 0).tolist(), self.forest.n_nodes]
        return sorted(itertools.pairwise(bounds), key=lambda path: power_of_two(path[1] - path[0]))

    def batches(self) -> Iterator[RowBatch]:
        """Yield the batches in order. Every edge of the forest is in exactly one of them.

        A row with more edges than TARGETS_PER_TOKEN allows is repeated in further batches.
        """
        forest = self.forest
        for start, stop in self.rows:
            n = stop - start
            length = power_of_two(n)
            ids, position = np.zeros((2, 1, length), np.int32)
            ids[0, :n], position[0, :n] = forest.ids[start:stop], np.arange(n)
            end = np.arange(1, length + 1, dtype=np.int32)[None]
            end[0, :n] = n
            a, b = range_within(forest.edge_node, start, stop)
            token, target = forest.edge_node[a:b] - start, forest.edge_target[a:b]
            for k, scored in enumerate(split_scored(token, target, np.arange(a, b), length)):
                yield RowBatch(ids, position, end, scored, n_tokens=0 if k else n)
