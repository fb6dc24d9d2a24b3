"""One checkpoint in its different shapes on disk gives one and the same model."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import GenerationConfig

from jaxscore.device.dots import from_storage
from jaxscore.errors import InputError
from jaxscore.models.load import load
from jaxscore.models.weights.generation_config import (
    ANY_TEXT,
    COMPUTED,
    SAMPLING,
    GenerationDefaults,
    read_generation_config,
)
from jaxscore.models.weights.tensor_files import open_tensors
from tests.models.checkpoints import loaded, saved
from tests.releases import native_and_transformers

pytestmark = pytest.mark.lines

INDEX = "model.safetensors.index.json"


def leaves(model):
    """Parameters by path, bfloat16 as such and not as it is stored on the CPU."""
    params = jax.tree.leaves_with_path(from_storage(model.params))
    return {jax.tree_util.keystr(path): leaf for path, leaf in params}


def assert_same(model, other):
    one, two = leaves(model), leaves(other)
    assert one.keys() == two.keys()
    for name, leaf in one.items():
        assert leaf.dtype == two[name].dtype, name
        assert (leaf == two[name]).all(), name


def sharded(folder, n_files=3):
    """The single file as several and an index; returns the index's weight_map."""
    single = folder / "model.safetensors"
    tensors = load_file(single)
    single.unlink()
    names = sorted(tensors)
    weight_map = {}
    for k in range(n_files):
        own = names[k::n_files]
        file = f"model-{k + 1:05d}-of-{n_files:05d}.safetensors"
        save_file({name: tensors[name] for name in own}, folder / file)
        weight_map |= dict.fromkeys(own, file)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder, weight_map):
    content = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.slow_after(1)
@native_and_transformers
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_shards_load_as_the_single_file(checkpoint, originals, kind, implementation):
    folder = checkpoint(kind)
    sharded(folder)
    assert_same(
        loaded(folder, implementation=implementation),
        loaded(originals[kind], implementation=implementation),
    )


def test_an_index_that_does_not_fit(checkpoint):
    folder = checkpoint("llama")
    weight_map = sharded(folder)
    name, file = next(iter(weight_map.items()))

    def refused(content, *parts):
        if isinstance(content, dict) and "raw" not in content:
            write_index(folder, content)
        else:
            (folder / INDEX).write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(InputError) as problem:
            loaded(folder)
        for part in parts:
            assert str(part) in str(problem.value)

    fewer = {key: value for key, value in weight_map.items() if key != name}
    refused(fewer, folder / INDEX, name)
    refused(weight_map | {"extra.weight": file}, folder / INDEX, "extra.weight")
    # Every name and every file is there, and one tensor is in another file than the index says.
    other = next(value for value in weight_map.values() if value != file)
    refused(weight_map | {name: other}, folder / INDEX, name)
    for outside in ("../model.safetensors", "/model.safetensors", "sub/m.safetensors", ".", ".."):
        refused(weight_map | {name: outside}, folder / INDEX, "outside the folder", outside)
    for odd in (3, ["model.safetensors"], None):
        refused(weight_map | {name: odd}, folder / INDEX, "not file names")
    for strange in ("a\0b", "\ud800", ""):
        refused(weight_map | {name: strange}, folder, "checkpoint is incomplete")
    for odd in ([], {"raw": {}}, {"raw": 1, "weight_map": {}}, {"raw": 1, "weight_map": [name]}, 3):
        refused(odd, folder / INDEX, "weight_map")
    refused(weight_map | {name: "gone.safetensors"}, folder / "gone.safetensors", "incomplete")
    (folder / INDEX).write_text('{"weight_map": ', encoding="utf-8")
    with pytest.raises(InputError, match=r"index\.json:1: not JSON"):
        loaded(folder)


def test_a_tensor_in_two_shards(checkpoint):
    folder = checkpoint("llama")
    weight_map = sharded(folder)
    first, second = sorted(set(weight_map.values()))[:2]
    both = load_file(folder / first) | load_file(folder / second)
    save_file(both, folder / second)
    with pytest.raises(InputError, match=rf"{second}: tensor .* is also in .*{first}"):
        loaded(folder)


def renamed(folder, change):
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)


