"""Reference implementations with full logits and dense masks, short enough to check by eye."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.dots import from_storage
from jaxscore.device.rows import ScoredPositions, Scores, Unembedding


def attention(
    q: Array,
    k: Array,
    v: Array,
    position: Any,
    subtree_end: Any,
    window: Any,
    *,
    rule: ScoreRule,
    dtype: Any,
    sinks: Array | None = None,
    chunked: bool = False,
) -> Array:
    """Compute `attention.interval.attention` with a mask that is built token by token.

    Arguments and result are the same, without caches.
    """
    R, L, N, _ = q.shape

    def in_window(query_position: Any, key_position: Any) -> bool:
        if not int(window):
            return True
        if chunked:
            return int(query_position) // int(window) == int(key_position) // int(window)
        return int(query_position - key_position) < int(window)

    k, v = (jnp.repeat(x.astype(dtype), N // x.shape[2], axis=2) for x in (k, v))
    mask = [
        [
            [
                j <= i and i < int(subtree_end[r, j]) and in_window(position[r, i], position[r, j])
                for j in range(L)
            ]
            for i in range(L)
        ]
        for r in range(R)
    ]
    scores = jnp.einsum("rinh,rjnh->rnij", q.astype(dtype), k, precision="highest")
    slopes = rule.slopes()
    scores = rule.scores(
        scores.astype(jnp.float32),
        None if slopes is None else slopes[:, None, None],
        position[:, None, :, None],
        position[:, None, None, :],
    )
    scores = jnp.where(jnp.asarray(mask)[:, None], scores, -jnp.inf)
    if sinks is not None:  # an additional column without a value
        column = jnp.broadcast_to(sinks[None, :, None, None], (R, N, L, 1))
        scores = jnp.concatenate([scores, column], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1).astype(dtype)[..., :L]
    return jnp.einsum("rnij,rjnh->rinh", weights, v, precision="highest").astype(jnp.float32)


def convolve(x: np.ndarray, taps: np.ndarray, bias: Any, parent: np.ndarray) -> np.ndarray:
    """Compute `recurrence.paths.convolve` in float64, token by token.

    Args:
        parent: the parent of each of the T tokens, T for roots.
    """
    y = np.zeros(x.shape)
    for t in range(len(x)):
        ancestor = t
        for tap in reversed(range(taps.shape[1])):
            if ancestor < len(x):
                y[t] += taps[:, tap] * x[ancestor]
                ancestor = parent[ancestor]
    return y if bias is None else y + bias


def gated_delta(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    log_decay: np.ndarray,
    rate: np.ndarray,
    parent: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `recurrence.rules.gated_delta` in float64, token by token.

    Args:
        q, k, v, log_decay, rate: the arguments of `gated_delta`, [T, ...] instead of [N, C, ...].
        parent: the parent of each of the T tokens, an earlier token, or T.

    Returns:
        The outputs, and the states [T, H, K, V] after each token.
    """
    q, k = (np.repeat(x.astype(np.float64), v.shape[1] // x.shape[1], axis=1) for x in (q, k))
    states = {len(v): np.zeros((v.shape[1], k.shape[2], v.shape[2]))}
    for t, above in enumerate(parent.tolist()):
        decay = np.exp(log_decay[t].astype(np.float64)).reshape(v.shape[1], -1, 1)
        state = states[above] * decay
        change = rate[t][:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], state))
        states[t] = state + k[t][:, :, None] * change[:, None]
    after = np.stack([states[t] for t in range(len(v))])
    return np.einsum("thk,thkv->thv", q, after), after


