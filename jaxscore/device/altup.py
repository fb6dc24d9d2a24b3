"""Several residual streams of which a layer computes one: alternating updates (arXiv 2301.13310).

With streams s_i, i = 1..N, the one that the layer computes, a, and m(x) = tanh(W norm(x) / D):

    p_j = s_j + sum_i P(m(s_a))_ji s_i          predicted from the streams before the layer
    y   = layer(p_a)
    s_j = p_j + (1 + C(m(y))_j) (y - p_a)       corrected by what the layer computed

In the beginning the other streams are products of the embedding, scaled to its root mean square; in
the end the products of all are averaged.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.layers import Linear, Norm

LEAST_SQUARE = 1e-5  # of a stream that is scaled to the root mean square of another


class Streams(nn.Module):
    """The part of a layer that predicts and corrects streams."""

    config: DecoderConfig

    def setup(self) -> None:
        c = self.config
        assert c.altup is not None
        n = c.altup.n_streams
        self.norm = Norm(c)
        self.router = Linear(n, False)
        self.predicting = Linear(n * n, False)
        self.correcting = Linear(n, False)
        if c.altup.scaled:
            self.output_scale = self.param("output_scale", nn.initializers.ones, (c.width,))

    def __call__(self, streams: Array, activated: Array) -> Any:
        """`predict` and `correct`, which make all parameters."""
        return self.predict(streams), self.correct(streams, activated)

    def _modes(self, x: Array) -> Array:
        return jnp.tanh(self.router(self.norm(x) / self.config.width))

    def predict(self, streams: Float[Array, "N R L D"]) -> Float[Array, "N R L D"]:
        """Streams as the layer reads them."""
        assert self.config.altup is not None
        n = self.config.altup.n_streams
        weights = self.predicting(self._modes(streams[self.config.altup.active]))
        weights = weights.reshape(*weights.shape[:-1], n, n)
        mixed = jnp.einsum("rlji,irld->jrld", weights, streams, precision=lax.Precision.HIGHEST)
        return streams + mixed

    def correct(
        self, predicted: Float[Array, "N R L D"], activated: Float[Array, "R L D"]
    ) -> tuple[Float[Array, "N R L D"], Float[Array, "R L D"]]:
        """Streams after the layer, and the input that its per-layer embedding gates.

        Args:
            predicted: from `predict`.
            activated: the layer's output.
        """
        altup = self.config.altup
        assert altup is not None
        weights = jnp.moveaxis(self.correcting(self._modes(activated)) + 1.0, -1, 0)
        streams = predicted + (activated - predicted[altup.active]) * weights[..., None]
        gated = streams[altup.active]
        return streams, gated * self.output_scale if altup.scaled else gated


def expand(x: Float[Array, "R L D"], weight: Float[Array, "M D D"]) -> Float[Array, "N R L D"]:
    """The embedding, and its products at its scale."""
    more = jnp.einsum("mod,rld->mrlo", _float32(weight), x, precision=lax.Precision.HIGHEST)
    return jnp.concatenate([x[None], _scaled_like(x, more)])


def merge(streams: Float[Array, "N R L D"], weight: Float[Array, "M D D"]) -> Float[Array, "R L D"]:
    """The mean of the first stream and of products of the others at its scale."""
    first, others = streams[0], streams[1:]
    more = jnp.einsum("mod,mrld->mrlo", _float32(weight), others, precision=lax.Precision.HIGHEST)
    return (first + _scaled_like(first, more).sum(axis=0)) / len(streams)


def _float32(weight: Array) -> Array:
    return weight.astype(jnp.float32)


def _scaled_like(x: Array, others: Array) -> Array:
    """Others with the root mean square of `x` over the channels."""
    target = jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True))
    own = jnp.mean(jnp.square(others), axis=-1, keepdims=True)
    return others * target / jnp.sqrt(jnp.maximum(own, LEAST_SQUARE))
