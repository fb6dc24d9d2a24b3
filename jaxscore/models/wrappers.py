"""Checkpoints that hold a text model beside others: which attributes and tensors are the text's.

A wrapper's config has the text model's under `text_config`, and its tensors under a prefix. Towers
for images, videos and sound are left out, so that a text must not hold the tokens that stand for
what they see and hear.
"""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.models.config.check import INERT, check_attributes, check_sizes
from jaxscore.models.config.defaults import table
from jaxscore.models.config.reading import read
from jaxscore.models.config.rope_parameters import names_of
from jaxscore.models.weights.checkpoint import LARGEST, Tensors

# Prefixes of the text's tensors, in released files and in transformers' own, and ours for them
PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
HEAD = "lm_head.weight"
# Text models that are those of another family under a name of their own
FAMILY_OF = {"qwen2_5_vl_text": "qwen2", "qwen2_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
OF_ENDS = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})


@dataclasses.dataclass(frozen=True)
class Wrapper:
    """What one kind of wrapper has.

    Attributes:
        texts: model types of the text; the first is that of a `text_config` that names none.
        towers: first parts of the names of tensors that are left out.
        tokens: attributes with the ids of tokens that stand for no text, and their defaults;
            None where the class has none.
        knows: attributes about the towers, which decide nothing for a text.
        aliases: other names of attributes.
        flat: the text's attributes may stand at the top, without a `text_config`.
    """

    texts: tuple[str, ...]
    towers: frozenset[str]
    tokens: Mapping[str, int | None]
    knows: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flat: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


INDICES = {
    "boi_token_id": "boi_token_index",
    "eoi_token_id": "eoi_token_index",
    "image_token_id": "image_token_index",
}
PROJECTED = _names("vision_tower multi_modal_projector")
QWEN: dict[str, int | None] = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
    "vision_token_id": None,
}
WRAPPERS: dict[str, Wrapper] = {
    "gemma3": Wrapper(
        ("gemma3_text",),
        PROJECTED,
        {"boi_token_index": 255999, "eoi_token_index": 256000, "image_token_index": 262144},
        _names("mm_tokens_per_image"),
        INDICES,
    ),
    "gemma4": Wrapper(
        ("gemma4_text",),
        _names("vision_tower audio_tower embed_vision embed_audio"),
        {
            "audio_token_id": 258881,
            "boa_token_id": 256000,
            "boi_token_id": 255999,
            "eoa_token_index": 258883,
            "eoi_token_id": 258882,
            "image_token_id": 258880,
            "video_token_id": 258884,
        },
        _names("vision_soft_tokens_per_image audio_ms_per_token"),
        {"eoa_token_id": "eoa_token_index"},
    ),
    "llama4": Wrapper(
        ("llama4_text",),
        _names("vision_model multi_modal_projector"),
        {"boi_token_index": 200080, "eoi_token_index": 200081, "image_token_index": 200092},
        aliases=INDICES,
    ),
    "mistral3": Wrapper(
        ("mistral", "ministral3"),
        PROJECTED,
        {"image_token_index": 10},
        _names(
            "multimodal_projector_bias projector_hidden_act spatial_merge_size vision_feature_layer"
        ),
        INDICES,
    ),
    "qwen2_5_vl": Wrapper(("qwen2_5_vl_text",), _names("visual"), QWEN, flat=True),
    "qwen2_vl": Wrapper(("qwen2_vl_text",), _names("visual"), QWEN, flat=True),
    "qwen3_vl": Wrapper(("qwen3_vl_text",), _names("visual"), QWEN),
}


def around(families: Collection[str]) -> Iterator[str]:
    """The wrappers that can hold a text model of one of these families."""
    for kind, wrapper in WRAPPERS.items():
        if any(FAMILY_OF.get(text, text) in families for text in wrapper.texts):
            yield kind


@dataclasses.dataclass(frozen=True)
class Text:
    """The text model of a config.

    Attributes:
        raw: its own config; without a wrapper the config itself.
        family: its model type among the families.
        wrapper: what it is in, or None.
        placeholders: ids of tokens that stand for no text -> the attribute that says so.
    """

    raw: dict[str, Any]
    family: str
    wrapper: Wrapper | None = None
    placeholders: Mapping[int, str] = dataclasses.field(default_factory=dict)


