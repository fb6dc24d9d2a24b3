"""Chat completion of an OpenAI-compatible server.

https://platform.openai.com/docs/api-reference/chat
"""

from collections.abc import Iterable, Sequence
from typing import Any

from jaxscore.endpoints import response_fields
from jaxscore.endpoints.endpoint import Endpoint
from jaxscore.endpoints.http import Limits
from jaxscore.lm import Capabilities
from jaxscore.types.requests import ChatRequest
from jaxscore.types.results import Generated

DEFAULT_URL = "https://api.openai.com/v1"
NOT_FOUND = (
    "give the URL that /chat/completions comes after, often ending in /v1, and a model it serves"
)

BARE = 2  # the last spelling below


class ChatEndpoint(Endpoint):
    """A model of a server with chat completion, which applies the chat template; see `Endpoint`.

    `base_url` is what `/chat/completions` comes after.
    """

    CAPABILITIES = Capabilities(generates=True, takes_messages=True)
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
        self._chat = response_fields.Spellings(self.client, "/chat/completions")

    def generate(self, requests: Iterable[ChatRequest], /) -> list[Generated]:
        """Answer each conversation; `token_ids` is empty.

        Raises:
            InputError: for the very first request, what `Client.map` raises.
        """
        known = self._of_kind(requests, ChatRequest)
        return response_fields.each(known, self.client.map(self._generate, known))

    @property
    def remarks(self) -> Sequence[str]:
        """How the answers came about, once there are any."""
        if self._chat.taken != BARE:
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
