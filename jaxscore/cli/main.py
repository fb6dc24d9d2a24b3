"""The command line: parse, run, exit code."""

import argparse
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jaxscore.cli import distributed_flags, listing
from jaxscore.cli.help_pages import OUTPUTS
from jaxscore.cli.messages import JOURNAL_LOST
from jaxscore.engine import stages
from jaxscore.errors import INTERRUPTED, InputError, near
from jaxscore.io import atomic, interrupts, processes, streams
from jaxscore.io.config_file import expand_config
from jaxscore.version import VERSION

CUT_OFF = 141  # 128 and the number of SIGPIPE, as of other programs
CRASHED = 70  # of several processes: an error of ours


def hyphenated(argv: Sequence[str]) -> list[str]:
    """Flags as argparse knows them: --system_prompts is --system-prompts. Texts stay."""
    out = []
    for word in argv:
        name, equals, value = word.partition("=")
        if re.fullmatch(r"--[\w-]+", name):
            word = name.replace("_", "-") + equals + value
        out.append(word)
    return out


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What the words say: `command`, its flags, and `run`, which runs it.

    Raises:
        SystemExit: with code 0 after a page that was asked for, with 2 for bad usage.
    """
    if strange := [word for word in argv if word != word.encode("utf-8", "replace").decode()]:
        _refuse(f"argument {strange[0]!a} is not UTF-8")
    if argv and argv[0] in listing.PASSED_ON:
        return listing.passed_on(argv[0], argv[1:])
    try:
        words = expand_config(hyphenated(argv), listing.NAMES, listing.parser)
    except InputError as problem:
        _refuse(str(problem))
    if not words:
        _refuse("the command is missing; jaxscore --help lists them, jaxscore demo shows them")
    name, *rest = words
    if name in ("-h", "--help", "--help-all"):
        print(listing.page(), end="")
        sys.exit(0)
    if name == "--version":
        print(f"jaxscore {VERSION}")
        sys.exit(0)
    if name == "--print-completion":
        try:
            print(listing.completion(" ".join(rest)))
        except InputError as problem:
            _refuse(str(problem))
        sys.exit(0)
    if name.startswith("-"):
        _refuse(f"{name} stands before the command; jaxscore COMMAND {name} is the order")
    if name not in listing.NAMES:
        like = near(name, [*listing.NAMES, *listing.PASSED_ON])
        hint = f"is it {like}?" if like else "jaxscore --help lists them"
        _refuse(f"{name}: no such command; {hint}")
    return listing.parser(name).parse_args(rest)


def _refuse(why: str) -> NoReturn:
    print(f"jaxscore: error: {why}", file=sys.stderr)
    sys.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 all scored, 1 some items failed, 2 bad usage or unusable input, 130 interrupted, 141 a
        stream of data whose reader has ended; one of several processes ends itself with CRASHED
        where Python would end with a traceback.
    """
    args = parse(sys.argv[1:] if argv is None else argv)
    try:
        code = _code(args)
    except BaseException:
        if not processes.is_distributed():
            raise
        traceback.print_exc()  # Python's own way out would wait for the other processes
        code = CRASHED
    return processes.leave(code)


def _code(args: argparse.Namespace) -> int:
    """Run the command that was parsed; what a user can put right becomes a message."""

    def tell(text: str) -> None:
        print(f"jaxscore {args.command}{processes.process_label()}: {text}", file=sys.stderr)

    try:
        with (
            interrupts.handle_interrupts(atomic.remove_unfinished),
            stages.rare_collection(),
            distributed_flags.joined(args),
            streams.stdout_for_data(_outputs(args)),
        ):
            return args.run(args)
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` has
        if any(map(streams.is_stream, _outputs(args))):
            return CUT_OFF
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except InputError as problem:
        tell(f"error: {problem}")
        return 2
    except KeyboardInterrupt:
        tell(f"interrupted; {_left(args)}")
        return INTERRUPTED
    except Exception as problem:
        if interrupts.ended_by_interrupt():  # an interrupted import fails with its own error
            tell(f"interrupted; {_left(args)}")
            return INTERRUPTED
        if not isinstance(problem, RuntimeError | ValueError):
            raise
        if (why := _cause(args, problem)) is None:
            raise
        tell(f"error: {why}")
        return 2
    finally:
        if (scorer := getattr(args, "loaded", None)) is not None:
            scorer.close()


def _outputs(args: argparse.Namespace) -> list[Path]:
    """The places of the flags that may name a stream."""
    given = [getattr(args, name, None) for name in OUTPUTS]
    return [path for path in given if isinstance(path, Path)]


def _cause(args: argparse.Namespace, problem: Exception) -> str | None:
    """What a user can put right about an error of JAX; None for an error of ours."""
    from jax.errors import JaxRuntimeError  # here: `--help` needs no JAX

    from jaxscore.engine.memory import is_out_of_memory

    if isinstance(problem, JaxRuntimeError) and is_out_of_memory(problem):
        return (
            "a batch does not fit in the device's memory; unfinished files are left as they "
            f"were; give less than --batch-tokens {_batch_tokens(args)}"
        )
    if processes.is_peer_loss(problem):
        return f"another process of this run has ended; {_left(args)}"
    return None


def _batch_tokens(args: argparse.Namespace) -> Any:
    scorer = getattr(args, "loaded", None)
    return args.batch_tokens if scorer is None else scorer.batch_tokens


def _left(args: argparse.Namespace) -> str:
    """What of an unfinished run is on disk."""
    scorer = getattr(args, "loaded", None)
    files = "unfinished files are left as they were"
    if scorer is not None and scorer.journal is not None and scorer.journal.is_lost:
        return f"{files}; {scorer.journal.path}{JOURNAL_LOST}"
    if scorer is None or scorer.journal is None or not scorer.journal.path.exists():
        return files
    path = scorer.journal.path
    return f"{files}; finished work is in {path}, and the same command continues there"
