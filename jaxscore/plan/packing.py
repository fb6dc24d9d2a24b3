"""Pieces of tries to rows of a few lengths, and rows to batches of a fixed token budget.

The row length is chosen by what it costs; pieces of several tries then share rows.
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Iterator

from jaxscore.plan.bins import best_fit, rooms_left
from jaxscore.plan.cutting import Cutter, Pieces
from jaxscore.plan.forest import Forest
from jaxscore.plan.row_batches import RowBatch, Slots
from jaxscore.plan.row_shapes import TAIL, attention_cost, batch_rows, row_lengths
from jaxscore.plan.stretches import Stretches


@dataclasses.dataclass(frozen=True)
class Plan:
    """Rows for a forest. `batches` makes each batch as it is asked for.

    Attributes:
        lengths: row length of each group, ascending.
        n_rows: rows of each group.
        stretches: what lies in the rows, one after the other.
        batch_tokens: the budget.
        cost: padding and attention counted, in tokens of linear work.
        tail: the last rows of a length go in batches of one `tail`-th, see `batch_rows`.
    """

    forest: Forest
    lengths: list[int]
    n_rows: list[int]
    stretches: Stretches
    batch_tokens: int
    cost: float
    tail: int

    @property
    def n_tokens(self) -> int:
        """Tokens laid out, repeated paths included and padding not."""
        return int((self.stretches.stop - self.stretches.start).sum())

    @functools.cached_property
    def rows(self) -> Slots:
        """What lies in each slot of all rows."""
        return Slots(self.forest, self.lengths, self.n_rows, self.stretches)

    def layout(self) -> bytes:
        """What beside the forest decides the batches."""
        facts = (self.lengths, self.n_rows, self.batch_tokens, self.tail)
        return repr(facts).encode() + b"".join(one.tobytes() for one in self.stretches)

    def batches(self) -> Iterator[RowBatch]:
        """Batches in order; every edge of the forest is in exactly one of them."""
        slots, first = self.rows, 0
        for length, n_rows in zip(self.lengths, self.n_rows, strict=True):
            for count in batch_rows(n_rows, length, self.batch_tokens, self.tail):
                stop = min(first + count * length, slots.group_end(length))
                yield from slots.batches(first, stop, count, length)
                first = stop


def plan(
    forest: Forest,
    *,
    max_positions: int,
    width: int,
    batch_tokens: int,
    prefix: int = 0,
    pack: bool = True,
    program_cost: float = 0.0,
) -> Plan:
    """Choose the row length that costs least and pack.

    Longer rows repeat less and pad less but attend more, see `attention_cost`. A longer shortest
    row also makes fewer shapes, each of which is a program.

    Args:
        max_positions: longest path of any sequence, the prefix's left out.
        width: of the model's hidden states.
        batch_tokens: tokens in each batch, padding included.
        prefix: tokens before every trie, which all tokens see and no row holds.
        pack: False puts one trie in a row, for models without the interval mask.
        program_cost: of each shape of batches, in tokens of linear work; counts in the choice,
            and not in the plan's cost.
    """
    allowed = row_lengths(max_positions)
    cutter = Cutter(forest, allowed)
    best: tuple[int, int, float] | None = None  # shortest row, tail and cost
    least_total = math.inf
    # Shorter rows than the shortest path needs all give the same rows.
    shortest = int(forest.reach.min()) if forest.n_nodes else 0
    for base in allowed[bisect.bisect_left(allowed, shortest) :]:
        # Nothing beats every node once and no padding, and attention only grows from here.
        if forest.n_nodes * attention_cost(base + prefix, width) >= least_total:
            break
        least = sum(k * attention_cost(n + prefix, width) for n, k in cutter.least(base).items())
        if least < least_total:
            n_rows = {
                n: sum((rooms_left(counts, n) if pack else counts).values())
                for n, counts in sorted(cutter.sizes(base).items())
            }
            for tail in (TAIL, 1):
                shapes = [
                    (count, n)
                    for n, k in n_rows.items()
                    for count in batch_rows(k, n, batch_tokens, tail)
                ]
                cost = sum(count * n * attention_cost(n + prefix, width) for count, n in shapes)
                total = cost + program_cost * len(set(shapes))
                if total < least_total:
                    least_total, best = total, (base, tail, cost)
        if base >= forest.n_nodes:
            break
    assert best is not None  # no path is longer than max_positions, so a length is left
    base, tail, cost = best
    pieces, of_length = cutter.cut(base)
    rows = _rows(pieces, of_length, pack)
    return _laid_out(forest, pieces, rows, batch_tokens, cost, tail)


def plan_uniform(forest: Forest, *, row_length: int, width: int, batch_tokens: int) -> Plan:
    """All batches of one shape, for work that is not worth a second program.

    Args:
        row_length: at least the longest path.
        width, batch_tokens: as in `plan`.
    """
    pieces, of_length = Cutter(forest, [row_length]).cut(row_length)
    rows = _rows(pieces, of_length, True)
    n_rows = len(rows.get(row_length, []))
    n_tokens = sum(batch_rows(n_rows, row_length, batch_tokens, 1)) * row_length
    cost = n_tokens * attention_cost(row_length, width)
    return _laid_out(forest, pieces, rows, batch_tokens, cost, tail=1)


def _laid_out(
    forest: Forest,
    pieces: Pieces,
    rows: dict[int, list[list[int]]],
    batch_tokens: int,
    cost: float,
    tail: int,
) -> Plan:
    """The plan of these rows, see `_rows`: their pieces become arrays."""
    lengths = sorted(rows)
    stretches = Stretches.of(pieces, [row for n in lengths for row in rows[n]])
    n_rows = [len(rows[n]) for n in lengths]
    return Plan(forest, lengths, n_rows, stretches, batch_tokens, cost, tail)


def _rows(
    pieces: Pieces, of_length: dict[int, list[int]], pack: bool
) -> dict[int, list[list[int]]]:
    """For each row length its rows of pieces."""
    if not pack:
        return {length: [[k] for k in own] for length, own in of_length.items()}
    return {
        length: [
            [own[place] for place in chosen]
            for chosen in best_fit([pieces.size[k] for k in own], length)
        ]
        for length, own in of_length.items()
    }
