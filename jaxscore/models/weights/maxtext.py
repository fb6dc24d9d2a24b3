"""MaxText's parameters under Hugging Face names, for llama, qwen2, qwen3 and gemma.

MaxText stacks layers along axis 1 (`scan_layers=true`), or has `layers_0`, `layers_1`, ….
Per layer, of width D with H heads of h channels:

    query, key, value   kernel [D, H, h], bias [H, h]       weight [H * h, D], bias [H * h]
    out                 kernel [H, h, D]                    weight [D, H * h]
    MLP, LM head        kernel [in, out]                    weight [out, in]
    embedding           [V, D], padded to more rows         weight [V, D]

In llama and gemma, queries contain attention's factor 1 / sqrt(h). In gemma, norms contain the 1
that Hugging Face adds, and the embedding the factor sqrt(D). With `rope_type: llama3.1` the two
channels of a rotary pair are adjacent; otherwise, and in Hugging Face's layout, they are h / 2
apart.
"""

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxscore.device import jax_settings
from jaxscore.errors import InputError
from jaxscore.models.weights.array_tensors import with_auto_axes
from jaxscore.models.weights.checkpoint import raw_config

ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
MLP = {"wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}
LAYER_NORMS = {
    "pre_self_attention_layer_norm": "input_layernorm",
    "post_self_attention_layer_norm": "post_attention_layernorm",
}
GEMMA_NORMS = {
    "pre_self_attention_norm": "input_layernorm",
    "pre_ffw_norm": "post_attention_layernorm",
}
MODEL_TYPES = ("llama", "qwen2", "qwen3", "gemma")
SCAN_AXIS = 1

Keys = tuple[str, ...]


def _layer_table(model_type: str) -> dict[Keys, str]:
    """Return Hugging Face's names of a layer's parameters by MaxText's paths."""
    norms = GEMMA_NORMS if model_type == "gemma" else LAYER_NORMS
    table: dict[Keys, str] = {(name, "scale"): f"{target}.weight" for name, target in norms.items()}
    for name, target in ATTENTION.items():
        table["self_attention", name, "kernel"] = f"self_attn.{target}.weight"
        if model_type == "qwen2" and name != "out":
            table["self_attention", name, "bias"] = f"self_attn.{target}.bias"
    if model_type == "qwen3":
        for name, target in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            table["self_attention", name, "scale"] = f"self_attn.{target}.weight"
    return table | {("mlp", name, "kernel"): f"mlp.{target}.weight" for name, target in MLP.items()}


TOP: dict[Keys, str] = {
    ("token_embedder", "embedding"): "model.embed_tokens.weight",
    ("decoder", "decoder_norm", "scale"): "model.norm.weight",
    ("decoder", "logits_dense", "kernel"): "lm_head.weight",
}


@jax_settings.isolated()
def tensors_of_maxtext(
    params: Any, config: Any, *, interleaved: bool | None = None
) -> dict[str, Any]:
    """Convert MaxText's parameters to Hugging Face tensors for `Scorer.from_tensors` and `update`.

    Device arrays stay on their devices; one compiled program converts them.

    Args:
        params: MaxText's tree of NumPy or JAX arrays: `state.params`, or a checkpoint's `items` as
            restored by Orbax, of which only `params` is used.
        config: the config of the Hugging Face model, see `Scorer.from_tensors`.
        interleaved: True if the `rope_type` or the model's name in MaxText starts with `llama3.1`;
            by default, True if the rope type in the config is `llama3`.

    Raises:
        InputError: the model type is not supported, or a parameter is missing or left over.
    """
    config = raw_config(config)
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        raise InputError(
            f"MaxText's parameters of {model_type!r}: supported are {', '.join(MODEL_TYPES)}"
        )
    flat = _flat(params)
    if interleaved is None:
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        interleaved = rope.get("rope_type", rope.get("type")) == "llama3"
    key = json.dumps(config, sort_keys=True, default=str)
    convert = functools.partial(_converted, json.loads(key), interleaved)
    if any(isinstance(array, jax.Array) for array in flat.values()):
        return dict(_program(key, interleaved)(jax.tree.map(with_auto_axes, flat)))
    return convert(flat)


@functools.lru_cache(maxsize=8)
def _program(key: str, interleaved: bool) -> Any:
    """Return the compiled conversion; `key` is the config as JSON."""
    return jax.jit(functools.partial(_converted, json.loads(key), interleaved))


def _flat(params: Any) -> dict[str, Any]:
    """Return the arrays inside `params` by their path, joined by `/`."""
    if hasattr(params, "to_pure_dict"):  # state of an NNX module
        params = params.to_pure_dict()
    from flax.core import meta

    params = meta.unbox(params)
    while isinstance(params, Mapping) and "params" in params:
        params = params["params"]
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {"/".join(str(entry.key) for entry in path): leaf for path, leaf in leaves}


def _converted(
    config: Mapping[str, Any], interleaved: bool, flat: Mapping[str, Any]
) -> dict[str, Any]:
    model_type, n_layers = config["model_type"], config["num_hidden_layers"]
    remaining, out = dict(flat), {}
    is_scanned = any(name.startswith("decoder/layers/") for name in remaining)

    def take(path: Keys) -> Any:
        name = "/".join(path)
        if name not in remaining:
            raise InputError(f"MaxText's parameters: {name} is missing for {model_type}")
        return remaining.pop(name)

    for path, name in TOP.items():
        if path[1] == "logits_dense" and "/".join(path) not in remaining:
            continue  # tied; `from_tensors` checks the config
        out[name] = _tensor(config, interleaved, path, take(path))
    for path, name in _layer_table(model_type).items():
        stacked = take(("decoder", "layers", *path)) if is_scanned else None
        if stacked is not None and stacked.shape[SCAN_AXIS] != n_layers:
            raise InputError(
                f"MaxText's parameters: decoder/layers/{'/'.join(path)} is "
                f"{list(stacked.shape)}, expected {n_layers} layers along axis {SCAN_AXIS}"
            )
        for i in range(n_layers):
            value = take(("decoder", f"layers_{i}", *path)) if stacked is None else stacked[:, i]
            out[f"model.layers.{i}.{name}"] = _tensor(config, interleaved, path, value)
    if remaining:
        names = ", ".join(sorted(remaining)[:5])
        raise InputError(f"MaxText's parameters: {len(remaining)} are left over: {names}")
    return out


def _tensor(config: Mapping[str, Any], interleaved: bool, path: Keys, value: Any) -> Any:
    """Convert a parameter to Hugging Face's layout."""
    model_type, module = config["model_type"], path[-2]
    if module == "token_embedder":
        value = value[: config["vocab_size"]]
        return (
            _scaled(value, 1 / math.sqrt(config["hidden_size"])) if model_type == "gemma" else value
        )
    if path[-1] == "scale":
        return (value.astype("float32") - 1).astype(value.dtype) if model_type == "gemma" else value
    if module in ("query", "key") and interleaved:
        pairs = value.reshape(*value.shape[:-1], -1, 2)
        value = pairs.swapaxes(-1, -2).reshape(value.shape)
    if module == "query" and model_type in ("llama", "gemma"):
        value = _scaled(value, math.sqrt(value.shape[-1]))
    if path[-1] == "bias":
        return value.reshape(-1)
    rows = -1 if module == "out" else value.shape[0]
    matrix = value.reshape(rows, value.shape[-1] if module == "out" else -1).T
    return matrix[: config["vocab_size"]] if module == "logits_dense" else matrix


def _scaled(value: Any, factor: float) -> Any:
    """Multiply by a factor and round once."""
    return (value.astype("float32") * factor).astype(value.dtype)


def read_orbax(folder: Path) -> Any:
    """Read the tree of an Orbax checkpoint as NumPy arrays.

    Raises:
        InputError: the folder is not an Orbax checkpoint.
    """
    import orbax.checkpoint as ocp

    path = folder.absolute()
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.metadata(path).item_metadata.tree
            restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            return checkpointer.restore(path, restore_args=restore_args)
    except (OSError, ValueError, KeyError, AttributeError) as problem:
        reason = (str(problem).strip().splitlines() or ["no reason given"])[0]
        raise InputError(
            f"{folder}: not an Orbax checkpoint of parameters ({reason}); expected a folder such "
            "as checkpoints/0/items"
        ) from None
