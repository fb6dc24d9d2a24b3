"""Prompts of a request, tokenized and checked: texts, token ids and conversations."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxscore.errors import InputError
from jaxscore.plan.requests import TokenSequence
from jaxscore.server.errors import CONTEXT_LENGTH, invalid_field
from jaxscore.server.request_models import Message
from jaxscore.server.service import Service
from jaxscore.server.settings import MAX_PROMPTS
from jaxscore.text import chat_template


class Prompt(NamedTuple):
    """One tokenized prompt.

    Attributes:
        ids: int32 [n], n >= 1.
        text: as sent by the client, or as decoded from its ids.
        starts: [n], offset in `text` of each token, in characters.
    """

    ids: np.ndarray
    text: str
    starts: list[int]


def tokenize_prompts(
    service: Service,
    prompts: list[str] | list[list[int]],
    special_tokens: bool,
    field: str = "prompt",
    noun: str = "prompt",
) -> list[Prompt]:
    """Tokenize the prompts of a request; an unusable one refuses them all.

    Args:
        service: its tokenizer.
        prompts: texts, or token ids, which are used unchanged.
        special_tokens: whether a text gets the tokenizer's BOS.
        field, noun: the client's field that the prompts come from, and what messages call one.

    Raises:
        ApiError: 400, with the index of the prompt and the reason.
    """
    if len(prompts) > MAX_PROMPTS:
        raise invalid_field(
            field,
            f"{field} has {len(prompts)} {noun}s, expected at most {MAX_PROMPTS}; send several "
            "requests",
        )
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if texts:
        for k, text in enumerate(texts):
            if len(text) > service.max_characters():
                raise _too_long(service, field, f"{noun} {k} has", len(text))
        tokenized = service.encoder.prompts(
            texts, special_tokens=special_tokens, most=service.max_positions
        )
        found = [Prompt(ids, t, starts) for t, (ids, starts) in zip(texts, tokenized, strict=True)]
    else:
        id_lists = (prompt for prompt in prompts if isinstance(prompt, list))
        found = [
            _prompt_of_ids(service, ids, field, f"{noun} {k}") for k, ids in enumerate(id_lists)
        ]
    for k, prompt in enumerate(found):
        if not len(prompt.ids):
            raise invalid_field(
                field, f"{noun} {k} has no tokens, so nothing can follow it; write some text"
            )
    sequences = [TokenSequence(prompt.ids, len(prompt.ids)) for prompt in found]
    for k, problem in sorted(service.scorer.engine.complaints(sequences).items()):
        if len(found[k].ids) <= service.max_positions:  # `check_length` reports the others
            raise invalid_field(field, f"{noun} {k}: {problem}")
    return found


def check_length(service: Service, prompts: list[Prompt], max_tokens: int, field: str) -> None:
    """Check that each prompt and `max_tokens` tokens after it fit in the model's positions.

    Args:
        service: its model.
        prompts: all prompts of a request.
        max_tokens: most tokens that are generated.
        field: name of the client's field for `max_tokens`.

    Raises:
        ApiError: 400, with the index of the prompt and the numbers.
    """
    limit = service.max_positions
    for k, prompt in enumerate(prompts):
        n = len(prompt.ids)
        if n + max_tokens > limit:
            raise invalid_field(
                "prompt" if n > limit else field,
                f"prompt {k} has {n} tokens and {field} is {max_tokens}, together "
                f"{n + max_tokens}; the model takes {limit}; shorten the prompt, or request fewer "
                "tokens",
                CONTEXT_LENGTH,
            )


def tokenize_conversation(service: Service, messages: Sequence[Message]) -> Prompt:
    """Render a conversation by the chat template and tokenize it.

    Raises:
        ApiError: 400, the template refuses it, or it is too long.
    """
    tokenizer = service.encoder.tokenizer
    texts = [message.text for message in messages]
    n_characters = sum(map(len, texts))
    if n_characters <= service.max_characters():
        rendered = [
            {"role": message.role, "content": text}
            for message, text in zip(messages, texts, strict=True)
        ]
        try:
            text = chat_template.render(tokenizer, rendered)
        except InputError as error:
            # The message begins with the tokenizer's folder, which clients must not see.
            problem = str(error).removeprefix(f"{tokenizer.name_or_path}: ")
            raise invalid_field("messages", problem) from None
        n_characters = len(text)
    if n_characters > service.max_characters():
        raise _too_long(service, "messages", "the messages have", n_characters)
    [prompt] = tokenize_prompts(service, [text], True)
    return prompt


def _too_long(service: Service, param: str, subject: str, n_characters: int) -> Exception:
    return invalid_field(
        param,
        f"{subject} {n_characters} characters, more than the model's {service.max_positions} "
        "positions can hold; shorten the text",
        CONTEXT_LENGTH,
    )


def _prompt_of_ids(service: Service, ids: list[int], field: str, subject: str) -> Prompt:
    n_ids = service.scorer.model.vocab_size
    unknown = next((id for id in ids if not 0 <= id < n_ids), None)
    if unknown is not None:
        raise invalid_field(
            field,
            f"{subject} has token id {unknown}, expected an id of the model's vocabulary, 0 "
            f"to {n_ids - 1}",
        )
    return Prompt(np.array(ids, np.int32), *service.token_bytes.text_and_starts(ids, is_first=True))
