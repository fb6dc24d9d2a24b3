"""Recurrent layers with their projections, as Flax modules.

Layers with a state gather tokens into chunks before their input projections, since the residual
stream is narrower than the projections, and scatter them after the output projection. States and
products of the recurrence are float32.

The states of a layer are float32 variables of the Flax collection "states". The caller passes the
start states; if the collection is mutable, the layer returns the states at the tokens of
`PathIndex.kept`. The first axis of a state counts start states or kept tokens, the second one heads
or channels. A mixer reads its state with `start_state` and returns it with `keep_state`; its
convolutions do the same. A generation step is a batch of rows of one token (`single_tokens`).

On a mesh, a shard computes its heads, blocks of a gated unit, or channels of a short convolution,
see `device.sharding`; the outputs of the last projection are summed over shards.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxscore.device.backends import ON_CPU, Build
from jaxscore.device.decoder_config import (
    NORMS_AFTER,
    NORMS_BEFORE,
    DecoderConfig,
    GatedDelta,
    GatedUnit,
    Lightning,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from jaxscore.device.feed_forward import ACTIVATIONS
from jaxscore.device.layers import Layout, Linear, Norm
from jaxscore.device.recurrence.paths import (
    ChunkIndex,
    PathIndex,
    convolve,
    convolve_chunks,
    dot,
    last_inputs,
    path_index,
)
from jaxscore.device.recurrence.rules import (
    gated_delta,
    gated_unit,
    selective_scan,
    state_space,
)
from jaxscore.device.rows import Chunks, Paths

LARGEST_RATE = 8.0  # in the RG-LRU, -log decay is at most this times softplus(decay_rate)
SELECTED = "selected_step", "selected_b", "selected_c"  # projections of a selective scan
UNIT_EPS = 1e-6  # added to the squared norm of a query or key


def start_state(module: nn.Module, name: str = "state") -> Array | None:
    """Return the start state [n, H, ...] of the rows, or None."""
    state: Array | None = module.get_variable("states", name)
    return state


def keep_state(module: nn.Module, state: Array | None, name: str = "state") -> None:
    """Store the state [E, H, ...] at the kept tokens, if the collection is mutable."""
    if state is not None and module.is_mutable_collection("states"):
        module.put_variable("states", name, state)


def finish(
    mixer: Any,
    out: Array,
    kept: Array | None,
    index: ChunkIndex,
    shape: tuple[int, ...],
    *,
    use_bias: bool = False,
) -> Array:
    """Store the kept states; project a mixer's outputs [N, C, D], and return them in `shape`."""
    keep_state(mixer, kept)
    c = mixer.config

    def sum_shards(y: Array) -> Array:
        """Sum over shards in row order, in which the tokens of a shard are consecutive."""
        summed: Array = mixer.build.summed(index.scatter(y).reshape(shape))
        return summed

    return Linear(c.width, use_bias, c.quantized, sum_shards, name="out")(out)


class Convolution(nn.Module):
    """Convolution of the tokens or slots [..., D] of an index, whose state is its last inputs.

    Attributes:
        taps: kernel size.
        use_bias: True if the convolution has a bias.
        dilation: see `convolve`; 1 for slots.
    """

    taps: int
    use_bias: bool
    dilation: int = 1

    @nn.compact
    def __call__(self, x: Array, index: PathIndex | ChunkIndex) -> Array:
        D = x.shape[-1]
        taps = self.param("taps", nn.initializers.normal(0.02), (D, 1, self.taps))[:, 0]
        bias = self.param("bias", nn.initializers.zeros, (D,)) if self.use_bias else None
        flat, before = x.reshape(-1, D), start_state(self, "inputs")
        if index.kept is not None and self.taps > 1:
            keep_state(self, last_inputs(flat, index.ancestors, index.kept, before), "inputs")
        if isinstance(index, ChunkIndex) and index.by_products and self.taps > 1:
            return convolve_chunks(x, taps, bias, index, before)
        return convolve(flat, taps, bias, index.ancestors, before, self.dilation).reshape(x.shape)


