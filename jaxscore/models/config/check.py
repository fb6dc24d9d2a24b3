"""Checks of config attributes: their types, their sizes, and that each is handled."""

import re
from collections.abc import Mapping, Set
from typing import Any

from jaxscore.errors import InputError

# Attributes that do not affect the forward pass: names, training settings, generation defaults.
INERT = frozenset(
    "_attn_implementation_autoset _commit_hash _name_or_path _num_labels architectures auto_map "
    "attention_dropout attn_pdrop bad_words_ids begin_suppress_tokens bos_token_id "
    "classifier_dropout decoder_start_token_id diversity_penalty do_sample dtype "
    "embedding_initializer_range eod_token_id ep_size "
    "early_stopping embd_pdrop encoder_no_repeat_ngram_size eos_token_id "
    "exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id "
    "generation_config id2label initializer_range label2id length_penalty max_length min_length "
    "model_type neftune_noise_alpha "
    "no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions "
    "output_hidden_states output_scores pad_token_id prefix pretraining_tp problem_type "
    "remove_invalid_values repetition_penalty resid_pdrop return_dict return_dict_in_generate "
    "sep_token_id summary_activation summary_first_dropout summary_proj_to_labels "
    "summary_type summary_use_proj suppress_tokens task_specific_params temperature "
    "tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript "
    "transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache "
    "gradient_checkpointing is_llama_config max_sequence_length n_ctx n_special output_past "
    "predict_special_tokens transformers.js_config "
    # The windows are in `layer_types` or `sliding_window_pattern`; a file without either is
    # refused if this one differs from the default.
    "_sliding_window_pattern".split()
)
# Also inert in families that do not read them: internals of transformers, names, token ids,
# training settings, multi-token-prediction layers
INERT_FORMS = re.compile(
    r"_.*|mtp(_\w+)?|name_or_path|(unk|cls|mask)_token_id|(\w+_)?dropout(_prob|_p|_rate)?"
    r"|init_std|block_(mlp|out)_init_scale|(block|conv)_use_xavier_init|layerdrop|output_router_logits|router_aux_loss_coef"
)
FLAG = "--accept-config"
REMEDY = f"; if you know that one cannot, vouch for it: {FLAG} NAME (accept_config in Python)"
# Attributes of transformers' base class, with the values that have no effect
BASE: dict[str, Any] = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "tie_encoder_decoder": False,
}

# Attributes for which null means "none", whatever the default of the class
MAY_BE_NULL = frozenset(
    "attention_chunk_size attention_value_scale attn_logit_softcapping final_logit_softcapping "
    "moe_normalize_expert_weights q_lora_rank routed_scaling_factor "
    "sliding_window sliding_window_pattern".split()
)
# A pattern such as "LLLG" is refused if it is needed, see `derived`; EXAONE 4's files have it in
# addition to `layer_types`.
MAY_BE_STRING = frozenset({"sliding_window_pattern"})
# Attributes that may be a list with an entry per layer; the family checks that all are equal.
MAY_BE_LIST = frozenset({"intermediate_size", "moe_topk"})
# Attributes for which null means "derived from other sizes", as when the default is null
MAY_BE_DERIVED = frozenset({"head_dim", "num_key_value_heads"})
# Real numbers, although the defaults of some classes are integers
REALS = frozenset(
    {"query_pre_attn_scalar", "rope_theta", "rotary_emb_base", "rope_local_base_freq", "scale_emb"}
)
# Types of attributes whose default is null
KINDS: dict[str, type] = dict.fromkeys(
    "attention_head_dim attention_hidden_size ffn_hidden_size head_dim indexer_budget "
    "indexer_compress_ratio indexer_head_dim indexer_kv_heads indexer_n_heads intermediate_size "
    "kv_channels linear_key_head_dim linear_num_key_heads "
    "linear_num_value_heads linear_value_head_dim mamba_d_head mamba_d_ssm mamba_headdim "
    "moe_intermediate_size moe_latent_size num_hidden_layers "
    "n_group n_inner "
    "n_routed_experts n_shared_experts num_experts num_experts_per_tok "
    "num_global_key_value_heads num_key_value_heads num_kv_heads "
    "num_ln_in_parallel_attn num_query_groups ple_embed_dim prefix_dense_intermediate_size "
    "q_lora_rank "
    "qk_head_dim sliding_window top_k_experts topk_group v_head_dim word_embed_proj_dim".split(),
    int,
) | dict.fromkeys(
    "attention_multiplier attn_logit_softcapping clip_qkv final_logit_softcapping "
    "rms_norm_eps".split(),
    float,
)
KINDS |= dict.fromkeys("hidden_activation output_gate_type".split(), str)
KINDS |= dict.fromkeys("audio_config vision_config".split(), dict)
KINDS |= dict.fromkeys(
    "activation_sparsity_pattern attention_layers attention_types attn_layer_indices "
    "full_attn_idxs hybrid_layer_ids indexer_types layer_rope_theta layer_types "
    "layers_block_type "
    "mlp_layer_types mlp_multipliers mlp_only_layers moe_layers mtp_layers_block_type "
    "no_rope_layers ple_layer_ids "
    "ssm_multipliers".split(),
    list,
)
EXAMPLES: dict[type, Any] = {dict: {}, int: 1, float: 1.0, str: "silu", list: []}
MAX_REAL = 1e30  # below the largest float32
# Sizes determine allocations before any tensor is read: lists with an entry per layer, and the
# table of rotary frequencies.
MAX_LAYERS = 10_000
MAX_SIZE = 1 << 22
POSITIONS = frozenset(  # lengths of texts, which determine no allocation
    "max_position_embeddings n_positions original_max_position_embeddings sliding_window "
    "attention_chunk_size floor_scale indexer_budget model_max_length seq_length".split()
)
HASHES = frozenset({"ngram_vocab_size_base", "seed"})  # parameters of n-gram hashes


