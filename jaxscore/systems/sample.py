"""`sample`: n responses of a model to each prompt.

The records are what `self-certainty`, `usc-generate` and, by way of `self-certainty`, `vote` read:
the layout of the published samples (arXiv 2502.18581), with `finish`. A BOS that the tokenizer puts
before a plain prompt is written out, since `self-certainty` adds no special token. A chat template
writes its own special tokens.
"""

import collections
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypedDict

import numpy as np

from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.io.items import NAME_FIELDS, named
from jaxscore.io.json_input import json_kind
from jaxscore.io.json_output import to_json_value
from jaxscore.lm import LocalLM
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.generations import Generations, GenerationSettings, GenerationWork
from jaxscore.systems.remarks import Remark
from jaxscore.systems.settings import setting
from jaxscore.systems.system import ArrayOutput, System
from jaxscore.text import chat_template
from jaxscore.text.chat_template import Message
from jaxscore.text.encoder import TextEncoder
from jaxscore.types.requests import GenerationRequest

HELP = """\
Write n responses of a model to each prompt. The output is what self-certainty
and usc-generate read. The samples of a prompt share its computation.

input, one object per line, or a table (see --input), with a prompt or a
conversation each:
  {"id": "a", "prompt": "How many days has a leap year?", "answer": "366"}
  {"id": "b", "messages": [{"role": "user", "content": "Who ran?"}]}
  `messages` have `role` and `content` alone, and need --apply-chat-template,
  which makes a user's message of a `prompt` too. `id` defaults to the line's
  number. Other fields go into the output as they are: with a right answer
  there, --gold measures what follows.

output, a JSON array of the same items with
  chat_history  the prompt, or the messages without the system's, as texts
  model_input   the text that the model reads, special tokens included
  output        n responses, without the token that ended them
  finish        what ended each: eos, stop (a --stop string), or length
                (--max-new-tokens, or the end of the model's positions)
  prompt_token_ids, token_ids
                the ids of model_input, and of each response as they were drawn,
                without EOS and stop string; self-certainty scores these
  generator     the model
  configs       what it sampled with
  error         why it has fewer than n responses
  Beside OUT lies OUT.run.json: what made it, and how many prompts failed.

Each sample has a seed of its own, made of --seed, the item's prompt and id, and
the sample's number: other items and a higher n leave it as it is. Rounding
depends on what is written side by side and may, rarely, turn a token; with
--reproducible nothing does.

The file grows while the command runs. The same command continues it, also with
a higher n.

  python -m jaxscore sample --model M --input p.jsonl -n 16 --output s.json
  python -m jaxscore self-certainty --input s.json --gold answer
  python -m jaxscore vote --input s-confidence-list.json --gold answer

exit code: 0 all have n samples, 1 some prompts failed (they hold `error`),
           2 unusable input or no samples at all; nothing is written.
"""
PROMPT, MESSAGES = FIELDS = ("prompt", "messages")
SEEDS = 1 << 32
FINISHES = ("eos", "stop", "length")  # as of `Generated.finish`


class Item(TypedDict, total=False):
    """A prompt, or the messages of a conversation."""

    id: str | int
    prompt: str
    messages: list[Message]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(GenerationSettings):
    """Settings of `sample`."""

    n: int = setting(least=1, metavar="N", help="samples of each prompt")
    temperature: float = setting(
        0.7,
        metavar="T",
        help="the logits are divided by it (default 0.7); 0 is greedy, with -n 1 alone",
    )
    top_k: int = setting(
        0,
        least=0,
        metavar="K",
        help="draw from this many most probable tokens (default 0: all)",
    )
    stop: tuple[str, ...] = setting(
        (), metavar="TEXT", help="a sample ends before the first of these texts"
    )
    apply_chat_template: bool = setting(
        False,
        help="the model reads the prompts as the tokenizer's chat template writes them, without "
        "another BOS",
    )
    system_prompt: str | None = setting(
        None,
        name="system",
        metavar="TEXT",
        help="with --apply-chat-template: a system message before each prompt",
    )

    def __post_init__(self) -> None:
        """Check all values; see `GenerationSettings`."""
        super().__post_init__()
        if self.temperature == 0 and self.n != 1:
            raise InputError(
                f"setting temperature is 0 and n is {self.n}: greedy samples of a prompt are all "
                "the same; give n 1, or a temperature above 0"
            )
        if self.system_prompt is not None and not self.apply_chat_template:
            raise InputError(
                "setting system_prompt: a system message has a place in a chat template alone; "
                "give --apply-chat-template too, or write it into the prompts"
            )


