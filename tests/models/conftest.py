import json
import shutil

import pytest

from tests.models.checkpoints import NOT_BY_4, saved, with_attributes


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of families that the other line skips."""
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and call.params.get("kind") in NOT_BY_4:
            item.add_marker("transformers_5")


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    """`originals[kind]`: a saved checkpoint of the family, made when it is first asked for."""

    class Saved(dict):
        def __missing__(self, kind):
            folder = tmp_path_factory.mktemp(kind)
            saved(folder, kind)  # skips the test where the installed line cannot
            self[kind] = folder
            return folder

    return Saved()


@pytest.fixture
def checkpoint(originals, tmp_path):
    """`checkpoint(kind, **attributes)`: a copy of a checkpoint with its config changed."""

    def make(kind, **attributes):
        folder = tmp_path / kind
        shutil.copytree(originals[kind], folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        changed = with_attributes(config, attributes)
        (folder / "config.json").write_text(json.dumps(changed), encoding="utf-8")
        return folder

    return make