class ShortConvolutionMixer(nn.Module):
    """The mixer of `ShortConvolution`, in row order."""

    config: DecoderConfig
    mixer: ShortConvolution
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x: Array, layout: Layout) -> Array:
        c, mixer, build = self.config, self.mixer, self.build
        before, after, value = (
            Linear(c.width // build.shards, mixer.bias, c.quantized, name=name)(x)
            for name in ("before", "after", "value")
        )
        mixed = Convolution(mixer.taps, mixer.bias, name="conv")(before * value, layout.paths)
        return Linear(c.width, mixer.bias, c.quantized, build.summed, name="out")(after * mixed)


class GatedDeltaMixer(nn.Module):
    """The mixer of `GatedDelta`."""

    config: DecoderConfig
    mixer: GatedDelta
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x: Array, layout: Layout) -> Array:
        c, m = self.config, self.mixer
        index: ChunkIndex = layout.paths.chunks
        D, H = x.shape[-1], m.n_value_heads // self.build.shards
        x_NCD = index.gather(x.reshape(-1, D))
        J, select_keys = key_heads(self.build, m.n_key_heads)

        def heads(name: str, n_heads: int, width: int, rank: int = 0) -> Array:
            quantized = "" if name == "step" else c.quantized
            step_input = Linear(rank, False, quantized, name=f"{name}_in")(x_NCD) if rank else x_NCD
            y = Linear(n_heads * width, False, quantized, name=name)(step_input)
            return y.reshape(*y.shape[:2], n_heads, width)

        def convolved(name: str, n_heads: int, width: int) -> Array:
            y = heads(name, n_heads, width)
            flat = y.reshape(*y.shape[:2], n_heads * width)
            mixed = Convolution(m.taps, False, name=f"{name}_conv")(flat, index)
            return ACTIVATIONS[m.activation](mixed).reshape(y.shape)

        q, k = (select_keys(unit_length(convolved(name, J, m.key_width))) for name in ("q", "k"))
        v, z = convolved("v", H, m.value_width), heads("z", H, m.value_width, m.rank)
        rate = m.largest_rate * jax.nn.sigmoid(Linear(H, False, name="rate")(x_NCD))
        log_rate = self.param("log_rate", nn.initializers.zeros, (H,))
        if m.channel_decay:
            steps, log_rate = heads("step", H, m.key_width, m.rank), log_rate[:, None]
        else:
            steps = Linear(H, False, name="step")(x_NCD)
        bias = self.param("step_bias", nn.initializers.ones, (math.prod(steps.shape[2:]),))
        steps += bias.reshape(steps.shape[2:])
        if m.least_decay is None:
            log_decay = -jnp.exp(log_rate) * jax.nn.softplus(steps)
        else:
            log_decay = m.least_decay * jax.nn.sigmoid(jnp.exp(log_rate) * steps)
        (q, k, v, rate, log_decay), is_nonfinite = isolate(q, k, v, rate, log_decay)
        q *= m.key_width**-0.5
        out, kept = gated_delta(q, k, v, log_decay, rate, index, start_state(self))
        norm = Norm(c, use_bias=False, use_scale=True, eps=m.norm_eps, name="norm")
        gate = jax.nn.sigmoid if m.sigmoid_gate else jax.nn.silu
        out, kept = spread_nonfinite(norm(out) * gate(z), kept, is_nonfinite, layout.paths)
        return finish(self, out.reshape(*out.shape[:2], -1), kept, index, x.shape)


class LightningMixer(nn.Module):
    """The mixer of `Lightning`."""

    config: DecoderConfig
    mixer: Lightning
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x: Array, layout: Layout) -> Array:
        c, m = self.config, self.mixer
        index: ChunkIndex = layout.paths.chunks
        D, H = x.shape[-1], m.n_heads // self.build.shards
        inner = H * m.head_width
        x_NCD = index.gather(x.reshape(-1, D))

        def project(name: str) -> Array:
            return Linear(inner, False, c.quantized, name=name)(x_NCD)

        q, k, v = (
            ACTIVATIONS[m.activation](project(name)).reshape(*x_NCD.shape[:2], H, m.head_width)
            for name in "qkv"
        )
        log_decay = -self.param("slope", nn.initializers.ones, (H,)) + jnp.zeros(q.shape[:3])
        (q, k, v), is_nonfinite = isolate(q, k, v)
        steps = jnp.ones_like(log_decay)
        out, kept = state_space(v, steps, log_decay, k, q, index, start_state(self))
        norm = Norm(
            c,
            shape=(m.n_heads * m.head_width,),
            use_bias=False,
            use_scale=True,
            eps=m.norm_eps,
            split=self.build.axis,
            name="norm",
        )
        out = jax.nn.sigmoid(project("z")) * norm(out.reshape(*out.shape[:2], inner))
        out, kept = spread_nonfinite(out, kept, is_nonfinite, layout.paths)
        return finish(self, out, kept, index, x.shape)


