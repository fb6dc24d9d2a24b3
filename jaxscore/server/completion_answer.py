"""A completion as the client reads it."""

from collections.abc import Sequence
from typing import Any

from jaxscore.server import logprobs
from jaxscore.server.completion_choices import Written
from jaxscore.server.completion_request import Asked
from jaxscore.server.service import Service

BYTES = 100  # of a choice without its text and numbers


def choice(service: Service, asked: Asked, index: int, one: Written) -> dict[str, Any]:
    """A choice as the client reads it."""
    echo, prompt = asked.fields["echo"], asked.prompts[one.prompt]
    before = prompt.text if echo else ""
    listed = None
    if asked.n_top is not None and one.numbers is not None:
        _, starts = service.token_bytes.placed(one.ids, first=False)
        end = len(before) + len(one.text)
        starts = [min(len(before) + start, end) for start in starts]
        listed = logprobs.of_completion(
            service.token_bytes,
            int(prompt.ids[0]) if echo else None,
            one.numbers,
            [*prompt.starts, *starts] if echo else starts,
            as_ids=asked.fields["return_tokens_as_token_ids"],
        )
    return {
        "index": index,
        "text": before + one.text,
        "logprobs": listed,
        "finish_reason": one.finish,
    }


def size(asked: Asked, one: Written) -> int:
    """Bytes of a choice's JSON, about."""
    numbers = 0 if one.numbers is None else logprobs.size(len(one.numbers.ids), asked.n_top or 0)
    return BYTES + len(one.text) + numbers


def usage(asked: Asked, choices: Sequence[Written]) -> dict[str, int]:
    """Tokens of all prompts, each counted once, and of all that was written."""
    n_given = sum(len(prompt.ids) for prompt in asked.prompts)
    n_written = sum(len(one.ids) for one in choices)
    return {
        "prompt_tokens": n_given,
        "completion_tokens": n_written,
        "total_tokens": n_given + n_written,
    }
