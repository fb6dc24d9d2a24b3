"""What a client may ask of `/v1/completions`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxscore.server import json_body
from jaxscore.server.errors import refused
from jaxscore.server.fields import Field, flag, read, whole
from jaxscore.server.prompts import EXPECTED, Prompt, check_room, encoded
from jaxscore.server.sampling import FIELDS, NEUTRAL, Sampling, sampling_of
from jaxscore.server.service import Service
from jaxscore.server.settings import MOST_NUMBERS, MOST_PROMPTS
from jaxscore.types.requests import GenerationRequest

NEUTRAL_HERE = {**NEUTRAL, "suffix": ("",), "best_of": (1,)}


def fields(most_logprobs: int) -> Mapping[str, Field]:
    """The fields of a completion."""
    return {
        **FIELDS,
        "prompt": Field(EXPECTED, lambda value: True, required=True),
        "max_tokens": whole(0, default=16),
        "logprobs": whole(0, most_logprobs),
        "echo": flag(),
        "add_special_tokens": flag(True),
        "return_tokens_as_token_ids": flag(),
    }


class Asked(NamedTuple):
    """A request that can be answered."""

    fields: Mapping[str, Any]
    prompts: list[Prompt]
    sampling: Sampling

    @property
    def n_top(self) -> int | None:
        """Most probable tokens at each place; None where no numbers are asked for."""
        return self.fields["logprobs"]

    @property
    def one_greedy(self) -> bool:
        """Whether the most probable next token is all that is written."""
        return self.fields["max_tokens"] == 1 and self.sampling.temperature == 0

    def requests(self) -> list[GenerationRequest]:
        """The texts to write: each prompt's samples in turn."""
        n = self.sampling.n
        return [
            self.sampling.request(n * k + j, prompt.ids, j, self.fields["max_tokens"])
            for k, prompt in enumerate(self.prompts)
            for j in range(n)
        ]


def asked_of(service: Service, raw: bytes) -> Asked:
    """What a body asks for.

    Raises:
        ApiError: it cannot be answered, and why.
    """
    body = json_body.parse(raw)
    found = read(body, fields(service.settings.max_logprobs), NEUTRAL_HERE)
    service.check_model(found["model"])
    prompts = encoded(service, found["prompt"], found["add_special_tokens"])
    if found["n"] * len(prompts) > MOST_PROMPTS:
        raise refused(
            "n",
            f"n is {found['n']} for {len(prompts)} prompts, expected at most {MOST_PROMPTS} "
            "choices together; send several requests",
        )
    check_room(service, prompts, found["max_tokens"], "max_tokens")
    if found["echo"] and found["logprobs"] is not None:
        _check_numbers(found["n"] * sum(len(one.ids) for one in prompts), found["logprobs"])
    return Asked(found, prompts, sampling_of(found))


def _check_numbers(n_tokens: int, n_top: int) -> None:
    if n_tokens * (1 + n_top) > MOST_NUMBERS:
        raise refused(
            "logprobs",
            f"logprobs is {n_top} for {n_tokens} tokens of all choices, which are "
            f"{n_tokens * (1 + n_top)} log-probabilities, expected at most {MOST_NUMBERS}; send "
            "several requests",
        )
