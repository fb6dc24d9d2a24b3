"""How a checkpoint wants its text to be chosen, and which of it is not computed."""

import json

import pytest
from transformers import GenerationConfig

from jaxscore.models.load import load
from jaxscore.models.weights import generation_config
from jaxscore.models.weights.generation_config import (
    ANY_TEXT,
    COMPUTED,
    SAMPLING,
    GenerationDefaults,
)
from tests.models.checkpoints import saved

pytestmark = pytest.mark.lines

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
    return generation_config.read_generation_config(folder, config or {})[1]


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
