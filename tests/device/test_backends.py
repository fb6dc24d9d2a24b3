"""Which backend a platform and a device take."""

import dataclasses
from types import SimpleNamespace
from typing import get_args

import jax
import pytest

from jaxscore.device import backends, experts, lm_head
from jaxscore.device.attention import interval
from jaxscore.device.backends import (
    BACKENDS,
    Platform,
    current_backend,
    current_platform,
    supports_kernels,
)
from jaxscore.models import native
from tests.device.configs import llamalike


def test_every_platform_has_forms_that_exist():
    assert tuple(BACKENDS) == get_args(Platform)
    for one in BACKENDS.values():
        assert one.attention in interval.ATTENTION
        assert one.lm_head in lm_head.IMPLEMENTATIONS
        assert one.experts in ("blocked", *experts.GROUPED)


def test_here_is_the_cpu():
    assert (current_platform(), current_backend()) == ("cpu", BACKENDS["cpu"])


@pytest.mark.parametrize(
    ("capability", "attention"),
    [("9.0", "kernel_gpu"), ("10.0", "kernel_gpu"), ("7.5", "blocked"), ("gfx942", "blocked")],
)
def test_a_gpu_that_kernels_do_not_run_on_takes_other_forms(monkeypatch, capability, attention):
    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(backends, "current_platform", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert current_backend().attention == attention
    assert supports_kernels(capability) == (attention == "kernel_gpu")


def test_a_platform_without_forms_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "METAL")
    with pytest.raises(ValueError, match="JAX runs on 'METAL', expected cpu, gpu or tpu"):
        current_platform()


def test_native_decoder_takes_the_backend_of_the_device(monkeypatch):
    """On a GPU that cannot run Triton's kernels the decoder must not use them."""
    backend, builds = dataclasses.replace(BACKENDS["cpu"], attention="blocked"), []
    monkeypatch.setattr(native, "current_backend", lambda: backend)
    monkeypatch.setattr(native, "Build", lambda *args: builds.append(args) or backends.Build(*args))
    native.from_params(llamalike(), {}, "float32", "llama")
    native.from_params(llamalike(), {}, "float32", "llama", platform="cpu")
    assert [used for used, _ in builds] == [backend, BACKENDS["cpu"]]
