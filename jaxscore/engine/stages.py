"""Pipeline stages: iterators that run ahead in threads, and rare garbage collection meanwhile."""

import contextlib
import gc
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")

PATIENCE = 0.1  # seconds between two checks if items are still taken
MOMENT = 1.0  # seconds to wait for a thread to stop

# A window of requests has some hundred thousand objects without reference cycles; JAX and
# transformers have as many. With Python's defaults the garbage collector traverses all objects each
# time a quarter is added, while all threads wait: 0.2 s in a run of 10,000 texts.
SELDOM = (50_000, 20, 100)  # arguments of `gc.set_threshold`


class _End(NamedTuple):
    """End of a stage, with the exception that ended it, if any."""

    problem: BaseException | None = None


class Stage(Generic[Item]):
    """Iterator over a source that runs ahead in a thread.

    An exception of the source is raised after all items that the source yielded before.

    Attributes:
        failed: True once the source has raised an exception.
    """

    def __init__(
        self,
        name: str,
        source: Iterable[Item],
        room: int,
        news: threading.Event | None = None,
    ) -> None:
        """Start the thread.

        Args:
            name: name of the thread.
            source: iterable that only this stage reads.
            room: maximum number of items that wait to be taken, or 0 for an unlimited number.
            news: event that is set whenever an item, or the end, can be taken.
        """
        self._items: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()
        self._end: _End | None = None  # set when the end is taken
        self._room = threading.Semaphore(room) if room else None
        self._news = news or threading.Event()
        self._stopped = threading.Event()
        self.failed = False
        self._thread = threading.Thread(
            target=self._run, args=(source,), name=f"jaxscore {name}", daemon=True
        )
        self._thread.start()

    def _run(self, source: Iterable[Item]) -> None:
        end = _End()
        try:
            for item in source:
                while self._room is not None and not self._room.acquire(timeout=PATIENCE):
                    if self._stopped.is_set():
                        break
                if self._stopped.is_set():
                    return
                self._items.put(item)
                self._news.set()
        except BaseException as problem:
            self.failed = True
            end = _End(problem)
        self._items.put(end)
        self._news.set()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._end is None:
            item = self._items.get()
            if not isinstance(item, _End):
                if self._room is not None:
                    self._room.release()
                return item
            self._end = item
        # Every later call has the same outcome.
        if self._end.problem is not None:
            raise self._end.problem
        raise StopIteration

    @property
    def ready(self) -> bool:
        """True if the next item, or the end, can be taken without waiting."""
        return self._end is not None or not self._items.empty()

    def wait(self, seconds: float) -> None:
        """Wait until `ready`, at most this long."""
        self._news.clear()
        if not self.ready:
            self._news.wait(seconds)

    def stop(self) -> None:
        """End the thread at its next item, and any thread that waits for an item."""
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()
        self._items.put(_End())
        self._thread.join(MOMENT)


class _Blocks:
    """Open `rare_collection` blocks of this process."""

    lock = threading.Lock()
    n = 0
    before: tuple[int, int, int] = SELDOM
    set: tuple[int, int, int] = SELDOM  # as Python reports it: some releases ignore the third value
    is_frozen = False


@contextlib.contextmanager
def rare_collection() -> Iterator[None]:
    """Collect garbage rarely until all such blocks have ended, then restore the thresholds."""
    with _Blocks.lock:
        if not _Blocks.n:
            _Blocks.before = gc.get_threshold()
            gc.set_threshold(*SELDOM)
            _Blocks.set = gc.get_threshold()
        _Blocks.n += 1
    try:
        yield
    finally:
        with _Blocks.lock:
            _Blocks.n -= 1
            if not _Blocks.n:
                if gc.get_threshold() == _Blocks.set:  # unless it has been changed since
                    gc.set_threshold(*_Blocks.before)
                if _Blocks.is_frozen:
                    gc.unfreeze()
                _Blocks.is_frozen = False


def freeze_existing() -> None:
    """Exclude existing objects (modules, a model) from collection until all blocks have ended.

    Only for processes that jaxscore starts: afterwards, objects that the user has frozen are
    collected again.
    """
    gc.freeze()
    _Blocks.is_frozen = True
