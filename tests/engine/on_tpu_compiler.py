"""Run by test_tpu_compiler.py in a process of its own, which loads libtpu and looks for no device.

Each line of stdin has a chip, devices along `data` and `model` (and 1 for `fsdp`), a model and a
program as words: `v5e 1x4 8B score:1x4096`.
Answers with a line on stdout: what the compiler says, as JSON.
"""

import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import Any

from jaxscore.engine import set_variables

set_variables("tpu")

import jax
import jax.numpy as jnp
from jax.errors import JaxRuntimeError
from jax.sharding import NamedSharding

from jaxscore.device import generate
from jaxscore.device.attention.kernel_tpu import kernel_tpu
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.decoder import KeysValues
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.sampling import Sampling
from jaxscore.device.sharding import KEYS_VALUES, REPLICATED, DeviceMesh, array_specs
from jaxscore.engine import estimates, targets
from jaxscore.engine.estimates import abstract_model, on
from jaxscore.engine.footprint import collectives, lower, measure, refused, scoring, text_of
from jaxscore.engine.generation.prefill import MOST_PREFILL
from jaxscore.engine.generation.slots import STEPS, cache_limit, most_rows, slot_bytes
from jaxscore.engine.programs import keys_and_values
from jaxscore.models import native
from jaxscore.models.weights.quantization import plain_config
from jaxscore.plan.decode_slots import GROUPS, refill_size
from tests.models.published import RELEASED
from tests.models.test_large_shapes import MODELS, QWEN, sized

