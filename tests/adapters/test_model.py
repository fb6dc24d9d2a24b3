"""How many tokens lm-evaluation-harness lets a model read, for every family."""

import json

import pytest
from lm_eval.models.utils import resolve_max_length
from transformers import AutoConfig

from jaxscore.adapters.model import max_length
from tests.models.checkpoints import FIFTH, spelled
from tests.models.families import BASE

pytestmark = pytest.mark.lines


@pytest.mark.parametrize("kind", BASE)
@pytest.mark.parametrize("written", ["whole", "without lengths"])
def test_as_lm_eval_resolves_it(kind, written, tmp_path):
    config = dict(BASE[kind])
    if kind in ("cohere", "falcon_h1"):  # whose defaults the releases of transformers disagree on
        config["rope_theta"] = 10000.0
    if written == "without lengths":
        config = {k: v for k, v in config.items() if k not in ("n_positions", "n_ctx")}
        config.pop("max_position_embeddings", None)
    try:
        made = AutoConfig.for_model(kind, **spelled(config))
    except ValueError:
        assert not FIFTH
        pytest.skip("this transformers does not have it")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **config}))
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 777}')

    class Tokenizer:
        model_max_length = 777

    assert max_length(tmp_path, tmp_path) == resolve_max_length(made, Tokenizer())


def test_nobody_says(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bloom"}')
    assert max_length(tmp_path, tmp_path) == 2048
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    assert max_length(tmp_path, tmp_path) == 2048


def test_the_text_of_a_wrapper(tmp_path):
    text = {**BASE["qwen3"], "model_type": "qwen3_vl_text", "rope_theta": 10000.0}
    raw = {"model_type": "qwen3_vl", "text_config": text, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert max_length(tmp_path, tmp_path) == BASE["qwen3"]["max_position_embeddings"]
