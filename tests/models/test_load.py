"""Keys of a config that change nothing, and keys that a user vouches for."""

import json

import numpy as np
import pytest

from jaxscore import InputError, Scorer
from jaxscore.models.config.check import unhandled
from jaxscore.models.load import accept
from jaxscore.models.native import translate
from jaxscore.models.weights.checkpoint import Checkpoint
from tests.conftest import CASES
from tests.models.checkpoints import loaded

pytestmark = pytest.mark.lines

WRITTEN_FROM_GGUF = {"_model_name_or_path": "Small 8k", "unk_token_id": 0}
TEXTS = [("The cat", " sat on the mat"), ("", "Oslo is in Norway")]


@pytest.fixture
def with_keys(tmp_path):
    """`with_keys(**keys)`: a small checkpoint whose config has more keys."""

    def make(**keys):
        folder = tmp_path / "model"
        folder.mkdir()
        for file in (CASES / "models/tiny-qwen2").iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(raw | keys), encoding="utf-8")
        return folder

    return make


def test_a_config_written_from_a_gguf_file_loads_as_it_is(with_keys):
    assert loaded(with_keys(**WRITTEN_FROM_GGUF)).checkpoint.accepted == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_private", 7),
        ("attn_dropout", 0.1),
        ("hidden_dropout_prob", 0.1),
        ("dropout", 0.5),
        ("init_std", 0.1),
        ("name_or_path", "x"),
        ("unk_token_id", 0),
    ],
)
def test_names_training_and_token_ids_change_nothing(name, value):
    assert not unhandled({name: value}, {}, frozenset())


@pytest.mark.parametrize("name", ["my_scale", "dropout_scale", "image_token_id", "logits_scaling"])
def test_anything_else_stays_refused(name):
    assert unhandled({name: 7}, {}, frozenset()) == {name: 7}


def test_a_run_with_an_accepted_key_is_the_run_without_it_and_says_so(with_keys, tmp_path):
    folder = with_keys(my_scale=2.0)
    with pytest.raises(InputError, match=r"my_scale=2\.0; .*--accept-config NAME"):
        Scorer.from_pretrained(str(folder), dtype="float32")
    plain = Scorer.from_pretrained(str(CASES / "models/tiny-qwen2"), dtype="float32")
    journal = tmp_path / "journal"
    with Scorer.from_pretrained(
        str(folder), dtype="float32", accept_config=["my_scale"], journal=journal
    ) as own:
        for one, other in zip(own.score(TEXTS), plain.score(TEXTS), strict=True):
            np.testing.assert_array_equal(one.logprob, other.logprob)
        assert own.describe()["accepted_config"] == {"my_scale": 2.0}
        assert own.about["accepted_config"] == {"my_scale": 2.0}
    assert "accepted_config" not in {**plain.describe(), **plain.about}


def test_a_key_of_the_text_of_a_wrapper(tmp_path):
    raw = {
        "model_type": "gemma3",
        "my_tower": 3,
        "text_config": {"model_type": "gemma3_text", "my_scale": 2.0},
    }
    with pytest.raises(InputError, match="my_tower=3"):
        translate(tmp_path, raw)
    source = accept(Checkpoint(tmp_path, "safetensors", raw), ["my_tower", "my_scale"])
    assert source.accepted == {"my_tower": 3, "my_scale": 2.0}
    translate(tmp_path, source.config)
    source = Checkpoint(tmp_path, "safetensors", raw | {"mm_tokens_per_image": 256})
    with pytest.raises(InputError, match="--accept-config mm_tokens_per_image: is handled already"):
        accept(source, ["mm_tokens_per_image", "my_tower"])


def test_transformers_classes_take_no_accepted_key(with_keys):
    with pytest.raises(InputError, match="--accept-config is for our own decoder"):
        Scorer.from_pretrained(
            str(with_keys(my_scale=2.0)), implementation="transformers", accept_config=["my_scale"]
        )
