"""What a tensor is stored as is taken for what it is, or refused by its name."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import load_file, save_file

from jaxscore.errors import InputError
from tests.models.checkpoints import assert_agree, loaded, ragged, saved, scorer, torch_scores
from tests.releases import HAS_FLAX_CLASSES, native_and_transformers

WEIGHT = "model.layers.1.mlp.up_proj.weight"
BITS = {
    "F8_E4M3FNUZ": 8, "I16": 16, "U16": 16, "U32": 32, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6,
    "F6_E3M2": 6, "Q4_K": 4, "bf16": 16,
}  # fmt: skip
OF_METHODS = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8")  # of quantized checkpoints
INTEGERS = {"U8": np.uint8, "I32": np.int32, "I64": np.int64, "BOOL": np.bool_}
FLOATS = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}


def stored_as(folder, name, kind, bits):
    """The file with one tensor's bytes and type replaced, the others as they were."""
    file = folder / "model.safetensors"
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, old = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    data = b""
    for other, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = entry["data_offsets"]
        own = old[start:end]
        if other == name:
            own = bytes(int(np.prod(entry["shape"])) * bits // 8)
            entry["dtype"] = kind
        entry["data_offsets"] = [len(data), len(data) + len(own)]
        data += own
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return file


def refusal(folder, implementation="native"):
    with pytest.raises(InputError) as problem:
        loaded(folder, implementation=implementation)
    return str(problem.value)


@pytest.mark.parametrize("kind", BITS)
def test_a_type_that_we_cannot_represent(checkpoint, kind):
    folder = checkpoint("llama")
    file = stored_as(folder, WEIGHT, kind, BITS[kind])
    said = refusal(folder)
    assert said.startswith(f"{file}: tensor {WEIGHT} is stored as {kind}, which is not handled")
    assert said.endswith("give the checkpoint that is not quantized")
    if HAS_FLAX_CLASSES:
        assert refusal(folder, "transformers") == said


@pytest.mark.parametrize("kind", OF_METHODS)
def test_a_type_whose_meaning_a_method_decides(checkpoint, kind):
    """The config of this checkpoint names none."""
    folder = checkpoint("llama")
    file = stored_as(folder, WEIGHT, kind, 8)
    said = refusal(folder)
    bare = WEIGHT.removeprefix("model.")
    assert said.startswith(f"{file}: tensor {bare} is stored as {kind}, expected F64, F32, F16 or")
    if HAS_FLAX_CLASSES:
        assert f"tensor {WEIGHT} is stored as {kind}, " in refusal(folder, "transformers")


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "int8", "int16", "complex64"])
def test_files_as_torch_writes_them(checkpoint, kind):
    folder = checkpoint("llama")
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors[WEIGHT] = tensors[WEIGHT].to(getattr(torch, kind))
    safetensors.torch.save_file(tensors, file)
    said = refusal(folder)
    assert said.startswith(f"{file}: tensor ")
    assert f"{WEIGHT.removeprefix('model.')} is stored as " in said


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("name", [WEIGHT, "model.norm.weight"])
def test_integers_are_no_weights(checkpoint, kind, name):
    """They can be represented, and what they mean a quantization decides."""
    folder = checkpoint("llama")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {name: tensors[name].astype(INTEGERS[kind])}, file)
    said = refusal(folder)
    assert said.startswith(f"{file}: tensor {name.removeprefix('model.')} is stored as {kind}, ")
    if HAS_FLAX_CLASSES:
        assert f"tensor {name} is stored as {kind}, " in refusal(folder, "transformers")


@pytest.mark.parametrize("kind", INTEGERS)
def test_a_mask_may_be_of_integers(checkpoint, kind):
    """It is no weight, and nobody reads it."""
    folder = checkpoint("gpt2")
    file = folder / "model.safetensors"
    mask = np.tril(np.ones((1, 1, 48, 48))).astype(INTEGERS[kind])
    save_file(load_file(file) | {"transformer.h.0.attn.bias": mask}, file)
    assert loaded(folder).vocab_size == 211


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("kind", FLOATS)
@native_and_transformers
def test_floats_are_what_torch_reads_in_them(tmp_path, kind, implementation):
    """All of them stored so, and torch's model widened to float32."""
    model = saved(tmp_path, "llama")
    file = tmp_path / "model.safetensors"
    tensors = {name: value.astype(FLOATS[kind]) for name, value in load_file(file).items()}
    save_file(tensors, file)
    model.load_state_dict(
        {name: value.float() for name, value in safetensors.torch.load_file(file).items()}
    )
    found = scorer(loaded(tmp_path, implementation=implementation)).score_sequences(ragged())
    assert_agree(found, torch_scores(model, ragged()))
