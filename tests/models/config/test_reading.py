"""One checkpoint is one decoder, whichever line of transformers wrote its config."""

from pathlib import Path

import pytest
import transformers

from jaxscore.errors import InputError
from jaxscore.models.config import read, table
from jaxscore.models.families import FAMILIES
from jaxscore.models.model_types import WITHOUT_4
from jaxscore.models.native import translate
from jaxscore.models.rope import ORIGINAL
from tests.models.config.written import SOME, kept, written

pytestmark = pytest.mark.lines

PAIRS = list(zip(kept("4"), kept("5"), strict=True))
# Of training, or not read where there are `layer_types` and `no_rope_layers`, or objects that
# lines fill up with defaults
WITHOUT_EFFECT = set(
    "attn_config ffn_config full_attn_idxs no_rope_layer_interval router_aux_loss_coef "
    "sliding_window_pattern".split()
)
LLAMA = {"model_type": "llama"}


def test_the_kept_files_are_what_the_installed_line_writes():
    assert kept(transformers.__version__[0]) == written()


def test_every_family_has_a_pair():
    assert {old["model_type"] for old, _ in PAIRS} >= set(FAMILIES) - WITHOUT_4
    assert len(PAIRS) == len(SOME)


def test_layers_of_minimax_m3_by_lists_of_numbers():
    sparse = {"sparse_attention_freq": [0, 1], "sparse_topk_blocks": 4}
    sparse |= {"sparse_disable_index_value": [0, 1], "sparse_init_block": 0}
    raw = {"model_type": "minimax_m3_vl_text", "num_hidden_layers": 2, "moe_layer_freq": [0, 1]}
    found = read(raw | {"sparse_attention_config": sparse}, "").config
    assert found.layer_types == ["full_attention", "minimax_m3_sparse"]
    assert found.mlp_layer_types == ["dense", "sparse"]
    assert (found.index_topk_blocks, found.index_block_size) == (4, 128)


@pytest.mark.parametrize(("old", "new"), PAIRS, ids=[kind for kind, _ in SOME])
def test_both_spellings_are_one_config(old, new):
    known = set(table()[old["model_type"]].values) - WITHOUT_EFFECT | {"rope_parameters"}
    found = [vars(read(raw, "config.json").config) for raw in (old, new)]
    first, second = ({k: v for k, v in one.items() if k in known} for one in found)
    second.update({"head_dim": None} if first.get("head_dim", 0) is None else {})  # the quotient
    assert first == second
    if old["model_type"] in FAMILIES:
        assert translate(Path("a"), old)[1] == translate(Path("b"), new)[1]


def test_spellings_differ():
    """Else the comparison above could hold with only one of them read."""
    n_old = sum("rope_theta" in old or "rotary_emb_base" in old for old, _ in PAIRS)
    n_new = sum("rope_parameters" in new for _, new in PAIRS)
    assert min(n_old, n_new) > 60
    assert not any("rope_parameters" in old or "rope_theta" in new for old, new in PAIRS)


def config(**raw):
    return read(LLAMA | raw, "config.json").config


def refused(message, **raw):
    with pytest.raises(InputError, match=message):
        read(LLAMA | raw, "config.json")


def test_what_stands_beside_fills_gaps_and_must_agree():
    plain = {"rope_theta": 10000.0, "rope_type": "default"}
    assert config().rope_parameters == plain
    assert config(rope_parameters=None, rope_scaling=None).rope_parameters == plain
    assert config(rope_parameters={"rope_theta": 5.0}).rope_parameters["rope_theta"] == 5.0
    assert config(rope_parameters=plain, rope_theta=10000).rope_parameters == plain
    five = plain | {"rope_theta": 5.0}
    refused("rope_theta 5.0, and rope_theta is 6.0", rope_theta=6.0, rope_parameters=five)
    yarn = {"type": "yarn", "factor": 2.0}
    want = {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 2.0, ORIGINAL: 64}
    assert config(rope_scaling=yarn, max_position_embeddings=64).rope_parameters == want
    assert config(rope_scaling=yarn, **{ORIGINAL: 32}).rope_parameters == want | {ORIGINAL: 32}
    two = {"rope_scaling": yarn | {ORIGINAL: 16}, ORIGINAL: 32}
    refused(f"{ORIGINAL} 16, and {ORIGINAL} is 32", **two)


