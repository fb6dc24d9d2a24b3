"""`usc-generate`: ask a model which of its responses agrees most with the others.

Universal self-consistency (Chen et al., arXiv 2311.17311), with the prompt that the
self-certainty paper prints (arXiv 2502.18581, appendix). `usc-select` reads the reply.
"""

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.items import read_lenient_rows
from jaxscore.io.json_input import json_kind
from jaxscore.lm import LocalLM
from jaxscore.systems.drawn_tokens import without_ids
from jaxscore.systems.evaluation import Evaluation
from jaxscore.systems.generations import Generations, GenerationSettings, GenerationWork
from jaxscore.systems.remarks import Remark
from jaxscore.systems.settings import setting
from jaxscore.systems.system import ArrayOutput, System
from jaxscore.text import chat_template
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated

HELP = """\
Show a model several of its responses to a question and ask which is the most
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
  Beside OUT lies OUT.run.json: what made it, and how many items failed.

The file grows while the command runs, and the same command continues it.

  python -m jaxscore usc-generate --input samples.json --model NAME -n 8
  python -m jaxscore usc-select --input samples-consistency-8.json

exit code: 0 all have a reply, 1 some items failed (they hold `error`),
           2 unusable input or no reply at all; nothing is written.
"""
INSTRUCTION = """\
Evaluate these responses.
Select the most consistent response based on majority consensus.
Format your answer as "The most consistent response is Response X" (without quotes).
"""
# Where the question stands in a prompt of ZeroEval's: the code template, the open-ended one. The
# second's beginning is in the first's, so the order matters.
QUESTION_BETWEEN = (("### Question:", "### Format:"), ("## Question:", "## Instruction"))


class Item(TypedDict, total=False):
    """A question with responses to choose from."""

    chat_history: list[str]
    model_input: str
    input: str
    output: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(GenerationSettings):
    """Settings of `usc-generate`."""

    n: int = setting(
        least=1,
        aliases=("--best-N",),
        metavar="N",
        help="choose between the first N responses; an item with fewer has all of them displayed",
    )
    temperature: float = setting(0.0, help="0 is greedy (default), above it draws")


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


class ReplyWork(GenerationWork):
    """Items with the replies that are known.

    Attributes:
        prompts: of the entries; empty if the item is unusable.
        responses: that the prompts have.
    """

    texts_per_slot = 4

    def read(self) -> None:
        """See `Work.read`."""
        n = len(self.entries)
        self.prompts: list[str] = [""] * n
        self.responses: list[list[str]] = [[] for _ in range(n)]
        for place, item in enumerate(self.items):
            try:
                asked, found = question(item), responses(item, self.settings.n)
            except InputError as problem:
                self.errors[place] = str(problem)
            else:
                self.prompts[place], self.responses[place] = prompt(asked, found), found

    def is_same(self, place: int, record: Mapping[str, Any]) -> bool:
        """Whether the record has the same prompt."""
        return record.get("chat_history") == [self.prompts[place]]

    def recall(self, place: int, record: Mapping[str, Any]) -> Generations | None:
        """The reply of a record, if it has one."""
        reply = record.get("output")
        if isinstance(reply, list) and len(reply) == 1 and isinstance(reply[0], str):
            return self.recalled(record, [])
        return None

    def drawn_with(self) -> dict[str, Any]:
        """See `GenerationWork.drawn_with`."""
        settings = self.settings
        return {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_new_tokens,
            "seed": settings.seed if settings.temperature else None,
        }

    def model_input(self, lm: LocalLM, place: int) -> str:
        """The prompt in the chat template."""
        message = {"role": "user", "content": self.prompts[place]}
        return chat_template.render(lm.encoder.tokenizer, [message])

    def requests(self, place: int, prompt: np.ndarray) -> list[GenerationRequest]:
        """The request for a reply, with a seed of its own: it does not matter what runs with it."""
        return [
            GenerationRequest(
                id=self.entries[place].name,
                prompt=prompt,
                max_new_tokens=self.settings.max_new_tokens,
                temperature=self.settings.temperature,
                top_p=self.settings.top_p,
                seed=self.settings.seed + place,
            )
        ]

    def text(self, generated: Generated) -> str:
        """A reply as `usc-select` reads it."""
        return generated.text.strip()

    def record(self, place: int) -> dict[str, Any] | None:
        """The published fields first, then the item's others; None while a reply is missing."""
        if not self.is_finished(place):
            return None
        # The item's ids are those of its responses.
        given = {k: v for k, v in without_ids(self.items[place]).items() if k != "error"}
        if place in self.errors:
            prompt = self.prompts[place]
            return {
                **given,
                **({"chat_history": [prompt]} if prompt else {}),
                "output": [],
                "responses": self.responses[place],
                "error": self.errors[place],
            }
        known = self.known[place]
        assert known is not None
        name = self.entries[place].id  # text if it has the shard's name before its number
        number = name if isinstance(name, str) else place
        own = {
            "session_id": given.get("session_id", given.get("id", number)),
            "chat_history": [self.prompts[place]],
            "model_input": known.model_input,
            "output": known.texts,
            **known.id_fields(),
            "generator": (known.made or {})["generator"],
            "configs": self.configs(known),
            "responses": self.responses[place],
        }
        return own | {name: value for name, value in given.items() if name not in own}


