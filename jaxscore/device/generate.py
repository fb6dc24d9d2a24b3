"""Greedy and sampled decoding over a KV cache of static shape.

    prefill   prompts as packed tries, each shared token once -> keys and values of all tokens
    start     copy the paths of new requests from the prefill into slots of the cache
    decode    one token per step for all slots, until all are done or the buffer is full

Finished slots can take new requests between two calls of `decode` (continuous batching). The cache
holds a prompt without its last token, which is the first input of `decode`, so that all steps run
the same program. States of recurrent layers are those after the last token in the cache.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Num

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.decoder import Extend, KeysValues
from jaxscore.device.lm_head import lm_head_terms
from jaxscore.device.lm_head.column_blocks import all_logits
from jaxscore.device.rows import Unembedding
from jaxscore.device.sampling import Sampling, apply_repetition_penalty, sample_tokens

NO_TOKEN = -1  # in place of a token: the request was already finished
NONFINITE = -2  # in place of a token: the largest logit was NaN or infinite


class GenerationState(NamedTuple):
    """The requests in B slots.

    Attributes:
        cache: keys, values and states.
        token: the next input token of each slot.
        done: True for finished requests.
        left, drawn: the number of tokens that each request may still generate, and has generated.
        seen: mask of the ids in prompt and generated text, or None if no request has a repetition
            penalty.
    """

    cache: KVCache
    token: Int[Array, " B"]
    done: Bool[Array, " B"]
    left: Int[Array, " B"]
    drawn: Int[Array, " B"]
    seen: Bool[Array, "B V"] | None


class NewRequests(NamedTuple):
    """W requests that start, each in one of B slots; slot B marks an unused entry.

    Attributes:
        length: the number of prompt tokens in the cache.
        states_at: the index of the prompt among the prefilled states.
        token, left, seen, eos: see `GenerationState` and `decode`.
    """

    slot: Int[Array, " W"]
    length: Int[Array, " W"]
    states_at: Int[Array, " W"]
    token: Int[Array, " W"]
    left: Int[Array, " W"]
    seen: Bool[Array, "W V"] | None
    sampling: Sampling
    eos: Int[Array, "W E"]


def fill_slots(
    cache: KVCache,
    prefilled: KeysValues,
    source: Int[Array, "W S"],
    slot: Int[Array, " W"],
    states_at: Int[Array, " W"],
) -> KVCache:
    """Copy prompts from a prefill into slots of the cache.

    A slot is overwritten to its end, so that nothing of its previous request remains.

    Args:
        cache: keys and values of all layers, [layers, B, K, S, H], and states.
        prefilled: keys and values of a batch of rows, [layers, R, K, L, H], and E states.
        source: the token of each slot entry, an index of the flattened [R * L]; R * L gives zeros.
        slot: the slot of each row of `source`; rows with slot B are dropped.
        states_at: see `NewRequests`.
    """

    def copy(cache: Num[Array, "N B K S H"], rows: Num[Array, "N R K L H"]) -> jax.Array:
        row, token = jnp.divmod(source, rows.shape[3])
        prompts = rows.at[:, row, :, token].get(mode="fill", fill_value=0)  # [W, S, N, K, H]
        return cache.at[:, slot].set(prompts.transpose(2, 0, 3, 1, 4), mode="drop")

    def copy_states(old: Array, new: Array) -> Array:
        return old.at[:, slot].set(new[:, states_at], mode="drop")

    return cache._replace(
        key=copy(cache.key, prefilled.key),
        value=copy(cache.value, prefilled.value),
        states=jax.tree.map(copy_states, cache.states, prefilled.states),
    )


def start(
    state: GenerationState,
    sampling: Sampling,
    eos: Int[Array, "B E"],
    prefilled: KeysValues,
    source: Int[Array, "W S"],
    new: NewRequests,
) -> tuple[GenerationState, Sampling, Int[Array, "B E"]]:
    """Start new requests in some slots.

    Args:
        state, sampling, eos: state and parameters of all slots, see `decode`.
        prefilled, source: keys and values of the new prompts, see `fill_slots`.
        new: the requests.

    Returns:
        `state`, `sampling` and `eos` with the new requests.
    """

    def put(old: Any, value: Any) -> Array:
        return old.at[new.slot].set(value, mode="drop")

    cache = fill_slots(state.cache, prefilled, source, new.slot, new.states_at)
    state = state._replace(
        cache=cache._replace(length=put(cache.length, new.length)),
        token=put(state.token, new.token),
        done=put(state.done, False),
        left=put(state.left, new.left),
        drawn=put(state.drawn, 0),
        seen=None if new.seen is None else put(state.seen, new.seen),
    )
    return state, jax.tree.map(put, sampling, new.sampling), put(eos, new.eos)


def decode(
    extend: Extend,
    unembedding: Callable[[Any], Unembedding],
    params: Any,
    state: GenerationState,
    sampling: Sampling,
    prefix: tuple[KVCache, ...],
    eos: Int[Array, "B E"],
    *,
    steps: int,
    greedy: bool,
    cut: bool,
) -> tuple[GenerationState, Int[Array, "B T"]]:
    """Generate up to `steps` tokens for each request that is not done.

    Args:
        extend: see `decoder.extend`.
        unembedding: function that returns the LM head of `params`.
        state, sampling: state and sampling parameters of all slots.
        prefix: caches of the prefix that all prompts share.
        eos: ids that finish each request, padded with -1; the output includes the drawn id.
        steps: T, the maximum number of steps.
        greedy: True if all requests are greedy; without penalties this saves the [B, V] logits.
        cut: see `sampling.sample_tokens`.

    Returns:
        The state, and the tokens, with `NO_TOKEN` after a request's last token. A request whose
        logits are not finite ends with `NONFINITE`.
    """
    head = unembedding(params)
    B = state.token.shape[0]

    def step(carry: Any) -> Any:
        t, new, state, out = carry
        caches = (*prefix, state.cache, new)
        position = new.first + t
        hidden, outputs = extend(
            params, state.token[:, None], position[:, None], jnp.ones((B, 1), jnp.int32), caches
        )
        new = new._replace(
            key=lax.dynamic_update_slice_in_dim(new.key, outputs.key, t, axis=3),
            value=lax.dynamic_update_slice_in_dim(new.value, outputs.value, t, axis=3),
            states=outputs.states,
            length=new.length + jnp.where(state.done, 0, 1),
        )
        chosen = _choose(hidden[:, 0], head, sampling, state, greedy=greedy, cut=cut)
        out = out.at[:, t].set(jnp.where(state.done, NO_TOKEN, chosen))
        return t + 1, new, _advance(state, chosen, eos), out

    def is_unfinished(carry: Any) -> Array:
        t, _, state, _ = carry
        return (t < steps) & ~state.done.all()

    empty = jnp.full((B, steps), NO_TOKEN, jnp.int32)
    _, new, state, out = lax.while_loop(
        is_unfinished, step, (jnp.int32(0), _empty_step_cache(state.cache, steps), state, empty)
    )
    return state._replace(cache=_append(state.cache, new)), out


def _choose(
    hidden_BD: Array,
    head: Unembedding,
    sampling: Sampling,
    state: GenerationState,
    *,
    greedy: bool,
    cut: bool,
) -> Int[Array, " B"]:
    """Choose the next token of each slot, or `NONFINITE`; see `decode`."""
    if greedy and state.seen is None:
        terms = lm_head_terms(hidden_BD, head)
        return jnp.where(jnp.isfinite(terms.entropy), terms.greedy_id, NONFINITE)
    logits_BV = all_logits(hidden_BD, head)
    if state.seen is not None:
        logits_BV = apply_repetition_penalty(logits_BV, state.seen, sampling.penalty)
    # Tokens with logits of minus infinity are never drawn. If any logit is NaN, so is the maximum.
    is_finite = jnp.isfinite(logits_BV.max(axis=1))
    best = jnp.argmax(logits_BV, axis=1).astype(jnp.int32)
    chosen = best if greedy else sample_tokens(logits_BV, sampling, state.drawn, cut=cut)
    return jnp.where(is_finite, chosen, NONFINITE)


def _advance(
    state: GenerationState, chosen: Int[Array, " B"], eos: Int[Array, "B E"]
) -> GenerationState:
    """Return the state after a step that chose these tokens; finished slots do not change."""
    cache, token, done, left, drawn, seen = state
    left, drawn = left - jnp.where(done, 0, 1), drawn + jnp.where(done, 0, 1)
    is_nonfinite = chosen == NONFINITE
    token = jnp.where(done | is_nonfinite, token, chosen)
    done = done | is_nonfinite | (left <= 0) | (token[:, None] == eos).any(axis=1)
    if seen is not None:
        seen = seen.at[jnp.arange(len(token)), token].set(True)
    return GenerationState(cache, token, done, left, drawn, seen)


def _empty_step_cache(cache: KVCache, steps: int) -> KVCache:
    """Return an empty cache for the tokens of the next steps, with the states of `cache`.

    In this cache, the tokens of a step have one index in all slots, so a step writes one slice. In
    `cache` the indices differ, and each step would scatter, see `_append`.
    """
    n, B, K, _, H = cache.key.shape
    room = jnp.zeros((n, B, K, steps, H), cache.key.dtype)
    return KVCache(room, room, cache.first + cache.length, jnp.zeros(B, jnp.int32), cache.states)


def _append(cache: KVCache, new: KVCache) -> KVCache:
    """Append the tokens of a step cache to the cache, layer by layer.

    If heads have 64 channels or there is one head, the TPU compiler implements a scatter into all
    layers by copying the entire cache to another layout and back.
    """
    n, B, _, S, _ = cache.key.shape
    step = jnp.arange(new.key.shape[3])
    slot = jnp.where(step < new.length[:, None], cache.length[:, None] + step, S)  # S is dropped
    rows = jnp.arange(B)[:, None]

    def append_layer(layer: Array, stored: Any) -> Any:
        def append(old: Array, new_tokens: Array) -> Array:
            by_token = new_tokens[layer].transpose(0, 2, 1, 3)  # [B, T, K, H]
            layer_cache = old[layer].at[rows, :, slot].set(by_token, mode="drop")
            return lax.dynamic_update_index_in_dim(old, layer_cache, layer, 0)

        return jax.tree.map(append, stored, (new.key, new.value))

    stored = cache.key, cache.value
    key, value = lax.fori_loop(0, n, append_layer, stored) if n else stored
    return cache._replace(key=key, value=value, length=cache.length + new.length, states=new.states)
