"""Released mixtures and wrappers by their config.json alone: taken, and as large as published."""

import functools
import json
from pathlib import Path
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from jaxscore.device.decoder_config import Experts, OtherMlp
from jaxscore.models import costs, native
from jaxscore.models.weights import quantization
from jaxscore.models.weights.params import shapes_of
from jaxscore.models.wrappers import WRAPPERS
from tests.device.configs import flat_fields
from tests.models.checkpoints import FIFTH
from tests.models.published import RELEASED

pytestmark = pytest.mark.lines

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Size(NamedTuple):
    """How many parameters a text model has.

    Attributes:
        parameters: without layers that predict more tokens than the next.
        active: those that a token meets, less its row of the embedding.
    """

    parameters: int
    active: int
    width: int
    vocabulary: int

    @property
    def ends(self) -> int:
        """Embedding and unembedding, where these are two."""
        return 2 * self.width * self.vocabulary


@functools.cache
def translated(name):
    raw = RELEASED[name]
    quantization.read_scheme(Path("somewhere"), raw)
    return native.translate(Path("somewhere"), quantization.plain_config(raw))[1]


@functools.cache
def size(name):
    config = translated(name)
    shapes = shapes_of(config, BFLOAT16)
    embedding = config.vocab_size * config.width
    return Size(
        sum(leaf.size for leaf in jax.tree.leaves(shapes)),
        costs.active_parameters(shapes, config) - (0 if config.head.tied else embedding),
        config.width,
        config.vocab_size,
    )


def billions(number, digits=1):
    return f"{number / 1e9:.{digits}f}"


# arXiv 2508.10925, table 1, which counts the unembedding as active and the embedding not.
GPT_OSS = {
    "GPT_OSS_20B": {"total": "20.91", "active": "3.61", "experts": "19.12", "attention": "0.64"},
    "GPT_OSS_120B": {"total": "116.83", "active": "5.13", "experts": "114.71", "attention": "0.96"},
}


@pytest.mark.parametrize("name", GPT_OSS)
def test_gpt_oss(name):
    found, config = size(name), translated(name)
    shapes = shapes_of(config, BFLOAT16)
    of_mlp = sum(
        leaf.size for leaf in jax.tree.leaves((shapes["experts"], shapes["layers"]["mlp"]))
    )
    attention = sum(leaf.size for leaf in jax.tree.leaves(shapes["layers"]["attention"]))
    assert GPT_OSS[name] == {
        "total": billions(found.parameters, 2),
        "active": billions(found.active, 2),
        "experts": billions(of_mlp, 2),
        "attention": billions(attention, 2),
    }
    assert billions(found.ends, 2) == "1.16"


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("DEEPSEEK_V3", "671", "37"),  # arXiv 2412.19437, section 4.2
        ("DEEPSEEK_V32", "671", "37"),  # without indexers, trained further from V3
        ("GLM_5", "743", "40"),  # its card, which has 744 with indexers
        ("TRINITY_MINI", "26", "3"),  # its card
        ("DBRX", "132", "36"),  # its card
        # its card has 560 and, of a token whose experts all have weights, 31.3
        ("LONGCAT_FLASH", "561", "31"),
        ("DEEPSEEK_V2", "236", "21"),  # arXiv 2405.04434, section 3.1.2
        ("MINIMAX_M2", "229", "10"),  # as the hub counts; the model card rounds to 230
        ("ERNIE_4_5_21B", "22", "3"),  # as the hub counts; the model card cuts off to 21
        ("QWEN3_5_35B_A3B", "35", "3"),  # its card
    ],
)
def test_mixtures(name, total, active):
    assert (billions(size(name).parameters, 0), billions(size(name).active, 0)) == (total, active)


def test_deepseek_v2_lite():
    assert billions(size("DEEPSEEK_V2_LITE").parameters) == "15.7"  # arXiv 2405.04434, appendix B


def with_next_token_layer(name):
    """Parameters of a model and of its layer that predicts a second token.

    It is a layer as the last one, and norms of an embedding, of a state and of its result, and a
    product of the first two (arXiv 2412.19437, section 2.2).
    """
    raw = RELEASED[name]
    config = native.translate(Path(name), raw | {"num_hidden_layers": raw["num_hidden_layers"] + 1})
    leaves = jax.tree.leaves(shapes_of(config[1], BFLOAT16))
    width = raw["hidden_size"]
    return sum(leaf.size for leaf in leaves) + 2 * width**2 + 3 * width


