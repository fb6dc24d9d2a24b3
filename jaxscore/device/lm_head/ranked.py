"""The most probable tokens of each query, kept beside the sums while the vocabulary goes by.

A block's own k best and the k best of all columns before it leave the k best of both. Equal
logits keep the order of their columns: `lax.top_k` puts the lower place first, and what earlier
columns have left stands in front.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device.lm_head.sums import LOWEST, Ranked, Terms
from jaxscore.device.rows import Unembedding


def nothing_ranked(n_queries: int, head: Unembedding, top: int) -> Ranked | None:
    """Before the first column; None for fewer than two tokens, since the sums have the first one.

    Args:
        top: tokens to rank. A shard that has fewer columns ranks all of them.
    """
    k = min(top, head.weight.shape[0])
    if top < 2:
        return None
    return Ranked(jnp.full((n_queries, k), -jnp.inf), jnp.zeros((n_queries, k), jnp.int32))


def ranked_with(
    ranked: Ranked, z: Float[Array, "Q C"], start: Int[Array, ""], fresh: Bool[Array, "1 C"]
) -> Ranked:
    """The best of `ranked` and of a block of columns, from `start` on, that are `fresh`.

    A logit below LOWEST counts as LOWEST, so that every fresh column stands before others.
    """
    z = jnp.where(z == 0, 0.0, z)  # `lax.top_k` puts 0.0 before -0.0
    z = jnp.where(fresh, jnp.maximum(z, LOWEST), -jnp.inf)
    own, at = lax.top_k(z, min(ranked.z.shape[1], z.shape[1]))
    both = Ranked(
        jnp.concatenate([ranked.z, own], axis=1),
        jnp.concatenate([ranked.id, start + at], axis=1),
    )
    return _first(both, ranked.z.shape[1])


def most_probable(
    ranked: Ranked | None, of_queries: Terms, head: Unembedding, top: int
) -> tuple[Int[Array, "Q k"], Float[Array, "Q k"]]:
    """Ids and log-probabilities of the `top` most probable tokens, the most probable one first.

    A logit of minus infinity, or of LOWEST at most, gives a log-probability of minus infinity.

    Args:
        ranked: of the columns that are here; None for one token, which `of_queries` has.
    """
    if ranked is None:
        ranked = Ranked(of_queries.top[:, None], of_queries.greedy_id[:, None])
    elif head.split is not None:
        # Shard after shard, so that equal logits stay in the order of their columns.
        first = lax.axis_index(head.split) * head.weight.shape[0]
        z = lax.all_gather(ranked.z, head.split, axis=1, tiled=True)
        id = lax.all_gather(ranked.id + first, head.split, axis=1, tiled=True)
        ranked = _first(Ranked(z, id), top)
    z = jnp.where(ranked.z > LOWEST, ranked.z, -jnp.inf)
    # The expression of `answers`: 0 less `log_total` where the logit is the largest.
    return ranked.id, (z - of_queries.top[:, None]) - of_queries.log_total[:, None]


def _first(ranked: Ranked, k: int) -> Ranked:
    """The best k of them, in order."""
    z, at = lax.top_k(ranked.z, k)
    return Ranked(z, jnp.take_along_axis(ranked.id, at, axis=1))
