"""What is said of a program is what the program that scores takes."""

import dataclasses
import importlib.metadata
import importlib.util
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.errors import JaxRuntimeError

from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.rows import unpack_rows
from jaxscore.device.sharding import DeviceMesh, keys_of
from jaxscore.engine.dispatch import PlannedBatch, stack_batches
from jaxscore.engine.footprint import (
    Collective,
    Refused,
    abstract_batch,
    abstract_rows,
    batch_shapes,
    collectives,
    joined_slices,
    kernels,
    measure,
    refused,
    shape_bytes,
    text_of,
)
from jaxscore.engine.planner import RECURRENT_BATCH
from jaxscore.errors import InputError
from jaxscore.models import costs, native
from jaxscore.models.weights.params import shapes_of
from jaxscore.plan import packing, row_batches
from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.tries import build_forest
from tests.conftest import with_devices
from tests.device.configs import llamalike

FLOAT32 = np.dtype(np.float32)


def model(config, shape=None):
    """Of shapes alone, on one device or on a mesh."""
    where = None if shape is None else DeviceMesh(MeshShape(*shape))
    place = (lambda path, shape: None) if where is None else where.placement(config)
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=place(keys_of(path), leaf.shape)
        ),
        shapes_of(config, FLOAT32),
    )
    return native.from_params(config, params, "float32", "llama", mesh=where)


def test_the_scorers_own_program(scorers):
    """Compiled from shapes alone, and for the batch that was scored."""
    scorer = scorers("tiny-qwen2", batch_tokens=256)
    ids = np.arange(40, dtype=np.int32) % scorer.model.vocab_size
    scorer.score_sequences([TokenSequence(ids, 1)])
    [compiled] = [one for one in scorer.engine.programs.compiled if one.name[0] == "score"][:1]
    rows, length = compiled.name[1:]
    found = measure(scorer.model, rows, length)
    assert found.temporary_bytes == compiled.temporary_bytes > 0
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), scorer.model.params
    )
    bare = dataclasses.replace(scorer.model, params=shapes)
    assert measure(bare, rows, length).temporary_bytes == found.temporary_bytes


def test_bytes_of_a_batch():
    found = measure(model(llamalike()), 4, 64)
    tokens = 4 * 64
    answers = 4 * tokens
    given = 4 * (3 * tokens + tokens + 2 * answers + 2)
    scores = answers * (4 + 1) + tokens * 3 * 4
    assert found.batch_bytes == given + scores
    assert found.working_bytes == found.batch_bytes + found.temporary_bytes
    assert found.compile_seconds > 0


@pytest.mark.slow
def test_flops_against_xla():
    """Where every loop runs once XLA counts all that runs; what is no product is a few percent."""
    config = llamalike(
        vocab_size=1024, width=256, n_layers=1, n_heads=1, n_kv_heads=1, head_width=256,
        mlp_width=1024, windows=(0,), head_tied=False,
    )  # fmt: skip
    found = measure(model(config), 1, 64)
    each = (
        costs.linear_flops(shapes_of(config, FLOAT32), config)
        + costs.attention_flops(config, 64)
        + costs.unembedding_flops(config)
    )
    assert 64 * each < found.xla_flops < 1.1 * 64 * each
    deeper = config.replace(n_layers=3, windows=(0,) * 3, rotary_of=(0,) * 3)
    assert measure(model(deeper), 1, 64).xla_flops == pytest.approx(found.xla_flops, rel=0.01)


