"""Greedy and sampled decoding over a KV cache of static shape.

    prefill   prompts as packed tries, each shared token once -> keys and values of all tokens
    begin     some requests' paths gathered from them into rows of the cache, and what else the
              device has to know of these requests
    decode    token after token for all rows at once, until each is done or the buffer is full

Rows that are done may begin again between two calls of `decode`. The cache holds a prompt without
its last token; that token is the first one decoded, so every step is the same program.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.decoder import KeysValues
from jaxscore.device.lm_head.column_blocks import all_logits
from jaxscore.device.lm_head.scores import lm_head_terms
from jaxscore.device.rows import Unembedding
from jaxscore.device.sampling import Sampling, apply_repetition_penalty, sample_tokens

Extend = Callable[..., tuple[Float[Array, "R L D"], KeysValues]]

NONE = -1  # in place of a token: the request had ended
NONFINITE = -2  # in place of a token: its logits were not all finite, so it has no argmax


class GenerationState(NamedTuple):
    """B requests that are being decoded.

    `cache` holds their keys and values, `token` is what is fed next, `left` how many tokens a
    request may still get, `drawn` how many it has. `seen` says which ids its prompt and its text
    hold; None where no request has a repetition penalty.
    """

    cache: KVCache
    token: Int[Array, " B"]
    done: Bool[Array, " B"]
    left: Int[Array, " B"]
    drawn: Int[Array, " B"]
    seen: Bool[Array, "B V"] | None


class NewRequests(NamedTuple):
    """W requests that begin, each in one of B rows; the number B means no row.

    `length` counts a prompt's tokens in the cache; `eos` and the others are as in
    `GenerationState` and `decode`.
    """

    row: Int[Array, " W"]
    length: Int[Array, " W"]
    token: Int[Array, " W"]
    left: Int[Array, " W"]
    seen: Bool[Array, "W V"] | None
    sampling: Sampling
    eos: Int[Array, "W E"]


def store(
    cache: KVCache,
    kept: KeysValues,
    source: Int[Array, "W S"],
    row: Int[Array, " W"],
) -> KVCache:
    """The cache with some of its rows filled from a prefill; the others are not touched.

    A row is filled to its end, so that nothing of it depends on who had it before.

    Args:
        cache: of all layers, [layers, B, K, S, H].
        kept: keys and values of a batch of rows, [layers, R, K, L, H].
        source: for each slot the token of the flattened [R * L] that it takes; R * L is none,
            and a zero.
        row: of the cache, for each of `source`; B is none.
    """

    def taken(cache: Num[Array, "N B K S H"], rows: Num[Array, "N R K L H"]) -> jax.Array:
        row_of, token_of = jnp.divmod(source, rows.shape[3])
        own = rows.at[:, row_of, :, token_of].get(mode="fill", fill_value=0)  # [W, S, N, K, H]
        return cache.at[:, row].set(own.transpose(2, 0, 3, 1, 4), mode="drop")

    key, value = kept
    return cache._replace(key=taken(cache.key, key), value=taken(cache.value, value))


def begin(
    state: GenerationState,
    sampling: Sampling,
    eos: Int[Array, "B E"],
    kept: KeysValues,
    source: Int[Array, "W S"],
    begun: NewRequests,
) -> tuple[GenerationState, Sampling, Int[Array, "B E"]]:
    """All that decoding takes, with some rows given to new requests.

    Args:
        kept, source: of their prompts, see `store`.
    """

    def given(old, new):
        return old.at[begun.row].set(new, mode="drop")

    cache = store(state.cache, kept, source, begun.row)
    state = state._replace(
        cache=cache._replace(length=given(cache.length, begun.length)),
        token=given(state.token, begun.token),
        done=given(state.done, False),
        left=given(state.left, begun.left),
        drawn=given(state.drawn, 0),
        seen=None if begun.seen is None else given(state.seen, begun.seen),
    )
    return state, jax.tree.map(given, sampling, begun.sampling), given(eos, begun.eos)


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
    """Up to `steps` tokens for each request that is not done.

    Args:
        extend: see `decoder.extend`.
        prefix: keys and values of what all prompts begin with.
        eos: ids that end each request's text, -1 is none; one that is drawn is in the output.
        steps: T.
        greedy: no request samples; saves the [B, V] logits where none has a penalty either.
        cut: see `sampling.draw`.

    Returns:
        The state and the tokens, `NONE` after a request's last one. `NONFINITE` ends a request.
    """
    head = unembedding(params)
    B = state.token.shape[0]

    def next_token(hidden_BD, drawn, seen):
        if greedy and seen is None:
            terms = lm_head_terms(hidden_BD, head)
            return jnp.where(jnp.isfinite(terms.entropy), terms.greedy_id, NONFINITE)
        logits_BV = all_logits(hidden_BD, head)
        if seen is not None:
            logits_BV = apply_repetition_penalty(logits_BV, seen, sampling.penalty)
        # A logit of minus infinity is a token that is never drawn; the largest is NaN if one is.
        sound = jnp.isfinite(logits_BV.max(axis=1))
        best = jnp.argmax(logits_BV, axis=1).astype(jnp.int32)
        chosen = best if greedy else sample_tokens(logits_BV, sampling, drawn, cut=cut)
        return jnp.where(sound, chosen, NONFINITE)

    def step(carry):
        t, new, (cache, token, done, left, drawn, seen), out = carry
        before = (*prefix, cache, new)
        at = new.first + t
        hidden, (key, value) = extend(
            params, token[:, None], at[:, None], jnp.ones((B, 1), jnp.int32), before
        )
        new = new._replace(
            key=lax.dynamic_update_slice_in_dim(new.key, key, t, axis=3),
            value=lax.dynamic_update_slice_in_dim(new.value, value, t, axis=3),
            length=new.length + jnp.where(done, 0, 1),
        )
        drawn_token = next_token(hidden[:, 0], drawn, seen)
        out = out.at[:, t].set(jnp.where(done, NONE, drawn_token))
        left, drawn = left - jnp.where(done, 0, 1), drawn + jnp.where(done, 0, 1)
        broken = drawn_token == NONFINITE
        token = jnp.where(done | broken, token, drawn_token)
        done = done | broken | (left <= 0) | (token[:, None] == eos).any(axis=1)
        if seen is not None:
            seen = seen.at[jnp.arange(B), token].set(True)
        return t + 1, new, GenerationState(cache, token, done, left, drawn, seen), out

    def more(carry):
        t, _, state, _ = carry
        return (t < steps) & ~state.done.all()

    empty = jnp.full((B, steps), NONE, jnp.int32)
    _, new, state, out = lax.while_loop(
        more, step, (jnp.int32(0), _new(state.cache, steps), state, empty)
    )
    return state._replace(cache=_joined(state.cache, new)), out


def _new(cache: KVCache, steps: int) -> KVCache:
    """Room for the tokens of some steps behind those of a cache.

    Every row's token of a step has the same slot here, so that a step writes one slice. In the
    cache itself each row has another slot, and a step would scatter, see `_joined`.
    """
    n, B, K, _, H = cache.key.shape
    room = jnp.zeros((n, B, K, steps, H), cache.key.dtype)
    return KVCache(room, room, cache.first + cache.length, jnp.zeros(B, jnp.int32))


def _joined(cache: KVCache, new: KVCache) -> KVCache:
    """The cache with the tokens of `_new` behind those that it had.

    One layer after the other: for a scatter into all of them, the compiler for a TPU copies the
    whole cache into another layout and back, where heads have 64 channels or where there is one.
    """
    n, B, _, S, _ = cache.key.shape
    step = jnp.arange(new.key.shape[3])
    slot = jnp.where(step < new.length[:, None], cache.length[:, None] + step, S)  # S is none
    rows = jnp.arange(B)[:, None]

    def of_layer(layer, stored):
        def joined(old, fresh):
            by_token = fresh[layer].transpose(0, 2, 1, 3)  # [B, T, K, H]
            own = old[layer].at[rows, :, slot].set(by_token, mode="drop")
            return lax.dynamic_update_index_in_dim(old, own, layer, 0)

        return jax.tree.map(joined, stored, (new.key, new.value))

    key, value = lax.fori_loop(0, n, of_layer, (cache.key, cache.value))
    return cache._replace(key=key, value=value, length=cache.length + new.length)