def question(given: Mapping[str, Any]) -> str:
    """What the responses answer.

    It is the first message of `chat_history`, else `model_input` or `input`: the part between the
    headings of the published prompts if the text has them, else all of it. (The published script
    takes the code prompt's headings only, and asks about an empty question without them.)

    Raises:
        InputError: the item has none of the three.
    """
    history = given.get("chat_history")
    for text in (
        history[0] if isinstance(history, list) and history else None,
        given.get("model_input"),
        given.get("input"),
    ):
        if isinstance(text, str):
            return _between_headings(text)
    there = ", ".join(map(repr, given)) or "none"
    raise InputError(
        'no question: expected "chat_history", a list that begins with a string, or a string '
        f'"model_input" or "input"; there are {there}'
    )


def _between_headings(text: str) -> str:
    for start, end in QUESTION_BETWEEN:
        _, found, rest = text.partition(start)
        if found:
            return rest.partition(end)[0].strip()
    return text


def responses(given: Mapping[str, Any], n: int) -> list[str]:
    """The first n responses of an item.

    Raises:
        InputError: it has none, or one of them is no text.
    """
    if "output" not in given:
        there = ", ".join(map(repr, given)) or "none"
        raise InputError(f'no field "output", expected a list of strings; there are {there}')
    found = given["output"]
    if not isinstance(found, list):
        raise InputError(f'field "output" is {json_kind(found)}, expected a list of strings')
    if not found:
        raise InputError('field "output" is empty, expected at least one response')
    for number, response in enumerate(found[:n]):
        if not isinstance(response, str):
            raise InputError(
                f'field "output", response {number}: found {json_kind(response)}, expected a string'
            )
    return found[:n]


def prompt(question: str, responses: Sequence[str]) -> str:
    """The question, the responses numbered from 0, and what to do with them."""
    listed = "".join(f"Response {k}: {text}\n\n" for k, text in enumerate(responses))
    return (
        f"I have generated the following responses to the question: {question}\n"
        f"{listed}{INSTRUCTION}"
    )


def evaluate(
    lm: LocalLM,
    work: ReplyWork,
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
) -> Evaluation:
    """Ask about each item.

    Raises:
        NothingUsable: no item has a reply.
    """
    started = time.perf_counter()
    n_before = sum(known is not None for known in work.known)
    n_tokens = work.generate(lm, on_item) if not work.is_done else 0
    work.refuse_if_all_failed()
    work.pass_on(on_item)
    n_items, n_failed = len(work.entries), len(work.errors)
    n_cut = sum(known is not None and known.finish == ["length"] for known in work.known)
    summary = {
        "n_items": n_items,
        "n_replies": n_items - n_failed,
        "n_failed": n_failed,
        "n_tokens_written": n_tokens,
        "n_ended_at_the_limit": n_cut,
    }
    remarks = []
    if settings.temperature == 0 and settings.top_p != 1:
        remarks.append(f"top_p {settings.top_p}: of no effect, since temperature 0 is greedy")
    if n_cut:
        remarks.append(Remark("{n} replies ended at the limit, not by themselves", n=n_cut))
    records = [] if on_item is not None else work.records()
    return Evaluation(
        summary=summary,
        items=records,
        n_items=n_items,
        rows=[
            {
                "item": entry.name,
                "responses": len(record["responses"]),
                "reply": record["output"][0] if record["output"] else None,
                "error": record.get("error"),
            }
            for entry, record in zip(work.entries, records, strict=False)
        ],
        details={"summary": summary},
        long={"items": records},
        headline=f"{n_items - n_failed} of {n_items} items have a reply, {n_tokens} tokens written "
        "in this run",
        failures=work.failures(),
        remarks=remarks,
        counts={"replies_from_before": n_before},
        seconds=time.perf_counter() - started,
    )


def _add_data_name(command: Any) -> Any:
    """Add -d of the published script: `usc-N-FILE` gives the input and N."""
    from jaxscore.cli.flags import flag, options_of  # deferred: Python needs no flags

    @dataclasses.dataclass(kw_only=True)
    class Flags:
        published: str | None = flag(
            None,
            "-d",
            "--data-name",
            dest="published",
            is_advanced=True,
            metavar="usc-N-FILE",
            help="the same as -n N --input FILE, as the published script spells it",
        )

    def expand(words: dict[str, list[str]]) -> None:
        if (given := words.pop("published", None)) is None:
            return
        found = re.fullmatch(r"usc-([1-9][0-9]{0,8})-(.+)", given[-1])
        if found is None:
            raise InputError(
                f"argument -d/--data-name: {given[-1]}: expected usc-N-FILE, such as "
                "usc-8-samples.json"
            )
        n, path = found.groups()
        other_n, others = words.get("n", [n])[-1], words.get("input", [path])
        if other_n != n or any(word != path for word in others):
            raise InputError(
                f"-d says -n {n} --input {path}, beside it -n {other_n} --input "
                f"{' '.join(others)} is given; give -d alone, or -n and --input"
            )
        words |= {"n": [n], "input": [path]}

    options = [*command.options, *options_of(Flags)]
    return dataclasses.replace(command, options=options, expand=expand)


SYSTEM = System(
    name="usc-generate",
    what="items",
    help=HELP,
    item=Item,
    settings=Settings,
    record=Record,
    read_rows=read_lenient_rows,
    work=ReplyWork,
    evaluate=evaluate,
    array=ArrayOutput("-consistency-N", lambda settings, entries: f"-consistency-{settings.n}"),
    published_flags=_add_data_name,
    needs=("is_local", "generates"),
)
