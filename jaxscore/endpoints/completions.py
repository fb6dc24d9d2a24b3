"""Text completion on an OpenAI-compatible server: scoring, generation and next-token labels.

A text is scored by requesting its echo with log-probabilities, as supported by vLLM and others
(https://platform.openai.com/docs/api-reference/completions). The server tokenizes the text;
`jaxscore.endpoints.alignment` finds where the continuation starts.
"""

import dataclasses
import itertools
import math
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from jaxscore.endpoints import BodyVariants, Endpoint
from jaxscore.endpoints.alignment import align
from jaxscore.endpoints.answers import Failed, field, first_choice, generated, quote
from jaxscore.errors import InputError
from jaxscore.lm import Capabilities
from jaxscore.types.requests import GenerationRequest, Request, TextLabelRequest
from jaxscore.types.results import Generated, ListedLabelScores, ScoredRequest, failed

DEFAULT_URL = "http://localhost:9011/v1"  # the URL in the published ChronoLogic script
# Supported policies of `jaxscore.text.encoder`; the others join ids of separately encoded texts.
BOUNDARIES = ("joint", "exact", "skip_context")
NO_IDS = "it has token_ids, but an endpoint scores text; leave them out, or use a local model"
WINDOW = 1024  # number of requests of a stream in memory at a time
N_GENERATED = (0, 1)  # when scoring: some servers refuse 0; a generated token is dropped
N_LISTED = (20, 5)  # default limits of vLLM and OpenAI
UNKNOWN_ID = -1
# Servers subtract a float32 log-sum-exp from a logit, which errs by up to 1e-4 for logits up to a
# thousand. Log-probabilities up to this are read as 0; larger ones are refused.
ROUNDING = 1e-4
LOWEST = -float(np.finfo(np.float32).max)
# Maximum number of tokens per byte: normalizers replace a byte by at most eleven.
TOKENS_PER_BYTE = 16
NO_ECHO = (
    "the answer's tokens are not those of the text; the server must support `echo` together with "
    "`logprobs`, as vLLM does"
)
SPREAD = (
    "the server does not report the characters of the bytes around the end of the context; score "
    "it with boundary skip_context, or with a local model"
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Echo:
    """A text as tokenized and scored by the server.

    Attributes:
        tokens: the server's token strings.
        logprob: float32 [tokens], nats; NaN for a first token without a probability.
        greedy: bool [tokens], or object [tokens] with None for unknown values.
        n_special: the number of special tokens before the text.
        ends: see `Aligned`.
    """

    tokens: list[str]
    logprob: np.ndarray
    greedy: np.ndarray
    n_special: int
    ends: list[tuple[int, int]]


EMPTY = _Echo([], np.zeros(0, np.float32), np.zeros(0, bool), 0, [])


class CompletionsEndpoint(Endpoint):
    """A model on a server with the text completion API; see `Endpoint`.

    `base_url` is the URL before `/completions`.
    """

    CAPABILITIES = Capabilities(scores=True, labels=True, generates=True, boundaries=BOUNDARIES)
    PROMPT = GenerationRequest
    URL = DEFAULT_URL
    NOT_FOUND = (
        "give the URL before /completions, which often ends in /v1, and a model that the server has"
    )

    def __init__(self, model: str, base_url: str | None = None, **options: Any) -> None:
        super().__init__(model, base_url, **options)
        self._scoring = BodyVariants(self.client, "/completions")
        self._listing = BodyVariants(self.client, "/completions")

    def score(self, requests: Iterable[Request], **options: Any) -> list[ScoredRequest]:
        """Score requests like `Scorer.score`. Requests with equal texts are sent once.

        Args:
            requests, options: see `stream`.

        Returns:
            One result per request. Token ids are -1, and `entropy` and `self_certainty` are NaN,
            since servers do not report them. `greedy` is None if the server does not report it. A
            failed request has `error` set.

        Raises:
            InputError: see `stream`.
        """
        return list(self.stream(requests, window=sys.maxsize, **options))

    def stream(
        self,
        requests: Iterable[Request],
        *,
        boundary: str = "joint",
        truncate: str | None = None,
        special_tokens: bool = True,
        window: int | None = None,
        n_requests: int | None = None,
        measures: Collection[str] = (),
        top: int = 0,
    ) -> Iterator[ScoredRequest]:
        """Score like `score`, for more requests than fit in memory.

        Args:
            requests: the requests, in any order.
            boundary: one of `BOUNDARIES`; "skip_context" also sends each context alone.
            truncate, special_tokens, measures, top: the defaults; servers do not support others.
            window: the number of requests sent and kept in memory at a time; 1,024 if None.
            n_requests: not used.

        Raises:
            InputError: an argument is not supported by endpoints, or `Client.map` raises an error
                for the first request ever sent.
        """
        _check(boundary, truncate, special_tokens, measures, top)
        source = iter(requests)
        continues = False
        while chunk := list(itertools.islice(source, window or WINDOW)):
            yield from self._score(chunk, boundary, continues=continues)
            continues = True

    def _score(
        self, requests: list[Request], boundary: str, *, continues: bool
    ) -> list[ScoredRequest]:
        scored = [r for r in requests if r.continuation and r.token_ids is None]
        texts = dict.fromkeys(request.context + request.continuation for request in scored)
        if boundary == "skip_context":
            texts |= dict.fromkeys(request.context for request in scored if request.context)
        outcomes = self.client.map(self._echo, list(texts), continues=continues)
        echoes = dict(zip(texts, outcomes, strict=True))
        return [_scored(request, echoes, boundary) for request in requests]

    def label(
        self, requests: Iterable[TextLabelRequest], *, truncate: str | None = None
    ) -> list[ListedLabelScores]:
        """Return the log-probabilities of labels as the next token, where the server lists them.

        Raises:
            InputError: `truncate` is set, or `Client.map` raises an error for the first request
                ever sent.
        """
        _check(truncate=truncate)
        checked = self._check_type(requests, TextLabelRequest)
        outcomes = self.client.map(self._labels, checked)
        empty = np.zeros(0)
        return [
            ListedLabelScores(request.id, empty, empty, (), 0.0, str(outcome))
            if isinstance(outcome, Failed)
            else outcome
            for request, outcome in zip(checked, outcomes, strict=True)
        ]

    def _echo(self, text: str) -> _Echo:
        """Request the log-probabilities of a text's tokens."""
        body = {"model": self.model, "prompt": text, "echo": True, "logprobs": 1, "temperature": 0}
        answer = self._scoring.post([{**body, "max_tokens": n} for n in N_GENERATED])
        listed = field(first_choice(answer), "logprobs", dict)
        tokens = field(listed, "tokens", list, "logprobs")
        values = field(listed, "token_logprobs", list, "logprobs")
        if not all(isinstance(token, str) for token in tokens):
            raise Failed('the answer has something other than strings in "tokens"')
        if len(tokens) > TOKENS_PER_BYTE * (len(text.encode()) + 1):
            raise Failed(f"the answer has {len(tokens)} tokens for {len(text.encode())} bytes")
        if len(values) != len(tokens):
            raise Failed(f"the answer has {len(tokens)} tokens and {len(values)} log-probabilities")
        offsets = listed.get("text_offset")
        if not isinstance(offsets, list) or not all(type(offset) is int for offset in offsets):
            offsets = None
        n_generated = N_GENERATED[self._scoring.accepted or 0]
        for n in _prompt_lengths(answer, len(tokens), n_generated):
            aligned = align(text, tokens[:n], offsets and offsets[:n])
            if aligned is not None:
                break
        else:
            raise Failed(NO_ECHO)
        logprob = np.array([_number(value, k) for k, value in enumerate(values[:n])], np.float32)
        return _Echo(
            tokens[:n],
            logprob,
            _greedy(listed.get("top_logprobs"), values[:n]),
            aligned.n_special,
            aligned.ends,
        )

    def _labels(self, request: TextLabelRequest) -> ListedLabelScores:
        body = {"model": self.model, "prompt": request.prompt, "max_tokens": 1, "temperature": 0}
        answer = self._listing.post([{**body, "logprobs": n} for n in N_LISTED])
        logprobs = field(first_choice(answer), "logprobs", dict)
        listed = field(logprobs, "top_logprobs", list, "logprobs")
        if not listed or not isinstance(listed[0], dict) or not listed[0]:
            raise Failed("the answer lists no next tokens")
        top = {token: _number(value, None) for token, value in listed[0].items()}
        logprob = np.array([top.get(label, math.nan) for label in request.labels])
        missing = tuple(label for label in request.labels if label not in top)
        listed_logprob = logprob[~np.isnan(logprob)]
        largest = listed_logprob.max() if len(listed_logprob) else 0.0
        total = (
            largest + math.log(np.exp(listed_logprob - largest).sum())
            if len(listed_logprob)
            else 0.0
        )
        return ListedLabelScores(
            request.id,
            logprob,
            np.exp(logprob - total),
            missing,
            math.exp(min(0.0, *top.values())) if missing else 0.0,
        )

    def _generate(self, request: GenerationRequest) -> Generated:
        if name := _local_feature(request):
            raise Failed(f"{name} requires a local model; leave it out for an endpoint")
        answer = self.client.post(
            "/completions",
            {
                "model": self.model,
                "prompt": request.prompt,
                "max_tokens": request.max_new_tokens,
                "temperature": request.temperature,
                "top_p": request.top_p,
                "seed": request.seed,
                **({"stop": list(request.stop)} if request.stop else {}),
            },
            request.max_new_tokens,
        )
        choice = first_choice(answer)
        return generated(
            request.id,
            field(choice, "text", str),
            reason=choice.get("finish_reason"),
            stop_reason=choice.get("stop_reason"),
            stop=request.stop,
        )


def _check(
    boundary: str = "joint",
    truncate: str | None = None,
    special_tokens: bool = True,
    measures: Collection[str] = (),
    top: int = 0,
) -> None:
    """Refuse arguments of `LM.score` that endpoints do not support."""
    if boundary not in BOUNDARIES:
        raise InputError(
            f"boundary {boundary} needs the tokenizer, but an endpoint returns only the tokens "
            f"of whole texts; use one of {', '.join(BOUNDARIES)}, or score with a local model"
        )
    if truncate is not None:
        raise InputError("an endpoint cannot drop tokens; shorten the texts instead")
    if not special_tokens:
        raise InputError("an endpoint's server decides on special tokens; use a local model")
    if measures or top:
        raise InputError("an endpoint does not return further measures; use a local model")


def _local_feature(request: GenerationRequest) -> str | None:
    """Return the name of a requested feature that the protocol does not support, or None."""
    features = {
        "a prompt of token ids": not isinstance(request.prompt, str),
        "top_k": request.top_k != 0,
        "repetition_penalty": request.repetition_penalty != 1,
        "eos_ids": request.eos_ids is not None,
        "special_tokens": not request.special_tokens,
    }
    return next((name for name, is_used in features.items() if is_used), None)


def _prompt_lengths(answer: dict[str, Any], n: int, n_generated: int) -> list[int]:
    """Return possible numbers of prompt tokens among `n` tokens, the likeliest first."""
    usage = answer.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    guesses = [counted if type(counted) is int else 0, n - n_generated, n]
    return [guess for guess in dict.fromkeys(guesses) if 0 < guess <= n]


def _number(value: Any, k: int | None) -> float:
    """Return a value as a log-probability; NaN for a first token (`k` 0) without one.

    Raises:
        Failed: the value is not a log-probability.
    """
    if value is None and k == 0:
        return math.nan
    if (usable := _logprob(value)) is None:
        where = "" if k is None else f" for token {k + 1}"
        raise Failed(
            f"the answer contains no log-probability{where}, but {quote(repr(value))}; "
            "expected a finite number, at most 0"
        )
    return usable


def _logprob(value: Any) -> float | None:
    """Return a value as a log-probability, or None if it is invalid or exceeds float32."""
    # Compared first: `float` of an integer of 400 digits raises OverflowError.
    if type(value) in (int, float) and LOWEST <= value <= ROUNDING:
        return min(float(value), 0.0)
    return None


def _greedy(top: Any, values: list[Any]) -> np.ndarray:
    """Compare each token with the tokens listed at its position.

    Returns:
        True where the token is at least as probable as all listed ones, bool [tokens]. If the
        server lists none for a token with a log-probability, object [tokens] with None there.
    """
    lists = top if isinstance(top, list) else []
    greedy: list[bool | None] = []
    for listed, value in itertools.zip_longest(lists[: len(values)], values):
        others = listed.values() if isinstance(listed, dict) else ()
        logprobs = [other for other in map(_logprob, others) if other is not None]
        greedy.append(min(value, 0.0) >= max(logprobs) if logprobs and value is not None else None)
    pairs = zip(greedy, values, strict=True)
    if any(is_greedy is None and value is not None for is_greedy, value in pairs):
        return np.array(greedy, object)
    return np.array(list(map(bool, greedy)), bool)


def _scored(request: Request, echoes: dict[str, "_Echo | Failed"], boundary: str) -> ScoredRequest:
    """Return the scores of the request's continuation from the echo of its text."""
    if request.token_ids is not None:
        return failed(request.id, NO_IDS)
    echo = echoes[request.context + request.continuation] if request.continuation else EMPTY
    if isinstance(echo, Failed):
        return failed(request.id, str(echo))
    if boundary == "skip_context":
        context = echoes[request.context] if request.context and request.continuation else EMPTY
        if isinstance(context, Failed):
            return failed(request.id, f"its context alone: {context}")
        start = len(context.tokens) if context.tokens else echo.n_special
    else:
        limit = len(request.context if boundary == "exact" else request.context.rstrip())
        start = next((k for k, (_, end) in enumerate(echo.ends) if end > limit), len(echo.ends))
        if limit == 0:
            start = echo.n_special
        elif start < len(echo.ends) and echo.ends[start][0] <= limit:
            return failed(request.id, SPREAD)
    unknown = np.full(len(echo.tokens[start:]), np.nan, np.float32)
    return ScoredRequest(
        id=request.id,
        token_ids=np.full(len(unknown), UNKNOWN_ID, np.int32),
        tokens=echo.tokens[start:],
        logprob=echo.logprob[start:],
        entropy=unknown,
        self_certainty=unknown,
        greedy=echo.greedy[start:],
    )
