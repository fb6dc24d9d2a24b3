"""Every family's tiny config, and what of it is compared with torch, refused, or without effect.

`CASES` are configs on which every token must agree with torch. Beside each stand the attributes
that torch itself must be seen to answer to: with the same weights and one of them as the base or
the class has it (a name), or set to another value (a dictionary), torch's numbers must move. An
implementation that ignored the attribute would agree with the moved ones. What decides which
tensors there are needs no such proof.

Every attribute that a family reads is in `BASE`, in a case, in `REFUSED` or in `WITHOUT_EFFECT`.
"""

from typing import Any, NamedTuple

VOCABULARY = 211  # a prime: no block or shard divides it
POSITIONS = 48  # a row of 64 is longer than the model

GPT = {"vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": 32, "n_layer": 2, "n_head": 4}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
}
GATED = {**SIZES, "intermediate_size": 56, "num_key_value_heads": 2}
OWN_HEADS = {**GATED, "head_dim": 12}
MIXTURE = {"moe_intermediate_size": 24, "num_experts": 5, "num_experts_per_tok": 2}

BASE: dict[str, dict[str, Any]] = {
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 36, "n_layer": 2, "n_head": 6},
    "cohere": GATED,
    "falcon": SIZES,
    "gemma": OWN_HEADS,
    "gemma2": {
        **OWN_HEADS,
        "sliding_window": 5,
        "query_pre_attn_scalar": 10,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        **OWN_HEADS,
        "sliding_window": 5,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 10,
    },
    "gpt2": GPT,
    "gpt_neo": {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 5,
    },
    "gpt_neox": {**SIZES, "intermediate_size": 56, "rotary_pct": 0.5},
    "gptj": {**GPT, "rotary_dim": 4},
    "granite": GATED,
    "llama": GATED,
    "mistral": {**GATED, "sliding_window": 5},
    "mixtral": {**GATED, "num_local_experts": 5, "num_experts_per_tok": 2},
    "olmo2": GATED,
    "opt": {**SIZES, "ffn_dim": 56},
    "phi": GATED,
    "phi3": GATED,
    "qwen2": GATED,
    "qwen2_moe": {**GATED, **MIXTURE, "shared_expert_intermediate_size": 40},
    "qwen3": OWN_HEADS,
    "qwen3_moe": {**OWN_HEADS, **MIXTURE},
    "smollm3": {**GATED, "num_hidden_layers": 4},
    "stablelm": {**GATED, "partial_rotary_factor": 0.5},
    "starcoder2": GATED,
}


class Case(NamedTuple):
    """A config over a family's base, and what in it torch answers to, apart by apart."""

    kind: str
    config: dict[str, Any]
    without: tuple[str | dict[str, Any], ...] = ()


def case(kind: str, *without: str | dict[str, Any], **config: Any) -> Case:
    """One more line of `CASES`; a string of `without` may name several attributes."""
    apart = [one for some in without for one in (some.split() if isinstance(some, str) else [some])]
    return Case(kind, config, tuple(apart))


LINEAR = {"rope_type": "linear", "factor": 2.5}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16}
# Few channels and a short length leave no ramp at the usual turns; here it is two channels wide.
SLOW_YARN = YARN | {"beta_fast": 2.0, "beta_slow": 0.25}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.2, 1.5, 2.0],
    "long_factor": [1.5, 2.0, 4.0, 8.0],
}


