"""A random LoRA adapter of the tiny qwen2; `tests.models.weights.test_lora` proves what it does."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.cli.conftest import QWEN


def written(folder: Path, seed: int = 0) -> Path:
    """The folder, made, with an adapter of every query projection in it."""
    folder.mkdir()
    draw = np.random.default_rng(seed)
    halves = {}
    for name, value in load_file(Path(QWEN) / "model.safetensors").items():
        if name.endswith("q_proj.weight"):
            module = "base_model.model." + name.removesuffix(".weight")
            n_out, n_in = value.shape
            halves[module + ".lora_A.weight"] = draw.standard_normal((2, n_in), np.float32)
            halves[module + ".lora_B.weight"] = draw.standard_normal((n_out, 2), np.float32)
    save_file(halves, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "bias": "none"}
    config["base_model_name_or_path"] = "somebody/something"
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
