"""Rotary frequencies against transformers' own table of functions, to float32 rounding."""

import copy

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from jaxscore.errors import InputError
from jaxscore.models.config.rope_parameters import normal
from jaxscore.models.rope import longrope, rotary

pytestmark = [pytest.mark.numeric, pytest.mark.lines]

LONGEST = 131072
ROUNDING = 4 * 2**-24  # roundings of a power function that is itself a last bit off, and of a blend


def read(scaling, theta=1e4, kind="llama", longest=LONGEST, share=None, **beside):
    """Our form of what transformers 4.57 writes as two attributes."""
    default = {"rope_theta": 1e4} | ({} if share is None else {"partial_rotary_factor": share})
    raw = {"rope_scaling": scaling, "rope_theta": theta}
    return normal(kind, raw, default, {"max_position_embeddings": longest} | beside)


def torchs(config, seq_len=None):
    """The frequencies and the factor that transformers makes of a config."""
    # transformers 5 has the plain ones beside each model, and no `rope_scaling`.
    scaling = getattr(config, "rope_parameters", None) or config.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ROPE_INIT_FUNCTIONS:
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=seq_len)


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
    LLAMA31 | {"factor": 16.0, "high_freq_factor": 1.0},  # Llama 4 Scout: no channel between
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
        rope_scaling=copy.deepcopy(scaling),  # it writes into it
        max_position_embeddings=LONGEST,
    )
    want, want_factor = torchs(config)
    table = rotary(width, read(scaling, theta))
    got = np.array(table.frequencies, np.float64)
    assert got.shape == (width // 2,)
    assert (got.astype(np.float32) == got).all()
    np.testing.assert_allclose(got, want.numpy(), rtol=ROUNDING, atol=0)
    assert table.factor == pytest.approx(want_factor, rel=1e-12)


def test_frequencies_have_torchs_bits():
    """But for the few in which torch's own power depends on the processor."""
    differing = 0
    for theta in (1e4, 5e5, 1e6, 2.5e7):
        at = torch.arange(0, 256, 2, dtype=torch.int64).float() / 256
        want = (1.0 / theta**at).numpy()
        got = np.array(rotary(256, {"rope_theta": theta}).frequencies, np.float32)
        differing += (got != want).sum()
        assert np.abs(got.view(np.int32) - want.view(np.int32)).max() <= 2
    assert differing <= 0.05 * 4 * 128


def test_scaled_frequencies_differ_from_plain_ones():
    """Else the comparison above could hold with every scaling ignored on both sides."""
    plain = rotary(128, read(None, 5e5))
    assert plain.factor == 1.0
    for scaling in SCALINGS[3:]:
        assert rotary(128, read(scaling, 5e5)) != plain


@pytest.mark.parametrize("length", [9, 131072])
def test_dynamic_is_plain_up_to_the_longest_request(length):
    """As torch has it at every length that is taken."""
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    config = LlamaConfig(
        head_dim=64, rope_theta=5e5, rope_scaling=dict(scaling), max_position_embeddings=LONGEST
    )
    want, factor = torchs(config, length)
    table = rotary(64, read(scaling, 5e5))
    np.testing.assert_allclose(table.frequencies, want.numpy(), rtol=ROUNDING, atol=0)
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
        pad_token_id=None,
    )
    # whose validation does not know the factor
    (getattr(config, "rope_parameters", None) or config.rope_scaling).update(own)
    tables = longrope(64, read_long(most=most, **own), most)
    for table, length in zip(tables, (4096, 4097), strict=True):
        want, factor = torchs(config, length)
        np.testing.assert_allclose(table.frequencies, want.numpy(), rtol=ROUNDING, atol=0)
        assert table.factor == pytest.approx(factor, rel=1e-12)
    assert tables[0] != tables[1]


def read_long(most=131072, **own):
    return read(
        scaled_long(**own), kind="phi3", longest=most, original_max_position_embeddings=4096
    ) | {"partial_rotary_factor": 0.75}


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_names_that_phi3_has_had_for_longrope(kind):
    assert read_long(type=kind) == read_long()


def test_proportional_turns_the_first_channels_by_the_whole_heads_exponent():
    """Gemma 4's full layers; the formula is that of its documentation."""
    given = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    table = rotary(512, given)
    at = torch.arange(0, 128, 2, dtype=torch.float) / 512
    want = torch.cat([1.0 / 1e6**at, torch.zeros(192)]).numpy()
    np.testing.assert_allclose(table.frequencies, want, rtol=ROUNDING, atol=0)
    if "proportional" in ROPE_INIT_FUNCTIONS:
        config = LlamaConfig(head_dim=512, rope_parameters=dict(given), pad_token_id=None)
        config.rope_parameters |= given
        theirs, factor = torchs(config)
        np.testing.assert_allclose(table.frequencies, theirs.numpy(), rtol=ROUNDING, atol=0)
        assert table.factor == factor


def test_a_dynamic_with_alpha_stretches_the_base():
    """Hunyuan's; other families with that key are refused."""
    scaling = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "mscale": 1.0}
    table = rotary(128, read(scaling, kind="hunyuan_v1_dense"))
    base = 1e4 * 1000.0 ** (128 / 126)
    want = 1.0 / (base ** (torch.arange(0, 128, 2).float() / 128))
    np.testing.assert_allclose(table.frequencies, want.numpy(), rtol=ROUNDING, atol=0)
    with pytest.raises(InputError, match=r"'dynamic' .*'alpha'"):
        rotary(128, read(scaling))
    with pytest.raises(InputError, match="rope_type is 'ntk_alpha', which is not handled"):
        read({"rope_type": "ntk_alpha", "alpha": 2.0})


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"short_factor": [1.0]}, r"short_factor \[1.0\], expected 24 numbers"),
        ({"long_factor": None}, r"long_factor None, expected 24 numbers"),
        ({"long_factor": ["a"] * 24}, r"long_factor .*expected 24 numbers"),
        ({"odd": 1}, r"'odd'"),
        ({"factor": 2.0}, r"factor 2.0, expected max_position_embeddings over .*, 32.0"),
        ({"attention_factor": "1"}, r"attention_factor '1', expected a positive number"),
    ],
    ids=str,
)
def test_a_longrope_that_is_not_handled(own, message):
    with pytest.raises(InputError, match=message):
        longrope(64, read_long(**own), 131072)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "dynamic"}, r"lacks \['factor'\]"),
        ({"rope_type": "axial"}, r"rope_type 'axial'.*handled are default"),
        ({"type": "longrope", "long_factor": [1.0]}, r"rope_type 'longrope'"),
        ({"rope_type": "yarn", "factor": 2.0, "wobble": 1}, r"'yarn' .*\['wobble'\]"),
        ({"rope_type": "linear", "factor": 2.0, "low_freq_factor": 1.0}, r"\['low_freq_factor'\]"),
        ({"rope_type": "linear"}, r"'linear' lacks \['factor'\]"),
        ({"rope_type": "linear", "factor": None}, r"'linear' lacks \['factor'\]"),
        ({"rope_type": "yarn"}, r"'yarn' lacks \['factor'\]"),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0},
            r"'llama3' lacks \['high_freq_factor'\]",
        ),
    ],
    ids=str,
)
def test_what_is_not_handled_is_named(scaling, message):
    with pytest.raises(InputError, match=message):
        rotary(64, read(scaling, longest=4096))


@pytest.mark.parametrize("scaling", [["linear"], "linear", 2, True])
def test_a_scaling_that_is_no_object(scaling):
    with pytest.raises(InputError, match=r"rope_scaling is .*, expected an object"):
        read(scaling)
