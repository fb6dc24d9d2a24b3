"""Refuse a config attribute that changes the function and is not handled."""

from collections.abc import Set
from typing import Any

from jaxscore.errors import InputError

# Attributes that decide nothing about a forward pass: names, training, generation defaults.
INERT = frozenset(
    "_attn_implementation_autoset _commit_hash _name_or_path _num_labels architectures auto_map "
    "attention_dropout attn_pdrop bad_words_ids begin_suppress_tokens bos_token_id "
    "classifier_dropout decoder_start_token_id diversity_penalty do_sample dtype "
    "early_stopping embd_pdrop encoder_no_repeat_ngram_size eos_token_id "
    "exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id "
    "id2label initializer_range label2id length_penalty max_length min_length model_type "
    "no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions "
    "output_hidden_states output_scores pad_token_id prefix pretraining_tp problem_type "
    "remove_invalid_values repetition_penalty resid_pdrop return_dict return_dict_in_generate "
    "sep_token_id summary_activation summary_first_dropout summary_proj_to_labels "
    "summary_type summary_use_proj suppress_tokens task_specific_params temperature "
    "tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript "
    "transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache "
    "gradient_checkpointing is_llama_config max_sequence_length n_ctx n_special output_past "
    "predict_special_tokens transformers.js_config".split()
)

# None says that there is none, whatever the class has by default.
MAY_BE_NULL = {"attn_logit_softcapping", "final_logit_softcapping", "sliding_window"}
# Real numbers, though some class writes its default as an integer.
REALS = {"query_pre_attn_scalar", "rope_theta", "rotary_emb_base"}
MOST_REAL = 1e30  # below the largest float32
# Sizes decide what is allocated before any tensor is looked at: transformers' classes make lists
# of as many entries as there are layers or labels, and a head has its table of frequencies.
MOST_ENTRIES = 10_000
MOST_SIZE = 1 << 22
POSITIONS = frozenset(  # lengths of text, of which nothing is made
    "max_position_embeddings n_positions original_max_position_embeddings sliding_window".split()
)


def transformers_config(raw: dict[str, Any], where: str) -> Any:
    """The transformers config object of a raw `config.json`, which fills the defaults in.

    Raises:
        InputError: a model type that transformers does not know, or values it refuses.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.utils import logging

    kind = raw["model_type"]
    if kind not in CONFIG_MAPPING:
        raise InputError(f"{where}: unknown model_type {kind!r}")
    _check_sizes(raw, where)
    told = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # it prints values that it does not like, as they are
    try:
        return CONFIG_MAPPING[kind](**{k: v for k, v in raw.items() if k != "model_type"})
    except Exception as problem:  # each config class validates in its own way
        raise InputError(f"{where}: transformers refuses it: {problem}") from None
    finally:
        logging.set_verbosity(told)


def _check_sizes(raw: dict[str, Any], where: str) -> None:
    for name, value in raw.items():
        if type(value) is not int or name in INERT | POSITIONS | REALS:
            continue
        most = MOST_ENTRIES if "layer" in name or name.endswith("labels") else MOST_SIZE
        if value > most:
            raise InputError(f"{where}: {name} is {value}, expected at most {most}")


def _off(value: Any) -> bool:
    """Whether an unknown attribute says that it does nothing. A zero does not say so."""
    return value is None or value is False or value in ({}, [])


def _like(name: str, value: Any, default: Any) -> bool:
    """Whether a value has the type of its default, where that has one; integers are floats too."""
    if value is None and name in MAY_BE_NULL:
        return True
    if isinstance(default, float) or name in REALS:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # An integer that is no real for its class goes to the device as one.
        most = MOST_REAL if isinstance(value, float) or name in REALS else MOST_SIZE
        return number and abs(value) < most  # nor NaN
    return not isinstance(default, bool | int | str) or type(value) is type(default)


def check_attributes(raw: dict[str, Any], config: Any, reads: Set[str], where: str) -> None:
    """Every attribute must be read, inert, or at the default that the class has anyway.

    Raises:
        InputError: naming the attributes for which none of these holds, or one of the wrong type.
    """
    defaults = type(config)().to_dict()
    aliases = getattr(config, "attribute_map", {})
    strange = {
        name: value
        for name, value in raw.items()
        if aliases.get(name, name) not in reads
        and name not in INERT
        and not (defaults[name] == value if name in defaults else _off(value))
    }
    if strange:
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(strange.items()))
        raise InputError(
            f"{where}: attributes that are not handled for model_type {raw['model_type']!r}: "
            f"{listed}; refusing to score, since they may change the numbers"
        )
    for name in sorted(reads & set(defaults)):
        value, default = getattr(config, name), defaults[name]
        if not _like(name, value, default):
            raise InputError(f"{where}: {name} is {value!r}, expected a value like {default!r}")
