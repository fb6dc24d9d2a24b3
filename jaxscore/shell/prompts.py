"""Prompts: system prompt, examples with answers, the item's prompt; their settings and reports.

    plain text                      a conversation, by the tokenizer's chat template
    {system}                        system     {system}
    (empty line)                    user       {example's prompt}
    {example's prompt}{answer}      assistant  {answer}
    (empty line)                    user       {prompt}
    {prompt}                        assistant  (the continuation follows)

In a conversation, spaces at the end of a prompt and at the start of a continuation or an answer
are left out: in plain text they join the two, and here a header is between them. If the template
itself writes a space before an answer, the continuation begins with it.
"""

import dataclasses
import random
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.io.items import Row
from jaxscore.io.json_input import MOST_SETTINGS, read_jsonl, read_text
from jaxscore.lm import LM, Capabilities, require_local
from jaxscore.shell.flags import HALF_PAIR, file_flag, flag
from jaxscore.shell.settings import ScoringSettings
from jaxscore.text import chat_template
from jaxscore.text.encoder import Boundary
from jaxscore.text.whole_words import NEVER_SPACED

NO_LAYOUTS = "audit_noise: an endpoint's layouts are its own; take a local model, or leave it out"
GROUP = "prompts"
SEPARATOR = "\n\n"
# White space, and characters of scripts without spaces, with their punctuation
NEEDS_NO_SPACE = re.compile(rf"[\s\u3000-\u30ff\uff00-\uffef]|{NEVER_SPACED.pattern}")
BLANK = (
    "its context is blank, so the empty line after system prompt and examples would count to its "
    "continuation; give it a context, or take boundary separate, or apply the chat template"
)
OWN_EXAMPLES = (
    "fewshot: items that are one of the examples, and are scored after the others alone: {n}"
)


class ExampleItem:
    """Base of an item's type if not every item can be a few-shot example."""

    def check_example(self) -> None:
        """Check that prompts can show the item with its right answer.

        Raises:
            InputError: they cannot.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Example:
    """A prompt with its right answer, both written as an item's prompt and continuation are.

    Attributes:
        key: an item with this key is the example itself, and does not see it.
    """

    prompt: str
    answer: str
    key: Hashable


@dataclasses.dataclass(frozen=True)
class Prompting:
    """The way from the prompts of items to the contexts that a model reads.

    Attributes:
        tokenizer: its chat template makes the text; None is plain text.
        system: the system prompt; None is none, and so is an empty one in a conversation.
        examples: before the prompt, in this order.
        system_end: text after the system prompt in plain text.
        opening: text before the first example's prompt, or before the prompt without examples.
        answer_start: text with which a continuation begins in a conversation, see
            `chat_template.answer_start`.
    """

    tokenizer: Any = None
    system: str | None = None
    examples: tuple[Example, ...] = ()
    system_end: str = SEPARATOR
    opening: str = ""
    answer_start: str = ""

    def context_of(self, prompt: str, key: Hashable = None) -> str:
        """The text before the continuation.

        Args:
            key: the item's key, see `Example`.

        Raises:
            InputError: the template refuses the messages, or leaves out text of them.
        """
        shown = [example for example in self.examples if example.key != key]
        prompts = [*(example.prompt for example in shown), prompt]
        prompts[0] = self.opening + prompts[0]
        answers = [example.answer for example in shown]
        if self.tokenizer is None:
            start = "" if self.system is None else self.system + self.system_end
            pairs = zip(prompts, [*answers, ""], strict=True)
            return start + SEPARATOR.join(text + answer for text, answer in pairs)
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for text, answer in zip(prompts, answers, strict=False):
            messages.append({"role": "user", "content": text.rstrip()})
            messages.append({"role": "assistant", "content": answer.lstrip(" ")})
        messages.append({"role": "user", "content": prompts[-1].rstrip()})
        return chat_template.render(self.tokenizer, messages)

    def check_blank(self, context: str, policy: str) -> None:
        """Refuse a blank context after other text if a newline would count to the continuation.

        Raises:
            InputError: see `BLANK`.
        """
        if self != PLAIN and policy == "joint" and not context.strip():
            raise InputError(BLANK)

    def continuation_of(self, continuation: str) -> str:
        """The text that is scored after `context_of`; one of spaces alone stays as it is."""
        bare = continuation.lstrip(" ")
        if self.tokenizer is None or not bare:
            return continuation
        return self.answer_start + bare

    def policies(self, boundaries: Mapping[str, Boundary]) -> dict[str, Boundary]:
        """A system's boundaries; in a conversation `joint` is `exact`.

        The header before an answer often ends in a newline, which `joint` would count to the
        continuation as it does with other spaces at the end of a context.
        """
        if self.tokenizer is None:
            return dict(boundaries)
        return {
            name: "exact" if policy == "joint" else policy for name, policy in boundaries.items()
        }

    @property
    def special_tokens(self) -> bool:
        """True if the tokenizer's BOS is added to the contexts; a template writes its own."""
        return self.tokenizer is None

    def n_left_out(self, keys: Iterable[Hashable]) -> int:
        """Count the items that are one of the examples, and so do not see it."""
        shown = {example.key for example in self.examples}
        return sum(key in shown for key in keys)


