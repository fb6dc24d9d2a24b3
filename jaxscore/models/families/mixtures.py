"""Mixtures of experts: decoder fields, config attributes, and weight sources.

The functions named `*_sources` return an empty table for a decoder without experts.
"""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, OtherMlp
from jaxscore.errors import InputError
from jaxscore.models.families import fields, llama
from jaxscore.models.families.family import Part, Source, Table, linear

# Multi-token-prediction layers: released checkpoints have them, and no score depends on them
NEXT_TOKENS = "num_nextn_predict_layers"
TRAINING = "output_router_logits router_aux_loss_coef"
# Usual name of the bias that corrects a router's scores for the choice of experts
CORRECTION = "layers.{i}.mlp.gate.e_score_correction_bias"
# Attributes of released sarvam configs, with the values that PyTorch's classes implement
SARVAM: dict[str, Any] = {"moe_router_enable_expert_bias": True, "score_function": "sigmoid"}


def check_counts(experts: Experts, attribute: str = "num_experts_per_tok") -> Experts:
    """Return the experts after checking their counts.

    Args:
        attribute: the config attribute with the number of experts per token.

    Raises:
        InputError: more experts per token than exist, or groups that do not divide them.
    """
    count = experts.count + experts.identities
    groups, kept = experts.router.groups, experts.router.groups_per_token
    if groups < 1 or count % groups or not 1 <= kept <= groups:
        raise InputError(
            f"{count} experts in {groups} groups, {kept} of them per token: expected groups of "
            "equal size, and at most all of them"
        )
    group_size = count // groups
    if groups > kept and group_size < experts.router.group_rank:
        raise InputError(
            f"groups have {group_size} experts, expected at least {experts.router.group_rank}: "
            "the scores of that many rank a group"
        )
    if not 1 <= experts.per_token <= group_size * kept:
        of_groups = f", {kept} of {groups} groups per token" if groups > 1 else ""
        raise InputError(
            f"{attribute} is {experts.per_token}, expected 1 to {group_size * kept} of "
            f"{count} experts{of_groups}"
        )
    return experts


def sigmoid_experts(config: Any, count: int, **overrides: Any) -> Experts:
    """Return experts chosen by corrected sigmoid scores, with an ungated shared MLP (arXiv
    2412.19437).

    Args:
        count: number of experts.
        overrides: fields of `Experts` that replace those from the config's usual attributes.
    """
    if "router_renormalised" not in overrides:
        overrides["router_renormalised"] = config.norm_topk_prob
    if "router_scale" not in overrides:
        overrides["router_scale"] = config.routed_scaling_factor
    if "router_groups" not in overrides:
        overrides["router_groups"], overrides["router_groups_per_token"] = (
            config.n_group,
            config.topk_group,
        )
        overrides["router_group_rank"] = 2
    return Experts.of(
        count=count,
        per_token=config.num_experts_per_tok,
        shared_gated=False,
        router_scores="sigmoid",
        router_corrected=True,
        router_least_sum=1e-20,
        **overrides,
    )


def dense_layers(config: Any) -> tuple[int, ...]:
    """Return the layers without experts, from `mlp_layer_types`."""
    types = fields.per_layer_values(config, "mlp_layer_types")
    if unknown := sorted(set(types) - {"dense", "sparse"}):
        raise InputError(f"mlp_layer_types has {unknown}, expected 'dense' and 'sparse'")
    return tuple(i for i, mlp_type in enumerate(types) if mlp_type == "dense")


def layers_between_steps(config: Any) -> tuple[int, ...]:
    """Return the layers without experts: all but every `decoder_sparse_step`-th, and
    `mlp_only_layers`."""
    step, only = config.decoder_sparse_step, fields.layer_indices(config, "mlp_only_layers")
    if step < 1:
        raise InputError(f"decoder_sparse_step is {step}, expected at least 1")
    layers = range(config.num_hidden_layers)
    return tuple(i for i in layers if i in only or (i + 1) % step or not config.num_experts)


def first_layers(config: Any) -> tuple[int, ...]:
    """Return the first `first_k_dense_replace` layers, which have no experts."""
    return tuple(range(min(config.first_k_dense_replace, config.num_hidden_layers)))


def mlp_fields(
    config: Any,
    experts: Experts,
    width: int,
    plain_layers: tuple[int, ...],
    plain_width: int,
    per_token: str = "num_experts_per_tok",
) -> dict[str, Any]:
    """Return the MLP fields of a decoder in which some layers have a plain MLP instead of experts.

    Args:
        width: the inner width of an expert.
        plain_layers, plain_width: the layers without experts, and the inner width of their MLP.
        per_token: the attribute with the number of experts per token.
    """
    if len(plain_layers) == config.num_hidden_layers:
        return {"mlp_width": plain_width}
    other = OtherMlp(plain_layers, plain_width) if plain_layers else None
    return {"mlp_width": width, "experts": check_counts(experts, per_token), "mlp_other": other}


