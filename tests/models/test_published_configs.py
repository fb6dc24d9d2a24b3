"""Configs as they stand on the hub, old keys included, are taken and read as they are meant."""

from pathlib import Path

import jax
import numpy as np
import pytest

from jaxscore.device.decoder_config import (
    Experts,
    GatedDelta,
    GatedUnit,
    OtherMlp,
    Recurrent,
    SelectiveScan,
)
from jaxscore.errors import InputError
from jaxscore.models import costs
from jaxscore.models.families import kimi, sigmoid_routers
from jaxscore.models.native import translate
from jaxscore.models.weights.params import shapes_of
from tests.device.configs import flat_fields
from tests.models.families import BASE
from tests.models.published import RELEASED

pytestmark = pytest.mark.lines


def decoder(raw):
    return translate(Path("somewhere"), raw)[1]


def test_gpt2():
    config = decoder(RELEASED["GPT2"])
    assert (config.width, config.mlp.width, config.attention.head_width) == (768, 3072, 64)
    assert (config.mlp.activation, config.norm.kind, config.head.tied) == (
        "gelu_tanh",
        "layer",
        True,
    )
    assert config.positions.learned_positions
    assert not config.positions.rotary


@pytest.mark.parametrize(
    ("raw", "extra"),
    [
        (
            RELEASED["GPT2"],
            {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
        ),
        (RELEASED["GPT2"], {"n_special": 0, "predict_special_tokens": True, "output_past": True}),
        (RELEASED["LLAMA"], {"is_llama_config": True, "rope_interleaved": False}),
        (RELEASED["LLAMA"], {"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}}),
        (RELEASED["LLAMA"], {"max_sequence_length": 2048, "pad_token_id": -1}),
    ],
    ids=["distilgpt2", "gpt2-medium", "SmolLM2", "SmolLM2 for the browser", "llama-7b"],
)
def test_keys_that_nothing_reads(raw, extra):
    assert decoder(raw | extra) == decoder(raw)


def test_llama_3_2():
    config = decoder(RELEASED["LLAMA"])
    assert (config.attention.n_heads, config.attention.n_kv_heads, config.attention.head_width) == (
        32,
        8,
        64,
    )
    assert (config.head.tied, config.attention.qkv_bias, config.mlp.bias) == (True, False, False)
    # The slowest pair turns 32 times slower than without scaling, the fastest as before.
    plain = decoder(RELEASED["LLAMA"] | {"rope_scaling": None}).positions.rotary[0].frequencies
    assert config.positions.rotary[0].frequencies[0] == plain[0] == 1.0
    assert config.positions.rotary[0].frequencies[-1] == pytest.approx(plain[-1] / 32, rel=1e-6)


def test_qwen2_5():
    config = decoder(RELEASED["QWEN2"])
    assert (
        config.attention.scores.windows == (0,) * 24
    )  # sliding_window counts only where use_sliding_window is on
    assert (config.attention.qkv_bias, config.attention.out_bias, config.attention.head_width) == (
        True,
        False,
        64,
    )
    sliding = decoder(RELEASED["QWEN2"] | {"use_sliding_window": True, "max_window_layers": 20})
    assert sliding.attention.scores.windows == (0,) * 20 + (32768,) * 4


def test_qwen2_5_with_the_long_context_that_its_card_describes():
    yarn = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
    config = decoder(RELEASED["QWEN2"] | {"rope_scaling": yarn})
    assert config.positions.rotary[0].factor == pytest.approx(1.1386294361119891)  # 0.1 ln 4 + 1
    assert config.positions.rotary[0].frequencies[0] == 1.0


# What each comes out as, where families differ or an old key could be overlooked
FACTS = [
    (
        "pythia",
        RELEASED["PYTHIA"],
        {"parallel": "own", "mlp_width": 3072, "head_tied": False, "qkv_bias": True},
    ),
    (
        "gpt-neo",
        RELEASED["GPT_NEO"],
        {"windows": (0, 256) * 6, "score_scale": 1.0, "mlp_width": 3072, "qkv_bias": False},
    ),
    ("gpt-j", RELEASED["GPT_J"], {"mlp_width": 16384, "interleaved": True, "head_bias": True}),
    (
        "opt-125m",
        RELEASED["OPT_125M"],
        {"norm_place": "before", "embedding_width": 0, "head_norm": True},
    ),
    (
        "opt-350m",
        RELEASED["OPT_350M"],
        {"norm_place": "residual", "embedding_width": 512, "head_norm": False},
    ),
    (
        "bloom-560m",
        RELEASED["BLOOM"],
        {"width": 1024, "n_heads": 16, "head_width": 64, "mlp_width": 4096},
    ),
    (
        "falcon-7b",
        RELEASED["FALCON_7B"],
        {"n_kv_heads": 1, "mlp_width": 18176, "parallel": "shared", "alibi": None},
    ),
    (
        "falcon-40b",
        RELEASED["FALCON_40B"],
        {"n_kv_heads": 8, "mlp_width": 32768, "parallel": "own"},
    ),
    ("falcon-rw-1b", RELEASED["FALCON_RW_1B"], {"n_kv_heads": 32, "parallel": "no", "rotary": ()}),
    ("Mamba-Codestral", RELEASED["MAMBA_CODESTRAL"], {"mlp_layers": (), "n_layers": 64}),
    ("Nemotron-Nano-9B-v2", RELEASED["NEMOTRON_NANO_9B"], {"mlp_width": 15680, "head_width": 128}),
    ("Falcon-H1-0.5B", RELEASED["FALCON_H1_05B"], {"mlp_factors": (0.8838834764831844, 0.5859375)}),
    ("phi-2", RELEASED["PHI_2"], {"parallel": "shared", "head_bias": True, "qk_norm_kind": ""}),
    ("Phi-3.5-mini", RELEASED["PHI_3_5"], {"long_from": 4096, "windows": (262144,) * 32}),
    ("Phi-4-mini", RELEASED["PHI_4_MINI"], {"long_from": 4096, "n_kv_heads": 8, "head_tied": True}),
    ("Mistral-7B-v0.1", RELEASED["MISTRAL"], {"windows": (4096,) * 32, "head_width": 128}),
    ("Mistral-7B-v0.3", RELEASED["MISTRAL_V3"], {"windows": (0,) * 32}),
    (
        "Mixtral-8x7B",
        RELEASED["MIXTRAL"],
        {
            "windows": (0,) * 32,
            "experts": Experts.of(count=8, per_token=2, router_renormalised=True),
        },
    ),
    (
        "gemma-2-9b",
        RELEASED["GEMMA_2_9B"],
        {
            "windows": (4096, 0) * 21,
            "score_scale": 1 / 16,
            "score_softcap": 50.0,
            "head_softcap": 30.0,
            "head_tied": True,
        },
    ),
    (
        "gemma-3-1b",
        RELEASED["GEMMA_3_1B"],
        {
            "windows": ((512,) * 5 + (0,)) * 4 + (512, 512),
            "rotary_of": ((1,) * 5 + (0,)) * 4 + (1, 1),
            "score_softcap": None,
        },
    ),
    ("gemma-3-270m", RELEASED["GEMMA_3_270M"], {"windows": ((512,) * 5 + (0,)) * 3}),
    ("OLMo-2-7B", RELEASED["OLMO_2"], {"norm_place": "after", "qk_norm_kind": "flat"}),
    (
        "granite-3.1-8b",
        RELEASED["GRANITE_3"],
        {"score_scale": 1 / 128, "head_scale": 1 / 16, "branch_scale": 0.22},
    ),
    (
        "command-r",
        RELEASED["COMMAND_R"],
        {"head_scale": 1 / 16, "qk_norm_kind": "", "max_positions": 8192},
    ),
    ("stablelm-2-1_6b", RELEASED["STABLELM_2"], {"qkv_bias": True, "parallel": "no"}),
    (
        "starcoder2-3b",
        RELEASED["STARCODER_2"],
        {"windows": (4096,) * 30, "mlp_bias": True, "head_tied": True},
    ),
    (
        "SmolLM3-3B",
        RELEASED["SMOLLM3"],
        {"rotary_of": (0, 0, 0, 1) * 9, "windows": (0,) * 36, "head_tied": True},
    ),
    (
        "Qwen3-8B",
        RELEASED["QWEN3_8B"],
        {"qk_norm_kind": "head", "head_width": 128, "windows": (0,) * 36},
    ),
    (
        "Qwen3-30B-A3B",
        RELEASED["QWEN3_30B"],
        {"experts": Experts.of(count=128, per_token=8, router_renormalised=True), "mlp_width": 768},
    ),
    (
        "Qwen1.5-MoE-A2.7B",
        RELEASED["QWEN1_5_MOE"],
        {
            "experts": Experts.of(
                count=60, per_token=4, router_renormalised=False, shared_width=5632
            ),
            "windows": (0,) * 24,
        },
    ),
    (
        "Apertus-8B",
        RELEASED["APERTUS_8B"],
        {"mlp_activation": "xielu", "mlp_gated": False, "qk_norm_kind": "head", "mlp_width": 21504},
    ),
    (
        "command-r7b",
        RELEASED["COMMAND_R7B"],
        {"rotary_of": (0, 0, 0, 1) * 8, "windows": (4096, 4096, 4096, 0) * 8, "interleaved": True},
    ),
    (
        "ERNIE-4.5-0.3B",
        RELEASED["ERNIE_4_5"],
        {"interleaved": True, "head_width": 128, "qkv_bias": False},
    ),
    (
        "EXAONE-4.0-32B",
        RELEASED["EXAONE_4"],
        {"rotary_of": (0, 0, 0, 1) * 16, "norm_place": "after", "head_width": 128},
    ),
    (
        "granite-3.0-1b-a400m",
        RELEASED["GRANITE_3_MOE"],
        {
            "experts": Experts.of(
                count=32, per_token=8, router_renormalised=True, shared_gated=False
            ),
            "score_scale": 1 / 64,
            "head_scale": 1 / 6,
        },
    ),
    ("Minitron-4B", RELEASED["MINITRON_4B"], {"mlp_activation": "relu_squared", "head_width": 128}),
    (
        "Olmo-3-7B",
        RELEASED["OLMO_3"],
        {
            "rotary_of": (1, 1, 1, 0) * 8,
            "windows": (4096, 4096, 4096, 0) * 8,
            "qk_norm_kind": "flat",
        },
    ),
    (
        "Jamba-v0.1",
        RELEASED["JAMBA"],
        {
            "recurrent": Recurrent(
                tuple(i for i in range(32) if i % 8 != 4),
                SelectiveScan(8192, 16, 256, 4, True, False, "silu", "scale", 1e-6),
            ),
            "experts": Experts.of(count=16, per_token=2, router_renormalised=False),
            "mlp_other": OtherMlp(tuple(range(0, 32, 2)), 14336),
            "rotary": (),
        },
    ),
    (
        "Kimi-Linear-48B-A3B",
        RELEASED["KIMI_LINEAR"],
        {
            "recurrent": Recurrent(
                tuple(i - 1 for i in range(1, 27) if i % 4),
                GatedDelta(32, 32, 128, 128, 4, "silu", 1.0, 1e-5, True, True, 128),
            ),
            "mlp_other": OtherMlp((0,), 9216),
            "score_scale": 192**-0.5,
        },
    ),
    (
        "Olmo-Hybrid-7B",
        RELEASED["OLMO_HYBRID"],
        {
            "recurrent": Recurrent(
                tuple(i for i in range(32) if (i + 1) % 4),
                GatedDelta(30, 30, 96, 192, 4, "silu", 2.0, 1e-5),
            ),
            "rotary": (),
            "head_width": 128,
        },
    ),
    (
        "falcon-mamba-7b",
        RELEASED["FALCON_MAMBA_7B"],
        {
            "recurrent": Recurrent(
                tuple(range(64)),
                SelectiveScan(8192, 16, 256, 4, True, False, "silu", "plain", 1e-6),
            ),
            "mlp_layers": (),
        },
    ),
    ("mamba-130m", RELEASED["MAMBA_130M"], {"head_tied": True, "mlp_layers": ()}),
    (
        "OLMoE-1B-7B",
        RELEASED["OLMOE"],
        {
            "experts": Experts.of(count=64, per_token=8, router_renormalised=False),
            "qkv_limit": None,
        },
    ),
    (
        "Phi-3.5-MoE",
        RELEASED["PHI_3_5_MOE"],
        {"long_from": 4096, "head_bias": True, "out_bias": True},
    ),
    (
        "recurrentgemma-2b",
        RELEASED["RECURRENT_GEMMA_2B"],
        {
            "recurrent": Recurrent(
                tuple(i for i in range(26) if i % 3 != 2), GatedUnit(2560, 10, 4, "gelu_tanh")
            ),
            "embedding_scale": 50.5,
            "mlp_width": 7680,
            "windows": (2048,) * 26,
        },
    ),
    (
        "Seed-OSS-36B",
        RELEASED["SEED_OSS"],
        {"qkv_bias": True, "out_bias": False, "head_width": 128},
    ),
    (
        "xglm-564M",
        RELEASED["XGLM_564M"],
        {"sinusoidal_from": 2, "embedding_scale": 32.0, "head_tied": True},
    ),
]


@pytest.mark.parametrize(("raw", "facts"), [fact[1:] for fact in FACTS], ids=[f[0] for f in FACTS])
def test_a_published_config_is_taken_as_it_is_meant(raw, facts):
    config = decoder(raw)
    fields = flat_fields(config)
    assert {name: fields[name] for name in facts} == facts
    assert config.vocab_size == raw["vocab_size"]


@pytest.mark.parametrize(
    ("raw", "n_turning"),
    [
        (RELEASED["PYTHIA"], 16),
        (RELEASED["GPT_J"], 64),
        (RELEASED["PHI_2"], 32),
        (RELEASED["PHI_3_5"], 96),
        (RELEASED["PHI_4_MINI"], 96),
        (RELEASED["STABLELM_2"], 16),
        (RELEASED["MINITRON_4B"], 64),
    ],
    ids=["pythia", "gpt-j", "phi-2", "Phi-3.5-mini", "Phi-4-mini", "stablelm-2-1_6b", "Minitron"],
)
def test_channels_of_a_head_that_turn(raw, n_turning):
    config = decoder(raw)
    assert [2 * len(one.frequencies) for one in config.positions.rotary] == [n_turning]


def test_only_the_full_layers_of_olmo_3_are_scaled():
    full, sliding = decoder(RELEASED["OLMO_3"]).positions.rotary
    plain = decoder(RELEASED["OLMO_3"] | {"rope_scaling": None}).positions.rotary
    assert plain[0] == plain[1] == sliding
    assert full.factor == pytest.approx(1.2079441541679836)  # 0.1 ln 8 + 1
    assert full.frequencies[-1] == pytest.approx(sliding.frequencies[-1] / 8, rel=1e-6)


# Parameters in billions as the model card of each states them
STATED = [
    ("Apertus-8B-2509", RELEASED["APERTUS_8B"], 8),
    ("ERNIE-4.5-0.3B", RELEASED["ERNIE_4_5"], 0.36),
    ("Falcon-H1-0.5B-Base", RELEASED["FALCON_H1_05B"], 0.5),
    ("Mamba-Codestral-7B-v0.1", RELEASED["MAMBA_CODESTRAL"], 7.3),
    ("NVIDIA-Nemotron-Nano-9B-v2", RELEASED["NEMOTRON_NANO_9B"], 9),
    ("granite-3.0-1b-a400m-base", RELEASED["GRANITE_3_MOE"], 1.3),
    ("falcon-mamba-7b", RELEASED["FALCON_MAMBA_7B"], 7.3),
    ("Jamba-v0.1", RELEASED["JAMBA"], 52),
    ("mamba-130m", RELEASED["MAMBA_130M"], 0.13),
    ("Olmo-3-1025-7B", RELEASED["OLMO_3"], 7),
    ("Olmo-Hybrid-7B", RELEASED["OLMO_HYBRID"], 7),
    ("OLMoE-1B-7B-0924", RELEASED["OLMOE"], 6.9),
    ("Phi-3.5-MoE-instruct", RELEASED["PHI_3_5_MOE"], 42),
    ("recurrentgemma-2b", RELEASED["RECURRENT_GEMMA_2B"], 2.7),
    ("Seed-OSS-36B", RELEASED["SEED_OSS"], 36),
    ("xglm-564M", RELEASED["XGLM_564M"], 0.564),
]


@pytest.mark.parametrize(("raw", "stated"), [one[1:] for one in STATED], ids=[s[0] for s in STATED])
def test_parameters_are_as_many_as_the_card_says(raw, stated):
    shapes = shapes_of(decoder(raw), np.dtype(np.float32))
    found = sum(leaf.size for leaf in jax.tree.leaves(shapes)) / 1e9
    digits = len(str(stated).partition(".")[2])
    assert round(found, digits) == stated


def test_parameters_of_exaone_4_without_embeddings_are_those_of_its_card():
    shapes = shapes_of(decoder(RELEASED["EXAONE_4"]), np.dtype(np.float32))
    assert round(sum(leaf.size for leaf in jax.tree.leaves(shapes["layers"])) / 1e9, 2) == 30.95


@pytest.mark.parametrize(
    ("raw", "stated"),
    [(RELEASED["GRANITE_3_MOE"], 0.4), (RELEASED["OLMOE"], 1.3), (RELEASED["PHI_3_5_MOE"], 6.6)],
)
def test_a_token_meets_as_many_parameters_as_the_card_says(raw, stated):
    config = decoder(raw)
    found = costs.active_parameters(shapes_of(config, np.dtype(np.float32)), config)
    assert round(found / 1e9, 1) == stated


def test_parameters_of_olmo_3_one_by_one():
    """Per layer four products of attention, three of the MLP, four norms."""
    width, inner, vocabulary = 4096, 11008, 100278
    layer = 4 * width**2 + 3 * width * inner + 4 * width
    shapes = shapes_of(decoder(RELEASED["OLMO_3"]), np.dtype(np.float32))
    found = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert found == 32 * layer + width + 2 * vocabulary * width == 7_298_011_136


@pytest.mark.parametrize("attributes", [{"rope_theta": 10000.0}, {"rope_scaling": None}])
def test_an_apertus_without_its_scaling_differs_between_lines(attributes):
    raw = {name: value for name, value in RELEASED["APERTUS_8B"].items() if name != "rope_scaling"}
    with pytest.raises(InputError, match=r"rope_theta is 10000|rope_scaling is null"):
        decoder(raw | attributes)


# Attributes of released configs that transformers' classes do not read
UNREAD = {
    "bailing_hybrid": kimi.LING
    | {"max_window_layers": 20, "moe_shared_expert_intermediate_size": 24, "seq_aux": True}
    | {"partial_rotary_factor": 4 / 6, "rotary_dim": 4}
    | {"rope_parameters": {"partial_rotary_factor": 4 / 6, "rope_theta": 6000000.0}},  # of Ling 3.0
    "dots1": {"scoring_func": "noaux_tc"},
    "exaone_moe": {"first_last_k_dense_replace": 1, "is_moe_layer": [False, True, True]},
    "glm4_moe_lite": {"partial_rotary_factor": 1.0},  # of GLM-4.7-Flash
    "hy_v3": sigmoid_routers.HY3 | {"enable_lm_head_fp32": True, "expert_hidden_dim": 24},
    "bamba": {"attn_rotary_emb": 4, "mamba_dt_rank": 256, "use_mamba_kernels": True},
    "codegen": {"scale_attn_weights": True},
    "deepseek_v3": {"model_type": "kimi_k2"},  # of Kimi K2
    "glm_moe_dsa": {"head_dim": 6, "index_share_for_mtp_iteration": True}
    | {"moe_router_dtype": "float32", "rope_interleave": True},  # of GLM-5.2
    "granitemoehybrid": {"normalization_function": "rmsnorm"}
    | {"time_step_max": 0.1, "time_step_min": 0.001},
    "gpt_bigcode": {"inference_runner": 0, "pad_key_length": True, "validate_runner_input": True},
    "hunyuan_v1_moe": {"anyres_pooling_size": 2, "image_token_id": 9, "video_end_id": 11}
    | {"vit_mapping_type": "resampler", "vit_patch": 1, "vit_token": 64},
    "mpt": {
        "init_config": {"name": "kaiming_normal_"},
        "tokenizer_name": "EleutherAI/gpt-neox-20b",
    },
    "nemotron_h": {"time_step_limit": [0.0, 1e308]},  # of Nemotron 3 Ultra
    "qwen3_moe": {"shared_expert_intermediate_size": 0, "use_qk_norm": True},  # of Qwen3-Coder
    "solar_open": {"first_k_dense_replace": 0},
    "zamba2": {"use_shared_mlp_adapter": True},
    "axk1": {"aux_loss_alpha": 0.0001, "ep_size": 1, "num_nextn_predict_layers": 1, "seq_aux": True}
    | {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "hyperclovax": {"activation_function": "silu", "end_token_id": 3},
    "kolibri1": {"head_dtype": "float32", "use_sliding_window": True},
    "mellum": {"max_window_layers": 0, "use_sliding_window": True},
    "sarvam_mla": {"attn_implementation": "eager", "default_theta": 10000.0, "use_qk_norm": True}
    | {"max_window_layers": 3, "moe_router_enable_expert_bias": True, "score_function": "sigmoid"},
    "sarvam_moe": {"attn_implementation": "eager", "max_window_layers": 3}
    | {"moe_router_enable_expert_bias": True, "score_function": "sigmoid"}
    | {"moe_shared_expert_intermediate_size": 24},
}


@pytest.mark.parametrize("kind", UNREAD)
def test_attributes_that_no_class_reads_are_taken_as_released(kind):
    raw, where = {"model_type": kind, **BASE[kind]}, Path("somewhere")
    assert translate(where, raw | UNREAD[kind]) == translate(where, raw)
