"""Chat completion of an OpenAI-compatible server.

https://platform.openai.com/docs/api-reference/chat
"""

from collections.abc import Sequence
from typing import Any

from jaxscore.endpoints import response_fields
from jaxscore.endpoints.http import Client, Limits
from jaxscore.types.requests import ChatRequest
from jaxscore.types.results import Generated

DEFAULT_URL = "https://api.openai.com/v1"
NOT_FOUND = (
    "give the URL that /chat/completions comes after, often ending in /v1, and a model it serves"
)

BARE = 2  # the last spelling below


class ChatEndpoint:
    """The model of a server, which applies the chat template itself.

    Args:
        model: the name it has there.
        base_url: what `/chat/completions` comes after.
        limits: of requests in flight, retries and times.
        progress: a bar on stderr.

    Raises:
        InputError: the URL is none, or the key in the environment cannot be one.
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
            base_url, wants_key=True, not_found=NOT_FOUND, limits=limits, progress=progress
        )
        self._chat = response_fields.Spellings(self.client, "/chat/completions")

    def describe(self) -> dict[str, Any]:
        """The model and its server, for reports; the server does not say more."""
        return {"model": self.model, "endpoint": self.url}

    def generate(self, requests: Sequence[ChatRequest]) -> list[Generated]:
        """The answer to each conversation; `token_ids` is empty.

        Raises:
            InputError: at the very first request, as `Client.map`.
        """
        return response_fields.each(requests, self.client.map(self._generate, requests))

    @property
    def remark(self) -> str | None:
        """What a user should know of how the answers came about, once there are any."""
        if self._chat.taken == BARE:
            return (
                f"{self.model} takes neither a temperature nor a seed there; its answers are "
                "drawn, and may differ from run to run"
            )
        return None

    def _generate(self, request: ChatRequest) -> Generated:
        bare: dict[str, Any] = {"model": self.model, "messages": request.messages}
        if request.stop:
            bare["stop"] = list(request.stop)
        full = {**bare, "temperature": request.temperature, "seed": request.seed}
        n = request.max_new_tokens
        answer = self._chat.post(
            [
                {**full, "max_tokens": n},
                {**full, "max_completion_tokens": n},  # OpenAI's newer name
                {**bare, "max_completion_tokens": n},  # reasoning models take no temperature
            ],
            n,
        )
        choice = response_fields.choice(answer)
        return response_fields.generated(
            request.id,
            response_fields.take(
                response_fields.take(choice, "message", dict), "content", str, "the message"
            ),
            reason=choice.get("finish_reason"),
            stop_reason=choice.get("stop_reason"),
            stop=request.stop,
        )
