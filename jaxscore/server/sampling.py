"""How texts are drawn: the fields that completions and chats share."""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxscore.server.fields import Field, flag, is_bool, is_int, is_number, is_string, whole
from jaxscore.types.requests import GenerationRequest

MOST_SAMPLES = 128
# Stop strings are searched for after each token, in the thread that all requests share; a search
# decodes as many characters as the longest one has.
MOST_STOPS, LONGEST_STOP = 64, 1000
HOTTEST = 1e30  # far below what float32 holds; all tokens are alike long before
LEAST_TEMPERATURE = 1e-5  # below it nothing but the most probable token is drawn


def _is_stop(value: Any) -> bool:
    texts = [value] if is_string(value) else value
    # U+FFFD stands for bytes that are no whole character yet.
    return (
        isinstance(texts, list)
        and len(texts) <= MOST_STOPS
        and all(
            is_string(one) and 0 < len(one) <= LONGEST_STOP and "\ufffd" not in one for one in texts
        )
    )


FIELDS: Mapping[str, Field] = {
    "model": Field("a name that /v1/models tells", is_string),
    "temperature": Field(
        "a number from 0, which is greedy, to 1e30",
        lambda v: is_number(v) and 0 <= v <= HOTTEST,
        1.0,
    ),
    "top_p": Field("a number from 0 to 1", lambda v: is_number(v) and 0 <= v <= 1, 1.0),
    "n": whole(1, MOST_SAMPLES, 1),
    "stop": Field(
        f"a string of 1 to {LONGEST_STOP} characters without U+FFFD, or a list of at most "
        f"{MOST_STOPS} of them",
        _is_stop,
        [],
    ),
    "seed": Field("a whole number", is_int),
    "stream": flag(),
    "stream_options": Field(
        'an object {"include_usage": true or false}',
        lambda v: (
            isinstance(v, dict) and v.keys() <= {"include_usage"} and all(map(is_bool, v.values()))
        ),
        {},
    ),
    "user": Field("anything", lambda v: True),
}

# Fields of OpenAI's and vLLM's that would change the numbers, with what changes nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "response_format": ({"type": "text"},),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "use_beam_search": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
}


class Sampling(NamedTuple):
    """How the texts of one request are drawn."""

    temperature: float
    top_p: float
    n: int
    stop: tuple[str, ...]
    seed: int

    def request(
        self, place: int, ids: np.ndarray, sample: int, max_tokens: int
    ) -> GenerationRequest:
        """The request of one sample of a prompt."""
        return GenerationRequest(
            place,
            ids,
            max_tokens,
            self.temperature,
            self.top_p,
            self.stop,
            self._seed_of(sample),
        )

    def _seed_of(self, sample: int) -> int:
        """The request's seed for its first sample; the others have seeds that no request beside
        it is likely to have."""
        if not sample:
            return self.seed
        digest = hashlib.blake2b(f"{self.seed} {sample}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little")


def sampling_of(asked: Mapping[str, Any]) -> Sampling:
    """From the fields of a request; one without a seed gets one that nobody has seen."""
    greedy = asked["temperature"] < LEAST_TEMPERATURE or asked["top_p"] == 0
    stop = asked["stop"]
    return Sampling(
        0.0 if greedy else float(asked["temperature"]),
        1.0 if greedy else float(asked["top_p"]),
        asked["n"],
        (stop,) if isinstance(stop, str) else tuple(stop),
        secrets.randbits(32) if asked["seed"] is None else asked["seed"] % 2**32,
    )
