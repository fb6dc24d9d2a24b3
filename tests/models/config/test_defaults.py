"""The table of defaults against the config classes of the installed transformers."""

import json
from pathlib import Path

import pytest
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from jaxscore.errors import InputError
from jaxscore.models.config import read, table
from jaxscore.models.config.check import BASE, INERT
from jaxscore.models.config.rope_parameters import TYPES, names_of, normal
from jaxscore.models.families import FAMILIES
from jaxscore.models.families.fields import head_width
from jaxscore.models.native import translate

pytestmark = pytest.mark.lines

FIFTH = transformers.__version__.startswith("5.")
THETA = "a file without it is refused"
# (model type, attribute) -> (of 4.57, of 5, why ours is neither or one of them)
DIFFERENT = {
    ("cohere", "rope_theta"): (10000.0, 500000.0, THETA),
    ("falcon_h1", "rope_theta"): (100000.0, 10000.0, THETA),
    ("olmo3", "rope_theta"): (10000.0, 500000.0, THETA),
    ("persimmon", "rope_theta"): (25000.0, 10000.0, THETA),
    ("qwen3_vl_moe_text", "rope_theta"): (5000000.0, 500000.0, THETA),
    ("qwen3_vl_text", "rope_theta"): (5000000.0, 500000.0, THETA),
    ("deepseek_v2", "vocab_size"): (32000, 102400, THETA),
    ("deepseek_v2", "aux_loss_alpha"): (0.001, None, "of training, gone in 5"),
    ("deepseek_v2", "seq_aux"): (True, None, "of training, gone in 5"),
    ("granitemoehybrid", "layer_types"): (None, ["linear_attention"] * 32, "null is these"),
    ("gpt_oss", "router_aux_loss_coef"): (0.9, 0.001, "of training"),
    ("qwen3_vl_moe_text", "tie_word_embeddings"): (False, True, "the weights say which"),
    ("qwen2_moe", "sliding_window"): (None, 0, "windows are refused, so it is read by nobody"),
}


def required(kind):
    """What a file must say, since the lines differ in it."""
    given = {"model_type": kind} | dict.fromkeys(table()[kind].differs, 7)
    rope = table()[kind].rope or {}
    thetas = [rope[name]["rope_theta"] for name in TYPES if name in rope] or [
        rope.get("rope_theta", 0)
    ]
    return given | ({"rope_theta": 5e5} if None in thetas else {})


@pytest.mark.parametrize("kind", table())
def test_the_table_is_what_the_class_has(kind):
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} does not have {kind}")
    theirs = json.loads(json.dumps(CONFIG_MAPPING[kind]().to_dict(), default=str))
    config, _, defaults = read(required(kind), "")
    rotary = names_of(kind, defaults.rope) if defaults.rope else frozenset()
    for name, value in theirs.items():
        if (kind, name) in DIFFERENT:
            assert value == DIFFERENT[kind, name][FIFTH]
        elif name in BASE:
            assert value == BASE[name]
        elif name == "head_dim" and config.head_dim is None:
            # null in one line, and the quotient in the other
            assert value in (None, head_width(config))
        elif name == "num_key_value_heads" and value is None:
            assert config.num_key_value_heads == config.num_attention_heads
        elif kind in ("zamba", "zamba2") and name == "layers_block_type":
            # 4.57 has an older name of recurrent layers.
            newer = [{"mamba": "linear_attention"}.get(layer, layer) for layer in value]
            assert newer == getattr(config, name)
        elif name in ("audio_config", "vision_config"):
            assert getattr(config, name) is None  # of towers
        elif name in ("attn_config", "ffn_config"):
            # 4.57's dbrx has a base in the one, and 5's a copy of the width in the other.
            inert = INERT | {"tie_word_embeddings", "rope_theta", "hidden_size", *BASE}
            own = {key: one for key, one in value.items() if key not in inert}
            assert own == getattr(config, name)
        elif name == "per_layer_config":
            assert {int(layer): own for layer, own in value.items()} == config.per_layer_config
        elif name not in INERT | rotary:
            assert getattr(config, name) == value, name
    if defaults.rope and (kind, "rope_theta") not in DIFFERENT:
        said = {name: theirs[name] for name in rotary & set(theirs)}
        assert normal(kind, said, defaults.rope, vars(config)) == config.rope_parameters


def test_the_rotary_defaults_that_differ():
    for kind, name in DIFFERENT:
        if name == "rope_theta":
            made = CONFIG_MAPPING[kind]()
            found = made.rope_parameters if FIFTH else {"rope_theta": made.rope_theta}
            found = found.get("full_attention", found)
            assert found["rope_theta"] == DIFFERENT[kind, name][FIFTH]


@pytest.mark.parametrize(
    ("kind", "name"), [key for key, (_, _, why) in DIFFERENT.items() if why == THETA]
)
def test_what_the_lines_take_differently_has_to_be_said(kind, name):
    given = {key: value for key, value in required(kind).items() if key != name}
    with pytest.raises(InputError, match=f"config.json: .*{name}.* is missing"):
        read(given, "config.json")


@pytest.mark.parametrize("kind", table())
def test_what_a_class_writes_is_known(kind):
    """No attribute of a file that a class has written comes as a surprise."""
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} does not have {kind}")
    written = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    defaults = table()[kind]
    known = INERT | set(BASE) | set(defaults.values) | set(defaults.aliases) | defaults.differs
    known |= names_of(kind, defaults.rope) if defaults.rope else set()
    known |= {name for one, name in DIFFERENT if one == kind}
    assert set(written) <= known


# Defaults of which the class itself makes no model
UNUSABLE = {
    "dbrx": {"attn_config": {"clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 8},
    "glm4_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv"] * 32},
    "minimax_m3_vl_text": {"partial_rotary_factor": 0.5},
    "qwen4_exp_text": {
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
        "indexer_head_dim": 256,
        "indexer_kv_heads": 1,
        "indexer_n_heads": 2,
    },
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_finds_every_attribute_in_the_table(kind):
    raw = required(kind) | UNUSABLE.get(kind, {})
    assert translate(Path("a"), raw)[1].n_layers >= 2
