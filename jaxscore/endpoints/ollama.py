"""Chat of an ollama server.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from collections.abc import Sequence
from typing import Any

from jaxscore.endpoints import response_fields
from jaxscore.endpoints.http import Client, Limits
from jaxscore.types.requests import ChatRequest
from jaxscore.types.results import Generated

DEFAULT_URL = "http://localhost:11434"
NOT_FOUND = "give the URL that /api/chat comes after, and a model that `ollama list` shows there"


class OllamaEndpoint:
    """The model of an ollama server, which applies the chat template itself. No key is sent.

    Args:
        model: as `ollama list` shows it.
        base_url: what `/api/chat` comes after.
        limits: of requests in flight, retries and times.
        progress: a bar on stderr.

    Raises:
        InputError: the URL is none.
    """

    def __init__(
        self,
        model: str,
        base_url: str = DEFAULT_URL,
        *,
        limits: Limits | None = None,
        progress: bool = False,
    ) -> None:
        self.model, self.url = model, base_url
        self.client = Client(
            base_url, wants_key=False, not_found=NOT_FOUND, limits=limits, progress=progress
        )

    def describe(self) -> dict[str, Any]:
        """The model and its server, for reports; the server does not say more."""
        return {"model": self.model, "endpoint": self.url}

    def generate(self, requests: Sequence[ChatRequest]) -> list[Generated]:
        """The answer to each conversation; `token_ids` is empty.

        Raises:
            InputError: at the very first request, as `Client.map`.
        """
        return response_fields.each(requests, self.client.map(self._generate, requests))

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
