"""Settings and limits of the server, and errors as clients receive them.

A client receives an HTTP status and OpenAI's error object.
"""

import dataclasses
from collections.abc import Mapping

import orjson

from jaxscore.engine import BATCH_TOKENS
from jaxscore.errors import LONGEST, one_line

TYPES = {401: "authentication_error", 429: "rate_limit_error"}  # by status
CONTEXT_LENGTH = "context_length_exceeded"  # code of a text beyond the model's positions
# Numbers of most probable tokens with compiled programs.
TOPS = (0, 1, 5, 20)
MAX_LOGPROBS = TOPS[-1]
# Prompts, samples and items of one request: each takes a kilobyte, however short its text is.
MAX_PROMPTS = 65_536
# Log-probabilities of prompts in one answer, which take a gigabyte while it is made.
MAX_NUMBERS = 8_000_000
# Limit of characters, or ids, of a text that is truncated or only tokenized, so that it may exceed
# the positions. Tokenizing so many takes a second.
MAX_CHARACTERS = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a server.

    Attributes:
        names: the model's names, at least one.
        gather: the seconds for which the first request of an idle server waits for others.
        window_tokens: the maximum distinct tokens of a window, see `WindowSize`.
        max_body: the maximum bytes of a request's body.
        max_queue_tokens: the maximum tokens queued and in work; a request beyond them gets 429.
        max_logprobs: the most probable tokens per position, up to `MAX_LOGPROBS`.
        request_timeout: the maximum seconds in the queue and in work together.
        receive_timeout: the seconds within which a request must arrive, and within which a client
            must read some of a finished answer.
        loopback: True if only this machine can connect; the Host header is then checked.
        allowed_hosts: further names, next to this machine's, that the Host header may have.
        cors: the origin whose web pages may read answers, or None.
        key: the bearer token that clients must send, or None.
    """

    names: tuple[str, ...]
    gather: float = 0.005
    window_tokens: int = 8 * BATCH_TOKENS
    max_body: int = 32_000_000
    max_queue_tokens: int = 10_000_000
    max_logprobs: int = MAX_LOGPROBS
    request_timeout: float = 600.0
    receive_timeout: float = 30.0
    loopback: bool = True
    allowed_hosts: tuple[str, ...] = ()
    cors: str | None = None
    key: str | None = dataclasses.field(default=None, repr=False)


class ApiError(Exception):
    """The error that a request gets instead of an answer.

    Attributes:
        status: the HTTP status, 400 to 599.
        message: the value found, the values expected, and the remedy.
        param: the name of the field at fault.
        code: the machine-readable reason.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, one_line(message, LONGEST)
        self.param, self.code, self.headers = param, code, dict(headers or {})

    def body(self) -> bytes:
        """Return OpenAI's error object as JSON."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        fields = {"message": self.message, "type": TYPES.get(self.status, default)}
        return orjson.dumps({"error": {**fields, "param": self.param, "code": self.code}})


def invalid_field(param: str, message: str, code: str | None = None) -> ApiError:
    """Return the error for a field with an invalid value."""
    return ApiError(400, message, param=param, code=code)


def not_finite(subject: str) -> ApiError:
    """Return the error for a request whose numbers JSON cannot represent."""
    return ApiError(
        500,
        f"{subject}: the model gave numbers that are not finite; check the weights, or use float32",
        code="numbers_not_finite",
    )
