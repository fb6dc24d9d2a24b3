"""What the GPU compiler and NVIDIA's assembler say of the programs, for GPUs that are not here.

Without the extra `gpu-compiler` (550 MB) these tests are skipped.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.models.test_large_shapes import MODELS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.gpu_compiler,
    pytest.mark.skipif(
        importlib.util.find_spec("jax_cuda13_plugin") is None,
        reason="JAX's CUDA plugin is not installed: pip install -e '.[gpu-compiler]'",
    ),
]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
# Bytes: a few registers at a kernel's ends cost nothing. Mosaic's kernel has more for 256 channels.
MOST_SPILLED, MOST_OF_WIDEST = 64, 256


@pytest.mark.parametrize(
    ("gpu", "kernel"),
    [
        ("a100", "kernel_gpu"),
        ("h100", "kernel_gpu"),
        ("b200", "kernel_gpu"),
        ("h100", "kernel_sm90"),
        ("b200", "kernel_sm100"),
    ],
)
def test_the_attention_kernel_keeps_its_sums_in_registers(gpu, kernel):
    """Heads of 65 to 128 channels have one kernel, and so do those of 129 to 256."""
    heads = (64, {}), (96, {"alibi": True}), (128, {}), (256, {"softcap": 50})
    cases = [(gpu, kernel, *one) for one in heads]
    done = subprocess.run(
        [sys.executable, "tests/engine/on_gpu_compiler.py"], input=json.dumps(cases),
        capture_output=True, text=True, check=False, timeout=600, cwd=ROOT, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for case, found in zip(cases, json.loads(done.stdout), strict=True):
        widest = kernel == "kernel_sm90" and case[2] == 256
        assert found["spilled"] <= (MOST_OF_WIDEST if widest else MOST_SPILLED), case
        assert found["tensor_cores"] > 0, case


@pytest.mark.parametrize("gpu", ["h100", "a100"])
def test_a_long_row_of_a_large_model(tmp_path, gpu):
    """Without the scores of all its pairs, 137 GB."""
    folder, out = tmp_path / "model", tmp_path / "plan.json"
    folder.mkdir()
    raw = MODELS["Llama-3.1-8B"].raw | {"torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable, "-m", "jaxscore", "plan", "--model", str(folder), "--gpu-target", gpu,
            "--row-lengths", "32768", "--json", str(out), "--quiet",
        ],
        capture_output=True, text=True, check=False, timeout=600, cwd=ROOT,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["compiler"]["name"] == "jax-cuda13-plugin"
    [batch] = report["batches"]
    assert batch["fits"] is True
    assert batch["temporary_bytes"] < 6e9
    assert report["layer"] == report["vocabulary"] == []
