"""minimax: lightning attention in some layers, experts in all; the stream is normed between halves.

Norms are after each sum: those that PyTorch's class has before attention norm the embeddings and
what the layer before gives, and the last is the model's.
"""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, Lightning, Recurrent
from jaxscore.models.families import fields, hybrid, llama, mixtral, mixtures
from jaxscore.models.families.family import Part, Source, Table, linear, norm
from jaxscore.models.families.family import unembedding as head_sources
from jaxscore.models.families.hybrid import FULL, LINEAR

# Computed from others, as are the decays of each head themselves, which are read
BUFFERS = (r"layers\.\d+\.self_attn\.(query|key|diagonal)_decay",)
NORM_EPS = 1e-6  # of lightning attention's outputs, independent of `rms_norm_eps`


def _config(config: Any) -> DecoderConfig:
    layers = hybrid.layers_of_type(config, LINEAR, FULL)
    activation: Any = fields.activation(config)
    width = fields.head_width(config)
    mixer = Lightning(config.num_attention_heads, width, activation, NORM_EPS)
    experts = Experts(config.num_local_experts, config.num_experts_per_tok, renormalised=True)

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
        final_norm=False,
        sum_factors=tuple(halves),
    )


def _lightning_sources(config: DecoderConfig) -> Table:
    if config.recurrent is None:
        return {}
    mixer = config.recurrent.mixer
    assert isinstance(mixer, Lightning)
    at, name = hybrid.RECURRENT, "layers.{i}.self_attn."
    table: Table = {}
    for k, ours in enumerate("qkv"):  # beside each other in each head
        table |= linear(
            (*at, ours), name + "qkv_proj", False, part=Part(mixer.n_heads, 3, k, k + 1)
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
    )
}
