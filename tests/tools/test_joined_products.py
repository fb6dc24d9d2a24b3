"""Joined products are the separate ones: what the estimates compare computes the same numbers."""

import subprocess
import sys

from tests.conftest import ROOT

# In a process of its own, since the tool sets variables of the environment.
SAME = """
import jax, jax.numpy as jnp, numpy as np
from jaxscore.device import decoder, feed_forward, self_attention
from jaxscore.device.init_params import init_params
from tests.device.configs import llamalike
from tools.joined_products import WAYS

config = llamalike(mlp_bias=True, interleaved=True)
draw = np.random.default_rng(1)
shapes = jax.eval_shape(lambda: init_params(jax.random.key(0), config))
params = jax.tree.map(lambda leaf: draw.normal(0, 0.3, leaf.shape).astype(np.float32), shapes)
ids = jnp.asarray(draw.integers(0, config.vocab_size, (2, 16)), jnp.int32)
at = jnp.broadcast_to(jnp.arange(16, dtype=jnp.int32), (2, 16))
want = None

def join(half, names, name):
    parts = [half.pop(one) for one in names]
    half[name] = {kind: np.concatenate([one[kind] for one in parts], 1) for kind in parts[0]}

for way, (attention, mlp) in WAYS.items():
    self_attention.Attention, feed_forward.Mlp = attention, mlp
    tree = jax.tree.map(lambda leaf: leaf, params)
    if attention is not WAYS["separate"][0]:
        join(tree["layers"]["attention"], ("q", "k", "v"), "qkv")
    if mlp is not WAYS["separate"][1]:
        join(tree["layers"]["mlp"], ("gate", "up"), "gate_up")
    got = decoder.hidden_states(tree, config, ids, at, jnp.full_like(ids, 16))
    want = got if want is None else want
    print(way, float(jnp.abs(got - want).max()), sep=": ")
"""


def test_every_way_computes_the_same():
    done = subprocess.run(
        [sys.executable, "-c", SAME], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    far = dict(line.split(": ") for line in done.stdout.splitlines())
    assert list(far) == ["separate", "qkv", "qkv turned", "gate_up", "both"]
    assert max(map(float, far.values())) < 1e-5
