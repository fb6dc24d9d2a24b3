"""Commands in processes forked from one that has imported their modules, to be killed often.

Importing them takes most of the time of a short run.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "jaxscore.__main__",
        "jaxscore.cli.main",
        "jaxscore.cli.model_flags",
        "jaxscore.models.native",
        "jaxscore.scorer",
        "jaxscore.systems.score",
        "jaxscore.systems.sample",
        "jaxscore.systems.usc_generate",
    ]
)


class Command:
    """A running `jaxscore` command.

    Args:
        words: its arguments.
        log: file for stdout and stderr.
    """

    def __init__(self, words: Iterable[object], log: Path) -> None:
        self._log = log
        # Of a test that fails, daemons end with it; the exit would wait for other processes.
        self._process = _CONTEXT.Process(target=_run, args=([*map(str, words)], log), daemon=True)
        self._process.start()

    def is_running(self) -> bool:
        return self._process.is_alive()

    def interrupt(self) -> None:
        """SIGINT, as Ctrl-C."""
        os.kill(self._process.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, and wait for the end; no-op if it has ended."""
        self._process.kill()
        self._process.join()

    def finish(self) -> tuple[int, str]:
        """Exit code and output."""
        self._process.join(300)
        has_ended = self._process.exitcode is not None
        self.kill()
        output = self._log.read_text(encoding="utf-8")
        assert has_ended, f"it does not end: {output}"
        return self._process.exitcode, output


def _run(words: list[str], log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the fork server ignores
    sys.argv = ["jaxscore", *words]
    from jaxscore.__main__ import run

    run()
