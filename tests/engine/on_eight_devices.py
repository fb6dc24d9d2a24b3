"""Run by test_on_eight_devices.py in a process with eight CPU devices, which it has for good.

Each line of stdin is a JSON array, one of the functions below and what it takes. Answers with a
line of JSON on stdout.
"""

import dataclasses
import functools
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from jaxscore import Scorer
from jaxscore.device import decoder, experts
from jaxscore.device.backends import BACKENDS, Build
from jaxscore.device.decoder_config import (
    Beside,
    DecoderConfig,
    Experts,
    GatedDelta,
    GatedUnit,
    HyperConnections,
    Lightning,
    Ngrams,
    NgramTable,
    Recurrent,
    SelectiveScan,
    SharedBlocks,
    ShortConvolution,
    StateSpace,
)
from jaxscore.device.layers import SCALE
from jaxscore.device.lm_head.sums import MEASURES, Terms, empty_top_k, merge_top_k, top_k_logprobs
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.rows import Unembedding
from jaxscore.device.sharding import DeviceMesh
from jaxscore.engine import planner
from jaxscore.engine.devices import placed_bytes
from jaxscore.engine.engine import Engine
from jaxscore.engine.generation import Generator, slots
from jaxscore.models import native
from jaxscore.models.model import Model
from jaxscore.models.weights.params import shapes_of
from jaxscore.plan import decode_slots
from jaxscore.plan.requests import TokenSequence
from jaxscore.types.requests import GenerationRequest
from tests.device.configs import gpt2like, llamalike, rules
from tests.engine.generation.test_generator import OfIds

CLASSES = {"one": [207], "first shard": range(20), "each third": range(0, 208, 3)}
N_TEXTS = 20  # in 8 rows
SHAPES = [(2, 4), (8, 1), (4, 2), (1, 8)]
ROUTINGS = ["even", "one expert", "one shard", "ends"]
EIGHT = {"n_heads": 8, "width": 32, "vocab_size": 208}
CONFIGS = {
    "grouped": llamalike(**EIGHT, n_kv_heads=2),  # on 4 and 8 shards key heads are whole
    "ragged vocabulary": llamalike(**EIGHT | {"vocab_size": 211}, n_kv_heads=8, head_tied=False),
    "biases": gpt2like(**EIGHT, n_kv_heads=8, mlp_width=48, head_bias=True),
    "alibi": gpt2like(
        **EIGHT, n_kv_heads=8, mlp_width=48, learned_positions=False, alibi=rules(8)["alibi"].alibi
    ),
    "experts": llamalike(
        **EIGHT,
        n_kv_heads=1,
        experts=Experts.of(count=8, per_token=3, router_renormalised=True, shared_width=16),
        mlp_width=24,
    ),
    "int8": llamalike(**EIGHT, n_kv_heads=4, quantized="float32", mlp_bias=True, out_bias=True),
    "int8 experts": llamalike(
        **EIGHT,
        n_kv_heads=8,
        experts=Experts.of(count=6, per_token=2, router_renormalised=False),
        mlp_width=24,
        quantized="float32",
    ),
    "caps": llamalike(
        **EIGHT, n_kv_heads=2, score_softcap=2.0, head_softcap=3.0, parallel="shared"
    ),
    "norms": llamalike(**EIGHT, n_kv_heads=4, qk_norm_kind="flat", norm_place="both"),
    "heads' norms": gpt2like(**EIGHT, n_kv_heads=2, qk_norm_kind="heads", mlp_width=48),
}
# Larger than usual, since the norm of an output near zero amplifies rounding: with 1e-6 a score of
# the gated delta rule on a mesh is 3e-5 from one device's, with this 3e-6
EPS = 1e-2
# On 4 and 8 shards the two key heads or groups are whole, and norms of groups are over shards
MIXERS = {
    "short convolution": ShortConvolution(3, bias=True),
    "gated delta": GatedDelta(2, 8, 8, 6, 4, "silu", 1.0, EPS),
    "Kimi delta": GatedDelta(8, 8, 6, 4, 4, "silu", 1.0, EPS, True, rank=6),
    "gated unit": GatedUnit(48, 8, 4, "gelu_tanh"),
    "selective scan": SelectiveScan(48, 5, 3, 4, True, True, "silu", "scale", EPS),
    "lightning": Lightning(8, 6, "silu", EPS),
    "state space": StateSpace(8, 8, 2, 10, 4, True, True, "silu", 0.0, 9.0, out_bias=True),
}
RECURRENT = {
    name: llamalike(**EIGHT, n_kv_heads=2, norm_eps=EPS, recurrent=Recurrent((1,), mixer))
    for name, mixer in MIXERS.items()
} | {
    "state space beside attention": llamalike(
        **EIGHT,
        n_kv_heads=2,
        norm_eps=EPS,
        quantized="float32",
        qkv_bias=False,
        recurrent=Recurrent(
            (0, 1),
            StateSpace(8, 6, 1, 10, 4, False, False, "silu", 0.0, 9.0, "first"),
            Beside(0.7, 0.6, 0.9, 0.4),
        ),
    ),
    "n-grams": llamalike(
        **EIGHT,
        n_kv_heads=2,
        norm_eps=EPS,
        norm_place="streams",
        head_norm=False,
        quantized="float32",
        qkv_bias=False,
        streams=HyperConnections(3, 5),
        recurrent=Recurrent((1,), MIXERS["gated delta"]),
        ngrams=Ngrams((1,), (NgramTable((701, 503, 301), (11, 13), 24),), 8, 3, 3),
    ),
    "shared blocks": llamalike(
        **EIGHT,
        n_kv_heads=2,
        norm_eps=EPS,
        mlp_layers=(),
        recurrent=Recurrent((0, 1), MIXERS["state space"]),
        shared_blocks=SharedBlocks((1,), 1),
        score_scale=0.1,
        qkv_rank=3,
        mlp_rank=2,
    ),
}