@native_and_transformers
@pytest.mark.parametrize(("kind", "prefix"), [("gpt2", "transformer."), ("llama", "model.")])
def test_names_without_the_prefix(checkpoint, originals, kind, prefix, implementation):
    """As openai-community/gpt2 has them, mask buffers included."""
    folder = checkpoint(kind)

    def bare(tensors):
        out = {name.removeprefix(prefix): value for name, value in tensors.items()}
        assert len(set(out) & set(tensors)) == (kind == "llama")  # lm_head never had one
        if kind == "gpt2":
            mask = np.tril(np.ones((1, 1, 48, 48), np.float32))
            out |= {f"h.{i}.attn.bias": mask for i in range(2)}
            out["h.1.attn.masked_bias"] = np.float32(-1e4).reshape(1)
        else:
            out["layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
        return out

    renamed(folder, bare)
    assert_same(
        loaded(folder, implementation=implementation),
        loaded(originals[kind], implementation=implementation),
    )


@native_and_transformers
def test_a_tied_checkpoint_may_carry_its_unembedding_too(checkpoint, originals, implementation):
    folder = checkpoint("gpt2")
    renamed(folder, lambda t: t | {"lm_head.weight": t["transformer.wte.weight"].copy()})
    assert_same(
        loaded(folder, implementation=implementation),
        loaded(originals["gpt2"], implementation=implementation),
    )


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_auto_is_float32_on_the_cpu(checkpoint, stored):
    folder = checkpoint("llama")
    renamed(folder, lambda t: {name: value.astype(stored) for name, value in t.items()})
    model = loaded(folder, dtype="auto")
    assert model.dtype == "float32"
    assert {leaf.dtype for leaf in leaves(model).values()} == {jnp.dtype(jnp.float32)}
    assert open_tensors(folder).dtype_name() == np.dtype(stored).name


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
def test_bfloat16_rounds_matrices_and_leaves_norms_and_biases(originals, kind):
    exact, rounded = (leaves(loaded(originals[kind], dtype=d)) for d in ("float32", "bfloat16"))
    vectors = {name for name in exact if name.endswith(("['scale']", "['bias']"))}
    assert vectors
    for name, leaf in rounded.items():
        want = exact[name] if name in vectors else exact[name].astype(jnp.bfloat16)
        assert leaf.dtype == want.dtype, name
        assert (leaf == want).all(), name


def test_tensors_are_views_of_the_mapped_file(originals):
    folder = originals["llama"]
    tensors = open_tensors(folder)
    plain = load_file(folder / "model.safetensors")
    assert tensors.arrays.keys() == plain.keys()
    for name, array in tensors.arrays.items():
        assert not array.flags.owndata
        assert not array.flags.writeable
        assert (array == plain[name]).all()
        assert tensors.where[name] == folder / "model.safetensors"


@pytest.mark.parametrize("option", [{"dtype": "float16"}, {"implementation": "nativ"}], ids=str)
def test_an_option_that_does_not_exist(originals, option):
    with pytest.raises(ValueError, match=next(iter(option.values()))):
        loaded(originals["gpt2"], **option)


@native_and_transformers
def test_the_facts_of_a_model(originals, implementation):
    for kind in ("gpt2", "llama"):
        model = loaded(originals[kind], implementation=implementation)
        facts = (model.vocab_size, model.max_positions, model.width, model.shares_text)
        assert facts == (211, 48, 32, implementation == "native")
        assert (model.implementation, model.dtype) == (implementation, "float32")
        assert model.model_type == kind


def test_auto_is_native_where_both_take_it(originals):
    assert loaded(originals["gpt2"], implementation="auto").implementation == "native"


@native_and_transformers
def test_a_tied_checkpoint_with_another_head_is_refused(tmp_path, implementation):
    saved(tmp_path, "gpt2")
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors["transformer.wte.weight"] * -3
    save_file({**tensors, "lm_head.weight": head}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"lm_head\.weight is not the embedding"):
        loaded(tmp_path, implementation=implementation)


@pytest.mark.parametrize(
    ("generation", "config", "want"),
    [
        (None, {"eos_token_id": 4}, (4,)),
        (None, {}, ()),
        (None, {"eos_token_id": None}, ()),
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 4}, (7, 8)),
        ({"eos_token_id": None}, {"eos_token_id": 4}, ()),
        ({"temperature": 0.6}, {"eos_token_id": 4}, (4,)),
    ],
)
def test_eos_ids_are_the_generation_configs_else_the_configs(tmp_path, generation, config, want):
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert read_generation_config(tmp_path, config)[0] == want


