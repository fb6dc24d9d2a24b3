"""What the tool measures is what jaxscore/models/README.md says of transformers' defaults."""

import pytest

from tests.models.case_parts import case
from tests.models.torch_defaults import MOVED, OTHERWISE, measured, otherwise, rows
from tests.releases import TRANSFORMERS_4

pytestmark = pytest.mark.lines


def test_defaults_that_move_nothing():
    one = measured("llama")
    assert one.attention == "sdpa"
    assert 0 < one.largest["sdpa"] < MOVED
    assert 0 < one.largest["defaults"] < MOVED
    assert one.largest["eager"] == 0
    assert one.moved == []


def test_soft_caps_of_gemma2():
    one = measured("gemma2")
    if TRANSFORMERS_4:
        assert one.attention == "sdpa"
        assert one.largest["sdpa"] == one.largest["defaults"] > 1
        [published] = [by for config, by in one.moved if config == {"attn_logit_softcapping": 50.0}]
        assert 0.005 < published < 0.05
    else:
        assert one == ("eager", {"defaults": 0.0, "sdpa": None, "eager": 0.0}, [])


def test_scores_of_gpt2_that_are_not_scaled():
    one = measured("gpt2")
    assert [config["scale_attn_weights"] for config, _ in one.moved] == [False] * TRANSFORMERS_4
    assert (one.largest["defaults"] > 1) == TRANSFORMERS_4


def test_penalties_of_falcon_that_eager_attention_adds_twice():
    one = measured("falcon")
    assert one.largest["defaults"] < MOVED
    assert one.largest["eager"] > 0.5
    assert [config["alibi"] for config, _ in one.moved] == [True, True]


@pytest.mark.parametrize(
    ("one", "differs"),
    [
        (case("gpt_oss", swiglu_limit=1.0), TRANSFORMERS_4),
        (case("olmo3", rope_theta=300.0), not TRANSFORMERS_4),
    ],
    ids=str,
)
def test_what_one_line_computes_otherwise(one, differs):
    assert one in OTHERWISE
    found = otherwise(one)
    assert found > 1 if differs else found < MOVED


def test_a_row_for_each_family_that_the_line_computes():
    found = [row.split("`")[1] for row in rows(["llama", "nanochat"]) if row.startswith("| `")]
    kinds = ["llama"] if TRANSFORMERS_4 else ["llama", "nanochat"]
    assert found == ["model_type", *kinds, "model_type"]
