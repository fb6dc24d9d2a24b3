"""Rows and fields that mixtures of experts share."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, OtherMlp
from jaxscore.errors import InputError
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Part, Source, Table

# A layer behind the last one that predicts a token more; the released checkpoints carry it, and
# nothing that scores text reads it.
NEXT_TOKENS = "num_nextn_predict_layers"
TRAINING = "output_router_logits router_aux_loss_coef"


def check_counts(experts: Experts) -> Experts:
    """The same experts, if there are enough to choose from.

    Raises:
        InputError: more experts per token than there are, or groups that do not fit.
    """
    count, groups, kept = experts.count, experts.groups, experts.groups_per_token
    if groups < 1 or count % groups or not 1 <= kept <= groups:
        raise InputError(
            f"{count} experts in {groups} groups, {kept} of them per token: expected groups of "
            "equal size, and at most all of them"
        )
    of_groups = count // groups
    if groups > kept and of_groups < experts.group_rank:
        raise InputError(
            f"groups have {of_groups} experts, expected at least {experts.group_rank}, by whose "
            "scores a group is ranked"
        )
    if not 1 <= experts.per_token <= of_groups * kept:
        raise InputError(
            f"num_experts_per_tok is {experts.per_token}, expected 1 to {of_groups * kept} of "
            f"{count} experts"
        )
    return experts


def mlps(
    config: Any, experts: Experts, width: int, plain: tuple[int, ...], plain_width: int
) -> dict[str, Any]:
    """The MLP fields of a decoder, some of whose layers have a plain MLP instead of experts.

    Args:
        width: of an expert.
        plain: layers without experts.
        plain_width: of their MLP.
    """
    if len(plain) == config.num_hidden_layers:
        return {"mlp_width": plain_width}
    other = OtherMlp(plain, plain_width) if plain else None
    return {"mlp_width": width, "experts": check_counts(experts), "other_mlp": other}


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
    layers, _ = layers_of(config)
    table: Table = {}
    for ours, theirs in zip(("gate", "up", "down"), names, strict=True):
        name = f"{layer}experts.{{j}}.{theirs}"
        table |= parts.linear(("experts", ours), name, False, layers=layers)
    return table


def experts_together(config: DecoderConfig, layer: str, *, interleaved: bool) -> Table:
    """Experts in one tensor [E, in, out], gate and up in one.

    Args:
        interleaved: gate and up take turns along the outputs; else gate comes first.
    """
    layers, _ = layers_of(config)
    groups = config.mlp_width if interleaved else 1
    table: Table = {}
    for ours, theirs, part in (
        ("gate", "gate_up_proj", Part(groups, 2, 0, 1)),
        ("up", "gate_up_proj", Part(groups, 2, 1, 2)),
        ("down", "down_proj", None),
    ):
        name = f"{layer}experts.{theirs}"
        table["experts", ours, "weight"] = Source(f"{name}[{{j}}]", True, part, layers=layers)
        if config.experts is not None and config.experts.bias:
            table["experts", ours, "bias"] = Source(f"{name}_bias[{{j}}]", part=part, layers=layers)
    return table


def router(config: DecoderConfig, name: str, correction: str = "") -> Table:
    """The router's product, and what is added to its scores for the choice."""
    if config.experts is None:
        return {}
    layers, _ = layers_of(config)
    at = at_mlp(config)
    table = parts.linear((*at, "router"), name, config.experts.router_bias, layers=layers)
    return table | ({(*at, "correction"): Source(correction, layers=layers)} if correction else {})


def shared(config: DecoderConfig, name: str) -> Table:
    """The MLP that all tokens of a mixture share."""
    if config.experts is None or not config.experts.shared_width:
        return {}
    return gated(config, (*at_mlp(config), "shared"), name, layers_of(config)[0])
