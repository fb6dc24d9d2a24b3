"""gpt2: layer norms, learned positions, q, k and v in one tensor, weights [in, out]."""

from collections.abc import Mapping
from typing import Any

from jaxscore.device.decoder import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families.family import Family, Path, Source

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}


def _translate(config: Any) -> DecoderConfig:
    if config.activation_function not in ACTIVATIONS:
        raise InputError(
            f"activation_function is {config.activation_function!r}, which is not handled; "
            f"handled are {', '.join(sorted(ACTIVATIONS))}"
        )
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if getattr(config, name):
            raise InputError(f"{name} is true, which is not handled")
    head_width = config.n_embd // config.n_head
    return DecoderConfig(
        vocab_size=config.vocab_size,
        width=config.n_embd,
        n_layers=config.n_layer,
        n_heads=config.n_head,
        n_kv_heads=config.n_head,
        head_width=head_width,
        mlp_width=config.n_inner or 4 * config.n_embd,
        max_positions=config.n_positions,
        windows=(0,) * config.n_layer,
        norm="layer",
        norm_eps=config.layer_norm_epsilon,
        activation=ACTIVATIONS[config.activation_function],
        gated=False,
        rotary_frequencies=(),
        rotary_factor=1.0,
        learned_positions=True,
        attention_scale=head_width**-0.5 if config.scale_attn_weights else 1.0,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tied=config.tie_word_embeddings,
    )


def _sources(config: DecoderConfig) -> Mapping[Path, Source]:
    layer = "h.{i}."
    table: dict[Path, Source] = {
        ("embed", "token"): Source("wte.weight"),
        ("embed", "position"): Source("wpe.weight"),
    }
    for path, name in {
        ("layers", "attention_norm"): layer + "ln_1",
        ("layers", "mlp_norm"): layer + "ln_2",
        ("final_norm",): "ln_f",
    }.items():
        table[*path, "scale"] = Source(name + ".weight")
        table[*path, "bias"] = Source(name + ".bias")
    for path, name, part in (
        (("attention", "q"), "attn.c_attn", (0, 3)),
        (("attention", "k"), "attn.c_attn", (1, 3)),
        (("attention", "v"), "attn.c_attn", (2, 3)),
        (("attention", "out"), "attn.c_proj", None),
        (("mlp", "up"), "mlp.c_fc", None),
        (("mlp", "down"), "mlp.c_proj", None),
    ):
        table["layers", *path, "weight"] = Source(f"{layer}{name}.weight", True, part)
        table["layers", *path, "bias"] = Source(f"{layer}{name}.bias", False, part)
    if not config.tied:
        table["unembed", "weight"] = Source("lm_head.weight")
    return table


GPT2 = Family(
    # reorder_and_upcast_attn changes rounding in half precision only; ours is float32 anyway.
    reads=frozenset(
        "vocab_size n_positions n_embd n_layer n_head n_inner activation_function "
        "layer_norm_epsilon scale_attn_weights scale_attn_by_inverse_layer_idx "
        "reorder_and_upcast_attn add_cross_attention tie_word_embeddings".split()
    ),
    translate=_translate,
    sources=_sources,
    prefix="transformer.",
    buffers=(r"h\.\d+\.attn\.(bias|masked_bias)",),
)
