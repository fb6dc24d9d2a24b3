"""Alternating updates: each layer computes one of several residual streams (arXiv 2301.13310).

With streams s_i, i = 1..N, the computed one a, and m(x) = tanh(W norm(x) / D):

    p_j = s_j + sum_i P(m(s_a))_ji s_i          predicted from the streams before the layer
    y   = layer(p_a)
    s_j = p_j + (1 + C(m(y))_j) (y - p_a)       corrected by the layer's output

The other streams start as products of the embedding, scaled to its root mean square; at the end
the first stream and products of the others are averaged.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.layers import Linear, Norm

LEAST_SQUARE = 1e-5  # lower bound of a mean square that divides


class Streams(nn.Module):
    """Prediction and correction of the streams around one layer."""

    config: DecoderConfig

    def setup(self) -> None:
        c = self.config
        assert c.streams is not None
        n = c.streams.n_streams
        self.norm = Norm(c)
        self.router = Linear(n, False)
        self.predicting = Linear(n * n, False)
        self.correcting = Linear(n, False)
        if c.streams.scaled:
            self.output_scale = self.param("output_scale", nn.initializers.ones, (c.width,))

    def __call__(self, streams: Array, activated: Array) -> Any:
        """Call `predict` and `correct`, so that all parameters are created."""
        return self.predict(streams), self.correct(streams, activated)

    def _modes(self, x: Array) -> Array:
        return jnp.tanh(self.router(self.norm(x) / self.config.width))

    def predict(self, streams: Float[Array, "N R L D"]) -> Float[Array, "N R L D"]:
        """Predict the streams that the layer reads."""
        assert self.config.streams is not None
        n = self.config.streams.n_streams
        weights = self.predicting(self._modes(streams[self.config.streams.active]))
        weights = weights.reshape(*weights.shape[:-1], n, n)
        mixed = jnp.einsum("rlji,irld->jrld", weights, streams, precision=lax.Precision.HIGHEST)
        return streams + mixed

    def correct(
        self, predicted: Float[Array, "N R L D"], activated: Float[Array, "R L D"]
    ) -> tuple[Float[Array, "N R L D"], Float[Array, "R L D"]]:
        """Correct the streams by the layer's output.

        Args:
            predicted: from `predict`.
            activated: the layer's output.

        Returns:
            The streams, and the active one, scaled, which gates the per-layer embedding.
        """
        altup = self.config.streams
        assert altup is not None
        weights = jnp.moveaxis(self.correcting(self._modes(activated)) + 1.0, -1, 0)
        streams = predicted + (activated - predicted[altup.active]) * weights[..., None]
        gated = streams[altup.active]
        return streams, gated * self.output_scale if altup.scaled else gated


def expand(x: Float[Array, "R L D"], weight: Float[Array, "M D D"]) -> Float[Array, "N R L D"]:
    """Make the first streams: the embedding, and products of it with its root mean square."""
    more = jnp.einsum("mod,rld->mrlo", _float32(weight), x, precision=lax.Precision.HIGHEST)
    return jnp.concatenate([x[None], _scaled_like(x, more)])


def merge(streams: Float[Array, "N R L D"], weight: Float[Array, "M D D"]) -> Float[Array, "R L D"]:
    """Average the first stream and products of the others, scaled to its root mean square."""
    first, others = streams[0], streams[1:]
    more = jnp.einsum("mod,mrld->mrlo", _float32(weight), others, precision=lax.Precision.HIGHEST)
    return (first + _scaled_like(first, more).sum(axis=0)) / len(streams)


def _float32(weight: Array) -> Array:
    return weight.astype(jnp.float32)


def _scaled_like(x: Array, others: Array) -> Array:
    """Scale each of `others` to the root mean square of `x` over the channels."""
    target = jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True))
    own = jnp.mean(jnp.square(others), axis=-1, keepdims=True)
    return others * target / jnp.sqrt(jnp.maximum(own, LEAST_SQUARE))
