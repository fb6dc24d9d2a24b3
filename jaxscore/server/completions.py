"""`POST /v1/completions` and `/v1/chat/completions`: OpenAI's answers, complete and streamed."""

import asyncio
import collections
import contextlib
import functools
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from jaxscore.engine.generation.state import most_new_tokens
from jaxscore.server import MAX_NUMBERS, MAX_PROMPTS, invalid_field
from jaxscore.server.choices import (
    Choice,
    ChoiceRequest,
    TokenLogprobs,
    compute_choices,
    stream_choices,
)
from jaxscore.server.endpoint import EVENTS, Answer, Call, Stream
from jaxscore.server.request_models import (
    ChatRequest,
    CompletionRequest,
    parse_object,
    validate,
)
from jaxscore.server.service import Service, check_length, tokenize_conversation, tokenize_prompts
from jaxscore.text.decoder import TokenBytes

ENTRY_BYTES, CHOICE_BYTES = 40, 100  # of a token's JSON, and of a choice without its tokens
DONE = b"data: [DONE]\n\n"


async def complete(call: Call) -> Answer | Stream:
    """Score prompts, and generate texts after them."""
    service = call.service
    request = await service.run_in_thread(
        len(call.body), lambda: read_completion(service, call.body)
    )
    head = _head(service, request, "cmpl", "text_completion")
    if request.fields.stream:
        return Stream(_stream_completion(service, request, head), EVENTS, _end_stream)
    return await _answer(service, request, head, _completion_choice)


async def chat(call: Call) -> Answer | Stream:
    """Generate answers to a conversation."""
    service = call.service
    # Always in a thread, since the chat template may take long.
    request = await asyncio.get_running_loop().run_in_executor(
        service.chat_threads, read_chat, service, call.body
    )
    if request.fields.stream:
        head = _head(service, request, "chatcmpl", "chat.completion.chunk")
        return Stream(_stream_chat(service, request, head), EVENTS, _end_stream)
    head = _head(service, request, "chatcmpl", "chat.completion")
    if request.fields.return_token_ids:
        head["prompt_token_ids"] = request.prompts[0].ids.tolist()
    return await _answer(service, request, head, _chat_choice)


# (service, request, index of the choice, choice) -> the choice in the answer's JSON
Render = Callable[[Service, ChoiceRequest, int, Choice], dict[str, Any]]


async def _answer(
    service: Service, request: ChoiceRequest, head: dict[str, Any], render: Render
) -> Answer:
    """Return a complete answer."""
    choices = await compute_choices(service, request)

    def dump() -> bytes:
        rendered = [render(service, request, k, choice) for k, choice in enumerate(choices)]
        return _dump({**head, "choices": rendered, "usage": _usage(request, choices)})

    size = sum(_json_size(request, choice) for choice in choices)
    return Answer(await service.run_in_thread(size, dump))


def read_completion(service: Service, raw: bytes) -> ChoiceRequest:
    """Validate the body of a completion and tokenize its prompts.

    Raises:
        ApiError: it cannot be answered; the message gives the reason.
    """
    fields = validate(CompletionRequest, parse_object(raw), service.settings.max_logprobs)
    service.check_model(fields.model)
    prompts = tokenize_prompts(service, fields.prompt, fields.add_special_tokens)
    if fields.n * len(prompts) > MAX_PROMPTS:
        raise invalid_field(
            "n",
            f"n is {fields.n} for {len(prompts)} prompts, expected at most {MAX_PROMPTS} "
            "choices together; send several requests",
        )
    check_length(service, prompts, fields.max_tokens, "max_tokens")
    if fields.stream and fields.prompt_logprobs is not None:
        raise invalid_field(
            "prompt_logprobs",
            "prompt_logprobs is not part of a stream; leave stream out, or set echo and logprobs",
        )
    _check_numbers(fields, fields.n * sum(len(prompt.ids) for prompt in prompts))
    return ChoiceRequest(
        fields,
        prompts,
        fields.max_tokens,
        fields.logprobs,
        echo=fields.echo,
        n_prompt_top=fields.prompt_logprobs,
        as_ids=fields.return_tokens_as_token_ids,
    )


