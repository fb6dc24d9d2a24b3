"""Recurrent layers with their projections, as Flax modules.

Layers with a state take tokens in chunks before their projections, since rows of the residual
stream are narrower than those of the projections, and return them after the last one. States and
products of the recurrence are float32.

What a layer carries from token to token are variables of the collection "states", float32: those
that the rows continue are given, and those at `PathIndex.kept` tokens are returned if the
collection is mutable. Their first axis counts start states or kept tokens, the second one heads or
channels. A mixer reads its own with
`start_state` and returns them with `keep_state`; convolutions do so themselves. A step of
generation is a batch of rows of one token (`single_tokens`).

On a mesh a shard computes its heads, blocks of a gated unit, or channels of a short convolution,
see `device.sharding`; each shard's sums of the last product are added.
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

LARGEST_RATE = 8.0  # of log decay in the RG-LRU
SELECTED = "selected_step", "selected_b", "selected_c"  # products of a selective scan
UNIT_EPS = 1e-6  # added to the square of a query's or key's length


def start_state(module: nn.Module, name: str = "state") -> Array | None:
    """State [n, H, ...] that the rows continue, or None."""
    state: Array | None = module.get_variable("states", name)
    return state


def keep_state(module: nn.Module, state: Array | None, name: str = "state") -> None:
    """Return a state [E, H, ...] at the kept tokens."""
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
    """Return the kept states, and the last product of a mixer's outputs [N, C, D] as `shape`."""
    keep_state(mixer, kept)
    c = mixer.config

    def summed(y: Array) -> Array:
        """Sums of tokens in rows, where those of a shard are neighbours."""
        in_rows: Array = mixer.build.summed(index.scatter(y).reshape(shape))
        return in_rows

    return Linear(c.width, use_bias, c.quantized, summed, name="out")(out)


