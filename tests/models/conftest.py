import json
import shutil

import pytest

from tests.models.checkpoints import saved


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    """One saved checkpoint a family."""
    folders = {}
    for kind in ("gpt2", "llama", "qwen2"):
        folders[kind] = tmp_path_factory.mktemp(kind)
        saved(folders[kind], kind)
    return folders


@pytest.fixture
def checkpoint(originals, tmp_path):
    """`checkpoint(kind, **attributes)`: a copy of a checkpoint with its config changed."""

    def make(kind, **attributes):
        folder = tmp_path / kind
        shutil.copytree(originals[kind], folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | attributes), encoding="utf-8")
        return folder

    return make
