"""Shapes of published models, as data."""

from pathlib import Path
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models import native

COMMON = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "model_type": "qwen2",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
}
SIZES = {  # as their config.json has them
    "Qwen2.5-0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "Qwen2.5-1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_hidden_layers": 28,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "Qwen2.5-7B": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    },
}
NARROW = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def decoder_config(name: str, *, small: bool = False, **changed: Any) -> DecoderConfig:
    """The decoder of one of SIZES; `small` keeps of it whether its embeddings are tied."""
    raw = COMMON | SIZES[name] | (NARROW if small else {}) | changed
    return native.translate(Path(name), raw)[1]
