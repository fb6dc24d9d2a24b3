"""Writes a checkpoint as a GGUF file, with the layouts of llama.cpp's converter (`conversion/`).

Names of tensors are those of the package `gguf`, which is the converter's.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import quantize

SLIDING = "sliding_attention"
# Keys that most converters write, and attributes of the config that they are from
KEYS = {
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": (
        "layer_norm_eps",
        "layer_norm_epsilon",
        "norm_epsilon",
        "norm_eps",
    ),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "expert_used_count": ("num_experts_per_tok", "top_k_experts", "moe_k"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
}
Stored = dict[str, np.ndarray]
Change = Callable[[Any, str, np.ndarray], Stored | None]


class Written(NamedTuple):
    """How a family is written.

    Attributes:
        kind: its model type.
        config: attributes over the family's tiny config, such that the file can say them all.
        keys: metadata from the config, without the architecture's name; None leaves one out.
        change: a tensor's names and values in the file, given the config and its name in a layer;
            None for the usual ones.
    """

    kind: str
    config: dict[str, Any] = {}  # noqa: RUF012
    keys: Callable[[Any], dict[str, Any]] = lambda config: {}
    change: Change = lambda config, name, values: None


def permuted(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Rows of queries and keys, from halves to neighbours."""
    found = re.fullmatch(r"(?:self_attn|mixer)\.([qk])_proj\.(weight|bias)", name)
    if found is None:
        return None
    heads = config.num_attention_heads if found[1] == "q" else config.num_key_value_heads
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return {f"attn_{found[1]}.{found[2]}": halves.swapaxes(1, 2).reshape(values.shape)}


def plus_one(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Norms with their one."""
    return {"": values + np.float32(1)} if name.endswith("norm.weight") else None


def ungrouped(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Queries, keys and values of all heads, one after the other."""
    if ".query_key_value." not in name:
        return None
    heads = config.num_attention_heads
    keys = _falcon_heads(config) if config.model_type == "falcon" else heads
    rows = values.reshape(keys, heads // keys + 2, -1, *values.shape[1:])
    parts = [rows[:, :-2], rows[:, -2:-1], rows[:, -1:]]
    return {"": np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])}


def _falcon_heads(config: Any) -> int:
    return config.num_kv_heads if config.new_decoder_architecture else 1


def transposed(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Matrices of GPT-2."""
    return {"": values.T} if values.ndim == 2 and ".c_" in name else None


def granite_experts(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Gate and up of granitemoe, one behind the other."""
    if not name.endswith("input_linear.weight"):
        return permuted(config, name, values)
    gate, up = np.split(values, 2, axis=1)
    return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}


