"""Base class of models behind HTTP."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from jaxscore.endpoints.answers import Failed
from jaxscore.endpoints.http import Client, Limits
from jaxscore.errors import InputError
from jaxscore.lm import Capabilities
from jaxscore.types.requests import ChatRequest, GenerationRequest
from jaxscore.types.results import Generated, ScoredRequest

Item = TypeVar("Item")
Prompt = TypeVar("Prompt", GenerationRequest, ChatRequest)


class Endpoint:
    """A model on a server; an `LM` whose methods refuse what the interface lacks.

    Args:
        model: its name on the server.
        base_url: URL before the path of the interface, or None for `URL`.
        limits: concurrency, retries and timeouts.
        progress: whether to display a progress bar on stderr.

    Raises:
        InputError: the URL is unusable, or the key in the environment cannot be one.
    """

    CAPABILITIES: ClassVar[Capabilities] = Capabilities()
    URL: ClassVar[str]
    NOT_FOUND: ClassVar[str]  # advice about HTTP 404
    TAKES_KEY: ClassVar[bool] = True

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        limits: Limits | None = None,
        progress: bool = False,
    ) -> None:
        self.model = model
        self.url = self.URL if base_url is None else base_url
        self.client = Client(
            self.url,
            sends_key=self.TAKES_KEY,
            not_found=self.NOT_FOUND,
            limits=limits,
            progress=progress,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self.CAPABILITIES

    @property
    def remarks(self) -> Sequence[str]:
        """What a reader of the results should know about the model."""
        return ()

    def describe(self) -> dict[str, Any]:
        """The model and its server, for reports; the server reports nothing else."""
        return {"model": self.model, "endpoint": self.url}

    def score(self, *_: Any, **__: Any) -> list[ScoredRequest]:
        """See `LM.score`."""
        raise self._lacks("score text")

    def stream(self, *_: Any, **__: Any) -> Iterator[ScoredRequest]:
        """See `LM.stream`."""
        raise self._lacks("score text")

    def label(self, *_: Any, **__: Any) -> list[Any]:
        """See `LM.label`."""
        raise self._lacks("list probabilities of labels")

    def generate(self, *_: Any, **__: Any) -> list[Generated]:
        """See `LM.generate`."""
        raise self._lacks("generate text")

    def _lacks(self, what: str) -> InputError:
        return InputError(f"a {type(self).__name__} does not {what}; use a Scorer")

    def _check_type(self, requests: Iterable[Any], kind: type[Item]) -> list[Item]:
        """The requests as a list.

        Raises:
            InputError: a request of another type, which the interface does not take.
        """
        checked = list(requests)
        for request in checked:
            if not isinstance(request, kind):
                raise InputError(
                    f"a {type(self).__name__} takes a {kind.__name__}, found a "
                    f"{type(request).__name__}"
                )
        return checked

    def _generate_all(
        self,
        requests: Iterable[Prompt],
        kind: type[Prompt],
        generate: Callable[[Prompt], Generated],
    ) -> list[Generated]:
        """Generate the text of each request of a type; a failed one has `error` set."""
        checked = self._check_type(requests, kind)
        return [
            Generated(request.id, "", np.zeros(0, np.int32), None, str(outcome))
            if isinstance(outcome, Failed)
            else outcome
            for request, outcome in zip(checked, self.client.map(generate, checked), strict=True)
        ]


class BodyVariants:
    """One kind of request in the forms that servers accept.

    The first accepted form is used from then on.

    Attributes:
        accepted: its index, or None before a request has succeeded.
    """

    def __init__(self, client: Client, path: str) -> None:
        self._client, self._path = client, path
        self.accepted: int | None = None

    def post(self, bodies: Sequence[dict[str, Any]], n_generated: int = 1) -> dict[str, Any]:
        """Send a request.

        Args:
            bodies: its forms, in order of preference; the same number and order in every call.
            n_generated: as of `Client.post`.

        Raises:
            Failed: as `Client.post`; if no form is accepted, with the server's messages.
        """
        if self.accepted is not None:
            return self._client.post(self._path, bodies[self.accepted], n_generated)
        complaints: list[str] = []
        for k, body in enumerate(bodies):
            try:
                answer = self._client.post(self._path, body, n_generated)
            except Failed as problem:
                if problem.status not in (400, 422):
                    raise
                complaints.append(str(problem))
            else:
                self.accepted = k
                return answer
        raise Failed("; then ".join(dict.fromkeys(complaints)))
