"""Which experts a token runs, and how they are weighed."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device.decoder_config import Experts

NEVER = -jnp.inf  # chosen after all others


def routed(
    logits: Float[Array, "R L E"], correction: Float[Array, " E"] | None, experts: Experts
) -> tuple[Float[Array, "R L k"], Int[Array, "R L k"]]:
    """Weights of each token's experts, and the experts, by the rules of `Experts`.

    Args:
        logits: the router's products, float32.
        correction: added to the scores for the choice alone.
    """
    if experts.scores == "sparsemixer":
        share, chosen = _sparsemixer(logits, experts)
    else:
        kind = jax.nn.sigmoid if experts.scores == "sigmoid" else jax.nn.softmax
        scores = kind(logits)
        # A sigmoid is 1 from about 17 on, where the logits still differ.
        ranked = logits if experts.scores == "sigmoid" else scores
        ranked = ranked if correction is None else scores + correction
        _, chosen = lax.top_k(_within_groups(ranked, experts), experts.per_token)
        share = jnp.take_along_axis(scores, chosen, axis=-1)
    if experts.renormalised:
        share = share / jnp.maximum(share.sum(axis=-1, keepdims=True), experts.least_sum)
    return share * experts.scale, chosen


def _within_groups(ranked, experts):
    """Scores of experts in groups that are not among the best are out of the running.

    Groups of neighbours are ranked by the sum of their `group_rank` best scores (arXiv
    2412.19437, section 2.1.2).
    """
    if experts.groups == experts.groups_per_token:
        return ranked
    groups = ranked.reshape(*ranked.shape[:-1], experts.groups, -1)
    best = lax.top_k(groups, experts.group_rank)[0].sum(axis=-1)
    _, kept = lax.top_k(best, experts.groups_per_token)
    mine = (jnp.arange(experts.groups)[:, None] == kept[..., None, :]).any(axis=-1)
    return jnp.where(mine[..., None], groups, NEVER).reshape(ranked.shape)


def _sparsemixer(logits, experts):
    """One expert after the other, each weighed by a softmax over those not far below it.

    With the best logit m of those that are left, an expert with logit s counts where
    (m - s) / max(|s|, m) <= 2 jitter (arXiv 2409.12136, appendix).
    """
    left, share, chosen = logits, [], []
    for _ in range(experts.per_token):
        best = left.max(axis=-1, keepdims=True)
        far = (best - logits) / jnp.maximum(jnp.abs(logits), best) > 2 * experts.jitter
        nth = jnp.argmax(left, axis=-1)[..., None]
        weights = jax.nn.softmax(jnp.where(far, NEVER, left), axis=-1)
        share.append(jnp.take_along_axis(weights, nth, axis=-1))
        chosen.append(nth)
        left = jnp.where(jnp.arange(logits.shape[-1]) == nth, NEVER, left)
    return jnp.concatenate(share, axis=-1), jnp.concatenate(chosen, axis=-1)
