"""Models of servers that answer conversations and apply the chat template themselves.

OpenAI-compatible: https://platform.openai.com/docs/api-reference/chat
ollama: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from collections.abc import Iterable, Sequence
from typing import Any

from jaxscore.endpoints import BodyVariants, Endpoint
from jaxscore.endpoints.answers import field, first_choice, generated
from jaxscore.lm import Capabilities
from jaxscore.types.requests import ChatRequest
from jaxscore.types.results import Generated

OPENAI_URL = "https://api.openai.com/v1"
OLLAMA_URL = "http://localhost:11434"
WITHOUT_SAMPLING = 2  # index of the last body below


class ChatEndpoint(Endpoint):
    """A model of a server with OpenAI's chat completion; see `Endpoint`.

    `base_url` is what `/chat/completions` comes after.
    """

    CAPABILITIES = Capabilities(generates=True, takes_messages=True)
    URL = OPENAI_URL
    NOT_FOUND = (
        "give the URL that /chat/completions comes after, often ending in /v1, and a model it "
        "serves"
    )

    def __init__(self, model: str, base_url: str | None = None, **options: Any) -> None:
        super().__init__(model, base_url, **options)
        self._chat = BodyVariants(self.client, "/chat/completions")

    def generate(self, requests: Iterable[ChatRequest], /) -> list[Generated]:
        """Answer each conversation; `token_ids` is empty.

        Raises:
            InputError: for the very first request, what `Client.map` raises.
        """
        return self._generate_all(requests, ChatRequest, self._generate)

    @property
    def remarks(self) -> Sequence[str]:
        """How the answers came about, once there are any."""
        if self._chat.accepted != WITHOUT_SAMPLING:
            return ()
        return (
            f"{self.model} takes neither a temperature nor a seed there; its answers are "
            "drawn, and may differ from run to run",
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
            {**bare, "max_completion_tokens": n},  # reasoning models take no temperature
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
    """A model of an ollama server; see `Endpoint`.

    `base_url` is what `/api/chat` comes after; no key is sent.
    """

    CAPABILITIES = Capabilities(generates=True, takes_messages=True)
    URL = OLLAMA_URL
    NOT_FOUND = (
        "give the URL that /api/chat comes after, and a model that `ollama list` shows there"
    )
    TAKES_KEY = False

    def generate(self, requests: Iterable[ChatRequest], /) -> list[Generated]:
        """Answer each conversation; `token_ids` is empty.

        Raises:
            InputError: for the very first request, what `Client.map` raises.
        """
        return self._generate_all(requests, ChatRequest, self._generate)

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
