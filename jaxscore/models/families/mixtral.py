"""mixtral: llama with a mixture of experts in each layer."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Table


def _translate(config: Any) -> DecoderConfig:
    count, chosen = config.num_local_experts, config.num_experts_per_tok
    if not 1 <= chosen <= count:
        raise InputError(
            f"num_experts_per_tok is {chosen}, expected 1 to num_local_experts {count}"
        )
    return llamalike.llamalike(
        config,
        experts=Experts(count, chosen, renormalised=True),
        windows=parts.window_everywhere(config),
    )


def sources(config: DecoderConfig) -> Table:
    """All tensors of a model of this kind."""
    layer = "layers.{i}.block_sparse_moe."
    table: Table = llamalike.ends(config) | llamalike.norms_before(config)
    table |= llamalike.attention_sources(config)
    table |= parts.linear(("layers", "mlp", "router"), layer + "gate", False)
    for ours, theirs in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        table |= parts.linear(("experts", ours), f"{layer}experts.{{j}}.{theirs}", False)
    return table


MIXTRAL = Family(
    # The last line is for training.
    llamalike.READS
    | parts.reads(
        "head_dim sliding_window num_local_experts num_experts_per_tok",
        "output_router_logits router_aux_loss_coef router_jitter_noise",
    ),
    _translate,
    sources,
    buffers=(parts.INV_FREQ,),
)
