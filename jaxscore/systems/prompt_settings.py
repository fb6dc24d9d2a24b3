"""Settings of prompts: chat template, system prompt and examples, and what reports say of them."""

import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from jaxscore.errors import InputError
from jaxscore.io.printable import is_valid_unicode
from jaxscore.lm import LM, require_local
from jaxscore.systems.prompting import Example, Prompting
from jaxscore.systems.settings import ScoringSettings, check_setting, check_whole_number
from jaxscore.text import chat_template

HALF_PAIR = "has half a surrogate pair, which is no character"

Read = TypeVar("Read")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptSettings(ScoringSettings):
    """Settings of a system whose prompts can be conversations, with a system prompt and examples.

    Attributes:
        apply_chat_template: whether the tokenizer's chat template makes the text.
        system_prompt: text that stands first (--system); None or an empty one is none.
        fewshot: examples as the system's items are, each with its right answer.
        num_fewshot: how many of them, drawn by the seed, stand before each item; None is all, in
            their order.
    """

    apply_chat_template: bool = False
    system_prompt: str | None = None
    fewshot: tuple[Any, ...] = ()
    num_fewshot: int | None = None

    def __post_init__(self) -> None:
        """Check all values; see `ScoringSettings`."""
        super().__post_init__()
        check_setting("apply_chat_template", self.apply_chat_template, (True, False))
        if self.system_prompt is not None and not isinstance(self.system_prompt, str):
            raise InputError(f"setting system_prompt is {self.system_prompt!r}, expected a string")
        if self.system_prompt and not is_valid_unicode(self.system_prompt):
            raise InputError(f"setting system_prompt {HALF_PAIR}")
        given = self.fewshot
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise InputError(
                f"setting fewshot is of type {type(given).__name__}, expected a list of examples"
            )
        object.__setattr__(self, "fewshot", tuple(given))
        if self.num_fewshot is None:
            return
        check_whole_number("num_fewshot", self.num_fewshot, 0)
        if self.num_fewshot > len(self.fewshot):
            raise InputError(
                f"num_fewshot is {self.num_fewshot}, and fewshot holds {len(self.fewshot)} "
                "examples; give more examples, or a smaller number"
            )

    def record(self) -> dict[str, Any]:
        """The settings as a report has them, without those that `facts` has."""
        every = super().record()
        for field in dataclasses.fields(PromptSettings):
            if field.name not in {one.name for one in dataclasses.fields(ScoringSettings)}:
                del every[field.name]
        return every

    def drawn(self, read: Callable[[Any, int, str], Read]) -> list[Read]:
        """The examples that stand before each item, in their order.

        Fewer examples of the same seed are the first ones of more.

        Args:
            read: makes an example of (what was given, its position from 1, what to call it).

        Raises:
            InputError: an example cannot be used, be it drawn or not.
        """
        known = [
            read(one, k, f"few-shot example {k}") for k, one in enumerate(self.fewshot, start=1)
        ]
        return [known[k - 1] for k in self._places()]

    def prompting(
        self, lm: LM, examples: Iterable[Example], *, system: str | None = None
    ) -> Prompting:
        """How the settings make prompts.

        Args:
            lm: its tokenizer has the chat template, if that is applied.
            examples: those that were drawn, as the system writes them.
            system: a system prompt in place of the settings'.

        Raises:
            InputError: an example is no text; the tokenizer's template is missing or takes no
                such conversation.
        """
        examples = tuple(examples)
        for k, one in enumerate(examples, start=1):
            if not is_valid_unicode(one.prompt + one.answer):
                raise InputError(f"few-shot example {k} of those that were drawn {HALF_PAIR}")
        system = system or self.system_prompt or None
        if not self.apply_chat_template:
            return Prompting(None, system, examples)
        tokenizer = require_local("apply_chat_template", lm).encoder.tokenizer
        chat_template.check_keeps(tokenizer, len(examples), system=bool(system))
        start = chat_template.answer_start(tokenizer)
        return Prompting(tokenizer, system, examples, answer_start=start)

    def facts(self, prompting: Prompting, n_left_out: int) -> dict[str, Any]:
        """What a report says of the prompts: only what was asked for.

        Args:
            n_left_out: items that are one of the examples.

        Returns:
            `apply_chat_template` and `chat_template_sha256`; `system_prompt`; `num_fewshot`,
            `fewshot_drawn`, the positions of the examples from 1, and `fewshot_left_out`.
        """
        out: dict[str, Any] = {}
        if prompting.tokenizer is not None:
            digest = chat_template.digest(prompting.tokenizer)
            out |= {"apply_chat_template": True, "chat_template_sha256": digest}
        if self.system_prompt:
            out["system_prompt"] = self.system_prompt
        if prompting.examples:
            out["num_fewshot"] = len(prompting.examples)
            out |= {"fewshot_drawn": self._places(), "fewshot_left_out": n_left_out}
        return out

    def _places(self) -> list[int]:
        """Positions from 1 of the examples in the prompts."""
        places = list(range(1, len(self.fewshot) + 1))
        if self.num_fewshot is None:
            return places
        # Sorted by drawn numbers: Python keeps what a seed draws from version to version. Drawn
        # apart from items that the same seed may draw.
        numbers = random.Random(f"few-shot {self.seed}")
        places.sort(key=lambda _: numbers.random())
        return places[: self.num_fewshot]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerSettings(PromptSettings):
    """`PromptSettings` of a published system that scores answers after a prompt of its own.

    Attributes:
        answer_separator: text between a prompt and its answer, in examples too; scored with the
            answer. None is what the system publishes: nothing (`paths`), a blank (`chronologic`),
            a line end (`probsem`).
    """

    answer_separator: str | None = None

    def __post_init__(self) -> None:
        """Check all values; see `PromptSettings`."""
        super().__post_init__()
        separator = self.answer_separator
        if separator is None:
            return
        if not isinstance(separator, str):
            raise InputError(f"setting answer_separator is {separator!r}, expected a string")
        if not is_valid_unicode(separator):
            raise InputError(f"setting answer_separator {HALF_PAIR}")
        if self.apply_chat_template:
            raise InputError(
                "answer_separator and apply_chat_template: in a conversation the template writes "
                "what stands between a prompt and its answer; give one of the two"
            )

    def why_no_blanks(self) -> str:
        """Why no sample of answers is scored with a blank before them; empty if one is."""
        if self.answer_separator is not None:
            return "answer_separator is given"
        if self.apply_chat_template:
            return "the chat template writes what stands before an answer"
        return ""


def remarks(n_left_out: int) -> list[str]:
    """That some items are examples themselves."""
    if not n_left_out:
        return []
    return [
        f"fewshot: items that are one of the examples, and are scored after the others alone: "
        f"{n_left_out}"
    ]
