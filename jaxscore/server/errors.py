"""Errors as clients receive them: an HTTP status and OpenAI's error object."""

from collections.abc import Mapping

import orjson

from jaxscore.errors import LONGEST, one_line

TYPES = {401: "authentication_error", 429: "rate_limit_error"}  # by status
CONTEXT_LENGTH = "context_length_exceeded"  # code of a text beyond the model's positions


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
