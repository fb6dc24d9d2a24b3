"""Work in threads of its own, in order, a few items ahead of who takes them."""

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

PATIENCE = 0.1  # seconds between two looks at whether anybody still takes items
MOMENT = 1.0  # seconds to wait for a thread that was told to stop


class _End:
    """After the last item; with what ended the work, if it did not end well."""

    def __init__(self, problem: BaseException | None = None) -> None:
        self.problem = problem


class Stage(Generic[Item]):
    """Iterates over a source in a thread, and is an iterator over the same items.

    What the source raises is raised where the item would be taken, after all items before it.

    Attributes:
        failed: whether the source has raised something.
    """

    def __init__(
        self,
        name: str,
        source: Iterable[Item],
        room: int,
        news: threading.Event | None = None,
    ) -> None:
        """Starts at once.

        Args:
            name: of the thread.
            source: nobody else may iterate over it.
            room: items that wait at most; 0 is no limit.
            news: is set whenever there is an item to take, or the end.
        """
        self._items: queue.Queue[Item | _End] = queue.Queue(room)
        self._news = news or threading.Event()
        self._stopped = threading.Event()
        self.failed = False
        self._thread = threading.Thread(
            target=self._run, args=(source,), name=f"jaxscore {name}", daemon=True
        )
        self._thread.start()

    def _run(self, source: Iterable[Item]) -> None:
        try:
            for item in source:
                if not self._put(item):
                    return
            self._put(_End())
        except BaseException as problem:
            self.failed = True
            self._put(_End(problem))

    def _put(self, item: Item | _End) -> bool:
        """Whether somebody still takes items."""
        while not self._stopped.is_set():
            try:
                self._items.put(item, timeout=PATIENCE)
                self._news.set()
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        item = self._items.get()
        if not isinstance(item, _End):
            return item
        self._items.put(item)  # whoever asks again gets the same answer
        if item.problem is not None:
            raise item.problem
        raise StopIteration

    @property
    def ready(self) -> bool:
        """Whether the next item, or the end, is there."""
        return not self._items.empty()

    def stop(self) -> None:
        """Take no more items: the thread ends at its next one, and so does who waits for one."""
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()
        self._items.put(_End())
        self._thread.join(MOMENT)
