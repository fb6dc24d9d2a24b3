"""Parameters lie where the split decoder looks for them, and nothing is left without a rule."""

import dataclasses
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxscore.device.attention.score_rule import Alibi
from jaxscore.device.decoder_config import (
    AltUp,
    Clamped,
    Experts,
    GatedDelta,
    GatedUnit,
    HyperConnections,
    Latent,
    Lightning,
    Ngrams,
    NgramTable,
    OtherHeads,
    OtherMlp,
    QueryGrowth,
    Recurrent,
    Rotary,
    SelectiveScan,
    SharedBlocks,
    ShortConvolution,
    StateSpace,
)
from jaxscore.device.init_params import init_params
from jaxscore.device.sharding import (
    RULES,
    MeshShape,
    bytes_a_device,
    check_divisible,
    divides,
    parameter_spec,
    parameter_specs,
    replicated_counts,
)
from tests.conftest import ROOT, with_devices
from tests.device.configs import gpt2like, llamalike

ALIBI = Alibi((0.5, 0.25, 0.1, 0.05))
SLOPES = Alibi(tuple(0.9 / (n + 1) for n in range(8)), 0.7)
WIDE = {"n_heads": 8, "width": 32, "mlp_width": 48, "vocab_size": 208}
# What the rules distinguish, with 4 query heads over 2 key heads.
CONFIGS = {
    "grouped heads": llamalike(qk_norm_kind="head"),
    "gpt2": gpt2like(head_bias=True, vocab_size=48),
    "alibi": gpt2like(learned_positions=False, alibi=ALIBI, parallel="shared"),
    "a norm for each head": llamalike(qk_norm_kind="heads", norm_kind="layer", qk_norm_bias=True),
    "experts": llamalike(
        experts=Experts.of(count=4, per_token=2, router_renormalised=True, shared_width=16),
        qkv_bias=False,
    ),
    "int8": llamalike(n_kv_heads=1, qk_norm_kind="flat", quantized="float32"),
    "int8 experts": llamalike(
        experts=Experts.of(count=4, per_token=2, router_renormalised=False, shared_width=16),
        quantized="float32",
    ),
    "latent": llamalike(
        n_kv_heads=1,
        head_width=16,
        rotary=(Rotary((1.0, 0.2)),),
        latent=Latent(rank=12, query_rank=6, rope_width=4, nope_width=8, value=6, norm_eps=1e-6),
        qkv_bias=True,
        sinks=True,
        query_growth=QueryGrowth((0.3, 0.0), 4.0, 1),
        windows=(4, 0),
        chunked=True,
    ),
    "mixed": llamalike(
        n_layers=3,
        windows=(0, 0, 0),
        experts=Experts.of(
            count=6,  # the experts' channels are split
            per_token=2,
            router_renormalised=True,
            shared_width=16,
            shared_gated=False,
            router_scores="sigmoid",
            router_corrected=True,
            router_groups=2,
            router_group_rank=2,
            router_least_sum=1e-9,
            router_scale=1.7,
            router_bias=True,
            bias=True,
        ),
        mlp_other=OtherMlp((1,), 32),
        mlp_bias=True,
        mlp_clamped=Clamped(3.0, 1.7),
        qk_norm_kind="head",
        qk_norm_scale=False,
        qk_norm_after_rotary=True,
        qk_norm_layers=(True, False, True),
        query_gate=True,
    ),
    "int8 latent": llamalike(
        n_kv_heads=1,
        head_width=16,
        rotary=(Rotary((1.0, 0.2)),),
        latent=Latent(rank=12, query_rank=0, rope_width=4, nope_width=8, value=6, norm_eps=1e-6),
        quantized="float32",
        qkv_bias=False,
    ),
    "heads of two sizes": llamalike(
        n_layers=4,
        windows=(4, 0, 4, 0),
        rotary=(Rotary((1.0, 0.5, 0.2, 0.1, 0.0, 0.0)), Rotary((0.9, 0.3, 0.2, 0.1, 0.05, 0.02))),
        rotary_of=(0, 1, 0, 1),
        other_heads=OtherHeads((1, 3), 1, 12, True),
        keys_of=(0, 1, 0, 1),
        value_norm=True,
        query_gate=True,
        qk_norm_kind="head",
        embedding_per_layer_width=6,
        layer_scale=True,
        norm_place="both",
        quantized="float32",
    ),
    "streams": llamalike(
        streams=AltUp(3, 1, scaled=True),
        laurel_rank=5,
        mlp_cutoffs=(0.5, None),
        norm_place="both",
        embedding_per_layer_rows=40,
        embedding_per_layer_width=6,
        quantized="float32",
    ),
    "hyper-connections": llamalike(
        experts=Experts.of(count=4, per_token=2, router_renormalised=False, shared_width=16),
        head_norm=False,
        norm_place="streams",
        quantized="float32",
        streams=HyperConnections(3, 5),
    ),
    "late experts": llamalike(
        experts=Experts.of(
            count=4,
            per_token=2,
            router_renormalised=False,
            shared_width=16,
            shared_gated=False,
            identities=2,
            late=True,
            router_corrected=True,
        ),
        mlp_other=OtherMlp((1,), 16),
    ),
    "narrow values": llamalike(
        windows=(4, 0),
        other_heads=OtherHeads((1,), 1, 8, sinks=False),
        sinks=True,
        value_width=6,
        value_factor=0.7,
    ),
    "experts beside": llamalike(
        experts=Experts.of(
            count=4,
            per_token=2,
            router_renormalised=True,
            shared_width=16,
            shared_gated=False,
            separate_norms=True,
            router_norm=True,
            router_expert_scale=True,
        ),
        norm_place="both",
    ),
    "convolutions": llamalike(
        recurrent=Recurrent((0,), ShortConvolution(taps=3, bias=True)), quantized="float32"
    ),
    "delta rule": llamalike(
        norm_place="mixed",
        recurrent=Recurrent((1,), GatedDelta(2, 4, 8, 6, 4, "silu", 2.0, 1e-6)),
    ),
    "n-grams": llamalike(
        head_norm=False,
        ngrams=Ngrams((1,), (NgramTable((701, 503, 301), (11, 13), 24),), 8, 3, 3),
        norm_place="streams",
        quantized="float32",
        recurrent=Recurrent((1,), GatedDelta(2, 4, 8, 6, 4, "silu", 1.0, 1e-6)),
        streams=HyperConnections(3, 5),
    ),
    "channels' delta rule beside latent attention": llamalike(
        n_kv_heads=1,
        head_width=16,
        rotary=(Rotary((0.0, 0.0)),),
        latent=Latent(rank=12, query_rank=6, rope_width=4, nope_width=8, value=6, norm_eps=1e-6),
        recurrent=Recurrent(
            (1,), GatedDelta(2, 2, 8, 8, 4, "silu", 1.0, 1e-6, True, rank=6, least_decay=-5.0)
        ),
        quantized="float32",
        qkv_bias=False,
    ),
    "lightning attention": llamalike(
        norm_place="residual",
        sum_factors=((1.0, 0.5, 2.0, 0.7), (1.5, 0.8, 1.0, 1.0)),
        recurrent=Recurrent((1,), Lightning(4, 6, "silu", 1e-6)),
    ),
    "gated unit": llamalike(recurrent=Recurrent((1,), GatedUnit(12, 3, 4, "gelu_tanh"))),
    "selective scan": llamalike(
        recurrent=Recurrent((1,), SelectiveScan(12, 5, 3, 4, True, True, "silu", "scale", 1e-6)),
        quantized="float32",
    ),
    "gated norms": llamalike(
        n_kv_heads=1,
        head_width=12,
        rotary=(Rotary((1.0, 0.2)),),
        latent=Latent(8, 6, 4, 6, 6, 1e-6, gated=True),
        norm_gate_rank=3,
        experts=Experts.of(count=4, per_token=2, router_renormalised=True),
        quantized="float32",
    ),
    "selective scan in heads": llamalike(
        recurrent=Recurrent((1,), SelectiveScan(12, 5, 3, 4, True, True, "silu", n_heads=2)),
    ),
    "state space": llamalike(
        recurrent=Recurrent((0, 1), StateSpace(4, 6, 2, 8, 4, True, True, "silu", 0.0, 1e9)),
    ),
    "shared blocks": llamalike(
        n_layers=3,
        windows=(0,) * 3,
        mlp_layers=(),
        recurrent=Recurrent((0, 1, 2), StateSpace(4, 6, 2, 8, 4, True, True, "silu", 0.0, 1e9)),
        shared_blocks=SharedBlocks((0, 2), 1),
        qkv_rank=3,
        mlp_rank=2,
        quantized="float32",
    ),
    "xielu": llamalike(mlp_activation="xielu", mlp_gated=False),
    "other widths": llamalike(
        norm_place="residual",
        embedding_width=16,
        embedding_norm=True,
        out_bias=True,
        mlp_bias=True,
        head_tied=False,
        vocab_size=52,
    ),
}
RUN = (
    "int8",
    "int8 experts",
    "other widths",
    "latent",
    "mixed",
    "int8 latent",
    "xielu",
    "heads of two sizes",
    "experts beside",
    "streams",
    "hyper-connections",
    "late experts",
)  # tests/engine/test_on_eight_devices.py runs others
WITH_KERNELS = "int8 experts", "other widths", "mixed"  # interpreted, as on a TPU and a GPU
# On four devices, since a process sets their number once.
SPLIT = """
import dataclasses
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxscore.device import decoder
from jaxscore.device.init_params import init_params
from jaxscore.device.rows import ScoredPositions, Rows
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.sharding import bytes_a_device, parameter_specs
from jaxscore.device.backends import ON_CPU, Build
from jaxscore.device.backends import BACKENDS
from jaxscore.device.lm_head import score_positions
from jaxscore.engine.devices import use_compilation_cache
from tests.device.test_sharding import CONFIGS, RUN, WITH_KERNELS

R, L = 2, 16
use_compilation_cache()

def scored(config, build=ON_CPU):
    def run(params, rows):
        where = rows.ids, rows.position, rows.subtree_end
        hidden = decoder.hidden_states(params, config, *where, build=build)
        flat = hidden.reshape(-1, hidden.shape[-1])
        head = decoder.unembedding(params, config, build)
        return hidden, score_positions(flat, rows.scored, head)
    return run

for name in RUN:
    config = CONFIGS[name]
    draw = np.random.default_rng(1)
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.float32(path[-1].key in ("scale", "channel_scale"))
        + draw.normal(0, 0.3, leaf.shape).astype(np.float32),
        jax.eval_shape(lambda: init_params(jax.random.key(0), config)),
    )
    tokens = draw.integers(0, config.vocab_size, (R, L), np.int32)
    answer = draw.integers(0, config.vocab_size, R * L * 4, np.int32)
    position, end = np.tile(np.arange(L, dtype=np.int32), (R, 1)), np.full((R, L), L, np.int32)
    query = np.arange(R * L, dtype=np.int32)
    slot, count = np.arange(4 * R * L, dtype=np.int32) % (R * L), np.int32(R * L)
    rows = Rows(tokens, position, end, ScoredPositions(query, count, slot, answer, 4 * count))
    want = jax.jit(scored(config))(params, rows)
    mesh = jax.make_mesh((4,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    placed = parameter_specs(params, config, MeshShape(1, 4))
    put = jax.tree.map(
        lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), params, placed
    )
    held = jax.tree.map(lambda x: x.addressable_shards[0].data.nbytes, put)
    assert held == bytes_a_device(params, placed, MeshShape(1, 4)), name
    for platform in BACKENDS if name in WITH_KERNELS else ("cpu",):
        backend = dataclasses.replace(BACKENDS[platform], interpreted=True)
        split = jax.shard_map(
            scored(config, Build(backend, 4)), mesh=mesh, check_vma=False,
            in_specs=(placed, PartitionSpec()), out_specs=PartitionSpec(),
        )
        got = jax.jit(split)(put, rows)
        for one, other in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
            far = np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).max()
            assert far < 2e-5, (name, platform, far)
    print(name)
"""

