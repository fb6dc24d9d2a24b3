"""What the whole server shares: its settings and limits, and errors as clients receive them.

A client receives an HTTP status and OpenAI's error object.
"""

import dataclasses
from collections.abc import Mapping

import orjson

from jaxscore.engine import BATCH_TOKENS
from jaxscore.errors import LONGEST, one_line

TYPES = {401: "authentication_error", 429: "rate_limit_error"}  # by status
CONTEXT_LENGTH = "context_length_exceeded"  # code of a text beyond the model's positions
# Programs exist for these numbers of most probable tokens alone: each one is compiled.
TOPS = (0, 1, 5, 20)
MAX_LOGPROBS = TOPS[-1]
# Prompts, samples and items of one request: each takes a kilobyte, however short its text is.
MAX_PROMPTS = 65_536
# Log-probabilities of prompts in one answer, which take a gigabyte while it is made.
MAX_NUMBERS = 8_000_000
# Characters, or ids, that one text may have where it need not fit in the positions: it is cut, or
# only tokenized. Tokenizing so many takes a second.
MAX_CHARACTERS = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a server.

    Attributes:
        names: what the model is called, at least one.
        gather: seconds for which the first request of an idle server waits for others.
        window_tokens: distinct tokens that are planned together at most, see `WindowSize`.
        max_body: bytes of a request's body.
        max_queue_tokens: tokens that wait and are in work; a request beyond them gets 429.
        max_logprobs: most probable tokens of one place, up to `MAX_LOGPROBS`.
        request_timeout: seconds in the queue and in work together.
        receive_timeout: seconds within which a whole request arrives, and within which a client
            reads some of a finished answer.
        loopback: whether only this machine can connect; the Host header is then checked.
        allowed_hosts: names that the Host header may have beside this machine's names.
        cors: the origin whose web pages may read answers; None is none.
        key: what clients must send as a bearer token; None asks for none.
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
    """A request that gets an error instead of an answer.

    Attributes:
        status: HTTP status, 400 to 599.
        message: what was found, what was expected, what to do.
        param: name of the field at fault.
        code: machine-readable reason.
        headers: of the response, beside its type and length.
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
        """The JSON object that the client reads."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        fields = {"message": self.message, "type": TYPES.get(self.status, default)}
        return orjson.dumps({"error": {**fields, "param": self.param, "code": self.code}})


def invalid_field(param: str, message: str, code: str | None = None) -> ApiError:
    """The error of a field with an unusable value."""
    return ApiError(400, message, param=param, code=code)


def not_finite(subject: str) -> ApiError:
    """The error of a request whose numbers JSON cannot represent."""
    return ApiError(
        500,
        f"{subject}: the model gave numbers that are not finite; check the weights, or use float32",
        code="numbers_not_finite",
    )
