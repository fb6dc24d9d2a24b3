"""The one function that is compiled: rows in, scores out."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.attention.kv_cache import KVCache
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
) -> Scores:
    """Scores of a batch's queries under the model that the two functions describe.

    Args:
        caches: keys and values that the rows continue, for models that take them.
    """
    before = (caches,) if caches else ()
    hidden = hidden_states(params, rows.ids, rows.position, rows.subtree_end, *before)
    flat = hidden.reshape(-1, hidden.shape[-1])
    return score_queries(flat, rows.asked, unembedding(params))


def score_shard(
    hidden_states: HiddenStates,
    unembedding: Callable[[Any], Unembedding],
    params: Any,
    rows: Rows,
    *caches: KVCache,
) -> Scores:
    """`score_rows` of this shard's batch, and then the scores of all batches, one after another.

    Runs inside `jax.shard_map`; `rows` has several batches side by side, over DATA, and the
    numbers of queries and answers are [1] here.
    """
    asked = rows.asked
    counts = {"n_queries": asked.n_queries[0], "n_answers": asked.n_answers[0]}
    own = rows._replace(asked=asked._replace(**counts))
    scores = score_rows(hidden_states, unembedding, params, own, *caches)
    return jax.tree.map(lambda x: lax.all_gather(x, DATA, tiled=True), scores)
