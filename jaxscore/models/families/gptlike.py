"""What gpt2, gpt_neo and gptj share: layer norms, a plain MLP, tensors under `h`."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import parts
from jaxscore.models.families.family import Source, Table

BUFFERS = (r"h\.\d+\.attn\.(attention\.)?(bias|masked_bias)",)


def gptlike(config: Any, **own: Any) -> DecoderConfig:
    """The fields that the three have; `own` is where one differs."""
    return parts.decoder(
        config,
        **{
            "max_positions": config.max_position_embeddings,
            "norm": "layer",
            "norm_bias": True,
            "norm_eps": config.layer_norm_epsilon,
            "activation": parts.activation(config, "activation_function"),
            "gated": False,
            "mlp_bias": True,
            **own,
        },
    )


def sources(config: DecoderConfig, mlp: tuple[str, str] = ("c_fc", "c_proj")) -> Table:
    """All tensors but those of attention; `mlp` has the names of its products."""
    layer, conv = "h.{i}.", config.qkv_bias  # of the three gpt2 alone stores [in, out]
    table: Table = {("embed", "token"): Source("wte.weight")}
    table |= parts.norm(("layers", "attention_norm"), layer + "ln_1", True)
    table |= parts.norm(("final_norm",), "ln_f", True)
    if config.learned_positions:
        table["embed", "position"] = Source("wpe.weight")
    if config.parallel == "no":
        table |= parts.norm(("layers", "mlp_norm"), layer + "ln_2", True)
    for ours, theirs in zip(("up", "down"), mlp, strict=True):
        name = f"{layer}mlp.{theirs}"
        table |= parts.linear(("layers", "mlp", ours), name, True, transposed=conv)
    return table | parts.unembedding(config)


def projected(layer: str, out_bias: bool) -> Table:
    """Queries, keys, values and what mixes the heads, without biases but for the last."""
    at = ("layers", "attention")
    table: Table = parts.linear((*at, "out"), layer + "out_proj", out_bias)
    for name in "qkv":
        table |= parts.linear((*at, name), f"{layer}{name}_proj", False)
    return table