def scaled(values: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rope_scaling": values | more}


WINDOW = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
SLIDING, FULL = "sliding_attention", "full_attention"
LLAMALIKE = {"rms_norm_eps": 0.1, "hidden_act": "gelu", "rope_theta": 300.0}
LLAMALIKE_NAMES = "rms_norm_eps hidden_act rope_theta"

CASES = [
    case("bloom"),
    case(
        "bloom",
        "layer_norm_epsilon n_head",
        n_head=4,  # a power of two, whose slopes are of one kind
        tie_word_embeddings=False,
        layer_norm_epsilon=0.1,
    ),
    case("cohere"),
    case(
        "cohere",
        "layer_norm_eps hidden_act rope_theta logit_scale",
        use_qk_norm=True,
        attention_bias=True,
        tie_word_embeddings=False,
        layer_norm_eps=0.1,
        hidden_act="gelu",
        rope_theta=300.0,
        logit_scale=0.25,
    ),
    case("cohere", "rope_scaling", num_key_value_heads=1, **scaled(LINEAR)),
    # One key head, and one norm for attention and MLP.
    case("falcon"),
    # Groups of heads, and norms for each half; the same with one norm, and with no groups.
    case(
        "falcon",
        "rope_theta layer_norm_epsilon activation",
        new_decoder_architecture=True,
        num_kv_heads=2,
        rope_theta=300.0,
        layer_norm_epsilon=0.1,
        activation="relu",
    ),
    case(
        "falcon",
        "rope_scaling",
        new_decoder_architecture=True,
        num_kv_heads=2,
        num_ln_in_parallel_attn=1,
        bias=True,
        tie_word_embeddings=False,
        **scaled(SLOW_YARN),
    ),
    case("falcon", new_decoder_architecture=True, num_kv_heads=4, num_ln_in_parallel_attn=2),
    # All heads, one half after the other, with ALiBi and without.
    case(
        "falcon",
        "alibi num_attention_heads",
        hidden_size=36,
        num_attention_heads=6,
        multi_query=False,
        parallel_attn=False,
        bias=True,
        alibi=True,
    ),
    case("falcon", multi_query=False, ffn_hidden_size=40),
    case("falcon", "alibi", alibi=True, parallel_attn=False),
    case("gemma"),
    case(
        "gemma",
        LLAMALIKE_NAMES,
        attention_bias=True,
        tie_word_embeddings=False,
        num_key_value_heads=1,
        **LLAMALIKE,
    ),
    case("gemma", "rope_scaling", hidden_activation="gelu_pytorch_tanh", **scaled(LINEAR)),
    case(
        "gemma2",
        "sliding_window query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping",
        {"layer_types": [FULL, SLIDING]},
    ),
    case(
        "gemma2",
        "rms_norm_eps hidden_activation rope_theta layer_types",
        attention_bias=True,
        tie_word_embeddings=False,
        rms_norm_eps=0.1,
        hidden_activation="relu",
        rope_theta=300.0,
        layer_types=[FULL, SLIDING],
    ),
    case(
        "gemma2",
        "rope_scaling",
        {"attn_logit_softcapping": 2.0},
        {"final_logit_softcapping": 3.0},
        head_dim=8,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        **scaled(SLOW_YARN),
    ),
    case(
        "gemma3_text",
        "sliding_window sliding_window_pattern query_pre_attn_scalar",
    ),
    case(
        "gemma3_text",
        "rms_norm_eps hidden_activation rope_theta rope_local_base_freq final_logit_softcapping",
        attention_bias=True,
        tie_word_embeddings=False,
        rms_norm_eps=0.1,
        hidden_activation="relu",
        rope_theta=300.0,
        rope_local_base_freq=30.0,
        final_logit_softcapping=3.0,
    ),
    case(
        "gemma3_text",
        "rope_scaling layer_types",
        num_hidden_layers=3,
        layer_types=[FULL, SLIDING, FULL],
        **scaled(LINEAR),
    ),
    case("gpt2"),
    case(
        "gpt2",
        "activation_function layer_norm_epsilon scale_attn_weights",
        n_inner=40,
        tie_word_embeddings=False,
        activation_function="gelu",
        layer_norm_epsilon=0.1,
        scale_attn_weights=False,
    ),
    case(
        "gpt2",
        "activation_function n_head",
        n_layer=1,
        n_head=1,
        activation_function="relu",
        reorder_and_upcast_attn=True,
    ),
    case("gpt2", "activation_function", n_layer=3, activation_function="silu"),
    case("gpt_neo", "window_size", {"attention_types": [[["local"], 2]]}),
    case(
        "gpt_neo",
        "attention_layers activation_function layer_norm_epsilon",
        attention_layers=["local", "global"],
        activation_function="relu",
        layer_norm_epsilon=0.1,
        intermediate_size=40,
        tie_word_embeddings=False,
    ),
    case("gpt_neox", "rotary_pct"),
    case(
        "gpt_neox",
        "use_parallel_residual rotary_emb_base hidden_act layer_norm_eps",
        use_parallel_residual=False,
        rotary_emb_base=300.0,
        rotary_pct=1.0,
        hidden_act="gelu_new",
        layer_norm_eps=0.1,
        attention_bias=False,
        tie_word_embeddings=True,
    ),
    case("gpt_neox", "rope_scaling", **scaled(SLOW_YARN)),
    case("gptj", {"rotary_dim": 6}),
    case(
        "gptj",
        "activation_function layer_norm_epsilon",
        rotary_dim=8,
        n_inner=40,
        tie_word_embeddings=True,
        activation_function="relu",
        layer_norm_epsilon=0.1,
    ),
    case("granite"),
    case(
        "granite",
        LLAMALIKE_NAMES,
        "embedding_multiplier logits_scaling residual_multiplier attention_multiplier",
        embedding_multiplier=3.0,
        logits_scaling=1.7,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
        attention_bias=True,
        tie_word_embeddings=True,
        **LLAMALIKE,
    ),
    case("granite", "rope_scaling", mlp_bias=True, num_key_value_heads=4, **scaled(LINEAR)),
    case("llama"),
    case(
        "llama",
        LLAMALIKE_NAMES,
        {"hidden_act": "gelu_pytorch_tanh"},
        attention_bias=True,
        tie_word_embeddings=True,
        head_dim=12,
        num_key_value_heads=1,
        num_hidden_layers=1,
        **LLAMALIKE,
    ),
    case(
        "llama",
        "rope_scaling",
        mlp_bias=True,
        num_key_value_heads=4,
        num_hidden_layers=3,
        rope_scaling={"type": "linear", "factor": 2.5},
    ),
    case(
        "llama",
        "rope_scaling",
        scaled(LLAMA3, original_max_position_embeddings=32),
        scaled(LLAMA3, high_freq_factor=2.0),
        scaled(LLAMA3, low_freq_factor=0.25),
        scaled(LLAMA3, factor=4.0),
        **scaled(LLAMA3),
    ),
    case("llama", "rope_scaling", scaled(YARN, factor=4.0), **scaled(YARN)),
    case("llama", "rope_scaling", rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    case("llama", scaled(YARN), **scaled(YARN, attention_factor=1.5)),
    case("llama", scaled(YARN), **scaled(YARN, mscale=2.0, mscale_all_dim=0.5)),
    case(
        "llama",
        scaled(YARN),
        scaled(SLOW_YARN, beta_slow=1.0),
        **scaled(SLOW_YARN),
    ),
    case(
        "llama",
        scaled(SLOW_YARN),
        scaled(SLOW_YARN, truncate=False, beta_fast=1.0),
        scaled(SLOW_YARN, truncate=False, original_max_position_embeddings=32),
        **scaled(SLOW_YARN, truncate=False),
    ),
    case("llama", **scaled(DYNAMIC)),  # plain up to `max_position_embeddings`
    case("mistral", "sliding_window"),
    case(
        "mistral",
        LLAMALIKE_NAMES,
        "rope_scaling sliding_window",
        sliding_window=None,
        head_dim=12,
        tie_word_embeddings=True,
        **LLAMALIKE,
        **scaled(LINEAR),
    ),
    case("mixtral", {"num_experts_per_tok": 1}),
    case(
        "mixtral",
        LLAMALIKE_NAMES,
        "sliding_window num_experts_per_tok",
        num_experts_per_tok=3,
        sliding_window=7,
        head_dim=12,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        **LLAMALIKE,
    ),
    case("mixtral", "rope_scaling", num_local_experts=3, num_experts_per_tok=3, **scaled(LINEAR)),
    case("olmo2"),
    case(
        "olmo2",
        LLAMALIKE_NAMES,
        attention_bias=True,
        tie_word_embeddings=True,
        num_key_value_heads=1,
        **LLAMALIKE,
    ),
    case("olmo2", "rope_scaling", rope_scaling={"type": "linear", "factor": 2.5}),
    case("opt"),
    case("opt", do_layer_norm_before=False, word_embed_proj_dim=24, enable_bias=False),
    case(
        "opt",
        "do_layer_norm_before activation_function",
        do_layer_norm_before=False,
        _remove_final_layer_norm=True,
        activation_function="gelu",
        tie_word_embeddings=False,
    ),
    case("opt", _remove_final_layer_norm=True, word_embed_proj_dim=40, tie_word_embeddings=False),
    case("phi", {"partial_rotary_factor": 1.0}),
    case(
        "phi",
        "partial_rotary_factor layer_norm_eps hidden_act rope_theta",
        qk_layernorm=True,
        tie_word_embeddings=True,
        num_key_value_heads=4,
        partial_rotary_factor=0.75,
        layer_norm_eps=0.1,
        hidden_act="gelu",
        rope_theta=300.0,
    ),
    case("phi", "rope_scaling", **scaled(SLOW_YARN)),
    case("phi3"),
    case(
        "phi3",
        LLAMALIKE_NAMES,
        "sliding_window partial_rotary_factor",
        sliding_window=7,
        partial_rotary_factor=0.5,
        tie_word_embeddings=True,
        **LLAMALIKE,
    ),
    # Requests of up to 16 tokens have other frequencies than longer ones, in one call.
    case(
        "phi3",
        "rope_scaling original_max_position_embeddings",
        scaled(LONGROPE, short_factor=LONGROPE["long_factor"]),
        scaled(LONGROPE, long_factor=LONGROPE["short_factor"]),
        original_max_position_embeddings=16,
        **scaled(LONGROPE),
    ),
    case(
        "phi3",
        original_max_position_embeddings=16,
        partial_rotary_factor=0.5,
        rope_scaling={"type": "su", "short_factor": [1.0, 2.0], "long_factor": [1.5, 8.0]},
    ),
    case("qwen2"),
    case(
        "qwen2",
        LLAMALIKE_NAMES,
        "use_sliding_window sliding_window max_window_layers",
        tie_word_embeddings=True,
        num_key_value_heads=1,
        **LLAMALIKE,
        **WINDOW,
    ),
    case(
        "qwen2",
        "rope_scaling layer_types",
        use_sliding_window=True,
        sliding_window=5,
        layer_types=[SLIDING, FULL],
        **scaled(YARN),
    ),
    case("qwen2_moe", {"norm_topk_prob": True}),
    case(
        "qwen2_moe",
        LLAMALIKE_NAMES,
        "norm_topk_prob num_experts_per_tok",
        qkv_bias=False,
        norm_topk_prob=True,
        num_experts_per_tok=3,
        tie_word_embeddings=True,
        **LLAMALIKE,
    ),
    case("qwen2_moe", "rope_scaling", num_experts_per_tok=1, **scaled(YARN)),
    case("qwen3"),
    case(
        "qwen3",
        LLAMALIKE_NAMES,
        "use_sliding_window sliding_window max_window_layers",
        attention_bias=True,
        tie_word_embeddings=True,
        num_key_value_heads=1,
        **LLAMALIKE,
        **WINDOW,
    ),
    case(
        "qwen3",
        "rope_scaling layer_types",
        use_sliding_window=True,
        sliding_window=5,
        layer_types=[SLIDING, FULL],
        **scaled(YARN),
    ),
    case("qwen3_moe", {"norm_topk_prob": True}),
    case(
        "qwen3_moe",
        LLAMALIKE_NAMES,
        "norm_topk_prob num_experts_per_tok use_sliding_window sliding_window",
        attention_bias=True,
        norm_topk_prob=True,
        num_experts_per_tok=3,
        use_sliding_window=True,
        sliding_window=5,
        tie_word_embeddings=True,
        **LLAMALIKE,
    ),
    case("qwen3_moe", "rope_scaling", **scaled(YARN)),
    case("smollm3", {"no_rope_layers": [1, 1, 1, 1]}),  # the fourth has none
    case(
        "smollm3",
        LLAMALIKE_NAMES,
        "no_rope_layers use_sliding_window sliding_window",
        no_rope_layers=[1, 0, 0, 1],
        use_sliding_window=True,
        sliding_window=5,
        attention_bias=True,
        tie_word_embeddings=False,
        **LLAMALIKE,
    ),
    case(
        "smollm3",
        "no_rope_layer_interval rope_scaling layer_types",
        num_hidden_layers=2,
        no_rope_layer_interval=2,
        sliding_window=5,
        layer_types=[SLIDING, FULL],  # whatever use_sliding_window says
        mlp_bias=True,
        **scaled(YARN),
    ),
    case("stablelm", "partial_rotary_factor"),
    case(
        "stablelm",
        "layer_norm_eps hidden_act rope_theta",
        qk_layernorm=True,
        use_parallel_residual=True,
        use_qkv_bias=True,
        tie_word_embeddings=True,
        partial_rotary_factor=1.0,
        layer_norm_eps=0.1,
        hidden_act="gelu",
        rope_theta=300.0,
    ),
    case("stablelm", "rope_scaling", num_key_value_heads=4, **scaled(SLOW_YARN)),
    case("starcoder2"),
    case(
        "starcoder2",
        "norm_epsilon hidden_act rope_theta sliding_window",
        use_bias=False,
        tie_word_embeddings=False,
        num_key_value_heads=1,
        sliding_window=5,
        norm_epsilon=0.1,
        hidden_act="gelu",
        rope_theta=300.0,
    ),
    case("starcoder2", "rope_scaling", **scaled(YARN)),
]

# kind, attributes that torch's class would take, what the refusal says of them
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "bloom",
        {"apply_residual_connection_post_layernorm": True},
        "apply_residual_connection_post_layernorm is True",
    ),
    # With both, torch's class leaves two biases out.
    ("bloom", {"slow_but_exact": True, "pretraining_tp": 2}, "slow_but_exact is True"),
    ("bloom", {"attention_softmax_in_fp32": False}, "attention_softmax_in_fp32 is False"),
    ("bloom", {"offset_alibi": 0}, "offset_alibi is 0"),
    ("bloom", {"skip_bias_add": False}, "skip_bias_add is False"),
    ("bloom", {"skip_bias_add_qkv": True}, "skip_bias_add_qkv is True"),
    ("cohere", {"mlp_bias": True}, "mlp_bias=True"),
    (
        "falcon",
        {"num_ln_in_parallel_attn": 2, "new_decoder_architecture": False},
        "num_ln_in_parallel_attn is 2",
    ),
    (
        "falcon",
        {"parallel_attn": False, "new_decoder_architecture": True},
        "parallel_attn is False",
    ),
    # Which of the two counts has changed over time.
    (
        "gemma",
        {"hidden_activation": "gelu", "hidden_act": "gelu_pytorch_tanh"},
        "hidden_activation is 'gelu'",
    ),
    ("gemma2", {"sliding_window_size": 6}, "sliding_window_size is 6"),
    # torch's class takes it and does not apply it.
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    ("gpt2", {"activation_function": "mish"}, "activation_function is 'mish'"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ("gpt2", {"rotary_dim": 8}, "rotary_dim=8"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gptj", {"rotary": False}, "rotary is False"),
    ("gptj", {"rotary_dim": None}, "rotary_dim is None"),
    ("gptj", {"scale_attn_weights": False}, "scale_attn_weights is False"),
    ("llama", {"hidden_act": "mish"}, "hidden_act is 'mish'"),
    ("llama", {"logits_scaling": 8}, "logits_scaling=8"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ("llama", {"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters="),
    ("llama", scaled(LONGROPE, factor=2.0), "rope_type 'longrope', which is not handled"),
    ("llama", {"sliding_window": 4}, "sliding_window=4"),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ("mistral", {"layer_types": [SLIDING, FULL]}, "layer_types="),
    ("olmo2", {"layer_types": [SLIDING, FULL]}, "layer_types="),
    ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is False"),
    ("opt", {"learned_embeddings": True}, "learned_embeddings=True"),
    ("phi3", {"attention_bias": True}, "attention_bias=True"),
    ("phi3", {"full_attn_mod": 2}, "full_attn_mod is 2"),
    ("phi3", {"interpolate_factor": 2}, "interpolate_factor is 2"),
    ("qwen2", {"attention_bias": True}, "attention_bias=True"),
    ("qwen2_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    ("qwen2_moe", {"mlp_only_layers": [0]}, "mlp_only_layers is [0]"),
    # Its class windows the first layers, qwen2's the last ones.
    ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window is True"),
    ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    ("qwen3_moe", {"mlp_only_layers": [1]}, "mlp_only_layers is [1]"),
    ("starcoder2", {"activation_function": "relu"}, "activation_function is 'relu'"),
    ("starcoder2", {"attention_softmax_in_fp32": False}, "attention_softmax_in_fp32 is False"),
    ("starcoder2", {"layer_norm_epsilon": 0.1}, "layer_norm_epsilon is 0.1"),
    ("starcoder2", {"mlp_type": "gated"}, "mlp_type is 'gated'"),
    ("starcoder2", {"norm_type": "rms"}, "norm_type is 'rms'"),
    ("starcoder2", {"scale_attention_softmax_in_fp32": False}, "in_fp32 is False"),
    ("starcoder2", {"scale_attn_weights": False}, "scale_attn_weights is False"),
]
# The same for values that make no model
UNUSABLE: list[tuple[str, dict[str, Any], str]] = [
    (
        "falcon",
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 3},
        "num_ln_in_parallel_attn is 3",
    ),
    ("gemma2", {"sliding_window": 0}, "sliding_window is 0"),
    ("gemma2", {"sliding_window": None}, "sliding_window is None"),
    ("gpt2", {"n_head": 0}, "sizes that make no model"),
    ("gpt2", {"n_inner": "abc"}, "'abc'"),
    ("gpt2", {"n_layer": 0}, "n_layers comes out as 0"),
    ("gpt_neo", {"attention_layers": ["global", "near"]}, "attention_layers has ['near']"),
    ("gpt_neo", {"attention_layers": ["local"]}, "attention_layers is ['local'], expected"),
    ("gpt_neo", {"window_size": 0}, "window_size is 0"),
    ("gpt_neox", {"rotary_pct": 0.4}, "rotary channels of a head come out as 3"),
    ("gptj", {"rotary_dim": 3}, "rotary channels of a head come out as 3"),
    ("llama", {"attention_bias": 1}, "attention_bias is 1"),
    ("llama", {"head_dim": 7}, "rotary channels of a head come out as 7"),
    ("llama", {"hidden_act": ["silu"]}, "hidden_act is ['silu']"),
    ("llama", {"my_scale": 0.0}, "my_scale=0.0"),
    ("llama", {"my_scale": 2.0}, "my_scale=2.0"),
    ("llama", {"num_hidden_layers": "2"}, "num_hidden_layers is '2', expected a value like 32"),
    ("llama", {"num_key_value_heads": 0}, "sizes that make no model"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads 3"),
    ("llama", {"rms_norm_eps": None}, "rms_norm_eps is None"),
    ("llama", {"rope_scaling": [2.0]}, "transformers refuses it"),
    ("llama", {"rope_scaling": {"rope_type": "default", "rope_theta": 5.0}}, "rope_theta 5.0"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor '2'"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor 0"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "'factor'"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "odd": 1}}, "'odd'"),
    ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
    ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
    ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok is 6"),
    ("mixtral", {"sliding_window": "5"}, "sliding_window is '5'"),
    ("phi", {"partial_rotary_factor": 0.4}, "rotary channels of a head come out as 3"),
    ("phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "transformers refuses it"),
    ("qwen2", {"layer_types": ["chunked_attention", FULL]}, "layer_types"),
    ("qwen2", {"layer_types": [FULL, SLIDING]}, "sliding_window is None"),
    ("qwen2", {"layer_types": [FULL]}, "number of layer types (1)"),
    ("qwen2_moe", {"num_experts": 0}, "num_experts 0"),
    ("qwen3_moe", {"num_experts_per_tok": 0}, "num_experts_per_tok is 0"),
    ("smollm3", {"layer_types": [SLIDING] * 4}, "sliding_window is None"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers is [1]"),
    ("stablelm", {"partial_rotary_factor": 0.1}, "rotary channels of a head come out as 0"),
]

# Attributes of cases under which torch's function stays the same
ALIKE = {
    "gemma": {"hidden_activation"},  # which must be what hidden_act is
    "gpt2": {"reorder_and_upcast_attn"},  # other sums in half precision alone
}
TRAINING = "for training"
NOT_READ = "torch's class does not read it"
OF_EXPERTS = "of layers without experts, which are refused"
RENAMED = "transformers' config class takes it for hidden_size"
# family -> attribute -> why it needs no case
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "bloom": {
        "hidden_dropout": TRAINING,
        "n_embed": RENAMED,
        "bias_dropout_fusion": NOT_READ,
        "masked_softmax_fusion": NOT_READ,
        "seq_length": NOT_READ,
        "unk_token_id": NOT_READ,
    },
    "cohere": {"model_max_length": NOT_READ},
    "falcon": {"hidden_dropout": TRAINING, "n_embed": RENAMED},
    "gemma": {"cache_implementation": "of torch's generate"},
    "gemma2": {"cache_implementation": "of torch's generate", "hidden_act": NOT_READ},
    "gemma3_text": {
        "cache_implementation": "of torch's generate",
        "hidden_act": NOT_READ,
        "_sliding_window_pattern": "follows from sliding_window_pattern",
        "sliding_window_size": "as in gemma2",
    },
    "gpt_neo": {"embed_dropout": TRAINING, "resid_dropout": TRAINING},
    "gpt_neox": {
        "hidden_dropout": TRAINING,
        "partial_rotary_factor": "follows from rotary_pct",
        "rope_theta": "follows from rotary_emb_base",
    },
    "mixtral": {
        "output_router_logits": TRAINING,
        "router_aux_loss_coef": TRAINING,
        "router_jitter_noise": TRAINING,
    },
    "opt": {
        "activation_dropout": NOT_READ,
        "dropout": TRAINING,
        "init_std": TRAINING,
        "layerdrop": TRAINING,
    },
    "qwen2_moe": {
        "intermediate_size": OF_EXPERTS,
        "max_window_layers": "of sliding windows, which are refused",
        "sliding_window": "of sliding windows, which are refused",
        "output_router_logits": TRAINING,
        "router_aux_loss_coef": TRAINING,
    },
    "qwen3_moe": {
        "intermediate_size": OF_EXPERTS,
        "max_window_layers": NOT_READ,
        "output_router_logits": TRAINING,
        "router_aux_loss_coef": TRAINING,
    },
    "smollm3": {"max_window_layers": NOT_READ},
    "stablelm": {"hidden_dropout": TRAINING},
    "starcoder2": {"embedding_dropout": TRAINING, "residual_dropout": TRAINING},
}
