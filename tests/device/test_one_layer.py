"""A decoder of one layer of another, as estimates compile it."""

import jax
import jax.numpy as jnp
import pytest

from jaxscore.device import decoder
from jaxscore.device.init_params import init_params
from tests.device.test_sharding import CONFIGS

# Estimates leave recurrent layers out.
NAMES = [name for name, config in CONFIGS.items() if config.recurrent is None]


@pytest.mark.slow_after(4)
@pytest.mark.parametrize("name", NAMES)
def test_every_layer_makes_a_decoder_of_its_own(name):
    whole = CONFIGS[name]
    shapes = jax.eval_shape(lambda: init_params(jax.random.key(0), whole))
    n_whole = sum(leaf.size for leaf in jax.tree.leaves(shapes["layers"]))
    of_layers = 0
    ids = jnp.zeros((1, 8), jnp.int32)
    for layer in range(whole.n_layers):
        one = whole.only(layer)
        assert one.n_layers == len(one.attention.scores.windows) == 1
        params = jax.eval_shape(lambda one=one: init_params(jax.random.key(0), one))
        of_layers += sum(leaf.size for leaf in jax.tree.leaves(params["layers"]))
        found = jax.eval_shape(
            lambda p, one=one: decoder.hidden_states(p, one, ids, ids, ids + 8), params
        )
        assert found.shape == (1, 8, whole.embedding.width or whole.width)
    stacked = [shapes.get(key, {}) for key in ("mlps", "attentions")]
    n_whole += sum(leaf.size for leaf in jax.tree.leaves(stacked))
    assert (of_layers == n_whole) == (
        not whole.attention.keys_of
    )  # keys that were another's are their own
