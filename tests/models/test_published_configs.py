"""Configs as they stand on the hub, old keys included, are taken and read as they are meant."""

from pathlib import Path

import pytest

from jaxscore.models.native import translate

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


def decoder(raw):
    return translate(Path("somewhere"), raw)[1]


def test_gpt2():
    config = decoder(GPT2)
    assert (config.width, config.mlp_width, config.head_width) == (768, 3072, 64)
    assert (config.activation, config.norm, config.tied) == ("gelu_tanh", "layer", True)
    assert config.learned_positions
    assert not config.rotary_frequencies


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
    plain = decoder(LLAMA | {"rope_scaling": None}).rotary_frequencies
    assert config.rotary_frequencies[0] == plain[0] == 1.0
    assert config.rotary_frequencies[-1] == pytest.approx(plain[-1] / 32, rel=1e-6)


def test_qwen2_5():
    config = decoder(QWEN2)
    assert config.windows == (0,) * 24  # sliding_window counts only where use_sliding_window is on
    assert (config.qkv_bias, config.out_bias, config.head_width) == (True, False, 64)
    sliding = decoder(QWEN2 | {"use_sliding_window": True, "max_window_layers": 20})
    assert sliding.windows == (0,) * 20 + (32768,) * 4


def test_qwen2_5_with_the_long_context_that_its_card_describes():
    yarn = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
    config = decoder(QWEN2 | {"rope_scaling": yarn})
    assert config.rotary_factor == pytest.approx(1.1386294361119891)  # 0.1 ln 4 + 1
    assert config.rotary_frequencies[0] == 1.0