@pytest.mark.parametrize("wrong", ["</s>", [1, "2"], -1, True, {"id": 1}])
def test_an_eos_that_is_no_id_is_refused(tmp_path, wrong):
    with pytest.raises(InputError, match=r"config\.json: eos_token_id is .*, expected a token id"):
        read_generation_config(tmp_path, {"eos_token_id": wrong})
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(InputError, match=r"generation_config\.json: expected an object"):
        read_generation_config(tmp_path, {})


# Entries of transformers' GenerationConfig that change no text whose length and ends are given:
# what is returned, how it is cached or compiled, beams' own, and guesses that are verified.
WITHOUT_EFFECT = set(
    "max_length max_new_tokens early_stopping use_cache cache_implementation cache_config "
    "max_cache_len return_legacy_cache prefill_chunk_size length_penalty num_return_sequences "
    "output_attentions output_hidden_states output_scores output_logits return_dict_in_generate "
    "pad_token_id bos_token_id eos_token_id decoder_start_token_id is_assistant use_mtp "
    "num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold "
    "prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit assistant_lookbehind "
    "target_lookbehind assistant_ensemble_weight speculation_type compile_config disable_compile "
    "continuous_batching_config low_memory transformers_version".split()
)


def read(folder, config=None, **entries):
    if entries:
        text = json.dumps(entries)
        (folder / "generation_config.json").write_text(text, encoding="utf-8")
    return read_generation_config(folder, config or {})[1]


def test_every_entry_that_transformers_knows_is_thought_about():
    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert known - WITHOUT_EFFECT - {*COMPUTED, *SAMPLING, *ANY_TEXT} == set()


def test_values_and_what_is_not_computed(tmp_path):
    found = read(
        tmp_path, do_sample=True, temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05,
        no_repeat_ngram_size=3, min_p=0.1, eos_token_id=2, max_length=99, chat_format="chatml",
    )  # fmt: skip
    unhandled = {"no_repeat_ngram_size": 3, "min_p": 0.1}
    assert found == GenerationDefaults(True, 0.7, 20, 0.8, 1.05, unhandled)
    assert found.unhandled_greedy == {"no_repeat_ngram_size": 3}


def test_neutral_values_are_none(tmp_path):
    neutral = {name: values[0] for name, values in (SAMPLING | ANY_TEXT).items() if values}
    assert len(neutral) > 15
    assert read(tmp_path, **neutral) == GenerationDefaults()
    assert (
        read(tmp_path, **dict.fromkeys([*COMPUTED, *SAMPLING, *ANY_TEXT])) == GenerationDefaults()
    )


def test_what_transformers_fills_in_is_what_stands_here(tmp_path):
    said, theirs = GenerationDefaults(), GenerationConfig()
    filled = getattr(theirs, "_get_default_generation_params", lambda: vars(theirs))()
    assert {name: filled[name] for name in COMPUTED} == {
        name: getattr(said, name) for name in COMPUTED
    }
    for name in {*SAMPLING, *ANY_TEXT} - {*COMPUTED}:
        assert filled.get(name) in (None, *(SAMPLING | ANY_TEXT)[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("do_sample", "yes"), ("temperature", 0), ("temperature", -1.0), ("temperature", "hot"),
        ("top_k", -1), ("top_k", 2.5), ("top_k", True), ("top_p", 0), ("top_p", 1.5),
        ("repetition_penalty", 0), ("repetition_penalty", [1.1]), ("repetition_penalty", 10**400),
    ],
)  # fmt: skip
def test_a_value_that_no_request_can_have_is_not_computed(tmp_path, name, value):
    found = read(tmp_path, **{name: value})
    assert found.unhandled == {name: value}
    assert found == GenerationDefaults(unhandled={name: value})


def test_without_the_file_an_old_config_counts(tmp_path):
    config = {"repetition_penalty": 1.2, "num_beams": 4, "hidden_size": 8, "min_length": 0}
    assert read(tmp_path, config) == GenerationDefaults(
        repetition_penalty=1.2, unhandled={"num_beams": 4}
    )
    assert read(tmp_path, config, top_k=5) == GenerationDefaults(top_k=5)


def test_a_model_has_them(tmp_path):
    saved(tmp_path, "llama")
    entries = {"repetition_penalty": 1.1, "suppress_tokens": [3]}
    read(tmp_path, **entries)
    defaults = load(tmp_path).generation_defaults
    assert defaults.repetition_penalty == 1.1
    assert defaults.unhandled == {"suppress_tokens": [3]}
