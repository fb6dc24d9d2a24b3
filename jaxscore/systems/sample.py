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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.io.items import NAME_FIELDS
from jaxscore.io.json_input import json_kind
from jaxscore.shell.flags import flag
from jaxscore.shell.items import Entry
from jaxscore.shell.system import Layout, Summary
from jaxscore.systems.generations import GeneratingSystem, GenerationSettings, Prompt, name_of
from jaxscore.text import chat_template
from jaxscore.text.chat_template import Message
from jaxscore.text.encoder import TextEncoder

PROMPT, MESSAGES = FIELDS = ("prompt", "messages")
FINISHES = ("eos", "stop", "length")  # see `Generated.finish`


class Item(TypedDict, total=False):
    """A prompt, or the messages of a conversation."""

    id: str | int
    prompt: str
    messages: list[Message]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(GenerationSettings):
    """Settings of `sample`."""

    n: int = flag(least=1, metavar="N", help="samples of each prompt")
    temperature: float = flag(
        0.7,
        metavar="T",
        help="the logits are divided by it (default 0.7); 0 is greedy, with -n 1 alone",
    )
    top_k: int = flag(
        0,
        least=0,
        metavar="K",
        help="draw from this many most probable tokens (default 0: all)",
    )
    stop: tuple[str, ...] = flag(
        (), metavar="TEXT", help="a sample ends before the first of these texts"
    )
    apply_chat_template: bool = flag(
        False,
        help="the model reads the prompts as the tokenizer's chat template writes them, without "
        "another BOS",
    )
    system_prompt: str | None = flag(
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
    """The fields that are added to a prompt's."""

    chat_history: list[str]
    model_input: str
    output: list[str]
    finish: list[str]
    prompt_token_ids: list[int]
    token_ids: list[list[int] | None]
    generator: str
    configs: dict[str, Any]
    error: str


def read_prompt(fields: Mapping[str, Any], reserved: Collection[str]) -> str | list[Message]:
    """Return the text or the messages of an item.

    Args:
        reserved: the names that an item's fields must not have.

    Raises:
        InputError: there are neither or both, or they have another type; or a name is reserved.
    """
    if taken := [name for name in reserved if name in fields]:
        raise InputError(f'field "{taken[0]}" has the name of a result; rename it, or leave it out')
    if (PROMPT in fields) == (MESSAGES in fields):
        names = ", ".join(map(repr, fields)) or "none"
        problem = "both" if PROMPT in fields else f"there are {names}"
        raise InputError(f'expected either a string "{PROMPT}" or a list "{MESSAGES}"; {problem}')
    if PROMPT in fields:
        if not isinstance(fields[PROMPT], str):
            raise InputError(f'field "{PROMPT}" is {json_kind(fields[PROMPT])}, expected a string')
        return _readable(fields[PROMPT], PROMPT)
    messages = fields[MESSAGES]
    if not isinstance(messages, list) or not messages:
        problem = "empty" if messages == [] else json_kind(messages)
        raise InputError(f'field "{MESSAGES}" is {problem}, expected a list of messages')
    return [_message(message, k) for k, message in enumerate(messages, start=1)]


def _message(message: Any, number: int) -> Message:
    where = f'field "{MESSAGES}", message {number}'
    if not isinstance(message, dict):
        raise InputError(f"{where}: found {json_kind(message)}, expected an object")
    for name in ("role", "content"):
        if not isinstance(message.get(name), str):
            problem = json_kind(message[name]) if name in message else "missing"
            raise InputError(f'{where}: "{name}" is {problem}, expected a string')
        _readable(message[name], f'{MESSAGES}", message {number}, "{name}')
    chat_template.check_fields(message, where)
    return {name: message[name] for name in chat_template.FIELDS}


def _readable(text: str, field: str) -> str:
    if not is_valid_unicode(text):
        raise InputError(f'field "{field}" contains a lone surrogate (invalid Unicode)')
    return text


def history(prompt: str | list[Message]) -> list[str]:
    """Return the texts of a prompt, without the system message."""
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
    """Return the text that the model reads: `self-certainty` takes the same token ids from it.

    Args:
        chat: apply the chat template.
        system: a message before all others.
        max_positions: the model's number of positions; None is unlimited.

    Raises:
        InputError: there are messages without a template, or two system messages; the template
            leaves out text or refuses it; the text certainly exceeds `max_positions` tokens.
    """
    if not chat:
        if not isinstance(prompt, str):
            raise InputError(
                f'field "{MESSAGES}" needs a chat template; give '
                f'--apply-chat-template, or a string "{PROMPT}"'
            )
        return _with_prefix(encoder, prompt, max_positions)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if system is not None:
        if any(message["role"] == "system" for message in messages):
            raise InputError("found two system messages, the item's and --system; leave one out")
        messages = [{"role": "system", "content": system}, *messages]
    return chat_template.render(encoder.tokenizer, messages)


def _with_prefix(encoder: TextEncoder, text: str, max_positions: int | None) -> str:
    """Return the text with the special tokens that the tokenizer puts before it.

    SentencePiece puts a space before its first word, which has to be written after a BOS.
    """
    if not encoder.prefix:
        return text
    [expected] = encoder.prompt_ids([text], max_positions=max_positions)
    head = "".join(encoder.tokenizer.convert_ids_to_tokens(encoder.prefix))
    candidates = [text, f"{head}{text}", f"{head} {text}"]
    candidate_ids = encoder.prompt_ids(candidates, special_tokens=False)
    for candidate, ids in zip(candidates, candidate_ids, strict=True):
        if ids.tolist() == expected.tolist():
            return candidate
    return f"{head}{text}"


class Sample(GeneratingSystem):
    """Write n responses of a model to each prompt. The output is what self-certainty
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
      Next to OUT is OUT.run.json: how it was made, and how many prompts failed.

    The seed of each sample depends only on --seed, the item's prompt and id,
    and the sample's number, not on other items or n. Rounding depends on the
    texts of the same batch and may, rarely, change a token; with --reproducible
    it does not.

    The same command continues an interrupted run from its journal, and an output of
    fewer prompts. With a higher n it writes the missing samples; those of the
    output come from the journal, or are drawn again with the same seeds.

      python -m jaxscore sample --model M --input p.jsonl -n 16 --output s.json
      python -m jaxscore self-certainty --input s.json --gold answer
      python -m jaxscore vote --input s-confidence-list.json --gold answer

    exit code: 0 all have n samples, 1 some prompts failed (they hold `error`),
               2 unusable input or no samples at all; nothing is written.
    """

    name, what = "sample", "prompts"
    item, settings, record = Item, Settings, Record
    layout = Layout(
        is_ascii=True,
        ending="-samples-N",
        ending_of=lambda _, settings: f"-samples-{settings.n}",
    )

    def prompt(self, entry: Entry, settings: Settings) -> Prompt:
        """See `GeneratingSystem.prompt`."""
        fields = {k: v for k, v in entry.item.items() if k not in Record.__annotations__}
        try:
            text = read_prompt(entry.item, Record.__annotations__)
        except InputError as problem:
            return Prompt(entry.name, entry.id, fields, error=str(problem))
        return Prompt(entry.name, entry.id, fields, text)

    def seeds(self, prompts: Iterable[Prompt], settings: Settings) -> Iterator[int]:
        """Yield seeds that depend only on the prompt and its item's id."""
        seen: collections.Counter[str] = collections.Counter()
        for prompt in prompts:
            # Without the number of the line, since prompts may be inserted before this one.
            key = json.dumps(
                [settings.seed, _names(prompt.fields), prompt.text], sort_keys=True, default=str
            )
            digest = hashlib.sha256(f"{key} {seen[key]}".encode()).digest()
            seen[key] += 1
            yield int.from_bytes(digest[:4], "big")

    def n_texts(self, settings: Settings) -> int:
        """See `GeneratingSystem.n_texts`."""
        return settings.n

    def n_usable(self, record: Mapping[str, Any]) -> int:
        """See `GeneratingSystem.n_usable`."""
        n, ends = super().n_usable(record), record.get("finish")
        if not isinstance(record.get("model_input"), str) or not isinstance(ends, list):
            return 0
        return n if len(ends) == n and all(end in FINISHES for end in ends) else 0

    def is_same(self, prompt: Prompt, record: Mapping[str, Any]) -> bool:
        """See `GeneratingSystem.is_same`."""
        fields = _with_id(prompt)
        names = [name for name in (*FIELDS, *NAME_FIELDS) if name in fields]
        return all(record.get(name) == fields[name] for name in names)

    def drawn_with(self, settings: Settings) -> dict[str, Any]:
        """See `GeneratingSystem.drawn_with`."""
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

    def sampling(self, settings: Settings) -> dict[str, Any]:
        """See `GeneratingSystem.sampling`."""
        return {**super().sampling(settings), "top_k": settings.top_k, "stop": settings.stop}

    def model_input(self, lm: Any, prompt: Prompt, settings: Settings) -> str:
        """See `GeneratingSystem.model_input`."""
        return model_input(
            lm.encoder,
            prompt.text,
            chat=settings.apply_chat_template,
            system=settings.system_prompt,
            max_positions=lm.capabilities.max_positions,
        )

    def record_of(self, prompt: Prompt, texts: Mapping[str, Any]) -> dict[str, Any]:
        """See `GeneratingSystem.record_of`."""
        if not texts:
            return {**_with_id(prompt), "output": []}
        names = [name for name in Record.__annotations__ if name in texts and name != "error"]
        results = {"chat_history": history(prompt.text), **{name: texts[name] for name in names}}
        return {**_with_id(prompt), **results}

    def rows(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one row per sample; one for a prompt without any."""
        shared = {"prompt": record.get(PROMPT), "error": record.get("error")}
        pairs = zip(record["output"], record.get("finish", []), strict=True)
        rows = [
            {"sample": k, "text": text, "finish": end} for k, (text, end) in enumerate(pairs, 1)
        ]
        return [
            {**shared, **row} for row in rows or [{"sample": None, "text": None, "finish": None}]
        ]

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
        """Count the samples, by finish."""
        n_items = n_empty = 0
        ends: collections.Counter[str] = collections.Counter()
        failures = []
        for n_items, record in enumerate(records, start=1):
            if "error" in record:
                failures.append((name_of(record, n_items), record["error"]))
            else:
                ends.update(record["finish"])
                n_empty += sum(not text for text in record["output"])
        n_good, n_samples = n_items - len(failures), ends.total()
        warnings = []
        if n_empty:
            remedy = "; a chat model reads its prompts with --apply-chat-template"
            warnings.append(
                f"{n_empty} of {n_samples} samples are empty: the model ended at once"
                f"{'' if settings.apply_chat_template else remedy}"
            )
        return Summary(
            headline=f"{n_good} of {n_items} prompts have {settings.n} samples each; of "
            f"{n_samples} samples {ends['eos']} ended by themselves, {ends['stop']} at a stop "
            f"string, {ends['length']} were cut by length",
            numbers={
                "n_items": n_items,
                "n_failed": len(failures),
                "n_samples": n_samples,
                "n_empty": n_empty,
                **{f"n_ended_by_{finish}": ends[finish] for finish in FINISHES},
            },
            failures=failures,
            warnings=warnings,
        )


def _names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that name an item."""
    return {name: fields[name] for name in NAME_FIELDS if name in fields}


def _with_id(prompt: Prompt) -> dict[str, Any]:
    """Return the fields of an item, with its number as `id` if it is unnamed."""
    return {**prompt.fields} if _names(prompt.fields) else {"id": prompt.id, **prompt.fields}


SYSTEM = Sample()
