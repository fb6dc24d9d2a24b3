"""The MLP half of a decoder layer, plain or a mixture of experts, as Flax modules.

Some models (Gemma 3n and 4) have a second embedding with P channels per layer:

    e_l = (table_l[token] sqrt(P) + norm(W_l x / sqrt(D))) / sqrt(2)      for each layer l, [P]
    y   = x + norm(out(act(gate(x)) * e_l))                               at the end of the layer

In the first line, x is the scaled embedding.
"""

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
    Activation,
    Clamped,
    DecoderConfig,
    Experts,
)
from jaxscore.device.dots import dot_last, from_storage
from jaxscore.device.experts import route_tokens
from jaxscore.device.layers import Linear, LowRankGate, Norm

ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "relu_squared": lambda x: jnp.square(jax.nn.relu(x)),
    "silu": jax.nn.silu,
}

Gate = Callable[..., Array]


def gate_function(config: DecoderConfig) -> Gate:
    """Return the function of `gate` and `up`, or of `up` only, that gives an MLP's activations."""
    if (rule := config.mlp.clamped) is not None:
        return lambda gate, up: clamped(rule, gate, up)
    act = ACTIVATIONS[config.mlp.activation]
    return (lambda gate, up: act(gate) * up) if config.mlp.gated else act


def clamped(rule: Clamped, gate: Array, up: Array) -> Array:
    """Apply the gate of `Clamped`."""
    gate = jnp.minimum(gate, rule.limit)
    up = jnp.clip(up, -rule.limit, rule.limit)
    return (up + 1.0) * gate * jax.nn.sigmoid(rule.slope * gate)


class XIelu(nn.Module):
    """xIELU, an activation with learned parameters per layer (arXiv 2411.13010).

    x > 0     softplus(above) x^2 + slope x
    x <= 0    (e^min(x, least) - 1 - x) (slope + softplus(below)) + slope x
    """

    @nn.compact
    def __call__(self, x: Array) -> Array:
        above, below, slope, least = (
            self.param(name, nn.initializers.zeros, (1,))
            for name in ("above", "below", "slope", "least")
        )
        high = jax.nn.softplus(above) * jnp.square(x)
        low = (jnp.expm1(jnp.minimum(x, least)) - x) * (slope + jax.nn.softplus(below))
        return jnp.where(x > 0, high, low) + slope * x


def keep_largest(gate: Array, cutoff: Array, axis: str | None) -> Array:
    """Apply the statistical top-k of `Mlp.cutoffs` in `decoder_config`.

    Args:
        gate: gates [..., F].
        cutoff: number of standard deviations above the mean; NaN leaves the gates unchanged.
        axis: mesh axis over which the channels are split, or None.
    """

    def mean(x: Array) -> Array:
        local_mean = jnp.mean(x, axis=-1, keepdims=True)
        return local_mean if axis is None else lax.pmean(local_mean, axis)

    centered = gate - mean(gate)
    excess = jax.nn.relu(centered - cutoff * jnp.sqrt(mean(jnp.square(centered))))
    return jnp.where(jnp.isnan(cutoff), gate, excess)


class Mlp(nn.Module):
    """The MLP of `decoder_config.Mlp`, with this inner width."""

    config: DecoderConfig
    inner_width: int
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x: Array, cutoff: Array | None = None) -> Array:
        c, build, x = self.config, self.build, self.build.gathered(x)
        width = self.inner_width // build.shards
        low = Linear(c.mlp.rank, False, c.quantized, name="low_in")(x) if c.mlp.rank else None

        def project_in(name: str) -> Array:
            y = Linear(width, c.mlp.bias, c.quantized, name=name)(x)
            if low is not None:
                y += Linear(width, False, c.quantized, name=f"{name}_low")(low)
            return y

        if c.mlp.gated:
            gate = project_in("gate")
            if c.mlp.factors[0] != 1.0:
                gate *= c.mlp.factors[0]
            if cutoff is not None:
                gate = keep_largest(gate, cutoff, build.axis)
            inner = gate_function(c)(gate, project_in("up"))
        elif c.mlp.activation == "xielu":
            inner = XIelu(name="activation")(project_in("up"))
        else:
            inner = gate_function(c)(project_in("up"))
        y = Linear(c.width, c.mlp.bias, c.quantized, build.summed, name="down")(inner)
        return y if c.mlp.factors[1] == 1.0 else y * c.mlp.factors[1]


