"""Multimodal checkpoints: attributes and tensors of the text model that a wrapper contains.

A wrapper has the text model's config under `text_config`, and its tensors under a prefix. Towers
for images, videos and sound are not loaded, so a text must not contain the tokens that represent
their inputs.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.models.config import read, table
from jaxscore.models.config.check import INERT, check_attributes, check_sizes
from jaxscore.models.config.rope_parameters import names_of
from jaxscore.models.weights.generation_config import MAX_ID
from jaxscore.models.weights.tensor_files import LazyMapping, Tensors

# Prefixes of the text model's tensors, in released files and those of transformers -> our prefixes
PREFIXES = {
    "language_model.model.": "model.",
    "language_model.backbone.": "backbone.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
}
HEAD = "lm_head.weight"
# Model types of text models that belong to another family
FAMILY_OF = {
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}
RENAMED = {
    "exaone4_5_text": "exaone4",
    "kimi_k2": "deepseek_v3",
}  # model types that occur only in released files
SPECIAL_IDS = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})


@dataclasses.dataclass(frozen=True)
class Wrapper:
    """A kind of wrapper.

    Attributes:
        texts: allowed model types of the text model; the first is the default.
        towers: first components of the names of tensors that are not loaded.
        tokens: attributes with one or several ids of tokens that do not represent text -> their
            defaults, or None if the class has none.
        knows: attributes of the towers, which do not affect text, at the top level or in
            `text_config`.
        aliases: other names of attributes -> the names here.
        flat: if True, the text model's attributes may be at the top level, without a
            `text_config`.
    """

    texts: tuple[str, ...]
    towers: frozenset[str]
    tokens: Mapping[str, int | tuple[int, ...] | None]
    knows: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flat: bool = False


INDICES = {
    "boi_token_id": "boi_token_index",
    "eoi_token_id": "eoi_token_index",
    "image_token_id": "image_token_index",
}
PROJECTED = frozenset({"vision_tower", "multi_modal_projector"})
QWEN: dict[str, int | None] = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
    "vision_token_id": None,
}
QWEN3_5: dict[str, int | None] = {
    "image_token_id": 248056,
    "video_token_id": 248057,
    "vision_end_token_id": 248054,
    "vision_start_token_id": 248053,
}
VISUAL_MTP = frozenset({"visual", "mtp"})
SERVED = frozenset({"language_model_only"})  # a switch for servers: do not load the tower
GEMMA4: dict[str, int | None] = {
    "audio_token_id": 258881,
    "boa_token_id": 256000,
    "boi_token_id": 255999,
    "eoa_token_index": 258883,
    "eoi_token_id": 258882,
    "image_token_id": 258880,
    "video_token_id": 258884,
}
EOA = {"eoa_token_id": "eoa_token_index"}
LLAVA = frozenset(
    {
        "ignore_index",
        "image_grid_pinpoints",
        "image_seq_length",
        "multimodal_projector_bias",
        "projector_hidden_act",
        "projector_layernorm_eps",
        "vision_aspect_ratio",
        "vision_feature_layer",
        "vision_feature_select_strategy",
    }
)
IMAGE_INDEX = {"image_token_id": "image_token_index"}
COHERE = frozenset({"adapter_layer_norm_eps", "alignment_intermediate_size", "downsample_factor"})
LFM2_VL = frozenset(  # attributes of image tokenization and the projector
    "do_image_splitting downsample_factor encoder_patch_size max_image_tokens max_num_patches "
    "max_pixels_tolerance max_tiles min_image_tokens min_tiles projector_bias projector_hidden_act "
    "projector_hidden_size projector_use_layernorm tile_size use_image_special_tokens "
    "use_thumbnail vision_feature_layer".split()
)
IDEFICS = Wrapper(
    ("llama",),
    frozenset({"vision_model", "connector"}),
    {"image_token_id": 128257},
    frozenset(
        "image_seq_len perceiver_config pixel_shuffle_factor scale_factor "
        "use_reentrant_checkpointing".split()
    ),
)
NEMOTRON_OMNI = Wrapper(
    ("nemotron_h",),
    frozenset(
        "audio_tower embed_audio mlp1 multi_modal_projector sound_encoder sound_projection "
        "vision_final_layernorm vision_model vision_projector".split()
    ),
    {"audio_token_id": None, "image_token_id": None, "video_token_id": None},
    frozenset(
        "downsample_ratio force_image_size projector_hidden_size ps_version template use_thumbnail "
        "video_pruning_rate video_temporal_patch_size vision_hidden_size".split()
    ),
    {
        "img_context_token_id": "image_token_id",
        "llm_config": "text_config",
        "sound_config": "audio_config",
        "sound_context_token_id": "audio_token_id",
        "video_context_token_id": "video_token_id",
        "vit_hidden_size": "vision_hidden_size",
    },
)
WRAPPERS: dict[str, Wrapper] = {
    "NemotronH_Nano_Omni_Reasoning_V3": NEMOTRON_OMNI,  # as released
    "aria": Wrapper(
        ("aria_text",),
        PROJECTED,
        {"image_token_index": 9},
        frozenset(
            {
                "max_value_projector_patch_to_query_dict",
                "projector_patch_to_query_dict",
                "vision_feature_layer",
            }
        ),
        IMAGE_INDEX,
    ),
    "aya_vision": Wrapper(
        ("cohere2",), PROJECTED, {"image_token_index": 255036}, LLAVA | COHERE, IMAGE_INDEX
    ),
    "cohere2_vision": Wrapper(("cohere2",), PROJECTED, {"image_token_id": 255036}, COHERE),
    "exaone4_5": Wrapper(
        ("exaone4",),
        VISUAL_MTP,
        {"image_token_id": 67, "video_token_id": 68},
    ),
    "fuyu": Wrapper(
        ("persimmon",),
        frozenset({"vision_embed_tokens"}),
        {"image_token_id": 71011},
        frozenset({"image_size", "num_channels", "patch_size"}),
        flat=True,
    ),
    "gemma3": Wrapper(
        ("gemma3_text",),
        PROJECTED,
        {"boi_token_index": 255999, "eoi_token_index": 256000, "image_token_index": 262144},
        frozenset({"mm_tokens_per_image"}),
        INDICES,
    ),
    "gemma3n": Wrapper(
        ("gemma3n_text",),
        frozenset({"vision_tower", "audio_tower", "embed_vision", "embed_audio"}),
        {
            "audio_token_id": 262273,
            "boa_token_id": 256000,
            "boi_token_id": 255999,
            "eoa_token_id": 262272,
            "eoi_token_id": 262144,
            "image_token_id": 262145,
        },
        frozenset({"audio_soft_tokens_per_image", "vision_soft_tokens_per_image"}),
    ),
    "gemma4": Wrapper(
        ("gemma4_text",),
        frozenset({"vision_tower", "audio_tower", "embed_vision", "embed_audio"}),
        GEMMA4,
        frozenset({"vision_soft_tokens_per_image", "audio_ms_per_token"}),
        EOA,
    ),
    "gemma4_unified": Wrapper(
        ("gemma4_unified_text",),
        frozenset({"vision_embedder", "embed_vision", "embed_audio"}),
        GEMMA4,
        aliases=EOA,
    ),
    "got_ocr2": Wrapper(
        ("qwen2",),
        PROJECTED,
        {"image_token_index": 151859},
        frozenset({"image_seq_length"}),
        IMAGE_INDEX,
    ),
    "idefics3": IDEFICS,
    "internvl": Wrapper(
        ("qwen2", "qwen3", "qwen3_moe", "llama", "gpt_oss"),
        PROJECTED,
        {"image_token_id": 151667},
        LLAVA | {"downsample_ratio"},
    ),
    "kimi_k25": Wrapper(
        ("deepseek_v3",),
        frozenset({"vision_tower", "mm_projector", "multi_modal_projector"}),
        {
            "image_token_id": 163605,
            "video_token_id": 163840,
            "vision_start_token_id": 163602,
            "vision_end_token_id": 163604,
        },
        frozenset(
            {
                "ignore_index",
                "projection_hidden_size",
                "projection_layer_norm_eps",
                "use_unified_vision_chunk",
                "video_placeholder",
            }
        ),
        {"media_placeholder_token_id": "image_token_id"},
    ),
    "lfm2_vl": Wrapper(
        ("lfm2",),
        PROJECTED,
        {"image_token_id": 396},
        LFM2_VL,
        {"image_token_index": "image_token_id", "tie_embedding": "tie_word_embeddings"},
    ),
    "lfm3_vl": Wrapper(
        ("lfm3",),
        PROJECTED,
        {
            "image_token_id": 125030,
            "video_token_id": 125029,
            "vision_start_token_id": 125009,
            "vision_end_token_id": 125010,
        },
        LFM2_VL,
    ),
    "lighton_ocr": Wrapper(
        ("qwen3",),
        frozenset({"vision_encoder", "vision_projection"}),
        {"image_token_id": 151655},
        frozenset({"spatial_merge_size"}),
    ),
    "llama4": Wrapper(
        ("llama4_text",),
        frozenset({"vision_model", "multi_modal_projector"}),
        {"boi_token_index": 200080, "eoi_token_index": 200081, "image_token_index": 200092},
        aliases=INDICES,
    ),
    "llava": Wrapper(
        ("llama", "mistral", "qwen2"), PROJECTED, {"image_token_index": 32000}, LLAVA, IMAGE_INDEX
    ),
    "llava_next": Wrapper(
        ("llama", "mistral", "qwen2"),
        PROJECTED | {"image_newline"},
        {"image_token_index": 32000},
        LLAVA | {"use_image_newline_parameter"},
        IMAGE_INDEX,
    ),
    "llava_onevision": Wrapper(
        ("qwen2",),
        PROJECTED | {"image_newline"},
        {"image_token_index": 151646, "video_token_index": 151647},
        LLAVA | {"use_image_newline_parameter"},
        IMAGE_INDEX | {"video_token_id": "video_token_index"},
    ),
    "mistral3": Wrapper(
        ("mistral", "ministral3"),
        PROJECTED,
        {"image_token_index": 10},
        frozenset(
            {
                "multimodal_projector_bias",
                "projector_hidden_act",
                "spatial_merge_size",
                "vision_feature_layer",
            }
        ),
        INDICES,
    ),
    "minimax_m3_vl": Wrapper(
        ("minimax_m3_vl_text",),
        PROJECTED | {"mtp", "patch_merge_mlp"},
        {"image_token_index": 200025, "video_token_index": 200026},
        LLAVA
        | frozenset(
            "img_token_compression_config merged_hidden_size num_reward_heads process_image_mode "
            "projector_hidden_size".split()
        ),
        {"image_token_id": "image_token_index", "video_token_id": "video_token_index"},
    ),
    "moss_transcribe_diarize": Wrapper(
        ("qwen3",),
        frozenset({"audio_tower", "multi_modal_projector"}),
        {"audio_token_id": 151671},
        frozenset(
            {"audio_chunk_size", "audio_merge_size", "projector_bias", "projector_hidden_act"}
        ),
    ),
    "nemotron_h_omni": NEMOTRON_OMNI,
    "ovis2": Wrapper(
        ("qwen2",),
        frozenset({"vision_tower", "visual_embeddings_table"}),
        {
            "image_token_id": 151665,
            "visual_indicator_token_ids": (151666, 151667, 151668, 151669, 151670),
        },
    ),
    "qwen2_5_vl": Wrapper(("qwen2_5_vl_text",), frozenset({"visual"}), QWEN, flat=True),
    "qwen2_vl": Wrapper(("qwen2_vl_text",), frozenset({"visual"}), QWEN, flat=True),
    "qwen3_5": Wrapper(("qwen3_5_text",), VISUAL_MTP, QWEN3_5, SERVED),
    "qwen3_5_moe": Wrapper(("qwen3_5_moe_text",), VISUAL_MTP, QWEN3_5, SERVED),
    "qwen4_exp": Wrapper(("qwen4_exp_text",), VISUAL_MTP, QWEN3_5, SERVED),
    "qwen3_vl": Wrapper(("qwen3_vl_text",), frozenset({"visual"}), QWEN),
    "qwen3_vl_moe": Wrapper(("qwen3_vl_moe_text",), frozenset({"visual"}), QWEN),
    "smolvlm": IDEFICS,
}


@dataclasses.dataclass(frozen=True)
class Text:
    """The text model of a config.

    Attributes:
        raw: the text model's config; the whole config without a wrapper.
        family: its model type among the families.
        wrapper: the wrapper that contains it, or None.
        placeholders: ids of tokens that do not represent text -> the attribute with the id.
    """

    raw: dict[str, Any]
    family: str
    wrapper: Wrapper | None = None
    placeholders: Mapping[int, str] = dataclasses.field(default_factory=dict)


def text_of(raw: dict[str, Any], where: str, *, tied: bool | None = None) -> Text:
    """Return the text model of a raw `config.json`.

    Args:
        where: the file's name for error messages.
        tied: True if the weights lack a separate unembedding; transformers' versions write this
            into a wrapper's config in contradictory ways. None to follow the config.

    Raises:
        InputError: an attribute of the wrapper or a text model that is not handled.
    """
    model_type = raw["model_type"]
    wrapper = WRAPPERS.get(model_type)
    if wrapper is None:
        text_type = RENAMED.get(model_type, model_type)
        return Text(raw | {"model_type": text_type}, text_type)
    check_sizes(raw, where)
    attributes: dict[str, Any] = {}
    for name, value in raw.items():
        if attributes.setdefault(name_of := wrapper.aliases.get(name, name), value) != value:
            raise InputError(
                f"{where}: {name} and {name_of} name one attribute and differ; leave one out"
            )
    text = attributes.pop("text_config", None)
    if text is None and wrapper.flat:
        if model_type == "fuyu":
            _check_flat_fuyu(attributes, where)
        text = {}
    elif not isinstance(text, dict) or (
        wrapper.flat and not text
    ):  # {} means defaults, not the top level
        raise InputError(
            f"{where}: model_type {model_type!r} has text_config {str(text)[:60]}, expected an "
            "object with the text model's attributes"
        )
    text = {name: value for name, value in text.items() if name not in wrapper.knows}
    text_type = text.get("model_type", wrapper.texts[0])
    text_type = wrapper.texts[0] if text_type == model_type else RENAMED.get(text_type, text_type)
    if text_type not in wrapper.texts:
        raise InputError(
            f"{where}: text_config has model_type {text_type!r}, which is not handled in a "
            f"{model_type!r}; handled are {', '.join(wrapper.texts)}"
        )
    attributes.pop("vision_config", None)
    attributes.pop("audio_config", None)
    names = _attributes_of(text_type)
    repeated = {name: attributes.pop(name) for name in names & set(attributes)}
    check_attributes(attributes, {}, wrapper.knows | set(wrapper.tokens), where, model_type)
    candidates = (tied, repeated.pop("tie_word_embeddings", None), text.get("tie_word_embeddings"))
    merged = {name: attributes[name] for name in SPECIAL_IDS & set(attributes)} | repeated | text
    merged["model_type"] = text_type
    default = table()[text_type].values["tie_word_embeddings"]
    merged["tie_word_embeddings"] = next(
        (value for value in candidates if value is not None), default
    )
    if text and repeated:
        _check_repeated(merged, text, repeated, where)
    return Text(
        merged,
        FAMILY_OF.get(text_type, text_type),
        wrapper,
        _placeholders(wrapper, attributes, f"{where}: "),
    )


def _check_flat_fuyu(attributes: Mapping[str, Any], where: str) -> None:
    """Refuse rotary attributes that transformers reads only in a `text_config`."""
    share = attributes.get("partial_rotary_factor", 0.5)
    if share != 0.5 or "rope_parameters" in attributes:
        name = "rope_parameters" if share == 0.5 else f"partial_rotary_factor {share!r}"
        raise InputError(
            f"{where}: {name} is outside of a text_config, where transformers does not read "
            "it; write a text_config"
        )


def _attributes_of(text_type: str) -> frozenset[str]:
    """Return the names of all attributes of a text model that affect the function."""
    defaults = table()[text_type]
    rotary = names_of(text_type, defaults.rope) if defaults.rope else frozenset()
    return (frozenset(defaults.values) | frozenset(defaults.aliases) | rotary) - INERT


def _check_repeated(
    merged: dict[str, Any], text: dict[str, Any], repeated: dict[str, Any], where: str
) -> None:
    """Check that attributes both at the top level and in `text_config` agree."""
    without = {name: value for name, value in merged.items() if name in text or name in SPECIAL_IDS}
    without |= {name: merged[name] for name in ("model_type", "tie_word_embeddings")}
    over = merged | repeated
    if vars(read(without, where).config) != vars(read(over, where).config):
        raise InputError(
            f"{where}: {', '.join(sorted(repeated))} at the top level differ from text_config; "
            "leave them out"
        )


def _placeholders(wrapper: Wrapper, attributes: Mapping[str, Any], where: str) -> dict[int, str]:
    placeholders: dict[int, str] = {}
    for name, default in wrapper.tokens.items():
        ids = attributes.get(name, default)
        if ids is None:
            continue
        is_list = isinstance(default, tuple) and isinstance(ids, list | tuple)
        for id in ids if is_list else [ids]:
            if type(id) is not int or not 0 <= id <= MAX_ID:
                raise InputError(f"{where}{name} is {ids!r}, expected a token id")
            placeholders.setdefault(id, name)
    return placeholders


def text_tensors(folder: Path, tensors: Tensors, wrapper: Wrapper) -> tuple[Tensors, str | None]:
    """Return the text model's tensors under its names, and a description of those left out.

    The description is None if there are none.

    Raises:
        InputError: a tensor is stored under two prefixes.
    """
    names: dict[str, str] = {}
    left_out: dict[str, int] = {}
    for name in tensors.stored:
        tower = re.match(r"(?:model\.)?([^.]+)(?:\.|$)", name)
        if tower and tower[1] in wrapper.towers:
            left_out[tower[1]] = left_out.get(tower[1], 0) + 1
            continue
        new_name = name
        for prefix, replacement in PREFIXES.items():
            if name.startswith(prefix):
                new_name = replacement + name.removeprefix(prefix)
                break
        if new_name in names:
            raise InputError(
                f"{folder}: {name} and {names[new_name]} are the same tensor of the text model"
            )
        names[new_name] = name
    listed = ", ".join(f"{count} of {tower}" for tower, count in sorted(left_out.items()))
    description = f"{sum(left_out.values())} tensors ({listed})" if left_out else None
    return _renamed(tensors, names), description


def _renamed(tensors: Tensors, names: Mapping[str, str]) -> Tensors:
    """Return the tensors under new names; `names` maps each new name to the stored one."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(tensors):
        value = getattr(tensors, field.name)
        present = {new: stored for new, stored in names.items() if stored in value}
        if isinstance(value, frozenset):
            fields[field.name] = frozenset(present)
        else:
            fields[field.name] = _renamed_mapping(value, present)
    return Tensors(**fields)


def _renamed_mapping(values: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    return LazyMapping(names, lambda name: values[names[name]])
