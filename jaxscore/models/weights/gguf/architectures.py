"""Architectures of GGUF files.

`ARCHITECTURES` has an entry for each supported one: the family, the attributes of its config, the
names of its tensors, and the layouts that conversion changed. `REFUSED` has the reason for each
unsupported one.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxscore.io.gguf_file import GgufFile
from jaxscore.models.weights.gguf import attributes as at
from jaxscore.models.weights.gguf import layouts
from jaxscore.models.weights.gguf.architecture import BLOCK, TOP, Architecture
from jaxscore.models.weights.gguf.metadata import Keys

HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
SANDWICH_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Norms only after attention and MLP
POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
AFTER_ATTENTION = {"post_attention_norm": "post_attention_layernorm"}
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{j}.gate_proj",
    "ffn_up_exps": "mlp.experts.{j}.up_proj",
    "ffn_down_exps": "mlp.experts.{j}.down_proj",
}
SPARSE_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{j}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{j}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{j}.w2",
}
CORRECTION = {"exp_probs_b": "mlp.gate.e_score_correction_bias."}
MEGATRON = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
MEGATRON_TOP = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}


def shared_experts(name: str) -> dict[str, str]:
    """Return the names of the MLP that every token runs."""
    return {f"ffn_{matrix}_shexp": f"{name}.{matrix}_proj" for matrix in ("gate", "up", "down")}


GROUPED = {f"attn_qkv.{suffix}": layouts.GROUPS for suffix in ("weight", "bias")}


LLAMA = Architecture("llama", {**at.LLAMA, **at.HEAD_DIM, **at.BIASES}, layouts=layouts.PERMUTED)
MIXTRAL = Architecture(
    "mixtral",
    {**at.LLAMA, **at.HEAD_DIM, **at.experts("num_local_experts")},
    {**BLOCK, **SPARSE_EXPERTS},
    layouts=layouts.PERMUTED,
)
QWEN2 = Architecture("qwen2", {**at.LLAMA, "use_sliding_window": False})
QWEN3 = Architecture(
    "qwen3",
    {**QWEN2.config, **at.HEAD_DIM, **at.ATTENTION_BIAS},
    {**BLOCK, **HEAD_NORMS},
)
# Attributes of the mixtures, in which all layers have experts.
QWEN_MIXTURE = {**at.experts(), **at.EXPERT_WIDTH, "decoder_sparse_step": 1, "mlp_only_layers": []}
QWEN3_MOE = Architecture(
    "qwen3_moe",
    {**QWEN3.config, **QWEN_MIXTURE, "norm_topk_prob": True},
    {**QWEN3.names, **EXPERTS},
)
# Vision-language models: keys that only affect images are checked or ignored
OF_IMAGES: Any = {"checks": (at.check_streams,), "ignored": ("n_deepstack_layers",)}
OLMO2 = Architecture(
    "olmo2",
    {**at.LLAMA, **at.ATTENTION_BIAS},
    {**at.without(BLOCK, "attn_norm", "ffn_norm"), **POST_NORMS, **HEAD_NORMS},
)
OLMO3 = dataclasses.replace(
    OLMO2,
    family="olmo3",
    config={
        **OLMO2.config,
        "sliding_window": at.size(at.WINDOW),
        "layer_types": at.layer_types(4),
        "rope_parameters": at.rope_by_type(10_000.0, None),
    },
)
LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
}
DEEPSEEK_V2 = Architecture(
    "deepseek_v2",
    {
        **at.without(at.LLAMA, "num_key_value_heads"),
        "num_key_value_heads": at.size("attention.head_count"),
        "attention_bias": at.has("attn_q_a.bias"),
        "kv_lora_rank": at.size("attention.kv_lora_rank"),
        "q_lora_rank": lambda keys: keys.optional("attention.q_lora_rank", int) or None,
        "qk_rope_head_dim": at.size("rope.dimension_count"),
        "qk_nope_head_dim": at.non_rotary_width,
        "v_head_dim": lambda keys: at.latent_widths(keys)[1],
        **at.experts("n_routed_experts"),
        **at.EXPERT_WIDTH,
        **at.shared_experts(),
        **at.plain_first_layers(),
        "n_group": lambda keys: at.groups(keys, "expert_group_count"),
        "topk_group": lambda keys: at.groups(keys, "expert_group_used_count"),
        "topk_method": lambda keys: (
            "greedy" if at.groups(keys, "expert_group_count") == 1 else "group_limited_greedy"
        ),
        "scoring_func": at.gate(1),
        "norm_topk_prob": at.flag("expert_weights_norm", False),
        "routed_scaling_factor": at.factor("expert_weights_scale"),
        # The converter divides `mscale_all_dim` by 10.
        "rope_parameters": lambda keys: keys.rope(mscale=10),
    },
    {**BLOCK, **LATENT, **EXPERTS, **CORRECTION, **shared_experts("mlp.shared_experts")},
    joined={"self_attn.kv_b_proj.weight": layouts.KEY_VALUE_UP},
)
DEEPSEEK_V3 = dataclasses.replace(
    DEEPSEEK_V2,
    family="deepseek_v3",
    config={**DEEPSEEK_V2.config, "topk_method": "noaux_tc", "scoring_func": at.gate(2)},
)
# Mixtures with a sigmoid router, without the numbers of experts
SIGMOID_MIXTURE = {
    **at.EXPERT_WIDTH,
    **at.plain_first_layers(),
    "n_group": at.size("expert_group_count", 1),
    "topk_group": at.size("expert_group_used_count", 1),
    "norm_topk_prob": at.flag("expert_weights_norm"),
    "routed_scaling_factor": at.factor("expert_weights_scale"),
}
GEMMA = {
    **at.without(at.LLAMA, "hidden_act"),
    **at.HEAD_DIM,
    "attention_bias": False,
}
COHERE = {
    **at.without(at.LLAMA, "rms_norm_eps"),
    "layer_norm_eps": at.LAYER_NORM,
    "logit_scale": at.real("logit_scale"),
    "attention_bias": False,
}
# Qwen's recurrent layers, and attention layers with norms and gates of queries
QWEN_HYBRID = {
    **at.LLAMA,
    **at.HEAD_DIM,
    **at.ATTENTION_BIAS,
    **at.DELTA,
    "rope_parameters": at.rope(is_partial=True),
}
QWEN_HYBRID_NAMES = {
    **at.without(BLOCK, "ffn_norm"),
    **AFTER_ATTENTION,
    **HEAD_NORMS,
    "ssm_a": "linear_attn.A_log.",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt": "linear_attn.dt_bias.",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
QWEN_HYBRID_NORMS = layouts.minus_one(
    "attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm"
)
# The tensors tell which layers have attention.
QWEN_HYBRID_IGNORED = ("full_attention_interval", "attention.recurrent_layers")
GATED_SHARED_EXPERT = {
    **EXPERTS,
    **shared_experts("mlp.shared_expert"),
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
QWEN35 = Architecture(
    "qwen3_5_text",
    QWEN_HYBRID,
    {
        **QWEN_HYBRID_NAMES,
        "attn_qkv": "linear_attn.in_proj_qkv",
        "attn_gate": "linear_attn.in_proj_z",
        "ssm_alpha": "linear_attn.in_proj_a",
        "ssm_beta": "linear_attn.in_proj_b",
    },
    layouts={**QWEN_HYBRID_NORMS, **layouts.TILED},
    ignored=QWEN_HYBRID_IGNORED,
    checks=(at.check_streams,),
)
HUNYUAN = Architecture(
    "hunyuan_v1_dense",
    {**at.LLAMA, **at.HEAD_DIM, **at.ATTENTION_BIAS},
    {
        **BLOCK,
        "attn_q_norm": "self_attn.query_layernorm",
        "attn_k_norm": "self_attn.key_layernorm",
    },
)
LFM2 = Architecture(
    "lfm2",
    {
        **at.without(at.LLAMA, "rms_norm_eps", "hidden_act", "num_key_value_heads"),
        "norm_eps": at.real("attention.layer_norm_rms_epsilon"),
        "num_key_value_heads": at.attention_key_heads,
        "conv_L_cache": at.size("shortconv.l_cache"),
        "conv_bias": at.has("shortconv.in_proj.bias"),
        "layer_types": at.recurrent_types("shortconv.conv.weight", "conv"),
        "block_auto_adjust_ff_dim": False,
    },
    {
        "attn_norm": "operator_norm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "shortconv.conv": "conv.conv",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
    },
    {
        "token_embd": "model.embed_tokens",
        "token_embd_norm": "model.embedding_norm",
        "output": "lm_head",
    },
    layouts={"shortconv.conv.weight": layouts.TAPS},
)
STATE_SPACE_NAMES = {
    "ssm_a": "A_log.",
    "ssm_conv1d": "conv1d",
    "ssm_d": "D.",
    "ssm_dt": "dt_bias.",
    "ssm_in": "in_proj",
    "ssm_norm": "norm",
    "ssm_out": "out_proj",
}
MAMBA_NAMES = {name: f"mamba.{target}" for name, target in STATE_SPACE_NAMES.items()}
MIXER_NAMES = {name: f"mixer.{target}" for name, target in STATE_SPACE_NAMES.items()}
BACKBONE_TOP = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
}
MIXER = {
    "layer_norm_epsilon": at.real("attention.layer_norm_rms_epsilon"),
    "n_groups": at.size("ssm.group_count"),
    "conv_kernel": at.size("ssm.conv_kernel"),
    "use_conv_bias": at.has("ssm_conv1d.bias"),
    "use_bias": at.has("ssm_in.bias"),
}
SCAN_NAMES = {"ssm_x": "x_proj", "ssm_dt": "dt_proj"}
MAMBA = Architecture(
    "mamba",
    {
        **at.without(MIXER, "n_groups"),
        "hidden_act": "silu",
        "hidden_size": at.size("embedding_length"),
        "intermediate_size": at.size("ssm.inner_size"),
        "num_hidden_layers": Keys.n_layers,
        "state_size": at.size("ssm.state_size"),
        "time_step_rank": at.size("ssm.time_step_rank"),
    },
    {
        **at.without(MIXER_NAMES, "ssm_norm"),
        **{name: f"mixer.{target}" for name, target in SCAN_NAMES.items()},
        "attn_norm": "norm",
    },
    BACKBONE_TOP,
    "backbone.layers.{i}.",
    layouts.SELECTIVE_SCAN,
    ignored=("context_length", "feed_forward_length", "ssm.dt_b_c_rms"),
)
FALCON_MAMBA = dataclasses.replace(
    MAMBA,
    family="falcon_mamba",
    # The published value; llama.cpp uses the epsilon of the other norms.
    config={**MAMBA.config, "mixer_rms_eps": 1e-6},
)
GRANITE_HYBRID = Architecture(
    "granitemoehybrid",
    {
        **at.without(at.LLAMA, "num_key_value_heads"),
        **at.ATTENTION_BIAS,
        **at.MULTIPLIERS,
        **at.MAMBA,
        "num_key_value_heads": at.attention_key_heads,
        "layer_types": at.recurrent_types("ssm_in.weight", "linear_attention"),
        "shared_intermediate_size": at.size("expert_shared_feed_forward_length"),
        "num_local_experts": 0,
        "position_embedding_type": lambda keys: (
            "rope" if keys.get("rope.scaling.finetuned", bool, True) else "nope"
        ),
    },
    {
        **at.without(BLOCK, "ffn_gate", "ffn_up"),
        **MAMBA_NAMES,
        "ffn_down": "shared_mlp.output_linear",
    },
    layouts={**layouts.PERMUTED, **layouts.STATE_SPACE},
    joined={"shared_mlp.input_linear.weight": layouts.gate_then_up()},
)
GRANITE_HYBRID_MIXTURE = dataclasses.replace(
    GRANITE_HYBRID,
    config={**GRANITE_HYBRID.config, **at.experts("num_local_experts")},
    names={
        **GRANITE_HYBRID.names,
        "ffn_gate_inp": "block_sparse_moe.router.layer",
        "ffn_down_shexp": "shared_mlp.output_linear",
    },
    joined={
        "shared_mlp.input_linear.weight": layouts.gate_then_up("_shexp"),
        "block_sparse_moe.input_linear.weight": layouts.GATE_THEN_UP,
        "block_sparse_moe.output_linear.weight": layouts.DOWN,
    },
)
NEMOTRON_H = Architecture(
    "nemotron_h",
    {
        **at.without(at.SIZES, "intermediate_size", "num_key_value_heads", "num_hidden_layers"),
        **at.HEAD_DIM,
        **MIXER,
        "layer_norm_epsilon": at.either_epsilon,
        "num_key_value_heads": at.attention_key_heads,
        "layers_block_type": at.nemotron_h_types,
        "intermediate_size": at.nemotron_h_width,
        "mlp_bias": at.has("ffn_up.bias"),
        "mamba_num_heads": at.STATE_SPACE["n_heads"],
        "mamba_head_dim": at.STATE_SPACE["d_head"],
        "ssm_state_size": at.STATE_SPACE["d_state"],
    },
    {
        **MIXER_NAMES,
        "attn_norm": "norm",
        **{f"attn_{letter}": f"mixer.{letter}_proj" for letter in "qkv"},
        "attn_output": "mixer.o_proj",
        "ffn_up": "mixer.up_proj",
        "ffn_down": "mixer.down_proj",
    },
    BACKBONE_TOP,
    "backbone.layers.{i}.",
    {**layouts.PERMUTED, **layouts.STATE_SPACE},
    ignored=("rope.dimension_count", "rope.freq_base", "rope.scaling.finetuned"),
)
FALCON = Architecture(
    "falcon",
    {
        **at.without(at.SIZES, "intermediate_size", num_key_value_heads="num_kv_heads"),
        "ffn_hidden_size": at.size("feed_forward_length"),
        "layer_norm_epsilon": at.LAYER_NORM,
        "new_decoder_architecture": at.is_new_falcon,
        "multi_query": True,
        "bias": at.has("attn_qkv.bias"),
        "rope_parameters": at.rope(),
    },
    MEGATRON,
    MEGATRON_TOP,
    "transformer.h.{i}.",
    GROUPED,
)
FALCON_TWO_NORMS = dataclasses.replace(
    FALCON,
    config={**FALCON.config, "num_ln_in_parallel_attn": 2},
    names={**MEGATRON, "attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"},
)
GELU_TANH = "gelu_pytorch_tanh"


def _llama(file: GgufFile) -> Architecture:
    count = file.metadata.get("llama.expert_count", 0)
    return MIXTRAL if isinstance(count, int) and count > 0 else LLAMA


def _falcon(file: GgufFile) -> Architecture:
    return FALCON_TWO_NORMS if "blk.0.attn_norm_2.weight" in file.tensors else FALCON


def _olmo(file: GgufFile) -> Architecture:
    return OLMO3 if file.metadata.get(f"olmo2.{at.WINDOW}") else OLMO2


def _granite_hybrid(file: GgufFile) -> Architecture:
    count = file.metadata.get("granitehybrid.expert_count", 0)
    return GRANITE_HYBRID_MIXTURE if isinstance(count, int) and count > 0 else GRANITE_HYBRID


def _mamba(file: GgufFile) -> Architecture:
    return FALCON_MAMBA if file.metadata.get("mamba.ssm.dt_b_c_rms") else MAMBA


def _deepseek(file: GgufFile) -> Architecture:
    return DEEPSEEK_V3 if Keys(file).is_sigmoid() else DEEPSEEK_V2


ARCHITECTURES: dict[str, Architecture | Callable[[GgufFile], Architecture]] = {
    "llama": _llama,
    "apertus": Architecture(
        "apertus",
        {**at.LLAMA, **at.HEAD_DIM, **at.ATTENTION_BIAS, "hidden_act": "xielu"},
        {
            **BLOCK,
            **HEAD_NORMS,
            "attn_norm": "attention_layernorm",
            "ffn_norm": "feedforward_layernorm",
        },
        from_metadata={
            "mlp.act_fn.alpha_p[1]": "xielu.alpha_p",
            "mlp.act_fn.alpha_n[1]": "xielu.alpha_n",
            "mlp.act_fn.beta": "xielu.beta",
            "mlp.act_fn.eps": "xielu.eps",
        },
    ),
    "arcee": dataclasses.replace(
        LLAMA, family="arcee", config={**LLAMA.config, "hidden_act": "relu2"}
    ),
    "bloom": Architecture(
        "bloom",
        at.without(
            at.SIZES,
            "intermediate_size",
            "num_key_value_heads",
            num_hidden_layers="n_layer",
            num_attention_heads="n_head",
            max_position_embeddings="seq_length",
        )
        | {"layer_norm_epsilon": at.LAYER_NORM},
        {**MEGATRON, "ffn_norm": "post_attention_layernorm"},
        {**MEGATRON_TOP, "token_embd_norm": "transformer.word_embeddings_layernorm"},
        "transformer.h.{i}.",
        GROUPED,
        ignored=("feed_forward_length",),
    ),
    "cohere2": Architecture(
        "cohere2",
        {
            **COHERE,
            "sliding_window": at.size(at.WINDOW),
            "layer_types": at.layer_types(4),
            "rope_parameters": at.rope(),
        },
    ),
    "command-r": Architecture(
        "cohere", {**COHERE, "use_qk_norm": at.has("attn_q_norm.weight")}, {**BLOCK, **HEAD_NORMS}
    ),
    "deepseek2": _deepseek,
    "dots1": Architecture(
        "dots1",
        {
            **at.LLAMA,
            **at.HEAD_DIM,
            **at.ATTENTION_BIAS,
            **SIGMOID_MIXTURE,
            **at.experts("n_routed_experts"),
            **at.shared_experts(),
            "sliding_window": None,
            "layer_types": at.full_attention,
        },
        {
            **BLOCK,
            **HEAD_NORMS,
            **EXPERTS,
            **CORRECTION,
            **shared_experts("mlp.shared_experts"),
        },
        checks=(at.gate(2),),
    ),
    "ernie4_5": Architecture(
        "ernie4_5", {**at.LLAMA, **at.HEAD_DIM, "use_bias": at.has("attn_q.bias")}
    ),
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe",
        {
            **at.LLAMA,
            **at.experts("moe_num_experts", "moe_k"),
            **at.EXPERT_WIDTH,
            **at.shared_experts("moe_num_shared_experts"),
            **at.plain_first_layers("moe_layer_start_index"),
            "moe_layer_interval": at.size("interleave_moe_layer_step"),
            "moe_layer_end_index": -1,
        },
        {
            **BLOCK,
            **EXPERTS,
            **shared_experts("mlp.shared_experts"),
            "exp_probs_b": "mlp.moe_statics.e_score_correction_bias.",
        },
        layouts={"exp_probs_b.bias": layouts.ROW},
        ignored=("expert_shared_feed_forward_length",),
        checks=(at.gate(1),),
    ),
    "exaone4": Architecture(
        "exaone4",
        {
            **at.LLAMA,
            **at.HEAD_DIM,
            "sliding_window": at.exaone_window,
            "layer_types": at.exaone_types,
        },
        OLMO2.names,
    ),
    "exaone-moe": Architecture(
        "exaone_moe",
        {
            **at.LLAMA,
            **at.HEAD_DIM,
            **SIGMOID_MIXTURE,
            **at.experts(),
            **at.shared_experts("num_shared_experts"),
            "sliding_window": at.size(at.WINDOW),
            "layer_types": at.layer_types(4),
        },
        {
            **BLOCK,
            **HEAD_NORMS,
            **EXPERTS,
            **shared_experts("mlp.shared_experts"),
            "exp_probs_b": "mlp.e_score_correction_bias.",
        },
        ignored=("expert_shared_feed_forward_length",),
        checks=(at.gate(2),),
    ),
    "falcon": _falcon,
    # Conversion multiplies all multipliers into the weights.
    "falcon-h1": Architecture(
        "falcon_h1",
        {
            **at.LLAMA,
            **at.HEAD_DIM,
            **at.BIASES,
            **at.MAMBA,
            "mamba_d_ssm": at.size("ssm.inner_size"),
            "mamba_rms_norm": at.has("ssm_norm.weight"),
            "mamba_norm_before_gate": False,
            "projectors_bias": at.has("ssm_out.bias"),
        },
        {
            **BLOCK,
            **MAMBA_NAMES,
            "ffn_norm": "pre_ff_layernorm.weight.",
            **{f"ffn_{matrix}": f"feed_forward.{matrix}_proj" for matrix in ("gate", "up", "down")},
        },
        {**TOP, "output_norm": "model.final_layernorm"},
        layouts=layouts.STATE_SPACE,
        checks=(at.check_untied,),
    ),
    "gemma": Architecture(
        "gemma",
        {**GEMMA, "hidden_act": GELU_TANH},
        layouts=layouts.minus_one("attn_norm", "ffn_norm"),
    ),
    "gemma2": Architecture(
        "gemma2",
        {
            **GEMMA,
            "hidden_activation": GELU_TANH,
            "query_pre_attn_scalar": at.gemma_scale(46),
            # Files of old converters lack these.
            "sliding_window": at.size(at.WINDOW, 4096),
            "layer_types": at.layer_types(2),
            "attn_logit_softcapping": at.real("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": at.real("final_logit_softcapping", 30.0),
        },
        {**BLOCK, **SANDWICH_NORMS},
        layouts=layouts.minus_one("attn_norm", *SANDWICH_NORMS),
    ),
    "gemma3": Architecture(
        "gemma3_text",
        {
            **GEMMA,
            "hidden_activation": GELU_TANH,
            "query_pre_attn_scalar": at.gemma_scale(62),
            "sliding_window": at.size(at.WINDOW),
            "layer_types": at.layer_types(6),
            "attn_logit_softcapping": None,
            "final_logit_softcapping": at.optional_real("final_logit_softcapping"),
            "use_bidirectional_attention": False,
            "rope_parameters": at.rope_by_type(1_000_000.0, 10_000.0),
        },
        {**BLOCK, **SANDWICH_NORMS, **HEAD_NORMS},
        layouts=layouts.minus_one("attn_norm", *SANDWICH_NORMS, *HEAD_NORMS),
    ),
    "gemma4": Architecture(
        "gemma4_text",
        {
            **at.without(
                at.SIZES, "intermediate_size", "num_key_value_heads", "max_position_embeddings"
            ),
            **at.RMS,
            "max_position_embeddings": at.size("context_length"),
            "hidden_activation": GELU_TANH,
            "attention_bias": False,
            "intermediate_size": at.gemma4_width,
            "use_double_wide_mlp": at.gemma4_is_doubled,
            "num_kv_shared_layers": lambda keys: keys.get("attention.shared_kv_layers", int, 0),
            "layer_types": at.gemma4_types,
            "sliding_window": at.size(at.WINDOW),
            "head_dim": at.size("attention.key_length_swa"),
            "global_head_dim": at.size("attention.key_length"),
            "num_key_value_heads": at.gemma4_keys(at.SLIDING),
            "num_global_key_value_heads": at.gemma4_keys(at.FULL),
            "attention_k_eq_v": at.gemma4_values_are_keys,
            "hidden_size_per_layer_input": lambda keys: keys.get(
                "embedding_length_per_layer_input", int, 0
            ),
            "vocab_size_per_layer_input": Keys.embedding_rows,
            "final_logit_softcapping": at.optional_real("final_logit_softcapping"),
            "enable_moe_block": at.has("ffn_gate_inp.weight"),
            "num_experts": lambda keys: keys.optional("expert_count", int) or None,
            "top_k_experts": lambda keys: keys.optional("expert_used_count", int) or None,
            "moe_intermediate_size": lambda keys: (
                keys.optional("expert_feed_forward_length", int) or None
            ),
            "rope_parameters": at.gemma4_rope,
        },
        {
            **BLOCK,
            **SANDWICH_NORMS,
            **HEAD_NORMS,
            "layer_output_scale": "layer_scalar.",
            "inp_gate": "per_layer_input_gate",
            "proj": "per_layer_projection",
            "post_norm": "post_per_layer_input_norm",
            "ffn_gate_inp": "router.proj",
            "ffn_gate_inp.scale": "router.scale.",
            "ffn_gate_up_exps": "experts.gate_up_proj.",
            "ffn_down_exps.weight": "experts.down_proj.",
            "ffn_down_exps.scale": "router.per_expert_scale.",
            "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
            "post_ffw_norm_1": "post_feedforward_layernorm_1",
            "post_ffw_norm_2": "post_feedforward_layernorm_2",
        },
        {
            **TOP,
            "per_layer_token_embd": "model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.per_layer_model_projection",
            "per_layer_proj_norm": "model.per_layer_projection_norm",
        },
        joined={"experts.gate_up_proj": layouts.GATE_THEN_UP},
    ),
    "glm4": Architecture(
        "glm4",
        {
            **at.LLAMA,
            **at.HEAD_DIM,
            **at.ATTENTION_BIAS,
            "rope_parameters": at.rope(is_partial=True),
        },
        {
            **BLOCK,
            "ffn_up": "mlp.gate_up_proj",
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
    ),
    "glm4moe": Architecture(
        "glm4_moe",
        {
            **at.LLAMA,
            **at.HEAD_DIM,
            **at.ATTENTION_BIAS,
            "use_qk_norm": at.has("attn_q_norm.weight"),
            **SIGMOID_MIXTURE,
            **at.experts("n_routed_experts"),
            **at.shared_experts(),
            "rope_parameters": at.rope(is_partial=True),
        },
        {
            **at.without(BLOCK, "ffn_norm"),
            **AFTER_ATTENTION,
            **HEAD_NORMS,
            **EXPERTS,
            **CORRECTION,
            **shared_experts("mlp.shared_experts"),
        },
        checks=(at.gate(2),),
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        {
            **at.without(at.LLAMA, "intermediate_size"),
            **at.HEAD_DIM,
            **at.experts("num_local_experts"),
            "attention_bias": True,
            "intermediate_size": at.size("expert_feed_forward_length"),
            "sliding_window": at.size(at.WINDOW),
            "layer_types": at.layer_types(2),
            "swiglu_limit": 7.0,
            "rope_parameters": at.gpt_oss_rope,
        },
        {
            **at.without(BLOCK, "ffn_norm"),
            **AFTER_ATTENTION,
            "attn_sinks": "self_attn.sinks.",
            "ffn_gate_inp": "mlp.router",
        },
        joined={
            "mlp.experts.gate_up_proj": layouts.GATE_UP_ALTERNATING,
            "mlp.experts.gate_up_proj_bias": layouts.GATE_UP_BIAS_ALTERNATING,
            "mlp.experts.down_proj": layouts.DOWN_TRANSPOSED,
            "mlp.experts.down_proj_bias": layouts.DOWN_BIAS,
        },
        ignored=("feed_forward_length",),
    ),
    "gpt2": Architecture(
        "gpt2",
        at.without(
            at.SIZES,
            "num_key_value_heads",
            hidden_size="n_embd",
            num_hidden_layers="n_layer",
            num_attention_heads="n_head",
            intermediate_size="n_inner",
            max_position_embeddings="n_positions",
        )
        | {"layer_norm_epsilon": at.LAYER_NORM, "activation_function": "gelu_new"},
        {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        "transformer.h.{i}.",
        {
            f"{name}.weight": layouts.TRANSPOSED
            for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
        },
    ),
    "gptneox": Architecture(
        "gpt_neox",
        {
            **at.without(at.SIZES, "num_key_value_heads"),
            "layer_norm_eps": at.LAYER_NORM,
            "use_parallel_residual": at.flag("use_parallel_residual"),
            "attention_bias": at.has("attn_qkv.bias"),
            # Only GPT-NeoX-20B has the other form.
            "hidden_act": lambda keys: "gelu_fast" if keys.n_layers() == 44 else "gelu",
            "rope_parameters": at.rope(is_partial=True),
        },
        {
            **MEGATRON,
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
        },
        {
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        "gpt_neox.layers.{i}.",
        GROUPED,
    ),
    "granite": Architecture(
        "granite", {**at.LLAMA, **at.BIASES, **at.MULTIPLIERS}, layouts=layouts.PERMUTED
    ),
    "granitemoe": Architecture(
        "granitemoe",
        {
            **at.LLAMA,
            **at.ATTENTION_BIAS,
            **at.MULTIPLIERS,
            **at.experts("num_local_experts"),
        },
        {**BLOCK, "ffn_gate_inp": "block_sparse_moe.router.layer"},
        layouts=layouts.PERMUTED,
        joined={
            "block_sparse_moe.input_linear.weight": layouts.GATE_THEN_UP,
            "block_sparse_moe.output_linear.weight": layouts.DOWN,
        },
    ),
    "granitehybrid": _granite_hybrid,
    "hunyuan-dense": HUNYUAN,
    "hunyuan-moe": Architecture(
        "hunyuan_v1_moe",
        {
            **HUNYUAN.config,
            **at.experts(chosen="moe_topk"),
            "moe_intermediate_size": at.in_every_layer(at.expert_width),
            "num_shared_expert": at.in_every_layer(at.size("expert_shared_count", 1)),
        },
        {
            **HUNYUAN.names,
            **EXPERTS,
            **shared_experts("mlp.shared_mlp"),
            "ffn_gate_inp": "mlp.gate.wg",
        },
        ignored=("expert_shared_feed_forward_length",),
    ),
    "jais2": Architecture(
        "jais2",
        {
            **at.without(at.LLAMA, "rms_norm_eps"),
            **at.HEAD_DIM,
            **at.BIASES,
            "layer_norm_eps": at.LAYER_NORM,
            "hidden_act": "relu2",
        },
    ),
    "jamba": Architecture(
        "jamba",
        {
            **at.without(at.LLAMA, "num_key_value_heads", "rope_parameters"),
            **at.experts(),
            **at.periodic("attn", "attn_q.weight"),
            **at.periodic("expert", "ffn_gate_inp.weight"),
            "num_key_value_heads": at.attention_key_heads,
            "mamba_conv_bias": at.has("ssm_conv1d.bias"),
            "mamba_d_conv": at.size("ssm.conv_kernel"),
            "mamba_d_state": at.size("ssm.state_size"),
            "mamba_dt_rank": at.size("ssm.time_step_rank"),
            "mamba_expand": at.expand,
            "mamba_proj_bias": at.has("ssm_in.bias"),
        },
        {
            **at.without(BLOCK, "ffn_norm"),
            **at.without(MAMBA_NAMES, "ssm_norm"),
            **{name: f"mamba.{target}" for name, target in SCAN_NAMES.items()},
            **{f"ssm_{name}_norm": f"mamba.{name}_layernorm" for name in ("dt", "b", "c")},
            **{f"ffn_{matrix}": f"feed_forward.{matrix}_proj" for matrix in ("gate", "up", "down")},
            **{
                f"ffn_{matrix}_exps": f"feed_forward.experts.{{j}}.{matrix}_proj"
                for matrix in ("gate", "up", "down")
            },
            "ffn_gate_inp": "feed_forward.router",
            "ffn_norm": "pre_ff_layernorm",
        },
        {**TOP, "output_norm": "model.final_layernorm"},
        layouts=layouts.SELECTIVE_SCAN,
    ),
    "lfm2": LFM2,
    "lfm2moe": dataclasses.replace(
        LFM2,
        family="lfm2_moe",
        config={
            **at.without(LFM2.config, "block_auto_adjust_ff_dim"),
            **at.experts(),
            **at.EXPERT_WIDTH,
            **at.plain_first_layers("num_dense_layers"),
            # llama.cpp always normalises
            "norm_topk_prob": True,
            "routed_scaling_factor": at.factor("expert_weights_scale"),
            "use_expert_bias": at.has("exp_probs_b.bias"),
        },
        names={
            **LFM2.names,
            "ffn_gate_inp": "feed_forward.gate",
            "ffn_gate_exps": "feed_forward.experts.{j}.w1",
            "ffn_up_exps": "feed_forward.experts.{j}.w3",
            "ffn_down_exps": "feed_forward.experts.{j}.w2",
            "exp_probs_b": "feed_forward.expert_bias.",
        },
        checks=(at.gate(2),),
    ),
    "llama4": Architecture(
        "llama4_text",
        {
            **at.without(at.LLAMA, intermediate_size="intermediate_size_mlp"),
            **at.HEAD_DIM,
            **at.ATTENTION_BIAS,
            **at.experts("num_local_experts"),
            "intermediate_size": at.size("expert_feed_forward_length"),
            "interleave_moe_layer_step": at.size("interleave_moe_layer_step"),
            "no_rope_layers": at.has_chunks,
            # By the published models: Maverick, with 128 experts, is without norms.
            "use_qk_norm": lambda keys: keys.size("expert_count") != 128,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "attn_scale": 0.1,
            "floor_scale": 8192,
        },
        {
            **BLOCK,
            **{f"ffn_{matrix}": f"feed_forward.{matrix}_proj" for matrix in ("gate", "up", "down")},
            "ffn_gate_inp": "feed_forward.router",
            **shared_experts("feed_forward.shared_expert"),
        },
        joined={
            "feed_forward.experts.gate_up_proj": layouts.GATE_THEN_UP_TRANSPOSED,
            "feed_forward.experts.down_proj": layouts.DOWN_TRANSPOSED,
        },
        checks=(at.gate(2),),
    ),
    "mamba": _mamba,
    "mamba2": Architecture(
        "mamba2",
        {
            **MIXER,
            "hidden_size": at.size("embedding_length"),
            "num_hidden_layers": Keys.n_layers,
            "num_heads": at.STATE_SPACE["n_heads"],
            "head_dim": at.STATE_SPACE["d_head"],
            "state_size": at.STATE_SPACE["d_state"],
            "expand": at.expand,
        },
        {**MIXER_NAMES, "attn_norm": "norm"},
        BACKBONE_TOP,
        "backbone.layers.{i}.",
        layouts.STATE_SPACE,
        ignored=("context_length", "feed_forward_length"),
    ),
    "minimax-m2": Architecture(
        "minimax_m2",
        {
            **at.LLAMA,
            **at.HEAD_DIM,
            **at.experts("num_local_experts"),
            "scoring_func": at.gate(2),
            "rope_parameters": at.rope(is_partial=True),
        },
        {
            **BLOCK,
            **HEAD_NORMS,
            **SPARSE_EXPERTS,
            "exp_probs_b": "block_sparse_moe.e_score_correction_bias.",
        },
        ignored=("expert_feed_forward_length",),
    ),
    "mistral3": Architecture(
        "ministral3",
        {**at.LLAMA, **at.HEAD_DIM, "sliding_window": None, "rope_parameters": at.ministral_rope},
        layouts=layouts.PERMUTED,
    ),
    "nemotron": Architecture(
        "nemotron",
        {
            **at.without(at.LLAMA, "rms_norm_eps"),
            **at.HEAD_DIM,
            **at.BIASES,
            "norm_eps": at.LAYER_NORM,
            "hidden_act": "relu2",
            "rope_parameters": at.rope(is_partial=True),
        },
        layouts=layouts.minus_one("attn_norm", "ffn_norm"),
        ignored=("attention.layer_norm_rms_epsilon",),
        checks=(at.check_quotient,),
    ),
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": dataclasses.replace(
        NEMOTRON_H,
        config={
            **NEMOTRON_H.config,
            **at.experts("n_routed_experts"),
            **at.without(SIGMOID_MIXTURE, "first_k_dense_replace"),
            "moe_shared_expert_intermediate_size": at.size("expert_shared_feed_forward_length"),
            "moe_latent_size": lambda keys: keys.get("moe_latent_size", int, 0) or None,
        },
        names={
            **NEMOTRON_H.names,
            "ffn_gate_inp": "mixer.gate",
            "exp_probs_b": "mixer.gate.e_score_correction_bias.",
            "ffn_up_exps": "mixer.experts.{j}.up_proj",
            "ffn_down_exps": "mixer.experts.{j}.down_proj",
            "ffn_up_shexp": "mixer.shared_experts.up_proj",
            "ffn_down_shexp": "mixer.shared_experts.down_proj",
            "ffn_latent_down": "mixer.fc1_latent_proj",
            "ffn_latent_up": "mixer.fc2_latent_proj",
        },
        ignored=(*NEMOTRON_H.ignored, "expert_shared_count"),
        checks=(at.gate(2),),
    ),
    "olmo": Architecture(
        "olmo",
        {
            **at.without(at.LLAMA, "rms_norm_eps"),
            **at.ATTENTION_BIAS,
            "clip_qkv": at.optional_real("attention.clamp_kqv"),
        },
        at.without(BLOCK, "attn_norm", "ffn_norm"),
        layouts=layouts.PERMUTED,
        ignored=("attention.layer_norm_epsilon",),
    ),
    "olmo2": _olmo,
    "olmoe": Architecture(
        "olmoe",
        {**at.LLAMA, **at.ATTENTION_BIAS, **at.experts(), "norm_topk_prob": False},
        {**BLOCK, **HEAD_NORMS, **EXPERTS},
    ),
    "phi2": Architecture(
        "phi",
        {
            **at.without(at.LLAMA, "rms_norm_eps"),
            "layer_norm_eps": at.LAYER_NORM,
            "hidden_act": "gelu_new",
            "rope_parameters": at.rope(is_partial=True),
        },
        {
            **at.without(BLOCK, "ffn_gate", "ffn_norm"),
            "attn_output": "self_attn.dense",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        },
        {**TOP, "output_norm": "model.final_layernorm"},
    ),
    "phi3": Architecture(
        "phi3",
        {
            **at.LLAMA,
            # 0 means no window (Phi-4). Files of old converters lack the key and are refused.
            "sliding_window": lambda keys: keys.get(at.WINDOW, int) or None,
            "original_max_position_embeddings": at.phi_length,
            "rope_parameters": at.phi_rope,
        },
        {**BLOCK, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        config_tensors=frozenset({at.FACTORS_LONG, at.FACTORS_SHORT}),
    ),
    "phimoe": Architecture(
        "phimoe",
        {
            **at.LLAMA,
            **at.ATTENTION_BIAS,
            **at.experts("num_local_experts"),
            "sliding_window": lambda keys: keys.get(at.WINDOW, int) or None,
            "lm_head_bias": lambda keys: keys.has("output.bias"),
            "router_jitter_noise": 0.01,
            "rope_parameters": at.phimoe_rope,
        },
        {**BLOCK, **SPARSE_EXPERTS},
    ),
    "qwen2": QWEN2,
    "qwen2moe": Architecture(
        "qwen2_moe",
        {
            **QWEN2.config,
            **QWEN_MIXTURE,
            "shared_expert_intermediate_size": at.shared_width,
            "norm_topk_prob": False,
            "qkv_bias": at.has("attn_q.bias"),
        },
        {
            **BLOCK,
            **GATED_SHARED_EXPERT,
        },
        layouts={"ffn_gate_inp_shexp.weight": layouts.ROW},
    ),
    "qwen2vl": dataclasses.replace(QWEN2, checks=(at.check_streams,)),
    "qwen3": QWEN3,
    "qwen3moe": QWEN3_MOE,
    "qwen35": QWEN35,
    "qwen35moe": dataclasses.replace(
        QWEN35,
        family="qwen3_5_moe_text",
        config={
            **at.without(QWEN_HYBRID, "intermediate_size"),
            **at.experts(),
            **at.EXPERT_WIDTH,
            "shared_expert_intermediate_size": at.shared_width,
        },
        names={**QWEN35.names, **GATED_SHARED_EXPERT},
        layouts={**QWEN35.layouts, "ffn_gate_inp_shexp.weight": layouts.ROW},
        ignored=(*QWEN_HYBRID_IGNORED, "feed_forward_length"),
    ),
    "qwen3next": Architecture(
        "qwen3_next",
        {
            **QWEN_HYBRID,
            **QWEN_MIXTURE,
            "shared_expert_intermediate_size": at.shared_width,
            "norm_topk_prob": True,
        },
        {
            **QWEN_HYBRID_NAMES,
            **GATED_SHARED_EXPERT,
            "ssm_ba": "linear_attn.in_proj_ba",
            # Written by old converters
            "ssm_in": "linear_attn.in_proj_qkvz",
        },
        layouts={
            **QWEN_HYBRID_NORMS,
            "ffn_gate_inp_shexp.weight": layouts.ROW,
            "ssm_a": layouts.LOG_RATES,
            "ssm_conv1d.weight": layouts.TAPS,
        },
        joined={"linear_attn.in_proj_qkvz.weight": layouts.GROUPED_PROJECTION},
        ignored=QWEN_HYBRID_IGNORED,
    ),
    "qwen3vl": dataclasses.replace(QWEN3, **OF_IMAGES),
    "qwen3vlmoe": dataclasses.replace(QWEN3_MOE, **OF_IMAGES),
    "seed_oss": Architecture(
        "seed_oss",
        {
            **at.LLAMA,
            **at.HEAD_DIM,
            **at.BIASES,
            "attention_out_bias": at.has("attn_output.bias"),
        },
        {**at.without(BLOCK, "ffn_norm"), **AFTER_ATTENTION},
    ),
    "smollm3": Architecture(
        "smollm3",
        {
            **at.LLAMA,
            **at.BIASES,
            # llama.cpp fixes the interval for the architecture.
            "no_rope_layers": at.every(4),
            "no_rope_layer_interval": 4,
            "use_sliding_window": False,
        },
        layouts=layouts.PERMUTED,
    ),
    "stablelm": Architecture(
        "stablelm",
        {
            **at.without(at.LLAMA, "rms_norm_eps"),
            "layer_norm_eps": at.LAYER_NORM,
            "use_parallel_residual": at.flag("use_parallel_residual"),
            "use_qkv_bias": at.has("attn_q.bias"),
            "qk_layernorm": at.has("attn_q_norm.weight"),
            "rope_parameters": at.stablelm_rope,
        },
        {
            **BLOCK,
            "attn_q_norm": "self_attn.q_layernorm.norms.{j}",
            "attn_k_norm": "self_attn.k_layernorm.norms.{j}",
        },
    ),
    "starcoder2": Architecture(
        "starcoder2",
        {
            **at.without(at.LLAMA, "rms_norm_eps"),
            "norm_epsilon": at.LAYER_NORM,
            "use_bias": at.has("attn_q.bias"),
            "hidden_act": GELU_TANH,
            # All published models have this window; no file has it.
            "sliding_window": 4096,
        },
        {
            **at.without(BLOCK, "ffn_gate"),
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
    ),
}

# Architecture -> reason why it is not supported
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        "arwkv7 bailingmoe3 glm5-next kimi-k3 plamo2 rwkv6 rwkv6qwen2 rwkv7".split(),
        "recurrent state",
    ),
    **dict.fromkeys(
        "bert eurobert jina-bert-v2 jina-bert-v3 modern-bert neo-bert nomic-bert "
        "nomic-bert-moe".split(),
        "a masked language model",
    ),
    **dict.fromkeys("gemma-embedding llama-embed".split(), "an embedding model"),
    **dict.fromkeys("dream llada llada-moe rnd1".split(), "a diffusion model"),
    **dict.fromkeys(
        "dflash eagle3 gemma4-assistant".split(), "a draft, which needs its target's states"
    ),
    **dict.fromkeys("t5 t5encoder".split(), "an encoder-decoder"),
    **dict.fromkeys("pockettts qwen3tts wavtokenizer-dec".split(), "an audio model"),
    "clip": "a vision tower",
    **dict.fromkeys(
        "afmoe cohere2moe dbrx deepseek32 exaone gemma3n glm-dsa granite_swa hy_v3 "
        "kimi-linear mimo2 minicpm3 minimax-01 minimax-m3 mpt qwen4exp starcoder".split(),
        "supported only as a Hugging Face checkpoint",
    ),
    **dict.fromkeys(("gptj", "recurrentgemma"), "llama.cpp does not convert it"),
    **dict.fromkeys(
        "arctic baichuan bailingmoe bailingmoe2 bitnet chameleon chatglm codeshell cogvlm "
        "deci deepseek deepseek2-ocr deepseek4 dots3note graniteswitch grok grovemoe "
        "hrm_text hunyuan_vl hy_v4 internlm2 jais laguna maincoder maple mellum minicpm "
        "mistral4 muse-glimmer nanbeige openelm orion paddleocr pangu-embedded plamo plamo3 "
        "plm qwen refact smallthinker spark2_5 step35 talkie xverse".split(),
        "the family is not supported",
    ),
}
