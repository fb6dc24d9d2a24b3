"""Prompts of `sample`: a text or a conversation each, and what else is said of them.

A prompt becomes the text that the model reads: through the chat template where one is asked for,
and with the BOS that the tokenizer would put before it written out, since `self-certainty`, which
reads that text again, adds no special token.
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.io.items import NAME_FIELDS, NOTHING, Row, item_label, read_rows
from jaxscore.io.json_input import json_kind
from jaxscore.io.printable import is_valid_unicode
from jaxscore.systems.samples import sample_items
from jaxscore.systems.samples.sample_items import NothingUsable
from jaxscore.text import chat_template
from jaxscore.text.chat_template import Message
from jaxscore.text.encoder import TextEncoder

PROMPT, MESSAGES = "prompt", "messages"
FIELDS = ("id", PROMPT, MESSAGES)  # those that --column renames
# What a record has beside the prompt's own fields.
OWN_FIELDS = (
    "chat_history", "model_input", "output", "finish", "generator", "configs", "error",
)  # fmt: skip
SEEDS = 1 << 32


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        index: from 0.
        name: for people, counted from 1.
        given: all of its fields, and an `id` where it has no name of its own.
        asked: the text, or the messages.
        first_seed: of the draws of its first sample; each further one has the next number.
        error: why it cannot be used.
    """

    index: int
    name: str
    given: dict[str, Any]
    asked: str | list[Message]
    first_seed: int
    error: str | None = None

    @property
    def history(self) -> list[str]:
        """What was said, the system message left out."""
        if isinstance(self.asked, str):
            return [self.asked]
        return [one["content"] for one in self.asked if one["role"] != "system"]


def load(
    path: Path, seed: int, limit: int | None = None, columns: Mapping[str, str] = NOTHING
) -> list[Prompt]:
    """The first `limit` prompts of a file, see `read`.

    Args:
        path: JSONL, or a table, see `jaxscore.io.items`.
        columns: field -> its name in the file.

    Raises:
        InputError: the file cannot be read; no prompt can be used.
    """
    found = itertools.islice(read_rows(path, columns, (MESSAGES,)), limit)
    try:
        return _prompts(map(functools.partial(_in_file, path), found), seed)
    except NothingUsable as problem:
        raise NothingUsable(f"{path}: {problem}") from None


def read(given: Iterable[Any], seed: int) -> list[Prompt]:
    """Prompts from objects as a file has them. One that cannot be used says why.

    The id of one without a name is its position from 1, in a file its line.

    Args:
        seed: from which, the prompt and its id the seeds of the samples come. Prompts beside it
            have no part in them, but those before it that are equal to it in both.

    Raises:
        NothingUsable: no prompts, or none that can be used.
        InputError: one is no object.
    """
    objects = enumerate(sample_items.objects(given), start=1)
    return _prompts((_Given(number, "", one) for number, one in objects), seed)


class _Given(NamedTuple):
    """An object with its place from 1, and what an error says of the place beside that."""

    number: int
    where: str
    item: dict[str, Any]


def _in_file(path: Path, row: Row) -> _Given:
    """An output file holds the error, so the path is no part of it."""
    by_line = row.where == f"{path}:{row.number}"
    return _Given(row.number, f"line {row.number}: " if by_line else "", row.item)


def _prompts(given: Iterable[_Given], seed: int) -> list[Prompt]:
    seen: collections.Counter[str] = collections.Counter()
    out = []
    for index, (number, where, one) in enumerate(given):
        named = {name: one[name] for name in NAME_FIELDS if name in one}
        known = dict(one) if named else {"id": number, **one}
        asked: str | list[Message] = ""
        error = None
        try:
            asked = _asked(one)
        except InputError as problem:
            error = f"{where}{problem}"
        # The number of a line is no part of it: prompts may be added before this one.
        said = json.dumps([seed, named, asked], sort_keys=True, default=str)
        digest = hashlib.sha256(f"{said} {seen[said]}".encode()).digest()
        seen[said] += 1
        first = int.from_bytes(digest[:4], "big")
        out.append(Prompt(index, item_label(index, known), known, asked, first, error))
    sample_items.refuse_if_all_failed((one.name, one.error) for one in out)
    return out


def _asked(given: Mapping[str, Any]) -> str | list[Message]:
    """The text or the messages.

    Raises:
        InputError: neither, both, or of another form; a field has the name of one of the results.
    """
    if taken := [name for name in OWN_FIELDS if name in given]:
        raise InputError(
            f'field "{taken[0]}" is one of those that the item gets; rename it, or leave it out'
        )
    there = ", ".join(map(repr, given)) or "none"
    expected = f'expected either a string "{PROMPT}" or a list "{MESSAGES}"'
    if (PROMPT in given) == (MESSAGES in given):
        found = "both" if PROMPT in given else f"there are {there}"
        raise InputError(f"{expected}; {found}")
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
    return {name: given[name] for name in ("role", "content")}


def _readable(text: str, field: str) -> str:
    if not is_valid_unicode(text):
        raise InputError(f'field "{field}" has half a surrogate pair, which is no character')
    return text


def model_input(
    encoder: TextEncoder,
    prompt: Prompt,
    *,
    chat: bool,
    system: str | None,
    most: int | None = None,
) -> str:
    """The text that the model reads: `self-certainty` takes the same token ids from it.

    Args:
        chat: through the chat template.
        system: a message before all others.
        most: positions of the model; None is no limit.

    Raises:
        InputError: messages without the template; the template leaves something out or refuses
            it; there are two system messages; the text certainly has more tokens than `most`.
    """
    if not chat:
        if not isinstance(prompt.asked, str):
            raise InputError(
                f'field "{MESSAGES}" becomes a text by the chat template alone; give '
                f'--apply-chat-template, or a string "{PROMPT}"'
            )
        return _with_prefix(encoder, prompt.asked, most)
    messages = prompt.asked
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if system is not None:
        if any(one["role"] == "system" for one in messages):
            raise InputError("it has a system message of its own, and --system gives another")
        messages = [{"role": "system", "content": system}, *messages]
    text = chat_template.render(encoder.tokenizer, messages)
    if system is not None and system.strip() not in text:
        raise InputError(
            "the chat template leaves the system message out; leave out --system, and write what "
            "it says into the prompt"
        )
    return _with_prefix(encoder, text, most)


def _with_prefix(encoder: TextEncoder, text: str, most: int | None) -> str:
    """The text with the special tokens that the tokenizer puts before it.

    SentencePiece's first word has a blank before it, which after a written BOS is written too.
    """
    if not encoder.prefix:
        return text
    [wanted] = encoder.prompt_ids([text], most=most)
    head = "".join(encoder.tokenizer.convert_ids_to_tokens(encoder.prefix))
    candidates = [text, f"{head}{text}", f"{head} {text}"]
    found = encoder.prompt_ids(candidates, special_tokens=False)
    for candidate, ids in zip(candidates, found, strict=True):
        if ids.tolist() == wanted.tolist():
            return candidate
    return f"{head}{text}"