class Mixture(nn.Module):
    """Routed experts, and the shared expert that all tokens run."""

    config: DecoderConfig
    experts: Experts
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x: Array, residual: Array, run: Callable[..., Array]) -> tuple[Array, Any]:
        """Run the experts.

        Args:
            x: the normed input [R, L, D].
            residual: the residual stream, which the router or experts of some models read instead.
            run: `experts.mixture` with the layer's experts.

        Returns:
            The output, and the output to add after the next layer if experts are `late`, otherwise
            ().
        """
        c, experts = self.config, self.experts
        if c.norm.gate_rank:
            x = LowRankGate(c.norm.gate_rank, c.quantized, name="norm_gate")(x)
        router_input = x
        if experts.router.norm:
            scale = self.param("router_scale", nn.initializers.ones, (c.width,))
            router_input = (
                Norm(c, use_bias=False, use_scale=False)(residual) * scale * c.width**-0.5
            )
        count = experts.count + experts.identities
        logits = Linear(count, experts.router.bias, name="router")(router_input)
        correction = None
        if experts.router.corrected:
            correction = self.param("correction", nn.initializers.zeros, (count,))
        share, chosen = route_tokens(logits, correction, experts)
        if experts.router.expert_scale:
            share *= self.param("expert_scale", nn.initializers.ones, (experts.count,))[chosen]
        if experts.separate_norms:
            y = run(Norm(c, name="experts_norm")(residual), share, chosen)
            y = Norm(c, name="experts_after_norm")(y)
        elif experts.latent_width:
            latent = Linear(experts.latent_width, c.mlp.bias, c.quantized, name="latent_in")(x)
            y = run(latent, share, chosen)
            y = Linear(c.width, c.mlp.bias, c.quantized, name="latent_out")(y)
        else:
            y = run(x, share, chosen)
        if experts.identities:  # their indices follow those of the experts
            y += jnp.where(chosen >= experts.count, share, 0.0).sum(axis=-1, keepdims=True) * x
        late: Any = ()
        if experts.late:
            y, late = jnp.zeros_like(y), y
        if experts.shared.width:
            shared = Mlp(c, experts.shared.width, self.build, name="shared")(x)
            if experts.separate_norms:
                shared = Norm(c, name="shared_after_norm")(shared)
            if experts.shared.gated:
                shared *= jax.nn.sigmoid(Linear(1, False, name="shared_gate")(x))
            if experts.shared.scale != 1.0:
                shared *= experts.shared.scale
            y += shared
        return (Norm(c, name="after_norm")(y) if experts.normed else y), late


class MlpHalf(nn.Module):
    """The MLP half of a layer, with its norms.

    Attributes:
        plain_width: inner width of a dense MLP that replaces the config's, see `OtherMlp`.
    """

    config: DecoderConfig
    build: Build = ON_CPU
    plain_width: int | None = None

    @nn.compact
    def __call__(
        self,
        x: Array,
        run: Callable[..., Array] | None = None,
        is_recurrent: Array | None = None,
        cutoff: Array | None = None,
    ) -> tuple[Array, Any]:
        """Run the MLP.

        Args:
            x: the residual stream.
            run: see `Mixture`.
            is_recurrent: True if the layer is recurrent; required if norms are "mixed".
            cutoff: the layer's entry of `Mlp.cutoffs`, NaN without.

        Returns:
            See `Mixture`; the late output of a dense MLP is ().
        """
        c = self.config
        is_shared = c.residual.parallel == "shared" or c.mlp.layers is not None
        name = "attention_norm" if is_shared else "mlp_norm"
        residual = x
        norm = Norm(c, name=name)
        if c.norm.place in NORMS_BEFORE:
            x = norm(x)
        elif c.norm.place == "mixed":
            assert is_recurrent is not None
            x = jnp.where(is_recurrent, norm(x), x)
        late: Any = ()
        if self.plain_width is not None or c.experts is None:
            y = Mlp(c, self.plain_width or c.mlp.width, self.build, name="mlp")(x, cutoff)
        else:
            assert run is not None
            y, late = Mixture(c, c.experts, self.build, name="mlp")(x, residual, run)
        if c.norm.place == "mixed":
            assert is_recurrent is not None
            return jnp.where(is_recurrent, y, norm(y)), late
        return (Norm(c, name="mlp_after_norm")(y) if c.norm.place in NORMS_AFTER else y), late


def per_layer_inputs(embed: Any, config: DecoderConfig, x: Array, looked_up: Array) -> Array:
    """Compute the per-layer embeddings e_l of every token, [layers, R, L, P].

    Args:
        embed: the embedding's parameters.
        x: the scaled embedding [R, L, D].
        looked_up: rows of the second table [R, L, layers * P].
    """
    shape = *x.shape[:2], config.n_layers, config.embedding.per_layer_width
    projected = dot_last(x, from_storage(embed["per_layer_in"]["weight"])) * config.width**-0.5
    normed = Norm(config).apply({"params": embed["per_layer_norm"]}, projected.reshape(shape))
    rows = looked_up.reshape(shape) * math.sqrt(config.embedding.per_layer_width)
    return jnp.moveaxis((normed + rows) * 2**-0.5, 2, 0)


class PerLayerInput(nn.Module):
    """Gate, projection and norm of a layer's per-layer embedding."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x: Array, embedding: Array) -> Array:
        c = self.config
        gate = Linear(c.embedding.per_layer_width, False, c.quantized, name="gate")(x)
        inner = ACTIVATIONS[c.mlp.activation](gate) * embedding
        return Norm(c, name="norm")(Linear(c.width, False, c.quantized, name="out")(inner))