def _check_numbers(fields: CompletionRequest, n_tokens: int) -> None:
    """Refuse an answer with too many log-probabilities of prompts.

    Args:
        n_tokens: tokens of the prompts of all choices.
    """
    echoed = fields.logprobs if fields.echo else None
    tops = {"logprobs": echoed, "prompt_logprobs": fields.prompt_logprobs}
    requested = {name: top for name, top in tops.items() if top is not None}
    n_numbers = n_tokens * sum(1 + top for top in requested.values())
    if n_numbers > MAX_NUMBERS:
        name, top = next(iter(requested.items()))
        raise invalid_field(
            name,
            f"{name} is {top} for {n_tokens} tokens of all choices, which are {n_numbers} "
            f"log-probabilities in all, expected at most {MAX_NUMBERS}; send several requests",
        )


def read_chat(service: Service, raw: bytes) -> ChoiceRequest:
    """Validate the body of a chat, render its conversation and tokenize it.

    Raises:
        ApiError: it cannot be answered; the message gives the reason.
    """
    fields = validate(ChatRequest, parse_object(raw), service.settings.max_logprobs)
    service.check_model(fields.model)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid_field("top_logprobs", "top_logprobs needs logprobs: true; send both")
    if fields.max_tokens is not None and fields.max_completion_tokens is not None:
        raise invalid_field(
            "max_tokens", "max_tokens and max_completion_tokens mean the same; send one of them"
        )
    prompt = tokenize_conversation(service, fields.messages, fields.chat_template_kwargs or {})
    limit, name = fields.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, name = fields.max_tokens, "max_tokens"
    check_length(service, [prompt], limit or 1, name)
    room = service.max_positions - len(prompt.ids)
    max_tokens = limit or min(room, most_new_tokens(prompt.ids, service.scorer.model))
    n_top = (fields.top_logprobs or 0) if fields.logprobs else None
    return ChoiceRequest(fields, [prompt], max_tokens, n_top, prompt_field="messages")


async def _stream_completion(
    service: Service, request: ChoiceRequest, head: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events whose texts and log-probabilities add up to the complete answer."""
    event = _event_builder(request, head)
    choices: list[Choice] = []
    unsent = collections.defaultdict[int, list[int]](list)  # ids of parts without text
    started: set[int] = set()

    def text_event(index: int, text: str, choice: Choice | None = None) -> bytes:
        reason = None if choice is None else choice.finish_reason
        fields = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
        if request.fields.return_token_ids:
            if index not in started:  # as in vLLM, with the first event of a choice
                prompt = request.prompts[index // request.fields.n]
                fields["prompt_token_ids"] = prompt.ids.tolist()
            started.add(index)
            fields["token_ids"] = unsent.pop(index, [])
        return event(fields)

    if request.echo and not request.has_whole_choices:
        for k in range(request.fields.n * len(request.prompts)):
            yield text_event(k, request.prompts[k // request.fields.n].text)
    async with contextlib.aclosing(stream_choices(service, request)) as parts:
        async for index, text, ids, choice in parts:
            unsent[index] += ids
            if choice is not None:
                choices.append(choice)
            if choice is not None and request.has_whole_choices:
                render = functools.partial(_completion_choice, service, request, index, choice)
                yield event(await service.run_in_thread(_json_size(request, choice), render))
            elif text or choice is not None:
                yield text_event(index, text, choice)
    if request.fields.stream_options.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(request, choices)})
    yield DONE


async def _stream_chat(
    service: Service, request: ChoiceRequest, head: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events: the role of each choice, its text, and its finish reason."""
    event = _event_builder(request, head)
    choices: list[Choice] = []
    started: set[int] = set()
    unsent = collections.defaultdict[int, list[int]](list)  # ids of parts without text

    def delta(index: int, content: dict[str, str], **more: Any) -> bytes:
        empty = {"logprobs": None, "finish_reason": None}
        ids = {"token_ids": unsent.pop(index, [])} if request.fields.return_token_ids else {}
        return event({"index": index, "delta": content, **empty, **more, **ids})

    async with contextlib.aclosing(stream_choices(service, request)) as parts:
        async for index, text, ids, choice in parts:
            if index not in started:
                if request.fields.return_token_ids and not started:  # as in vLLM, once
                    with_prompt = {**head, "prompt_token_ids": request.prompts[0].ids.tolist()}
                    event = _event_builder(request, with_prompt)
                started.add(index)
                yield delta(index, {"role": "assistant", "content": ""})
                event = _event_builder(request, head)
            unsent[index] += ids
            logprobs = None
            if choice is not None and request.n_top is not None:
                render = functools.partial(_chat_choice, service, request, index, choice)
                rendered = await service.run_in_thread(_json_size(request, choice), render)
                logprobs = rendered["logprobs"]
            if text or logprobs:
                yield delta(index, {"content": text}, logprobs=logprobs)
            if choice is not None:
                choices.append(choice)
                yield delta(index, {}, finish_reason=choice.finish_reason)
    if request.fields.stream_options.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(request, choices)})
    yield DONE


