"""What is computed for a completion: texts, and the numbers of their tokens.

All numbers come from one forest. A prompt's own tokens, and the most probable token after it, are
two sequences of one path; so what lm-eval asks (`echo`, `logprobs`, one greedy token) is one pass
without generation. Other texts are written first, and scored then if their numbers are asked for.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxscore.engine.generation.state import NOT_FINITE
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.server import logprobs
from jaxscore.server.completion_request import Asked
from jaxscore.server.errors import not_finite, refused
from jaxscore.server.jobs import Piece, after, every_token
from jaxscore.server.logprobs import Numbers
from jaxscore.server.service import Service
from jaxscore.server.written import stop_at
from jaxscore.types.results import Generated

CHOICE = 100  # numbers of tokens that take as long as a choice itself


class Written(NamedTuple):
    """One choice.

    Attributes:
        prompt: place of its prompt.
        ids: of all tokens that were written, an EOS included.
        text: without the EOS, and ended before a stop string.
        finish: "stop" or "length".
        numbers: of its prompt's tokens if asked for, and of `ids`; None where nobody asks.
    """

    prompt: int
    ids: list[int]
    text: str
    finish: str
    numbers: Numbers | None = None


async def written(service: Service, asked: Asked) -> list[Written]:
    """All choices of a request, in order, with the numbers that it asks for."""
    if asked.one_greedy:
        return await _most_probable(service, asked)
    n = asked.sampling.n
    if asked.fields["max_tokens"] == 0:
        choices = [Written(k // n, [], "", "length") for k in range(n * len(asked.prompts))]
    else:
        texts = await service.write(asked.requests())
        choices = [of_text(service, asked, k, text) for k, text in enumerate(texts)]
    return choices if asked.n_top is None else await scored(service, asked, choices)


def of_text(service: Service, asked: Asked, place: int, text: Generated) -> Written:
    """A choice from what the generator wrote.

    Raises:
        ApiError: nothing could be written, and why.
    """
    prompt = place // asked.sampling.n
    if text.error is not None:
        if text.error == NOT_FINITE:
            raise not_finite(f"prompt {prompt}")
        raise refused("prompt", f"prompt {prompt}: {text.error}")
    ids = text.token_ids.tolist()
    whole = service.token_bytes.joined(ids)
    own = whole[: stop_at(whole, asked.sampling.stop)]
    listed = ids if text.eos_id is None else [*ids, text.eos_id]
    return Written(prompt, listed, own, "length" if text.finish == "length" else "stop")


async def scored(service: Service, asked: Asked, choices: Sequence[Written]) -> list[Written]:
    """The choices with the numbers of their tokens."""
    n_top = asked.n_top or 0

    def piece(one: Written) -> Piece:
        ids = asked.prompts[one.prompt].ids
        whole = np.concatenate([ids, np.array(one.ids, np.int32)])
        return (TokenSequence(whole, 1 if asked.fields["echo"] else len(ids)),)

    def with_numbers(one: Written, piece: Piece, scores: SequenceScores) -> Written:
        which = f"prompt {one.prompt}"
        return one._replace(numbers=logprobs.numbers(piece[0].ids, scores, n_top, which))

    size = CHOICE * len(choices)
    pieces = await service.apart(size, lambda: list(map(piece, choices)))
    found = await service.score(pieces, n_top)
    return await service.apart(
        size,
        lambda: [
            with_numbers(one, piece, scores)
            for one, piece, [scores] in zip(choices, pieces, found, strict=True)
        ],
    )


async def _most_probable(service: Service, asked: Asked) -> list[Written]:
    """One greedy token after each prompt, out of the forest that scores the prompts."""
    n_top = asked.n_top or 0
    with_prompts = asked.n_top is not None and asked.fields["echo"]

    def pieces() -> list[Piece]:
        return [
            (every_token(prompt.ids), after(prompt.ids)) if with_prompts else (after(prompt.ids),)
            for prompt in asked.prompts
        ]

    def choice(k: int, scores: Sequence[SequenceScores]) -> Written:
        which = f"prompt {k}"
        own = logprobs.most_probable(scores[-1], n_top, which)
        one = _next(service, asked, k, int(own.ids[0]))
        if with_prompts:
            before = logprobs.numbers(asked.prompts[k].ids, scores[0], n_top, which)
            own = logprobs.joined(before, own)
        return one._replace(numbers=own)

    size = CHOICE * len(asked.prompts)
    found = await service.score(await service.apart(size, pieces), max(1, n_top))
    choices = await service.apart(size, lambda: list(map(choice, range(len(found)), found)))
    return [one for one in choices for _ in range(asked.sampling.n)]


def _next(service: Service, asked: Asked, prompt: int, id: int) -> Written:
    """One token as all that is written."""
    if id in service.eos_ids:
        return Written(prompt, [id], "", "stop")
    text = service.token_bytes.joined([id])
    end = stop_at(text, asked.sampling.stop)
    return Written(prompt, [id], text[:end], "length" if end is None else "stop")
