"""minimax and minimax_m3_vl_text.

minimax has lightning attention in some layers, experts in all, and norms after each sum. The norm
that PyTorch's class applies before attention is, in our decoder, the norm after the previous layer,
or of the embeddings; our last layer's norm is the model's final norm.

minimax_m3_vl_text has clamped gates in all MLPs, and experts in most layers. In layers of type
SPARSE an indexer chooses blocks of keys for each key head. It chooses all of up to
`index_topk_blocks` blocks, so texts of that length are scored without it, and longer texts are
refused.
"""

import dataclasses
from typing import Any

from jaxscore.device.decoder_config import Clamped, DecoderConfig, Experts, Lightning, Recurrent
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama, mixtral, mixtures
from jaxscore.models.families.family import Part, Source, Table, linear, norm
from jaxscore.models.families.family import unembedding as head_sources
from jaxscore.models.families.hybrid import FULL, LINEAR

# Tables that are computed from `slope_rate`, which is computed too but is read
BUFFERS = (r"layers\.\d+\.self_attn\.(query|key|diagonal)_decay",)
NORM_EPS = 1e-6  # for the norm of lightning attention's outputs, independent of `rms_norm_eps`
SPARSE = "minimax_m3_sparse"
M3_PLUS = 1.0  # added to the scale of every norm of minimax_m3


def _config(config: Any) -> DecoderConfig:
    layers = hybrid.layers_of_type(config, LINEAR, FULL)
    activation: Any = fields.activation(config)
    width = fields.head_width(config)
    mixer = Lightning(config.num_attention_heads, width, activation, NORM_EPS)
    experts = Experts.of(
        count=config.num_local_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=True,
    )

    def factors(half: str) -> tuple[float, float]:
        alpha, beta = (getattr(config, f"{half}_{name}_factor") for name in ("alpha", "beta"))
        return float(alpha), float(beta)

    halves = [factors("linear_attn" if i in layers else "full_attn") + factors("mlp")
              for i in range(config.num_hidden_layers)]  # fmt: skip
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer) if layers else None,
        experts=mixtures.check_counts(experts),
        windows=fields.uniform_window(config),
        norm_place="residual",
        embedding_norm=True,
        head_norm=False,
        sum_factors=tuple(halves),
    )


def _lightning_sources(config: DecoderConfig) -> Table:
    if config.recurrent is None:
        return {}
    mixer = config.recurrent.mixer
    assert isinstance(mixer, Lightning)
    at, name = hybrid.RECURRENT, "layers.{i}.self_attn."
    table: Table = {}
    for k, param in enumerate("qkv"):  # interleaved by head
        table |= linear(
            (*at, param), name + "qkv_proj", False, part=Part(mixer.n_heads, 3, k, k + 1)
        )
    table |= linear((*at, "z"), name + "output_gate", False)
    table[*at, "slope"] = Source(name + "slope_rate")
    table |= norm((*at, "norm"), name + "norm", False)
    return table | linear((*at, "out"), name + "out_proj", False)


def _sources(config: DecoderConfig) -> Table:
    n, layer = config.n_layers, "layers.{i}.block_sparse_moe."
    before = "layers.{i}.input_layernorm.weight"
    following = tuple(range(1, n + 1))
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | {("embed", "norm", "scale"): Source(before.format(i=0))}
        | head_sources(config)
        | norm(("layers", "attention_norm"), "layers.{i}.post_attention_layernorm", False)
        | {
            ("layers", "mlp_norm", "scale"): Source(
                before, layers=following, elsewhere=((n,), "norm.weight")
            )
        }
        | hybrid.by_kind(config, llama.attention_sources(config) | _lightning_sources(config))
        | mixtures.router_sources(config, layer + "gate")
        | mixtures.expert_sources(config, layer, ("w1", "w3", "w2"))
    )


def _unread(config: DecoderConfig) -> tuple[str, ...]:
    return BUFFERS


