"""Architectures of GGUF files: their metadata as attributes, their tensors under our names.

A file has a tensor as `blk.{i}.attn_q.weight`. `BLOCK` and `TOP` name what all architectures have;
an `Architecture` adds its own names, and says which layouts its conversion changed.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import GgufFile, StoredTensor
from jaxscore.models.weights.gguf.metadata import ROPE_FACTORS, Keys
from jaxscore.models.weights.gguf.values import check_decoder, dtype_of, piece_of, values_of
from jaxscore.models.weights.quantization.dequantize import Computed

NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
SANDWICH_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
FACTORS_LONG, FACTORS_SHORT = "rope_factors_long.weight", "rope_factors_short.weight"

# Start of an architecture's name -> why it is not read
REFUSED = {
    **dict.fromkeys(
        "mamba jamba rwkv arwkv lfm2 falcon-h1 granitehybrid nemotron_h qwen3next qwen35 "
        "kimi-linear plamo".split(),
        "recurrent state",
    ),
    **dict.fromkeys("bert nomic-bert jina-bert modern-bert".split(), "a masked language model"),
    "t5": "an encoder-decoder",
    "clip": "a vision tower",
}


@dataclasses.dataclass(frozen=True)
class Experts:
    """Names of separate experts; the file has those of a layer as one tensor [E, out, in].

    Attributes:
        router, gate, up, down: with `{j}`, the expert, in the last three.
    """

    router: str
    gate: str
    up: str
    down: str


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How a model is stored.

    Attributes:
        config: makes the attributes of `config.json`.
        names: of tensors of a layer, beside those of `BLOCK` or in their place.
        permuted: llama.cpp rotates neighbours (2i, 2i + 1) where Hugging Face rotates the halves
            (i, i + n/2), so conversion moved the rows of queries and keys.
        norms_plus_one: conversion added the one that the family adds to norms.
        experts: names of experts; None if the model has none.
        more: tensors that are made of several stored ones.
        of_config: tensors that are read as attributes.
    """

    config: Callable[[Keys], dict[str, Any]]
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    permuted: bool = False
    norms_plus_one: bool = False
    experts: Experts | None = None
    more: Callable[[GgufFile, int], dict[str, Computed]] | None = None
    of_config: frozenset[str] = frozenset({ROPE_FACTORS})

    def tensors(self, file: GgufFile, config: Mapping[str, Any]) -> dict[str, Computed]:
        """Weights by Hugging Face's names.

        Raises:
            InputError: a tensor that is not known, or whose type cannot be read here.
        """
        check_decoder(file)
        computed: dict[str, Computed] = {}
        used: set[str] = set(self.of_config)
        if self.more is not None:
            for layer in range(config["num_hidden_layers"]):
                computed |= self.more(file, layer)
            used |= {name for name in file.tensors if "_exps." in name}
        for name in file.tensors:
            if name not in used:
                found = self._weights(file, name, config)
                if both := sorted(computed.keys() & found.keys()):
                    raise InputError(
                        f"{file.path}: tensor {name} is {both[0]}, which is there twice"
                    )
                computed |= found
        return computed

    def _weights(self, file: GgufFile, name: str, config: Mapping[str, Any]) -> dict[str, Computed]:
        match = NAME.fullmatch(name)
        known = BLOCK | dict(self.names)
        layer, part, kind = match.groups() if match else (None, "", "")
        if layer is None and part in TOP:
            theirs = f"{TOP[part]}.{kind}"
        elif layer is not None and self.experts is not None and part in _expert_parts(self.experts):
            pattern = _expert_parts(self.experts)[part]
            return _experts(file, name, f"model.layers.{layer}.{pattern}.{kind}")
        elif layer is not None and part in known:
            # A name of its own, such as a parameter that is no weight, ends in a dot.
            own = known[part]
            theirs = f"model.layers.{layer}.{own.removesuffix('.')}" + (
                "" if own.endswith(".") else f".{kind}"
            )
        else:
            raise InputError(
                f"{file.path}: tensor {name} is not known for architecture {file.architecture!r}"
            )
        change: Callable[[np.ndarray], np.ndarray] | None = None
        if self.permuted and part in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
            change = functools.partial(unpermute, n_heads=heads)
        elif self.norms_plus_one and part.endswith("norm"):
            change = _minus_one
        tensor = file.tensors[name]
        dtype = np.dtype(np.float32) if change is _minus_one else dtype_of(tensor)
        return {theirs: _computed(file, name, tensor, dtype, change)}


