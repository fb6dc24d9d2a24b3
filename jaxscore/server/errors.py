"""What a client is told instead of an answer: a status and an object, as OpenAI has it."""

from collections.abc import Mapping

import orjson

from jaxscore.errors import LONGEST
from jaxscore.io.printable import one_line

AUTHENTICATION, RATE, SERVER, INVALID = (
    "authentication_error",
    "rate_limit_error",
    "server_error",
    "invalid_request_error",
)


class ApiError(Exception):
    """A request that is not answered.

    Attributes:
        status: of HTTP, 400 to 599.
        message: what was found, what was expected, what to do.
        param: the field that is wrong.
        code: for programs.
        headers: of the answer, beside its type and length.
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

    @property
    def type(self) -> str:
        """The class of the error, as OpenAI names them."""
        if self.status >= 500:
            return SERVER
        return {401: AUTHENTICATION, 429: RATE}.get(self.status, INVALID)

    def body(self) -> bytes:
        """The object that the client reads."""
        fields = {"message": self.message, "type": self.type}
        return orjson.dumps({"error": {**fields, "param": self.param, "code": self.code}})


def refused(param: str, message: str, code: str | None = None) -> ApiError:
    """The error of a field that cannot be used."""
    return ApiError(400, message, param=param, code=code)


def not_finite(which: str) -> ApiError:
    """The error of a request whose numbers JSON cannot hold."""
    return ApiError(
        500,
        f"{which}: the model gave numbers that are not finite; check the weights, or use float32",
        code="numbers_not_finite",
    )
