"""Pretrained GGUF files: parameters of transformers' conversion, ids of llama.cpp.

tests/cases/real/tokens.json has texts of many kinds, and of each model the SHA-256 (16 digits) of
the ids, as little-endian int32, that llama.cpp 0.5.0 gives for them.
"""

import hashlib
import json

import numpy as np
import pytest

from jaxscore.models.weights.gguf import GgufScheme
from tests.conftest import CASES
from tests.real.conftest import OF_EACH_MODEL

pytestmark = [pytest.mark.real, pytest.mark.slow]

TOKENS = json.loads((CASES / "real/tokens.json").read_text(encoding="utf-8"))


@OF_EACH_MODEL
def test_parameters_are_those_of_transformers_conversion(name, path_of, torch_model_of):
    path = path_of(name)
    tensors = GgufScheme(path).open_tensors(path).arrays
    state = torch_model_of(name).state_dict()
    tied = state.pop("lm_head.weight")
    assert tied.data_ptr() == state["model.embed_tokens.weight"].data_ptr()
    assert {*state} == {*tensors}
    for key, expected in state.items():
        np.testing.assert_array_equal(tensors[key], expected.numpy(), err_msg=key)


@OF_EACH_MODEL
def test_token_ids_are_those_of_llama_cpp(name, scorer_of):
    tokenizer = scorer_of(name).encoder.tokenizer
    found = [tokenizer.encode(text) for text in TOKENS["texts"]]
    hashes = [hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest()[:16] for ids in found]
    assert len(hashes) > 200
    differ = [
        text
        for text, own, theirs in zip(TOKENS["texts"], hashes, TOKENS[name], strict=True)
        if own != theirs
    ]
    assert differ == []
