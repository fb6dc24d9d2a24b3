"""The four common flags where a command can do nothing with them: refused, with the reason.

`FLAGS` are accepted by every command. A command that has a use for one declares it itself; for the
others `REASONS` says why there is none and what to do instead, and giving the flag ends with code
2. So no flag that is given is passed over.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from jaxscore.cli.help_pages import advanced

FLAGS = ("--model", "--input", "--output", "--limit")

_NO_MODEL = "no model runs here"
_OWN_INPUTS = "the demo runs on inputs of its own"
_IN_PLACE = "results are merged into the files of the folder that is read"
_CONFIDENCES = {
    "--model": f"{_NO_MODEL}; the input holds the confidences, which self-certainty --model writes"
}
REASONS: Mapping[str, Mapping[str, str]] = {  # command -> flag -> why it is refused
    "demo": {
        "--model": "the demo runs the embedded model; score, or any system, takes --model",
        "--input": f"{_OWN_INPUTS}; score, or any system, takes --input",
        "--limit": f"{_OWN_INPUTS}, which are few; the commands that it prints take --limit",
    },
    "serve": {
        "--input": "clients send the texts; score takes a file",
        "--output": "clients get the numbers; score writes a file",
        "--limit": "clients send as many requests as they like; see --max-queue-tokens",
    },
    "judge": {"--output": f"{_IN_PLACE}; judge a copy of the folder to leave it as it is"},
    "metrics": {
        "--model": f"{_NO_MODEL}; judge is the command that takes one",
        "--output": f"{_IN_PLACE}; give a copy of the folder to leave it as it is",
    },
    "results": {"--model": f"{_NO_MODEL}; the table has the metrics of all models that judged"},
    "select": _CONFIDENCES,
    "vote": _CONFIDENCES,
    "usc-select": {
        "--model": f"{_NO_MODEL}; the input holds its answers, which usc-generate --model writes"
    },
    "livecode-select": _CONFIDENCES,
    "livecode-parse": {"--model": f"{_NO_MODEL}; the first response is taken as it is"},
    "compare": {
        "--model": f"{_NO_MODEL}; give two finished runs, A and B",
        "--input": "the runs are given as they are: compare A B",
    },
    "families": {
        "--input": "the config of a model is all that is read; name it with --model",
        "--output": "what is covered is told on stdout; redirect it to keep it, with --json",
        "--limit": "all families are listed; --model looks at one",
    },
    "plan": {
        "--input": "the config of a model is all that is read; name it with --model",
        "--limit": "one model is looked at, whole; --row-lengths says which rows to compile",
    },
    "convert": {
        "--input": "the checkpoint is all that is read; name it with --model",
        "--limit": "a checkpoint is converted whole; leave it out",
    },
    "journal": {
        "--model": f"{_NO_MODEL}; prune --keep N keeps the N models that were used last",
        "--output": "what a journal holds is told on stdout; redirect it to keep it",
        "--limit": "all models are listed; prune --keep N drops all but N of them",
    },
}


class _Refused(argparse.Action):
    """Ends the program with the reason, whatever value the flag is given."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        parser.error(f"{option}: {self.help}")


def add(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the flags that a command refuses; `--help-all` alone shows them."""
    for flag, why in REASONS.get(command, {}).items():
        advanced(
            parser,
            flag,
            action=_Refused,
            nargs="?",
            dest=f"refused{flag.replace('-', '_')}",
            default=argparse.SUPPRESS,
            metavar="X",
            help=f"refused: {why}",
        )
