"""Writes a checkpoint as a GGUF file, with the layouts of llama.cpp's converter (`conversion/`)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


class Written(NamedTuple):
    """How a family is written.

    Attributes:
        kind: its model type.
        config: attributes over the family's tiny config, such that the file can say them all.
        names: of tensors, beside those of llama.
        keys: metadata from the config, without the architecture's name.
        permuted: rows of queries and keys are moved.
        plus_one: norms have their one added.
    """

    kind: str
    config: dict[str, Any] = {}  # noqa: RUF012
    names: dict[str, str] = {}  # noqa: RUF012
    keys: Callable[[Any], dict[str, Any]] = lambda config: {}
    permuted: bool = False
    plus_one: bool = False


def _gemma_keys(config: Any) -> dict[str, Any]:
    return {
        "attention.sliding_window": config.sliding_window,
    }


def _expert_keys(config: Any) -> dict[str, Any]:
    count = getattr(config, "num_local_experts", None) or config.num_experts
    return {"expert_count": count, "expert_used_count": config.num_experts_per_tok}


ARCHITECTURES = {
    "llama": Written("llama", permuted=True),
    "llama, experts": Written(
        "mixtral",
        names={"block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp"},
        keys=_expert_keys,
        permuted=True,
    ),
    "smollm3": Written(
        "smollm3",
        {"no_rope_layers": None, "no_rope_layer_interval": 4, "num_hidden_layers": 5},
        permuted=True,
    ),
    "granite": Written(
        "granite",
        keys=lambda config: {
            "attention.scale": config.attention_multiplier,
            "embedding_scale": config.embedding_multiplier,
            "residual_scale": config.residual_multiplier,
            "logit_scale": config.logits_scaling,
        },
        permuted=True,
    ),
    "qwen2": Written("qwen2"),
    "qwen3": Written(
        "qwen3",
        names=HEAD_NORMS,
    ),
    "qwen3moe": Written(
        "qwen3_moe",
        {"norm_topk_prob": True},
        HEAD_NORMS | {"mlp.gate": "ffn_gate_inp"},
        lambda config: {
            "expert_feed_forward_length": config.moe_intermediate_size,
            **_expert_keys(config),
        },
    ),
    "gemma2": Written(
        "gemma2",
        {"query_pre_attn_scalar": 12, "head_dim": 12},
        SANDWICH,
        lambda config: {
            "attn_logit_softcapping": config.attn_logit_softcapping,
            "final_logit_softcapping": config.final_logit_softcapping,
            **_gemma_keys(config),
        },
        plus_one=True,
    ),
    "gemma3": Written(
        "gemma3_text",
        {"query_pre_attn_scalar": 12, "head_dim": 12},
        SANDWICH | HEAD_NORMS,
        lambda config: {"attention.sliding_window_pattern": 2, **_gemma_keys(config)},
        plus_one=True,
    ),
    "phi3": Written(
        "phi3",
        names={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
        keys=lambda config: {"attention.sliding_window": config.sliding_window or 0},
    ),
    "gpt-oss": Written(
        "gpt_oss",
        {"swiglu_limit": 7.0},
        {
            "self_attn.sinks": "attn_sinks",
            "mlp.router": "ffn_gate_inp",
            "post_attention_layernorm": "post_attention_norm",
        },
        lambda config: {
            "attention.sliding_window": config.sliding_window,
            "expert_feed_forward_length": config.intermediate_size,
            **_expert_keys(config),
        },
    ),
}


def write(
    path: Path,
    name: str,
    config: Any,
    tensors: Mapping[str, np.ndarray],
    types: Mapping[str, GGMLQuantizationType] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint.

    Args:
        name: of `ARCHITECTURES`.
        config: of transformers.
        tensors: by their names in the checkpoint, float32.
        types: of tensors by their names in the file; the others are F32.
        metadata: further keys, whole.
    """
    family = ARCHITECTURES[name]
    architecture = name.partition(",")[0]
    writer = GGUFWriter(path, architecture)
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        **rope_keys(config),
        **head_keys(config),
        **family.keys(config),
    }
    every = {f"{architecture}.{key}": value for key, value in keys.items()} | dict(metadata or {})
    for key, value in every.items():
        add = {
            bool: writer.add_bool,
            float: writer.add_float32,
            int: writer.add_uint32,
            list: writer.add_array,
            str: writer.add_string,
        }[type(value)]
        add(key, value)
    stored = converted(family, config, tensors) | rope_tensors(config)
    for theirs, values in stored.items():
        kind = (types or {}).get(theirs)
        if kind is None:
            writer.add_tensor(theirs, np.ascontiguousarray(values))
        else:
            writer.add_tensor(theirs, quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def head_keys(config: Any) -> dict[str, Any]:
    """Widths of heads, if the config says them."""
    width = getattr(config, "head_dim", None)
    return (
        {}
        if width is None
        else dict.fromkeys(("attention.key_length", "attention.value_length"), width)
    )


def rope_keys(config: Any) -> dict[str, Any]:
    """Keys of the rotary parameters."""
    rope = config.rope_parameters
    if "full_attention" in rope:
        return {
            "rope.freq_base": float(rope["full_attention"]["rope_theta"]),
            "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
        }
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    found: dict[str, Any] = {
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(width * rope.get("partial_rotary_factor", 1)),
    }
    if rope["rope_type"] in ("linear", "yarn"):
        found |= {
            "rope.scaling.type": rope["rope_type"],
            "rope.scaling.factor": float(rope["factor"]),
        }
    if rope["rope_type"] == "longrope":
        length = rope["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = length
    if rope["rope_type"] == "yarn":
        length = rope["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = length
        found["rope.scaling.yarn_beta_fast"] = float(rope.get("beta_fast") or 32)
        found["rope.scaling.yarn_beta_slow"] = float(rope.get("beta_slow") or 1)
    return found


def rope_tensors(config: Any) -> dict[str, np.ndarray]:
    """Factors of frequencies, which some kinds of scaling store."""
    rope = config.rope_parameters
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{length}.weight": np.array(rope[f"{length}_factor"], np.float32)
            for length in ("long", "short")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    length, factor = rope["original_max_position_embeddings"], rope["factor"]
    factors = []
    for k in range(0, width, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (k / width)
        if wavelength < length / high:
            factors.append(1.0)
        elif wavelength > length / low:
            factors.append(factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def converted(
    family: Written, config: Any, tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Tensors by the file's names, in its layouts."""
    found: dict[str, np.ndarray] = {}
    experts: dict[str, dict[int, np.ndarray]] = {}
    names = LLAMA | family.names
    for theirs, values in tensors.items():
        stem, _, kind = theirs.rpartition(".")
        if kind not in ("weight", "bias"):
            stem, kind = theirs, "weight"
        layer, part = "", stem
        if stem.startswith("model.layers."):
            number, part = stem.removeprefix("model.layers.").split(".", 1)
            layer = f"blk.{number}."
        if family.kind == "gpt_oss" and ".experts." in theirs:
            found |= gpt_oss_experts(layer, theirs.rpartition(".")[2], values)
            continue
        if ".experts." in part:
            number, own = part.split(".experts.")[1].split(".")
            place = {"w1": "gate", "w3": "up", "w2": "down"}.get(own, own.removesuffix("_proj"))
            experts.setdefault(f"{layer}ffn_{place}_exps.weight", {})[int(number)] = values
            continue
        if family.permuted and part in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = (
                config.num_attention_heads
                if part.endswith("q_proj")
                else config.num_key_value_heads
            )
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if family.plus_one and part.endswith("norm"):
            values = values + np.float32(1)
        found[f"{layer}{names[part]}.{kind}"] = values
    for name, stack in experts.items():
        found[name] = np.stack([stack[number] for number in range(len(stack))])
    return found


def gpt_oss_experts(layer: str, name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Experts of gpt-oss [E, in, out] as [E, out, in]; gate and up alternate in one tensor."""
    if name == "down_proj":
        return {f"{layer}ffn_down_exps.weight": values.swapaxes(1, 2)}
    if name == "down_proj_bias":
        return {f"{layer}ffn_down_exps.bias": values}
    gate, up = values[..., ::2], values[..., 1::2]
    kind = "bias" if name.endswith("bias") else "weight"
    if kind == "weight":
        gate, up = gate.swapaxes(1, 2), up.swapaxes(1, 2)
    return {f"{layer}ffn_gate_exps.{kind}": gate, f"{layer}ffn_up_exps.{kind}": up}
