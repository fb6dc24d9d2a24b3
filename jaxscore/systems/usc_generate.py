"""`usc-generate`: ask a model which of its responses agrees most with the others.

Universal self-consistency (Chen et al., arXiv 2311.17311), with the prompt that the
self-certainty paper prints (arXiv 2502.18581, appendix). `usc-select` reads the reply.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from jaxscore.errors import InputError
from jaxscore.io.items import named
from jaxscore.io.json_input import json_kind
from jaxscore.shell.flags import flag
from jaxscore.shell.items import Entry
from jaxscore.shell.system import Layout, LenientSystem, Summary
from jaxscore.systems.drawn_tokens import without_ids
from jaxscore.systems.generations import GeneratingSystem, GenerationSettings, Prompt, Texts
from jaxscore.text import chat_template
from jaxscore.types.results import Generated

CUT = "{n} replies were cut at the limit"
INSTRUCTION = """\
Evaluate these responses.
Select the most consistent response based on majority consensus.
Format your answer as "The most consistent response is Response X" (without quotes).
"""
# The headings around the question in ZeroEval's prompts: the code template, the open-ended one.
# The first contains the second's start, so the order matters.
QUESTION_BETWEEN = (("### Question:", "### Format:"), ("## Question:", "## Instruction"))


class Item(TypedDict, total=False):
    """A question with responses to choose from."""

    id: str | int
    chat_history: list[str]
    model_input: str
    input: str
    output: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(GenerationSettings):
    """Settings of `usc-generate`."""

    n: int = flag(
        dataclasses.MISSING,
        "--best-N",
        least=1,
        metavar="N",
        help="choose between the first N responses; an item with fewer has all of them displayed",
    )
    temperature: float = flag(0.0, help="0 is greedy (default), above it draws")


class Record(TypedDict, total=False):
    """Result of an item; `output` is the reply, `responses` are from the prompt."""

    session_id: str | int
    chat_history: list[str]
    model_input: str
    output: list[str]
    prompt_token_ids: list[int]
    token_ids: list[list[int] | None]
    generator: str
    configs: dict[str, Any]
    responses: list[str]
    error: str


def read_question(fields: Mapping[str, Any]) -> str:
    """Return the question that the responses answer.

    It is the first message of `chat_history`, else `model_input` or `input`: the part between the
    headings of the published prompts if the text has them, else all of it. (The published script
    knows only the code prompt's headings, and takes an empty question without them.)

    Raises:
        InputError: the item lacks all three.
    """
    history = fields.get("chat_history")
    for text in (
        history[0] if isinstance(history, list) and history else None,
        fields.get("model_input"),
        fields.get("input"),
    ):
        if isinstance(text, str):
            return _between_headings(text)
    names = ", ".join(map(repr, fields)) or "none"
    raise InputError(
        'no question: expected "chat_history", a list that begins with a string, or a string '
        f'"model_input" or "input"; there are {names}'
    )


def _between_headings(text: str) -> str:
    for start, end in QUESTION_BETWEEN:
        _, heading, rest = text.partition(start)
        if heading:
            return rest.partition(end)[0].strip()
    return text


def read_responses(fields: Mapping[str, Any], n: int) -> list[str]:
    """Return the first n responses of an item.

    Raises:
        InputError: there are none, or one of them is not text.
    """
    if "output" not in fields:
        names = ", ".join(map(repr, fields)) or "none"
        raise InputError(f'no field "output", expected a list of strings; there are {names}')
    texts = fields["output"]
    if not isinstance(texts, list):
        raise InputError(f'field "output" is {json_kind(texts)}, expected a list of strings')
    if not texts:
        raise InputError('field "output" is empty, expected at least one response')
    for k, response in enumerate(texts[:n]):
        if not isinstance(response, str):
            raise InputError(
                f'field "output", response {k}: found {json_kind(response)}, expected a string'
            )
    return texts[:n]


def render_prompt(question: str, responses: Sequence[str]) -> str:
    """Return the question, the responses numbered from 0, and the instruction."""
    listed = "".join(f"Response {k}: {text}\n\n" for k, text in enumerate(responses))
    return (
        f"I have generated the following responses to the question: {question}\n"
        f"{listed}{INSTRUCTION}"
    )


class UscGenerate(LenientSystem, GeneratingSystem):
    """Show a model several of its responses to a question and ask which is the most
    consistent (universal self-consistency, arXiv 2311.17311).

    input, a .json array, or a table (see --input) with these columns:
      [{"chat_history": ["How many days?"],
        "output": ["first response", "second", "third"]}]
      The question is the first text of `chat_history`, else `model_input` or
      `input`; of a published prompt only the part between its headings.

    prompt, in the model's chat template (no other special token, such as a BOS, is
    added):
      I have generated the following responses to the question: How many days?
      Response 0: first response

      Response 1: second

      Evaluate these responses.
      Select the most consistent response based on majority consensus.
      Format your answer as "The most consistent response is Response X" (without
      quotes).
      (The last two lines are one line of the prompt.)

    output, the same items with
      output        the reply, in a list
      responses     the first N of the item's `output`
      chat_history  the prompt, in a list
      model_input   the prompt as the model reads it
      prompt_token_ids, token_ids
                    the ids of model_input, and of the reply as they were drawn
      generator     the model
      configs       what it generated with
      Next to OUT is OUT.run.json: how it was made, and how many items failed.

    The same command continues an interrupted run from its journal, and an output of
    fewer items.

      python -m jaxscore usc-generate --input samples.json --model NAME -n 8
      python -m jaxscore usc-select --input samples-consistency-8.json

    exit code: 0 all have a reply, 1 some items failed (they hold `error`),
               2 unusable input or no reply at all; nothing is written.
    """

    name = "usc-generate"
    item, settings, record = Item, Settings, Record
    layout = Layout(
        is_ascii=True,
        ending="-consistency-N",
        ending_of=lambda _, settings: f"-consistency-{settings.n}",
    )
    texts_per_slot = 4

    def prompt(self, entry: Entry, settings: Settings) -> Prompt:
        """See `GeneratingSystem.prompt`."""
        # The item's ids are those of its responses.
        fields = {k: v for k, v in without_ids(entry.item).items() if k != "error"}
        try:
            asked, shown = read_question(entry.item), read_responses(entry.item, settings.n)
        except InputError as problem:
            added: dict[str, Any] = {"output": [], "responses": []}
            return Prompt(entry.name, entry.id, fields, added=added, error=str(problem))
        text = render_prompt(asked, shown)
        added = {"chat_history": [text], "output": [], "responses": shown}
        return Prompt(entry.name, entry.id, fields, text, added)

    def seeds(self, prompts: Iterable[Prompt], settings: Settings) -> Iterator[int]:
        """Yield a seed for each item, independent of the other items."""
        return (settings.seed + index for index, _ in enumerate(prompts))

    def n_usable(self, record: Mapping[str, Any]) -> int:
        """See `GeneratingSystem.n_usable`."""
        return int(super().n_usable(record) == 1)

    def is_same(self, prompt: Prompt, record: Mapping[str, Any]) -> bool:
        """See `GeneratingSystem.is_same`."""
        return bool(record.get("chat_history") == [prompt.text])

    def drawn_with(self, settings: Settings) -> dict[str, Any]:
        """See `GeneratingSystem.drawn_with`."""
        return {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_new_tokens,
            "seed": settings.seed if settings.temperature else None,
        }

    def model_input(self, lm: Any, prompt: Prompt, settings: Settings) -> str:
        """Return the prompt in the chat template."""
        message = {"role": "user", "content": str(prompt.text)}
        return chat_template.render(lm.encoder.tokenizer, [message])

    def text(self, generated: Generated) -> str:
        """Return a reply without surrounding whitespace."""
        return generated.text.strip()

    def count(self, lm: Any, texts: Texts) -> None:
        """Count the replies that were cut."""
        if texts.finish == ["length"]:
            lm.counts["n_ended_at_the_limit"] += 1
            lm.warnings[CUT] += 1

    def record_of(self, prompt: Prompt, texts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the published fields first, then the item's others."""
        if not texts:
            return {**prompt.fields, **prompt.added}
        # Text if it has the shard's name before its number.
        number = prompt.id if isinstance(prompt.id, str) else prompt.id - 1
        session = prompt.fields.get("session_id", prompt.fields.get("id", number))
        out = {"session_id": session, **texts, **prompt.added, "output": texts["output"]}
        out = {name: out[name] for name in Record.__annotations__ if name in out}
        return out | {name: value for name, value in prompt.fields.items() if name not in out}

    def rows(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one row."""
        return [
            {
                "item": record.get("session_id", record.get("id")),
                "responses": len(record["responses"]),
                "reply": record["output"][0] if record["output"] else None,
                "error": record.get("error"),
            }
        ]

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
        """Count the replies."""
        n_items, failures, warnings = 0, [], []
        for n_items, record in enumerate(records, start=1):
            if "error" in record:
                failures.append((named(f"item {n_items}", {**record}), record["error"]))
        n_replies = n_items - len(failures)
        if settings.temperature == 0 and settings.top_p != 1:
            warnings.append(f"top_p {settings.top_p}: of no effect, since temperature 0 is greedy")
        return Summary(
            headline=f"{n_replies} of {n_items} items have a reply",
            numbers={"n_items": n_items, "n_replies": n_replies, "n_failed": len(failures)},
            failures=failures,
            warnings=warnings,
        )


SYSTEM = UscGenerate()
