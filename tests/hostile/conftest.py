"""The command line in this process, on a model that is loaded once a session."""

from pathlib import Path

import pytest

from jaxscore.cli import model_flags
from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.conftest import CASES


@pytest.fixture
def hostile_model(tmp_path_factory, monkeypatch, scorers):
    """A folder with a model whose name is markup; scorers come from the session."""
    folder = tmp_path_factory.mktemp("models") / "a|b <img src=x> [x](http:\x1b[31m \u202e`*_"
    folder.symlink_to(CASES / "models/tiny-qwen2", target_is_directory=True)
    monkeypatch.setattr(
        model_flags, "load_scorer", lambda args, model, *_, **__: scorers("tiny-qwen2")
    )
    return folder


@pytest.fixture
def plain_model(tmp_path_factory):
    """The same under a plain name."""
    folder = tmp_path_factory.mktemp("models") / "plain"
    folder.symlink_to(CASES / "models/tiny-qwen2", target_is_directory=True)
    return folder


def paths_below(folder: Path) -> set[str]:
    """Names of everything in a folder and its folders."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