def split_layers(config: DecoderConfig) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """Return the layers with the main MLP (None for all), and the layers with the other one."""
    if not config.mlps_by_kind:
        return None, ()
    layers_of = config.mlp_kinds()
    return layers_of["main"], layers_of["other"]


def mlp_path(config: DecoderConfig) -> tuple[str, ...]:
    """Return the path of the main MLP."""
    return ("mlps", "main") if config.mlps_by_kind else ("layers", "mlp")


def plain_mlp_sources(config: DecoderConfig, name: str = "mlp") -> Table:
    """Return the sources of the MLPs in layers without experts."""
    if config.experts is None:
        return llama.mlp_sources(config, name)
    _, plain = split_layers(config)
    prefix = f"layers.{{i}}.{name}."
    return mlp_sources(config, ("mlps", "other"), prefix, plain) if plain else {}


def mlp_sources(
    config: DecoderConfig, at: tuple[str, ...], name: str, layers: tuple[int, ...] | None
) -> Table:
    """Return the sources of an MLP with llama's names."""
    table: Table = {}
    for param in ("gate", "up", "down") if config.mlp.gated else ("up", "down"):
        table |= linear((*at, param), f"{name}{param}_proj", config.mlp.bias, layers=layers)
    return table


def fused_expert_sources(
    config: DecoderConfig,
    gate_up: str,
    down: str,
    *,
    transposed: bool | None,
    interleaved: bool = False,
) -> Table:
    """Return the sources of experts in two tensors: all gates and ups, and all downs.

    Args:
        gate_up, down: names of the tensors.
        transposed: if True, the tensors are [E, in, out], otherwise [E, out, in]; None to decide
            by their shape.
        interleaved: if True, gate and up alternate along the outputs, otherwise gate comes first.
    """
    if config.experts is None:
        return {}
    layers, _ = split_layers(config)
    groups = config.mlp.width if interleaved else 1
    table: Table = {}
    for param, name, rows in (
        ("gate", gate_up, Part(groups, 2, 0, 1)),
        ("up", gate_up, Part(groups, 2, 1, 2)),
        ("down", down, None),
    ):
        source = Source(f"{name}[{{j}}]", transposed, rows, layers=layers)
        table["experts", param, "weight"] = source
        if config.experts.bias:
            table["experts", param, "bias"] = Source(
                f"{name}_bias[{{j}}]", part=rows, layers=layers
            )
    return table


def expert_sources(
    config: DecoderConfig,
    layer: str,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    *,
    transposed: bool | None = False,
) -> Table:
    """Return the sources of experts with separate tensors, or fused in two as in transformers 5.

    Args:
        layer: the prefix before `experts`.
        names: the names of gate, up and down if they are separate.
        transposed: see `fused_expert_sources`.
    """
    if config.experts is None:
        return {}
    layers, _ = split_layers(config)
    up, down = (f"{layer}experts.{name}" for name in ("up_proj", "down_proj"))
    if config.mlp.gated:
        gate_up = f"{layer}experts.gate_up_proj"
        table = fused_expert_sources(config, gate_up, down, transposed=transposed)
    else:
        fused = {"up": f"{up}[{{j}}]", "down": f"{down}[{{j}}]"}
        table = {
            ("experts", param, "weight"): Source(name, transposed, layers=layers)
            for param, name in fused.items()
        }
    for param, hf_name in zip(("gate", "up", "down"), names, strict=True):
        if (path := ("experts", param, "weight")) in table:
            name = f"{layer}experts.{{j}}.{hf_name}.weight"
            table[path] = Source(name, layers=layers, otherwise=table[path])
    return table


def router_sources(config: DecoderConfig, name: str, correction: str = CORRECTION) -> Table:
    """Return the sources of the router and, if it has one, the correction of its scores."""
    if config.experts is None:
        return {}
    layers, _ = split_layers(config)
    at = mlp_path(config)
    table = linear((*at, "router"), name, config.experts.router.bias, layers=layers)
    if config.experts.router.corrected:
        table[*at, "correction"] = Source(correction, layers=layers)
    return table


def shared_expert_sources(config: DecoderConfig, name: str) -> Table:
    """Return the sources of the shared MLP that every token runs in addition to its experts."""
    if config.experts is None or not config.experts.shared.width:
        return {}
    return mlp_sources(config, (*mlp_path(config), "shared"), name, split_layers(config)[0])


def sources(config: DecoderConfig, attention: Table, correction: str = CORRECTION) -> Table:
    """Return the sources of a decoder with llama's names and experts in some or all layers.

    Released files have separate experts; transformers 5 may write them fused.

    Args:
        attention: the sources of attention.
        correction: see `router_sources`.
    """
    mlp = "layers.{i}.mlp."
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | attention
        | plain_mlp_sources(config)
        | router_sources(config, mlp + "gate", correction)
        | expert_sources(config, mlp)
        | shared_expert_sources(config, mlp + "shared_experts.")
    )
