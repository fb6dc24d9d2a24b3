"""What asks for a Flax class where transformers has none says what to install."""

import re
import shutil

import pytest

from jaxscore.errors import InputError, install_extra
from jaxscore.models import transformers_flax
from jaxscore.models.load import load
from jaxscore.models.transformers_flax.bert_classifier import BertClassifier
from tests.conftest import CASES
from tests.releases import HAS_FLAX_CLASSES

pytestmark = pytest.mark.lines

INSTALL = re.escape(f"has none; {install_extra('flax-classes')}, which takes transformers 4.57")


@pytest.fixture(autouse=True)
def without_flax_classes(monkeypatch):
    """As transformers 5 is; where that is installed, nothing is changed."""
    if HAS_FLAX_CLASSES:
        monkeypatch.setattr(transformers_flax, "find_spec", lambda name: None)


def test_where_it_is_asked_for():
    folder = CASES / "models/tiny-gpt2"
    with pytest.raises(InputError, match=rf"--model-impl transformers runs on .*{INSTALL}"):
        load(folder, implementation="transformers")
    assert load(folder, implementation="auto").implementation == "native"


def test_a_family_that_none_covers(tmp_path):
    """Another release would not help it."""
    shutil.copy(CASES / "models/tiny-gpt2/model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no_such_model"}', encoding="utf-8")
    with pytest.raises(InputError, match="no transformers Flax class is trusted for model_type"):
        load(tmp_path, implementation="transformers")


def test_the_classifier_of_bem(tmp_path):
    with pytest.raises(InputError, match=rf"the BERT classifier of judge --bem .*{INSTALL}"):
        BertClassifier(tmp_path)
