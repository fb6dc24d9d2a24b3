"""The process of one command: its streams, Ctrl-C while it starts, and how it ends."""

import atexit
import contextlib
import io
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any, NoReturn

from jaxscore.errors import INTERRUPTED, InputError


class _Stderr(io.RawIOBase):
    """Standard error; write errors, as on a full disk, are ignored."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def write(self, data: Any) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError:
            return len(data)

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True


class _Stdout(_Stderr):
    """Standard output: raises once, then discards further output."""

    failed = False

    def write(self, data: Any) -> int:
        if self.failed:
            return len(data)
        try:
            return os.write(self._descriptor, data)
        except OSError as problem:
            self.failed = True
            if isinstance(problem, BrokenPipeError):
                raise
            raise InputError(
                f"standard output cannot be written ({problem.strerror}); files that this run has "
                "finished are kept; make room or give another place"
            ) from None


class _Unbuffered(io.BufferedWriter):
    """Writes everything at once, as `python -u` requests."""

    def write(self, data: Any) -> int:
        size = super().write(data)
        self.flush()
        return size


def run() -> NoReturn:
    """Run the command of `sys.argv` and end the process with its exit code."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)  # until the command handles Ctrl-C
    sys.stderr = _text(_Stderr, sys.stderr, 2)
    sys.stdout = _text(_Stdout, sys.stdout, 1)
    code = _code()
    try:
        _flush(sys.stdout)
    except BrokenPipeError:
        _end(code)
    except InputError as problem:
        print(f"jaxscore: error: {problem}", file=sys.stderr)
        code = code or 2
    _end(code)


def _code() -> int:
    try:
        from jaxscore.cli.main import main

        return main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        with contextlib.suppress(OSError, InputError):
            _flush(sys.stdout)
        os._exit(1)  # see `_end`


def _flush(stream: Any) -> None:
    if stream is not None:  # closed before the process started
        stream.flush()


def _text(raw_type: type[_Stderr], stream: Any, descriptor: int) -> Any:
    """Return a stream with the same settings on one of the raw files above; None stays None."""
    if stream is None:
        return None
    buffer = _Unbuffered if stream.write_through else io.BufferedWriter
    return io.TextIOWrapper(
        buffer(raw_type(descriptor)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _end(code: int) -> NoReturn:
    """Exit after the registered functions, without finalizing Python's interpreter.

    Finalizing JAX's modules and arrays takes 0.4 s. And a thread that returns from native code
    meanwhile is unwound through that code, which aborts the process.
    """
    if _is_observed():  # by a profiler, whose results are written later
        sys.exit(code)
    if code in (0, 1):
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, InputError):
            _flush(sys.stdout)
    _flush(sys.stderr)
    os._exit(code)


def _is_observed() -> bool:
    """Return True if a profiler, a tracer or a coverage tool runs this process."""
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    return monitoring is not None and any(map(monitoring.get_tool, range(6)))


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End a process before its command starts: no file is open."""
    os.write(2, b"jaxscore: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    run()