class StateSpaceMixer(nn.Module):
    """The mixer of `StateSpace`."""

    config: DecoderConfig
    mixer: StateSpace
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x: Array, layout: Layout) -> Array:
        c, m = self.config, self.mixer
        index: ChunkIndex = layout.paths.chunks
        D, H = x.shape[-1], m.n_heads // self.build.shards
        inner = H * m.head_width
        x_NCD = index.gather(x.reshape(-1, D))
        G, select_groups = key_heads(self.build, m.n_groups)
        factors = dict(zip(("z", "x", "b", "c", "step"), m.factors, strict=True))

        def project(name: str, width: int, quantized: str = "") -> Array:
            return Linear(width, m.bias, quantized, name=name)(x_NCD) * factors[name]

        def convolved(name: str, n_heads: int, width: int) -> Array:
            y = project(name, n_heads * width, c.quantized)
            mixed = Convolution(m.taps, m.conv_bias, name=f"{name}_conv")(y, index)
            return ACTIVATIONS[m.activation](mixed).reshape(*y.shape[:2], n_heads, width)

        z, u = project("z", inner, c.quantized), convolved("x", H, m.head_width)
        b, c_ = (select_groups(convolved(name, G, m.state_width)) for name in ("b", "c"))
        steps = project("step", H) + self.param("step_bias", nn.initializers.ones, (H,))
        steps = jnp.clip(jax.nn.softplus(steps), m.least_step, m.most_step)
        log_decay = -jnp.exp(self.param("log_rate", nn.initializers.zeros, (H,))) * steps
        (u, steps, log_decay, b, c_), is_nonfinite = isolate(u, steps, log_decay, b, c_)
        out, kept = state_space(u, steps, log_decay, b, c_, index, start_state(self))
        out += self.param("skip", nn.initializers.ones, (H,))[:, None] * u
        out = self.normed(out.reshape(*out.shape[:2], inner), z)
        out, kept = spread_nonfinite(out, kept, is_nonfinite, layout.paths)
        return finish(self, out, kept, index, x.shape, use_bias=m.out_bias)

    def normed(self, out: Array, z: Array) -> Array:
        """Gate outputs, and norm them per group before or after the gate, if at all."""
        m, build, gate = self.mixer, self.build, jax.nn.silu(z)
        if not m.norm:
            return out * gate
        is_split_group = m.n_groups % build.shards != 0  # several shards share a group
        n_groups = 1 if is_split_group else m.n_groups // build.shards
        grouped = (out * gate if m.norm == "gated" else out).reshape(*out.shape[:2], n_groups, -1)
        width = m.n_heads * m.head_width // m.n_groups
        norm = Norm(
            self.config,
            shape=(m.n_groups if is_split_group else n_groups, width),
            use_bias=False,
            use_scale=True,
            eps=m.norm_eps,
            split=build.axis if is_split_group else None,
            groups=m.n_groups,
            name="norm",
        )
        y = norm(grouped).reshape(out.shape)
        return y if m.norm == "gated" else y * gate


class PerHeadLinear(nn.Module):
    """A linear map per head, [..., H, in] to [..., H, out], with a weight [H, out, in]."""

    width: int
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = x.shape[-2], self.width, x.shape[-1]
        weight = self.param("weight", nn.initializers.normal(0.02), shape)
        y = dot("...hi,hoi->...ho", x, weight.astype(jnp.float32))
        return y + self.param("bias", nn.initializers.zeros, shape[:2]) if self.use_bias else y


