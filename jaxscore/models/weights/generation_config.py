"""`generation_config.json`: EOS ids and sampling defaults of a checkpoint."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.models.weights.folder import config_path, read_json

FILE = "generation_config.json"
MAX_ID = (1 << 31) - 1  # largest token id
MAX_REAL = 1e30  # below the largest float32


@dataclasses.dataclass(frozen=True)
class GenerationDefaults:
    """Sampling defaults of a checkpoint, as transformers' `generate` would apply them.

    jaxscore only reports them: a `GenerationRequest` has all its settings.

    Attributes:
        do_sample: if True, sample instead of greedy decoding. The values below only apply to
            sampling, except for `repetition_penalty`.
        temperature, top_k, top_p: the parameters of sampling; a top_k of 0 keeps all tokens.
        repetition_penalty: the penalty of greedy and sampled text.
        unhandled: entries by name that change the text and that jaxscore does not support.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    unhandled: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def unhandled_greedy(self) -> dict[str, Any]:
        """Entries of `unhandled` that also change greedy text."""
        return {name: value for name, value in self.unhandled.items() if name not in SAMPLING}


def _number(value: Any) -> bool:
    return type(value) in (int, float) and -MAX_REAL < value < MAX_REAL


# Entries that a `GenerationRequest` has, with a check of the values that it accepts
COMPUTED: dict[str, Callable[[Any], bool]] = {
    "do_sample": lambda value: type(value) is bool,
    "temperature": lambda value: _number(value) and value > 0,
    "top_k": lambda value: type(value) is int and value >= 0,
    "top_p": lambda value: _number(value) and 0 < value <= 1,
    "repetition_penalty": lambda value: _number(value) and value > 0,
}

# Entries for sampled text, and other entries for any text -> values other than None without effect
SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (),
    "top_k": (),
    "top_p": (),
    "min_p": (0,),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
}
ANY_TEXT: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "max_time": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "sequence_bias": ({}, []),
    "stop_strings": ([], ""),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "watermarking_config": (),
}


def read_generation_config(
    folder: Path, config: Mapping[str, Any]
) -> tuple[tuple[int, ...], GenerationDefaults]:
    """Read the EOS ids and sampling defaults of a checkpoint.

    Each is from `generation_config.json` if that has it, otherwise from the config.

    Args:
        config: the text model's config.

    Raises:
        InputError: the file is not a JSON object, or an `eos_token_id` is not an id or a list of
            ids.
    """
    path = folder / FILE
    written = read_json(path) if path.exists() else None
    if not isinstance(written, dict | None):
        raise InputError(f"{path}: expected an object, found {type(written).__name__}")
    if written is None or "eos_token_id" not in written:
        ends = _eos_ids(config, config_path(folder))
    else:
        ends = _eos_ids(written, path)
    return ends, _defaults(config if written is None else written)


def _eos_ids(config: Mapping[str, Any], where: Path) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(id) is int and 0 <= id <= MAX_ID for id in ids):
        raise InputError(
            f"{where}: eos_token_id is {value!r}, expected a token id or a list of them"
        )
    return tuple(ids)


def _defaults(config: Mapping[str, Any]) -> GenerationDefaults:
    entries = {name: value for name, value in config.items() if value is not None}
    values = {name: entries[name] for name in COMPUTED if name in entries}
    valid = {name: value for name, value in values.items() if COMPUTED[name](value)}
    neutral = SAMPLING | ANY_TEXT
    unhandled = {
        name: value
        for name, value in entries.items()
        if (name in neutral and name not in COMPUTED and value not in neutral[name])
        or (name in values and name not in valid)
    }
    return GenerationDefaults(**valid, unhandled=unhandled)
