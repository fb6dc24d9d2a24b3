"""Choices of a config are checked where it is made, and say nothing of a mesh."""

from typing import get_args

import pytest

from jaxscore.device.backends import Build
from jaxscore.device.decoder_config import (
    Activation,
    DecoderConfig,
    Experts,
    HyperConnections,
    NormKind,
    NormPlace,
    Parallel,
    QkNormKind,
    Quantized,
    RouterScores,
)
from jaxscore.device.feed_forward import ACTIVATIONS
from jaxscore.device.mesh_shape import MODEL
from tests.device.configs import flat_fields, llamalike

CHOICES = {
    "norm_kind": NormKind,
    "norm_place": NormPlace,
    "parallel": Parallel,
    "qk_norm_kind": QkNormKind,
    "mlp_activation": Activation,
    "quantized": Quantized,
    "router_scores": RouterScores,
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_that_does_not_exist_is_named(name):
    experts = Experts.of(count=4, per_token=2, router_renormalised=False)
    config = llamalike(experts=experts)
    group, field = {
        "norm_kind": (config.norm, "kind"),
        "norm_place": (config.norm, "place"),
        "parallel": (config.residual, "parallel"),
        "qk_norm_kind": (config.attention.qk_norm, "kind"),
        "mlp_activation": (config.mlp, "activation"),
        "quantized": (config, "quantized"),
        "router_scores": (experts.router, "scores"),
    }[name]
    object.__setattr__(group, field, "other")  # past the types, which only tests check
    first = get_args(CHOICES[name])[0]
    try:
        with pytest.raises(ValueError, match=f"{name} is 'other', expected one of '{first}"):
            config.__post_init__()
    finally:  # defaults are shared
        object.__setattr__(group, field, first)


def test_fields_of_all_groups_make_a_config_and_replace_them():
    config = llamalike(qk_norm_kind="head", mlp_width=64)
    assert (config.attention.qk_norm.kind, config.mlp.width) == ("head", 64)
    assert DecoderConfig.of(**flat_fields(config)) == config
    other = config.replace(mlp_width=32, windows=(3, 3))
    assert (other.mlp.width, other.attention.scores.windows) == (32, (3, 3))
    assert other.replace(mlp_width=64, windows=(0, 0)) == config
    for call in (config.replace, llamalike):
        with pytest.raises(TypeError, match="DecoderConfig: no such field: mlp_depth"):
            call(mlp_depth=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layer_scale", True),
        ("parallel", "own"),
        ("per_layer_width", 6),
        ("branch_scale", 0.5),
        ("sum_factors", ((1.0, 0.5, 2.0, 0.7),) * 2),
        (
            "late experts",
            Experts.of(count=4, per_token=2, router_renormalised=False, shared_width=16, late=True),
        ),
    ],
)
def test_hyper_connections_with_a_rule_of_a_single_stream_are_refused(name, value):
    own = {"norm_place": "streams", "head_norm": False, "streams": HyperConnections(3, 5)}
    flat = {"late experts": "experts", "per_layer_width": "embedding_per_layer_width"}
    own[flat.get(name, name)] = value
    with pytest.raises(ValueError, match=f"hyper-connections cannot be combined with {name}"):
        llamalike(**own)


def test_all_activations_are_known():
    assert set(get_args(Activation)) == set(ACTIVATIONS) | {"xielu"}  # which has parameters
    assert not flat_fields(llamalike()).keys() & {"shards", "split"}


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