def _m3_config(config: Any) -> DecoderConfig:
    rotary_dim = config.rope_parameters["partial_rotary_factor"] * fields.head_width(config)
    if config.rotary_dim != rotary_dim:  # transformers' class reads partial_rotary_factor only
        raise InputError(
            f"rotary_dim is {config.rotary_dim}, and partial_rotary_factor makes it {rotary_dim:g}"
        )
    indexed = hybrid.layers_of_type(config, SPARSE, FULL)
    max_indexed = config.index_topk_blocks * config.index_block_size
    if max_indexed < 1:
        raise InputError(
            f"index_topk_blocks * index_block_size is {max_indexed}, expected at least 1"
        )
    experts = Experts.of(
        count=config.num_local_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=True,
        shared_width=config.shared_intermediate_size,
        shared_gated=False,
        router_scores="sigmoid",
        router_corrected=True,
        router_scale=config.routed_scaling_factor,
    )
    longest, plain_layers = config.max_position_embeddings, mixtures.dense_layers(config)
    width, dense = config.intermediate_size, config.dense_intermediate_size
    return llama.llama_config(
        config,
        mlp_activation="silu",  # unused, since every gate is clamped
        mlp_clamped=Clamped(config.swiglu_limit, config.swiglu_alpha),
        qk_norm_kind="head",
        max_positions=min(max_indexed, longest) if indexed else longest,
        **mixtures.mlp_fields(config, experts, width, plain_layers, dense),
    )


def _m3_sources(config: DecoderConfig) -> Table:
    """Return the sources of minimax_m3.

    Gate and up are two tensors in released files, and one in files that transformers writes.
    """
    mlp = "layers.{i}.mlp."
    table = mixtures.plain_mlp_sources(config)
    table |= mixtures.shared_expert_sources(config, mlp + "shared_experts.")
    for path, source in table.items():
        if (name := path[-2]) != "down":
            joined = source.name.replace(f"{name}_proj", "gate_up_proj")
            rows = Part(1, 2, 0, 1) if name == "gate" else Part(1, 2, 1, 2)
            other = Source(joined, part=rows, layers=source.layers)
            table[path] = dataclasses.replace(source, otherwise=other)
    return (
        llama.embedding_sources(config, M3_PLUS)
        | llama.pre_norm_sources(config, M3_PLUS)
        | llama.attention_sources(config)
        | llama.qk_norm_sources(config, M3_PLUS)
        | mixtures.router_sources(config, mlp + "gate")
        | table
        | mixtures.expert_sources(config, mlp, ("w1", "w3", "w2"))
    )


def _m3_unread(config: DecoderConfig) -> tuple[str, ...]:
    return (r"layers\.\d+\.self_attn\.index(er\.[qk]|_[qk])_(proj|norm)\..+", r"mtp\..+")


FAMILIES = {
    "minimax": llama.family(
        _config,
        "block_size head_dim layer_types sliding_window num_local_experts num_experts_per_tok",
        "full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor",
        "linear_attn_beta_factor mlp_alpha_factor mlp_beta_factor router_jitter_noise",
        mixtures.TRAINING,
        sources=_sources,
        unread=_unread,
        renamed=mixtral.MIXTRAL,
    ),
    "minimax_m3_vl_text": llama.family(
        _m3_config,
        "dense_intermediate_size head_dim index_block_size index_head_dim index_local_blocks",
        "index_n_heads index_topk_blocks layer_types mlp_layer_types moe_layer_freq",
        "num_experts_per_tok num_local_experts rotary_dim routed_scaling_factor",
        "router_jitter_noise shared_intermediate_size sparse_attention_config swiglu_alpha",
        "swiglu_limit",
        mixtures.TRAINING,
        sources=_m3_sources,
        unread=_m3_unread,
        unread_part="indexers",
        limit_reason="beyond index_topk_blocks blocks of keys an indexer chooses among them, which "
        "is not covered",
        renamed={
            ".block_sparse_moe.e_score_": ".mlp.gate.e_score_",
            ".block_sparse_moe.": ".mlp.",
        },
    ),
}