def llama4_experts(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Experts [E, in, out] as [E, out, in]."""
    if ".experts." not in name:
        return None
    turned = values.swapaxes(1, 2)
    if name.endswith("down_proj"):
        return {"ffn_down_exps.weight": turned}
    gate, up = np.split(turned, 2, axis=1)
    return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}


def gpt_oss_experts(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Experts of gpt-oss [E, in, out] as [E, out, in]; gate and up alternate in one tensor."""
    if ".experts." not in name:
        return None
    kind = "bias" if name.endswith("bias") else "weight"
    if "down_proj" in name:
        return {f"ffn_down_exps.{kind}": values if kind == "bias" else values.swapaxes(1, 2)}
    gate, up = values[..., ::2], values[..., 1::2]
    if kind == "weight":
        gate, up = gate.swapaxes(1, 2), up.swapaxes(1, 2)
    return {f"ffn_gate_exps.{kind}": gate, f"ffn_up_exps.{kind}": up}


def absorbed(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Latent keys, transposed per head, and values."""
    if not name.endswith("kv_b_proj.weight"):
        return None
    rows = values.reshape(config.num_attention_heads, -1, values.shape[1])
    n = config.qk_nope_head_dim
    return {"attn_k_b.weight": rows[:, :n].swapaxes(1, 2), "attn_v_b.weight": rows[:, n:]}


def gemma4_tensors(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Scales of gemma4's router."""
    special = {
        "layer_scalar": "layer_output_scale.weight",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
    }
    return {special[name]: values} if name in special else None


def lfm2_tensors(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Taps of short convolutions without their axis of one, and the router's correction."""
    if name == "conv.conv.weight":
        return {"shortconv.conv.weight": values.squeeze(1)}
    return {"exp_probs_b.bias": values} if name.endswith("expert_bias") else None


def delta_tensors(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Tensors of qwen3next, whose rows of a projection are of each head of keys."""
    if name.endswith("A_log"):
        return {"ssm_a": -np.exp(values)}
    if name.endswith("dt_bias"):
        return {"ssm_dt.bias": values}
    if name.endswith("conv1d.weight"):
        return {"ssm_conv1d.weight": values.squeeze()}
    if name.endswith("shared_expert_gate.weight"):
        return {"ffn_gate_inp_shexp.weight": values.reshape(-1)}
    if name.endswith("in_proj_qkvz.weight"):
        groups = config.linear_num_key_heads
        inner = config.linear_num_value_heads // groups * config.linear_value_head_dim
        ends = np.cumsum([config.linear_key_head_dim] * 2 + [inner])
        rows = np.split(values.reshape(groups, -1, values.shape[1]), ends, axis=1)
        flat = [part.reshape(-1, values.shape[1]) for part in rows]
        return {"attn_qkv.weight": np.concatenate(flat[:3]), "attn_gate.weight": flat[3]}
    return None if "linear_attn" in name else plus_one(config, name, values)


def tiled_delta_tensors(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Tensors of qwen35, whose heads of values are by their number within a head of keys."""
    groups, heads = config.linear_num_key_heads, config.linear_num_value_heads

    def tile(rows: np.ndarray, width: int) -> np.ndarray:
        index = np.arange(heads * width).reshape(groups, heads // groups, width)
        return rows[index.swapaxes(0, 1).reshape(-1)]

    width = config.linear_value_head_dim
    n_rows = 2 * groups * config.linear_key_head_dim
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        values = np.concatenate([values[:n_rows], tile(values[n_rows:], width)])
    elif name.endswith("linear_attn.out_proj.weight"):
        values = tile(values.T, width).T
    elif name.endswith("in_proj_z.weight"):
        values = tile(values, width)
    elif name.endswith(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
        values = tile(values, 1)
    changed = delta_tensors(config, name, values)
    return {"": values} if changed is None else changed


def mamba_tensors(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Tensors of Mamba-2 mixers."""
    if name.endswith("A_log"):
        return {"ssm_a": -np.exp(values[:, None])}
    if name.endswith((".D", ".dt_bias")):
        return {"ssm_d": values[:, None]} if name[-1] == "D" else {"ssm_dt.bias": values}
    if name.endswith("conv1d.weight"):
        return {"ssm_conv1d.weight": values.squeeze()}
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        groups = getattr(config, "n_groups", None) or config.mamba_n_groups
        return {"ssm_norm.weight": values.reshape(groups, -1)}
    if name == "pre_ff_layernorm.weight":  # which the converter names without a kind
        return {"ffn_norm": values}
    if config.model_type == "granitemoehybrid":
        return granite_hybrid_tensors(config, name, values)
    return None if config.model_type == "falcon_h1" else permuted(config, name, values)


def scan_tensors(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Tensors of Mamba-1 mixers, whose rates and skips have names without a kind."""
    if name.endswith("A_log"):
        return {"ssm_a": -np.exp(values)}
    if name.endswith(".D"):
        return {"ssm_d": values}
    return {"ssm_conv1d.weight": values.squeeze(1)} if name.endswith("conv1d.weight") else None


def falcon_h1_tensors(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Weights with the multipliers of what they read or give."""
    inner, shared = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
    rows = [inner, inner, shared, shared, config.mamba_n_heads]
    of = {
        "feed_forward.gate_proj": config.mlp_multipliers[0],
        "feed_forward.down_proj": config.mlp_multipliers[1],
        "self_attn.q_proj": config.attention_in_multiplier,
        "self_attn.k_proj": config.attention_in_multiplier * config.key_multiplier,
        "self_attn.v_proj": config.attention_in_multiplier,
        "self_attn.o_proj": config.attention_out_multiplier,
        "mamba.in_proj": config.ssm_in_multiplier
        * np.repeat(config.ssm_multipliers, rows)[:, None],
        "mamba.out_proj": config.ssm_out_multiplier,
        "model.embed_tokens": config.embedding_multiplier,
        "lm_head": config.lm_head_multiplier,
    }
    factor = of.get(name.removesuffix(".weight"))
    if factor is not None:
        return {"": (values * factor).astype(np.float32)}
    return mamba_tensors(config, name, values)


def granite_hybrid_tensors(config: Any, name: str, values: np.ndarray) -> Stored | None:
    """Experts, and a shared MLP that stands alone without experts."""
    suffix = "_shexp" if config.num_local_experts else ""
    if name == "shared_mlp.input_linear.weight":
        gate, up = np.split(values, 2)
        return {f"ffn_gate{suffix}.weight": gate, f"ffn_up{suffix}.weight": up}
    if name == "shared_mlp.output_linear.weight":
        return {f"ffn_down{suffix}.weight": values}
    return granite_experts(config, name, values)


def _mamba(config: Any) -> dict[str, Any]:
    """Keys of Mamba-2 mixers."""

    def of(*names: str) -> Any:
        return next(getattr(config, name) for name in names if hasattr(config, name))

    heads = of("mamba_n_heads", "mamba_num_heads", "num_heads")
    return {
        "ssm.conv_kernel": of("mamba_d_conv", "conv_kernel"),
        "ssm.state_size": of("mamba_d_state", "ssm_state_size", "state_size"),
        "ssm.group_count": of("mamba_n_groups", "n_groups"),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * of("mamba_d_head", "mamba_head_dim", "head_dim"),
        "attention.layer_norm_rms_epsilon": float(of("rms_norm_eps", "layer_norm_epsilon")),
        "attention.layer_norm_epsilon": None,
        "vocab_size": config.vocab_size,
    }


def _scan(config: Any) -> dict[str, Any]:
    """Keys of Mamba-1 mixers, of which a jamba names the sizes otherwise."""
    is_jamba = config.model_type == "jamba"
    sizes = {
        "ssm.conv_kernel": config.mamba_d_conv if is_jamba else config.conv_kernel,
        "ssm.inner_size": (
            config.mamba_expand * config.hidden_size if is_jamba else config.intermediate_size
        ),
        "ssm.state_size": config.mamba_d_state if is_jamba else config.state_size,
        "ssm.time_step_rank": config.mamba_dt_rank if is_jamba else config.time_step_rank,
    }
    if is_jamba:
        heads, types = config.num_key_value_heads, config.layers_block_type
        of_layers = [heads * (kind in ("attention", "full_attention")) for kind in types]
        return {**sizes, "attention.head_count_kv": of_layers}
    return {
        **sizes,
        "attention.head_count": 0,
        "attention.layer_norm_epsilon": None,
        "attention.layer_norm_rms_epsilon": float(config.layer_norm_epsilon),
        "context_length": 2**20,
        "feed_forward_length": 0,
        "ssm.dt_b_c_rms": config.model_type == "falcon_mamba",
    }


def _mamba2(config: Any) -> dict[str, Any]:
    nothing = {"attention.key_length": None, "attention.value_length": None}
    zeros = dict.fromkeys(("attention.head_count", "feed_forward_length"), 0)
    return {**_mamba(config), **nothing, **zeros, "context_length": 2**20, "vocab_size": None}


def _granite_hybrid(config: Any) -> dict[str, Any]:
    heads = config.num_key_value_heads
    is_full = [kind == "full_attention" for kind in config.layer_types]
    return {
        **_multipliers(config),
        **_mamba(config),
        "attention.head_count_kv": [heads * own for own in is_full],
        "rope.scaling.finetuned": config.position_embedding_type == "rope",
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
        "expert_count": config.num_local_experts or None,
        "expert_used_count": config.num_experts_per_tok if config.num_local_experts else None,
    }


def _nemotron_h(config: Any) -> dict[str, Any]:
    types, is_moe = config.layers_block_type, "moe" in config.layers_block_type
    heads, width = config.num_key_value_heads, config.moe_intermediate_size
    plain = 0 if is_moe else config.intermediate_size
    widths = {"moe": width, "mlp": plain}
    mixture = {
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "moe_latent_size": config.moe_latent_size,
    }
    names = ("expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count")
    return {
        **_mamba(config),
        "attention.head_count_kv": [heads * (kind == "full_attention") for kind in types],
        "attention.layer_norm_epsilon": float(config.layer_norm_epsilon),
        "feed_forward_length": [widths.get(kind, 0) for kind in types],
        "rope.scaling.finetuned": False,
        "rope.dimension_count": config.head_dim,
        **(mixture if is_moe else dict.fromkeys(names)),
    }


def _lfm2(config: Any) -> dict[str, Any]:
    heads = config.num_key_value_heads
    is_moe = config.model_type == "lfm2_moe"
    return {
        "attention.head_count_kv": [heads * (kind != "conv") for kind in config.layer_types],
        "attention.layer_norm_epsilon": None,
        "shortconv.l_cache": config.conv_L_cache,
        "vocab_size": config.vocab_size,
        **(
            {
                **_expert_width(config),
                "leading_dense_block_count": config.num_dense_layers,
                "expert_gating_func": 2,
            }
            if is_moe
            else {}
        ),
    }


def _delta(config: Any) -> dict[str, Any]:
    is_moe = hasattr(config, "moe_intermediate_size")
    types = [kind == "linear_attention" for kind in config.layer_types]
    return {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        "attention.recurrent_layers": types,
        "full_attention_interval": 4,
        **(
            {
                **_expert_width(config),
                "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
            }
            if is_moe
            else {}
        ),
    }


def _tiled_delta(config: Any) -> dict[str, Any]:
    half = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1)) // 2
    # Channels are of time, height and width in turn; others are not rotated by llama.cpp.
    sections = [(half + 2) // 3, (half + 1) // 3, half // 3, 0]
    return {**_delta(config), "rope.dimension_sections": sections}


def _expert_width(config: Any) -> dict[str, Any]:
    return {"expert_feed_forward_length": config.moe_intermediate_size}


def _window(config: Any) -> dict[str, Any]:
    return {"attention.sliding_window": config.sliding_window or 0}


def _window_layers(config: Any) -> dict[str, Any]:
    types = [kind == SLIDING for kind in config.layer_types]
    if config.sliding_window is None:
        return {}
    return {**_window(config), "attention.sliding_window_pattern": types}


def _multipliers(config: Any) -> dict[str, Any]:
    return {
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


def _shared(config: Any) -> dict[str, Any]:
    return {
        **_expert_width(config),
        "expert_shared_count": config.n_shared_experts,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_weights_scale": config.routed_scaling_factor,
    }


def _sigmoid(config: Any) -> dict[str, Any]:
    return {
        **_shared(config),
        "expert_gating_func": 2,
        "expert_weights_norm": config.norm_topk_prob,
    }


def _deepseek(config: Any) -> dict[str, Any]:
    log = config.rope_parameters.get("mscale_all_dim")
    v3 = config.model_type == "deepseek_v3"
    return {
        **_shared(config),
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": config.kv_lora_rank,
        **({"attention.q_lora_rank": config.q_lora_rank} if config.q_lora_rank else {}),
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": config.qk_rope_head_dim,
        "expert_gating_func": 2 if v3 else 1,
        **({"expert_weights_norm": True} if v3 and config.norm_topk_prob else {}),
        **({"rope.scaling.yarn_log_multiplier": 0.1 * log} if log else {}),
    }


def _old_deepseek(config: Any) -> dict[str, Any]:
    """As before the latent keys were absorbed."""
    return {
        **_deepseek(config),
        "attention.head_count_kv": config.num_attention_heads,
        "attention.key_length": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length": config.v_head_dim,
        "attention.key_length_mla": None,
        "attention.value_length_mla": None,
    }


def _full_heads(config: Any) -> dict[str, int]:
    return config.per_layer_config[str(config.layer_types.index("full_attention"))]


def _gemma4(config: Any) -> dict[str, Any]:
    n, shared = config.num_hidden_layers, config.num_kv_shared_layers
    full = _full_heads(config)
    heads = full.get("num_key_value_heads", config.num_key_value_heads)
    keys = {
        **_window_layers(config),
        "attention.key_length": full["head_dim"],
        "attention.value_length": full["head_dim"],
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "attention.shared_kv_layers": shared,
        "attention.head_count_kv": [
            config.num_key_value_heads if kind == SLIDING else heads for kind in config.layer_types
        ],
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input or 0,
        "rope.dimension_count": full["head_dim"],
        "rope.dimension_count_swa": config.head_dim,
        "final_logit_softcapping": config.final_logit_softcapping,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }
    if config.use_double_wide_mlp:
        width = config.intermediate_size
        keys["feed_forward_length"] = [width] * (n - shared) + [2 * width] * shared
    return keys


def _streams(config: Any) -> dict[str, Any]:
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    third = width // 6
    return {"rope.dimension_sections": [width // 2 - 2 * third, third, third, 0]}


def _of_images(config: Any) -> dict[str, Any]:
    return {**_streams(config), "n_deepstack_layers": 3}


NO_THETA = {"rope.freq_base": None}
FOUR_LAYERS = {"num_hidden_layers": 4}
ONE_GROUP = {"n_group": 1, "topk_group": 1}

ARCHITECTURES = {
    "llama": Written("llama", change=permuted),
    "llama, experts": Written("mixtral", change=permuted),
    "smollm3": Written(
        "smollm3",
        {"no_rope_layers": None, "no_rope_layer_interval": 4, "num_hidden_layers": 5},
        change=permuted,
    ),
    "granite": Written("granite", keys=_multipliers, change=permuted),
    "qwen2": Written("qwen2"),
    "qwen3": Written("qwen3"),
    "qwen3moe": Written("qwen3_moe", {"norm_topk_prob": True}, _expert_width),
    "gemma2": Written(
        "gemma2",
        {"query_pre_attn_scalar": 12, "head_dim": 12},
        lambda config: {
            "attn_logit_softcapping": config.attn_logit_softcapping,
            "final_logit_softcapping": config.final_logit_softcapping,
            **_window(config),
        },
        plus_one,
    ),
    "gemma3": Written(
        "gemma3_text",
        {"query_pre_attn_scalar": 12, "head_dim": 12},
        lambda config: {"attention.sliding_window_pattern": 2, **_window(config)},
        plus_one,
    ),
    "phi3": Written("phi3", keys=_window),
    "gpt-oss": Written(
        "gpt_oss",
        {"swiglu_limit": 7.0},
        lambda config: {
            **_window(config),
            "expert_feed_forward_length": config.intermediate_size,
        },
        gpt_oss_experts,
    ),
    "apertus": Written("apertus", {"rope_scaling": None, "rope_theta": 300.0}),
    "arcee": Written("arcee", change=permuted),
    "bloom": Written(
        "bloom",
        keys=lambda config: {
            "context_length": 2048,
            "feed_forward_length": 4 * config.hidden_size,
            "attention.head_count_kv": config.n_head,
        },
        change=ungrouped,
    ),
    "cohere2": Written(
        "cohere2", keys=lambda config: {**_window(config), "logit_scale": config.logit_scale}
    ),
    "command-r": Written(
        "cohere",
        {"use_qk_norm": True},
        lambda config: {"logit_scale": config.logit_scale, "rope.scaling.type": "none"},
    ),
    "deepseek2": Written("deepseek_v2", ONE_GROUP, _deepseek, absorbed),
    "deepseek2, v3": Written("deepseek_v3", {"rope_interleave": True}, _deepseek, absorbed),
    "deepseek2, old": Written("deepseek_v3", {"rope_interleave": True}, _old_deepseek),
    "dots1": Written(
        "dots1",
        {"layer_types": ["full_attention"] * 3, "norm_topk_prob": True},
        _sigmoid,
    ),
    "ernie4_5": Written("ernie4_5"),
    "ernie4_5-moe": Written(
        "ernie4_5_moe",
        keys=lambda config: {
            **_expert_width(config),
            "expert_shared_count": config.moe_num_shared_experts,
            "expert_shared_feed_forward_length": (
                config.moe_intermediate_size * config.moe_num_shared_experts
            ),
            "leading_dense_block_count": config.moe_layer_start_index,
            "interleave_moe_layer_step": config.moe_layer_interval,
        },
    ),
    "exaone4": Written("exaone4", keys=_window_layers),
    "exaone-moe": Written(
        "exaone_moe",
        keys=lambda config: {
            **_window_layers(config),
            **_expert_width(config),
            "expert_shared_count": config.num_shared_experts,
            "expert_shared_feed_forward_length": config.moe_intermediate_size,
            "expert_weights_scale": config.routed_scaling_factor,
            "expert_weights_norm": config.norm_topk_prob,
            "expert_gating_func": 2,
            "leading_dense_block_count": 1,
            "nextn_predict_layers": 0,
        },
    ),
    "falcon": Written(
        "falcon",
        keys=lambda config: {
            **NO_THETA,
            "tensor_data_layout": "jploski",
            "attention.head_count_kv": _falcon_heads(config),
        },
        change=ungrouped,
    ),
    "gemma": Written("gemma", {"hidden_act": "gelu_pytorch_tanh"}, change=plus_one),
    "gemma4": Written("gemma4_text", {}, _gemma4, gemma4_tensors),
    "glm4": Written("glm4"),
    "glm4moe": Written(
        "glm4_moe",
        {"use_qk_norm": True},
        _sigmoid,
    ),
    "gpt2": Written("gpt2", keys=lambda config: {"feed_forward_length": 128}, change=transposed),
    "gptneox": Written(
        "gpt_neox",
        keys=lambda config: {
            **NO_THETA,
            "use_parallel_residual": config.use_parallel_residual,
        },
        change=ungrouped,
    ),
    "falcon-h1": Written(
        "falcon_h1",
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
        _mamba,
        falcon_h1_tensors,
    ),
    "granitehybrid": Written("granitemoehybrid", {}, _granite_hybrid, mamba_tensors),
    "granitehybrid, dense": Written(
        "granitemoehybrid",
        {"num_local_experts": 0, "position_embedding_type": "rope"},
        _granite_hybrid,
        mamba_tensors,
    ),
    "granitemoe": Written("granitemoe", keys=_multipliers, change=granite_experts),
    "hunyuan-dense": Written("hunyuan_v1_dense"),
    "hunyuan-moe": Written(
        "hunyuan_v1_moe",
        keys=lambda config: {
            "expert_used_count": config.moe_topk,
            "expert_shared_count": 1,
            "expert_feed_forward_length": config.intermediate_size,
            "expert_shared_feed_forward_length": config.intermediate_size,
        },
    ),
    "jais2": Written("jais2"),
    "jamba": Written("jamba", {}, _scan, scan_tensors),
    "lfm2": Written("lfm2", {"block_auto_adjust_ff_dim": False}, _lfm2, lfm2_tensors),
    "lfm2moe": Written("lfm2_moe", {"norm_topk_prob": True}, _lfm2, lfm2_tensors),
    "llama4": Written(
        "llama4_text",
        {
            **FOUR_LAYERS,
            "no_rope_layers": [1, 1, 1, 0],
            "attention_chunk_size": 8192,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        lambda config: {
            "feed_forward_length": config.intermediate_size_mlp,
            "expert_feed_forward_length": config.intermediate_size,
            "interleave_moe_layer_step": config.interleave_moe_layer_step,
        },
        llama4_experts,
    ),
    "mamba": Written("mamba", {}, _scan, scan_tensors),
    "mamba, norms": Written("falcon_mamba", {}, _scan, scan_tensors),
    "mamba2": Written("mamba2", {}, _mamba2, mamba_tensors),
    "minimax-m2": Written(
        "minimax_m2",
        keys=lambda config: {
            "expert_gating_func": 2,
            "expert_feed_forward_length": config.intermediate_size,
        },
    ),
    "mistral3": Written(
        "ministral3",
        keys=lambda config: {
            "rope.scaling.yarn_log_multiplier": config.rope_parameters.get("mscale_all_dim"),
            "attention.temperature_scale": config.rope_parameters.get("llama_4_scaling_beta"),
        },
        change=permuted,
    ),
    "nemotron": Written("nemotron", change=plus_one),
    "nemotron_h": Written(
        "nemotron_h",
        {"layers_block_type": ["linear_attention", "full_attention", "mlp"]},
        _nemotron_h,
        mamba_tensors,
    ),
    "nemotron_h_moe": Written("nemotron_h", {}, _nemotron_h, mamba_tensors),
    "olmo": Written(
        "olmo",
        {"clip_qkv": 2.5},
        lambda config: {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 2.5},
        permuted,
    ),
    "olmo2": Written("olmo2"),
    "olmo2, windows": Written("olmo3", keys=_window_layers),
    "olmoe": Written("olmoe"),
    "phi2": Written("phi", keys=lambda config: NO_THETA),
    "phimoe": Written(
        "phimoe",
        {"attention_bias": True, "lm_head_bias": True, "rope_theta": 10_000.0},
        lambda config: {**_window(config), "attention.layer_norm_epsilon": None},
    ),
    "qwen2moe": Written(
        "qwen2_moe",
        keys=lambda config: {
            **_expert_width(config),
            "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
        },
    ),
    "qwen2vl": Written("qwen2", keys=_streams),
    "qwen35": Written("qwen3_5_text", {}, _tiled_delta, tiled_delta_tensors),
    "qwen35moe": Written("qwen3_5_moe_text", {}, _tiled_delta, tiled_delta_tensors),
    "qwen3next": Written("qwen3_next", {"norm_topk_prob": True}, _delta, delta_tensors),
    "qwen3vl": Written("qwen3", keys=_of_images),
    "qwen3vlmoe": Written(
        "qwen3_moe",
        {"norm_topk_prob": True},
        lambda config: {**_of_images(config), **_expert_width(config)},
    ),
    "seed_oss": Written("seed_oss", {"attention_out_bias": True, "mlp_bias": True}),
    "stablelm": Written(
        "stablelm",
        {"qk_layernorm": True, "use_qkv_bias": True},
        lambda config: {**NO_THETA, "use_parallel_residual": config.use_parallel_residual},
    ),
    "starcoder2": Written("starcoder2", {"sliding_window": 4096}),
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
    if architecture == "gemma4":  # whose class refuses attributes that differ by layer
        config = SimpleNamespace(**config.to_dict())
    writer = GGUFWriter(path, architecture)
    keys = {"block_count": config.num_hidden_layers, **_usual(config), **rope_keys(config)}
    keys |= family.keys(config)
    every = {f"{architecture}.{key}": value for key, value in keys.items() if value is not None}
    for key, value in (every | xielu(tensors) | dict(metadata or {})).items():
        add = {
            bool: writer.add_bool,
            float: writer.add_float32,
            int: writer.add_uint32,
            list: writer.add_array,
            str: writer.add_string,
        }[type(value)]
        add(key, value)
    stored = converted(family, architecture, config, tensors) | rope_tensors(config)
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


def _usual(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, names in KEYS.items():
        values = (getattr(config, name, None) for name in names)
        value = next((value for value in values if value is not None), None)
        if value is not None:
            found[key] = float(value) if "epsilon" in key else value
    return found


def rope_keys(config: Any) -> dict[str, Any]:
    """Keys of the rotary parameters."""
    rope = getattr(config, "rope_parameters", None)
    if rope is None:
        return {}
    found: dict[str, Any] = {}
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if "full_attention" in rope:
        found["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    else:
        turned = int(width * rope.get("partial_rotary_factor", 1))
        found["rope.dimension_count"] = turned
    found["rope.freq_base"] = float(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        found |= {
            "rope.scaling.type": rope["rope_type"],
            "rope.scaling.factor": float(rope["factor"]),
        }
    if rope["rope_type"] in ("longrope", "yarn"):
        length = rope["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = length
    if rope["rope_type"] == "yarn":
        found["rope.scaling.yarn_beta_fast"] = float(rope.get("beta_fast") or 32)
        found["rope.scaling.yarn_beta_slow"] = float(rope.get("beta_slow") or 1)
    return found


def xielu(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Arrays of the parameters of Apertus' activation."""
    found: dict[str, list[float]] = {}
    for name in sorted(tensors):
        if ".act_fn." in name:
            found.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(tensors[name].item())
    return dict(found)


def rope_tensors(config: Any) -> dict[str, np.ndarray]:
    """Factors of frequencies, which some kinds of scaling store."""
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{length}.weight": np.array(rope[f"{length}_factor"], np.float32)
            for length in ("long", "short")
        }
    if rope.get("rope_type") == "proportional":
        full = _full_heads(config)["head_dim"]
        turned = int(full * rope["partial_rotary_factor"] / 2)
        factors = [1.0] * turned + [1e30] * (full // 2 - turned)
        return {"rope_freqs.weight": np.array(factors, np.float32)}
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
    family: Written, architecture: str, config: Any, tensors: Mapping[str, np.ndarray]
) -> Stored:
    """Tensors by the file's names, in its layouts."""
    [kind] = [kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture]
    names = get_tensor_name_map(kind, config.num_hidden_layers)
    found: Stored = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for theirs, values in tensors.items():
        if ".act_fn." in theirs:
            continue
        match = re.fullmatch(r"(?:\w+\.)?(?:layers|h)\.(\d+)\.(.+)", theirs)
        block = f"blk.{match[1]}." if match else ""
        stacked = re.fullmatch(r"(.+\.(?:experts|norms))\.(\d+)\.?(.*)", theirs)
        if stacked:
            whole = f"{stacked[1].removesuffix('.norms')}.{stacked[3]}"
            if architecture in ("llama", "lfm2moe"):  # the converter's own name
                whole = f"layers.{match[1]}.feed_forward.experts.{stacked[3]}"
            if architecture in ("jamba", "nemotron_h_moe"):
                whole = f"model.layers.{match[1]}.mlp.experts.{stacked[3]}"
            stacks.setdefault(whole, {})[int(stacked[2])] = values
            continue
        changed = family.change(config, match[2] if match else theirs, values)
        for own, array in (changed or {"": values}).items():
            found[block + own if own else _name(names, theirs)] = array
    for whole, stack in stacks.items():
        values = np.stack([stack[number] for number in range(len(stack))])
        found[_name(names, whole)] = values
    return found


def _name(names: Any, theirs: str) -> str:
    theirs = theirs.replace("e_score_correction_bias", "e_score_correction.bias")
    for name in (theirs, theirs.removeprefix("transformer.")):
        if found := names.get_name(name, try_suffixes=(".weight", ".bias")):
            return found if found.endswith((".weight", ".bias")) else f"{found}.weight"
    raise KeyError(theirs)
