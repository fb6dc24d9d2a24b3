"""What a config or its tensors have that is not handled is refused by its name."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxscore.errors import InputError
from jaxscore.plan.requests import TokenSequence
from tests.models.case_parts import POSITIONS
from tests.models.checkpoints import (
    assert_agree,
    loaded,
    ragged,
    saved,
    scorer,
    torch_scores,
)
from tests.models.families import BASE, REFUSED, UNUSABLE
from tests.releases import native_and_transformers


def refused(folder, *parts, implementation="native"):
    """Loading fails with a message that has all the parts, in order."""
    pattern = ".*".join(re.escape(str(part)) for part in parts)
    with pytest.raises(InputError, match=f"(?s){pattern}"):
        loaded(folder, implementation=implementation)


@pytest.mark.parametrize(("kind", "attributes", "named"), REFUSED + UNUSABLE, ids=str)
def test_an_attribute_that_is_not_handled(checkpoint, kind, attributes, named):
    folder = checkpoint(kind, **attributes)
    refused(folder, folder / "config.json", named)


@pytest.mark.parametrize("implementation", ["native", "transformers", "auto"])
@pytest.mark.parametrize("kind", ["no_such_model", "mamba", "gemma3", "bert"])
def test_a_model_type_that_is_not_covered(checkpoint, kind, implementation):
    folder = checkpoint("llama", model_type=kind)
    refused(folder, folder / "config.json", kind, implementation=implementation)


@pytest.mark.parametrize(
    ("kind", "sizes", "most", "tensors", "named"),
    [
        ("deepseek_v32", {"index_topk": 16}, 16, "15 tensors of indexers", "index_topk"),
        (
            "qwen4_exp_text",
            {"indexer_budget": 8},
            11,  # two blocks of 4, and 3 that fill none
            "3 tensors of indexers and multi-token prediction",
            "indexer_budget",
        ),
    ],
)
def test_texts_of_more_tokens_than_an_indexer_chooses(tmp_path, kind, sizes, most, tensors, named):
    """Up to so many keys it chooses all, and of one more it does not."""
    model = saved(tmp_path, kind, **sizes)
    own, sequences = loaded(tmp_path), ragged()
    assert own.checkpoint.left_out == tensors
    short = [TokenSequence(one.ids[: most + 1], 0) for one in sequences]
    assert_agree(scorer(own).score_sequences(short), torch_scores(model, short))
    limit = rf"{most} positions \(beyond {named} keys an indexer chooses among them, which is not"
    with pytest.raises(ValueError, match=limit):
        scorer(own).score_sequences([TokenSequence(sequences[0].ids[: most + 2], 0)])


def test_an_indexer_is_no_reason_if_the_model_was_made_for_no_longer_texts(tmp_path):
    saved(tmp_path, "deepseek_v32")
    own = loaded(tmp_path)
    assert own.max_positions == POSITIONS < BASE["deepseek_v32"]["index_topk"]
    assert own.checkpoint.limit_reason == ""


def test_a_seed_of_hashes_that_is_not_the_weights_own(checkpoint):
    """PyTorch takes the multipliers of the file."""
    folder = checkpoint("qwen4_exp_text", seed=5)
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"seed": 5', '"seed": 6'))
    refused(folder, folder, r"tensor layers.0.ple.ple_embedding.layer_multipliers is [")


DOWN = "model.layers.1.mlp.down_proj.weight"


def with_tensors(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return folder


@native_and_transformers
def test_a_missing_tensor(checkpoint, implementation):
    folder = with_tensors(checkpoint("llama"), lambda tensors: tensors.pop(DOWN))
    refused(folder, folder, "missing", implementation=implementation)
    refused(folder, "layers.1.mlp.down_proj", implementation=implementation)


@native_and_transformers
@pytest.mark.parametrize("name", ["model.layers.2.mlp.down_proj.weight", "lm_head.bias", "extra"])
def test_a_tensor_that_is_not_used(checkpoint, implementation, name):
    folder = with_tensors(
        checkpoint("llama"), lambda tensors: tensors.update({name: tensors[DOWN]})
    )
    refused(folder, folder, name.removeprefix("model."), implementation=implementation)


@native_and_transformers
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", DOWN),
        ("llama", "model.embed_tokens.weight"),
        ("llama", "model.norm.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.bias"),
    ],
)
def test_a_wrong_shape(checkpoint, implementation, kind, name):
    """One more at the end: of a tensor that is cut in three parts, too."""

    def longer(tensors):
        value = tensors[name]
        tensors[name] = np.concatenate([value, value[..., :1]], axis=-1)

    folder = with_tensors(checkpoint(kind), longer)
    bare = name.removeprefix("model.").removeprefix("transformer.")
    refused(folder, folder, bare, "shape", implementation=implementation)


@native_and_transformers
def test_a_transposed_tensor(checkpoint, implementation):
    def turned(tensors):
        tensors[DOWN] = np.ascontiguousarray(tensors[DOWN].T)

    folder = with_tensors(checkpoint("llama"), turned)
    refused(folder, folder, "layers.1.mlp.down_proj.weight", "shape", implementation=implementation)


@native_and_transformers
def test_the_same_tensor_with_and_without_the_prefix(checkpoint, implementation):
    folder = with_tensors(
        checkpoint("llama"), lambda t: t.update({DOWN.removeprefix("model."): t[DOWN] + 1})
    )
    refused(folder, folder, "layers.1.mlp.down_proj.weight", implementation=implementation)


@native_and_transformers
@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(np.int32, "I32"), (np.int64, "I64"), (np.uint8, "U8"), (np.bool_, "BOOL")],
)
def test_weights_that_are_no_floats(checkpoint, implementation, dtype, stored):
    folder = with_tensors(
        checkpoint("llama"), lambda tensors: tensors.update({DOWN: tensors[DOWN].astype(dtype)})
    )
    name = "layers.1.mlp.down_proj.weight"
    refused(folder, folder, name, f"stored as {stored}", implementation=implementation)


def test_an_untied_config_without_an_unembedding(checkpoint):
    folder = checkpoint("gpt2", tie_word_embeddings=False)
    refused(folder, folder, "lm_head.weight", "missing")
