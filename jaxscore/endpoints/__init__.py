"""Models behind HTTP: the base class of endpoints, and the endpoints for conversations.

Chat servers apply the chat template themselves. APIs: OpenAI
(https://platform.openai.com/docs/api-reference/chat) and ollama
(https://github.com/ollama/ollama/blob/main/docs/api.md).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from jaxscore.endpoints.answers import Failed, field, first_choice, generated
from jaxscore.endpoints.http import Client, Limits
from jaxscore.errors import InputError
from jaxscore.lm import Capabilities
from jaxscore.types.requests import ChatRequest, GenerationRequest
from jaxscore.types.results import Generated, ScoredRequest

Item = TypeVar("Item")

OPENAI_URL = "https://api.openai.com/v1"
OLLAMA_URL = "http://localhost:11434"
WITHOUT_SAMPLING = 2  # index of the last body of a chat completion


class Endpoint:
    """A model on a server: an `LM` whose methods raise errors for unsupported operations.

    Args:
        model: the model's name on the server.
        base_url: the URL before the path of the interface, or None for `URL`.
        limits: concurrency, retries and timeouts.
        progress: if True, display a progress bar on stderr.

    Raises:
        InputError: the URL is unusable, or the API key in the environment is malformed.
    """

    CAPABILITIES: ClassVar[Capabilities] = Capabilities()
    URL: ClassVar[str]
    NOT_FOUND: ClassVar[str]  # advice about HTTP 404
    TAKES_KEY: ClassVar[bool] = True
    PROMPT: ClassVar[type[GenerationRequest | ChatRequest] | None] = (
        None  # type of requests of `generate`
    )

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        limits: Limits | None = None,
        progress: bool = False,
    ) -> None:
        self.model = model
        self.url = self.URL if base_url is None else base_url
        self.client = Client(
            self.url,
            sends_key=self.TAKES_KEY,
            not_found=self.NOT_FOUND,
            limits=limits,
            progress=progress,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self.CAPABILITIES

    @property
    def remarks(self) -> Sequence[str]:
        """Warnings about the model for readers of the results."""
        return ()

    def describe(self) -> dict[str, Any]:
        """Return the model and its server for reports."""
        return {"model": self.model, "endpoint": self.url}

    def score(self, *_: Any, **__: Any) -> list[ScoredRequest]:
        """See `LM.score`."""
        raise self._lacks("score text")

    def stream(self, *_: Any, **__: Any) -> Iterator[ScoredRequest]:
        """See `LM.stream`."""
        raise self._lacks("score text")

    def label(self, *_: Any, **__: Any) -> list[Any]:
        """See `LM.label`."""
        raise self._lacks("list probabilities of labels")

    def generate(self, requests: Iterable[Any], /) -> list[Generated]:
        """Generate a text for each request.

        Returns:
            A result for each request, with empty `token_ids`. A failed request has `error` set.

        Raises:
            InputError: a request is not of type `PROMPT`, or `Client.map` raises an error for the
                first request ever sent.
        """
        if self.PROMPT is None:
            raise self._lacks("generate text")
        checked = self._check_type(requests, self.PROMPT)
        return [
            Generated(request.id, "", np.zeros(0, np.int32), None, str(outcome))
            if isinstance(outcome, Failed)
            else outcome
            for request, outcome in zip(
                checked, self.client.map(self._generate, checked), strict=True
            )
        ]

    def _generate(self, request: Any) -> Generated:
        raise NotImplementedError

    def _lacks(self, operation: str) -> InputError:
        return InputError(f"a {type(self).__name__} does not {operation}; use a Scorer")

    def _check_type(self, requests: Iterable[Any], request_type: type[Item]) -> list[Item]:
        """Return the requests as a list.

        Raises:
            InputError: a request is of another type.
        """
        checked = list(requests)
        for request in checked:
            if not isinstance(request, request_type):
                raise InputError(
                    f"a {type(self).__name__} takes a {request_type.__name__}, found a "
                    f"{type(request).__name__}"
                )
        return checked


class BodyVariants:
    """Alternative bodies of a request; servers accept different ones.

    The first accepted variant is used for all later requests.

    Attributes:
        accepted: the index of the accepted variant, or None before a request has succeeded.
    """

    def __init__(self, client: Client, path: str) -> None:
        self._client, self._path = client, path
        self.accepted: int | None = None

    def post(self, bodies: Sequence[dict[str, Any]], n_generated: int = 1) -> dict[str, Any]:
        """Send a request.

        Args:
            bodies: the variants in order of preference; the same number and order in every call.
            n_generated: see `Client.post`.

        Raises:
            Failed: see `Client.post`; or no variant is accepted, with the server's messages.
        """
        if self.accepted is not None:
            return self._client.post(self._path, bodies[self.accepted], n_generated)
        complaints: list[str] = []
        for k, body in enumerate(bodies):
            try:
                answer = self._client.post(self._path, body, n_generated)
            except Failed as problem:
                if problem.status not in (400, 422):
                    raise
                complaints.append(str(problem))
            else:
                self.accepted = k
                return answer
        raise Failed("; then ".join(dict.fromkeys(complaints)))


class ChatEndpoint(Endpoint):
    """A model on a server with OpenAI's chat completion API; see `Endpoint`.

    `base_url` is the URL before `/chat/completions`.
    """

    CAPABILITIES = Capabilities(generates=True, takes_messages=True)
    PROMPT = ChatRequest
    URL = OPENAI_URL
    NOT_FOUND = (
        "give the URL before /chat/completions, which often ends in /v1, and a model that the "
        "server has"
    )

    def __init__(self, model: str, base_url: str | None = None, **options: Any) -> None:
        super().__init__(model, base_url, **options)
        self._chat = BodyVariants(self.client, "/chat/completions")

    @property
    def remarks(self) -> Sequence[str]:
        """Warnings about sampling, available after the first answer."""
        if self._chat.accepted != WITHOUT_SAMPLING:
            return ()
        return (
            f"{self.model} accepts neither a temperature nor a seed on this server; its answers "
            "are sampled, and may differ from run to run",
        )

    def _generate(self, request: ChatRequest) -> Generated:
        bare: dict[str, Any] = {"model": self.model, "messages": request.messages}
        if request.stop:
            bare["stop"] = list(request.stop)
        full = {**bare, "temperature": request.temperature, "seed": request.seed}
        n = request.max_new_tokens
        bodies = [
            {**full, "max_tokens": n},
            {**full, "max_completion_tokens": n},  # OpenAI's newer name
            {**bare, "max_completion_tokens": n},  # reasoning models refuse a temperature
        ]
        choice = first_choice(self._chat.post(bodies, n))
        message = field(choice, "message", dict)
        return generated(
            request.id,
            field(message, "content", str, "the message"),
            reason=choice.get("finish_reason"),
            stop_reason=choice.get("stop_reason"),
            stop=request.stop,
        )


class OllamaEndpoint(Endpoint):
    """A model on an ollama server; see `Endpoint`.

    `base_url` is the URL before `/api/chat`. No API key is sent.
    """

    CAPABILITIES = Capabilities(generates=True, takes_messages=True)
    PROMPT = ChatRequest
    URL = OLLAMA_URL
    NOT_FOUND = "give the URL before /api/chat, and a model that `ollama list` prints on the server"
    TAKES_KEY = False

    def _generate(self, request: ChatRequest) -> Generated:
        options: dict[str, Any] = {
            "temperature": request.temperature,
            "seed": request.seed,
            "num_predict": request.max_new_tokens,
        }
        if request.stop:
            options["stop"] = list(request.stop)
        body = {
            "model": self.model,
            "messages": request.messages,
            "stream": False,
            "options": options,
        }
        answer = self.client.post("/api/chat", body, request.max_new_tokens)
        message = field(answer, "message", dict)
        return generated(
            request.id,
            field(message, "content", str, "the message"),
            reason=answer.get("done_reason"),
            stop_reason=None,
            stop=request.stop,
        )
