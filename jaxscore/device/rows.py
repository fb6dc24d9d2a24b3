"""Arrays that the host sends to the device for one batch, and the scores that come back.

A batch is packed into one int32 array, so that it takes one transfer instead of eight.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from jaxscore.device.backends import BACKENDS, Backend

PER_TOKEN = 4  # arrays with an entry per token: ids, positions, subtree ends, scored tokens
COUNTS = 2  # the numbers of scored positions and of edges


class ScoredPositions(NamedTuple):
    """The positions of a batch at which the LM head runs, and the edges scored there.

    Only the first `n_positions` positions and the first `n_edges` edges are valid; the remaining
    entries are 0 and are not read.

    Attributes:
        token: the index of each scored position among the flattened [R * L] tokens.
        n_positions: the number of valid positions.
        slot: for each edge, the index of its scored position in `token`.
        target: for each edge, the token id whose log-probability is computed.
        n_edges: the number of valid edges.
    """

    token: Int[Array, " Q"]
    n_positions: Int[Array, ""]
    slot: Int[Array, " E"]
    target: Int[Array, " E"]
    n_edges: Int[Array, ""]


class Chunks(NamedTuple):
    """Tokens in N chunks of C slots, each of which starts from one state; see `plan.chunks`.

    Attributes:
        token: the index of each slot's token among the flattened tokens, T in empty slots.
        entry: the start state of each chunk: 0 is the initial state, 1 + e the state of exit e.
        exit: the slot of each exit among all N * C, ordered by level, with padding for a step of W.
        step: the first exit of each step, which computes W exits.
        n_steps: the number of steps.
    """

    token: Int[Array, "N C"]
    entry: Int[Array, " N"]
    exit: Int[Array, " NW"]
    step: Int[Array, " N"]
    n_steps: Int[Array, ""]


class Paths(NamedTuple):
    """Paths of a batch for recurrent layers; the host counterpart is `plan.chunks.PathPlan`.

    Attributes:
        parent: the parent of each of the T flattened tokens, T at roots.
        chunks: None if no layer carries a state.
    """

    parent: Int[Array, " T"]
    chunks: Chunks | None


PathShape = tuple[int, int, int]  # N, C and W of `Chunks`; zeros without chunks


class Rows(NamedTuple):
    """A batch of packed rows; the host counterpart is `plan.row_batches.RowBatch`.

    A row holds one or more tries in depth-first order. Token i of a row attends to token j of the
    same row if and only if `j <= i < subtree_end[j]`. `position` is the depth of a token in its
    trie. `paths` is None for models without recurrent layers.
    """

    ids: Int[Array, "R L"]
    position: Int[Array, "R L"]
    subtree_end: Int[Array, "R L"]
    scored: ScoredPositions
    paths: Paths | None = None


class Scores(NamedTuple):
    """Scores of a batch, float32 nats. Entries beyond the valid counts are undefined.

    With the measure "rank", arrays of length Q have one entry per edge instead, [E].

    Attributes:
        logprob: the log-probability of each edge's target.
        greedy: True if the target is the argmax.
        entropy, self_certainty: measures of each position's distribution.
        greedy_id: the argmax of each position.
        top_id, top_logprob: the k most probable tokens of each position in descending order, ties
            by the lowest id; None unless requested.
        measures: further measures by name, see `lm_head.sums`.
        mass: log-probability of each class of `Unembedding.classes`; None without classes.
    """

    logprob: Float[Array, " E"]
    greedy: Bool[Array, " E"]
    entropy: Float[Array, " Q"]
    self_certainty: Float[Array, " Q"]
    greedy_id: Int[Array, " Q"]
    top_id: Int[Array, "Q k"] | None = None
    top_logprob: Float[Array, "Q k"] | None = None
    measures: dict[str, Float[Array, " Q"]] = {}  # noqa: RUF012 - never changed
    mass: Float[Array, "Q n_classes"] | None = None


class Unembedding(NamedTuple):
    """A model's LM head: logits are `softcap * tanh(scale * (h @ weight.T + bias) / softcap)`.

    Attributes:
        weight: the weight as stored, see `dots.as_integers`.
        split: mesh axis over which the vocabulary is split, or None; each shard has consecutive
            columns.
        backend: the implementations for the platform that the program is compiled for.
        classes: the columns of each class of tokens whose probability is summed, or None.
    """

    weight: Num[Array, "V D"]
    bias: Float[Array, " V"] | None
    scale: float
    softcap: float | None
    split: str | None = None
    backend: Backend = BACKENDS["cpu"]
    classes: Bool[Array, "n_classes V"] | None = None


def pack_rows(rows: Rows) -> np.ndarray:
    """Concatenate the arrays of a host batch into one int32 array of `packed_size`."""
    ids, position, subtree_end, scored, paths = rows
    counts = np.array([scored.n_positions, scored.n_edges], np.int32)
    arrays: list[Any] = [
        ids,
        position,
        subtree_end,
        scored.token,
        counts,
        scored.slot,
        scored.target,
    ]
    if paths is not None:
        arrays += [paths.parent, *(paths.chunks or ())]
    return np.concatenate([np.ravel(array) for array in arrays], dtype=np.int32)


def packed_size(n_tokens: int, n_edges: int, path_shape: PathShape | None = None) -> int:
    """Return the length of the packed array of a batch of this many tokens and edges."""
    size = PER_TOKEN * n_tokens + COUNTS + 2 * n_edges
    return size if path_shape is None else size + sum(_path_sizes(n_tokens, path_shape))


def _path_sizes(n_tokens: int, path_shape: PathShape) -> list[int]:
    """Return the sizes of the arrays of `Paths`, in order."""
    n_chunks, size, width = path_shape
    if not n_chunks:
        return [n_tokens]
    return [n_tokens, n_chunks * size, n_chunks, n_chunks + width, n_chunks, 1]


def unpack_rows(
    values: Int[Array, " n"], shape: tuple[int, int], path_shape: PathShape | None = None
) -> Rows:
    """Unpack an array of `pack_rows`, on the device.

    Args:
        values: the packed array.
        shape: [R, L] of the batch.
        path_shape: None without `Rows.paths`.
    """
    n = shape[0] * shape[1]
    paths = None
    if path_shape is not None:
        sizes = _path_sizes(n, path_shape)
        rest = values.shape[0] - sum(sizes)
        values, parent, *chunks = jnp.split(
            values, [rest + sum(sizes[:k]) for k in range(len(sizes))]
        )
        paths = Paths(parent, None)
        if chunks:
            token, entry, exit_, step, n_steps = chunks
            token = token.reshape(path_shape[:2])
            paths = Paths(parent, Chunks(token, entry, exit_, step, n_steps[0]))
    by_token, counts, by_edge = jnp.split(values, [PER_TOKEN * n, PER_TOKEN * n + COUNTS])
    ids, position, end, token = by_token.reshape(PER_TOKEN, n)
    slot, target = jnp.split(by_edge, 2)
    scored = ScoredPositions(token, counts[0], slot, target, counts[1])
    return Rows(ids.reshape(shape), position.reshape(shape), end.reshape(shape), scored, paths)
