"""Configs as they stand on the hub, old keys included, are taken and read as they are meant."""

from pathlib import Path

import jax
import numpy as np
import pytest

from jaxscore.device.decoder_config import Experts
from jaxscore.errors import InputError
from jaxscore.models import costs
from jaxscore.models.native import translate
from jaxscore.models.weights.params import shapes_of

pytestmark = pytest.mark.lines

GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


COMMON = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0",
    "use_cache": True,
}
PYTHIA = COMMON | {
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
GPT_NEO = COMMON | {
    "activation_function": "gelu_new",
    "architectures": ["GPTNeoForCausalLM"],
    "attention_dropout": 0,
    "attention_layers": ["global", "local"] * 6,
    "attention_types": [[["global", "local"], 6]],
    "embed_dropout": 0,
    "gradient_checkpointing": False,
    "hidden_size": 768,
    "intermediate_size": None,
    "layer_norm_epsilon": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neo",
    "num_heads": 12,
    "num_layers": 12,
    "resid_dropout": 0,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "vocab_size": 50257,
    "window_size": 256,
}
GPT_J = COMMON | {
    "activation_function": "gelu_new",
    "architectures": ["GPTJForCausalLM"],
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "gradient_checkpointing": False,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gptj",
    "n_embd": 4096,
    "n_head": 16,
    "n_inner": None,
    "n_layer": 28,
    "n_positions": 2048,
    "resid_pdrop": 0.0,
    "rotary": True,
    "rotary_dim": 64,
    "scale_attn_weights": True,
    "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": True}},
    "tie_word_embeddings": False,
    "tokenizer_class": "GPT2Tokenizer",
    "vocab_size": 50400,
}
OPT_125M = COMMON | {
    "_remove_final_layer_norm": False,
    "activation_dropout": 0.0,
    "activation_function": "relu",
    "architectures": ["OPTForCausalLM"],
    "attention_dropout": 0.0,
    "do_layer_norm_before": True,
    "dropout": 0.1,
    "ffn_dim": 3072,
    "hidden_size": 768,
    "init_std": 0.02,
    "layerdrop": 0.0,
    "max_position_embeddings": 2048,
    "model_type": "opt",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "prefix": "</s>",
    "torch_dtype": "float16",
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}
OPT_350M = OPT_125M | {
    "do_layer_norm_before": False,
    "ffn_dim": 4096,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "word_embed_proj_dim": 512,
}
BLOOM = COMMON | {
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["BloomForCausalLM"],
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "hidden_dropout": 0.0,
    "layer_norm_epsilon": 1e-05,
    "masked_softmax_fusion": True,
    "model_type": "bloom",
    "n_embed": 1024,
    "n_inner": None,
    "n_layer": 24,
    "num_attention_heads": 16,
    "offset_alibi": 100,
    "pad_token_id": 3,
    "pretraining_tp": 1,
    "seq_length": 2048,
    "skip_bias_add": True,
    "skip_bias_add_qkv": False,
    "slow_but_exact": False,
    "unk_token_id": 0,
    "vocab_size": 250880,
}
FALCON_7B = COMMON | {
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"},
    "bias": False,
    "hidden_dropout": 0.0,
    "hidden_size": 4544,
    "layer_norm_epsilon": 1e-05,
    "model_type": "falcon",
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "parallel_attn": True,
    "vocab_size": 65024,
}
FALCON_40B = FALCON_7B | {
    "hidden_size": 8192,
    "new_decoder_architecture": True,
    "num_attention_heads": 128,
    "num_hidden_layers": 60,
    "num_kv_heads": 8,
}
FALCON_RW_1B = FALCON_7B | {
    "alibi": True,
    "bias": True,
    "hidden_size": 2048,
    "multi_query": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 24,
    "parallel_attn": False,
    "vocab_size": 50304,
}
PHI_2 = COMMON | {
    "architectures": ["PhiForCausalLM"],
    "attention_dropout": 0.0,
    "embd_pdrop": 0.0,
    "hidden_act": "gelu_new",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "phi",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "partial_rotary_factor": 0.4,
    "qk_layernorm": False,
    "resid_pdrop": 0.1,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 51200,
}
PHI_3_5 = COMMON | {
    "_name_or_path": "Phi-3.5-mini-instruct",
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
    "embd_pdrop": 0.0,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "long_factor": [1.0 + k for k in range(48)],
        "short_factor": [1.0 + k / 48 for k in range(48)],
        "type": "longrope",
    },
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": False,
    "vocab_size": 32064,
}
PHI_4_MINI = PHI_3_5 | {
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "mlp_bias": False,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.75,
    "tie_word_embeddings": True,
    "vocab_size": 200064,
}
MISTRAL = COMMON | {
    "architectures": ["MistralForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
MISTRAL_V3 = MISTRAL | {"rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32768}
MIXTRAL = MISTRAL | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
}
GEMMA_2_9B = COMMON | {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
    "vocab_size": 256000,
}
GEMMA_3_1B = COMMON | {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}
GEMMA_3_270M = {k: v for k, v in GEMMA_3_1B.items() if k != "sliding_window_pattern"} | {
    "_sliding_window_pattern": 6,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "num_hidden_layers": 18,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0,
    "use_bidirectional_attention": False,
}
OLMO_2 = COMMON | {
    "architectures": ["Olmo2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "olmo2",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pad_token_id": 100277,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}
GRANITE_3 = COMMON | {
    "architectures": ["GraniteForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.1,
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12.0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12800,
    "logits_scaling": 16.0,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "granite",
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49155,
}
COMMAND_R = COMMON | {
    "architectures": ["CohereForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "layer_norm_eps": 1e-05,
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
    "model_max_length": 131072,
    "model_type": "cohere",
    "num_attention_heads": 64,
    "num_hidden_layers": 40,
    "num_key_value_heads": 64,
    "pad_token_id": 0,
    "pretraining_tp": 1,
    "rope_theta": 8000000.0,
    "use_qk_norm": False,
    "vocab_size": 256000,
}
STABLELM_2 = COMMON | {
    "architectures": ["StableLmForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 4096,
    "model_type": "stablelm",
    "num_attention_heads": 32,
    "num_hidden_layers": 24,
    "num_key_value_heads": 32,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "use_qkv_bias": True,
    "vocab_size": 100352,
}
STARCODER_2 = COMMON | {
    "activation_function": "gelu",
    "architectures": ["Starcoder2ForCausalLM"],
    "attention_dropout": 0.1,
    "attention_softmax_in_fp32": True,
    "embedding_dropout": 0.1,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 3072,
    "initializer_range": 0.018042,
    "intermediate_size": 12288,
    "layer_norm_epsilon": 1e-05,
    "max_position_embeddings": 16384,
    "mlp_type": "default",
    "model_type": "starcoder2",
    "norm_epsilon": 1e-05,
    "norm_type": "layer_norm",
    "num_attention_heads": 24,
    "num_hidden_layers": 30,
    "num_key_value_heads": 2,
    "residual_dropout": 0.1,
    "rope_theta": 999999.4420358813,
    "scale_attention_softmax_in_fp32": True,
    "scale_attn_weights": True,
    "sliding_window": 4096,
    "use_bias": True,
    "vocab_size": 49152,
}
SMOLLM3 = COMMON | {
    "architectures": ["SmolLM3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "layer_types": ["full_attention"] * 36,
    "max_position_embeddings": 65536,
    "max_window_layers": 28,
    "mlp_bias": False,
    "model_type": "smollm3",
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "pretraining_tp": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 128256,
}
QWEN3_8B = COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_30B = QWEN3_8B | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
QWEN1_5_MOE = COMMON | {
    "architectures": ["Qwen2MoeForCausalLM"],
    "attention_dropout": 0.0,
    "decoder_sparse_step": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "max_position_embeddings": 8192,
    "max_window_layers": 21,
    "model_type": "qwen2_moe",
    "moe_intermediate_size": 1408,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 5632,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
APERTUS_8B = {
    "architectures": ["ApertusForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 68,
    "hidden_act": "xielu",
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 21504,
    "max_position_embeddings": 65536,
    "mlp_bias": False,
    "model_type": "apertus",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pad_token_id": 3,
    "post_norm": False,
    "qk_norm": True,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 12000000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 131072,
}
COMMAND_R7B = {
    "architectures": ["Cohere2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 5,
    "cache_implementation": "hybrid",
    "eos_token_id": 255001,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "layer_norm_eps": 1e-05,
    "layer_switch": 4,
    "logit_scale": 0.25,
    "max_position_embeddings": 8192,
    "model_type": "cohere2",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "order_of_interleaved_layers": "local_attn_first",
    "pad_token_id": 0,
    "position_embedding_type": "rope_gptj",
    "rope_scaling": None,
    "rope_theta": 50000,
    "rotary_pct": 1.0,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_parallel_embedding": False,
    "vocab_size": 256000,
}
ERNIE_4_5 = {
    "architectures": ["Ernie4_5_ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_ernie4_5.Ernie4_5_Config"},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 131072,
    "model_type": "ernie4_5",
    "num_attention_heads": 16,
    "num_hidden_layers": 18,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_cache": False,
    "vocab_size": 103424,
}
EXAONE_4 = {
    "architectures": ["Exaone4ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 361,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 27392,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16,
    "max_position_embeddings": 131072,
    "model_type": "exaone4",
    "num_attention_heads": 40,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 1000000,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 102400,
}
GRANITE_3_MOE = {
    "architectures": ["GraniteMoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.1,
    "attention_multiplier": 0.015625,
    "bos_token_id": 0,
    "embedding_multiplier": 12.0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "logits_scaling": 6.0,
    "max_position_embeddings": 4096,
    "model_type": "granitemoe",
    "num_attention_heads": 16,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 0,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000,
    "router_aux_loss_coef": 0.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 49155,
}
MINITRON_4B = {
    "architectures": ["NemotronForCausalLM"],
    "bos_token_id": 2,
    "eos_token_id": 3,
    "hidden_act": "relu2",
    "hidden_size": 3072,
    "initializer_range": 0.0134,
    "intermediate_size": 9216,
    "kv_channels": 128,
    "max_position_embeddings": 4096,
    "model_type": "nemotron",
    "norm_eps": 1e-05,
    "num_attention_heads": 24,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 256000,
}
OLMO_3 = {
    "architectures": ["Olmo3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
    "max_position_embeddings": 65536,
    "model_type": "olmo3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pad_token_id": 100277,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "yarn",
    },
    "rope_theta": 500000,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 100278,
}
OLMOE = {
    "architectures": ["OlmoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "clip_qkv": None,
    "eos_token_id": 50279,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 1024,
    "max_position_embeddings": 4096,
    "model_type": "olmoe",
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 16,
    "num_key_value_heads": 16,
    "output_router_logits": False,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.01,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 50304,
}
PHI_3_5_MOE = {
    "architectures": ["PhiMoEForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_phimoe.PhiMoEConfig"},
    "bos_token_id": 1,
    "eos_token_id": 32000,
    "hidden_act": "silu",
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "input_jitter_noise": 0.01,
    "intermediate_size": 6400,
    "lm_head_bias": True,
    "max_position_embeddings": 131072,
    "model_type": "phimoe",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "original_max_position_embeddings": 4096,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "long_factor": [1.0 + k for k in range(64)],
        "long_mscale": 1.243163121016122,
        "original_max_position_embeddings": 4096,
        "short_factor": [1.0 + k / 64 for k in range(64)],
        "short_mscale": 1.243163121016122,
        "type": "longrope",
    },
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.0,
    "router_jitter_noise": 0.01,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 32064,
}
SEED_OSS = {
    "architectures": ["SeedOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.1,
    "attention_out_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 27648,
    "max_position_embeddings": 524288,
    "mlp_bias": False,
    "model_type": "seed_oss",
    "num_attention_heads": 80,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "pad_token_id": 1,
    "residual_dropout": 0.1,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"rope_type": "default"},
    "rope_theta": 10000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 155136,
}
XGLM_564M = {
    "activation_dropout": 0,
    "activation_function": "gelu",
    "architectures": ["XGLMForCausalLM"],
    "attention_dropout": 0.1,
    "attention_heads": 16,
    "bos_token_id": 0,
    "d_model": 1024,
    "decoder_start_token_id": 2,
    "dropout": 0.1,
    "eos_token_id": 2,
    "ffn_dim": 4096,
    "init_std": 0.02,
    "layerdrop": 0.0,
    "max_position_embeddings": 2048,
    "model_type": "xglm",
    "num_layers": 24,
    "pad_token_id": 1,
    "scale_embedding": True,
    "use_cache": True,
    "vocab_size": 256008,
}


def decoder(raw):
    return translate(Path("somewhere"), raw)[1]


def test_gpt2():
    config = decoder(GPT2)
    assert (config.width, config.mlp_width, config.head_width) == (768, 3072, 64)
    assert (config.activation, config.norm, config.tied) == ("gelu_tanh", "layer", True)
    assert config.learned_positions
    assert not config.rotary


@pytest.mark.parametrize(
    ("raw", "extra"),
    [
        (GPT2, {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}),
        (GPT2, {"n_special": 0, "predict_special_tokens": True, "output_past": True}),
        (LLAMA, {"is_llama_config": True, "rope_interleaved": False}),
        (LLAMA, {"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}}),
        (LLAMA, {"max_sequence_length": 2048, "pad_token_id": -1}),
    ],
    ids=["distilgpt2", "gpt2-medium", "SmolLM2", "SmolLM2 for the browser", "llama-7b"],
)
def test_keys_that_nothing_reads(raw, extra):
    assert decoder(raw | extra) == decoder(raw)


def test_llama_3_2():
    config = decoder(LLAMA)
    assert (config.n_heads, config.n_kv_heads, config.head_width) == (32, 8, 64)
    assert (config.tied, config.qkv_bias, config.mlp_bias) == (True, False, False)
    # The slowest pair turns 32 times slower than without scaling, the fastest as before.
    plain = decoder(LLAMA | {"rope_scaling": None}).rotary[0].frequencies
    assert config.rotary[0].frequencies[0] == plain[0] == 1.0
    assert config.rotary[0].frequencies[-1] == pytest.approx(plain[-1] / 32, rel=1e-6)


def test_qwen2_5():
    config = decoder(QWEN2)
    assert config.windows == (0,) * 24  # sliding_window counts only where use_sliding_window is on
    assert (config.qkv_bias, config.out_bias, config.head_width) == (True, False, 64)
    sliding = decoder(QWEN2 | {"use_sliding_window": True, "max_window_layers": 20})
    assert sliding.windows == (0,) * 20 + (32768,) * 4


def test_qwen2_5_with_the_long_context_that_its_card_describes():
    yarn = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
    config = decoder(QWEN2 | {"rope_scaling": yarn})
    assert config.rotary[0].factor == pytest.approx(1.1386294361119891)  # 0.1 ln 4 + 1
    assert config.rotary[0].frequencies[0] == 1.0


# What each comes out as, where families differ or an old key could be overlooked
FACTS = [
    ("pythia", PYTHIA, {"parallel": "own", "mlp_width": 3072, "tied": False, "qkv_bias": True}),
    (
        "gpt-neo",
        GPT_NEO,
        {"windows": (0, 256) * 6, "attention_scale": 1.0, "mlp_width": 3072, "qkv_bias": False},
    ),
    ("gpt-j", GPT_J, {"mlp_width": 16384, "interleaved": True, "head_bias": True}),
    ("opt-125m", OPT_125M, {"norm_place": "before", "embedding_width": 0, "final_norm": True}),
    ("opt-350m", OPT_350M, {"norm_place": "residual", "embedding_width": 512, "final_norm": False}),
    ("bloom-560m", BLOOM, {"width": 1024, "n_heads": 16, "head_width": 64, "mlp_width": 4096}),
    (
        "falcon-7b",
        FALCON_7B,
        {"n_kv_heads": 1, "mlp_width": 18176, "parallel": "shared", "alibi": None},
    ),
    ("falcon-40b", FALCON_40B, {"n_kv_heads": 8, "mlp_width": 32768, "parallel": "own"}),
    ("falcon-rw-1b", FALCON_RW_1B, {"n_kv_heads": 32, "parallel": "no", "rotary": ()}),
    ("phi-2", PHI_2, {"parallel": "shared", "head_bias": True, "qk_norm": ""}),
    ("Phi-3.5-mini", PHI_3_5, {"long_from": 4096, "windows": (262144,) * 32}),
    ("Phi-4-mini", PHI_4_MINI, {"long_from": 4096, "n_kv_heads": 8, "tied": True}),
    ("Mistral-7B-v0.1", MISTRAL, {"windows": (4096,) * 32, "head_width": 128}),
    ("Mistral-7B-v0.3", MISTRAL_V3, {"windows": (0,) * 32}),
    ("Mixtral-8x7B", MIXTRAL, {"windows": (0,) * 32, "experts": Experts(8, 2, True)}),
    (
        "gemma-2-9b",
        GEMMA_2_9B,
        {
            "windows": (4096, 0) * 21,
            "attention_scale": 1 / 16,
            "attention_softcap": 50.0,
            "logit_softcap": 30.0,
            "tied": True,
        },
    ),
    (
        "gemma-3-1b",
        GEMMA_3_1B,
        {
            "windows": ((512,) * 5 + (0,)) * 4 + (512, 512),
            "rotary_of": ((1,) * 5 + (0,)) * 4 + (1, 1),
            "attention_softcap": None,
        },
    ),
    ("gemma-3-270m", GEMMA_3_270M, {"windows": ((512,) * 5 + (0,)) * 3}),
    ("OLMo-2-7B", OLMO_2, {"norm_place": "after", "qk_norm": "flat"}),
    (
        "granite-3.1-8b",
        GRANITE_3,
        {"attention_scale": 1 / 128, "logit_scale": 1 / 16, "residual_scale": 0.22},
    ),
    ("command-r", COMMAND_R, {"logit_scale": 1 / 16, "qk_norm": "", "max_positions": 8192}),
    ("stablelm-2-1_6b", STABLELM_2, {"qkv_bias": True, "parallel": "no"}),
    ("starcoder2-3b", STARCODER_2, {"windows": (4096,) * 30, "mlp_bias": True, "tied": True}),
    ("SmolLM3-3B", SMOLLM3, {"rotary_of": (0, 0, 0, 1) * 9, "windows": (0,) * 36, "tied": True}),
    ("Qwen3-8B", QWEN3_8B, {"qk_norm": "head", "head_width": 128, "windows": (0,) * 36}),
    ("Qwen3-30B-A3B", QWEN3_30B, {"experts": Experts(128, 8, True), "mlp_width": 768}),
    (
        "Qwen1.5-MoE-A2.7B",
        QWEN1_5_MOE,
        {"experts": Experts(60, 4, False, 5632), "windows": (0,) * 24},
    ),
    (
        "Apertus-8B",
        APERTUS_8B,
        {"activation": "xielu", "gated": False, "qk_norm": "head", "mlp_width": 21504},
    ),
    (
        "command-r7b",
        COMMAND_R7B,
        {"rotary_of": (0, 0, 0, 1) * 8, "windows": (4096, 4096, 4096, 0) * 8, "interleaved": True},
    ),
    ("ERNIE-4.5-0.3B", ERNIE_4_5, {"interleaved": True, "head_width": 128, "qkv_bias": False}),
    (
        "EXAONE-4.0-32B",
        EXAONE_4,
        {"rotary_of": (0, 0, 0, 1) * 16, "norm_place": "after", "head_width": 128},
    ),
    (
        "granite-3.0-1b-a400m",
        GRANITE_3_MOE,
        {
            "experts": Experts(32, 8, True, shared_gated=False),
            "attention_scale": 1 / 64,
            "logit_scale": 1 / 6,
        },
    ),
    ("Minitron-4B", MINITRON_4B, {"activation": "relu_squared", "head_width": 128}),
    (
        "Olmo-3-7B",
        OLMO_3,
        {"rotary_of": (1, 1, 1, 0) * 8, "windows": (4096, 4096, 4096, 0) * 8, "qk_norm": "flat"},
    ),
    ("OLMoE-1B-7B", OLMOE, {"experts": Experts(64, 8, False), "qkv_limit": None}),
    ("Phi-3.5-MoE", PHI_3_5_MOE, {"long_from": 4096, "head_bias": True, "out_bias": True}),
    ("Seed-OSS-36B", SEED_OSS, {"qkv_bias": True, "out_bias": False, "head_width": 128}),
    ("xglm-564M", XGLM_564M, {"sinusoidal_from": 2, "embedding_scale": 32.0, "tied": True}),
]


@pytest.mark.parametrize(("raw", "facts"), [fact[1:] for fact in FACTS], ids=[f[0] for f in FACTS])
def test_a_published_config_is_taken_as_it_is_meant(raw, facts):
    config = decoder(raw)
    assert {name: getattr(config, name) for name in facts} == facts
    assert config.vocab_size == raw["vocab_size"]


@pytest.mark.parametrize(
    ("raw", "n_turning"),
    [
        (PYTHIA, 16),
        (GPT_J, 64),
        (PHI_2, 32),
        (PHI_3_5, 96),
        (PHI_4_MINI, 96),
        (STABLELM_2, 16),
        (MINITRON_4B, 64),
    ],
    ids=["pythia", "gpt-j", "phi-2", "Phi-3.5-mini", "Phi-4-mini", "stablelm-2-1_6b", "Minitron"],
)
def test_channels_of_a_head_that_turn(raw, n_turning):
    config = decoder(raw)
    assert [2 * len(one.frequencies) for one in config.rotary] == [n_turning]


def test_only_the_full_layers_of_olmo_3_are_scaled():
    full, sliding = decoder(OLMO_3).rotary
    plain = decoder(OLMO_3 | {"rope_scaling": None}).rotary
    assert plain[0] == plain[1] == sliding
    assert full.factor == pytest.approx(1.2079441541679836)  # 0.1 ln 8 + 1
    assert full.frequencies[-1] == pytest.approx(sliding.frequencies[-1] / 8, rel=1e-6)


# Parameters in billions as the model card of each states them
STATED = [
    ("Apertus-8B-2509", APERTUS_8B, 8),
    ("ERNIE-4.5-0.3B", ERNIE_4_5, 0.36),
    ("granite-3.0-1b-a400m-base", GRANITE_3_MOE, 1.3),
    ("Olmo-3-1025-7B", OLMO_3, 7),
    ("OLMoE-1B-7B-0924", OLMOE, 6.9),
    ("Phi-3.5-MoE-instruct", PHI_3_5_MOE, 42),
    ("Seed-OSS-36B", SEED_OSS, 36),
    ("xglm-564M", XGLM_564M, 0.564),
]


@pytest.mark.parametrize(("raw", "stated"), [one[1:] for one in STATED], ids=[s[0] for s in STATED])
def test_parameters_are_as_many_as_the_card_says(raw, stated):
    shapes = shapes_of(decoder(raw), np.dtype(np.float32))
    found = sum(leaf.size for leaf in jax.tree.leaves(shapes)) / 1e9
    digits = len(str(stated).partition(".")[2])
    assert round(found, digits) == stated


def test_parameters_of_exaone_4_without_embeddings_are_those_of_its_card():
    shapes = shapes_of(decoder(EXAONE_4), np.dtype(np.float32))
    assert round(sum(leaf.size for leaf in jax.tree.leaves(shapes["layers"])) / 1e9, 2) == 30.95


@pytest.mark.parametrize(
    ("raw", "stated"), [(GRANITE_3_MOE, 0.4), (OLMOE, 1.3), (PHI_3_5_MOE, 6.6)]
)
def test_a_token_meets_as_many_parameters_as_the_card_says(raw, stated):
    config = decoder(raw)
    found = costs.active_parameters(shapes_of(config, np.dtype(np.float32)), config)
    assert round(found / 1e9, 1) == stated


def test_parameters_of_olmo_3_one_by_one():
    """Per layer four products of attention, three of the MLP, four norms."""
    width, inner, vocabulary = 4096, 11008, 100278
    layer = 4 * width**2 + 3 * width * inner + 4 * width
    shapes = shapes_of(decoder(OLMO_3), np.dtype(np.float32))
    found = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert found == 32 * layer + width + 2 * vocabulary * width == 7_298_011_136


@pytest.mark.parametrize("attributes", [{"rope_theta": 10000.0}, {"rope_scaling": None}])
def test_an_apertus_without_its_scaling_differs_between_lines(attributes):
    raw = {name: value for name, value in APERTUS_8B.items() if name != "rope_scaling"}
    with pytest.raises(InputError, match=r"rope_theta is 10000|rope_scaling is null"):
        decoder(raw | attributes)
