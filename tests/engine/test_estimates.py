"""Estimates of time: what is compiled for them, and their arithmetic."""

import re

import jax
import pytest

from jaxscore.device.decoder_config import GatedDelta, Recurrent, ShortConvolution
from jaxscore.engine import estimates
from jaxscore.engine.footprint import text_of
from jaxscore.engine.targets import Target
from tests.device.configs import llamalike

# This machine in place of devices that are not here; its compiler has no estimates.
HERE = Target("here", "cpu", tuple(jax.devices()), 2**30, 1e12, "xla", "0")  # type: ignore


def test_flops_of_a_layer_by_hand():
    config = llamalike(
        width=8, n_heads=2, n_kv_heads=1, head_width=4, mlp_width=16, n_layers=1, windows=(0,)
    )
    weights = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16  # q and out, k and v, the MLP
    seen = 1 + 2 + 3
    attention = 2 * 2 * (2 * 4) * seen
    assert estimates.layer_flops(config, 5, 3) == 5 * (2 * weights * 3 + attention)
    narrow = config.replace(windows=(2,))
    assert estimates.layer_flops(narrow, 1, 3) == 2 * weights * 3 + 2 * 2 * 8 * (1 + 2 + 2)


@pytest.mark.parametrize(("windows", "widest"), [((4, 0, 9), 0), ((4, 9, 5), 9), ((7, 7, 7), 7)])
def test_the_layer_that_sees_furthest(windows, widest):
    config = llamalike(n_layers=3, windows=windows, rotary_of=(0, 0, 0))
    one = estimates.one_layer(config)
    assert (one.n_layers, one.attention.scores.windows, len(one.positions.rotary_of)) == (
        1,
        (widest,),
        1,
    )
    assert one.width == config.width


def test_a_compiler_without_estimates():
    config = llamalike()
    layer = estimates.estimate_layer(config, "float32", "llama", HERE, HERE.devices[0], 2, 64)
    assert layer == estimates.LayerEstimate(2, 64, False, None, None, 0, [], [])
    vocabulary = estimates.estimate_vocabulary(
        config, "float32", "llama", HERE, HERE.devices[0], 128
    )
    assert (vocabulary.seconds, vocabulary.products_share) == (None, None)


JOINED = 'x = f32[4,2] custom-call(a, b), custom_call_target="ConcatBitcast"\n'


@pytest.mark.parametrize(
    ("reported", "joined", "seconds"),
    [
        (-2.998, 3, 0.002),
        (0.002, 0, 0.002),
        (-2.998, 0, None),
        (-2.998, 2, None),  # one of another kind is among them
        (-0.998, 2, None),  # they count as something else
        (0.002, 1, None),
        (0.0, 0, None),
        (0.0, 1, None),  # no estimate at all
    ],
)
def test_operations_that_are_left_out_move_nothing(reported, joined, seconds):
    """Each counts as -1 s; a number that such operations alone do not explain is none."""

    class Program:
        def cost_analysis(self):
            return {"optimal_seconds": reported}

    found, left_out = estimates.seconds_of(Program(), JOINED * joined)
    assert found == (None if seconds is None else pytest.approx(seconds))
    assert left_out == (joined if seconds is not None else 0)


@pytest.mark.parametrize("reported", [0.002, -0.998, 0.0])
def test_seconds_of_a_layer(monkeypatch, reported):
    """They are the compiler's; it says a negative number where it has no model."""
    monkeypatch.setattr(
        jax.stages.Compiled, "cost_analysis", lambda _: {"optimal_seconds": reported}
    )
    config = llamalike(n_layers=2, windows=(0, 0), rotary_of=(0, 0))
    found = estimates.estimate_layer(config, "float32", "llama", HERE, HERE.devices[0], 2, 64)
    if reported <= 0:
        assert (found.seconds, found.mfu) == (None, None)
        return
    flops = estimates.layer_flops(estimates.one_layer(config), 2, 64)
    assert (found.seconds, found.mfu) == (reported, pytest.approx(flops / 1e12 / reported))


@pytest.mark.parametrize(
    ("mixer", "recurrent"),
    [
        (GatedDelta(2, 4, 8, 6, 4, "silu", 1.0, 1e-6), True),
        (GatedDelta(2, 4, 8, 6, 4, "silu", 1.0, 1e-6), False),
        (ShortConvolution(3, bias=False), True),
    ],
)
def test_seconds_of_a_recurrent_layer(monkeypatch, mixer, recurrent):
    monkeypatch.setattr(jax.stages.Compiled, "cost_analysis", lambda _: {"optimal_seconds": 0.002})
    texts = []
    monkeypatch.setattr(estimates, "text_of", lambda program: texts.append(text_of(program)) or "")
    config = llamalike(recurrent=Recurrent((1,), mixer))
    found = estimates.estimate_layer(
        config, "float32", "lfm2", HERE, HERE.devices[0], 2, 64, recurrent=recurrent
    )
    assert (found.is_recurrent, found.seconds) == (recurrent, 0.002)
    # The text has a table of functions, too, with those through which JAX has traced a part before.
    operations = " ".join(re.findall(r'op_name="[^"]*"', texts[0]))
    assert ("RecurrentHalf" in operations) == recurrent
    assert ("AttentionHalf" in operations) != recurrent
    flops = estimates.layer_flops(estimates.one_layer(config, recurrent=recurrent), 2, 64)
    assert found.mfu == pytest.approx(flops / 1e12 / 0.002)


def test_seconds_of_the_vocabulary_pass(monkeypatch):
    monkeypatch.setattr(jax.stages.Compiled, "cost_analysis", lambda _: {"optimal_seconds": 0.002})
    config = llamalike(vocab_size=500, width=64, n_heads=4, n_kv_heads=2, head_width=16)
    found = estimates.estimate_vocabulary(config, "float32", "llama", HERE, HERE.devices[0], 100)
    share = pytest.approx(2 * 100 * 500 * 64 / 1e12 / 0.002)
    assert found == estimates.VocabularyEstimate(100, 0.002, share, 0, [])
