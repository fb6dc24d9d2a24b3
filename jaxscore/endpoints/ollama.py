"""Chat of an ollama server.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from collections.abc import Iterable
from typing import Any

from jaxscore.endpoints import response_fields
from jaxscore.endpoints.endpoint import Endpoint
from jaxscore.endpoints.http import Limits
from jaxscore.lm import Capabilities
from jaxscore.types.requests import ChatRequest
from jaxscore.types.results import Generated

DEFAULT_URL = "http://localhost:11434"
NOT_FOUND = "give the URL that /api/chat comes after, and a model that `ollama list` shows there"


class OllamaEndpoint(Endpoint):
    """A model of an ollama server, which applies the chat template; see `Endpoint`.

    `base_url` is what `/api/chat` comes after; no key is sent.
    """

    CAPABILITIES = Capabilities(generates=True, takes_messages=True)
    NOT_FOUND = NOT_FOUND
    TAKES_KEY = False

    def __init__(
        self,
        model: str,
        base_url: str = DEFAULT_URL,
        *,
        limits: Limits | None = None,
        progress: bool = False,
    ) -> None:
        super().__init__(model, base_url, limits=limits, progress=progress)

    def generate(self, requests: Iterable[ChatRequest], /) -> list[Generated]:
        """Answer each conversation; `token_ids` is empty.

        Raises:
            InputError: for the very first request, what `Client.map` raises.
        """
        known = self._of_kind(requests, ChatRequest)
        return response_fields.each(known, self.client.map(self._generate, known))

    def _generate(self, request: ChatRequest) -> Generated:
        options: dict[str, Any] = {
            "temperature": request.temperature,
            "seed": request.seed,
            "num_predict": request.max_new_tokens,
        }
        if request.stop:
            options["stop"] = list(request.stop)
        answer = self.client.post(
            "/api/chat",
            {
                "model": self.model,
                "messages": request.messages,
                "stream": False,
                "options": options,
            },
            request.max_new_tokens,
        )
        return response_fields.generated(
            request.id,
            response_fields.take(
                response_fields.take(answer, "message", dict), "content", str, "the message"
            ),
            reason=answer.get("done_reason"),
            stop_reason=None,
            stop=request.stop,
        )
