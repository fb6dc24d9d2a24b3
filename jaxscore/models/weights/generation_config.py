"""What a checkpoint's `generation_config.json` says of how its text is chosen."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxscore.models.weights.checkpoint import generation_config

MOST = 1e30  # of a number; beyond it the device's float32 has none


@dataclasses.dataclass(frozen=True)
class GenerationDefaults:
    """How transformers' `generate` chooses a checkpoint's tokens where its caller says nothing.

    None of it is applied here: a `GenerationRequest` says what it wants.

    Attributes:
        do_sample: whether tokens are drawn; the values below but `repetition_penalty` then count.
        temperature, top_k, top_p: of the draws; a top_k of 0 is all tokens.
        repetition_penalty: of greedy and of drawn text.
        unhandled: entries that change a text and that jaxscore does not compute, by name.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    unhandled: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def unhandled_greedy(self) -> dict[str, Any]:
        """Those of `unhandled` that change greedy text too."""
        return {name: value for name, value in self.unhandled.items() if name not in OF_DRAWS}


def _number(value: Any) -> bool:
    return type(value) in (int, float) and -MOST < value < MOST


# Of the entries that a `GenerationRequest` has, which values it can have.
COMPUTED: dict[str, Callable[[Any], bool]] = {
    "do_sample": lambda value: type(value) is bool,
    "temperature": lambda value: _number(value) and value > 0,
    "top_k": lambda value: type(value) is int and value >= 0,
    "top_p": lambda value: _number(value) and 0 < value <= 1,
    "repetition_penalty": lambda value: _number(value) and value > 0,
}

# Other entries of drawn text, and of all text -> the values that change nothing, beside None.
OF_DRAWS: dict[str, tuple[Any, ...]] = {
    "temperature": (),
    "top_k": (),
    "top_p": (),
    "min_p": (0,),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
}
OF_ALL: dict[str, tuple[Any, ...]] = {
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


def read(folder: Path, config: Mapping[str, Any]) -> GenerationDefaults:
    """The defaults of a checkpoint: its file's, else those that its config has, as old ones do.

    Args:
        config: the text model's.

    Raises:
        InputError: the file is no JSON object.
    """
    written = generation_config(folder)
    given = config if written is None else written
    given = {name: value for name, value in given.items() if value is not None}
    values = {name: given[name] for name in COMPUTED if name in given}
    sound = {name: value for name, value in values.items() if COMPUTED[name](value)}
    neutral = OF_DRAWS | OF_ALL
    unhandled = {
        name: value
        for name, value in given.items()
        if (name in neutral and name not in COMPUTED and value not in neutral[name])
        or (name in values and name not in sound)
    }
    return GenerationDefaults(**sound, unhandled=unhandled)