def text_of(raw: dict[str, Any], where: str, *, tied: bool | None = None) -> Text:
    """The text model of a raw `config.json`.

    Args:
        where: names the file in errors.
        tied: whether the text's unembedding is its embedding, as the weights have it, which
            transformers' versions write into a wrapper's config in contradictory ways. None takes
            what the config says.

    Raises:
        InputError: an attribute of the wrapper that is not handled, or a text model that it does
            not have.
    """
    kind = raw["model_type"]
    wrapper = WRAPPERS.get(kind)
    if wrapper is None:
        return Text(raw, kind)
    check_sizes(raw, where)
    given: dict[str, Any] = {}
    for name, value in raw.items():
        if given.setdefault(name_of := wrapper.aliases.get(name, name), value) != value:
            raise InputError(f"{where}: {name} and {name_of} differ, which are one; leave one out")
    text = given.pop("text_config", None)
    if text is None and wrapper.flat:
        text = {}
    elif not isinstance(text, dict):
        raise InputError(
            f"{where}: model_type {kind!r} has text_config {str(text)[:60]}, expected an object"
        )
    own = text.get("model_type", wrapper.texts[0])
    own = wrapper.texts[0] if own == kind else own
    if own not in wrapper.texts:
        raise InputError(
            f"{where}: text_config has model_type {own!r}, which is not handled in a {kind!r}; "
            f"handled are {', '.join(wrapper.texts)}"
        )
    given.pop("vision_config", None)
    given.pop("audio_config", None)
    names = _attributes_of(own)
    repeated = {name: given.pop(name) for name in names & set(given)}
    check_attributes(given, {}, wrapper.knows | set(wrapper.tokens), where, kind)
    said = (tied, repeated.pop("tie_word_embeddings", None), text.get("tie_word_embeddings"))
    merged = {name: given[name] for name in OF_ENDS & set(given)} | repeated | text
    merged["model_type"] = own
    default = table()[own].values["tie_word_embeddings"]
    merged["tie_word_embeddings"] = next((one for one in said if one is not None), default)
    if text and repeated:
        _check_repeated(merged, text, repeated, where)
    return Text(
        merged, FAMILY_OF.get(own, own), wrapper, _placeholders(wrapper, given, f"{where}: ")
    )


def _attributes_of(kind: str) -> frozenset[str]:
    """All names of attributes of a text model that decide something."""
    defaults = table()[kind]
    rotary = names_of(kind, defaults.rope) if defaults.rope else frozenset()
    return (frozenset(defaults.values) | frozenset(defaults.aliases) | rotary) - INERT


def _check_repeated(
    merged: dict[str, Any], text: dict[str, Any], repeated: dict[str, Any], where: str
) -> None:
    """What stands at the top beside a `text_config`, too, must say the same."""
    without = {name: value for name, value in merged.items() if name in text or name in OF_ENDS}
    without |= {name: merged[name] for name in ("model_type", "tie_word_embeddings")}
    over = merged | repeated
    if vars(read(without, where).config) != vars(read(over, where).config):
        raise InputError(
            f"{where}: {', '.join(sorted(repeated))} stand beside text_config and differ from it; "
            "leave them out"
        )


def _placeholders(wrapper: Wrapper, given: Mapping[str, Any], where: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for name, default in wrapper.tokens.items():
        id = given.get(name, default)
        if id is None:
            continue
        if type(id) is not int or not 0 <= id <= LARGEST:
            raise InputError(f"{where}{name} is {id!r}, expected a token id")
        found.setdefault(id, name)
    return found


def text_tensors(folder: Path, tensors: Tensors, wrapper: Wrapper) -> tuple[Tensors, str | None]:
    """The text's tensors under the names of a text model alone, and what is left out, for people.

    Raises:
        InputError: a tensor that is there under two prefixes.
    """
    names: dict[str, str] = {}
    left: dict[str, int] = {}
    for name in tensors.stored:
        tower = re.match(r"(?:model\.)?([^.]+)\.", name)
        if tower and tower[1] in wrapper.towers:
            left[tower[1]] = left.get(tower[1], 0) + 1
            continue
        own = name
        for prefix, ours in PREFIXES.items():
            if name.startswith(prefix):
                own = ours + name.removeprefix(prefix)
                break
        if own in names:
            raise InputError(f"{folder}: {name} and {names[own]} are the same tensor of the text")
        names[own] = name
    told = ", ".join(f"{count} of {tower}" for tower, count in sorted(left.items()))
    return _renamed(tensors, names), f"{sum(left.values())} tensors ({told})" if left else None


def _renamed(tensors: Tensors, names: Mapping[str, str]) -> Tensors:
    """The tensors of `names`, own name -> stored name; every field goes by names."""
    own: dict[str, Any] = {}
    for field in dataclasses.fields(tensors):
        held = getattr(tensors, field.name)
        some = {new: old for new, old in names.items() if old in held}
        own[field.name] = frozenset(some) if isinstance(held, frozenset) else _Renamed(held, some)
    return Tensors(**own)


class _Renamed(Mapping[str, Any]):
    """A mapping under other keys; values are looked up when they are asked for."""

    def __init__(self, held: Mapping[str, Any], names: Mapping[str, str]) -> None:
        self._held, self._names = held, names

    def __getitem__(self, name: str) -> Any:
        return self._held[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
