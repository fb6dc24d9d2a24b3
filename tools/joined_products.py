"""Products that read the same numbers as one product, by the TPU compiler's model of the chip.

    python tools/joined_products.py --topology v5e:1x1 --model 0.5B --program layer:8x512

Needs the extra `tpu-compiler` and no TPU. Nothing runs: every time is the compiler's estimate.
Each line is a program of one layer, and how many products its queries, keys and values, and the
gate and the input of its MLP are:

    separate      five, as jaxscore has them
    qkv           one of queries, keys and values, sliced by heads
    qkv turned    the same, and queries and keys are turned as one array
    gate_up       one of gate and up
    both          qkv and gate_up

`layer:RxL` is a decoder of one layer for R rows of L tokens, as `plan --topology` estimates it.
`step:RxS` is one token of R texts after a KV cache of S slots. It is the body of a loop of four
layers, as a model has it: without the loop the compiler copies some weights or the cache to the
chip beforehand, which ones depends on their sizes, and the estimate counts these copies as well.

"no estimate" means that XLA cannot estimate some operation. Cycles are the sum of what the
compiler estimates for the fusions of the program, in which nothing overlaps.
"""

import argparse
import functools
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jaxscore.engine import set_variables

set_variables("tpu")

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxscore.device import feed_forward, self_attention
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.layers import Linear, apply_rotary
from jaxscore.engine import estimates, targets
from jaxscore.engine.estimates import abstract_model, on
from jaxscore.engine.footprint import abstract_rows, lower, side_by_side, text_of
from jaxscore.models import native
from jaxscore.models.weights.params import parameter_shapes
from tools.device_check.shapes import SHAPES
from tools.requirements import require

CONFIGS = {
    "0.5B": SHAPES["Qwen2.5-0.5B"],
    "1.5B": SHAPES["Qwen2.5-1.5B"],
    "8B": SHAPES["Llama-3.1-8B"],
}
IN_LOOP = 4  # layers; the compiler's estimate counts a loop's body once


class JoinedHeads(self_attention.Attention):
    """One product for queries, keys and values, of a decoder without norms of heads."""

    turned_as_one = False

    def heads(self, x, inputs, only_queries):
        c = self.config
        n, k = c.attention.n_heads, c.attention.n_kv_heads
        y = Linear((n + 2 * k) * c.attention.head_width, c.attention.qkv_bias, name="qkv")(x)
        y = y.reshape(*x.shape[:2], n + 2 * k, c.attention.head_width)
        parts = [y[:, :, : n + k]] if self.turned_as_one else [y[:, :, :n], y[:, :, n : n + k]]
        turned = [
            apply_rotary(heads_part, inputs.cos, inputs.sin, c.positions.interleaved)
            for heads_part in parts
        ]
        q, key = jnp.split(turned[0], [n], axis=2) if self.turned_as_one else turned
        return q, key, y[:, :, n + k :]


class TurnedAsOne(JoinedHeads):
    turned_as_one = True


class JoinedMlp(feed_forward.Mlp):
    @nn.compact
    def __call__(self, x, cutoff=None):
        c = self.config
        joined = Linear(2 * self.inner_width, c.mlp.bias, name="gate_up")(x)
        gate, up = jnp.split(joined, 2, axis=-1)
        return Linear(c.width, c.mlp.bias, name="down")(feed_forward.gate_function(c)(gate, up))


PLAIN = (self_attention.Attention, feed_forward.Mlp)
WAYS = {
    "separate": PLAIN,
    "qkv": (JoinedHeads, PLAIN[1]),
    "qkv turned": (TurnedAsOne, PLAIN[1]),
    "gate_up": (PLAIN[0], JoinedMlp),
    "both": (JoinedHeads, JoinedMlp),
}


def compiled(target: targets.Target, raw: dict[str, Any], program: str, way: str) -> Any:
    """The program of a layer whose products are joined so."""
    self_attention.Attention, feed_forward.Mlp = WAYS[way]
    parameter_shapes.cache_clear()
    jax.clear_caches()
    _, config = native.translate(Path("config"), raw)
    program_type, _, sizes = program.partition(":")
    rows, length = map(int, sizes.split("x"))
    layer_config, device = estimates.one_layer(config), target.devices[0]
    if program_type == "step":
        windows = layer_config.attention.scores.windows * IN_LOOP
        rotary_of = layer_config.positions.rotary_of * IN_LOOP
        layer_config = layer_config.replace(n_layers=IN_LOOP, windows=windows, rotary_of=rotary_of)
    model = abstract_model(layer_config, "bfloat16", raw["model_type"], device)
    functions = model.functions

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=on(device))

    if program_type == "step":
        assert functions.cached is not None
        empty = jax.eval_shape(functools.partial(functions.cached.empty_cache, rows, length))
        stored = side_by_side((empty.key, empty.value), device)
        cache = KVCache(*stored, ints(), ints(rows))
        function, arguments = functions.cached.extend, (*[ints(rows, 1)] * 3, (cache,))
    else:
        batch = abstract_rows(rows, length)
        arguments = side_by_side((batch.ids, batch.position, batch.subtree_end), device)
        function = functions.hidden_states
    with targets.compiling_for(device):
        return lower(function, (model.params, *arguments), None, device).compile()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology", default="v5e:1x1", help="of one chip")
    parser.add_argument("--model", choices=CONFIGS, default="0.5B", help="its shape")
    parser.add_argument("--program", default="layer:8x512", help="layer:RxL or step:RxS")
    args = parser.parse_args(arguments)
    require("libtpu", "tpu-compiler")
    target, first, first_cycles = targets.tpu(args.topology), 0.0, 0
    for way in WAYS:
        program = compiled(target, CONFIGS[args.model], args.program, way)
        text = text_of(program)
        seconds, _ = estimates.seconds_of(program, text)
        cycles = sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', text)))
        first, first_cycles = first or seconds or 0.0, first_cycles or cycles or 1
        reported = "no estimate" if seconds is None else f"{seconds * 1e6:9.1f} us"
        gain = f" {seconds / first - 1:+.1%}" if seconds and first else ""
        more = f"{cycles / first_cycles - 1:+.1%}"
        print(f"{way:11} {reported}{gain}, {cycles} cycles {more}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
