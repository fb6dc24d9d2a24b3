"""What made a result."""

import hashlib
import os

import jax
import pytest

import jaxscore
from jaxscore.engine import provenance
from jaxscore.io.manifest import file_digest
from tests.conftest import CASES

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_of_a_run_on_a_local_model(scorers):
    folder = str(CASES / "models/tiny-qwen2")
    model = provenance.of_model(folder, scorers("tiny-qwen2").model, None)
    got = provenance.of_run({**model, "seed": 3})
    assert list(got)[:7] == [
        "model", "revision", "model_type", "implementation", "dtype", "device", "seed",
    ]  # fmt: skip
    assert (got["model"], got["revision"], got["model_type"]) == (folder, None, "qwen2")
    assert (got["implementation"], got["dtype"]) == ("native", "float32")
    assert got["device"].startswith("cpu")
    assert (got["jaxscore"], got["jax"]) == (jaxscore.__version__, jax.__version__)
    assert got["date"][:2] == "20"


def test_the_commit_of_a_cached_hub_id(tmp_path):
    repository = tmp_path / "models--someone--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}", encoding="utf-8")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    assert provenance.commit("someone/tiny", None, tmp_path) == COMMIT
    assert provenance.commit("someone/tiny", COMMIT, tmp_path) == COMMIT
    assert provenance.commit("someone/other", "v2", tmp_path) == "v2"
    assert provenance.commit("demo", None, tmp_path) is None


@pytest.mark.parametrize("data", [b"", b"abc\n" * 100_000])
def test_the_digest_of_a_file(tmp_path, data):
    (tmp_path / "f").write_bytes(data)
    assert file_digest(tmp_path / "f") == hashlib.sha256(data).hexdigest()


def test_a_pipe_is_not_read_again(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert file_digest(tmp_path / "pipe") is None
