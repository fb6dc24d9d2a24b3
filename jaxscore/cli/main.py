"""Runs the command and returns the exit code."""

import argparse
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

from jaxscore.cli import distributed_flags
from jaxscore.cli.app import parse
from jaxscore.cli.messages import JOURNAL_LOST
from jaxscore.engine import set_gpu_memory, stages
from jaxscore.errors import INTERRUPTED, InputError
from jaxscore.io import atomic, interrupts, processes, streams
from jaxscore.io.remote import displayed
from jaxscore.shell.flags import OUTPUTS

CUT_OFF = 141  # 128 and the number of SIGPIPE, as of other programs
CRASHED = 70  # of several processes: an error of ours
FILES = "unfinished files are left as they were"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 all scored, 1 some items failed, 2 bad usage or unusable input, 130 interrupted, 141 a
        stream of data whose reader has ended; one of several processes ends itself with CRASHED
        where Python would end with a traceback.
    """
    args = parse(sys.argv[1:] if argv is None else argv)
    set_gpu_memory()
    is_one_of_several = getattr(args, "distributed", False) and hasattr(os, "fork")
    is_main = threading.current_thread() is threading.main_thread()  # signals need it
    if not is_one_of_several or not is_main or "jax" in sys.modules:  # which a fork would break
        return _run(args)

    def describe_end(label: str, why: str, journal: Path | None) -> str:
        return f"jaxscore {args.command}{label}: error: {why}; {_describe_work(journal)}"

    return processes.supervise(lambda: _run(args), describe_end)


def _run(args: argparse.Namespace) -> int:
    try:
        code = _code(args)
    except BaseException:
        if not processes.is_distributed():
            raise
        traceback.print_exc()  # Python's own way out would wait for the other processes
        code = CRASHED
    return processes.leave(code)


def _code(args: argparse.Namespace) -> int:
    """Run a parsed command; errors that a user can correct become a message."""

    def report(text: str) -> None:
        print(
            f"jaxscore {args.command}{processes.process_label()}: {displayed(text)}",
            file=sys.stderr,
        )

    try:
        with (
            interrupts.handle_interrupts(atomic.remove_unfinished),
            stages.rare_collection(),
            distributed_flags.join_run(args),
            streams.stdout_for_data(_outputs(args)),
        ):
            return args.run(args)
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` has
        if any(map(streams.is_stream, _outputs(args))):
            return CUT_OFF
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except InputError as problem:
        report(f"error: {problem}")
        return 2
    except KeyboardInterrupt as stop:
        report(f"interrupted; {str(stop) or _describe_unfinished(args)}")
        return INTERRUPTED
    except Exception as problem:
        if interrupts.ended_by_interrupt():  # an interrupted import fails with its own error
            report(f"interrupted; {_describe_unfinished(args)}")
            return INTERRUPTED
        if not isinstance(problem, RuntimeError | ValueError):
            raise
        if (why := _cause(args, problem)) is None:
            raise
        report(f"error: {why}")
        return 2
    finally:
        if (scorer := getattr(args, "loaded", None)) is not None:
            scorer.close()


def _outputs(args: argparse.Namespace) -> list[Path]:
    """Return the values of the flags that may name a stream."""
    paths = [getattr(args, name, None) for name in OUTPUTS]
    return [path for path in paths if isinstance(path, Path)]


def _cause(args: argparse.Namespace, problem: Exception) -> str | None:
    """Return what a user can do about an error of JAX, or None for another error."""
    from jax.errors import JaxRuntimeError  # deferred: `--help` needs no JAX

    from jaxscore.engine.devices import is_out_of_memory

    if isinstance(problem, JaxRuntimeError) and is_out_of_memory(problem):
        scorer = getattr(args, "loaded", None)
        n_tokens = args.batch_tokens if scorer is None else scorer.batch_tokens
        return (
            "a batch does not fit in the device's memory; unfinished files are left as they "
            f"were; give less than --batch-tokens {n_tokens}"
        )
    if processes.is_peer_loss(problem):
        return f"{processes.PEER_LOSS}; {_describe_unfinished(args)}"
    return None


def _describe_unfinished(args: argparse.Namespace) -> str:
    """Describe what an unfinished run has left on disk."""
    journal = getattr(getattr(args, "loaded", None), "journal", None)
    if journal is not None and journal.is_lost:
        return f"{FILES}; {journal.path}{JOURNAL_LOST}"
    return _describe_work(journal and journal.path)


def _describe_work(journal: Path | None) -> str:
    if journal is None or not journal.exists():
        return FILES
    return f"{FILES}; finished work is in {journal}, and the same command continues there"
