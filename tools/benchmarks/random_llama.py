"""A llama checkpoint of random weights, with the embedded model's tokenizer, without PyTorch."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

DEMO = Path(__file__).resolve().parents[2] / "jaxscore" / "demo" / "model"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


class Shape(NamedTuple):
    """Sizes; `vocab` is at least the tokenizer's 896. Heads are 32 or 64 wide."""

    vocab: int
    width: int
    layers: int
    heads: int
    mlp: int

    @property
    def parameters(self) -> int:
        """Norms left out."""
        return self.vocab * self.width + self.layers * self.width * (4 * self.width + 3 * self.mlp)


TINY = Shape(896, 64, 2, 2, 128)
REALISTIC = Shape(50257, 512, 8, 8, 1408)  # 51 million


def tensors(shape: Shape) -> dict[str, np.ndarray]:
    """The weights in float32, by Hugging Face names."""
    draw = np.random.default_rng(0)

    def matrix(*sizes: int) -> np.ndarray:
        return draw.normal(0, 0.02, sizes).astype(np.float32)

    width, mlp = shape.width, shape.mlp
    drawn = {
        "model.embed_tokens.weight": matrix(shape.vocab, width),
        "model.norm.weight": np.ones(width, np.float32),
    }
    for k in range(shape.layers):
        layer = f"model.layers.{k}"
        for name in "qkvo":
            drawn[f"{layer}.self_attn.{name}_proj.weight"] = matrix(width, width)
        for name in ("gate", "up"):
            drawn[f"{layer}.mlp.{name}_proj.weight"] = matrix(mlp, width)
        drawn[f"{layer}.mlp.down_proj.weight"] = matrix(width, mlp)
        for name in ("input", "post_attention"):
            drawn[f"{layer}.{name}_layernorm.weight"] = np.ones(width, np.float32)
    return drawn


def config(shape: Shape) -> dict[str, Any]:
    """Its config.json, for 2048 positions."""
    return {
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def write(folder: Path, shape: Shape) -> None:
    """Write the checkpoint."""
    save_file(tensors(shape), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config(shape)), encoding="utf-8")
    for name in TOKENIZER:
        shutil.copy(DEMO / name, folder / name)
