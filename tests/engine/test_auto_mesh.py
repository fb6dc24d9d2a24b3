"""The mesh that `--mesh auto` takes for published models, without weights."""

from pathlib import Path

import pytest

from jaxscore.device.mesh_shape import MeshShape
from jaxscore.engine.auto_mesh import MOST, auto_mesh, mesh_estimates, rates_of
from jaxscore.errors import InputError
from jaxscore.models import native
from jaxscore.models.costs import gathered_bytes
from jaxscore.models.weights.params import shapes_of
from tests.device.configs import llamalike
from tests.models.test_large_shapes import MODELS

V5E, V5P, H100 = 1575 * 2**30 // 100, 95 * 2**30, 72 * 10**9  # bytes that programs may use


def estimates(name, n_devices, memory, kind, **room):
    _, config = native.translate(Path(name), MODELS[name].raw)
    shapes = shapes_of(config, native.NUMPY_DTYPES["bfloat16"])
    return mesh_estimates(shapes, config, n_devices, memory, rates_of(kind), **room)


@pytest.mark.parametrize(
    ("name", "n_devices", "memory", "kind", "mesh"),
    [
        ("Llama-3.1-8B", 4, V5E, "TPU v5 lite", "data=4,model=1"),
        ("Llama-3.1-8B", 4, 15 * 2**30, "TPU v5 lite", "fsdp=4,model=1"),  # else room for 50 MB
        ("Llama-3.1-8B", 8, H100, "NVIDIA H100 80GB HBM3", "data=8,model=1"),
        ("Llama-3.1-70B", 16, V5E, "TPU v5 lite", "fsdp=8,model=2"),  # otherwise model=16
        ("Qwen3-30B-A3B", 4, V5P, "TPU v5", "data=4,model=1"),
        ("Qwen3-30B-A3B", 8, V5E, "TPU v5 lite", "data=2,model=4"),  # room for 1.5 GB
    ],
)
def test_the_fastest_mesh_that_fits(name, n_devices, memory, kind, mesh):
    found = estimates(name, n_devices, memory, kind)
    assert str(auto_mesh(found, memory)) == mesh


@pytest.mark.parametrize("case", [{"generates": True}, {"spans_hosts": True}], ids=str)
def test_weights_are_split_over_data_if_nothing_else_fits(case):
    name, n_devices, kind = "Llama-3.1-70B", 16, "TPU v5 lite"
    assert str(auto_mesh(estimates(name, n_devices, V5E, kind, **case), V5E)) == "data=1,model=16"
    least = 114 * 10**8  # 16 shards have 11.3 GB of weights, since key heads are whole
    assert auto_mesh(estimates(name, n_devices, least, kind, **case), least).fsdp


def test_all_embeddings_are_gathered_at_once():
    config = llamalike(
        embedding_per_layer_width=64, embedding_per_layer_rows=400, vocab_size=200, mlp_gated=True
    )
    shapes = shapes_of(config, native.NUMPY_DTYPES["float32"])
    embed = shapes["embed"]
    tables = embed["token"], embed["per_layer"]["token"], embed["per_layer_in"]["weight"]
    received, most = gathered_bytes(shapes, config, MeshShape(4, 1, fsdp=True))
    assert most == sum(4 * table.size for table in tables)
    assert received > 0.75 * most
    assert gathered_bytes(shapes, config, MeshShape(4, 1)) == (0, 0)


def test_a_mesh_has_room_for_the_texts():
    found = estimates("Llama-3.1-8B", 4, V5E, "TPU v5 lite", least=8192)
    assert [mesh.batch_tokens for mesh in found] == [0, MOST, MOST, MOST, MOST]
    assert auto_mesh(found, V5E).fsdp


def test_generated_text_needs_more_room():
    found = estimates("Llama-3.1-8B", 4, V5E, "TPU v5 lite", generates=True)
    assert auto_mesh(found, V5E).model == 2


def test_a_mesh_whose_batches_read_the_weights_too_often_is_not_taken():
    slow = rates_of("TPU v5 lite")._replace(memory=2e10)
    _, config = native.translate(Path("8B"), MODELS["Llama-3.1-8B"].raw)
    shapes = shapes_of(config, native.NUMPY_DTYPES["bfloat16"])
    memory = 168 * 10**8  # 0.74 GB beside the weights
    found = mesh_estimates(shapes, config, 4, memory, slow)
    assert 0 < found[0].batch_tokens < found[1].batch_tokens
    assert auto_mesh(found, memory) != found[0].mesh


def test_no_mesh_fits():
    found = estimates("Llama-3.1-8B", 4, 2**30, "TPU v5 lite")
    with pytest.raises(InputError, match=r"no mesh of 4 devices fits 1\.07 GB per device"):
        auto_mesh(found, 2**30)
