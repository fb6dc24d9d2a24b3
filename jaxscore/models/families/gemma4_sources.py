"""The tensors of gemma4_text."""

from jaxscore.device import attention_kinds
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, mixture_sources, parts
from jaxscore.models.families.family import Source, Table

NORMS = {
    "attention_norm": "input_layernorm",
    "attention_after_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_after_norm": "post_feedforward_layernorm",
}


def _attention(
    config: DecoderConfig,
    at: tuple[str, ...],
    layers: tuple[int, ...] | None,
    with_keys: tuple[int, ...] | None,
) -> Table:
    """Queries and outputs of some layers, keys and values of those that have their own."""
    name = "layers.{i}.self_attn."
    table: Table = {}
    of = {"q": layers, "k": with_keys} | ({} if config.values_are_keys else {"v": with_keys})
    for ours, where in of.items():
        path = (*at, ours)
        table |= parts.linear(path, f"{name}{ours}_proj", config.qkv_bias, layers=where)
    for ours, where in {"q_norm": layers, "k_norm": with_keys}.items():
        table[*at, ours, "scale"] = Source(f"{name}{ours}.weight", layers=where)
    return table | parts.linear((*at, "out"), name + "o_proj", config.out_bias, layers=layers)


def _attentions(config: DecoderConfig) -> Table:
    if not attention_kinds.apart(config):
        return _attention(config, ("layers", "attention"), None, None)
    table: Table = {}
    for kind, here in enumerate(config.kinds()):
        at = ("attentions", attention_kinds.KINDS[kind])
        layers, with_keys = attention_kinds.layers_of(config, kind)
        table |= _attention(here, at, tuple(layers), tuple(with_keys))
    return table


def _mlps(config: DecoderConfig) -> Table:
    if config.experts is None:
        layers, plain = mixture_sources.layers_of(config)
        if layers is None:
            return llamalike.mlp_sources(config)
        name = "layers.{i}.mlp."
        main = mixture_sources.gated(config, ("mlps", "main"), name, layers)
        return main | mixture_sources.gated(config, ("mlps", "other"), name, plain)
    layer, at = "layers.{i}.", ("layers", "mlp")
    table: Table = mixture_sources.gated(config, (*at, "shared"), layer + "mlp.", None)
    table |= mixture_sources.router(config, layer + "router.proj")
    table[*at, "router_scale"] = Source(layer + "router.scale")
    table[*at, "expert_scale"] = Source(layer + "router.per_expert_scale")
    for ours, theirs in {
        "experts_norm": "pre_feedforward_layernorm_2",
        "experts_after_norm": "post_feedforward_layernorm_2",
        "shared_after_norm": "post_feedforward_layernorm_1",
    }.items():
        table |= parts.norm((*at, ours), layer + theirs, False)
    inward, outward = layer + "experts.gate_up_proj", layer + "experts.down_proj"
    return table | mixture_sources.experts_together(config, inward, outward, transposed=False)


def sources(config: DecoderConfig) -> Table:
    """All of them."""
    layer = "layers.{i}."
    table: Table = llamalike.ends(config) | _attentions(config) | _mlps(config)
    for ours, theirs in NORMS.items():
        table |= parts.norm(("layers", ours), layer + theirs, False)
    table["layers", "layer_scale"] = Source(layer + "layer_scalar")
    if config.per_layer_width:
        table["embed", "per_layer", "token"] = Source("embed_tokens_per_layer.weight")
        table["embed", "per_layer_in", "weight"] = Source("per_layer_model_projection.weight")
        table["embed", "per_layer_norm", "scale"] = Source("per_layer_projection_norm.weight")
        at = ("layers", "per_layer")
        table |= parts.linear((*at, "gate"), layer + "per_layer_input_gate", False)
        table |= parts.linear((*at, "out"), layer + "per_layer_projection", False)
        table |= parts.norm((*at, "norm"), layer + "post_per_layer_input_norm", False)
    return table


def unread(config: DecoderConfig) -> tuple[str, ...]:
    """Keys and values of layers that use another layer's; released checkpoints have them."""
    shared = [i for i, source in enumerate(config.keys_of) if source != i]
    return tuple(rf"layers\.{i}\.self_attn\.([kv]_proj|[kv]_norm)\.weight" for i in shared)
