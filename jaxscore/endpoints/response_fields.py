"""What servers answer, field by field: any of it may be missing or of another type."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxscore.endpoints.http import Client, Failed, shown
from jaxscore.types.requests import ChatRequest, GenerationRequest
from jaxscore.types.results import Generated


class Spellings:
    """One kind of request in the spellings that servers know.

    The first one that the server takes is used from then on.
    """

    def __init__(self, client: Client, path: str) -> None:
        self._client, self._path = client, path
        self.taken: int | None = None  # which one it was, once a request has succeeded

    def post(self, bodies: Sequence[dict[str, Any]], n_generated: int = 1) -> dict[str, Any]:
        """The answer to one request.

        Args:
            bodies: its spellings, the preferred one first; always as many, in the same order.
            n_generated: as `Client.post`.

        Raises:
            Failed: as `Client.post`; where no spelling is taken, with what the server says to
                each of them.
        """
        if self.taken is not None:
            return self._client.post(self._path, bodies[self.taken], n_generated)
        complaints: list[str] = []
        for k, body in enumerate(bodies):
            try:
                answer = self._client.post(self._path, body, n_generated)
            except Failed as problem:
                if problem.status not in (400, 422):
                    raise
                complaints.append(str(problem))
            else:
                self.taken = k
                return answer
        raise Failed("; then ".join(dict.fromkeys(complaints)))


def take(value: dict[str, Any], name: str, kind: type, where: str = "the answer") -> Any:
    """A field that must be there and of this type.

    Raises:
        Failed: it is not; with the server's own complaint where the answer holds one.
    """
    found = value.get(name)
    if isinstance(found, kind):
        return found
    said = value.get("error")
    said = said.get("message") if isinstance(said, dict) else said
    raise Failed(
        f'{where} has {"no" if found is None else "an unusable"} "{name}"'
        + (f"; the server says: {shown(said)}" if isinstance(said, str) else "")
    )


def choice(answer: dict[str, Any]) -> dict[str, Any]:
    """The first of an OpenAI-compatible answer's choices.

    Raises:
        Failed: there is none.
    """
    choices = take(answer, "choices", list)
    if not choices or not isinstance(choices[0], dict):
        raise Failed('the answer has nothing in "choices"')
    return choices[0]


def generated(
    id: str | int, text: str, *, reason: object, stop_reason: object, stop: Sequence[str]
) -> Generated:
    """What a server wrote.

    Args:
        reason: "length", or anything else where the text ended by itself.
        stop_reason: the stop string that ended it, where the server tells.
        stop: the request's.
    """
    cuts = [at for at in map(text.find, stop) if at >= 0]
    if cuts or isinstance(stop_reason, str):
        finish = "stop"
    else:
        finish = "length" if reason == "length" else "eos"
    return Generated(id, text[: min(cuts, default=len(text))], np.zeros(0, np.int32), finish)


def each(
    requests: Sequence[GenerationRequest | ChatRequest], outcomes: Sequence[Generated | Failed]
) -> list[Generated]:
    """One result a request, with its error where it failed."""
    return [
        Generated(request.id, "", np.zeros(0, np.int32), None, str(outcome))
        if isinstance(outcome, Failed)
        else outcome
        for request, outcome in zip(requests, outcomes, strict=True)
    ]
