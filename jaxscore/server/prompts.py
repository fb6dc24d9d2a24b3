"""Prompts of a request: texts or token ids, checked and encoded."""

from typing import Any, NamedTuple

import numpy as np

from jaxscore.io.json_input import json_kind
from jaxscore.plan.requests import TokenSequence
from jaxscore.server.errors import refused
from jaxscore.server.fields import is_int, is_string, told
from jaxscore.server.service import Service
from jaxscore.server.settings import MOST_PROMPTS

EXPECTED = (
    "a string, a list of strings, a list of token ids, or a list of lists of token ids, none of "
    "these lists empty"
)
TOO_LONG = "context_length_exceeded"


class Prompt(NamedTuple):
    """One prompt.

    Attributes:
        ids: int32 [n], at least one.
        text: as given, or as the ids are read.
        starts: [n], characters of `text` before each token.
    """

    ids: np.ndarray
    text: str
    starts: list[int]


def shape(value: Any) -> list[str] | list[list[int]]:
    """The prompts that a field holds.

    Raises:
        ApiError: 400, it is of none of the four shapes.
    """
    if is_string(value):
        return [value]
    if isinstance(value, list) and value:
        if all(map(is_string, value)):
            return value
        if all(map(is_int, value)):
            return [value]
        if all(isinstance(one, list) and one and all(map(is_int, one)) for one in value):
            return value
    raise refused("prompt", f"prompt is {_found(value)}; expected {EXPECTED}")


def encoded(service: Service, value: Any, special_tokens: bool) -> list[Prompt]:
    """The prompts of a field; one that cannot be used refuses them all.

    Raises:
        ApiError: 400, which prompt, from 0, and why.
    """
    given = shape(value)
    if len(given) > MOST_PROMPTS:
        raise refused(
            "prompt",
            f"prompt has {len(given)} prompts, expected at most {MOST_PROMPTS}; send several "
            "requests",
        )
    texts = [one for one in given if isinstance(one, str)]
    if not texts:
        ids = (one for one in given if isinstance(one, list))
        prompts = [_of_ids(service, k, one) for k, one in enumerate(ids)]
    else:
        most = service.room()
        for k, text in enumerate(texts):
            if len(text) > most:
                raise refused(
                    "prompt",
                    f"prompt {k} has {len(text)} characters, more than the model's "
                    f"{service.max_positions} positions can hold; shorten it",
                    TOO_LONG,
                )
        found = service.encoder.prompts(
            texts, special_tokens=special_tokens, most=service.max_positions
        )
        prompts = [Prompt(ids, t, starts) for t, (ids, starts) in zip(texts, found, strict=True)]
    for k, prompt in enumerate(prompts):
        if not len(prompt.ids):
            raise refused(
                "prompt",
                f"prompt {k} has no tokens, so nothing comes after it; write some text",
            )
    sequences = [TokenSequence(prompt.ids, len(prompt.ids)) for prompt in prompts]
    for k, why in sorted(service.scorer.engine.complaints(sequences).items()):
        if len(prompts[k].ids) <= service.max_positions:  # length is told beside max_tokens
            raise refused("prompt", f"prompt {k}: {why}")
    return prompts


def check_room(service: Service, prompts: list[Prompt], max_tokens: int, field: str) -> None:
    """See that each prompt and what may follow fit in the model's positions.

    Raises:
        ApiError: 400, which prompt does not, with the numbers.
    """
    most = service.max_positions
    for k, prompt in enumerate(prompts):
        n = len(prompt.ids)
        if n + max_tokens > most:
            raise refused(
                "prompt" if n > most else field,
                f"prompt {k} has {n} tokens and {field} is {max_tokens}, together "
                f"{n + max_tokens}; the model takes {most}; shorten the prompt, or ask for fewer "
                "tokens",
                TOO_LONG,
            )


def _of_ids(service: Service, place: int, ids: list[int]) -> Prompt:
    most = service.scorer.model.vocab_size
    wrong = next((id for id in ids if not 0 <= id < most), None)
    if wrong is not None:
        raise refused(
            "prompt",
            f"prompt {place} has token id {wrong}, expected 0 to {most - 1}, which the model's "
            "vocabulary has",
        )
    return Prompt(np.array(ids, np.int32), *service.token_bytes.placed(ids, first=True))


def _found(value: Any) -> str:
    if isinstance(value, list) and value:
        kinds = sorted({"an empty list" if one == [] else json_kind(one) for one in value})
        return f"a list of {' and '.join(kinds)}"
    return "missing" if value is None else told(value)
