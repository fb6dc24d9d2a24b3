"""Several residual streams.

Alternating updates: each layer computes one of the streams (arXiv 2301.13310). With streams s_i,
i = 1..N, the computed stream a, and m(x) = tanh(W norm(x) / D):

    p_j = s_j + sum_i P(m(s_a))_ji s_i          predicted from the streams before the layer
    y   = layer(p_a)
    s_j = p_j + (1 + C(m(y))_j) (y - p_a)       corrected by the layer's output

The other streams start as projections of the embedding, scaled to its root mean square; at the end
the first stream and projections of the others are averaged.

Hyper-connections: each half of a layer reads a mix of all streams (arXiv 2409.19606), here with
weights per channel, W = sigmoid(V silu(U n / N)), where n are the normed streams, concatenated:

    y   = half(mean_i W_i n_i)
    s_j = s_j + 2 sigmoid(B n / N)_j y

All streams start as the embedding; the final hidden state is a mix of the same form.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.decoder_config import AltUp, DecoderConfig, HyperConnections
from jaxscore.device.dots import from_storage
from jaxscore.device.layers import Linear, LowRankGate, Norm

LEAST_SQUARE = 1e-5  # lower bound of a mean square in a denominator


class AlternatingUpdate(nn.Module):
    """Prediction and correction of the streams around one layer."""

    config: DecoderConfig

    def setup(self) -> None:
        c = self.config
        assert isinstance(c.residual.streams, AltUp)
        n = c.residual.streams.n_streams
        self.norm = Norm(c)
        self.router = Linear(n, False)
        self.predicting = Linear(n * n, False)
        self.correcting = Linear(n, False)
        if c.residual.streams.scaled:
            self.output_scale = self.param("output_scale", nn.initializers.ones, (c.width,))

    def __call__(self, streams: Array, activated: Array) -> Any:
        """Call `predict` and `correct`, so that all parameters are created."""
        return self.predict(streams), self.correct(streams, activated)

    def _modes(self, x: Array) -> Array:
        return jnp.tanh(self.router(self.norm(x) / self.config.width))

    def predict(self, streams: Float[Array, "N R L D"]) -> Float[Array, "N R L D"]:
        """Predict the streams that the layer reads."""
        assert isinstance(self.config.residual.streams, AltUp)
        n = self.config.residual.streams.n_streams
        weights = self.predicting(self._modes(streams[self.config.residual.streams.active]))
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
            The streams, and the scaled active stream, which gates the per-layer embedding.
        """
        altup = self.config.residual.streams
        assert isinstance(altup, AltUp)
        weights = jnp.moveaxis(self.correcting(self._modes(activated)) + 1.0, -1, 0)
        streams = predicted + (activated - predicted[altup.active]) * weights[..., None]
        gated = streams[altup.active]
        return streams, gated * self.output_scale if altup.scaled else gated


class HyperConnection(nn.Module):
    """The mix that a half of a layer reads, and the weights of its output for each stream.

    Attributes:
        is_last: True if the mix is the final hidden state, so that no weights are needed.
    """

    config: DecoderConfig
    is_last: bool = False

    @nn.compact
    def __call__(self, streams: Float[Array, "N R L D"]) -> tuple[Array, Array | None]:
        c = self.config
        assert isinstance(c.residual.streams, HyperConnections)
        n, rank = c.residual.streams
        x = Norm(c, shape=(n, c.width), name="norm")(jnp.moveaxis(streams, 0, -2))
        flat = x.reshape(*x.shape[:-2], n * c.width)
        quantized = "" if self.is_last else c.quantized
        mix = LowRankGate(rank, quantized, 1 / n, name="gate")(flat).reshape(x.shape).mean(-2)
        if self.is_last:
            return mix, None
        shares = 2.0 * jax.nn.sigmoid(Linear(n, False, name="shares")(flat) / n)
        return mix, jnp.moveaxis(shares, -1, 0)


def around(
    config: DecoderConfig,
    params: Any,
    streams: Float[Array, "N R L D"],
    half: Callable[[Array], tuple[Array, Any]],
) -> tuple[Float[Array, "N R L D"], Any]:
    """Run a half of a layer between hyper-connections.

    Args:
        params: the parameters of the half's `HyperConnection`.
        half: function of the mix [R, L, D] that returns the output and auxiliary results.

    Returns:
        The streams, and the auxiliary results.
    """
    mix, shares = HyperConnection(config).apply({"params": params}, streams)
    output, aux = half(mix)
    return streams + shares[..., None] * output, aux


def expand(config: DecoderConfig, params: Any, x: Float[Array, "R L D"]) -> Array:
    """Create the initial streams [N, R, L, D] from the embedding.

    With alternating updates they are the embedding, and projections of it, scaled to its root mean
    square.
    """
    if isinstance(config.residual.streams, HyperConnections):
        return jnp.broadcast_to(x, (config.residual.streams.n_streams, *x.shape))
    weight = from_storage(params["into"]["weight"]).astype(jnp.float32)
    projections = jnp.einsum("mod,rld->mrlo", weight, x, precision=lax.Precision.HIGHEST)
    return jnp.concatenate([x[None], _scale_like(x, projections)])


def merge(config: DecoderConfig, params: Any, streams: Float[Array, "N R L D"]) -> Array:
    """Merge the streams to the final hidden state [R, L, D].

    With alternating updates it is the average of the first stream and projections of the others,
    scaled to its root mean square.
    """
    if isinstance(config.residual.streams, HyperConnections):
        connection = HyperConnection(config, is_last=True)
        mix: Array = connection.apply({"params": from_storage(params["out_of"])}, streams)[0]
        return mix
    weight = from_storage(params["out_of"]["weight"]).astype(jnp.float32)
    first, others = streams[0], streams[1:]
    projections = jnp.einsum("mod,mrld->mrlo", weight, others, precision=lax.Precision.HIGHEST)
    return (first + _scale_like(first, projections).sum(axis=0)) / len(streams)


def _scale_like(x: Array, others: Array) -> Array:
    """Scale each of `others` to the root mean square of `x` over the channels."""
    target = jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True))
    mean_square = jnp.mean(jnp.square(others), axis=-1, keepdims=True)
    return others * target / jnp.sqrt(jnp.maximum(mean_square, LEAST_SQUARE))
