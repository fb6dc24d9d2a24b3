"""Tiny checkpoints in the layouts that models are released in, and torch's model on their numbers.

Names of tensors are those of the files on the hub; what a text does not need is random.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from tests.models.checkpoints import from_folder, saved
from tests.models.weights.quantization.checkpoints import rewritten
from tests.models.weights.quantization.packers import fp8, mxfp4

WEIGHTS, CONFIG = "model.safetensors", "config.json"
Tensors = dict[str, np.ndarray]
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}


def changed(folder: Path, change: Callable[[Tensors], Tensors], **attributes: Any) -> None:
    """The folder's checkpoint with other tensors, and attributes added to its config."""
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)
    raw = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    (folder / CONFIG).write_text(json.dumps(raw | attributes), encoding="utf-8")


def plain(folder: Path, source: Path, exact: Mapping[str, np.ndarray]) -> torch.nn.Module:
    """Torch's model of a checkpoint with some tensors replaced, written to the folder."""
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_bytes((source / CONFIG).read_bytes())
    tensors = load_file(source / WEIGHTS)
    assert set(exact) <= set(tensors)
    kept = {name: np.ascontiguousarray(exact.get(name, one)) for name, one in tensors.items()}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})
    return from_folder(folder)


def gpt_oss(folder: Path) -> tuple[Path, torch.nn.Module]:
    """Experts as blocks of 4-bit floats; the checkpoint with the same numbers plain, and torch's
    model."""
    whole, numbers = folder / "whole", folder / "plain"
    saved(whole, "gpt_oss", hidden_size=64, intermediate_size=32, num_local_experts=6)
    draw = np.random.default_rng(6)
    exact: Tensors = {}

    def packed(tensors: Tensors) -> Tensors:
        out = dict(tensors)
        for name, value in tensors.items():
            if name.endswith("_proj") and ".experts." in name:
                n_experts, n_in, n_out = value.shape
                blocks, scales, numbers = mxfp4(draw, n_experts, n_out, n_in)
                del out[name]
                out[f"{name}_blocks"], out[f"{name}_scales"] = blocks, scales - 5
                exact[name] = numbers / 2**5
        return out

    tensors = load_file(whole / WEIGHTS)
    stored = packed(tensors)
    model = plain(numbers, whole, exact)
    changed(whole, lambda _: stored, quantization_config=MXFP4)
    return numbers, model


def deepseek_v3(folder: Path) -> tuple[Path, torch.nn.Module]:
    """Matrices as 8-bit floats in blocks, and a layer that predicts a second token."""
    whole, numbers = folder / "whole", folder / "plain"
    saved(whole, "deepseek_v3")
    source = folder / "source"
    plain(source, whole, {})
    changed(whole, lambda tensors: tensors | next_token_layer(tensors, 3))
    exact = rewritten(whole, "fp8", of_fp8)
    own = {name: value for name, value in exact.items() if "layers.3." not in name}
    return numbers, plain(numbers, source, own)


def of_fp8(name: str, array: np.ndarray) -> bool:
    """DeepSeek keeps the choice of experts and the product of a second token plain."""
    kept = ("gate.weight", "eh_proj.weight", "embed_tokens.weight", "head.weight")
    return array.ndim == 2 and ".layers." in name and not name.endswith(kept)


def fp8_static(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Layers' matrices as 8-bit floats with one scale each, as Ministral 3 and Devstral 2 have
    them; the tensors, and the numbers that the changed ones stand for."""
    out, exact = dict(tensors), {}
    for name, value in tensors.items():
        if value.ndim == 2 and name.endswith("_proj.weight") and "language_model" in name:
            module = name.removesuffix(".weight")
            out[name], scales, exact[name] = fp8(value, None)
            out[f"{module}.weight_scale_inv"] = scales.reshape(())
            out[f"{module}.activation_scale"] = np.ones((), np.float32)
    return out, exact


def next_token_layer(tensors: Tensors, layer: int) -> Tensors:
    """A layer behind the last one, with what DeepSeek and GLM have in it besides."""
    draw, last = np.random.default_rng(7), f"model.layers.{layer - 1}."
    own, width = f"model.layers.{layer}.", tensors["model.norm.weight"].size
    shapes = {name: value.shape for name, value in tensors.items() if name.startswith(last)}
    found = {own + name.removeprefix(last): shape for name, shape in shapes.items()}
    found[own + "eh_proj.weight"] = (width, 2 * width)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        found[f"{own}{name}.weight"] = (width,)
    for name in ("shared_head.head", "embed_tokens"):
        found[f"{own}{name}.weight"] = tensors["model.embed_tokens.weight"].shape
    return {name: draw.normal(size=shape).astype(np.float32) for name, shape in found.items()}


def ernies_next_token_layer(tensors: Tensors) -> Tensors:
    """What ERNIE 4.5's files have beside the layers."""
    draw, width = np.random.default_rng(7), tensors["model.norm.weight"].size
    last = "model.layers.0."
    shapes = {
        "model.mtp_block.0." + name.removeprefix(last): value.shape
        for name, value in tensors.items()
        if name.startswith(last)
    }
    shapes["model.mtp_emb_norm.0.weight"] = shapes["model.mtp_hidden_norm.0.weight"] = (width,)
    shapes["model.mtp_linear_proj.0.weight"] = (width, 2 * width)
    return {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
