"""Which backend a platform and a device take."""

import contextlib
import dataclasses
import subprocess
import sys
from typing import get_args
from unittest.mock import Mock

import jax
import pytest
from jax.experimental import pallas

from jaxscore.device import backends, experts, lm_head
from jaxscore.device.attention import interval
from jaxscore.device.backends import (
    BACKENDS,
    Platform,
    current_backend,
    current_platform,
    replaced_kernels,
    supports_kernels,
)
from jaxscore.models import native
from tests.device.configs import llamalike


def gpu(capability):
    return Mock(spec=jax.Device, platform="gpu", compute_capability=capability)


@pytest.fixture
def on_gpu(monkeypatch):
    """`on_gpu(capability)`: as if JAX ran on such a GPU; kernels count as lowered, or are tried."""
    lowering_failure = backends.lowering_failure

    def act(capability, lowers=True):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(jax, "devices", lambda *_: [gpu(capability)])
        monkeypatch.setattr(jax, "default_device", lambda _: contextlib.nullcontext())
        if lowers:
            monkeypatch.setattr(backends, "lowering_failure", lambda *_: None)

    lowering_failure.cache_clear()
    yield act
    lowering_failure.cache_clear()


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
def test_a_gpu_that_kernels_do_not_run_on_takes_other_forms(on_gpu, capability, attention):
    on_gpu(capability)
    assert current_backend().attention == attention
    assert supports_kernels(capability) == (attention == "kernel_gpu")
    assert bool(replaced_kernels()) == (attention == "blocked")


def test_kernels_of_a_jax_without_triton_are_replaced(on_gpu, monkeypatch):
    on_gpu("8.0", lowers=False)
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    monkeypatch.delattr(pallas, "triton", raising=False)
    blocked = dataclasses.replace(BACKENDS["gpu"], attention="blocked", experts="blocked")
    assert current_backend() == blocked
    assert all("pallas.triton" in one.why for one in replaced_kernels().values())


@pytest.mark.parametrize(
    ("capability", "broken", "instead"),
    [
        ("9.0", {"kernel_gpu"}, {"attention": "kernel_sm90"}),
        ("9.0", {"kernel_gpu", "kernel_sm90"}, {"attention": "blocked"}),
        ("10.0", {"kernel_gpu"}, {"attention": "kernel_sm100"}),
        ("10.0", {"kernel_gpu", "kernel_sm100"}, {"attention": "blocked"}),
        ("12.0", {"kernel_gpu"}, {"attention": "blocked"}),
        ("9.0", {"grouped_gpu", "kernel_sm90"}, {"experts": "blocked"}),
    ],
)
def test_a_kernel_that_fails_leaves_the_other(on_gpu, monkeypatch, capability, broken, instead):
    def fail():
        raise NotImplementedError("no rule\nfor this")

    on_gpu(capability, lowers=False)
    cases = {name: fail if name in broken else lambda: None for name in backends.SMALL_CASES}
    monkeypatch.setattr(backends, "SMALL_CASES", cases)
    why = "NotImplementedError: no rule"
    assert replaced_kernels() == {field: (name, why) for field, name in instead.items()}
    assert current_backend() == dataclasses.replace(BACKENDS["gpu"], **instead)


def test_other_kernels_need_no_triton():
    code = (
        "import sys; sys.modules['jax.experimental.pallas.triton'] = None\n"
        "from jaxscore.device import grouped_matmul\n"
        "from jaxscore.device.attention import kernel_mosaic, kernel_tpu\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_platform_without_forms_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "METAL")
    with pytest.raises(ValueError, match="JAX runs on 'METAL', expected cpu, gpu or tpu"):
        current_platform()


def test_native_decoder_takes_the_backend_of_the_device(monkeypatch):
    """On a GPU that cannot run Triton's kernels the decoder must not use them."""
    builds = []
    monkeypatch.setattr(native, "Build", lambda *args: builds.append(args) or backends.Build(*args))
    old = gpu("7.5")
    why = "attention by 'blocked' (compute capability '7.5', expected at least 8.0)"
    for dtype, device, told in (
        ("bfloat16", None, None),
        ("bfloat16", old, why),
        ("float32", old, None),  # which takes no kernel on any GPU
    ):
        model = native.from_params(llamalike(), {}, dtype, "llama", device=device)
        assert model.devices.replaced_kernels == told
        assert model.devices.platform == ("cpu" if device is None else "gpu")
    blocked = dataclasses.replace(BACKENDS["gpu"], attention="blocked", experts="blocked")
    assert [used for used, _ in builds] == [BACKENDS["cpu"], blocked, blocked]