TOPOLOGIES = {
    ("v5e", 1): "v5e:1x1",
    ("v5e", 4): "v5e:2x2",
    ("v5p", 1): "v5p:1x1x1",
    ("v5p", 4): "v5p:2x2x1",
    ("v5p", 64): "v5p:4x4x4",
    ("v6e", 1): "v6e:1x1",
}
CONFIGS = {
    "0.5B": sized(
        QWEN, 896, 4864, 24, 14, num_key_value_heads=2, max_window_layers=24,
        tie_word_embeddings=True, vocab_size=151936,
    ),
    "8B": MODELS["Llama-3.1-8B"].raw,
    "70B": MODELS["Llama-3.1-70B"].raw,
    "MoE": MODELS["Qwen3-30B-A3B"].raw,
    "latent": RELEASED["DEEPSEEK_V2_LITE"],
    "DeepSeek": plain_config(RELEASED["DEEPSEEK_V3"]),
    # Heads of 256 and of 512 channels, keys that layers share, an embedding for each layer.
    "gemma4": {
        "model_type": "gemma4_text", "vocab_size": 262144, "hidden_size": 1536,
        "intermediate_size": 6144, "num_hidden_layers": 6, "num_attention_heads": 8,
        "num_key_value_heads": 1, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
}  # fmt: skip
EOS = 2  # ids that end a text
HBM = {"v5e:1x1": 1575 * 2**30 // 100}  # bytes that the compiler has for programs


class Case:
    """One model on one topology, with what its programs take."""

    def __init__(self, chip: str, shape: MeshShape, name: str) -> None:
        self.target = targets.tpu(TOPOLOGIES[chip, shape.size])
        self.device = self.target.devices[0]
        mesh = None if shape.size == 1 else DeviceMesh(shape, self.target.devices)
        self.mesh, self.where = mesh, mesh or self.device
        size, _, stored = name.partition("-")
        raw = CONFIGS[size]
        _, self.config = native.translate(Path(size), raw)
        if stored:
            self.config = dataclasses.replace(self.config, quantized="bfloat16")
        self.kind = self.config, "bfloat16", raw["model_type"]
        self.model = abstract_model(*self.kind, self.where)

    def placed(self, tree: Any, spec: Any = REPLICATED) -> Any:
        """Shapes where they lie on the target."""
        there = on(self.where) if self.mesh is None else NamedSharding(self.mesh.mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), tree)

    def cache(self, rows: int, slots: int) -> KVCache:
        """Of all layers, with the key heads of all shards."""
        shards = 1 if self.mesh is None else self.mesh.shape.model
        empty = jax.eval_shape(lambda: self.model.functions.cached.empty_cache(rows, slots))
        layers, _, heads, _, width = empty[0].shape
        shape = layers, rows, shards * heads, slots, width
        kept = self.placed(jax.ShapeDtypeStruct(shape, empty[0].dtype), KEYS_VALUES)
        first, length = self.placed((_ints(), _ints(rows)))
        return KVCache(kept, kept, first, length)

    def compiled(self, function: Any, args: Any, outputs: Any = REPLICATED) -> dict[str, Any]:
        lowered = lower(function, args, self.mesh, self.device, outputs)
        with targets.compiling_for(self.device):
            program = lowered.compile()
        return {
            "temporary_bytes": program.memory_analysis().temp_size_in_bytes,
            "collectives": {one.op: one.count for one in collectives(text_of(program))},
        }

    def score(self, rows: int, length: int) -> dict[str, Any]:
        try:
            found = measure(self.model, rows, length, self.device)
        except JaxRuntimeError as problem:
            named = refused(problem, rows, length)
            return {"total_bytes": named.total_bytes}
        moved = {one.op: one.count for one in found.collectives}
        return {"temporary_bytes": found.temporary_bytes, "collectives": moved}

    def prefix(self, slots: int) -> dict[str, Any]:
        """Keys and values of a prefix."""
        token = self.placed(_ints(1, slots))
        function = keys_and_values(self.model.functions.cached)
        args = self.model.params, token, token, token, None, None
        return self.compiled(function, args, KEYS_VALUES)

    def behind(self, rows: int, length: int, slots: int) -> dict[str, Any]:
        """Rows that continue a prefix."""
        function, batch = scoring(self.model, rows, length, self.where)
        return self.compiled(function, (self.model.params, batch, None, self.cache(1, slots)))

    def step(self, rows: int, slots: int) -> dict[str, Any]:
        """Greedy tokens of texts that continue a prefix."""
        return self._step(rows, slots, greedy=True)

    def drawn(self, rows: int, slots: int) -> dict[str, Any]:
        """Drawn tokens of such texts, with a repetition penalty."""
        return self._step(rows, slots, greedy=False)

    def lane(self, slots: int) -> dict[str, Any]:
        """A block of drawn tokens in a cache with the slots that one chip's memory allows."""
        fits = cache_limit(self.model, 0, STEPS, HBM[self.target.name])
        most = most_rows(self.model)
        rows = max(n for n in GROUPS if n <= most and fits(n, slots))
        function, (params, state, *rest) = self._decoding(rows, slots, STEPS, greedy=False)
        args = params, state._replace(seen=None), *rest[:1], (), *rest[2:]
        with targets.compiling_for(self.device):
            program = jax.jit(function, donate_argnums=(1,)).lower(*args).compile()
        reported = program.memory_analysis()
        prompts = MOST_PREFILL * slot_bytes(self.model)
        taken = reported.argument_size_in_bytes + reported.temp_size_in_bytes + prompts
        return {"rows": rows, "bytes": taken, "limit": HBM[self.target.name]}

    def begin(self, rows: int, slots: int) -> dict[str, Any]:
        """New texts in an eighth of the slots of a cache, from a whole batch of prompts."""
        _, (_, state, sampling, _, eos) = self._decoding(rows, slots, 1, greedy=True)
        width = refill_size(rows)

        def of_begun(leaf: Any) -> Any:
            return jax.ShapeDtypeStruct((width, *leaf.shape[1:]), leaf.dtype)

        count, own = self.placed((_ints(width), jax.tree.map(of_begun, (sampling, eos))))
        begun = generate.NewRequests(count, count, count, count, count, None, *own)
        prompts = self.cache(MOST_PREFILL // slots, slots)
        source = self.placed(_ints(width, slots))
        args = state, sampling, eos, KeysValues(prompts.key, prompts.value), source, begun
        with targets.compiling_for(self.device):
            program = jax.jit(generate.start, donate_argnums=(0, 1, 2)).lower(*args).compile()
        return {
            "temporary_bytes": program.memory_analysis().temp_size_in_bytes,
            "cache_bytes": rows * slots * slot_bytes(self.model),
        }

    def _step(self, rows: int, slots: int, *, greedy: bool) -> dict[str, Any]:
        function, args = self._decoding(rows, slots, 8, greedy=greedy)
        return self.compiled(function, args, (array_specs(args[1]), REPLICATED))

    def _decoding(self, rows: int, slots: int, steps: int, *, greedy: bool) -> tuple[Any, Any]:
        """Steps of texts that continue a prefix, and the shapes of what they take."""
        floats, flags = (jax.ShapeDtypeStruct((rows,), kind) for kind in (jnp.float32, bool))
        seed = jax.ShapeDtypeStruct((rows,), jnp.uint32)
        ids = jax.ShapeDtypeStruct((rows, self.model.vocab_size), bool)
        token, done, count, eos, seen, sampling = self.placed(
            (
                _ints(rows),
                flags,
                _ints(rows),
                _ints(rows, EOS),
                None if greedy else ids,
                Sampling(floats, floats, _ints(rows), floats, seed),
            )
        )
        state = generate.GenerationState(self.cache(rows, slots), token, done, count, count, seen)
        function = functools.partial(
            generate.decode,
            self.model.functions.cached.extend,
            self.model.functions.unembedding,
            steps=steps,
            greedy=greedy,
            cut=not greedy,
        )
        return function, (self.model.params, state, sampling, (self.cache(1, slots),), eos)

    def attention(self, rows: int, length: int) -> dict[str, Any]:
        """The kernel alone."""
        rule = ScoreRule(self.config.attention.head_width**-0.5)
        of_row, width = _ints(rows, length), self.config.attention.head_width
        q, k = (
            jax.ShapeDtypeStruct((rows, length, heads, width), jnp.float32)
            for heads in (self.config.attention.n_heads, self.config.attention.n_kv_heads)
        )
        args = self.placed((q, k, k, of_row, of_row))
        run = functools.partial(kernel_tpu, window=None, rule=rule, dtype=jnp.bfloat16)
        return self.compiled(run, args)

    def layer(self, rows: int, length: int) -> dict[str, Any]:
        return dataclasses.asdict(
            estimates.estimate_layer(*self.kind, self.target, self.where, rows, length)
        )

    def vocabulary(self, queries: int) -> dict[str, Any]:
        return dataclasses.asdict(
            estimates.estimate_vocabulary(*self.kind, self.target, self.where, queries)
        )


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


if __name__ == "__main__":
    for line in sys.stdin:
        chip, devices, model, program = line.split()
        kind, _, sizes = program.partition(":")
        case = Case(chip, MeshShape(*map(int, devices.split("x"))), model)
        print(json.dumps(getattr(case, kind)(*map(int, sizes.split("x")))), flush=True)
        jax.clear_caches()  # no case is short of the memory of those before it
