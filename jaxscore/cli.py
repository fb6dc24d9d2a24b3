"""The command line: parse, run, exit code."""

import argparse
import functools
import re
import sys
from collections.abc import Sequence

import jaxscore
from jaxscore.commands import demo, paths, score
from jaxscore.errors import InputError

COMMANDS = (score, paths, demo)

DESCRIPTION = """\
Exact, fast scoring of text under causal language models, on JAX. Text that requests share is
computed once.

  python -m jaxscore demo                                   see it work, no download
  python -m jaxscore score --model NAME --input requests.jsonl --output scores.jsonl
  python -m jaxscore COMMAND --help                         inputs, outputs and flags
"""


def parser() -> argparse.ArgumentParser:
    """Every subcommand with its flags."""
    out = argparse.ArgumentParser(
        prog="jaxscore",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    out.add_argument("--version", action="version", version=f"jaxscore {jaxscore.__version__}")
    # A subparser does not inherit allow_abbrev.
    exact = functools.partial(argparse.ArgumentParser, allow_abbrev=False)
    subparsers = out.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=exact
    )
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
        0 all scored, 1 some items failed, 2 bad usage or unusable input, 130 interrupted.
    """
    args = parser().parse_args(hyphenated(sys.argv[1:] if argv is None else argv))
    try:
        return args.run(args)
    except InputError as problem:
        print(f"jaxscore {args.command}: error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"jaxscore {args.command}: interrupted, nothing was written", file=sys.stderr)
        return 130