class SelectiveScanMixer(nn.Module):
    """The mixer of `SelectiveScan`. The projections of step sizes, B and C are never int8."""

    config: DecoderConfig
    mixer: SelectiveScan
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x: Array, layout: Layout) -> Array:
        c, m = self.config, self.mixer
        index: ChunkIndex = layout.paths.chunks
        axis, inner = self.build.axis, m.inner // self.build.shards
        all_shards = None if axis is None else functools.partial(lax.psum, axis_name=axis)
        x_NCD = index.gather(x.reshape(-1, x.shape[-1]))
        heads = (m.n_heads // self.build.shards,) if m.n_heads else ()
        width = inner // math.prod(heads)  # channels per head

        def project(name: str) -> Array:
            return Linear(inner, m.bias, c.quantized, name=name)(x_NCD)

        def selected(name: str, width: int) -> Array:
            """Project u to [N, C, H, width], and norm it if the model does."""
            if heads:
                y = PerHeadLinear(width, name=name)(u.reshape(*u.shape[:2], *heads, -1))
            else:
                y = Linear(width, False, summed=all_shards, name=name)(u)[:, :, None]
            if not m.norm:
                return y
            scaled = m.norm == "scale"
            norm = Norm(c, use_bias=False, use_scale=scaled, eps=m.norm_eps, name=f"{name}_norm")
            return norm(y)

        u, z = Convolution(m.taps, m.conv_bias, name="conv")(project("x"), index), project("z")
        u = ACTIVATIONS[m.activation](u)
        steps, b, c_ = (
            selected(name, width)
            for name, width in zip(SELECTED, (m.rank, m.state_width, m.state_width), strict=True)
        )
        step = (
            PerHeadLinear(width, True, name="step") if heads else Linear(inner, True, name="step")
        )
        steps = jax.nn.softplus(step(steps).reshape(u.shape))
        rate = -jnp.exp(
            self.param("log_rate", nn.initializers.zeros, (*heads, m.state_width, width))
        )
        rate = rate.swapaxes(0, 1).reshape(m.state_width, inner) if heads else rate
        start = start_state(self)  # stored as [n, channels, S], since a mesh splits channels
        start = None if start is None else start.swapaxes(1, 2)
        out, kept = selective_scan(u, steps, rate, b, c_, index, start)
        out += self.param("skip", nn.initializers.ones, (*heads, width)).reshape(-1) * u
        kept = None if kept is None else kept.swapaxes(1, 2)
        return finish(self, out * jax.nn.silu(z), kept, index, x.shape, use_bias=m.bias)


class BlockGate(nn.Module):
    """The sigmoid of a block-diagonal linear map, with a weight [blocks, in, out] and a bias."""

    n_blocks: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        blocks = x.reshape(*x.shape[:-1], self.n_blocks, -1)
        shape = *blocks.shape[-2:], blocks.shape[-1]
        weight = self.param("weight", nn.initializers.normal(0.02), shape)
        y = dot("...hi,hij->...hj", blocks, weight.astype(jnp.float32))
        return jax.nn.sigmoid(y + self.param("bias", nn.initializers.zeros, shape[:2])).reshape(
            x.shape
        )


class GatedUnitMixer(nn.Module):
    """The mixer of `GatedUnit`. The projections of the RG-LRU's gates are never int8."""

    config: DecoderConfig
    mixer: GatedUnit
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x: Array, layout: Layout) -> Array:
        c, m = self.config, self.mixer
        index: ChunkIndex = layout.paths.chunks
        x_NCD = index.gather(x.reshape(-1, x.shape[-1]))

        inner, n_blocks = (n // self.build.shards for n in (m.inner, m.n_blocks))

        def project(name: str) -> Array:
            return Linear(inner, True, c.quantized, name=name)(x_NCD)

        u = Convolution(m.taps, True, name="conv")(project("x"), index)
        rate = jax.nn.softplus(self.param("decay_rate", nn.initializers.zeros, (inner,)))
        log_decay = -LARGEST_RATE * BlockGate(n_blocks, name="decay_gate")(u) * rate
        # Scale inputs to preserve the mean square of the state, which is 0 before the first token.
        is_first = index.gather(layout.position.reshape(-1, 1)) == 0
        decay = jnp.where(is_first, 0.0, jnp.exp(log_decay))
        scale = jnp.where(is_first, 1.0, jnp.sqrt(-jnp.expm1(2 * log_decay)))
        inputs = scale * BlockGate(n_blocks, name="input_gate")(u) * u
        out, kept = gated_unit(inputs, decay, index, start_state(self))
        out *= ACTIVATIONS[m.activation](project("z"))
        return finish(self, out, kept, index, x.shape, use_bias=True)


class RecurrentHalf(nn.Module):
    """The recurrent half of a layer: a recurrence with its norms.

    Input and output [R, L, D] are of the shard's tokens; the recurrence itself reads all tokens.
    """

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x: Array, layout: Layout) -> Array:
        c = self.config
        assert c.recurrent is not None
        factors = c.recurrent.beside
        norms_before = c.norm.place in (*NORMS_BEFORE, "mixed")
        normed = Norm(c, name="attention_norm")(x) if norms_before else x
        if factors is not None:
            normed *= factors.mixer_in
        rows = self.build.gathered(normed).reshape(*layout.position.shape, -1)
        out = mixer_module(c, self.build, name="mixer")(rows, layout)
        if factors is not None:
            out *= factors.mixer_out
        if c.norm.place in NORMS_AFTER:
            out = Norm(c, name="attention_after_norm")(out)
        return out