def check_sizes(raw: Mapping[str, Any], where: str) -> None:
    """Check that no integer leads to lists or tables that exhaust the memory.

    Raises:
        InputError: an attribute is too large.
    """
    for name, value in raw.items():
        if type(value) is not int or name in INERT | POSITIONS | HASHES | REALS:
            continue
        counts = ("layer" in name and not name.endswith("_layer_input")) or name.endswith("labels")
        limit = MAX_LAYERS if counts else MAX_SIZE
        if value > limit:
            raise InputError(f"{where}: {name} is {value}, expected at most {limit}")


def is_real(value: Any) -> bool:
    """Return True if a value is a number within the range of float32."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) < MAX_REAL  # False for NaN


def _is_off(value: Any) -> bool:
    """Return True if the value of an unknown attribute means "off". Zero does not."""
    return value is None or value is False or value in ({}, [])


def _has_type_of_default(name: str, value: Any, default: Any) -> bool:
    """Return True if a value has the type of its default; integers count as floats, too."""
    if value is None and (default is None or name in MAY_BE_NULL | MAY_BE_DERIVED):
        return True
    if isinstance(value, list) and name in MAY_BE_LIST:
        return True
    if isinstance(value, str) and name in MAY_BE_STRING:
        return True
    if default is None:
        if name not in KINDS:
            return True
        default = EXAMPLES[KINDS[name]]
    if isinstance(default, float) or name in REALS:
        # An integer reaches the device as an integer, which must not overflow.
        small = type(value) is not int or name in REALS or abs(value) < MAX_SIZE
        return is_real(value) and small
    return not isinstance(default, bool | int | str | list) or type(value) is type(default)


def check_types(values: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> None:
    """Check that every attribute of a file has the type of its default.

    Raises:
        InputError: an attribute has another type.
    """
    for name, value in sorted(values.items()):
        if (
            name in defaults
            and name not in INERT
            and not _has_type_of_default(name, value, defaults[name])
        ):
            default = defaults[name]
            like = f"a value like {default!r}"
            if default is None:
                like = f"null or {'a' if KINDS[name] is list else 'a value of type'} "
                like += KINDS[name].__name__
            raise InputError(f"{where}: {name} is {value!r}, expected {like}")


def unhandled(
    values: Mapping[str, Any], defaults: Mapping[str, Any], reads: Set[str]
) -> dict[str, Any]:
    """Return the attributes that are neither read, nor inert, nor at their default.

    Args:
        values: the attributes of a file, under the names of `defaults`.
        reads: attributes whose values the family handles or refuses.
    """
    harmless_values = BASE | dict(defaults)
    return {
        name: value
        for name, value in values.items()
        if name not in reads
        and name not in INERT
        and not INERT_FORMS.fullmatch(name)
        and not (name in harmless_values and value == harmless_values[name])
        and not (_is_off(value) and _is_off(harmless_values.get(name)))
    }


def check_attributes(
    values: Mapping[str, Any],
    defaults: Mapping[str, Any],
    reads: Set[str],
    where: str,
    model_type: str,
    remedy: str = REMEDY,
) -> None:
    """Check that no attribute is `unhandled`.

    Args:
        values, defaults, reads: see `unhandled`.
        remedy: the end of the error message.

    Raises:
        InputError: the unhandled attributes and their values.
    """
    if rejected := unhandled(values, defaults, reads):
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(rejected.items()))
        raise InputError(
            f"{where}: attributes that are not handled for model_type {model_type!r}: "
            f"{listed}; refusing to score, since they may change the numbers{remedy}"
        )
