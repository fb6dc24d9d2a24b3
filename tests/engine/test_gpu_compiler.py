"""What the GPU compiler says of the programs, for a GPU that is not here.

It is in JAX's CUDA plugin (400 MB), which the test extra leaves out; without it this is skipped.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.models.test_large_shapes import MODELS

pytestmark = pytest.mark.slow


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None,
    reason="JAX's CUDA plugin is not installed: pip install jax-cuda13-plugin",
)
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
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["compiler"]["name"] == "jax-cuda13-plugin"
    [batch] = report["batches"]
    assert batch["fits"] is True
    assert batch["temporary_bytes"] < 6e9
    assert report["layer"] == report["vocabulary"] == []
