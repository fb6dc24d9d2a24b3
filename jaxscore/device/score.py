"""The compiled scoring function: rows in, scores out."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.lm_head import score_positions
from jaxscore.device.lm_head.divergence import Pair, score_pair
from jaxscore.device.mesh_shape import DATA
from jaxscore.device.rows import PathShape, Rows, Scores, Unembedding, unpack_rows

# (params, ids, position, subtree_end), the last three [R, L], a tuple of KV caches if the model
# takes them, and the keyword `paths` if it is recurrent
HiddenStates = Callable[..., Float[Array, "R L D"]]
# The same for two models, with a `Pair` of unembeddings
PairStates = Callable[..., tuple[Float[Array, "R L D"], Float[Array, "R L E"]]]


def score_rows(
    hidden_states: HiddenStates | PairStates,
    unembedding: Callable[[Any], Unembedding | Pair],
    params: Any,
    rows: Rows,
    classes: Bool[Array, "n_classes V"] | None = None,
    *caches: KVCache,
    top: int = 0,
    measures: tuple[str, ...] = (),
) -> Scores:
    """Score the edges of a batch under the model that the two functions define.

    Args:
        classes: the ids of each class of tokens whose probability is summed, or None.
        caches: KV caches of the prefixes that the rows continue, for models that take them.
        top, measures: see `score_positions`, or `score_pair` for a pair of models.

    Raises:
        ValueError: `top` is above 0 or there are classes, and there are two models.
    """
    before = (caches,) if caches else ()
    more = {} if rows.paths is None else {"paths": rows.paths}
    hidden = hidden_states(params, rows.ids, rows.position, rows.subtree_end, *before, **more)
    flat = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), hidden)
    head = unembedding(params)
    if isinstance(head, Pair):
        if top:
            raise ValueError(f"top is {top}, expected 0: a pair of models ranks no tokens")
        if classes is not None:
            raise ValueError("classes, expected None: a pair of models sums no classes of tokens")
        return score_pair(flat, rows.scored, head, measures)
    if classes is not None and head.split is not None:
        V = head.weight.shape[0]
        classes = lax.dynamic_slice_in_dim(classes, lax.axis_index(head.split) * V, V, axis=1)
    return score_positions(flat, rows.scored, head._replace(classes=classes), top, measures)


def score_batch(
    hidden_states: HiddenStates | PairStates,
    unembedding: Callable[[Any], Unembedding | Pair],
    shape: tuple[int, int],
    params: Any,
    values: Int[Array, " n"],
    classes: Bool[Array, "n_classes V"] | None = None,
    *caches: KVCache,
    top: int = 0,
    measures: tuple[str, ...] = (),
    path_shape: PathShape | None = None,
) -> Scores:
    """Unpack a batch of this shape from one array, see `rows.unpack_rows`, and run `score_rows`."""
    rows = unpack_rows(values, shape, path_shape)
    run = functools.partial(score_rows, top=top, measures=measures)
    return run(hidden_states, unembedding, params, rows, classes, *caches)


def score_shard(
    hidden_states: HiddenStates | PairStates,
    unembedding: Callable[[Any], Unembedding | Pair],
    shape: tuple[int, int],
    params: Any,
    values: Int[Array, "1 n"],
    classes: Bool[Array, "n_classes V"] | None = None,
    *caches: KVCache,
    top: int = 0,
    measures: tuple[str, ...] = (),
    path_shape: PathShape | None = None,
) -> Scores:
    """Run `score_batch` on this shard's batch and concatenate the scores of all shards.

    Runs inside `jax.shard_map`; `values` holds one batch per shard of the mesh axis DATA.
    """
    run = functools.partial(score_batch, top=top, measures=measures, path_shape=path_shape)
    scores = run(hidden_states, unembedding, shape, params, values[0], classes, *caches)
    return jax.tree.map(lambda x: lax.all_gather(x, DATA, tiled=True), scores)
