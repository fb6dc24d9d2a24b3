"""llama and qwen2: RMS norms, rotary positions, grouped heads, a gated MLP."""

from collections.abc import Mapping
from typing import Any

from jaxscore.device.decoder import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families.family import Family, Path, Source
from jaxscore.models.rope import rotary

ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}

READS = frozenset(
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim hidden_act max_position_embeddings rms_norm_eps rope_theta "
    "rope_scaling tie_word_embeddings".split()
)


def _shared(config: Any, **own: Any) -> DecoderConfig:
    """What the two have in common; `own` is where they differ."""
    if config.hidden_act not in ACTIVATIONS:
        raise InputError(
            f"hidden_act is {config.hidden_act!r}, which is not handled; "
            f"handled are {', '.join(sorted(ACTIVATIONS))}"
        )
    n_heads = config.num_attention_heads
    n_kv_heads = config.num_key_value_heads or n_heads
    if n_heads % n_kv_heads:
        raise InputError(
            f"num_attention_heads {n_heads} is no multiple of num_key_value_heads {n_kv_heads}"
        )
    head_width = getattr(config, "head_dim", None) or config.hidden_size // n_heads
    frequencies, factor = rotary(
        head_width, config.rope_theta, config.rope_scaling, config.max_position_embeddings
    )
    return DecoderConfig(
        **{
            "vocab_size": config.vocab_size,
            "width": config.hidden_size,
            "n_layers": config.num_hidden_layers,
            "n_heads": n_heads,
            "n_kv_heads": n_kv_heads,
            "head_width": head_width,
            "mlp_width": config.intermediate_size,
            "max_positions": config.max_position_embeddings,
            "windows": (0,) * config.num_hidden_layers,
            "norm": "rms",
            "norm_eps": config.rms_norm_eps,
            "activation": ACTIVATIONS[config.hidden_act],
            "gated": True,
            "rotary_frequencies": frequencies,
            "rotary_factor": factor,
            "learned_positions": False,
            "attention_scale": head_width**-0.5,
            "tied": config.tie_word_embeddings,
            **own,
        }
    )


def _llama(config: Any) -> DecoderConfig:
    return _shared(
        config,
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
    )


def _qwen2(config: Any) -> DecoderConfig:
    """Biases on q, k and v alone; a sliding window where `layer_types` says so."""
    kinds = {"full_attention": 0, "sliding_attention": config.sliding_window or 0}
    if unknown := sorted(set(config.layer_types) - set(kinds)):
        raise InputError(f"layer_types has {unknown}, which is not handled")
    windows = tuple(kinds[kind] for kind in config.layer_types)
    if len(windows) != config.num_hidden_layers:
        raise InputError(
            f"layer_types names {len(windows)} layers, num_hidden_layers is "
            f"{config.num_hidden_layers}"
        )
    return _shared(config, qkv_bias=True, out_bias=False, mlp_bias=False, windows=windows)


def _sources(config: DecoderConfig) -> Mapping[Path, Source]:
    layer = "layers.{i}."
    table: dict[Path, Source] = {
        ("embed", "token"): Source("embed_tokens.weight"),
        ("layers", "attention_norm", "scale"): Source(layer + "input_layernorm.weight"),
        ("layers", "mlp_norm", "scale"): Source(layer + "post_attention_layernorm.weight"),
        ("final_norm", "scale"): Source("norm.weight"),
    }
    linears = {
        ("attention", "q"): ("self_attn.q_proj", config.qkv_bias),
        ("attention", "k"): ("self_attn.k_proj", config.qkv_bias),
        ("attention", "v"): ("self_attn.v_proj", config.qkv_bias),
        ("attention", "out"): ("self_attn.o_proj", config.out_bias),
        ("mlp", "gate"): ("mlp.gate_proj", config.mlp_bias),
        ("mlp", "up"): ("mlp.up_proj", config.mlp_bias),
        ("mlp", "down"): ("mlp.down_proj", config.mlp_bias),
    }
    for path, (name, has_bias) in linears.items():
        table["layers", *path, "weight"] = Source(f"{layer}{name}.weight")
        if has_bias:
            table["layers", *path, "bias"] = Source(f"{layer}{name}.bias")
    if not config.tied:
        table["unembed", "weight"] = Source("lm_head.weight")
    return table


LLAMA = Family(
    reads=READS | {"attention_bias", "mlp_bias"},
    translate=_llama,
    sources=_sources,
    prefix="model.",
    buffers=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
)
QWEN2 = Family(
    reads=READS | {"layer_types", "sliding_window", "use_sliding_window", "max_window_layers"},
    translate=_qwen2,
    sources=_sources,
    prefix="model.",
    buffers=LLAMA.buffers,
)