PLAIN = Prompting()  # prompts as they are


def note_answer_start(lm: Any, tokenizer: Any) -> None:
    """Note in an audited model if the text after a prompt is reasoning, not an answer.

    Raises:
        InputError: a variable of the template changes that; the message names it.
    """
    if not chat_template.check_answer_start(tokenizer):
        lm.counts["in_reasoning"] += 1


def read_system_prompt(path: Path) -> str:
    """A system prompt from a text file, without newlines at its end.

    Raises:
        InputError: the file cannot be read, or is empty.
    """
    text = read_text(path, "a system prompt in UTF-8", MOST_SETTINGS).rstrip("\n")
    if not text.strip():
        raise InputError(f"{path}: the file is empty, expected a system prompt")
    return text


def read_example_rows(path: Path) -> list[Row]:
    """Examples of a file of JSONL, each with its place.

    Raises:
        InputError: the file cannot be read, or holds nothing.
    """
    return [Row(number, f"{path}:{number}", value) for number, value in read_jsonl(path)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptSettings(ScoringSettings):
    """Settings of a system whose prompts can be conversations, with a system prompt and examples.

    Its model may be an endpoint.

    Attributes:
        fewshot: examples as the system's items are, each with its right answer.
    """

    apply_chat_template: bool = flag(
        False,
        help="make each prompt a conversation by the tokenizer's chat template; the continuation "
        "is scored as the start of the assistant's turn. Special tokens are the template's alone: "
        "no BOS is added",
        group=GROUP,
    )
    system_prompt: str | None = flag(
        None,
        name="system",
        metavar="TEXT",
        help="system prompt before each prompt",
        group=GROUP,
        also=(
            file_flag(
                "--system-file",
                read_system_prompt,
                "the same from a text file, without newlines at its end",
                is_advanced=True,
            ),
        ),
    )
    fewshot: tuple[Any, ...] = flag(
        (),
        is_flag=False,
        group=GROUP,
        also=(
            file_flag(
                "--fewshot",
                read_example_rows,
                "JSONL of examples before each prompt: lines of the input's form, shown with "
                "their right answer; an item that is an example does not see it",
            ),
        ),
    )
    num_fewshot: int | None = flag(
        None,
        least=0,
        metavar="N",
        help="how many of the examples, drawn by --seed, the same for all items (default: all, in "
        "the file's order)",
        group=GROUP,
    )

    def __post_init__(self) -> None:
        """Check all values; see `ScoringSettings`."""
        super().__post_init__()
        n = len(self.fewshot)
        if self.num_fewshot is not None and self.num_fewshot > n:
            raise InputError(
                f"num_fewshot is {self.num_fewshot}, and fewshot holds {n} examples; give more "
                "examples, or a smaller number"
            )

    def record(self) -> dict[str, Any]:
        """The settings as a report has them, without those that `facts` has."""
        values = super().record()
        return {k: v for k, v in values.items() if k not in PromptSettings.__annotations__}

    def policies(self) -> dict[str, str]:
        """See `ScoringSettings.policies`; in a conversation `joint` is `exact`, see `Prompting`."""
        boundaries = super().policies()
        if not self.apply_chat_template:
            return boundaries
        return {
            name: "exact" if policy == "joint" else policy for name, policy in boundaries.items()
        }

    def options(self) -> dict[str, Any]:
        """Arguments of `LM.score` and `LM.stream`; a template writes its own special tokens."""
        return {**super().options(), "special_tokens": not self.apply_chat_template}

    def note(self, lm: Any, prompting: Prompting, keys: Iterable[Hashable]) -> None:
        """Note in an audited model what the prompts are made of.

        Args:
            keys: keys of the items, see `Example`.
        """
        lm.about.update(self.facts(prompting, None))
        if n := prompting.n_left_out(keys):
            lm.warnings[OWN_EXAMPLES] += n

    def check_model(self, can: Capabilities) -> None:
        """Refuse settings that a model cannot do.

        Raises:
            InputError: naming the setting.
        """
        if self.apply_chat_template and not can.is_local:
            raise InputError(
                "apply_chat_template: the template is part of a tokenizer, and an endpoint shows "
                "none; take a local model"
            )
        if self.audit_noise and not can.has_other_layouts:
            raise InputError(NO_LAYOUTS)
        boundary = self.record().get("boundary")  # none if no continuation is scored
        if boundary is not None and self.boundaries[boundary] not in can.boundaries:
            others = " or ".join(
                name for name, policy in self.boundaries.items() if policy in can.boundaries
            )
            raise InputError(
                f"boundary {boundary}: an endpoint encodes context and answer as one text; give "
                f"{others}, or take a local model"
            )
        if self.truncate is not None and not can.truncates:
            raise InputError("truncate: an endpoint takes texts as they are; take a local model")

    def with_examples(self, read: Callable[[Any, int, str], Any]) -> Self:
        """The same settings with each example read.

        Args:
            read: makes an example of (value, its position from 1, what to call it).

        Raises:
            InputError: an example cannot be used, be it drawn or not.
        """
        rows = [
            value if isinstance(value, Row) else Row(k, f"few-shot example {k}", value)
            for k, value in enumerate(self.fewshot, start=1)
        ]
        examples = tuple(read(row.item, row.number, row.where) for row in rows)
        return dataclasses.replace(self, fewshot=examples)

    def drawn(self) -> list[Any]:
        """The examples before each item, in their order.

        Fewer examples of the same seed are the first ones of more.
        """
        return [self.fewshot[k - 1] for k in self._places()]

    def prompting(
        self, lm: LM, examples: Iterable[Example], *, system: str | None = None
    ) -> Prompting:
        """Return the prompting that the settings describe.

        Args:
            lm: its tokenizer has the chat template, if that is applied.
            examples: those that were drawn, as the system writes them.
            system: a system prompt in place of the settings'.

        Raises:
            InputError: an example is not a text; the tokenizer's template is missing or takes no
                such conversation.
        """
        examples = tuple(examples)
        for k, example in enumerate(examples, start=1):
            if not is_valid_unicode(example.prompt + example.answer):
                raise InputError(f"few-shot example {k} of those that were drawn {HALF_PAIR}")
        system = system or self.system_prompt or None
        if not self.apply_chat_template:
            return Prompting(None, system, examples)
        tokenizer = require_local("apply_chat_template", lm).encoder.tokenizer
        start = chat_template.answer_start(tokenizer)
        prompting = Prompting(tokenizer, system, examples, answer_start=start)
        prompting.context_of("probe", key=object())  # fails before the first item, and for all
        return prompting

    def facts(self, prompting: Prompting, n_left_out: int | None) -> dict[str, Any]:
        """Return the facts of the prompts for a report: only what was requested.

        Args:
            n_left_out: items that are one of the examples; None leaves it out.

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
            out["fewshot_drawn"] = self._places()
            if n_left_out is not None:
                out["fewshot_left_out"] = n_left_out
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
    """`PromptSettings` of a published system that scores answers after its own prompt."""

    answer_separator: str | None = flag(
        None,
        metavar="TEXT",
        help="text between a prompt and its answer, in examples too, scored with the answer "
        "(default: as published: in paths nothing, in chronologic a space, in probsem a newline)",
    )

    def __post_init__(self) -> None:
        """Check all values; see `PromptSettings`."""
        super().__post_init__()
        if self.answer_separator is not None and self.apply_chat_template:
            raise InputError(
                "answer_separator and apply_chat_template: in a conversation the template writes "
                "what stands between a prompt and its answer; give one of the two"
            )

    def note(self, lm: Any, prompting: Prompting, keys: Iterable[Hashable]) -> None:
        """See `PromptSettings.note`; also that an answer can start after a prompt."""
        super().note(lm, prompting, keys)
        if prompting.tokenizer is not None:
            note_answer_start(lm, prompting.tokenizer)

    def variants(self) -> dict[str, dict[str, Self]]:
        """Also with a space before the answers, unless something else stands there."""
        if self.answer_separator is not None or self.apply_chat_template:
            return super().variants()
        with_blank = {"with_blank": dataclasses.replace(self, answer_separator=" ")}
        return {**super().variants(), "blank": with_blank}


def lacks_space(context: str, continuation: str) -> bool:
    """Return True if no white space separates two texts of languages that have spaces."""
    joint = context[-1:] + continuation[:1]
    return len(joint) == 2 and not NEEDS_NO_SPACE.search(joint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointSettings(AnswerSettings):
    """`AnswerSettings` of a system whose items have a context and continuations.

    A run counts the requests without a space between the two.
    """

    answer_separator: str | None = flag(
        None,
        metavar="TEXT",
        help="text in place of the spaces between a context and its continuation, in examples too, "
        "scored with the continuation (default: the spaces of the input)",
    )

    def joined(self, context: str, continuation: str) -> tuple[str, str]:
        """Return both texts with the separator; without context nothing needs to be separated."""
        bare = continuation.lstrip(" ")
        if self.answer_separator is None or not context.strip() or not bare:
            return context, continuation
        return context.rstrip(" "), self.answer_separator + bare