def parameters(config: DecoderConfig) -> decoder.Params:
    """Host arrays of visible size."""
    draw = np.random.default_rng(1)
    shapes = shapes_of(config, np.dtype(np.float32))

    def fill(path, leaf):
        if leaf.dtype == np.int8:
            return draw.integers(-127, 128, leaf.shape).astype(np.int8)
        if path[-1].key == SCALE:
            return draw.uniform(0.001, 0.004, leaf.shape).astype(np.float32)
        centre = 1.0 if path[-1].key == "scale" else 0.0
        drawn = draw.normal(centre, 0.2, leaf.shape).astype(np.float32)
        # States decay: those that grow would make much of the last bits.
        return np.abs(drawn) if path[-1].key == "slope" else drawn

    return jax.tree_util.tree_map_with_path(fill, shapes)


def model_on(config: DecoderConfig, params: decoder.Params, shape) -> Model:
    if shape is None:
        placed = jax.tree.map(jnp.asarray, params)
        return native.from_params(config, placed, "float32", "test")
    mesh = DeviceMesh(MeshShape(*shape))
    place = mesh.placement(config)

    def put(path, leaf):
        keys = tuple(entry.key for entry in path)
        return jax.device_put(leaf, place(keys, leaf.shape))

    placed = jax.tree_util.tree_map_with_path(put, params)
    return native.from_params(config, placed, "float32", "test", mesh=mesh)


def sequences(least_shared: int = 0, most_shared: int = 90) -> list[TokenSequence]:
    draw = np.random.default_rng(2)
    prefix = draw.integers(0, 200, most_shared)
    out = []
    for _ in range(70):
        cut, own = (
            int(draw.integers(least_shared, most_shared)),
            draw.integers(0, 208, int(draw.integers(2, 30))),
        )
        ids = np.concatenate([prefix[:cut], own]).astype(np.int32)
        out.append(TokenSequence(ids, int(draw.integers(0, len(ids)))))
    return out