def _completion_choice(
    service: Service, request: ChoiceRequest, index: int, choice: Choice
) -> dict[str, Any]:
    """Return a choice of a completion, with the prompt's text and tokens if `echo` is set."""
    prompt = request.prompts[choice.prompt]
    before = prompt.text if request.echo else ""
    logprobs: dict[str, list[Any]] | None = None
    more: dict[str, Any] = {}
    n_scored = len(prompt.ids) - 1 if request.scores_prompts else 0  # tokens of the prompt
    if request.n_prompt_top is not None and choice.logprobs is not None:
        tokens = choice.logprobs.select(slice(n_scored), request.n_prompt_top)
        more = {"prompt_logprobs": prompt_logprobs(service.token_bytes, tokens)}
    if request.n_top is not None and choice.logprobs is not None:
        _, starts = service.token_bytes.text_and_starts(choice.ids, is_first=False)
        end = len(before) + len(choice.text)
        starts = [min(len(before) + start, end) for start in starts]
        logprobs = completion_logprobs(
            service.token_bytes,
            int(prompt.ids[0]) if request.echo else None,
            choice.logprobs.select(slice(0 if request.echo else n_scored, None), request.n_top),
            [*prompt.starts, *starts] if request.echo else starts,
            as_ids=request.as_ids,
        )
    if request.fields.return_token_ids:
        more |= {"prompt_token_ids": prompt.ids.tolist(), "token_ids": choice.ids}
    return {
        "index": index,
        "text": before + choice.text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        **more,
    }


def _chat_choice(
    service: Service, request: ChoiceRequest, index: int, choice: Choice
) -> dict[str, Any]:
    """Return a choice of a chat."""
    logprobs = None
    if request.n_top is not None and choice.logprobs is not None:
        logprobs = {"content": chat_logprobs(service.token_bytes, choice.logprobs)}
    return {
        "index": index,
        "message": {"role": "assistant", "content": choice.text},
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        **({"token_ids": choice.ids} if request.fields.return_token_ids else {}),
    }


def completion_logprobs(
    token_bytes: TokenBytes,
    first_id: int | None,
    tokens: TokenLogprobs,
    starts: Sequence[int],
    *,
    as_ids: bool,
) -> dict[str, list[Any]]:
    """Return the object `logprobs` of a completion's choice.

    Args:
        token_bytes: texts of the tokenizer's tokens.
        first_id: an unscored token before the others, or None.
        tokens: log-probabilities of the others.
        starts: characters before each token, including `first_id`.
        as_ids: write "token_id:7" instead of a token's text, to tell equal texts apart.
    """

    def name(id: int) -> str:
        return f"token_id:{id}" if as_ids else token_bytes.text(id)

    top: list[dict[str, Any]] = []
    for id, logprob, pairs in _entries(tokens):
        row: dict[str, Any] = {}
        for top_id, top_logprob in pairs:
            row.setdefault(name(top_id), top_logprob)
        row.setdefault(name(id), logprob)
        top.append(row)
    ids, none = tokens.ids.tolist(), [] if first_id is None else [None]
    return {
        "tokens": [name(id) for id in ([] if first_id is None else [first_id]) + ids],
        "token_logprobs": [*none, *tokens.logprob],
        "top_logprobs": [*none, *top],
        "text_offset": list(starts),
    }


