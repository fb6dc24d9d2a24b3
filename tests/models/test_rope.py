"""Rotary frequencies against transformers' own table of functions, to float32 rounding."""

import numpy as np
import pytest
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from jaxscore.errors import InputError
from jaxscore.models.rope import longrope, rotary

LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SCALINGS = [
    None,
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.7},
    {"type": "linear", "factor": 4},
    LLAMA31,
    LLAMA31 | {"factor": 32.0},
    LLAMA31 | {"low_freq_factor": 2.5, "high_freq_factor": 3.5},
    YARN,
    {"type": "yarn", "factor": 2.0},
    YARN | {"attention_factor": 0.7},
    YARN | {"mscale": 1.0, "mscale_all_dim": 0.8},
    YARN | {"mscale": 1.0},  # transformers takes the pair or neither
    YARN | {"beta_fast": 16, "beta_slow": 2},
    YARN | {"beta_fast": None, "attention_factor": None, "truncate": False},
    YARN | {"factor": 0.5},
    YARN | {"beta_fast": 1, "beta_slow": 1, "truncate": False},  # a ramp without width
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@pytest.mark.parametrize(("width", "theta"), [(8, 1e4), (64, 5e5), (128, 1e6), (80, 123.5)])
def test_frequencies_are_torchs(scaling, width, theta):
    config = LlamaConfig(
        hidden_size=width,
        num_attention_heads=1,
        head_dim=width,
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=131072,
    )
    # LlamaConfig writes `rope_type` into the dictionary where it says `type`.
    kind = config.rope_scaling["rope_type"] if config.rope_scaling else "default"
    want, want_factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    table = rotary(width, theta, scaling, 131072)
    got = np.array(table.frequencies, np.float64)
    assert got.shape == (width // 2,)
    assert (got.astype(np.float32) == got).all()
    # Two roundings of a power function that is itself a last bit off, then of the blend.
    np.testing.assert_allclose(got, want.numpy(), rtol=4 * 2**-24, atol=0)
    assert table.factor == pytest.approx(want_factor, rel=1e-12)


def test_scaled_frequencies_differ_from_plain_ones():
    """Else the comparison above could hold with every scaling ignored on both sides."""
    plain = rotary(128, 5e5, None, 131072)
    assert plain.factor == 1.0
    for scaling in SCALINGS[3:]:
        assert rotary(128, 5e5, scaling, 131072) != plain


@pytest.mark.parametrize("length", [9, 131072])
def test_dynamic_is_plain_up_to_the_longest_request(length):
    """As torch has it at every length that is taken."""
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    config = LlamaConfig(
        head_dim=64, rope_theta=5e5, rope_scaling=scaling, max_position_embeddings=131072
    )
    want, factor = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=length)
    table = rotary(64, 5e5, scaling, 131072)
    np.testing.assert_allclose(table.frequencies, want.numpy(), rtol=4 * 2**-24, atol=0)
    assert table.factor == factor == 1.0


def scaled_long(**own):
    draw = np.random.default_rng(0)
    short, long = (draw.uniform(1, 20, 24).tolist() for _ in range(2))
    return {"type": "longrope", "short_factor": short, "long_factor": long, **own}


@pytest.mark.parametrize("own", [{}, {"attention_factor": 1.3}], ids=str)
@pytest.mark.parametrize("most", [4096, 131072])
def test_both_tables_of_longrope_are_torchs(own, most):
    config = Phi3Config(
        hidden_size=64,
        num_attention_heads=1,
        partial_rotary_factor=0.75,
        rope_scaling=scaled_long(),
        max_position_embeddings=most,
        original_max_position_embeddings=4096,
    )
    config.rope_scaling |= own  # which its validation does not know
    tables = longrope(48, 10000.0, scaled_long(**own), most, 4096)
    for table, length in zip(tables, (4096, 4097), strict=True):
        want, factor = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
        np.testing.assert_allclose(table.frequencies, want.numpy(), rtol=4 * 2**-24, atol=0)
        assert table.factor == pytest.approx(factor, rel=1e-12)
    assert tables[0] != tables[1]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"short_factor": [1.0]}, r"short_factor \[1.0\], expected 24 numbers"),
        ({"long_factor": None}, r"long_factor None, expected 24 numbers"),
        ({"long_factor": ["a"] * 24}, r"long_factor .*expected 24 numbers"),
        ({"odd": 1}, r"'odd'"),
        ({"attention_factor": "1"}, r"attention_factor '1', expected a positive number"),
    ],
    ids=str,
)
def test_a_longrope_that_is_not_handled(own, message):
    with pytest.raises(InputError, match=message):
        longrope(48, 10000.0, scaled_long(**own), 131072, 4096)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "dynamic"}, r"lacks \['factor'\]"),
        ({"rope_type": "proportional"}, r"rope_type 'proportional'.*handled are default"),
        ({"type": "longrope", "long_factor": [1.0]}, r"rope_type 'longrope'"),
        ({"rope_type": "yarn", "factor": 2.0, "wobble": 1}, r"'yarn' .*\['wobble'\]"),
        ({"rope_type": "linear", "factor": 2.0, "low_freq_factor": 1.0}, r"\['low_freq_factor'\]"),
        ({"rope_type": "linear"}, r"'linear' lacks \['factor'\]"),
        ({"rope_type": "linear", "factor": None}, r"'linear' lacks \['factor'\]"),
        ({"rope_type": "yarn"}, r"'yarn' lacks \['factor'\]"),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0},
            r"'llama3' lacks \['high_freq_factor', 'original_max_position_embeddings'\]",
        ),
    ],
    ids=str,
)
def test_what_is_not_handled_is_named(scaling, message):
    with pytest.raises(InputError, match=message):
        rotary(64, 1e4, scaling, 4096)


@pytest.mark.parametrize("scaling", [["linear"], "linear", 2, True])
def test_a_scaling_that_is_no_object(scaling):
    with pytest.raises(InputError, match=r"rope_scaling is .*, expected an object"):
        rotary(16, 10000.0, scaling, 64)
    with pytest.raises(InputError, match=r"rope_scaling is .*, expected an object"):
        longrope(16, 10000.0, scaling, 64, 32)