class Convolution(nn.Module):
    """`convolve` of the tokens or slots [..., D] of an index, and its last inputs as a state.

    Attributes:
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
    """`ShortConvolution`, in the order of the rows."""

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
    """`GatedDelta`."""

    config: DecoderConfig
    mixer: GatedDelta
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x: Array, layout: Layout) -> Array:
        c, m = self.config, self.mixer
        index: ChunkIndex = layout.paths.chunks
        D, H = x.shape[-1], m.n_value_heads // self.build.shards
        x_NCD = index.gather(x.reshape(-1, D))
        J, own_keys = key_heads(self.build, m.n_key_heads)

        def heads(name: str, n_heads: int, width: int, rank: int = 0) -> Array:
            quantized = "" if name == "step" else c.quantized
            read = Linear(rank, False, quantized, name=f"{name}_in")(x_NCD) if rank else x_NCD
            y = Linear(n_heads * width, False, quantized, name=name)(read)
            return y.reshape(*y.shape[:2], n_heads, width)

        def convolved(name: str, n_heads: int, width: int) -> Array:
            y = heads(name, n_heads, width)
            flat = y.reshape(*y.shape[:2], n_heads * width)
            mixed = Convolution(m.taps, False, name=f"{name}_conv")(flat, index)
            return ACTIVATIONS[m.activation](mixed).reshape(y.shape)

        q, k = (own_keys(unit_length(convolved(name, J, m.key_width))) for name in ("q", "k"))
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
        (q, k, v, rate, log_decay), broken = isolate(q, k, v, rate, log_decay)
        q *= m.key_width**-0.5
        out, kept = gated_delta(q, k, v, log_decay, rate, index, start_state(self))
        norm = Norm(c, use_bias=False, use_scale=True, eps=m.norm_eps, name="norm")
        gate = jax.nn.sigmoid if m.sigmoid_gate else jax.nn.silu
        out, kept = spread_nonfinite(norm(out) * gate(z), kept, broken, layout.paths)
        return finish(self, out.reshape(*out.shape[:2], -1), kept, index, x.shape)


class LightningMixer(nn.Module):
    """`Lightning`."""

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
        (q, k, v), broken = isolate(q, k, v)
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
        out, kept = spread_nonfinite(out, kept, broken, layout.paths)
        return finish(self, out, kept, index, x.shape)


class StateSpaceMixer(nn.Module):
    """`StateSpace`."""

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
        G, own_groups = key_heads(self.build, m.n_groups)
        factors = dict(zip(("z", "x", "b", "c", "step"), m.factors, strict=True))

        def project(name: str, width: int, quantized: str = "") -> Array:
            return Linear(width, m.bias, quantized, name=name)(x_NCD) * factors[name]

        def convolved(name: str, n_heads: int, width: int) -> Array:
            y = project(name, n_heads * width, c.quantized)
            mixed = Convolution(m.taps, m.conv_bias, name=f"{name}_conv")(y, index)
            return ACTIVATIONS[m.activation](mixed).reshape(*y.shape[:2], n_heads, width)

        z, u = project("z", inner, c.quantized), convolved("x", H, m.head_width)
        b, c_ = (own_groups(convolved(name, G, m.state_width)) for name in ("b", "c"))
        steps = project("step", H) + self.param("step_bias", nn.initializers.ones, (H,))
        steps = jnp.clip(jax.nn.softplus(steps), m.least_step, m.most_step)
        log_decay = -jnp.exp(self.param("log_rate", nn.initializers.zeros, (H,))) * steps
        (u, steps, log_decay, b, c_), broken = isolate(u, steps, log_decay, b, c_)
        out, kept = state_space(u, steps, log_decay, b, c_, index, start_state(self))
        out += self.param("skip", nn.initializers.ones, (H,))[:, None] * u
        out = self.normed(out.reshape(*out.shape[:2], inner), z)
        out, kept = spread_nonfinite(out, kept, broken, layout.paths)
        return finish(self, out, kept, index, x.shape, use_bias=m.out_bias)

    def normed(self, out: Array, z: Array) -> Array:
        """Gated outputs, normed within each group before or after the gate, or not at all."""
        m, build, gate = self.mixer, self.build, jax.nn.silu(z)
        if not m.norm:
            return out * gate
        is_part = m.n_groups % build.shards != 0  # the shard's heads are some of one group's
        n_groups = 1 if is_part else m.n_groups // build.shards
        grouped = (out * gate if m.norm == "gated" else out).reshape(*out.shape[:2], n_groups, -1)
        width = m.n_heads * m.head_width // m.n_groups
        norm = Norm(
            self.config,
            shape=(m.n_groups if is_part else n_groups, width),
            use_bias=False,
            use_scale=True,
            eps=m.norm_eps,
            split=build.axis if is_part else None,
            groups=m.n_groups,
            name="norm",
        )
        y = norm(grouped).reshape(out.shape)
        return y if m.norm == "gated" else y * gate


class OfHeads(nn.Module):
    """Product of each head [..., H, in] with a weight [H, out, in] of its own."""

    width: int
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = x.shape[-2], self.width, x.shape[-1]
        weight = self.param("weight", nn.initializers.normal(0.02), shape)
        y = dot("...hi,hoi->...ho", x, weight.astype(jnp.float32))
        return y + self.param("bias", nn.initializers.zeros, shape[:2]) if self.use_bias else y


class SelectiveScanMixer(nn.Module):
    """`SelectiveScan`. Products that make step sizes, B and C are never int8."""

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
        width = inner // math.prod(heads)  # of a head

        def project(name: str) -> Array:
            return Linear(inner, m.bias, c.quantized, name=name)(x_NCD)

        def selected(name: str, width: int) -> Array:
            """Of each head [N, C, H, width]."""
            if heads:
                y = OfHeads(width, name=name)(u.reshape(*u.shape[:2], *heads, -1))
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
        step = OfHeads(width, True, name="step") if heads else Linear(inner, True, name="step")
        steps = jax.nn.softplus(step(steps).reshape(u.shape))
        rate = -jnp.exp(
            self.param("log_rate", nn.initializers.zeros, (*heads, m.state_width, width))
        )
        rate = rate.swapaxes(0, 1).reshape(m.state_width, inner) if heads else rate
        start = start_state(self)  # channels first, as a mesh splits them
        start = None if start is None else start.swapaxes(1, 2)
        out, kept = selective_scan(u, steps, rate, b, c_, index, start)
        out += self.param("skip", nn.initializers.ones, (*heads, width)).reshape(-1) * u
        kept = None if kept is None else kept.swapaxes(1, 2)
        return finish(self, out * jax.nn.silu(z), kept, index, x.shape, use_bias=m.bias)


class BlockGate(nn.Module):
    """Sigmoid of a block-diagonal product with bias; weights are [blocks, in, out]."""

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
    """`GatedUnit`. The products inside the unit are never int8."""

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
        # Keeps the mean square of a state; a text's first token has no state to keep it with.
        is_first = index.gather(layout.position.reshape(-1, 1)) == 0
        decay = jnp.where(is_first, 0.0, jnp.exp(log_decay))
        scale = jnp.where(is_first, 1.0, jnp.sqrt(-jnp.expm1(2 * log_decay)))
        inputs = scale * BlockGate(n_blocks, name="input_gate")(u) * u
        out, kept = gated_unit(inputs, decay, index, start_state(self))
        out *= ACTIVATIONS[m.activation](project("z"))
        return finish(self, out, kept, index, x.shape, use_bias=True)


class RecurrentHalf(nn.Module):
    """What a recurrence adds to the residual stream [R, L, D], of the shard's tokens.

    The recurrence itself reads all tokens.
    """

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x: Array, layout: Layout) -> Array:
        c = self.config
        assert c.recurrent is not None
        beside = c.recurrent.beside
        is_before = c.norm.place in (*NORMS_BEFORE, "mixed")
        read = Norm(c, name="attention_norm")(x) if is_before else x
        if beside is not None:
            read *= beside.mixer_in
        rows = self.build.gathered(read).reshape(*layout.position.shape, -1)
        mixed = mixer_module(c, self.build, name="mixer")(rows, layout)
        if beside is not None:
            mixed *= beside.mixer_out
        if c.norm.place in NORMS_AFTER:
            mixed = Norm(c, name="attention_after_norm")(mixed)
        return mixed


def mixer_module(config: DecoderConfig, build: Build = ON_CPU, name: str | None = None) -> Any:
    """Module of the config's recurrence: (x [R, L, D], layout) -> [R, L, D]."""
    assert config.recurrent is not None
    mixer = config.recurrent.mixer
    return MODULES[type(mixer)](config, mixer, build, name=name)


