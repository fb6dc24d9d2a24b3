"""Devices that are not here: what is refused, and what is passed to the compilers."""

import importlib.util
import os
import subprocess
import sys

import pytest

from jaxscore.engine import GPU_TARGETS, VARIABLES, targets
from jaxscore.engine.targets import GPUS, config_text
from jaxscore.errors import InputError

PRESENT = importlib.util.find_spec


@pytest.fixture
def installed(monkeypatch):
    """`installed(name, whether)`: as if a package were there, or not."""

    def say(package, there):
        def find(name, *rest):
            return there if name == package else PRESENT(name, *rest)

        monkeypatch.setattr(importlib.util, "find_spec", find)

    return say


def test_the_tpu_compiler_is_absent(installed):
    installed("libtpu", None)
    with pytest.raises(InputError, match=r"--topology v5e:2x2: .* not installed.*tpu-compiler"):
        targets.tpu("v5e:2x2")


def test_the_gpu_compiler_is_absent(installed):
    installed("jax_cuda13_plugin", None)
    with pytest.raises(InputError, match=r"--gpu-target h100: .*pip install jax-cuda13-plugin==0"):
        targets.gpu("h100", 1)


@pytest.mark.parametrize("name", ["", *"v5e v5e:2 v5e:2x2x2x2 v5e:2x-2 v5e:9999x2 ?:2x2".split()])
def test_names_that_are_no_topologies(installed, name):
    installed("libtpu", True)
    with pytest.raises(InputError, match=r"expected KIND:AxB or KIND:AxBxC; give one that libtpu"):
        targets.tpu(name)


def test_gpus():
    assert set(GPUS) == set(GPU_TARGETS)
    for name, gpu in GPUS.items():
        text = config_text(name)
        assert text.count("{") == text.count("}") == 3
        assert f"device_memory_size: {gpu.memory_bytes}\n" in text
        assert "None" not in text


@pytest.mark.parametrize("platform", VARIABLES)
def test_variables_need_no_jax_and_keep_what_is_set(platform):
    name = next(iter(VARIABLES[platform]))
    code = (
        "import os, sys\n"
        "from jaxscore.engine import set_variables\n"
        f"set_variables({platform!r})\n"
        f"print(os.environ[{name!r}], os.environ['JAX_PLATFORMS'], 'jax' in sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, name: "mine", "JAX_PLATFORMS": "tpu"},
    )  # fmt: skip
    assert ran.stdout == "mine cpu False\n"


def test_a_default_device_is_what_kernels_are_lowered_for():
    import jax
    from jax._src.interpreters import pxla

    before = pxla.get_default_device()
    with targets.compiling_for(None):
        assert pxla.get_default_device() == before
    with targets.compiling_for(jax.devices("cpu")[0]):
        assert jax.config.jax_default_device == jax.devices("cpu")[0]
    assert jax.config.jax_default_device is None