OVER_SHARDS = {
    "fine alibi": gpt2like(**WIDE, n_kv_heads=8, learned_positions=False, alibi=SLOPES),
    "coarse alibi": gpt2like(
        **WIDE, n_kv_heads=8, learned_positions=False, alibi=SLOPES._replace(coarse=True)
    ),
    "a cap and a window": llamalike(**WIDE, score_softcap=2.0, windows=(0, 40)),
    "key heads that split": llamalike(**WIDE, n_kv_heads=4),
}
# Rows of several tries in several blocks of queries; the slow form holds every score of every pair.
TRIES = """
import dataclasses
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxscore.device import decoder
from jaxscore.device.init_params import init_params
from jaxscore.device.attention import interval
from jaxscore.device.backends import Build
from jaxscore.device.backends import BACKENDS
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.sharding import parameter_specs
from jaxscore.engine.devices import use_compilation_cache
from tests.device.attention.test_kernels import whole
from tests.device.test_sharding import OVER_SHARDS
from tests.device.tries import random_rows

R, L = 2, 150
use_compilation_cache()

def every_score(*arrays, rule, dtype):
    *given, window = arrays
    return whole(*given, 0 if window is None else window, rule)

interval.ATTENTION["whole"] = every_score
slow = dataclasses.replace(BACKENDS["cpu"], attention="whole")
mesh = jax.make_mesh((4,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))

for name, config in OVER_SHARDS.items():
    draw = np.random.default_rng(1)
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.float32(path[-1].key == "scale")
        + draw.normal(0, 0.2, leaf.shape).astype(np.float32),
        jax.eval_shape(lambda: init_params(jax.random.key(0), config)),
    )

    def run(build):
        def states(params, *row):
            return decoder.hidden_states(params, config, *row, build=build)
        return states

    placed = parameter_specs(params, config, MeshShape(1, 4))
    put = jax.tree.map(
        lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), params, placed
    )
    split = {}
    for platform in ("tpu", "gpu"):
        backend = dataclasses.replace(BACKENDS[platform], interpreted=True)
        split[platform] = jax.jit(jax.shard_map(
            run(Build(backend, 4)), mesh=mesh, check_vma=False,
            in_specs=(placed, *[PartitionSpec()] * 3), out_specs=PartitionSpec(),
        ))
    for seed in range(3):
        rows = random_rows(seed, R, L)
        want = np.asarray(jax.jit(run(Build(slow)))(params, *rows))
        for platform, states in split.items():
            far = np.abs(np.asarray(states(put, *rows)) - want).max()
            assert far < 1e-5, (name, seed, platform, far)
    print(name)
"""


