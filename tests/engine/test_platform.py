"""Which device a run takes, and what it says where there is none."""

import os
import subprocess
import sys

import pytest

from tests.conftest import CASES

MODEL = str(CASES / "models/tiny-qwen2")


def process(*words, **environment):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("device", ["tpu", "cuda", "gpu"])
def test_a_device_that_is_absent(tmp_path, device):
    # No card is visible to the process, also where there is one.
    (tmp_path / "in.jsonl").write_text('{"continuation": "x"}\n', encoding="utf-8")
    ran = process(
        "-m", "jaxscore", "score", "--model", MODEL, "--input", tmp_path / "in.jsonl",
        "--output", tmp_path / "out.jsonl", "--device", device,
        CUDA_VISIBLE_DEVICES="", TPU_SKIP_MDS_QUERY="1",
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"error: --device {device}: JAX finds none here" in ran.stderr
    assert "leave --device out" in ran.stderr
    wanted = "tpu" if device == "tpu" else "cuda13"
    assert f'pip install "jax[{wanted}]"' in ran.stderr
    assert "Traceback" not in ran.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_device_is_not_changed_behind_the_users_back():
    # JAX keeps its first device, whatever it is told later.
    code = (
        "import jax; jax.devices()\n"
        "from jaxscore.errors import InputError\n"
        "from jaxscore.engine.platform import use_device\n"
        "use_device('cpu'); use_device(None)\n"
        "try:\n    use_device('tpu')\n"
        "except InputError as problem:\n    print(problem)\n"
    )
    ran = process("-c", code, JAX_PLATFORMS="cpu")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--device tpu: JAX finds none here (it runs on another device already)" in ran.stdout


def test_a_failed_choice_of_a_device_leaves_the_default():
    code = (
        "import jax\n"
        "from jaxscore.errors import InputError\n"
        "from jaxscore.engine.platform import use_device\n"
        "before = jax.config.jax_platforms\n"
        "try:\n    use_device('tpu')\n"
        "except InputError:\n"
        "    print(jax.config.jax_platforms == before, jax.default_backend())\n"
    )
    for chosen in ("cpu", ""):
        ran = process(
            "-c", code, JAX_PLATFORMS=chosen, CUDA_VISIBLE_DEVICES="", TPU_SKIP_MDS_QUERY="1"
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout == "True cpu\n"