def mixer_module(config: DecoderConfig, build: Build = ON_CPU, name: str | None = None) -> Any:
    """Return the module of the config's recurrence: (x [R, L, D], layout) -> [R, L, D]."""
    assert config.recurrent is not None
    mixer = config.recurrent.mixer
    return MODULES[type(mixer)](config, mixer, build, name=name)


def key_heads(build: Build, n_keys: int) -> tuple[int, Callable[[Array], Array]]:
    """Return the number of key heads that a shard computes, and a function that selects those that
    its value heads use from [..., J, K].

    If shards do not divide key heads, each shard computes all of them and uses one.
    """
    if n_keys % build.shards == 0:
        return n_keys // build.shards, lambda keys: keys

    def select(keys: Array) -> Array:
        key_head = lax.axis_index(build.axis) * n_keys // build.shards
        return lax.dynamic_slice_in_dim(keys, key_head, 1, axis=-2)

    return n_keys, select


MODULES: dict[type, type[nn.Module]] = {
    GatedDelta: GatedDeltaMixer,
    GatedUnit: GatedUnitMixer,
    Lightning: LightningMixer,
    SelectiveScan: SelectiveScanMixer,
    ShortConvolution: ShortConvolutionMixer,
    StateSpace: StateSpaceMixer,
}


def single_tokens(
    config: DecoderConfig, n_rows: int, n_ancestors: int | None = None
) -> PathIndex | None:
    """Return the path index of rows of one token, each with its own start state, which keeps all
    states; None without recurrent layers.

    Args:
        config: the decoder's config.
        n_rows: the number of rows.
        n_ancestors: the number of ancestors per token; None is the number that recurrent layers
            read.
    """
    if config.recurrent is None:
        return None
    if n_ancestors is None:
        n_ancestors = config.recurrent.mixer.taps - 1
    token, zeros = jnp.arange(n_rows, dtype=jnp.int32), jnp.zeros(n_rows, jnp.int32)
    chunks = Chunks(token[:, None], token, zeros, zeros, jnp.int32(0))
    subtree_end = jnp.ones((n_rows, 1), jnp.int32)
    return path_index(Paths(zeros + n_rows, chunks), subtree_end, n_ancestors, n_rows, token)


def empty_states(config: DecoderConfig, n_rows: int, build: Build = ON_CPU) -> Any:
    """Return zero states of one recurrent layer for `n_rows` tokens, on one shard."""
    build = dataclasses.replace(build, tokens=None)  # these tokens are not split

    def init_states(key: Array) -> Any:
        x, position = jnp.zeros((n_rows, 1, config.width)), jnp.zeros((n_rows, 1), jnp.int32)
        layout = Layout(position, position + 1, jnp.float32, single_tokens(config, n_rows))
        return RecurrentHalf(config, build).init(key, x, layout).get("states", {})

    shapes = jax.eval_shape(init_states, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def unit_length(x: Array) -> Array:
    """Normalise vectors along the last axis to length one."""
    return x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + UNIT_EPS)


def isolate(*arrays: Array) -> tuple[list[Array], Array]:
    """Set the inputs of a recurrence [N, C, ...] to zero at tokens with non-finite values.

    Otherwise masked products would spread a NaN to other texts of the chunk, as 0 * NaN.

    Returns:
        The inputs, and the mask [N, C] of tokens with non-finite values.
    """
    is_nonfinite = jnp.stack([~jnp.isfinite(x).all(axis=range(2, x.ndim)) for x in arrays]).any(0)

    def clear(x: Array) -> Array:
        return jnp.where(is_nonfinite.reshape(*is_nonfinite.shape, *[1] * (x.ndim - 2)), 0.0, x)

    return [clear(x) for x in arrays], is_nonfinite


def spread_nonfinite(
    out: Array, kept: Array | None, is_nonfinite: Array, paths: PathIndex
) -> tuple[Array, Array | None]:
    """Set outputs [N, C, ...] and kept states [E, ...] to NaN at non-finite tokens [N, C] and their
    descendants.

    The following projection spreads the NaN of one shard to all shards.
    """
    assert paths.chunks is not None
    reached = paths.reached(paths.chunks.scatter(is_nonfinite))

    def spread(x: Array, mask: Array) -> Array:
        return jnp.where(mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim)), jnp.nan, x)

    if kept is not None:
        assert paths.kept is not None
        kept = spread(kept, reached[paths.kept])
    return spread(out, paths.chunks.gather(reached)), kept