def shapes(config):
    return jax.eval_shape(lambda: init_params(jax.random.key(0), config))


def recurrent(mixer, **own):
    return llamalike(recurrent=Recurrent((0,), mixer), **own)


def names(config):
    leaves = jax.tree_util.tree_leaves_with_path(shapes(config))
    return [("/".join(entry.key for entry in path), leaf.shape) for path, leaf in leaves]


@pytest.mark.slow
def test_a_split_decoder_finds_its_parameters():
    """Bias, norm or weight out of its place would move hidden states by about 0.1."""
    command = [sys.executable, "-c", SPLIT]
    done = subprocess.run(command, capture_output=True, text=True, env=with_devices(4), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == list(RUN)


@pytest.mark.slow
def test_random_tries_over_four_shards():
    command = [sys.executable, "-c", TRIES]
    done = subprocess.run(command, capture_output=True, text=True, env=with_devices(4), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == list(OVER_SHARDS)


def test_places_of_a_llama():
    config = llamalike(vocab_size=51, head_tied=False)
    placed = parameter_specs(shapes(config), config, MeshShape(3, 4))
    rows, columns = PartitionSpec(None, "model", None), PartitionSpec(None, None, "model")
    here = PartitionSpec()
    assert placed == {
        "embed": {"token": here},  # 51 columns do not divide by 4
        "layers": {
            "attention_norm": {"scale": here},
            "attention": {
                "q": {"weight": rows, "bias": PartitionSpec(None, "model")},
                "k": {"weight": here, "bias": here},  # two key heads on four shards
                "v": {"weight": here, "bias": here},
                "out": {"weight": columns},
            },
            "mlp_norm": {"scale": here},
            "mlp": {
                "gate": {"weight": rows},
                "up": {"weight": rows},
                "down": {"weight": columns},
            },
        },
        "final_norm": {"scale": here},
        "unembed": {"weight": here},
    }
    assert replicated_counts(config, 4) == {"key heads": 2, "vocabulary columns": 51}
    halved = parameter_specs(shapes(config), config, MeshShape(1, 2))
    assert halved["layers"]["attention"]["k"]["weight"] == rows
    even = dataclasses.replace(config, vocab_size=52)
    split = parameter_specs(shapes(even), even, MeshShape(1, 4))
    assert split["embed"]["token"] == split["unembed"]["weight"] == PartitionSpec("model", None)
    assert replicated_counts(even, 4) == {"key heads": 2}


def test_places_of_weights_that_data_splits_too():
    config = llamalike(
        experts=Experts.of(count=4, per_token=2, router_renormalised=True, shared_width=16),
        quantized="float32",
        vocab_size=52,
    )
    mesh = MeshShape(2, 2, fsdp=True)
    tree = shapes(config)
    placed = parameter_specs(tree, config, mesh)
    both = ("model", "data")
    assert placed["embed"]["token"] == PartitionSpec(both, None)
    attention = placed["layers"]["attention"]
    assert attention["q"]["weight"] == PartitionSpec(None, both, None)
    assert attention["q"]["channel_scale"] == PartitionSpec(None, "model")
    assert attention["out"]["weight"] == PartitionSpec(None, "data", "model")
    assert placed["experts"]["up"]["weight"] == PartitionSpec(None, both, None, None)
    assert placed["experts"]["up"]["channel_scale"] == PartitionSpec(None, "model", None)
    assert placed["layers"]["mlp"]["shared_gate"]["weight"] == PartitionSpec(None, None, "data")
    assert placed["layers"]["attention_norm"]["scale"] == PartitionSpec()
    found, whole = (bytes_a_device(tree, placed, one) for one in (mesh, MeshShape(1, 2)))
    assert 2 * found["experts"]["up"]["weight"] == whole["experts"]["up"]["weight"]
    assert found["final_norm"] == whole["final_norm"]


def test_places_of_experts():
    config = llamalike(
        experts=Experts.of(count=4, per_token=2, router_renormalised=True, shared_width=16),
        quantized="float32",
    )
    placed = parameter_specs(shapes(config), config, MeshShape(1, 2))
    by_expert = PartitionSpec(None, "model", None, None)
    for name in ("gate", "up", "down"):
        assert placed["experts"][name]["weight"] == by_expert
        assert placed["experts"][name]["channel_scale"] == PartitionSpec(None, "model", None)
    mlp = placed["layers"]["mlp"]
    assert mlp["router"]["weight"] == mlp["shared_gate"]["weight"] == PartitionSpec()
    assert mlp["shared"]["up"]["weight"] == PartitionSpec(None, "model", None)
    assert mlp["shared"]["down"]["weight"] == PartitionSpec(None, None, "model")
    assert mlp["shared"]["down"]["channel_scale"] == PartitionSpec()
    few = dataclasses.replace(
        config, experts=Experts.of(count=3, per_token=2, router_renormalised=True, shared_width=16)
    )
    experts = parameter_specs(shapes(few), few, MeshShape(1, 2))["experts"]
    for name in ("gate", "up"):
        assert experts[name]["weight"] == PartitionSpec(None, None, "model", None)
        assert experts[name]["channel_scale"] == PartitionSpec(None, None, "model")
    assert experts["down"]["weight"] == PartitionSpec(None, None, None, "model")
    assert experts["down"]["channel_scale"] == PartitionSpec()
    assert replicated_counts(few, 2) == {}


def test_places_of_recurrent_layers():
    config = recurrent(StateSpace(8, 6, 2, 8, 4, True, True, "silu", 0.0, 1e9), n_heads=8)
    parts = PartitionSpec(None, "model", None)
    for model in (2, 4):
        mixer = parameter_specs(shapes(config), config, MeshShape(1, model))["recurrent"]
        whole = PartitionSpec() if model == 4 else parts  # two groups on four shards
        assert mixer["b"]["weight"] == mixer["norm"]["scale"] == whole
        assert mixer["x"]["weight"] == parts
        assert mixer["out"]["weight"] == PartitionSpec(None, None, "model")
        assert mixer["x_conv"]["taps"] == PartitionSpec(None, "model", None, None)
        assert mixer["log_rate"] == PartitionSpec(None, "model")
    assert replicated_counts(config, 4) == {
        "key heads": 2,
        "key heads or groups of recurrent layers": 2,
        "vocabulary columns": 50,
    }


def test_one_device_has_everything():
    for config in CONFIGS.values():
        tree = shapes(config)
        placed = parameter_specs(tree, config, MeshShape(8, 1))
        assert replicated_counts(config, 1) == {}
        found = bytes_a_device(tree, placed, MeshShape(8, 1))
        assert found == jax.tree.map(lambda leaf: leaf.size * leaf.dtype.itemsize, tree)


def test_every_rule_has_a_parameter():
    found = [one for config in CONFIGS.values() for one in names(config)]
    for pattern, axes in RULES:
        assert any(
            re.fullmatch(pattern, name) and len(shape) == len(axes) for name, shape in found
        ), pattern


def test_no_two_rules_for_a_parameter():
    """Their order decides nothing today, so none is hidden behind another."""
    for config in CONFIGS.values():
        for name, shape in names(config):
            fitting = [
                pattern
                for pattern, axes in RULES
                if re.fullmatch(pattern, name) and len(shape) == len(axes)
            ]
            assert len(fitting) == 1, (name, fitting)


@pytest.mark.parametrize(
    ("path", "shape", "message"),
    [
        ("layers/attention/more/weight", (2, 32, 24), r"layers/attention/more/weight of shape \(2"),
        ("layers/attention/q/weight/more", (2, 32, 24), "no sharding rule; add one to RULES"),
        ("more/embed/token", (50, 24), "no sharding rule"),
        ("layers/attention/q/weight", (32, 24), r"weight of shape \(32, 24\): no sharding rule"),
        ("layers/attention/q/weight", (2, 33, 24), r"\(2, 33, 24\): .* is for 4 query heads"),
        ("layers/mlp/shared/up/weight", (2, 16, 24), "is for None shared MLP channels"),
    ],
)
def test_a_parameter_without_a_rule(path, shape, message):
    with pytest.raises(ValueError, match=message):
        parameter_spec(tuple(path.split("/")), shape, llamalike(), MeshShape(1, 2))


def test_a_tree_with_a_parameter_without_a_rule():
    config = llamalike()
    tree = shapes(config) | {"extra": {"weight": jax.ShapeDtypeStruct((3, 4), np.float32)}}
    with pytest.raises(ValueError, match=r"parameter extra/weight of shape \(3, 4\): no sharding"):
        parameter_specs(tree, config, MeshShape())


@pytest.mark.parametrize(
    ("config", "model", "message"),
    [
        (llamalike(), 3, "model=3 does not .* 4 query heads, 2 key heads, .* can be 1, 2, 4$"),
        (llamalike(mlp_width=42), 4, "42 MLP channels; model can be 1, 2$"),
        (
            llamalike(
                experts=Experts.of(count=6, per_token=2, router_renormalised=True), mlp_width=42
            ),
            4,
            "6 experts, 42 channels of an expert; model can be 1, 2$",
        ),
        (
            llamalike(
                experts=Experts.of(count=4, per_token=2, router_renormalised=True, shared_width=6)
            ),
            4,
            "6 shared MLP channels; model can be 1, 2$",
        ),
        # a shard's two queries would use two key heads, of which it knows one
        (
            llamalike(n_heads=12, n_kv_heads=4, mlp_width=48),
            6,
            "12 query heads, 4 key heads, .* can be 1, 2, 4, 12$",
        ),
        (
            recurrent(GatedDelta(2, 6, 8, 6, 4, "silu", 1.0, 1e-6)),
            4,
            "6 heads, blocks or channels of .*, 2 key heads or groups of .* can be 1, 2$",
        ),
        (recurrent(StateSpace(8, 6, 4, 8, 4, True, True, "silu", 0.0, 1e9)), 3, "can be 1, 2, 4$"),
        (recurrent(ShortConvolution(3, bias=False), width=26), 4, "26 heads, .* can be 1, 2$"),
    ],
)
def test_a_model_that_does_not_split_evenly(config, model, message):
    with pytest.raises(ValueError, match=message):
        check_divisible(config, model)
    with pytest.raises(ValueError, match=message):
        parameter_specs({}, config, MeshShape(2, model))


@pytest.mark.parametrize("n_heads", [1, 4, 6, 12])
@pytest.mark.parametrize("model", [1, 2, 3, 4, 6, 8, 12])
def test_a_shards_queries_use_its_key_heads(n_heads, model):
    """What `divides` says against each query head of each shard, one by one."""
    for n_kv_heads in (n for n in range(1, n_heads + 1) if n_heads % n == 0):
        config = llamalike(n_heads=n_heads, n_kv_heads=n_kv_heads, mlp_width=24 * model)
        legal = n_heads % model == 0
        if legal:
            here = n_heads // model
            for shard in range(model):
                queries = range(shard * here, (shard + 1) * here)
                used = {query // (n_heads // n_kv_heads) for query in queries}
                own = n_kv_heads // model
                held = set(range(shard * own, (shard + 1) * own))
                legal &= used == held if n_kv_heads % model == 0 else len(used) == 1
        assert divides(config, model) == legal


def test_a_mesh_has_at_least_one_device():
    for sizes in ((0, 1), (1, 0), (-1, 2)):
        with pytest.raises(ValueError, match="at least 1"):
            MeshShape(*sizes)
    assert (MeshShape(3, 4).size, str(MeshShape(3, 4))) == (12, "data=3,model=4")
