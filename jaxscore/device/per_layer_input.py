"""A second embedding with channels of its own for each layer, as Gemma 3n and 4 have it.

    e_l = (table_l[token] sqrt(P) + norm(W_l x / sqrt(D))) / sqrt(2)      for each layer l, [P]
    y   = x + norm(out(act(gate(x)) * e_l))                               at the end of the layer

where x is the scaled embedding in the first line.
"""

import math

import flax.linen as nn
import jax.numpy as jnp

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.dots import dot_last, from_storage
from jaxscore.device.feed_forward import ACTIVATIONS
from jaxscore.device.layers import Linear, Norm


def inputs(embed, config: DecoderConfig, x, looked_up):
    """What each layer is given, [layers, R, L, P].

    Args:
        embed: the embedding's parameters.
        x: the scaled embedding [R, L, D].
        looked_up: rows of the second table [R, L, layers * P].
    """
    shape = *x.shape[:2], config.n_layers, config.per_layer_width
    projected = dot_last(x, from_storage(embed["per_layer_in"]["weight"])) * config.width**-0.5
    normed = Norm(config).apply({"params": embed["per_layer_norm"]}, projected.reshape(shape))
    rows = looked_up.reshape(shape) * math.sqrt(config.per_layer_width)
    return jnp.moveaxis((normed + rows) * 2**-0.5, 2, 0)


class PerLayerInput(nn.Module):
    """What a layer's own channels add to the residual stream."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x, given):
        c = self.config
        gate = Linear(c.per_layer_width, False, c.quantized, name="gate")(x)
        inner = ACTIVATIONS[c.activation](gate) * given
        return Norm(c, name="norm")(Linear(c.width, False, c.quantized, name="out")(inner))
