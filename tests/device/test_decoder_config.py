"""Choices of a config are checked where it is made, and say nothing of a mesh."""

import dataclasses
from typing import get_args

import pytest

from jaxscore.device.backends import Build
from jaxscore.device.decoder_config import (
    CHOICES,
    Activation,
    DecoderConfig,
    Experts,
    HyperConnections,
)
from jaxscore.device.feed_forward import ACTIVATIONS
from jaxscore.device.mesh_shape import MODEL
from tests.device.configs import llamalike

NAMES = ("norm", "norm_place", "parallel", "qk_norm", "activation", "quantized")


@pytest.mark.parametrize("name", NAMES)
def test_a_choice_that_does_not_exist_is_named(name):
    config = llamalike()
    object.__setattr__(config, name, "other")  # past the types, which only tests check
    with pytest.raises(ValueError, match=f"{name} is 'other', expected one of '{CHOICES[name][0]}"):
        config.__post_init__()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layer_scale", True),
        ("parallel", "own"),
        ("per_layer_width", 6),
        ("residual_scale", 0.5),
        ("sum_factors", ((1.0, 0.5, 2.0, 0.7),) * 2),
        ("late experts", Experts(4, 2, False, 16, late=True)),
    ],
)
def test_hyper_connections_with_a_rule_of_a_single_stream_are_refused(name, value):
    own = {"norm_place": "streams", "final_norm": False, "streams": HyperConnections(3, 5)}
    own["experts" if name == "late experts" else name] = value
    with pytest.raises(ValueError, match=f"hyper-connections do not go with {name}"):
        llamalike(**own)


def test_all_choices_are_checked_and_known():
    assert set(CHOICES) == set(NAMES)
    assert set(get_args(Activation)) == set(ACTIVATIONS) | {"xielu"}  # which has parameters
    assert not {field.name for field in dataclasses.fields(DecoderConfig)} & {"shards", "split"}


def test_a_split_beside_the_config():
    config = llamalike(n_heads=8, n_kv_heads=2, vocab_size=210)
    assert (Build().axis, Build().vocabulary_axis(config), Build().whole_kv(config)) == (
        None, None, False
    )  # fmt: skip
    assert (Build(shards=2).axis, Build(shards=2).vocabulary_axis(config)) == (MODEL, MODEL)
    assert Build(shards=4).vocabulary_axis(config) is None
    assert (Build(shards=2).whole_kv(config), Build(shards=4).whole_kv(config)) == (False, True)
    with pytest.raises(ValueError, match="shards is 0"):
        Build(shards=0)