def scored(model: Model, *shared: int) -> tuple[list, Engine]:
    scorer = Engine(model, batch_tokens=128)
    return scorer.score_sequences(sequences(*shared)), scorer


def distance(got, want) -> float:
    return max(
        float(np.abs(a - b).max(initial=0.0))
        for one, other in zip(got, want, strict=True)
        for a, b in zip(one[:3], other[:3], strict=True)
    )


def sent(scorer: Engine) -> list[tuple[str, int]]:
    """Collectives of the scoring programs: kind and the largest array of each, in numbers."""
    found: dict[str, int] = {}
    for text in scorer.programs.as_text("score"):
        for line in text.splitlines():
            match = re.search(
                r"= (.*?) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-\w+)\(", line
            )
            for dims in re.findall(r"\[([\d,]*)\]", match[1]) if match else []:
                size = int(np.prod([int(n) for n in dims.split(",") if n]))
                found[match[2]] = max(found.get(match[2], 0), size)
    return sorted(found.items())


def written(mesh: str | None) -> list[Any]:
    """Greedy and sampled tokens after prompts that share text, some with a penalty and top_k.

    Then how many texts began in a row that another one had left.
    """
    folder = Path(__file__).parents[1] / "cases/models/tiny-qwen2"
    generator = Generator(Scorer.from_pretrained(str(folder), dtype="float32", mesh=mesh))
    asked = [
        GenerationRequest(
            k, f"The cat {'sat ' * (k % 6)}", 7 + k % 5, temperature=0.5 * (k % 2), seed=k
        )
        for k in range(N_TEXTS)
    ]
    changed = [
        dataclasses.replace(one, repetition_penalty=1.0 + one.id / 20, top_k=one.id % 6)
        for one in asked
    ]
    begun, rows = slots.SlotTable._start, []

    def noted(table: Any, everything: Any, some: Any) -> Any:
        rows.extend(row for row, _ in some)
        return begun(table, everything, some)

    with (
        mock.patch.object(slots, "STEPS", 4),
        mock.patch.object(decode_slots, "GROUPS", (1, 8)),
        mock.patch.object(slots.SlotTable, "_start", noted),
    ):
        found = [*generator.generate(asked), *generator.generate(changed)]
    assert len(rows) == len(found)
    return [len(rows) - 2 * len({*rows}), [one.token_ids.tolist() for one in found]]


def alone(params: decoder.Params, shape, order) -> str:
    """A digest of all bits with `reproducible`, of the sequences in another order."""
    model = model_on(CONFIGS["grouped"], params, shape)
    asked = sequences()
    found = Engine(model, reproducible=True).score_sequences([asked[k] for k in order])
    at = np.argsort(order)
    columns = (column.tobytes() for k in at for column in found[k][:4])
    return hashlib.sha256(b"".join(columns)).hexdigest()


@functools.cache
def one_device(name: str) -> list:
    config = (CONFIGS | RECURRENT)[name]
    return scored(model_on(config, parameters(config), None))[0]


def against_one_device(name: str, shape: list[int]) -> list:
    """The largest difference, whether all bits are the same, and what the program sends."""
    config, want = (CONFIGS | RECURRENT)[name], one_device(name)
    got, scorer = scored(model_on(config, parameters(config), shape))
    same = all(
        np.array_equal(a, b)
        for one, other in zip(got, want, strict=True)
        for a, b in zip(one[:4], other[:4], strict=True)
    )
    return [distance(got, want), same, sent(scorer)]


def with_split_weights(name: str, shape: list[int]) -> list:
    """Whether all bits are those of the mesh without `fsdp`, the bytes of the parameters on a
    device without and with it, and those of gathered ones with it."""
    config = (CONFIGS | RECURRENT)[name]
    models = [model_on(config, parameters(config), (*shape, fsdp)) for fsdp in (False, True)]
    want, got = (scored(model)[0] for model in models)
    same = all(
        np.array_equal(a, b)
        for one, other in zip(got, want, strict=True)
        for a, b in zip(one[:4], other[:4], strict=True)
    )
    return [
        same,
        *(placed_bytes(model.params) for model in models),
        models[1].devices.gathered_bytes,
    ]


