"""Weights as int8: what they stand for is near the original, and is what is computed with."""

import jax
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from jaxscore.errors import InputError
from jaxscore.models.load import load
from jaxscore.models.weights.params import int8_scales, int8_values
from tests.models.checkpoints import (
    assert_agree,
    distance,
    from_folder,
    loaded,
    ragged,
    saved,
    scorer,
    torch_scores,
)

pytestmark = [pytest.mark.numeric, pytest.mark.lines]


def test_values_and_scales():
    draw = np.random.default_rng(0)
    weight = draw.normal(size=(7, 33)).astype(np.float32)
    weight[3] = 0
    weight[4, 2] = -5.0
    scale, values = int8_scales(weight), int8_values(weight)
    assert (values.dtype, scale.dtype) == (np.int8, np.float32)
    assert values.min() >= -127
    assert (values[4, 2], scale[3]) == (-127, 1)
    error = np.abs(values * scale[:, None] - weight)
    assert (error <= scale[:, None] * 0.5001).all()
    assert error.max() > 0
    weight[0, 0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        int8_values(weight)


# What of recurrent layers stays as it is: rates, step sizes, and what selects by the input
STAY = tuple(
    "in_proj_a.weight in_proj_b.weight x_proj.weight dt_proj.weight A_log gate_bias".split()
)
LAST_ROWS_STAY = {"bamba": 8, "nemotron_h": 6, "zamba2": 8}  # heads, and experts


def rounded(kind, name, value):
    """A layer's matrix as its int8 form stands for it."""
    original = weight = value.numpy()
    transposed = ".c_" in name  # gpt2's are [in, out]
    weight = weight.T if transposed else weight
    weight = int8_values(weight) * int8_scales(weight)[:, None]
    if name.endswith(STAY):
        weight = original
    elif name.endswith((".in_proj.weight", ".gate.weight")):
        n = LAST_ROWS_STAY.get(kind, 0)
        weight[len(weight) - n :] = original[len(weight) - n :]
    return torch.from_numpy(np.ascontiguousarray(weight.T if transposed else weight))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "kind",
    "gpt2 llama lfm2 qwen3_5_text bamba nemotron_h mamba recurrent_gemma zamba2".split(),
)
def test_scores_are_those_of_the_rounded_weights(tmp_path, kind):
    """torch with the rounded weights, to the tolerance of any parity."""
    model = saved(tmp_path, kind)
    want = torch_scores(model, ragged())
    stored = load_file(tmp_path / "model.safetensors")
    layers = {
        name: rounded(kind, name, value)
        for name, value in stored.items()
        if value.ndim == 2 and (".h." in name or ".layers." in name)
    }
    assert len(layers) > 5
    near = tmp_path / "near"
    near.mkdir()
    save_file({**stored, **layers}, near / "model.safetensors", {"format": "pt"})
    (near / "config.json").write_bytes((tmp_path / "config.json").read_bytes())
    quantized = load(tmp_path, dtype="float32", implementation="native", quantize="int8")
    kinds = {leaf.dtype for leaf in jax.tree.leaves(quantized.params)}
    assert kinds == {np.dtype(np.int8), np.dtype(np.float32)}
    got = scorer(quantized).score_sequences(ragged())
    assert_agree(got, torch_scores(from_folder(near), ragged()))
    # Of nemotron_h a token changes its experts.
    most = {"gpt2": 0.3, "llama": 0.3, "nemotron_h": 2.0}.get(kind, 0.5)
    assert 1e-3 < distance(got, want) < most


def test_what_cannot_be_quantized(tmp_path):
    saved(tmp_path, "gpt2")
    with pytest.raises(InputError, match="--quantize is for our own decoder"):
        load(tmp_path, implementation="transformers", quantize="int8")
    with pytest.raises(ValueError, match=r"'int4'.*int8"):
        load(tmp_path, quantize="int4")


@pytest.mark.slow
def test_quantized_experts(tmp_path):
    saved(tmp_path, "mixtral")
    exact = scorer(loaded(tmp_path)).score_sequences(ragged())
    own = load(tmp_path, dtype="float32", quantize="int8")
    assert own.params["experts"]["up"]["weight"].dtype == np.int8
    got = scorer(own).score_sequences(ragged())
    pairs = zip(got, exact, strict=True)
    typical = np.median(np.concatenate([np.abs(a.logprob - b.logprob) for a, b in pairs]))
    assert 1e-4 < typical < 0.1  # a token here and there changes its experts


def test_a_weight_that_is_not_finite_is_named(tmp_path):
    model = saved(tmp_path, "llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("inf")
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"layers\.mlp\.up\.weight: a weight is not finite"):
        load(tmp_path, dtype="float32", quantize="int8")
