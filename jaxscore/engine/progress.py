"""A bar on stderr: tokens done, tokens per second, time left."""

import contextlib
import sys
from collections.abc import Iterator
from types import TracebackType

from tqdm import tqdm


class Progress:
    """Counts tokens that are laid out or written. Silent when not asked for."""

    def __init__(self, enabled: bool, what: str = "scoring") -> None:
        # A log file gets a line every ten seconds, a terminal ten redraws per second.
        interval = 0.1 if sys.stderr.isatty() else 10.0
        self._tokens = self._requests = 0
        self._bar = tqdm(
            total=0,
            disable=not enabled,
            unit="tok",
            unit_scale=True,
            desc=what,
            mininterval=interval,
            file=sys.stderr,
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def extend(self, tokens: int, requests: int, n_expected: int | None) -> None:
        """Add so many tokens of so many requests to what is to be done, of `n_expected` in all.

        Requests that are not planned yet count with the tokens of those that are.
        """
        self._tokens += tokens
        self._requests += requests
        ahead = max(1.0, (n_expected or 0) / self._requests) if self._requests else 1.0
        self._bar.total = round(self._tokens * ahead)
        self._bar.refresh()

    def advance(self, tokens: int) -> None:
        self._bar.update(tokens)

    def tell(self, what: str) -> None:
        """A line for people, above the bar."""
        if not self._bar.disable:
            tqdm.write(what, file=sys.stderr)

    @contextlib.contextmanager
    def says(self, what: str) -> Iterator[None]:
        """Show what keeps the bar waiting."""
        self._bar.set_postfix_str(what)
        try:
            yield
        finally:
            self._bar.set_postfix_str("")
