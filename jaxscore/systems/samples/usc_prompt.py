"""`usc-generate`: ask a model which of its responses agrees most with the others.

Universal self-consistency (Chen et al., arXiv 2311.17311), with the prompt that the
self-certainty paper prints (arXiv 2502.18581, appendix). `usc-select` reads the reply.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.items import item_label, read_items
from jaxscore.io.json_input import json_kind
from jaxscore.systems.samples import earlier_output, sample_items
from jaxscore.systems.samples.sample_items import NothingUsable
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated

INSTRUCTION = """\
Evaluate these responses.
Select the most consistent response based on majority consensus.
Format your answer as "The most consistent response is Response X" (without quotes).
"""
# Where the question stands in a prompt of ZeroEval's: the code template, the open-ended one. The
# second's beginning is in the first's, so the order matters.
QUESTION_BETWEEN = (("### Question:", "### Format:"), ("## Question:", "## Instruction"))
NOT_YET = "not generated yet"


@dataclasses.dataclass(frozen=True)
class Item:
    """A question with responses to choose from.

    Attributes:
        index: from 0.
        name: for people, counted from 1.
        given: all of its fields but `error`, which an earlier run may have left.
        prompt: what the model is asked.
        responses: the first n, numbered from 0 in the prompt.
        error: why the item cannot be used; it then has neither.
    """

    index: int
    name: str
    given: dict[str, Any]
    prompt: str
    responses: list[str]
    error: str | None = None


def load(path: Path, n: int, limit: int | None = None) -> list[Item]:
    """The first `limit` items of a `.json` or `.parquet` file, see `read`.

    Raises:
        InputError: as `read_items`; no item can be used.
    """
    given = read_items(path, ["output", "chat_history"])[:limit]
    try:
        return read(given, n)
    except NothingUsable as problem:
        raise NothingUsable(f"{path}: {problem}") from None


def read(given: Iterable[Any], n: int) -> list[Item]:
    """Items from objects as a file has them. An item that cannot be used says why.

    Raises:
        NothingUsable: no items, or none that can be used.
        InputError: one is no object.
    """
    items = [_item(index, one, n) for index, one in enumerate(sample_items.objects(given))]
    sample_items.refuse_if_all_failed((item.name, item.error) for item in items)
    return items


def _item(index: int, given: dict[str, Any], n: int) -> Item:
    name = item_label(index, given)
    rest = {field: value for field, value in given.items() if field != "error"}
    try:
        asked, responses = question(given), _responses(given, n)
    except InputError as problem:
        return Item(index, name, rest, "", [], str(problem))
    return Item(index, name, rest, prompt(asked, responses), responses)


def question(given: Mapping[str, Any]) -> str:
    """What the responses answer.

    It is the first message of `chat_history`, else `model_input` or `input`: the part between the
    headings of the published prompts where the text has them, else all of it. (The published
    script takes the code prompt's headings only, and asks about an empty question without them.)

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


def _responses(given: Mapping[str, Any], n: int) -> list[str]:
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


def resume(
    items: Sequence[Item],
    previous: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    path: Path,
) -> tuple[list[dict[str, Any] | None], int]:
    """What an earlier run has left of each item's record.

    Args:
        items: of this run.
        previous: item k's record at place k; may be fewer than items.
        settings: what this run generates with.
        path: where the records come from.

    Returns:
        One entry per item, None where no reply to the same prompt is known, and how many items
        have changed.

    Raises:
        InputError: as `earlier_output.check_input` and `continued.check_settings`.
    """
    same = [
        None if item.error else record.get("chat_history") == [item.prompt]
        for item, record in zip(items, previous, strict=False)
    ]
    same += [False] * (len(previous) - len(same))
    n_changed = earlier_output.check_input(len(items), same, path)
    out: list[dict[str, Any] | None] = [None] * len(items)
    for item, record, is_same in zip(items, previous, same, strict=False):
        reply = record.get("output")
        if is_same and isinstance(reply, list) and len(reply) == 1 and isinstance(reply[0], str):
            configs = record.get("configs")
            found = configs if isinstance(configs, dict) else {}
            found = {"generator": record.get("generator"), **found}
            earlier_output.check_settings(item.name, found, settings, path)
            out[item.index] = _record(item, record.get("model_input"), reply, found)
    return out, n_changed


def check_dtype(
    items: Sequence[Item],
    records: Sequence[Mapping[str, Any] | None],
    dtype: str,
    path: Path,
) -> None:
    """Refuse replies that were written in another precision than this run's, as far as they say.

    Apart from the other settings, since what `auto` means is known once the model is loaded.

    Raises:
        InputError: as `earlier_output.check_settings`.
    """
    for item, record in zip(items, records, strict=True):
        if record is None or "error" in record:  # its `configs`, if any, are the input's
            continue
        if "dtype" in record["configs"]:
            earlier_output.check_settings(item.name, record["configs"], {"dtype": dtype}, path)


def requests(
    items: Sequence[Item],
    rendered: Sequence[str],
    *,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> list[GenerationRequest]:
    """One per item, drawn with a seed of its own, so that it does not matter what runs with it.

    Args:
        items: that can be used.
        rendered: their prompts as the chat template has them.
        max_new_tokens, temperature, top_p: as `GenerationRequest` has them.
        seed: of the first item of the file.
    """
    return [
        GenerationRequest(
            id=item.name,
            prompt=text,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed + item.index,
        )
        for item, text in zip(items, rendered, strict=True)
    ]


def evaluate(
    item: Item, rendered: str, generated: Generated, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The record of an item that was asked: what `usc-select` reads."""
    if generated.error:
        return failed(item, generated.error)
    return _record(item, rendered, [generated.text.strip()], settings)


def failed(item: Item, error: str) -> dict[str, Any]:
    """The record of an item without a reply."""
    asked = {} if item.error else {"chat_history": [item.prompt]}
    return {**item.given, **asked, "output": [], "responses": item.responses, "error": error}


def finished(
    items: Sequence[Item], records: Sequence[dict[str, Any] | None], at_least: int
) -> Iterator[dict[str, Any]]:
    """Records up to the first item that is still to be asked, but at least `at_least` of them."""
    n = next((k for k, record in enumerate(records) if record is None), len(items))
    n = max(n, at_least)
    for item, record in zip(items[:n], records[:n], strict=True):
        yield failed(item, NOT_YET) if record is None else record


def _record(
    item: Item, rendered: Any, reply: list[str], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The published keys first, then the item's other fields."""
    configs = {
        name: value for name, value in settings.items() if name != "generator" and value is not None
    }
    own = {
        "session_id": item.given.get("session_id", item.given.get("id", item.index)),
        "chat_history": [item.prompt],
        "model_input": rendered,
        "output": reply,
        "generator": settings["generator"],
        "configs": configs,
        "responses": item.responses,
    }
    return own | {name: value for name, value in item.given.items() if name not in own}