def test_glm():
    """arXiv 2508.06471, table 1: 355 with 32 active and 106 with 12, which leave out embedding and
    unembedding. The hub counts 358 and 110, with those of the additional layer besides."""
    for name, active, on_the_hub in (
        ("GLM_4_5", "32", 358_337_791_296),
        ("GLM_4_5_AIR", "12", 110_468_824_832),
    ):
        found = size(name)
        assert billions(found.active - found.ends // 2, 0) == active
        assert with_next_token_layer(name) + found.ends == on_the_hub
    glm, air = size("GLM_4_5"), size("GLM_4_5_AIR")
    assert billions(with_next_token_layer("GLM_4_5") - glm.ends, 0) == "355"
    assert billions(air.parameters - air.ends, 0) == "106"


# Parameters of the whole model as the hub counts them, and those of its text
WRAPPED = {
    "SCOUT": (108_641_793_536, 107_769_861_120),
    "MAVERICK": (401_583_781_376, 400_711_848_960),
    "GEMMA_3_4B": (4_300_079_472, 3_880_263_168),
    "MISTRAL_SMALL_3_1": (24_011_361_280, 23_572_403_200),
    "DEVSTRAL_SMALL_2": (24_011_361_280, 23_572_403_200),
    "QWEN2_5_VL_7B": (8_292_166_656, 7_615_616_512),
    "QWEN3_VL_4B": (4_437_815_808, 4_022_468_096),
}
COMPARED = (
    *WRAPPED,
    "GPT_OSS_20B",
    "GPT_OSS_120B",
    "DEEPSEEK_V2_LITE",
    "GLM_4_5_AIR",
    "MINIMAX_M2",
    "ERNIE_4_5_21B",
    "QWEN3_5_4B",
    "QWEN3_5_35B_A3B",
)


def torchs(name):
    """The shapes of the tensors that torch's class saves."""
    raw = RELEASED[name]
    raw = {
        key: value for key, value in raw.items() if key not in ("auto_map", "quantization_config")
    }
    kind = raw["model_type"]
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} does not have {kind}")
    made = AutoModelForImageTextToText if kind in WRAPPERS else AutoModelForCausalLM
    given = json.loads(json.dumps({key: raw[key] for key in raw if key != "model_type"}))
    config = AutoConfig.for_model(kind, **given)
    with torch.device("meta"):
        model = made.from_config(config)
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    text = config.get_text_config()
    tied = tied if getattr(text, "tie_word_embeddings", config.tie_word_embeddings) else set()
    return {key: value.shape for key, value in model.state_dict().items() if key not in tied}


@pytest.mark.slow_after(2)
@pytest.mark.skipif(not FIFTH, reason="4.57 has a module for each expert, which takes minutes")
@pytest.mark.parametrize("name", COMPARED)
def test_parameters_are_torchs(name):
    shapes = torchs(name)
    wrapper = WRAPPERS.get(RELEASED[name]["model_type"])
    towers = frozenset() if wrapper is None else wrapper.towers
    text = {key: shape for key, shape in shapes.items() if not set(key.split(".")[:2]) & towers}
    assert size(name).parameters == sum(shape.numel() for shape in text.values())
    if name in WRAPPED:
        whole = sum(shape.numel() for shape in shapes.values())
        assert (whole, size(name).parameters) == WRAPPED[name]


