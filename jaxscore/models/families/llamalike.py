"""llama and mistral, and what is built on them.

RMS norms, rotary positions, grouped heads, a gated MLP.
"""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import parts
from jaxscore.models.families.family import Family, Part, Source, Table

READS = parts.reads(
    "intermediate_size num_key_value_heads hidden_act rms_norm_eps", *parts.SIZES, *parts.ROPE
)


def llamalike(config: Any, **own: Any) -> DecoderConfig:
    """The fields that all of these have; `own` is where one differs."""
    if "rotary" not in own:
        own |= parts.turning(config)
    if "norm_eps" not in own:
        own["norm_eps"] = config.rms_norm_eps
    if "activation" not in own:
        own["activation"] = parts.activation(config)
    return parts.decoder(
        config,
        **{
            "mlp_width": config.intermediate_size,
            "max_positions": config.max_position_embeddings,
            **own,
        },
    )


def attention_sources(config: DecoderConfig, layer: str = "layers.{i}.self_attn.") -> Table:
    """Queries, keys, values and what mixes the heads, each a tensor."""
    at = ("layers", "attention")
    return (
        parts.linear((*at, "q"), layer + "q_proj", config.qkv_bias)
        | parts.linear((*at, "k"), layer + "k_proj", config.qkv_bias)
        | parts.linear((*at, "v"), layer + "v_proj", config.qkv_bias)
        | parts.linear((*at, "out"), layer + "o_proj", config.out_bias)
    )


def mlp_sources(config: DecoderConfig, name: str = "mlp") -> Table:
    """An MLP with a gate or without."""
    path, layer = ("layers", "mlp"), f"layers.{{i}}.{name}."
    table: Table = {}
    for one in ("gate", "up", "down") if config.gated else ("up", "down"):
        table |= parts.linear((*path, one), f"{layer}{one}_proj", config.mlp_bias)
    return table


def fused_mlp_sources() -> Table:
    """A gated MLP without biases, the rows of its gate before those of `up` in one tensor."""
    path, layer = ("layers", "mlp"), "layers.{i}.mlp."
    gate, up = Part(1, 2, 0, 1), Part(1, 2, 1, 2)
    return (
        parts.linear((*path, "gate"), layer + "gate_up_proj", False, part=gate)
        | parts.linear((*path, "up"), layer + "gate_up_proj", False, part=up)
        | parts.linear((*path, "down"), layer + "down_proj", False)
    )


def ends(config: DecoderConfig, plus: float = 0.0) -> Table:
    """Embedding, last norm and unembedding."""
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | parts.norm(("final_norm",), "norm", config.norm_bias, plus)
        | parts.unembedding(config)
    )


def norms_before(config: DecoderConfig, plus: float = 0.0) -> Table:
    """One before attention, and one before the MLP where that has its own."""
    layer, bias = "layers.{i}.", config.norm_bias
    table: Table = parts.norm(("layers", "attention_norm"), layer + "input_layernorm", bias, plus)
    if config.parallel == "shared":
        return table
    name = layer + "post_attention_layernorm"
    return table | parts.norm(("layers", "mlp_norm"), name, bias, plus)


def sources(config: DecoderConfig) -> Table:
    """All tensors of a model of this kind."""
    return ends(config) | norms_before(config) | attention_sources(config) | mlp_sources(config)


def family(translate: Any, *reads: str) -> Family:
    """One that has these tensors and reads these attributes besides."""
    return Family(READS | parts.reads(*reads), translate, sources, buffers=(parts.INV_FREQ,))


def biases(config: Any) -> dict[str, bool]:
    """Where `attention_bias` and `mlp_bias` decide."""
    bias = config.attention_bias
    return {"qkv_bias": bias, "out_bias": bias, "mlp_bias": getattr(config, "mlp_bias", False)}


LLAMA = family(lambda c: llamalike(c, **biases(c)), "head_dim attention_bias mlp_bias")
MISTRAL = family(
    lambda c: llamalike(c, windows=parts.window_everywhere(c)), "head_dim sliding_window"
)