class Record(TypedDict, total=False):
    """What a prompt gets beside its own fields."""

    chat_history: list[str]
    model_input: str
    output: list[str]
    finish: list[str]
    prompt_token_ids: list[int]
    token_ids: list[list[int] | None]
    generator: str
    configs: dict[str, Any]
    error: str


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        given: all fields of the item, and an `id` if it has no name of its own.
        prompt: the text or the messages.
        seed: of its first sample; each further one has the next number.
    """

    given: dict[str, Any]
    prompt: str | list[Message]
    seed: int


class SampleWork(GenerationWork):
    """Prompts with the samples that are known.

    Attributes:
        prompts: of the entries.
    """

    def read(self) -> None:
        """See `Work.read`."""
        self.n_texts = self.settings.n
        self.prompts: list[Prompt] = []
        seen: collections.Counter[str] = collections.Counter()
        for place, item in enumerate(self.items):
            names = {name: item[name] for name in NAME_FIELDS if name in item}
            prompt: str | list[Message] = ""
            try:
                prompt = read_prompt(item, Record.__annotations__)
            except InputError as problem:
                self.errors[place] = str(problem)
            # The number of a line is no part of it: prompts may be added before this one.
            said = json.dumps([self.settings.seed, names, prompt], sort_keys=True, default=str)
            digest = hashlib.sha256(f"{said} {seen[said]}".encode()).digest()
            seen[said] += 1
            given = item if names else {"id": self.entries[place].id, **item}
            self.prompts.append(Prompt(given, prompt, int.from_bytes(digest[:4], "big")))

    def is_same(self, place: int, record: Mapping[str, Any]) -> bool:
        """Whether the record is of the same text, drawn with the same seeds."""
        given = to_json_value(self.prompts[place].given)
        names = [name for name in (*FIELDS, *NAME_FIELDS) if name in given]
        return all(record.get(name) == given[name] for name in names)

    def recall(self, place: int, record: Mapping[str, Any]) -> Generations | None:
        """The samples of a record, unless it has none that are whole."""
        texts, finish = record.get("output"), record.get("finish")
        if not isinstance(texts, list) or not isinstance(finish, list) or not texts:
            return None
        is_whole = len(texts) == len(finish) and all(isinstance(text, str) for text in texts)
        if not is_whole or not all(end in FINISHES for end in finish):
            return None
        if not isinstance(record.get("model_input"), str):
            return None
        if len(texts) > self.n_texts:
            raise self.refusal(
                f"{self.entries[place].name} has {len(texts)} samples, this run asks for "
                f"{self.n_texts}"
            )
        return self.recalled(record, finish)

    def drawn_with(self) -> dict[str, Any]:
        """See `GenerationWork.drawn_with`."""
        settings = self.settings
        return {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
            "max_tokens": settings.max_new_tokens,
            "stop": [*settings.stop] or None,
            "seed": settings.seed if settings.temperature else None,
            "apply_chat_template": settings.apply_chat_template or None,
            "system": settings.system_prompt,
        }

    def model_input(self, lm: LocalLM, place: int) -> str:
        """See `GenerationWork.model_input`."""
        return model_input(
            lm.encoder,
            self.prompts[place].prompt,
            chat=self.settings.apply_chat_template,
            system=self.settings.system_prompt,
            max_positions=lm.capabilities.max_positions,
        )

    def requests(self, place: int, prompt: np.ndarray) -> list[GenerationRequest]:
        """The samples of a prompt, each with a seed of its own."""
        names = ("max_new_tokens", "temperature", "top_p", "top_k", "stop")
        return [
            GenerationRequest(
                id=f"{self.entries[place].name}, sample {k + 1}",
                prompt=prompt,
                seed=(self.prompts[place].seed + k) % SEEDS,
                **{name: getattr(self.settings, name) for name in names},
            )
            for k in range(self.n_texts)
        ]

    def record(self, place: int) -> dict[str, Any] | None:
        """A prompt with its samples, or None while it lacks some and has not failed."""
        if not self.is_finished(place):
            return None
        prompt, known, error = self.prompts[place], self.known[place], self.errors.get(place)
        own: dict[str, Any] = {"output": []}
        if known is not None:
            own = {
                "chat_history": history(prompt.prompt),
                "model_input": known.model_input,
                "output": known.texts,
                "finish": known.finish,
                **known.id_fields(),
                "generator": (known.made or {})["generator"],
                "configs": self.configs(known),
            }
        if error is not None:
            own["error"] = error
        given = prompt.given.items()
        return {**{k: v for k, v in given if k not in Record.__annotations__}, **own}


def evaluate(
    lm: LocalLM,
    work: SampleWork,
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
) -> Evaluation:
    """Generate n samples of each prompt.

    Raises:
        NothingUsable: no prompt has samples.
    """
    started = time.perf_counter()
    n_before = sum(len(known.texts) for known in work.known if known is not None)
    n_tokens = work.generate(lm, on_item) if not work.is_done else 0
    work.refuse_if_all_failed()
    work.pass_on(on_item)
    good = [
        known
        for place, known in enumerate(work.known)
        if known is not None and place not in work.errors
    ]
    ends = collections.Counter(end for known in good for end in known.finish)
    n_empty = sum(not text for known in good for text in known.texts)
    n_failed = len(work.errors)
    summary = {
        **_summary(len(work.entries), n_failed, n_empty, ends),
        "n_tokens_written": n_tokens,
    }
    records = [] if on_item is not None else work.records()
    return Evaluation(
        summary=summary,
        items=records,
        n_items=len(work.entries),
        rows=[row for record in records for row in _rows(record)],
        details={"summary": summary},
        long={"items": records},
        headline=_headline(summary, settings.n),
        remarks=_remarks(summary, settings),
        failures=work.failures(),
        counts={"samples_from_before": n_before, **_n_ended(ends)},
        seconds=time.perf_counter() - started,
    )


def merge(records: Iterable[Mapping[str, Any]], settings: Settings) -> Evaluation:
    """Evaluate the prompts of all records as one run would; see `System.merge`."""
    n_items = n_empty = 0
    ends: collections.Counter[str] = collections.Counter()
    failures = []
    for n_items, record in enumerate(records, start=1):
        if "error" in record:
            failures.append(Failure(named(f"item {n_items}", {**record}), record["error"]))
        else:
            ends.update(record["finish"])
            n_empty += sum(not text for text in record["output"])
    summary = _summary(n_items, len(failures), n_empty, ends)
    return Evaluation(
        summary=summary,
        n_items=n_items,
        details={"summary": summary},
        headline=_headline(summary, settings.n),
        remarks=_remarks(summary, settings),
        failures=failures,
        counts=_n_ended(ends),
    )


def read_prompt(given: Mapping[str, Any], reserved: Collection[str]) -> str | list[Message]:
    """The text or the messages of an item.

    Args:
        reserved: names that the item's other fields may not have.

    Raises:
        InputError: neither, both, or of another form; or a field has a reserved name.
    """
    if taken := [name for name in reserved if name in given]:
        raise InputError(
            f'field "{taken[0]}" is one of those that the item gets; rename it, or leave it out'
        )
    if (PROMPT in given) == (MESSAGES in given):
        there = ", ".join(map(repr, given)) or "none"
        found = "both" if PROMPT in given else f"there are {there}"
        raise InputError(f'expected either a string "{PROMPT}" or a list "{MESSAGES}"; {found}')
    if PROMPT in given:
        if not isinstance(given[PROMPT], str):
            raise InputError(f'field "{PROMPT}" is {json_kind(given[PROMPT])}, expected a string')
        return _readable(given[PROMPT], PROMPT)
    messages = given[MESSAGES]
    if not isinstance(messages, list) or not messages:
        found = "empty" if messages == [] else json_kind(messages)
        raise InputError(f'field "{MESSAGES}" is {found}, expected a list of messages')
    return [_message(one, number) for number, one in enumerate(messages, start=1)]


def _message(given: Any, number: int) -> Message:
    where = f'field "{MESSAGES}", message {number}'
    if not isinstance(given, dict):
        raise InputError(f"{where}: found {json_kind(given)}, expected an object")
    for name in ("role", "content"):
        if not isinstance(given.get(name), str):
            found = json_kind(given[name]) if name in given else "missing"
            raise InputError(f'{where}: "{name}" is {found}, expected a string')
        _readable(given[name], f'{MESSAGES}", message {number}, "{name}')
    chat_template.check_fields(given, where)
    return {name: given[name] for name in chat_template.FIELDS}


def _readable(text: str, field: str) -> str:
    if not is_valid_unicode(text):
        raise InputError(f'field "{field}" contains a lone surrogate (invalid Unicode)')
    return text


def history(prompt: str | list[Message]) -> list[str]:
    """The texts of a prompt, without the system message."""
    if isinstance(prompt, str):
        return [prompt]
    return [message["content"] for message in prompt if message["role"] != "system"]


def model_input(
    encoder: TextEncoder,
    prompt: str | list[Message],
    *,
    chat: bool,
    system: str | None,
    max_positions: int | None = None,
) -> str:
    """The text that the model reads: `self-certainty` takes the same token ids from it.

    Args:
        chat: apply the chat template.
        system: a message before all others.
        max_positions: of the model; None is no limit.

    Raises:
        InputError: messages without the template; the template leaves out text or refuses it; two
            system messages; the text certainly has more tokens than `max_positions`.
    """
    if not chat:
        if not isinstance(prompt, str):
            raise InputError(
                f'field "{MESSAGES}" becomes a text by the chat template alone; give '
                f'--apply-chat-template, or a string "{PROMPT}"'
            )
        return _with_prefix(encoder, prompt, max_positions)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if system is not None:
        if any(message["role"] == "system" for message in messages):
            raise InputError("it has a system message of its own, and --system gives another")
        messages = [{"role": "system", "content": system}, *messages]
    return chat_template.render(encoder.tokenizer, messages)


def _with_prefix(encoder: TextEncoder, text: str, max_positions: int | None) -> str:
    """The text with the special tokens that the tokenizer puts before it.

    SentencePiece puts a blank before its first word, which after a written BOS is written too.
    """
    if not encoder.prefix:
        return text
    [expected] = encoder.prompt_ids([text], max_positions=max_positions)
    head = "".join(encoder.tokenizer.convert_ids_to_tokens(encoder.prefix))
    candidates = [text, f"{head}{text}", f"{head} {text}"]
    found = encoder.prompt_ids(candidates, special_tokens=False)
    for candidate, ids in zip(candidates, found, strict=True):
        if ids.tolist() == expected.tolist():
            return candidate
    return f"{head}{text}"


def _summary(n_items: int, n_failed: int, n_empty: int, ends: Mapping[str, int]) -> dict[str, Any]:
    """Counts of prompts and samples.

    Args:
        ends: what ended a sample -> the number of such samples.
    """
    return {
        "n_items": n_items,
        "n_failed": n_failed,
        "n_samples": sum(ends.values()),
        "n_empty": n_empty,
        **_n_ended(ends),
    }


def _n_ended(ends: Mapping[str, int]) -> dict[str, int]:
    return {f"n_ended_by_{name}": ends.get(name, 0) for name in FINISHES}


def _headline(summary: Mapping[str, Any], n: int) -> str:
    n_items = summary["n_items"]
    good = n_items - summary["n_failed"]
    n_tokens = summary.get("n_tokens_written")  # of this run; finished ones do not say it
    written = "" if n_tokens is None else f", {n_tokens} tokens written in this run"
    return (
        f"{good} of {n_items} prompts have {n} samples each{written}; of {summary['n_samples']} "
        f"samples {summary['n_ended_by_eos']} ended by themselves, {summary['n_ended_by_stop']} at "
        f"a stop string, {summary['n_ended_by_length']} were cut by length"
    )


def _remarks(summary: Mapping[str, Any], settings: Settings) -> list[str]:
    if not (n := summary["n_empty"]):
        return []
    template = "{n} of {n_items} samples are empty: the model ended at once"
    if not settings.apply_chat_template:
        template += "; a chat model reads its prompts with --apply-chat-template"
    return [Remark(template, n=n, n_items=summary["n_samples"])]


def _rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per sample; one for a prompt without any."""
    own = {"prompt": record.get(PROMPT), "error": record.get("error")}
    pairs = zip(record["output"], record.get("finish", []), strict=True)
    rows = [
        {**own, "sample": k, "text": text, "finish": end} for k, (text, end) in enumerate(pairs, 1)
    ]
    return rows or [{**own, "sample": None, "text": None, "finish": None}]


SYSTEM = System(
    name="sample",
    what="prompts",
    help=HELP,
    item=Item,
    settings=Settings,
    record=Record,
    work=SampleWork,
    evaluate=evaluate,
    array=ArrayOutput("-samples-N", lambda settings, entries: f"-samples-{settings.n}"),
    merge=merge,
    needs=("is_local", "generates"),
)
