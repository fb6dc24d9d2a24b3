"""A process that answers questions within limits of time and memory, and is killed if it hangs.

Questions and replies are lines of JSON. For a fast start, the process's script does not import
jaxscore; it loads `confine` and `alarm` from this file by path.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

START_LIMIT = 120.0  # seconds for imports on a slow disk
ORPHANED = 3  # times the limit of a question, after which a process without a parent ends
Reply = dict[str, Any]


class ChildProcess:
    """A running process.

    Attributes:
        started: its first reply, when it is ready; None if it sent none.
    """

    def __init__(
        self, script: Path, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        # -P: the script's folder has modules that could shadow others. A new session: Ctrl-C is for
        # the process that asks.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            encoding="utf-8",
            start_new_session=True,
        )
        self.started = self._reply(START_LIMIT)

    def ask(self, question: Mapping[str, Any], seconds: float) -> Reply | None:
        """Return the reply, or None if it is late or the process died.

        After None or an exception the process cannot be used again: `end` it.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except OSError:  # it died since the last reply
            return None
        return self._reply(seconds)

    def _reply(self, seconds: float) -> Reply | None:
        assert self._process.stdout is not None
        late = threading.Event()

        def expire() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, expire)
        timer.start()
        try:
            line = self._process.stdout.readline()
        except BaseException:  # the reply, when it comes, must not answer the next question
            self._process.kill()
            raise
        finally:
            timer.cancel()
            timer.join()
        # A reply at the last moment is late too: its process is already being killed.
        return None if late.is_set() or not line.endswith("\n") else json.loads(line)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class RestartedProcess:
    """A process that starts with the first question, and again after one without a reply.

    Threads may share it.

    Attributes:
        process: the process; None before the first question and after one without a reply.
    """

    def __init__(self, make: Callable[[], ChildProcess]) -> None:
        """`make` starts a process, or raises if that fails."""
        self._make, self._lock = make, threading.RLock()
        self.process: ChildProcess | None = None

    def start(self) -> ChildProcess:
        """Start the process unless it runs, and return it."""
        with self._lock:
            self.process = self.process or self._make()
            return self.process

    def ask(self, question: Mapping[str, Any], seconds: float) -> Reply | None:
        """See `ChildProcess.ask`."""
        with self._lock:
            process, reply = self.start(), None
            try:
                reply = process.ask(question, seconds)
            finally:
                if reply is None:
                    self.end()
            return reply

    def end(self) -> None:
        """End the process if it runs."""
        with self._lock:
            process, self.process = self.process, None
            if process is not None:
                process.end()


def confine(memory: int) -> None:
    """Limit this process to some bytes of address space, and to no files."""
    try:
        import resource
    except ImportError:  # not on Windows; the time limit holds there too
        return
    for name, limit in (("AS", memory), ("FSIZE", 0), ("CORE", 0)):
        with contextlib.suppress(ValueError, OSError, AttributeError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """End this process after a time, if the system has alarms."""
    import signal

    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
