"""phimoe: mixtral with layer norms, a router that weighs one expert after the other, and other
rotary frequencies for long requests."""

import dataclasses
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.families import llamalike, mixtral, mixtures, parts
from jaxscore.models.families.family import Family
from jaxscore.models.rope import longrope


def _translate(config: Any) -> DecoderConfig:
    parts.refuse(config, num_experts_per_tok=2)  # PyTorch's class runs two, whatever this says
    experts = Experts(
        config.num_local_experts,
        config.num_experts_per_tok,
        renormalised=False,
        scores="sparsemixer",
        jitter=config.router_jitter_noise,
    )
    return llamalike.llamalike(
        config,
        norm="layer",
        norm_bias=True,
        head_bias=config.lm_head_bias,
        experts=mixtures.check_counts(experts),
        windows=parts.window_everywhere(config),
        **llamalike.biases(config),
        **_turning(config),
    )


def _turning(config: Any) -> dict[str, Any]:
    """With longrope, a short and a long request's sine and cosine have factors of their own."""
    if parts.rope_type(config, "default", "longrope") == "default":
        return parts.turning(config)
    given = dict(config.rope_parameters)
    factors = []
    for name in ("short_mscale", "long_mscale"):
        factor = given.pop(name, None)
        if type(factor) not in (int, float) or not factor > 0:
            raise InputError(f"rope_scaling has {name} {factor!r}, expected a positive number")
        factors.append(float(factor))
    tables = longrope(parts.head_width(config), given, config.max_position_embeddings)
    short, long = map(lambda one, by: dataclasses.replace(one, factor=by), tables, factors)
    return parts.turning_by_length(config, short, long)


PHIMOE = Family(
    llamalike.READS
    | parts.reads(
        "attention_bias lm_head_bias sliding_window num_local_experts num_experts_per_tok "
        "router_jitter_noise",
        "hidden_dropout input_jitter_noise",
        mixtures.TRAINING,
    ),
    _translate,
    mixtral.sources,
    buffers=(parts.INV_FREQ,),
)