@pytest.mark.parametrize("batch_tokens", [64, 100, 256, 1000, 4096])
@pytest.mark.parametrize("max_positions", [64, 200])
@pytest.mark.parametrize("recurrent", [False, True])
def test_batch_shapes_are_the_packers(batch_tokens, max_positions, recurrent):
    allowed = {
        shape
        for length in row_batches.row_lengths(max_positions)
        for shape in batch_shapes(length, batch_tokens, recurrent=recurrent)
    }
    draw, seen = np.random.default_rng(0), set()
    for n_requests in (1, 2, 5, 30, 90):
        for longest in (10, 64, max_positions):
            lengths = draw.integers(2, longest + 1, n_requests)
            sequences = [TokenSequence(draw.integers(0, 99, n), 1) for n in lengths]
            plan = packing.pack_rows(
                build_forest(sequences),
                max_positions=max_positions,
                width=32,
                batch_tokens=batch_tokens,
                batch_cost=RECURRENT_BATCH if recurrent else 0.0,
            )
            seen |= {batch.shape for batch in plan.batches()}
    assert seen <= allowed
    assert {min(allowed)[1], max(allowed)[1]} <= {length for _, length in seen}


def test_abstract_rows_are_the_packers():
    plan = packing.pack_uniform_rows(
        build_forest([TokenSequence(np.arange(30), 1)]), row_length=64, batch_tokens=128
    )
    [batch] = plan.batches()
    rows, sent = abstract_rows(*batch.shape), stack_batches([PlannedBatch(batch, None)], None)
    there = unpack_rows(jnp.asarray(sent), batch.shape)
    for ours, theirs in zip(jax.tree.leaves(rows), jax.tree.leaves(there), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    one = abstract_batch(*batch.shape)
    assert (one.shape, one.dtype) == (sent.shape, sent.dtype)
    asked = batch.scored
    for got, want in (
        *zip(there, (batch.ids, batch.position, batch.subtree_end), strict=False),
        (there.scored, (asked.query, asked.n_queries, asked.slot, asked.answer, len(batch.edge))),
    ):
        jax.tree.map(np.testing.assert_array_equal, tuple(got), tuple(want))


SPLIT = """
import json
from jaxscore.engine.footprint import measure
from tests.device.configs import llamalike
from tests.engine.test_footprint import model

config = llamalike(width=256, mlp_width=2048, vocab_size=4096, n_heads=8)
found = [measure(model(config, shape), 8, 64) for shape in (None, (1, 2), (1, 8), (4, 2))]
moved = [sorted({part.op for part in one.collectives}) for one in found]
sums = sum(part.bytes for part in found[1].collectives if part.op == "reduce-scatter")
print(json.dumps([[(one.temporary_bytes, one.batch_bytes) for one in found], moved, sums]))
"""


@pytest.mark.slow
def test_a_shard_takes_less():
    command = [sys.executable, "-c", SPLIT]
    done = subprocess.run(command, capture_output=True, text=True, env=with_devices(8))
    assert done.returncode == 0, done.stderr
    ((whole, batch), *shards), moved, sums = json.loads(done.stdout)
    assert all(0 < temporary < whole for temporary, _ in shards)
    scores = 8 * 64 * (4 * 4 + 4 * 1 + 3 * 4)
    # every device has the scores of all four shares of the rows, and its own rows alone
    assert [own for _, own in shards] == [batch, batch, batch + 3 * scores]
    assert ["reduce-scatter" in ops for ops in moved] == [False, True, True, True]
    # attention, MLP and embedding add up what the shards have of each token's hidden state, and
    # each of two shards keeps the sums of its tokens
    assert sums == 3 * 8 * 64 * 256 * 4 // 2


@pytest.mark.parametrize(
    ("reported", "size"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (144.87G) exceeds available HBM (95.74G).",
            int(144.87 * 2**30),
        ),
        ("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Used 512.5M of 16.0M vmem.",
         int(512.5 * 2**20)),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.", None),
        ("INTERNAL: 2.0G of nothing", None),
    ],
)  # fmt: skip
def test_what_a_refusal_names(reported, size):
    named = refused(JaxRuntimeError(reported), 2, 64)
    assert named == (None if size is None else Refused(2, 64, size))


