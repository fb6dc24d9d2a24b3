"""The one function that is compiled: rows in, scores out."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.packed_rows import unpacked
from jaxscore.device.rows import Rows, Scores, Unembedding
from jaxscore.device.sharding import DATA
from jaxscore.device.vocabulary.queries import score_queries

# (params, ids, position, subtree_end), each [R, L], and KV caches where the model takes them
HiddenStates = Callable[..., Float[Array, "R L D"]]


def score_rows(
    hidden_states: HiddenStates,
    unembedding: Callable[[Any], Unembedding],
    params: Any,
    rows: Rows,
    *caches: KVCache,
    top: int = 0,
) -> Scores:
    """Scores of a batch's queries under the model that the two functions describe.

    Args:
        caches: keys and values that the rows continue, for models that take them.
        top: as of `score_queries`.
    """
    before = (caches,) if caches else ()
    hidden = hidden_states(params, rows.ids, rows.position, rows.subtree_end, *before)
    flat = hidden.reshape(-1, hidden.shape[-1])
    return score_queries(flat, rows.asked, unembedding(params), top)


def score_batch(
    hidden_states: HiddenStates,
    unembedding: Callable[[Any], Unembedding],
    shape: tuple[int, int],
    params: Any,
    values: Int[Array, " n"],
    *caches: KVCache,
    top: int = 0,
) -> Scores:
    """`score_rows` of a batch of this shape that comes as one array, see `packed_rows`."""
    rows = unpacked(values, shape)
    return score_rows(hidden_states, unembedding, params, rows, *caches, top=top)


def score_shard(
    hidden_states: HiddenStates,
    unembedding: Callable[[Any], Unembedding],
    shape: tuple[int, int],
    params: Any,
    values: Int[Array, "1 n"],
    *caches: KVCache,
    top: int = 0,
) -> Scores:
    """`score_batch` of this shard's batch, and then the scores of all batches, one after another.

    Runs inside `jax.shard_map`; `values` has several batches side by side, over DATA.
    """
    scores = score_batch(hidden_states, unembedding, shape, params, values[0], *caches, top=top)
    return jax.tree.map(lambda x: lax.all_gather(x, DATA, tiled=True), scores)