def _computed(
    file: GgufFile,
    name: str,
    tensor: StoredTensor,
    dtype: np.dtype,
    change: Callable[[np.ndarray], np.ndarray] | None,
) -> Computed:
    def compute() -> np.ndarray:
        values = values_of(file, name)
        return values if change is None else change(values)

    return Computed(tensor.where, tensor.shape, dtype, compute)


def unpermute(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of queries or keys in Hugging Face's order, from [H, half, 2] to [H, 2, half]."""
    half = rows.shape[0] // n_heads // 2
    return rows.reshape(n_heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _minus_one(scales: np.ndarray) -> np.ndarray:
    return scales.astype(np.float32) - np.float32(1)


def _expert_parts(experts: Experts) -> dict[str, str]:
    return {
        "ffn_gate_inp": experts.router,
        "ffn_gate_exps": experts.gate,
        "ffn_up_exps": experts.up,
        "ffn_down_exps": experts.down,
    }


def _experts(file: GgufFile, name: str, theirs: str) -> dict[str, Computed]:
    """One weight for each expert of a layer, or the router's."""
    tensor = file.tensors[name]
    if "{j}" not in theirs:
        return {theirs: _computed(file, name, tensor, dtype_of(tensor), None)}
    if len(tensor.shape) != 3:
        raise InputError(f"{file.path}: tensor {name} has shape {list(tensor.shape)}, expected 3")
    return {
        theirs.format(j=expert): Computed(
            tensor.where,
            tensor.shape[1:],
            dtype_of(tensor),
            functools.partial(piece_of, file, name, expert),
        )
        for expert in range(tensor.shape[0])
    }


def _llama(keys: Keys) -> dict[str, Any]:
    """llama and mistral; a window that Mistral 7B v0.1 has is not in its files."""
    keys.whole_rotary()
    return keys.sizes() | {
        "model_type": "llama",
        "hidden_act": "silu",
        "head_dim": keys.head_width(),
        "attention_bias": keys.has("blk.0.attn_q.bias"),
        "mlp_bias": keys.has("blk.0.ffn_up.bias"),
        "rope_parameters": keys.rope(),
    }


def _mixtral(keys: Keys) -> dict[str, Any]:
    keys.whole_rotary()
    return keys.sizes() | {
        "model_type": "mixtral",
        "hidden_act": "silu",
        "head_dim": keys.head_width(),
        "num_local_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "rope_parameters": keys.rope(),
    }


def _smollm3(keys: Keys) -> dict[str, Any]:
    """Every fourth layer has no rotary positions, which llama.cpp fixes for the architecture."""
    found = _llama(keys)
    layers = found["num_hidden_layers"]
    return {name: value for name, value in found.items() if name != "head_dim"} | {
        "model_type": "smollm3",
        "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(layers)],
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
    }


def _granite(keys: Keys) -> dict[str, Any]:
    found = _llama(keys)
    return {name: value for name, value in found.items() if name != "head_dim"} | {
        "model_type": "granite",
        "attention_multiplier": keys.single_precision("attention.scale"),
        "embedding_multiplier": keys.single_precision("embedding_scale", 1.0),
        "residual_multiplier": keys.single_precision("residual_scale", 1.0),
        "logits_scaling": keys.single_precision("logit_scale", 1.0),
    }


def _qwen2(keys: Keys) -> dict[str, Any]:
    keys.whole_rotary()
    return keys.sizes() | {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "use_sliding_window": False,
        "rope_parameters": keys.rope(),
    }


def _qwen3(keys: Keys) -> dict[str, Any]:
    return _qwen2(keys) | {
        "model_type": "qwen3",
        "head_dim": keys.head_width(),
        "attention_bias": keys.has("blk.0.attn_q.bias"),
    }


def _qwen3moe(keys: Keys) -> dict[str, Any]:
    """llama.cpp renormalises the chosen experts' shares for the architecture."""
    return _qwen3(keys) | {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "num_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _gemma(keys: Keys, n_layers_27b: int) -> dict[str, Any]:
    """Attributes of gemma2 and gemma3; their 27B scale scores by width over heads."""
    keys.whole_rotary()
    found = keys.sizes()
    width = keys.head_width()
    is_27b = found["num_hidden_layers"] == n_layers_27b
    scale = found["hidden_size"] // found["num_attention_heads"] if is_27b else width
    return found | {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": width,
        "query_pre_attn_scalar": scale,
        "attention_bias": False,
    }


def _layer_types(n_layers: int, every: int) -> list[str]:
    """Windows in all layers but each `every`-th one."""
    kinds = ("sliding_attention", "full_attention")
    return [kinds[(layer + 1) % every == 0] for layer in range(n_layers)]


def _gemma2(keys: Keys) -> dict[str, Any]:
    """Soft caps and window are llama.cpp's defaults if a file of an old converter lacks them."""
    found = _gemma(keys, 46)
    return found | {
        "model_type": "gemma2",
        "sliding_window": keys.size("attention.sliding_window", 4096),
        "layer_types": _layer_types(found["num_hidden_layers"], 2),
        "attn_logit_softcapping": keys.single_precision("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.single_precision("final_logit_softcapping", 30.0),
        "rope_parameters": keys.rope(),
    }


def _gemma3(keys: Keys) -> dict[str, Any]:
    found = _gemma(keys, 62)
    every = keys.size("attention.sliding_window_pattern", 6)
    local = keys.single_precision("rope.freq_base_swa", 10_000.0)
    cap = keys.optional("final_logit_softcapping", float)
    return found | {
        "model_type": "gemma3_text",
        "sliding_window": keys.size("attention.sliding_window"),
        "layer_types": _layer_types(found["num_hidden_layers"], every),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": cap,
        "use_bidirectional_attention": False,
        "rope_parameters": {
            "full_attention": keys.rope(1_000_000.0),
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _phi3(keys: Keys) -> dict[str, Any]:
    """A window of 0 is none (Phi-4); LongRoPE's factors are tensors.

    Files of old converters lack the window, which those models have: they are refused.
    """
    found = keys.sizes()
    width = keys.head_width()
    turned = keys.size("rope.dimension_count", width)
    length = keys.get("rope.scaling.original_context_length", int, found["max_position_embeddings"])
    rope: dict[str, Any]
    if keys.has(FACTORS_LONG) or keys.has(FACTORS_SHORT):
        for name in (FACTORS_LONG, FACTORS_SHORT):
            if not keys.has(name):
                raise InputError(f"{keys.file.path}: has no tensor {name}")
        keys.optional("rope.scaling.type", str)
        factor = keys.optional("rope.scaling.attn_factor", float)
        rope = {
            "rope_type": "longrope",
            "rope_theta": keys.single_precision("rope.freq_base", 10_000.0),
            "long_factor": values_of(keys.file, FACTORS_LONG).tolist(),
            "short_factor": values_of(keys.file, FACTORS_SHORT).tolist(),
            "original_max_position_embeddings": length,
        } | ({} if factor is None else {"attention_factor": factor})
    else:
        rope = keys.rope()
    if turned != width:
        rope["partial_rotary_factor"] = turned / width
    return found | {
        "model_type": "phi3",
        "hidden_act": "silu",
        "sliding_window": keys.get("attention.sliding_window", int) or None,
        "original_max_position_embeddings": length,
        "rope_parameters": rope,
    }


def _gpt_oss(keys: Keys) -> dict[str, Any]:
    """The limit of the gates, their slope and the window's layers are the published ones."""
    keys.whole_rotary()
    found = keys.sizes()
    rope = keys.rope(150_000.0)
    if rope["rope_type"] == "yarn":
        rope["truncate"] = False
    return found | {
        "model_type": "gpt_oss",
        "hidden_act": "silu",
        "head_dim": keys.head_width(),
        "attention_bias": True,
        "intermediate_size": keys.size("expert_feed_forward_length"),
        "num_local_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "sliding_window": keys.size("attention.sliding_window"),
        "layer_types": _layer_types(found["num_hidden_layers"], 2),
        "swiglu_limit": 7.0,
        "rope_parameters": rope,
    }


def _gpt_oss_experts(file: GgufFile, layer: int) -> dict[str, Computed]:
    """Gate and up, whose columns alternate, and down; the file has them as [E, out, in]."""
    block, theirs = f"blk.{layer}.ffn_", f"model.layers.{layer}.mlp.experts."
    found: dict[str, Computed] = {}
    for kind, ending in (("weight", ""), ("bias", "_bias")):
        gate, up, down = (f"{block}{part}_exps.{kind}" for part in ("gate", "up", "down"))
        if missing := [name for name in (gate, up, down) if name not in file.tensors]:
            raise InputError(f"{file.path}: has no tensor {missing[0]}")
        tensor = file.tensors[gate]

        def joined(
            piece: int | None, gate: str = gate, up: str = up, transposed: bool = kind == "weight"
        ) -> np.ndarray:
            parts = [
                values_of(file, name) if piece is None else piece_of(file, name, piece)
                for name in (gate, up)
            ]
            wide = [part.astype(np.float32) for part in parts]
            if not transposed:  # [..., out]
                return np.stack(wide, axis=-1).reshape(*wide[0].shape[:-1], -1)
            turned = [values.swapaxes(-1, -2) for values in wide]  # [..., in, out]
            return np.stack(turned, axis=-1).reshape(*turned[0].shape[:-1], -1)

        def lowered(
            piece: int | None, down: str = down, transposed: bool = kind == "weight"
        ) -> np.ndarray:
            values = values_of(file, down) if piece is None else piece_of(file, down, piece)
            return values.swapaxes(-1, -2) if transposed else values

        experts, *axes = tensor.shape
        wide_shape = (experts, *axes[1:], 2 * axes[0])
        down_tensor = file.tensors[down]
        shape = down_tensor.shape
        if kind == "weight":
            shape = (shape[0], shape[2], shape[1])
        found[f"{theirs}gate_up_proj{ending}"] = Computed(
            tensor.where,
            wide_shape,
            np.dtype(np.float32),
            functools.partial(joined, None),
            joined,
        )
        found[f"{theirs}down_proj{ending}"] = Computed(
            down_tensor.where,
            shape,
            dtype_of(down_tensor),
            functools.partial(lowered, None),
            lowered,
        )
    return found


LLAMA = Architecture(_llama, permuted=True)
MIXTRAL = Architecture(
    _mixtral,
    permuted=True,
    experts=Experts(
        "block_sparse_moe.gate",
        "block_sparse_moe.experts.{j}.w1",
        "block_sparse_moe.experts.{j}.w3",
        "block_sparse_moe.experts.{j}.w2",
    ),
)


def _llama_or_mixtral(file: GgufFile) -> Architecture:
    count = file.metadata.get("llama.expert_count", 0)
    return MIXTRAL if isinstance(count, int) and count > 0 else LLAMA


ARCHITECTURES: dict[str, Architecture | Callable[[GgufFile], Architecture]] = {
    "llama": _llama_or_mixtral,
    "smollm3": Architecture(_smollm3, permuted=True),
    "granite": Architecture(_granite, permuted=True),
    "qwen2": Architecture(_qwen2),
    "qwen3": Architecture(_qwen3, HEAD_NORMS),
    "qwen3moe": Architecture(
        _qwen3moe,
        HEAD_NORMS,
        experts=Experts(
            "mlp.gate",
            "mlp.experts.{j}.gate_proj",
            "mlp.experts.{j}.up_proj",
            "mlp.experts.{j}.down_proj",
        ),
    ),
    "gemma2": Architecture(_gemma2, SANDWICH_NORMS, norms_plus_one=True),
    "gemma3": Architecture(_gemma3, SANDWICH_NORMS | HEAD_NORMS, norms_plus_one=True),
    "phi3": Architecture(
        _phi3,
        {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        of_config=frozenset({FACTORS_LONG, FACTORS_SHORT}),
    ),
    "gpt-oss": Architecture(
        _gpt_oss,
        {
            "attn_sinks": "self_attn.sinks.",
            "ffn_gate_inp": "mlp.router",
            "post_attention_norm": "post_attention_layernorm",
        },
        more=_gpt_oss_experts,
    ),
}
