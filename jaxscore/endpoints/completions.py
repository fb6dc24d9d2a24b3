"""Text completion of an OpenAI-compatible server: score given text, generate, next-token labels.

A text is scored by asking for its echo with log-probabilities, as vLLM and others give it
(https://platform.openai.com/docs/api-reference/completions). The server's tokenizer decides what
the tokens are; `jaxscore.endpoints.alignment` finds where the continuation starts.
"""

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from jaxscore.endpoints import response_fields
from jaxscore.endpoints.alignment import align
from jaxscore.endpoints.endpoint import Endpoint
from jaxscore.endpoints.http import Failed, Limits, shown
from jaxscore.errors import InputError
from jaxscore.lm import Capabilities
from jaxscore.types.requests import GenerationRequest, Request, TextLabelRequest
from jaxscore.types.results import Generated, ListedLabelScores, ScoredRequest, failed

DEFAULT_URL = "http://localhost:9011/v1"  # where the published ChronoLogic script looks
# Policies of `jaxscore.text.encoder`. The others join ids of texts that are encoded apart.
BOUNDARIES = ("joint", "exact", "skip_context")
NOT_FOUND = "give the URL that /completions comes after, often ending in /v1, and a model it serves"
WINDOW = 1024  # requests of a stream that are in memory together
MOST_GENERATED = (0, 1)  # while scoring: some servers refuse 0; the token is then left out
MOST_LISTED = (20, 5)  # what vLLM takes unless told otherwise, and OpenAI
UNKNOWN_ID = -1
# The logarithm of a probability is at most 0. Servers subtract a float32 log-sum-exp from a logit,
# which errs by up to 1e-4 for logits up to a thousand; such a value is read as 0. What is above it
# is no log-probability, and would make a perplexity below 1.
ROUNDING = 1e-4
LEAST = -float(np.finfo(np.float32).max)
# No text has more tokens for each of its bytes: a normalizer may make eleven bytes of one.
TOKENS_PER_BYTE = 16
NO_ECHO = (
    "the answer's tokens are not those of the text; the server must take `echo` together with "
    "`logprobs`, as vLLM does"
)
SPREAD = (
    "the server does not show which of the bytes around the end of the context are which "
    "character's; score it with boundary skip_context, or with a local model"
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Echo:
    """A text as the server reads it; all with one entry a token.

    Attributes:
        greedy: bool, or None for each token of which the server does not tell.
    """

    tokens: list[str]
    logprob: np.ndarray
    greedy: np.ndarray
    n_special: int
    ends: list[tuple[int, int]]


NOTHING = _Echo([], np.zeros(0, np.float32), np.zeros(0, bool), 0, [])


class CompletionsEndpoint(Endpoint):
    """A model of a server with text completion, see `Endpoint`.

    `base_url` is what `/completions` comes after.
    """

    CAPABILITIES = Capabilities(scores=True, labels=True, generates=True, boundaries=BOUNDARIES)
    NOT_FOUND = NOT_FOUND

    def __init__(
        self,
        model: str,
        base_url: str = DEFAULT_URL,
        *,
        limits: Limits | None = None,
        progress: bool = False,
    ) -> None:
        super().__init__(model, base_url, limits=limits, progress=progress)
        self._scoring = response_fields.Spellings(self.client, "/completions")
        self._listing = response_fields.Spellings(self.client, "/completions")

    def score(
        self,
        requests: Iterable[Request],
        *,
        boundary: str = "joint",
        truncate: str | None = None,
        special_tokens: bool = True,
        measures: Collection[str] = (),
        top: int = 0,
    ) -> list[ScoredRequest]:
        """Score like `Scorer.score`. Sends texts that several requests share entirely once.

        Args:
            requests: in any order.
            boundary: one of `BOUNDARIES`; "skip_context" also sends each context alone.
            truncate, special_tokens, measures, top: the defaults; a server offers no choice.

        Returns:
            One result per request. The interface has no token ids, which are -1, and neither
            entropy nor self_certainty, which are NaN. `greedy` is None where the server does not
            report it. A failed request has `error` set.

        Raises:
            InputError: an argument that an endpoint does not take; for the very first request,
                what `Client.map` raises.
        """
        _check(boundary, truncate, special_tokens, measures, top)
        return self._score(list(requests), boundary, goes_on=False)

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
        """Like `score`, for more requests than fit in memory.

        Args:
            window: number of requests that are sent and held in memory together; 1,024 if None.
            n_requests: not used.

        Raises:
            InputError: as `score`.
        """
        _check(boundary, truncate, special_tokens, measures, top)
        source = iter(requests)
        goes_on = False
        while chunk := list(itertools.islice(source, window or WINDOW)):
            yield from self._score(chunk, boundary, goes_on=goes_on)
            goes_on = True

    def _score(
        self, requests: list[Request], boundary: str, *, goes_on: bool
    ) -> list[ScoredRequest]:
        asked = [request for request in requests if request.continuation]
        texts = dict.fromkeys(request.context + request.continuation for request in asked)
        if boundary == "skip_context":
            texts |= dict.fromkeys(request.context for request in asked if request.context)
        found = self.client.map(self._echo, list(texts), goes_on=goes_on)
        echoes = dict(zip(texts, found, strict=True))
        return [_scored(request, echoes, boundary) for request in requests]

    def label(
        self, requests: Iterable[TextLabelRequest], *, truncate: str | None = None
    ) -> list[ListedLabelScores]:
        """Log-probabilities of labels as the next token, as far as the server lists them.

        Raises:
            InputError: a truncation; for the very first request, what `Client.map` raises.
        """
        _check(truncate=truncate)
        known = self._of_kind(requests, TextLabelRequest)
        outcomes = self.client.map(self._labels, known)
        nothing = np.zeros(0)
        return [
            ListedLabelScores(request.id, nothing, nothing, (), 0.0, str(outcome))
            if isinstance(outcome, Failed)
            else outcome
            for request, outcome in zip(known, outcomes, strict=True)
        ]

    def generate(self, requests: Iterable[GenerationRequest], /) -> list[Generated]:
        """Text after each prompt; the server's tokens are not known, so `token_ids` is empty.

        Raises:
            InputError: for the very first request, what `Client.map` raises.
        """
        known = self._of_kind(requests, GenerationRequest)
        return response_fields.each(known, self.client.map(self._generate, known))

    def _echo(self, text: str) -> _Echo:
        """Log-probabilities of a text's tokens."""
        body = {"model": self.model, "prompt": text, "echo": True, "logprobs": 1, "temperature": 0}
        answer = self._scoring.post([{**body, "max_tokens": n} for n in MOST_GENERATED])
        listed = response_fields.take(response_fields.choice(answer), "logprobs", dict)
        tokens = response_fields.take(listed, "tokens", list, "logprobs")
        values = response_fields.take(listed, "token_logprobs", list, "logprobs")
        if not all(isinstance(token, str) for token in tokens):
            raise Failed('the answer has something else than strings in "tokens"')
        if len(tokens) > TOKENS_PER_BYTE * (len(text.encode()) + 1):
            raise Failed(f"the answer has {len(tokens)} tokens for {len(text.encode())} bytes")
        if len(values) != len(tokens):
            raise Failed(f"the answer has {len(tokens)} tokens and {len(values)} log-probabilities")
        offsets = listed.get("text_offset")
        if not isinstance(offsets, list) or not all(type(offset) is int for offset in offsets):
            offsets = None
        n_generated = MOST_GENERATED[self._scoring.taken or 0]
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
        answer = self._listing.post([{**body, "logprobs": n} for n in MOST_LISTED])
        logprobs = response_fields.take(response_fields.choice(answer), "logprobs", dict)
        listed = response_fields.take(logprobs, "top_logprobs", list, "logprobs")
        if not listed or not isinstance(listed[0], dict) or not listed[0]:
            raise Failed("the answer lists no next tokens")
        top = {token: _number(value, None) for token, value in listed[0].items()}
        logprob = np.array([top.get(label, math.nan) for label in request.labels])
        missing = tuple(label for label in request.labels if label not in top)
        known = logprob[~np.isnan(logprob)]
        largest = known.max() if len(known) else 0.0
        total = largest + math.log(np.exp(known - largest).sum()) if len(known) else 0.0
        return ListedLabelScores(
            request.id,
            logprob,
            np.exp(logprob - total),
            missing,
            math.exp(min(0.0, *top.values())) if missing else 0.0,
        )

    def _generate(self, request: GenerationRequest) -> Generated:
        if local := _local_alone(request):
            raise Failed(f"{local} is for a local model, not for an endpoint; leave it out")
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
        choice = response_fields.choice(answer)
        return response_fields.generated(
            request.id,
            response_fields.take(choice, "text", str),
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
    """Refuse arguments of `LM.score` that an endpoint does not take."""
    if boundary not in BOUNDARIES:
        raise InputError(
            f"boundary {boundary} needs the tokenizer, and an endpoint shows only the tokens "
            f"of whole texts; give one of {', '.join(BOUNDARIES)}, or score with a local model"
        )
    if truncate is not None:
        raise InputError("an endpoint cannot leave out tokens; shorten the texts instead")
    if not special_tokens:
        raise InputError("an endpoint's server decides on special tokens; use a local model")
    if measures or top:
        raise InputError("an endpoint gives no further measures; use a local model")


def _local_alone(request: GenerationRequest) -> str | None:
    """What of a request is no part of the protocol that servers share."""
    asked = {
        "a prompt of token ids": not isinstance(request.prompt, str),
        "top_k": request.top_k != 0,
        "repetition_penalty": request.repetition_penalty != 1,
        "eos_ids": request.eos_ids is not None,
    }
    return next((name for name, there in asked.items() if there), None)


def _prompt_lengths(answer: dict[str, Any], n: int, n_generated: int) -> list[int]:
    """How many of `n` tokens may be the text's, the likeliest first; the rest was generated."""
    usage = answer.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    guesses = [counted if type(counted) is int else 0, n - n_generated, n]
    return [guess for guess in dict.fromkeys(guesses) if 0 < guess <= n]


def _number(value: Any, k: int | None) -> float:
    """A log-probability; only the first token of a text may have none."""
    if value is None and k == 0:
        return math.nan
    if (usable := _logprob(value)) is None:
        where = "" if k is None else f" for token {k + 1}"
        raise Failed(
            f"the answer has no log-probability{where}, but {shown(repr(value))}; "
            "expected a finite number, at most 0"
        )
    return usable


def _logprob(value: Any) -> float | None:
    """A value as a log-probability; None if it is none, or too far below 0 for float32."""
    # Compared first: `float` of a whole number of 400 digits is an OverflowError.
    if type(value) in (int, float) and LEAST <= value <= ROUNDING:
        return min(float(value), 0.0)
    return None


def _greedy(top: Any, values: list[Any]) -> np.ndarray:
    """Whether each token is at least as probable as all that are listed for its place.

    Returns:
        bool [tokens]; where the server lists nothing for some token with a log-probability,
        object, with None for these.
    """
    lists = top if isinstance(top, list) else []
    out: list[bool | None] = []
    for listed, value in itertools.zip_longest(lists[: len(values)], values):
        others = listed.values() if isinstance(listed, dict) else ()
        known = [other for other in map(_logprob, others) if other is not None]
        out.append(min(value, 0.0) >= max(known) if known and value is not None else None)
    silent = [one is None and value is not None for one, value in zip(out, values, strict=True)]
    return np.array(out, object) if any(silent) else np.array(list(map(bool, out)), bool)


def _scored(request: Request, echoes: dict[str, "_Echo | Failed"], boundary: str) -> ScoredRequest:
    """The part of a text's echo that is the request's continuation."""
    echo = echoes[request.context + request.continuation] if request.continuation else NOTHING
    if isinstance(echo, Failed):
        return failed(request.id, str(echo))
    if boundary == "skip_context":
        context = echoes[request.context] if request.context and request.continuation else NOTHING
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
    nothing = np.full(len(echo.tokens[start:]), np.nan, np.float32)
    return ScoredRequest(
        id=request.id,
        token_ids=np.full(len(nothing), UNKNOWN_ID, np.int32),
        tokens=echo.tokens[start:],
        logprob=echo.logprob[start:],
        entropy=nothing,
        self_certainty=nothing,
        greedy=echo.greedy[start:],
    )