def test_llama_4():
    """The model card: 109 and 400, and 17 active in both, the tower for images among them."""
    whole, text = WRAPPED["SCOUT"]
    assert (billions(whole, 0), text) == ("109", size("SCOUT").parameters)
    assert billions(size("SCOUT").active + size("SCOUT").ends // 2, 0) == "17"
    assert billions(size("MAVERICK").active + size("MAVERICK").ends // 2, 0) == "17"


def test_gemma_3_4b():
    """arXiv 2503.19786, table 1: 3209 million beside the embedding."""
    found = size("GEMMA_3_4B")
    assert billions(found.parameters - found.ends // 2, 3) == "3.209"


FACTS = {
    "GPT_OSS_20B": {
        "experts": Experts.of(
            count=32, per_token=4, router_renormalised=True, router_bias=True, bias=True
        ),
        "windows": (128, 0) * 12,
        "sinks": True,
        "qkv_bias": True,
        "out_bias": True,
    },
    "DEEPSEEK_V3": {
        "experts": Experts.of(
            count=256,
            per_token=8,
            router_renormalised=True,
            shared_width=2048,
            shared_gated=False,
            router_scores="sigmoid",
            router_corrected=True,
            router_groups=8,
            router_groups_per_token=4,
            router_group_rank=2,
            router_scale=2.5,
            router_least_sum=1e-20,
        ),
        "mlp_other": OtherMlp((0, 1, 2), 18432),
        "interleaved": True,
        "head_width": 576,
        # mscale of 40 times on 192 channels (DeepSeek-V3's published code)
        "score_scale": 192**-0.5 * (0.1 * np.log(40) + 1) ** 2,
    },
    "DEEPSEEK_V2": {
        "experts": Experts.of(
            count=160,
            per_token=6,
            router_renormalised=False,
            shared_width=2 * 1536,
            shared_gated=False,
            router_groups=8,
            router_groups_per_token=3,
            router_scale=16.0,
        ),
        "score_scale": 192**-0.5 * (0.1 * 0.707 * np.log(40) + 1) ** 2,
    },
    "GLM_4_5_AIR": {"qkv_bias": True, "out_bias": False, "qk_norm_kind": "", "head_width": 128},
    "GLM_4_5": {"qk_norm_kind": "head", "mlp_other": OtherMlp((0, 1, 2), 12288)},
    "MINIMAX_M2": {"qk_norm_kind": "flat", "windows": (0,) * 62},
    "ERNIE_4_5_21B": {"head_tied": True, "mlp_other": OtherMlp((0,), 12288), "head_width": 128},
    "SCOUT": {
        "windows": (8192, 8192, 8192, 0) * 12,
        "rotary_of": (0, 0, 0, 1) * 12,
        "qk_norm_layers": (True, True, True, False) * 12,
        "mlp_other": None,
    },
    "MAVERICK": {"mlp_other": OtherMlp(tuple(range(0, 48, 2)), 16384), "qk_norm_kind": ""},
    "GEMMA_3_4B": {"windows": ((1024,) * 5 + (0,)) * 5 + (1024,) * 4, "head_width": 256},
    "MISTRAL_SMALL_3_1": {"head_width": 128, "windows": (0,) * 40},
    "QWEN2_5_VL_7B": {"qkv_bias": True, "windows": (0,) * 28, "head_tied": False},
    "QWEN3_VL_4B": {"qk_norm_kind": "head", "head_tied": True},
    "SMOLVLM_500M": {"head_tied": False, "n_heads": 15, "mlp_width": 2560},
    "QWEN3_5_4B": {"head_tied": True, "query_gate": True, "mlp_width": 9216},
    "QWEN3_5_35B_A3B": {
        "experts": Experts.of(count=256, per_token=8, router_renormalised=True, shared_width=512),
        "mlp_other": None,
    },
    "QWEN3_8_FLASH_NEXT": {
        "experts": Experts.of(count=512, per_token=10, router_renormalised=True, shared_width=640),
        "max_positions": 2051,
    },
}


@pytest.mark.parametrize("name", FACTS)
def test_a_published_config_is_taken_as_it_is_meant(name):
    fields = flat_fields(translated(name))
    for key, value in FACTS[name].items():
        close = pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
        assert fields[key] == close, key


def test_minimax_m2_turns_half_of_each_head():
    assert [2 * len(one.frequencies) for one in translated("MINIMAX_M2").positions.rotary] == [64]


def test_ministral_grows_its_queries():
    growth = translated("DEVSTRAL_SMALL_2").attention.scores.query_growth
    assert (set(growth.shares), growth.length) == ({0.1}, 8192.0)


def test_qwen3_6_is_as_qwen3_5():
    """Their files differ in `output_gate_type` and in what has no effect."""
    assert translated("QWEN3_6_27B") == translated("QWEN3_5_27B")


def test_hashes_of_qwen3_8_flash_next():
    """Its checkpoint stores them, `layer_multipliers` and `ngram_heads_vocab_sizes`."""
    (table,) = translated("QWEN3_8_FLASH_NEXT").ngrams.tables
    assert table.multipliers == (23703573157769, 20109073645365, 8052911324071)
    assert (len(table.primes), table.primes[0], table.primes[-1]) == (16, 20000003, 20000171)
    assert (sum(table.primes), table.rows) == (320001446, 320001536)