@functools.cache
def ranked(*measures: str) -> list:
    """All tokens of one device, by their probability."""
    config = CONFIGS["caps"]
    engine = Engine(model_on(config, parameters(config), None), batch_tokens=128)
    asked = {"measures": measures, "classes": CLASSES if measures else None}
    return engine.score_sequences(sequences(), top=config.vocab_size, **asked)


def top_on(shape) -> list:
    """How far the 30 most probable tokens are from one device's; a shard of 8 has 26 columns.

    Then whether all bits are the same, the greedy tokens, and those of them whose own number is
    not the first one.
    """
    config, every = CONFIGS["caps"], ranked()
    model = model_on(config, parameters(config), shape)
    got = Engine(model, batch_tokens=128).score_sequences(sequences(), top=30)
    far, same, n_greedy, n_other = 0.0, True, 0, 0
    for one, other in zip(every, got, strict=True):
        of_id = np.take_along_axis(one.top_logprob, np.argsort(one.top_id, axis=1), axis=1)
        for want in (np.take_along_axis(of_id, other.top_id, axis=1), one.top_logprob[:, :30]):
            far = max(far, float(np.abs(other.top_logprob - want).max(initial=0.0)))
            same &= np.array_equal(other.top_logprob, want)
        n_greedy += int(other.greedy.sum())
        n_other += int((other.logprob != other.top_logprob[:, 0])[other.greedy].sum())
    return [far, same, n_greedy, n_other]


def measured_on(shape) -> list:
    """How far the measures are from one device's, then whether all bits are the same, and how many
    ranks are not those of whole logits."""
    config, every, asked = CONFIGS["caps"], ranked(*MEASURES), sequences()
    other = Engine(model_on(config, parameters(config), shape), batch_tokens=128)
    far, same, n_wrong = 0.0, True, 0
    got = other.score_sequences(asked, measures=MEASURES, classes=CLASSES)
    for a, b, given in zip(every, got, asked, strict=True):
        for name in (*MEASURES, *(f"mass_{name}" for name in CLASSES)):
            far = max(far, float(np.abs(a.measures[name] - b.measures[name]).max(initial=0.0)))
            same &= np.array_equal(a.measures[name], b.measures[name])
        place = (a.top_id == given.targets[:, None]).argmax(axis=1)
        own = np.take_along_axis(a.top_logprob, place[:, None], axis=1)
        n_wrong += int((b.measures["rank"] != 1 + (a.top_logprob > own).sum(axis=1)).sum())
    return [far, same, n_wrong]


def ties() -> list:
    """Ids of the 30 most probable tokens over 8 shards of 26 columns, and the logits."""
    z = np.random.default_rng(5).integers(0, 3, (40, 208)).astype(np.float32)
    mesh = DeviceMesh(MeshShape(1, 8))

    def run(own):
        head = Unembedding(jnp.zeros((26, 1)), None, 1.0, None, split="model")
        ranked = empty_top_k(40, head, 30)
        ranked = merge_top_k(ranked, own, jnp.int32(0), jnp.ones((1, 26), bool))
        zero = jnp.zeros(40)
        of = Terms(zero, zero, zero, zero, jnp.zeros(40, jnp.int32))
        return top_k_logprobs(ranked, of, head, 30)[0]

    columns, whole = jax.sharding.PartitionSpec(None, "model"), jax.sharding.PartitionSpec()
    return [jax.jit(mesh.over(run, columns, whole))(z).tolist(), z.tolist()]


def with_prefixes(name: str, shape) -> list:
    config = (CONFIGS | RECURRENT)[name]
    with mock.patch.multiple(planner, LEAST_SAVED_CPU=0, LEAST_SHARE=0):
        want, scorer = scored(model_on(config, parameters(config), None), 150, 160)
        got, other = scored(model_on(config, parameters(config), shape), 150, 160)
    for one in (scorer, other):
        assert any(program.name[0] == "prefix" for program in one.programs.compiled)
    return [distance(got, want), sent(other)]


