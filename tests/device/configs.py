"""Small decoders, as data."""

import dataclasses

from jaxscore.device.attention.score_rule import Alibi, ScoreRule
from jaxscore.device.decoder_config import DecoderConfig, Group, Rotary


def flat_fields(config: Group) -> dict:
    """Return the fields of a config as `of` takes them."""
    out = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        is_group = isinstance(value, Group) and field.default is not None
        out |= flat_fields(value) if is_group else {config.prefix + field.name: value}
    return out


def llamalike(**own) -> DecoderConfig:
    """RMS norms, rotary positions, two query heads to a key head, a gated MLP."""
    head_width = own.get("head_width", 8)
    pairs = head_width // 2
    return DecoderConfig.of(
        **{
            "vocab_size": 50,
            "width": 24,
            "n_layers": 2,
            "n_heads": 4,
            "n_kv_heads": 2,
            "head_width": head_width,
            "mlp_width": 40,
            "max_positions": 512,
            "windows": (0, 0),
            "norm_kind": "rms",
            "norm_eps": 1e-6,
            "mlp_activation": "silu",
            "mlp_gated": True,
            "rotary": (Rotary(tuple(100.0 ** -(c / pairs) for c in range(pairs))),),
            "rotary_of": (0,) * own.get("n_layers", 2),
            "score_scale": head_width**-0.5,
            "qkv_bias": True,
            "out_bias": False,
            "mlp_bias": False,
            "head_tied": True,
            **own,
        }
    )


def gpt2like(**own) -> DecoderConfig:
    """Layer norms, learned positions, a plain MLP, biases everywhere."""
    return llamalike(
        **{
            "n_kv_heads": 4,
            "norm_kind": "layer",
            "norm_bias": True,
            "mlp_activation": "gelu_tanh",
            "mlp_gated": False,
            "rotary": (),
            "rotary_of": (),
            "learned_positions": True,
            "out_bias": True,
            "mlp_bias": True,
            "head_tied": False,
            **own,
        }
    )


def rules(n_heads: int) -> dict[str, ScoreRule]:
    """Every term that attention scores can have, large enough to show."""
    slopes = tuple(0.9 / (k + 1) for k in range(n_heads))
    return {
        "scaled": ScoreRule(0.5),
        "capped": ScoreRule(0.5, softcap=0.8),
        "alibi": ScoreRule(0.5, alibi=Alibi(slopes)),
        "coarse": ScoreRule(0.5, alibi=Alibi(slopes, 0.7, coarse=True)),
    }
