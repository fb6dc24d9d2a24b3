"""MaxText's parameters under Hugging Face names, for llama, qwen2, qwen3 and gemma.

MaxText stacks layers along axis 1 (`scan_layers=true`), or has `layers_0`, `layers_1`, ….
Per layer, of width D with H heads of h channels:

    query, key, value   kernel [D, H, h], bias [H, h]       weight [H * h, D], bias [H * h]
    out                 kernel [H, h, D]                    weight [D, H * h]
    MLP, LM head        kernel [in, out]                    weight [out, in]
    embedding           [V, D], padded to more rows         weight [V, D]

Queries of llama and gemma contain the factor 1 / sqrt(h) of attention; gemma's norms contain the
one that Hugging Face adds, and its embedding the factor sqrt(D). With `rope_type: llama3.1` the
channels of queries and keys that are rotated together are neighbours; otherwise, and in Hugging
Face's layout, they are h / 2 apart.
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
KINDS = ("llama", "qwen2", "qwen3", "gemma")
SCAN_AXIS = 1

Keys = tuple[str, ...]


def _layer_table(kind: str) -> dict[Keys, str]:
    """Names in a layer."""
    norms = GEMMA_NORMS if kind == "gemma" else LAYER_NORMS
    table: dict[Keys, str] = {(theirs, "scale"): f"{ours}.weight" for theirs, ours in norms.items()}
    for theirs, ours in ATTENTION.items():
        table["self_attention", theirs, "kernel"] = f"self_attn.{ours}.weight"
        if kind == "qwen2" and theirs != "out":
            table["self_attention", theirs, "bias"] = f"self_attn.{ours}.bias"
    if kind == "qwen3":
        for theirs, ours in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            table["self_attention", theirs, "scale"] = f"self_attn.{ours}.weight"
    return table | {("mlp", t, "kernel"): f"mlp.{ours}.weight" for t, ours in MLP.items()}


TOP: dict[Keys, str] = {
    ("token_embedder", "embedding"): "model.embed_tokens.weight",
    ("decoder", "decoder_norm", "scale"): "model.norm.weight",
    ("decoder", "logits_dense", "kernel"): "lm_head.weight",
}


@jax_settings.isolated()
def tensors_of_maxtext(
    params: Any, config: Any, *, interleaved: bool | None = None
) -> dict[str, Any]:
    """Tensors under Hugging Face names, for `Scorer.from_tensors` and `Scorer.update`.

    Device arrays stay on their devices; one program converts them.

    Args:
        params: MaxText's tree of NumPy or JAX arrays: `state.params`, or what Orbax restores of a
            checkpoint's `items`; all but `params` is left out.
        config: of the Hugging Face model, as of `Scorer.from_tensors`.
        interleaved: whether the `rope_type` or the model's name in MaxText starts with
            `llama3.1`. None is whether the config's rotary parameters are of the type `llama3`.

    Raises:
        InputError: another model type, or a parameter that is missing or left over, by its path.
    """
    config = raw_config(config)
    kind = config.get("model_type")
    if kind not in KINDS:
        raise InputError(f"MaxText's parameters of {kind!r}: handled are {', '.join(KINDS)}")
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
    """The compiled conversion; `key` is the config as JSON."""
    return jax.jit(functools.partial(_converted, json.loads(key), interleaved))


def _flat(params: Any) -> dict[str, Any]:
    """Arrays by their path, joined by `/`, below the outer `params`."""
    if hasattr(params, "to_pure_dict"):  # the state of an NNX module
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
    kind, n_layers = config["model_type"], config["num_hidden_layers"]
    left, out = dict(flat), {}
    is_scanned = any(name.startswith("decoder/layers/") for name in left)

    def take(path: Keys) -> Any:
        name = "/".join(path)
        if name not in left:
            raise InputError(f"MaxText's parameters: {name} is missing, which a {kind} has")
        return left.pop(name)

    for path, name in TOP.items():
        if path[1] == "logits_dense" and "/".join(path) not in left:
            continue  # tied; `from_tensors` checks that it may be
        out[name] = _tensor(config, interleaved, path, take(path))
    for path, name in _layer_table(kind).items():
        stacked = take(("decoder", "layers", *path)) if is_scanned else None
        if stacked is not None and stacked.shape[SCAN_AXIS] != n_layers:
            raise InputError(
                f"MaxText's parameters: decoder/layers/{'/'.join(path)} is "
                f"{list(stacked.shape)}, expected {n_layers} layers along axis {SCAN_AXIS}"
            )
        for i in range(n_layers):
            own = take(("decoder", f"layers_{i}", *path)) if stacked is None else stacked[:, i]
            out[f"model.layers.{i}.{name}"] = _tensor(config, interleaved, path, own)
    if left:
        names = ", ".join(sorted(left)[:5])
        raise InputError(f"MaxText's parameters: {len(left)} are left over: {names}")
    return out


def _tensor(config: Mapping[str, Any], interleaved: bool, path: Keys, value: Any) -> Any:
    """A layer's parameter, or one beside the layers, in Hugging Face's layout."""
    kind, what = config["model_type"], path[-2]
    if what == "token_embedder":
        value = value[: config["vocab_size"]]
        return _scaled(value, 1 / math.sqrt(config["hidden_size"])) if kind == "gemma" else value
    if path[-1] == "scale":
        return (value.astype("float32") - 1).astype(value.dtype) if kind == "gemma" else value
    if what in ("query", "key") and interleaved:
        pairs = value.reshape(*value.shape[:-1], -1, 2)
        value = pairs.swapaxes(-1, -2).reshape(value.shape)
    if what == "query" and kind in ("llama", "gemma"):
        value = _scaled(value, math.sqrt(value.shape[-1]))
    if path[-1] == "bias":
        return value.reshape(-1)
    rows = -1 if what == "out" else value.shape[0]
    matrix = value.reshape(rows, value.shape[-1] if what == "out" else -1).T
    return matrix[: config["vocab_size"]] if what == "logits_dense" else matrix


def _scaled(value: Any, factor: float) -> Any:
    """The value times a factor, rounded once."""
    return (value.astype("float32") * factor).astype(value.dtype)


def read_orbax(folder: Path) -> Any:
    """The tree of an Orbax checkpoint, as NumPy arrays.

    Raises:
        InputError: the folder has none.
    """
    import orbax.checkpoint as ocp

    path = folder.absolute()
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.metadata(path).item_metadata.tree
            how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            return checkpointer.restore(path, restore_args=how)
    except (OSError, ValueError, KeyError, AttributeError) as problem:
        reason = (str(problem).strip().splitlines() or ["no reason given"])[0]
        raise InputError(
            f"{folder}: no Orbax checkpoint of parameters ({reason}); expected a folder such as "
            "checkpoints/0/items"
        ) from None
