"""What all endpoints share: a model behind HTTP, and refusals of what its interface lacks."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

from jaxscore.endpoints.http import Client, Limits
from jaxscore.errors import InputError
from jaxscore.lm import Capabilities
from jaxscore.types.results import Generated, ScoredRequest

Item = TypeVar("Item")


class Endpoint:
    """A model that a server computes; an `LM`.

    Args:
        model: its name on the server.
        base_url: URL before the path of the interface.
        limits: requests in flight, retries and timeouts.
        progress: whether to show a progress bar on stderr.

    Raises:
        InputError: the URL is unusable, or the key in the environment cannot be one.
    """

    CAPABILITIES: ClassVar[Capabilities] = Capabilities()
    NOT_FOUND: ClassVar[str]  # advice about HTTP 404
    TAKES_KEY: ClassVar[bool] = True

    def __init__(
        self, model: str, base_url: str, *, limits: Limits | None = None, progress: bool = False
    ) -> None:
        self.model, self.url = model, base_url
        self.client = Client(
            base_url,
            wants_key=self.TAKES_KEY,
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

    def score(
        self,
        requests: Iterable[Any],
        *,
        boundary: str = "joint",
        truncate: str | None = None,
        special_tokens: bool = True,
        measures: Collection[str] = (),
        top: int = 0,
    ) -> list[ScoredRequest]:
        """See `LM.score`."""
        raise self._lacks("score text")

    def stream(
        self,
        requests: Iterable[Any],
        *,
        boundary: str = "joint",
        truncate: str | None = None,
        special_tokens: bool = True,
        window: int | None = None,
        n_requests: int | None = None,
        measures: Collection[str] = (),
        top: int = 0,
    ) -> Iterator[ScoredRequest]:
        """See `LM.stream`."""
        raise self._lacks("score text")

    def label(self, requests: Iterable[Any], *, truncate: str | None = None) -> list[Any]:
        """See `LM.label`."""
        raise self._lacks("list probabilities of labels")

    def generate(self, requests: Iterable[Any], /) -> list[Generated]:
        """See `LM.generate`."""
        raise self._lacks("generate text")

    def _of_kind(self, requests: Iterable[Any], kind: type[Item]) -> list[Item]:
        """The requests as a list.

        Raises:
            InputError: a request of another type, which this interface does not take.
        """
        known = list(requests)
        for request in known:
            if not isinstance(request, kind):
                raise InputError(
                    f"a {type(self).__name__} takes a {kind.__name__}, found a "
                    f"{type(request).__name__}"
                )
        return known

    def _lacks(self, what: str) -> InputError:
        return InputError(f"a {type(self).__name__} does not {what}; use a Scorer")
