"""Settings of `chronologic`, and which of them contradict each other."""

import dataclasses
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.chronologic.answer_scores import BOUNDARIES
from jaxscore.systems.prompt_settings import AnswerSettings
from jaxscore.systems.settings import IntervalSettings, check_setting, check_whole_number

MODES = ("sample", "full", "mcq")
# setting -> the modes that it has an effect in; the others have one in each
EFFECTIVE = {
    "samples": ("sample",),
    "boundary": ("sample", "full"),
    "calibrate": ("sample", "full"),
    "truncate": ("sample", "full"),
    "answer_separator": ("sample", "full"),
    "include_negation": ("mcq",),
    "shuffle": ("mcq",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(AnswerSettings, IntervalSettings):
    """Settings of `chronologic`.

    Attributes:
        mode: "sample" scores the answers of a few questions drawn by the seed, "full" those of
            every question; "mcq" lets the model write the letter of an answer.
        samples: questions drawn in the mode "sample".
        metadata: whether the metadata frame stands in the prompts.
        include_negation: whether "mcq" keeps the options of type negation.
        shuffle: whether "mcq" shuffles the options by the seed.
        calibrate: whether to fit a softmax temperature on half of the questions and show what it
            does on the others.
        boundary: "joint", "separate" or "upstream": where an answer starts.
    """

    boundaries = BOUNDARIES
    mode: str = "sample"
    samples: int = 5
    metadata: bool = True
    include_negation: bool = False
    shuffle: bool = True
    calibrate: bool = False
    boundary: str = "joint"

    def __post_init__(self) -> None:
        """Check all values and what contradicts; see `IntervalSettings`."""
        super().__post_init__()
        check_setting("mode", self.mode, MODES)
        check_setting("boundary", self.boundary, tuple(BOUNDARIES))
        check_whole_number("samples", self.samples, 1)
        for name in ("metadata", "include_negation", "shuffle", "calibrate"):
            check_setting(name, getattr(self, name), (True, False))
        if self.mode == "mcq" and self.calibrate:
            raise InputError(
                "calibrate scales the scores of answers, which mode mcq does not take; give mode "
                "full (--full-eval)"
            )
        if self.mode == "mcq" and self.truncate is not None:
            raise InputError("truncate: mode mcq shows its prompts whole; leave truncate out")

    def unused(self) -> list[str]:
        """Remarks on settings that differ from their defaults and have no effect in the mode."""
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        return [
            f"setting {name}: of no effect in mode {self.mode}, only in {' and '.join(modes)}"
            for name, modes in EFFECTIVE.items()
            if self.mode not in modes and getattr(self, name) != usual[name]
        ]

    def record(self) -> dict[str, Any]:
        """The settings that have an effect in the mode, as a report has them."""
        every = super().record()
        return {k: v for k, v in every.items() if self.mode in EFFECTIVE.get(k, MODES)}
