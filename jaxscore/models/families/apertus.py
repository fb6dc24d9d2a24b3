"""apertus: an MLP without gate, whose activation has parameters; norms of each head's q and k."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Source, Table
from jaxscore.models.families.qwen import qk_norms

# Of the activation (arXiv 2411.13010): our names and the file's
XIELU = {"above": "alpha_p", "below": "alpha_n", "slope": "beta", "least": "eps"}


def _translate(config: Any) -> DecoderConfig:
    # As the published files have them; PyTorch's class reads neither.
    parts.refuse(config, qk_norm=True, post_norm=False)
    own = config.hidden_act == "xielu"
    return llamalike.llamalike(
        config,
        activation="xielu" if own else parts.activation(config),
        gated=False,
        qk_norm="head",
        **llamalike.biases(config),
    )


def _sources(config: DecoderConfig) -> Table:
    layer, at = "layers.{i}.", ("layers", "mlp", "activation")
    table: Table = llamalike.ends(config) | llamalike.attention_sources(config)
    table |= qk_norms(config) | llamalike.mlp_sources(config)
    table |= parts.norm(("layers", "attention_norm"), layer + "attention_layernorm", False)
    table |= parts.norm(("layers", "mlp_norm"), layer + "feedforward_layernorm", False)
    if config.activation == "xielu":
        for ours, theirs in XIELU.items():
            table[*at, ours] = Source(f"{layer}mlp.act_fn.{theirs}")
    return table


APERTUS = Family(
    llamalike.READS | parts.reads("head_dim attention_bias qk_norm post_norm hidden_dropout"),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)
