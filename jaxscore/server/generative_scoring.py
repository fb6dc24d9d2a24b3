"""`POST /v1/score`: probabilities of label tokens after a query and each of its items.

The request has the fields that SGLang's `/v1/score` and vLLM's `/generative_scoring` share, and the
answer has the fields of both: `scores` as in SGLang, `data` as in vLLM.
"""

import time
import uuid
from typing import Annotated, Any

import numpy as np
import orjson
from pydantic import BeforeValidator, FailFast, Field, PlainValidator
from pydantic_core import PydanticCustomError

from jaxscore.plan.requests import TokenSequence
from jaxscore.server import CONTEXT_LENGTH, MAX_NUMBERS, invalid_field, not_finite
from jaxscore.server.endpoint import Answer, Call
from jaxscore.server.request_models import (
    ServedModelRequest,
    accept_only,
    describe_list,
    describe_value,
    flag,
    parse_object,
    validate,
)
from jaxscore.server.service import Prompt, Service, tokenize_prompts
from jaxscore.text.result_assembly import assemble_label_scores
from jaxscore.text.tokenize_requests import TokenizedRequest
from jaxscore.types.results import LabelScores

NUMBER_BYTES = 25  # of a probability in JSON


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(id) is int for id in value)


def read_query(value: Any) -> str | list[int]:
    """Check a query: a text or token ids, possibly empty."""
    if isinstance(value, str) or _are_ids(value):
        return value
    actual = describe_list(value) if isinstance(value, list) else describe_value(value)
    raise PydanticCustomError("prompt_shape", "no query", {"found": actual})


def read_items(value: Any) -> list[str] | list[list[int]]:
    """Check items: texts, or lists of token ids."""
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value) or all(map(_are_ids, value)):
            return value
        actual = describe_list(value)
    else:
        actual = describe_value(value)
    raise PydanticCustomError("prompt_shape", "no items", {"found": actual})


class LabelScoreRequest(ServedModelRequest):
    """Body of `/v1/score`."""

    query: Annotated[str | list[int], PlainValidator(read_query)] = Field(
        "", description="a string or a list of token ids"
    )
    items: Annotated[
        list[str] | list[list[int]],
        PlainValidator(read_items),
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = Field(description="a string, a list of strings, or a list of lists of token ids")
    label_token_ids: Annotated[list[int], FailFast()] = Field(
        min_length=1, description="a list of token ids"
    )
    apply_softmax: bool = flag()
    item_first: bool = flag()
    add_special_tokens: bool = flag(True)

    # Fields of SGLang's interface that are not implemented.
    temperature: Annotated[Any, accept_only(1)] = None
    return_token_logprobs: Annotated[Any, accept_only(False)] = None
    return_pooled_hidden_states: Annotated[Any, accept_only(False)] = None


async def score_labels(call: Call) -> Answer:
    """Compute the probability of each label token after the query and each item."""
    service = call.service
    request, prompts = await service.run_in_thread(
        len(call.body), lambda: read_label_scores(service, call.body)
    )
    labels = np.array(request.label_token_ids, np.int32)
    sequences = [TokenSequence(prompt.ids, len(prompt.ids), labels) for prompt in prompts]
    all_scores = await service.score([(sequence,) for sequence in sequences])

    def dump() -> bytes:
        results = [
            assemble_label_scores(k, TokenizedRequest((sequence,)), scores)
            for k, (sequence, [scores]) in enumerate(zip(sequences, all_scores, strict=True))
        ]
        return orjson.dumps(_answer(service, request, prompts, results))

    return Answer(await service.run_in_thread(NUMBER_BYTES * len(labels) * len(prompts), dump))


def read_label_scores(service: Service, raw: bytes) -> tuple[LabelScoreRequest, list[Prompt]]:
    """Validate a body, and tokenize the query with each of its items.

    Raises:
        ApiError: it cannot be answered; the message gives the reason.
    """
    request = validate(LabelScoreRequest, parse_object(raw))
    service.check_model(request.model)
    _check_labels(service, request)
    prompts = tokenize_prompts(
        service, _join(service, request), request.add_special_tokens, "items", "item"
    )
    for k, prompt in enumerate(prompts):
        if len(prompt.ids) > service.max_positions:
            raise invalid_field(
                "items",
                f"item {k} has {len(prompt.ids)} tokens with the query; the model takes "
                f"{service.max_positions}; shorten it",
                CONTEXT_LENGTH,
            )
    return request, prompts


def _join(service: Service, request: LabelScoreRequest) -> Any:
    """Join the query with each item: texts, or lists of ids."""
    query: Any = request.query
    items: list[Any] = request.items
    if type(query) is not type(items[0]):
        if query:
            item_type = "texts" if isinstance(query, list) else "lists of token ids"
            raise invalid_field(
                "query",
                f"query is {describe_value(query)} and items are {item_type}; send texts or ids",
            )
        query = type(items[0])()
    # A long query times many items would fill the memory.
    n, limit = len(items) * len(query) + sum(map(len, items)), service.settings.max_body
    if n > limit:
        raise invalid_field(
            "items",
            f"the query with each of {len(items)} items has {n} characters or ids, expected at "
            f"most {limit}; send several requests",
        )
    return [item + query if request.item_first else query + item for item in items]


def _check_labels(service: Service, request: LabelScoreRequest) -> None:
    ids, vocab_size = request.label_token_ids, service.scorer.model.vocab_size
    if (unknown := next((id for id in ids if not 0 <= id < vocab_size), None)) is not None:
        raise invalid_field(
            "label_token_ids",
            f"label_token_ids has {unknown}, expected ids from 0 to {vocab_size - 1}",
        )
    if len(set(ids)) < len(ids):
        raise invalid_field(
            "label_token_ids", "label_token_ids has an id twice, expected each label once"
        )
    if len(ids) * len(request.items) > MAX_NUMBERS:
        raise invalid_field(
            "label_token_ids",
            f"{len(ids)} labels for {len(request.items)} items are more than {MAX_NUMBERS} "
            "probabilities; send several requests",
        )


def _answer(
    service: Service, request: LabelScoreRequest, prompts: list[Prompt], results: list[LabelScores]
) -> dict[str, Any]:
    scores = []
    for result in results:
        if result.error is not None:
            raise not_finite(f"item {result.id}")
        of_labels = result.probability if request.apply_softmax else np.exp(result.logprob)
        scores.append(of_labels.tolist())
    n_tokens = sum(len(prompt.ids) for prompt in prompts)
    return {
        "id": f"score-{uuid.uuid4().hex}",
        "object": "scoring",
        "created": int(time.time()),
        "model": request.model or service.settings.names[0],
        "scores": scores,
        "data": [
            {"index": k, "object": "score", "score": first} for k, (first, *_) in enumerate(scores)
        ],
        "usage": {"prompt_tokens": n_tokens, "completion_tokens": 0, "total_tokens": n_tokens},
    }
