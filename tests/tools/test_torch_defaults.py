"""What the tool measures of transformers' defaults is what jaxscore/models/README.md says."""

from tests.releases import TRANSFORMERS_4
from tools.torch_defaults import MOVED, measured, rows


def test_defaults_that_move_nothing():
    one = measured("llama")
    assert one.default == "sdpa"
    assert 0 < one.sdpa < MOVED
    assert 0 < one.defaults < MOVED
    assert one.moved == []


def test_soft_caps_of_gemma2():
    one = measured("gemma2")
    if TRANSFORMERS_4:
        assert one.default == "sdpa"
        assert one.sdpa == one.defaults > 1
        assert {} in one.moved
    else:
        assert one == ("eager", None, 0.0, [])


def test_scores_of_gpt2_that_are_not_scaled():
    one = measured("gpt2")
    assert [config["scale_attn_weights"] for config in one.moved] == [False] * TRANSFORMERS_4
    assert (one.defaults > 1) == TRANSFORMERS_4


def test_a_row_for_each_family_that_the_line_computes():
    found = [row for row in rows(["llama", "nanochat"]) if row.startswith("| `")][1:]
    kinds = ["llama"] if TRANSFORMERS_4 else ["llama", "nanochat"]
    assert [row.split("`")[1] for row in found] == kinds