TEXT = """\
HloModule jit_one, is_scheduled=true

%body.7 (arg: (s32[], f32[512])) -> (s32[], f32[512]) {
  %psum.1 = f32[1,4096,896]{2,1,0:T(8,128)S(1)} all-reduce(%x), channel_id=1, to_apply=%add
  %all-reduce.4 = (f32[512,4]{1,0}, s32[512]{0:T(512)}) all-reduce(%x, %y), channel_id=2
  %start = (bf16[8,128]{1,0}, bf16[16,128]{1,0}) all-gather-start(%z), channel_id=3
  %done = bf16[16,128]{1,0} all-gather-done(%start)
  %attention.1 = bf16[512,64]{1,0} custom-call(%psum.1), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(one)/while/body/interval_attention/pallas_call"}
  %attention.2 = bf16[512,64]{1,0} custom-call(%psum.1), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(one)/interval_attention/pallas_call"}
  %whole = bf16[512,64]{1,0:S(1)} custom-call(%done.1, %done.2), custom_call_target="ConcatBitcast"
  %two = f32[512]{0} fusion(%psum.1), kind=kCustom, metadata={op_name="jit(one)/while/body/gather"}
}

%all-reduce-scatter.2 (input.2: f32[4096,896]) -> f32[1120,896] {
  %all-reduce.5 = f32[4480,896]{1,0} all-reduce(%pad.16), channel_id=7, to_apply=%add
  ROOT %dynamic-slice.7 = f32[1120,896]{1,0} dynamic-slice(%all-reduce.5, %index)
}

%fused_computation.1 (part.1: bf16[2,8]) -> bf16[8,8] {
  %all-gather.1 = bf16[8,8] all-gather(%part.1), channel_id=8, frontend_attributes={chain_id="0"}
}

%async_collective_fusion.1 (part.2: bf16[2,8]) -> bf16[8,8] {
  %all-gather.2 = bf16[8,8] all-gather(%part.2), channel_id=8, frontend_attributes={chain_id="0"}
}

ENTRY %main.18 (h.1: f32[512,4096]) -> f32[512] {
  %own = f32[1120,896]{1,0} fusion(%input), kind=kCustom, calls=%all-reduce-scatter.2
  %while.3 = (s32[], f32[512]) while(%tuple), condition=%condition, body=%body.7
  ROOT %last = f32[512]{0} sort(%while.3)
}
"""


class Unreadable:
    """A program of another compiler than JAX expects."""

    def as_text(self):
        raise JaxRuntimeError("INTERNAL: RET_CHECK failure")


def test_a_program_that_jax_cannot_read(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JaxRuntimeError, match="RET_CHECK"):
        text_of(Unreadable())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", {"jax": "0.10.2", "libtpu": "9.9"}.get)
    with pytest.raises(InputError, match=r"libtpu 9\.9 .* pip install 'jax\[tpu\]==0\.10\.2'"):
        text_of(Unreadable())


def test_collectives():
    assert collectives(TEXT) == [
        Collective("all-gather", 2, 16 * 128 * 2 + 8 * 8 * 2),
        Collective("all-reduce", 2, 4 * 4096 * 896 + 4 * 512 * 4 + 4 * 512),
        Collective("reduce-scatter", 1, 4 * 1120 * 896),
    ]
    assert collectives("%x = f32[4]{0} add(%all-reduce.1, %y)") == []


def test_joined_slices():
    assert joined_slices(TEXT) == 1


def test_kernels():
    assert kernels(TEXT) == ["interval_attention"]
    assert kernels(TEXT.replace("pallas_call", "other")) == []


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[]{:T(128)}", 4),
        ("bf16[2,3]{1,0:T(8,128)(2,1)}", 12),
        ("pred[8]{0}", 8),
        ("s4[16]{0}", 8),
        ("(f8e4m3fn[4]{0}, u8[3]{0})", 7),
        ("()", 0),
    ],
)
def test_bytes_of_a_shape(shape, size):
    assert shape_bytes(shape) == size