def key_heads(build: Build, n_keys: int) -> tuple[int, Callable[[Array], Array]]:
    """Key heads that a shard computes, and a selection of those [..., J, K] that its heads use.

    With fewer key heads than shards, each shard computes all of them and uses one.
    """
    if n_keys % build.shards == 0:
        return n_keys // build.shards, lambda keys: keys

    def select(keys: Array) -> Array:
        mine = lax.axis_index(build.axis) * n_keys // build.shards
        return lax.dynamic_slice_in_dim(keys, mine, 1, axis=-2)

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
    """Index of rows of one token, each with a start state of its own, all of whose states are
    kept; None without recurrent layers.

    Args:
        n_ancestors: of each token; None is as many as the recurrent layers need.
    """
    if config.recurrent is None:
        return None
    if n_ancestors is None:
        n_ancestors = config.recurrent.mixer.taps - 1
    at, zeros = jnp.arange(n_rows, dtype=jnp.int32), jnp.zeros(n_rows, jnp.int32)
    chunks = Chunks(at[:, None], at, zeros, zeros, jnp.int32(0))
    end = jnp.ones((n_rows, 1), jnp.int32)
    return path_index(Paths(zeros + n_rows, chunks), end, n_ancestors, n_rows, at)


def empty_states(config: DecoderConfig, n_rows: int, build: Build = ON_CPU) -> Any:
    """Zeros for the states of one recurrent layer at `n_rows` tokens, on one shard."""
    build = dataclasses.replace(build, tokens=None)  # these tokens are not split

    def made(key: Array) -> Any:
        x, at = jnp.zeros((n_rows, 1, config.width)), jnp.zeros((n_rows, 1), jnp.int32)
        layout = Layout(at, at + 1, jnp.float32, single_tokens(config, n_rows))
        return RecurrentHalf(config, build).init(key, x, layout).get("states", {})

    shapes = jax.eval_shape(made, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def unit_length(x: Array) -> Array:
    """Vectors of length one."""
    return x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + UNIT_EPS)


def isolate(*arrays: Array) -> tuple[list[Array], Array]:
    """Inputs of a recurrence [N, C, ...] with zeros at tokens that are not finite, and which are.

    Masked products would carry a NaN to other texts of its chunk, as 0 * NaN.
    """
    broken = jnp.stack([~jnp.isfinite(x).all(axis=range(2, x.ndim)) for x in arrays]).any(0)

    def cleared(x: Array) -> Array:
        return jnp.where(broken.reshape(*broken.shape, *[1] * (x.ndim - 2)), 0.0, x)

    return [cleared(x) for x in arrays], broken


def spread_nonfinite(
    out: Array, kept: Array | None, broken: Array, paths: PathIndex
) -> tuple[Array, Array | None]:
    """Outputs [N, C, ...] and kept states [E, ...] with NaN at broken tokens [N, C] and everything
    that continues them.

    The product that follows carries a shard's NaN to all shards.
    """
    assert paths.chunks is not None
    reached = paths.reached(paths.chunks.scatter(broken))

    def spread(x: Array, over: Array) -> Array:
        return jnp.where(over.reshape(*over.shape, *[1] * (x.ndim - over.ndim)), jnp.nan, x)

    if kept is not None:
        assert paths.kept is not None
        kept = spread(kept, reached[paths.kept])
    return spread(out, paths.chunks.gather(reached)), kept
