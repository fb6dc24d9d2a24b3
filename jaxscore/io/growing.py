"""A JSON array on disk that is whole at every moment while its items are being computed."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from jaxscore.io.atomic import atomic, json_safe
from jaxscore.io.streams import is_stream

PAUSE = 20.0  # seconds between two writings, at least
SHARE = 30  # and at least this many times what the last one took: each writes the whole file


class GrowingArray:
    """Writes an array of objects again and again, each time with more of them.

    A run that ends early, whatever ends it, leaves the last whole file that was written.

    Example:
        >>> growing = GrowingArray(path, lambda: records)
        >>> with growing.open():
        ...     for result in results:
        ...         records.append(result)
        ...         growing.offer()

    Attributes:
        kept: whether a run that has not ended well has written something to the file.
    """

    def __init__(self, path: Path, finished: Callable[[], Iterable[dict[str, Any]]]) -> None:
        """`finished` gives all objects that are finished by now."""
        self.path, self._finished = path, finished
        self.kept = self._has_more = False
        # A stream is written once, at the end.
        self._due = math.inf if is_stream(path) else time.monotonic() + PAUSE

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Write everything when the block ends, whether well or not.

        Raises:
            InputError: as `io.atomic`, which knows at once that a place cannot be written.
        """
        with atomic(self.path) as file:
            try:
                yield
                write_array(file, self._finished())
            except BaseException:  # out of memory, interrupted: what was computed stays
                if self._has_more and not is_stream(self.path):
                    self._write()
                raise

    def offer(self) -> None:
        """More is finished than before: write it, unless the last writing was just now."""
        self._has_more = True
        if time.monotonic() >= self._due:
            self._write()

    def _write(self) -> None:
        started = time.monotonic()
        with atomic(self.path) as file:
            write_array(file, self._finished())
        self.kept, self._has_more = True, False
        ended = time.monotonic()
        self._due = ended + max(PAUSE, SHARE * (ended - started))


def write_array(file: TextIO, items: Iterable[dict[str, Any]]) -> None:
    """The published scripts' layout: four blanks, other scripts than ASCII escaped.

    One object after the other is made text, never all of them at once.
    """
    opening = "["
    for item in items:
        text = json.dumps(json_safe(item), allow_nan=False, indent=4)
        file.write(f"{opening}\n    " + text.replace("\n", "\n    "))
        opening = ","
    file.write("[]\n" if opening == "[" else "\n]\n")