def prompt_logprobs(token_bytes: TokenBytes, tokens: TokenLogprobs) -> list[Any]:
    """Return the list `prompt_logprobs` of a completion's choice, in vLLM's form.

    Args:
        tokens: log-probabilities of the prompt's tokens, without the first, whose entry is null.

    Returns:
        A dict per token: the token itself, then the most probable ones.
    """

    def entry(id: int, logprob: Any, rank: int) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": token_bytes.text(id)}

    listed: list[Any] = [None]
    for (id, logprob, pairs), rank in zip(_entries(tokens), tokens.rank.tolist(), strict=True):
        row = {str(id): entry(id, logprob, int(rank))}
        for k, (top_id, top_logprob) in enumerate(pairs, start=1):
            row.setdefault(str(top_id), entry(top_id, top_logprob, k))
        listed.append(row)
    return listed


def chat_logprobs(token_bytes: TokenBytes, tokens: TokenLogprobs) -> list[dict[str, Any]]:
    """Return the list `logprobs.content` of a chat's choice, with an entry per token."""

    def entry(id: int, logprob: Any) -> dict[str, Any]:
        raw = token_bytes.raw(id)
        return {"token": token_bytes.text(id), "logprob": logprob, "bytes": list(raw)}

    return [
        {**entry(id, logprob), "top_logprobs": [entry(*pair) for pair in pairs]}
        for id, logprob, pairs in _entries(tokens)
    ]


def _entries(tokens: TokenLogprobs) -> Iterator[tuple[int, Any, Iterator[tuple[int, Any]]]]:
    """Yield each token's id, log-probability, and most probable ids with theirs.

    A token among the most probable ones has the same float twice: clients compare them.
    """
    for id, logprob, top_ids, values in zip(
        tokens.ids.tolist(),
        list(tokens.logprob),
        tokens.top_ids.tolist(),
        tokens.top_logprobs,
        strict=True,
    ):
        pairs = zip(top_ids, list(values), strict=True)
        yield id, logprob, ((top, logprob if top == id else value) for top, value in pairs)


def _head(
    service: Service, request: ChoiceRequest, prefix: str, object_name: str
) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": object_name,
        "created": int(time.time()),
        "model": request.fields.model or service.settings.names[0],
    }


def _usage(request: ChoiceRequest, choices: Sequence[Choice]) -> dict[str, int]:
    """Count the tokens of all prompts, each once, and of all generated texts."""
    n_prompt = sum(len(prompt.ids) for prompt in request.prompts)
    n_generated = sum(len(choice.ids) for choice in choices)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
    }


def _json_size(request: ChoiceRequest, choice: Choice) -> int:
    """Estimate the size of a choice's JSON in bytes."""
    n_tokens = 0 if choice.logprobs is None else len(choice.logprobs.ids)
    n_entries = n_tokens * (1 + request.most_top)
    n_ids = len(choice.ids) + len(request.prompts[choice.prompt].ids)
    n_entries += n_ids if request.fields.return_token_ids else 0
    return CHOICE_BYTES + len(choice.text) + ENTRY_BYTES * n_entries


def _dump(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + _dump(value) + b"\n\n"


def _event_builder(request: ChoiceRequest, head: dict[str, Any]) -> Any:
    """Return a function that makes a choice's event; `usage` is null until the last event."""
    usage = {"usage": None} if request.fields.stream_options.include_usage else {}
    return lambda choice: _event({**head, "choices": [choice], **usage})


def _end_stream(error: bytes) -> bytes:
    """Return the last bytes of a stream that an error ends."""
    return b"data: " + error + b"\n\n" + DONE
