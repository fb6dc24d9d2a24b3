"""The files of configs/ run by the command in their first line, from the root of the repository."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

WAITING = ("serve", "lm-eval", "demo")  # commands that do not end, need an extra, or have a test
FILES = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml") if path.stem not in WAITING)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_runs_by_its_first_line(tmp_path, name):
    for folder in ("configs", "jaxscore"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    line = (ROOT / f"configs/{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    command = line.removeprefix("# ").replace("python -m", f"{sys.executable} -m")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
