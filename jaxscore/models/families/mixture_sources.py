"""The tensors of mixtures of experts; no rows where a decoder has no experts."""

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Part, Source, Table

# Where most checkpoints have what is added to a router's scores for the choice
CORRECTION = "layers.{i}.mlp.gate.e_score_correction_bias"


def layers_of(config: DecoderConfig) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """Layers with the config's own MLP, None for all, and layers with the other one."""
    if config.other_mlp is None:
        return None, ()
    plain = config.other_mlp.layers
    return tuple(i for i in range(config.n_layers) if i not in plain), plain


def at_mlp(config: DecoderConfig) -> tuple[str, ...]:
    """Where the parameters of the config's own MLP stand."""
    return ("layers", "mlp") if config.other_mlp is None else ("mlps", "main")


def plain_mlps(config: DecoderConfig, name: str = "mlp") -> Table:
    """The gated MLPs of layers without experts; of all layers where there are no experts."""
    if config.experts is None:
        return llamalike.mlp_sources(config, name)
    _, plain = layers_of(config)
    return gated(config, ("mlps", "other"), f"layers.{{i}}.{name}.", plain) if plain else {}


def gated(
    config: DecoderConfig, at: tuple[str, ...], name: str, layers: tuple[int, ...] | None
) -> Table:
    """A gated MLP under llama's names."""
    table: Table = {}
    for ours in ("gate", "up", "down"):
        table |= parts.linear((*at, ours), f"{name}{ours}_proj", config.mlp_bias, layers=layers)
    return table


def experts_apart(
    config: DecoderConfig,
    layer: str,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Table:
    """Experts that are a tensor each; `layer` ends where `experts` begins."""
    if config.experts is None:
        return {}
    layers, _ = layers_of(config)
    table: Table = {}
    for ours, theirs in zip(("gate", "up", "down"), names, strict=True):
        name = f"{layer}experts.{{j}}.{theirs}"
        table |= parts.linear(("experts", ours), name, False, layers=layers)
    return table


def experts_together(
    config: DecoderConfig,
    inward: str,
    outward: str,
    *,
    transposed: bool,
    interleaved: bool = False,
) -> Table:
    """Experts in one tensor, gate and up in one.

    Args:
        inward: the tensor of gate and up.
        outward: the tensor of down.
        transposed: the tensors are [E, in, out]; else [E, out, in].
        interleaved: gate and up take turns along the outputs; else gate comes first.
    """
    if config.experts is None:
        return {}
    layers, _ = layers_of(config)
    groups = config.mlp_width if interleaved else 1
    table: Table = {}
    for ours, name, part in (
        ("gate", inward, Part(groups, 2, 0, 1)),
        ("up", inward, Part(groups, 2, 1, 2)),
        ("down", outward, None),
    ):
        source = Source(f"{name}[{{j}}]", transposed, part, layers=layers)
        table["experts", ours, "weight"] = source
        if config.experts.bias:
            table["experts", ours, "bias"] = Source(f"{name}_bias[{{j}}]", part=part, layers=layers)
    return table


def router(config: DecoderConfig, name: str, correction: str = CORRECTION) -> Table:
    """The router's product, and the correction of its scores where it has one."""
    if config.experts is None:
        return {}
    layers, _ = layers_of(config)
    at = at_mlp(config)
    table = parts.linear((*at, "router"), name, config.experts.router_bias, layers=layers)
    if config.experts.corrected:
        table[*at, "correction"] = Source(correction, layers=layers)
    return table


def shared(config: DecoderConfig, name: str) -> Table:
    """The MLP that all tokens of a mixture share."""
    if config.experts is None or not config.experts.shared_width:
        return {}
    return gated(config, (*at_mlp(config), "shared"), name, layers_of(config)[0])


def sources(config: DecoderConfig, attention: Table, correction: str = CORRECTION) -> Table:
    """All tensors of a decoder with llama's names, and with experts apart in some or all layers.

    Args:
        attention: the tensors of attention.
        correction: see `router`.
    """
    mlp = "layers.{i}.mlp."
    return (
        llamalike.ends(config)
        | llamalike.norms_before(config)
        | attention
        | plain_mlps(config)
        | router(config, mlp + "gate", correction)
        | experts_apart(config, mlp)
        | shared(config, mlp + "shared_experts.")
    )
