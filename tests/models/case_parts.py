"""What the cases of the families are made of."""

from typing import Any, NamedTuple

VOCABULARY = 211  # a prime: no block or shard divides it
POSITIONS = 48  # a row of 64 is longer than the model

GPT = {"vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": 32, "n_layer": 2, "n_head": 4}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
}
GATED = {**SIZES, "intermediate_size": 56, "num_key_value_heads": 2}
OWN_HEADS = {**GATED, "head_dim": 12}
MIXTURE = {"moe_intermediate_size": 24, "num_experts": 5, "num_experts_per_tok": 2}


class Case(NamedTuple):
    """A config over a family's base, and what in it torch answers to, apart by apart."""

    kind: str
    config: dict[str, Any]
    without: tuple[str | dict[str, Any], ...] = ()


def case(kind: str, *without: str | dict[str, Any], **config: Any) -> Case:
    """One more line of `CASES`; a string of `without` may name several attributes."""
    apart = [one for some in without for one in (some.split() if isinstance(some, str) else [some])]
    return Case(kind, config, tuple(apart))


LINEAR = {"rope_type": "linear", "factor": 2.5}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16}
# Few channels and a short length leave no ramp at the usual turns; here it is two channels wide.
SLOW_YARN = YARN | {"beta_fast": 2.0, "beta_slow": 0.25}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.2, 1.5, 2.0],
    "long_factor": [1.5, 2.0, 4.0, 8.0],
}


def scaled(values: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rope_scaling": values | more}


WINDOW = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
SLIDING, FULL = "sliding_attention", "full_attention"
LLAMALIKE = {"rms_norm_eps": 0.1, "hidden_act": "gelu", "rope_theta": 300.0}
LLAMALIKE_NAMES = "rms_norm_eps hidden_act rope_theta"

# Why an attribute needs no case
TRAINING = "for training"
NOT_READ = "torch's class does not read it"
WINDOWED = "of sliding windows, which are refused"
