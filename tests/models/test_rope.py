"""Rotary frequencies against transformers' own table of functions, to float32 rounding."""

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from jaxscore.errors import InputError
from jaxscore.models.rope import rotary

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
    frequencies, factor = rotary(width, theta, scaling, 131072)
    got = np.array(frequencies, np.float64)
    assert got.shape == (width // 2,)
    assert (got.astype(np.float32) == got).all()
    # Two roundings of a power function that is itself a last bit off, then of the blend.
    np.testing.assert_allclose(got, want.numpy(), rtol=4 * 2**-24, atol=0)
    assert factor == pytest.approx(want_factor, rel=1e-12)


def test_scaled_frequencies_differ_from_plain_ones():
    """Else the comparison above could hold with every scaling ignored on both sides."""
    plain, one = rotary(128, 5e5, None, 131072)
    assert one == 1.0
    for scaling in SCALINGS[2:]:
        frequencies, factor = rotary(128, 5e5, scaling, 131072)
        assert frequencies != plain or factor != 1.0


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, r"rope_type 'dynamic'.*handled are default"),
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
