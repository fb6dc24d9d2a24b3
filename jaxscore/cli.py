"""The command line: parse, run, exit code."""

import argparse
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from jax.errors import JaxRuntimeError

import jaxscore
from jaxscore.commands import (
    chronologic,
    convert,
    demo,
    distributed_flags,
    journal,
    judge,
    livecode_parse,
    livecode_select,
    metrics,
    paths,
    plan,
    probsem,
    results,
    score,
    select,
    self_certainty,
    usc_generate,
    usc_select,
    vote,
)
from jaxscore.engine import interrupt, processes
from jaxscore.engine.split_batches import exhausted
from jaxscore.errors import InputError
from jaxscore.files.config_file import expand

COMMANDS = (
    score,
    paths,
    chronologic,
    probsem,
    judge,
    metrics,
    results,
    self_certainty,
    select,
    vote,
    livecode_select,
    livecode_parse,
    usc_generate,
    usc_select,
    plan,
    convert,
    journal,
    demo,
)

CRASHED = 70  # of several processes: an error of ours

DESCRIPTION = """\
Exact, fast scoring of text under causal language models, on JAX. Text that requests share is
computed once.

  python -m jaxscore demo                                   see it work, no download
  python -m jaxscore score --model NAME --input requests.jsonl --output scores.jsonl
  python -m jaxscore COMMAND --help                         inputs, outputs and flags
  python -m jaxscore --config configs/paths.yaml            command and flags from a file
"""


class Parser(argparse.ArgumentParser):
    """Takes whole flags only; subparsers are made of this class too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})


def parser() -> argparse.ArgumentParser:
    """Every subcommand with its flags."""
    out = Parser(
        prog="jaxscore",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--version", action="version", version=f"jaxscore {jaxscore.__version__}")
    out.add_argument(
        "--config",
        metavar="FILE",
        help="first of all: a YAML file with a command and its flags (see configs/); flags after "
        "it override the file's",
    )
    subparsers = out.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(subparsers)
    return out


def hyphenated(argv: Sequence[str]) -> list[str]:
    """Flags as argparse knows them: --system_prompts is --system-prompts. Texts stay."""
    out = []
    for word in argv:
        name, equals, value = word.partition("=")
        if re.fullmatch(r"--[\w-]+", name):
            word = name.replace("_", "-") + equals + value
        out.append(word)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 all scored, 1 some items failed, 2 bad usage or unusable input, 130 interrupted; one of
        several processes ends itself with CRASHED where Python would end with a traceback.
    """
    words = sys.argv[1:] if argv is None else argv
    made = parser()
    if strange := [word for word in words if word != word.encode("utf-8", "replace").decode()]:
        made.error(f"argument {strange[0]!a} is not UTF-8")
    try:
        words = expand(hyphenated(words), made)
    except InputError as problem:
        made.error(str(problem))
    args = made.parse_args(words)
    try:
        code = _code(args)
    except BaseException:
        if not processes.several():
            raise
        traceback.print_exc()  # Python's own way out would wait for the other processes
        code = CRASHED
    return processes.leave(code)


def _code(args: argparse.Namespace) -> int:
    """Run the command that was parsed; what a user can put right becomes a message."""

    def tell(text: str) -> None:
        print(f"jaxscore {args.command}{processes.name()}: {text}", file=sys.stderr)

    try:
        with interrupt.listening(), distributed_flags.joined(args):
            return args.run(args)
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except InputError as problem:
        tell(f"error: {problem}")
        return 2
    except KeyboardInterrupt:
        tell(f"interrupted; {_left(args)}")
        return 130
    except (JaxRuntimeError, ValueError) as problem:
        if isinstance(problem, JaxRuntimeError) and exhausted(problem):
            tell(
                "error: a batch does not fit in the device's memory; unfinished files are left "
                f"as they were; give less than --batch-tokens {_batch_tokens(args)}"
            )
        elif processes.lost(problem):
            tell(f"error: another process of this run has ended; {_left(args)}")
        else:
            raise
        return 2
    finally:
        if (scorer := getattr(args, "loaded", None)) is not None:
            scorer.close()


def _batch_tokens(args: argparse.Namespace) -> Any:
    scorer = getattr(args, "loaded", None)
    return args.batch_tokens if scorer is None else scorer.batch_tokens


def _left(args: argparse.Namespace) -> str:
    """What of an unfinished run is on disk."""
    scorer = getattr(args, "loaded", None)
    files = "unfinished files are left as they were"
    if scorer is None or scorer.journal is None:
        return files
    path = scorer.journal.path
    return f"{files}; what is finished is in {path}, and the same command goes on from it"
