"""Work in threads of its own, in order, a few items ahead of who takes them."""

import contextlib
import gc
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
        self._items: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()
        self._end: _End | None = None  # when it has been taken
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
                if not self._has_room():
                    return
                self._put(item)
        except BaseException as problem:
            self.failed = True
            end = _End(problem)
        self._put(end)

    def _has_room(self) -> bool:
        """Wait for room for an item; False where nobody takes items any more."""
        while not self._stopped.is_set():
            if self._room is None or self._room.acquire(timeout=PATIENCE):
                return True
        return False

    def _put(self, item: Item | _End) -> None:
        """Never waits."""
        self._items.put(item)
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
        # Whoever asks again gets the same answer.
        if self._end.problem is not None:
            raise self._end.problem
        raise StopIteration

    @property
    def ready(self) -> bool:
        """Whether the next item, or the end, is there."""
        return self._end is not None or not self._items.empty()

    def stop(self) -> None:
        """Take no more items: the thread ends at its next one, and so does who waits for one."""
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()
        self._items.put(_End())
        self._thread.join(MOMENT)


SELDOM = (50_000, 20, 100)  # as `gc.set_threshold` takes them


class _Blocks:
    """The blocks of `calm` that have begun in this process and not ended."""

    lock = threading.Lock()
    n = 0
    before: tuple[int, int, int] = SELDOM
    set: tuple[int, int, int] = SELDOM  # as Python tells it: some releases have no third number
    passed_over = False


@contextlib.contextmanager
def calm() -> Iterator[None]:
    """Collect seldom until all such blocks have ended, in any order, and then as before."""
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
                if gc.get_threshold() == _Blocks.set:  # nobody has asked for another since
                    gc.set_threshold(*_Blocks.before)
                if _Blocks.passed_over:
                    gc.unfreeze()
                _Blocks.passed_over = False


def pass_over() -> None:
    """Never look at what exists now until all blocks of `calm` end: modules and a model stay.

    For a process that is ours: what its user has frozen is looked at again afterwards.
    """
    gc.freeze()
    _Blocks.passed_over = True
