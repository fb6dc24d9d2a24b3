"""Commands under the strict, 64-bit and debug options of JAX that an environment may set."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.cli.conftest import QWEN
from tests.conftest import CASES, ROOT

OPTIONS = {
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_ENABLE_X64": "1",
    "JAX_DEFAULT_PRNG_IMPL": "rbg",
    "JAX_THREEFRY_PARTITIONABLE": "0",
    "JAX_RANDOM_SEED_OFFSET": "5",
    "JAX_DEBUG_NANS": "1",
    "JAX_DEBUG_INFS": "1",
    "JAX_TRANSFER_GUARD": "disallow_explicit",
    "JAX_DISABLE_JIT": "1",
}
LINES = [{"id": k, "prompt": f"One {word}", "context": "One", "continuation": f" {word}"}
         for k, word in enumerate(("two", "cat", "three"))]  # fmt: skip
QUESTIONS = CASES / "chronologic/questions.jsonl"
COMMANDS = {
    "score": ("--input", "in.jsonl", "--output", "out.jsonl", "--measures", "rank"),
    "sample": ("--input", "in.jsonl", "--output", "out.json", "-n", "2", "--temperature", "1.0"),
    "chronologic": ("--input", QUESTIONS, "--output", "out.json", "--calibrate"),
    "plan": ("--batch-tokens", "256", "--output", "out.json"),
}


def output(command, folder, options):
    """Records of a command, which runs as a process in the folder."""
    folder.mkdir()
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES), "utf-8")
    journal = () if command == "plan" else ("--journal", "off")
    words = [command, "--model", QWEN, "--dtype", "float32", *COMMANDS[command], *journal]
    ran = subprocess.run(
        [sys.executable, "-m", "jaxscore", *map(str, words)],
        env=os.environ | options | {"PYTHONPATH": str(ROOT)}, cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not ran.returncode, ran.stderr[-2000:]
    text = (folder / COMMANDS[command][3]).read_text("utf-8")
    return re.sub(r'"(date|compile_seconds|process_bytes)": .*', "", text)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_jax_in_the_environment_change_no_byte_of_an_output(command, tmp_path):
    want = output(command, tmp_path / "plain", {})
    assert output(command, tmp_path / "strict", OPTIONS) == want
