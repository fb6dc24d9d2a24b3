"""The notebook of configs/notebooks/, executed in a kernel of its own."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

NOTEBOOK = ROOT / "configs/notebooks/first-steps.ipynb"
# In another process: the clients of kernels warn, and warnings are errors here.
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=600).execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.mark.slow
def test_the_notebook_runs_from_two_sentences_to_a_training_step(tmp_path):
    written = tmp_path / "executed.ipynb"
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, NOTEBOOK, written],
        env=os.environ | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)},
        capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cells = json.loads(written.read_text(encoding="utf-8"))["cells"]
    outputs = ["".join(json.dumps(cell["outputs"])) for cell in cells if "outputs" in cell]
    coloured, sums, forest, system, compared, training = outputs
    assert "text/html" in coloured
    assert "background" in coloured
    assert "'sat'" in sums
    assert "31 tokens of input, 24 computed" in forest
    assert "text/markdown" in system
    assert "text/markdown" in compared
    assert '" 1)"' in training  # one program


def test_the_notebook_is_stored_without_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