def continued(name: str, shape) -> list:
    """Greedy tokens after prompts that share text, with a prefix cache, in slots taken in turns."""
    config = RECURRENT[name]
    draw = np.random.default_rng(4)
    shared = draw.integers(0, 200, 30)
    ids = [np.r_[shared, draw.integers(0, 200, n)].astype(np.int32) for n in (1, 2, 3, 9, 40, 5)]
    with (
        mock.patch.object(slots, "STEPS", 4),
        mock.patch.multiple(decode_slots, GROUPS=(1, 4), SHORTEST_PREFIX=8),
    ):
        generator = Generator(Scorer(model_on(config, parameters(config), shape), OfIds(ids)))
        found = generator.generate([GenerationRequest(k, str(k), 5 + k) for k in range(len(ids))])
    programs = [program.name[0] for program in generator.scorer.engine.programs.compiled]
    assert {"prefix", "prefill", "decode"} <= {*programs}
    return [one.token_ids.tolist() for one in found]


@mock.patch.object(experts, "BLOCK", 8)
def routed(backend: str, routing: str) -> list:
    """How far a mixture over eight devices is from one device's, and the chunks of each shard."""
    n_tokens, width, count, k, shards = 24, 16, 16, 2, 8
    draw = np.random.default_rng(7)

    def matrices(*shape: int) -> dict[str, Any]:
        drawn = draw.normal(0.0, 0.3, (2, count, *shape)).astype(np.float32)
        return {"weight": drawn, "bias": drawn[..., 0]}

    sizes = {"gate": (32, width), "up": (32, width), "down": (width, 32)}
    stored = {name: matrices(*shape) for name, shape in sizes.items()}
    x = draw.normal(size=(3, n_tokens // 3, width)).astype(np.float32)
    pool = {"even": range(count), "one expert": [5], "one shard": [4, 5], "ends": [0, 15]}[routing]
    chosen = np.stack([draw.permutation([*pool] * k)[:k] for _ in range(n_tokens)])
    chosen = chosen.astype(np.int32).reshape(3, -1, k)
    share = draw.uniform(0.1, 0.9, chosen.shape).astype(np.float32)
    form = dataclasses.replace(BACKENDS[backend], interpreted=True)

    def run(n: int, *args: Any) -> Any:
        return experts.mixture(
            args[0], jnp.int32(1), lambda gate, up: jax.nn.relu(gate) * up, *args[1:],
            build=Build(form, n), count=count,
        )  # fmt: skip

    over, whole = jax.sharding.PartitionSpec(None, "model"), jax.sharding.PartitionSpec()
    mesh = DeviceMesh(MeshShape(1, shards))
    split = mesh.over(functools.partial(run, shards), (over, whole, whole, whole), whole)
    want = jax.jit(functools.partial(run, 1))(stored, x, share, chosen)
    got = jax.jit(split)(stored, x, share, chosen)
    size, _ = experts.chunk_blocks(chosen.size, count // shards, shards)
    rows = np.bincount(chosen.reshape(-1), minlength=count).reshape(shards, -1)
    chunks = -(-(-(-rows // experts.BLOCK)).sum(axis=1) // size)
    return [float(np.abs(got - want).max()), float(np.abs(want).max()), chunks.tolist()]


def reproducible(shapes: list) -> list[str]:
    """A digest for each mesh."""
    params, draw = parameters(CONFIGS["grouped"]), np.random.default_rng(3)
    return [alone(params, shape, draw.permutation(len(sequences()))) for shape in shapes]


FUNCTIONS = (
    against_one_device, with_split_weights, top_on, measured_on, ties, with_prefixes, continued,
    written, routed, reproducible,
)  # fmt: skip

if __name__ == "__main__":
    of_name = {function.__name__: function for function in FUNCTIONS}
    for line in sys.stdin:
        name, *given = json.loads(line)
        print(json.dumps(of_name[name](*given)), flush=True)