def state_space(
    x: np.ndarray,
    step_size: np.ndarray,
    log_decay: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    parent: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `recurrence.rules.state_space` in float64, see `gated_delta` above."""
    b, c = (np.repeat(y.astype(np.float64), x.shape[1] // y.shape[1], axis=1) for y in (b, c))
    states = {len(x): np.zeros((x.shape[1], b.shape[2], x.shape[2]))}
    for t, above in enumerate(parent.tolist()):
        state = states[above] * np.exp(log_decay[t].astype(np.float64))[:, None, None]
        states[t] = state + b[t][:, :, None] * (step_size[t][:, None] * x[t])[:, None]
    after = np.stack([states[t] for t in range(len(x))])
    return np.einsum("ths,thsp->thp", c, after), after


def selective_scan(
    x: np.ndarray,
    step_size: np.ndarray,
    rate: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    parent: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `recurrence.rules.selective_scan` in float64, see `gated_delta` above."""
    b, c = (np.repeat(y.astype(np.float64), x.shape[1] // y.shape[1], axis=1) for y in (b, c))
    decay = np.exp(step_size.astype(np.float64)[:, None] * rate)
    added = b.swapaxes(1, 2) * (step_size.astype(np.float64) * x)[:, None]
    states = {len(x): np.zeros(rate.shape)}
    for t, above in enumerate(parent.tolist()):
        states[t] = decay[t] * states[above] + added[t]
    after = np.stack([states[t] for t in range(len(x))])
    return np.einsum("tds,tsd->td", c, after), after


def gated_unit(
    x: np.ndarray, decay: np.ndarray, parent: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `recurrence.rules.gated_unit` in float64, see `gated_delta` above."""
    states = {len(x): np.zeros(x.shape[1])}
    for t, above in enumerate(parent.tolist()):
        states[t] = decay[t].astype(np.float64) * states[above] + x[t]
    after = np.stack([states[t] for t in range(len(x))])
    return after, after


def score_positions(
    hidden_ND: Any,
    scored: ScoredPositions,
    head: Unembedding,
    top: int = 0,
    measures: tuple[str, ...] = (),
) -> Scores:
    """Compute `lm_head.score_positions` from the full softmax."""
    if "rank" in measures:  # one position per edge
        slot = jnp.arange(len(scored.slot))
        scored = scored._replace(token=scored.token[scored.slot], slot=slot)
    hidden_QD = hidden_ND[scored.token]
    z = jnp.matmul(hidden_QD, from_storage(head.weight).astype(jnp.float32).T, precision="highest")
    z = z if head.bias is None else z + head.bias
    z = z * head.scale
    z = z if head.softcap is None else head.softcap * jnp.tanh(z / head.softcap)
    logp = jax.nn.log_softmax(z, axis=-1)
    V = z.shape[-1]
    greedy_id = jnp.argmax(z, axis=-1).astype(jnp.int32)
    top_id = jnp.argsort(-z, axis=-1, stable=True)[:, :top].astype(jnp.int32)
    finite_logp = jnp.where(logp > -jnp.inf, logp, 0.0)  # a probability of 0 adds nothing
    entropy = -jnp.sum(jnp.exp(logp) * finite_logp, axis=-1)
    varentropy = jnp.sum(jnp.exp(logp) * (finite_logp + entropy[:, None]) ** 2, axis=-1)
    values = {
        "deviation": jnp.sqrt(varentropy),
        "renyi2": -jnp.log(jnp.sum(jnp.exp(2 * logp), axis=-1)),
        "varentropy": varentropy,
    }
    if "rank" in measures:
        target = jnp.take_along_axis(z, scored.target[:, None], axis=-1)
        values["rank"] = 1.0 + jnp.sum(z > target, axis=-1)
    mass = None
    if head.classes is not None:
        members = jnp.where(jnp.asarray(head.classes), logp[:, None], -jnp.inf)
        mass = jax.nn.logsumexp(members, axis=-1)
    return Scores(
        logprob=logp[scored.slot, scored.target],
        greedy=scored.target == greedy_id[scored.slot],
        entropy=entropy,
        self_certainty=-jnp.mean(logp, axis=-1) - jnp.log(float(V)),
        greedy_id=greedy_id,
        top_id=top_id if top else None,
        top_logprob=jnp.take_along_axis(logp, top_id, axis=-1) if top else None,
        measures={name: values[name] for name in measures},
        mass=mass,
    )