def test_old_names_of_layer_types():
    raw = {"model_type": "qwen3", "num_hidden_layers": 2, "layer_types": ["attention", "mamba"]}
    assert read(raw, "").config.layer_types == ["full_attention", "linear_attention"]


def test_two_names_of_one_attribute():
    raw = {"model_type": "gpt2", "n_embd": 64}
    assert read(raw | {"hidden_size": 64}, "").config.n_embd == 64
    assert read({"model_type": "gpt2", "hidden_size": 64}, "").config.n_embd == 64
    with pytest.raises(InputError, match="hidden_size is an alias of n_embd"):
        read(raw | {"hidden_size": 32}, "")


@pytest.mark.parametrize("kind", ["gemma3_text", "olmo3"])
def test_rotary_parameters_for_each_layer_type(kind):
    one = {"rope_theta": 7.0}
    raw = {"model_type": kind, "rope_parameters": {"full_attention": one, "sliding_attention": one}}
    found = read(raw, "").config.rope_parameters
    assert found == dict.fromkeys(raw["rope_parameters"], one | {"rope_type": "default"})
    for given, message in (
        ({"full_attention": one}, "has full_attention, expected full_attention, sliding_attention"),
        (one, "has rope_theta, expected"),
        ({"full_attention": one, "sliding_attention": None}, "sliding_attention is null"),
        ({"full_attention": one, "sliding_attention": 3}, "expected an object"),
    ):
        with pytest.raises(InputError, match=message):
            read(raw | {"rope_parameters": given}, "")
    with pytest.raises(InputError, match="both present"):
        read(raw | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "")


def test_positions_of_images_are_those_of_text():
    raw = {"model_type": "qwen2_vl_text", "head_dim": 16, "tie_word_embeddings": False}
    raw["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 3, 3]}
    plain = {"rope_theta": 1000000.0, "rope_type": "default"}
    assert read(raw, "").config.rope_parameters == plain
    for section in ([2, 3, 4], [8, 0, 0], "8", [4, 4]):
        raw["rope_scaling"] = {"type": "mrope", "mrope_section": section}
        with pytest.raises(InputError, match=r"mrope_section is .* half of the head width 16"):
            read(raw, "")


def test_derived_attributes():
    gpt_neo = {"model_type": "gpt_neo", "num_layers": 3}
    assert (
        read(gpt_neo | {"attention_types": [[["local"], 3]]}, "").config.attention_layers
        == ["local"] * 3
    )
    with pytest.raises(InputError, match=r"attention_types is .* num_layers 3"):
        read(gpt_neo, "")
    gemma4 = {"model_type": "gemma4_text", "num_hidden_layers": 6}
    assert read(gemma4, "").config.per_layer_config == {5: {"head_dim": 512}}
    given = {"per_layer_config": {"05": {"head_dim": 32}}}
    assert read(gemma4 | given, "").config.per_layer_config == {5: {"head_dim": 32}}
    with pytest.raises(InputError, match="head_dim is 7, expected hidden_size / num_att"):
        read({"model_type": "cohere2", "head_dim": 7}, "")
    with pytest.raises(InputError, match="set layer_types"):
        read({"model_type": "gemma3_text", "_sliding_window_pattern": 3}, "")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"num_key_value_heads": "2"}, "num_key_value_heads is '2', expected null or a value of"),
        ({"head_dim": True}, "head_dim is True, expected null or a value of type int"),
        ({"hidden_size": 2.0}, "hidden_size is 2.0, expected a value like 4096"),
        ({"rope_theta": None}, "rope_theta is None, expected a value like"),
    ],
    ids=str,
)
def test_values_of_the_wrong_type(raw, message):
    refused(message, **raw)
