"""All commands by group, imported on first use, and the common flags that each refuses."""

import argparse
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError, check_choice
from jaxscore.shell.flags import SWITCH
from jaxscore.systems import SYSTEMS

FIVE = ("paths", "chronologic", "probsem", "judge", "metrics", "results", "self-certainty")
SAMPLES = (
    "sample", "select", "vote", "usc-generate", "usc-select", "livecode-select", "livecode-parse",
)  # fmt: skip
LINES = {name: line for name, (_, line) in SYSTEMS.items() if line} | {
    "results": "the metrics of all RAG experiments as one table"
}
GROUPS = {
    "start here": {
        "demo": "the five systems on the embedded model, as one table",
    },
    "score": {name: line for name, line in LINES.items() if name not in (*FIVE, *SAMPLES)},
    "the five systems": {name: LINES[name] for name in FIVE},
    "samples": {name: LINES[name] for name in SAMPLES},
    "after the runs": {
        "merge": "the outputs of many shards as one, with one report",
        "report": "the report and the page of a finished output, made again",
        "compare": "differences of two finished runs of one system, with tests",
    },
    "models and files": {
        "families": "which models are covered, and whether one would load",
        "schema": "JSON Schema of a system's input, settings and output",
        "plan": "what a model takes on given devices, without its weights",
        "convert": "a checkpoint as an Orbax checkpoint that --model takes",
        "journal": "look into a journal of finished scores and texts, or prune it",
    },
    "in other tools": {
        "lm-eval": "lm-evaluation-harness with jaxscore as its model",
        "serve": "scores and texts over HTTP, OpenAI-compatible",
    },
}
PASSED_ON = ("lm-eval",)  # commands whose words another program reads
NAMES = tuple(name for group in GROUPS.values() for name in group if name not in PASSED_ON)

# Every command takes these flags. One that does not use a flag refuses it, so that no flag is
# silently ignored.
COMMON_FLAGS = ("--model", "--input", "--output", "--limit")
_NO_MODEL = "no model runs here"
_OWN_INPUTS = "the demo has its own inputs"
_CONFIDENCES = {
    "--model": f"{_NO_MODEL}; the input holds the confidences, which self-certainty --model writes"
}
REFUSED: Mapping[str, Mapping[str, str]] = {  # command -> flag -> why it is refused
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
    "sample": {
        "--truncate": "a prompt without its beginning asks something else; shorten it",
    },
    "usc-generate": {
        "--truncate": "a prompt without its beginning has lost responses; show fewer of them with "
        "-n",
    },
    "metrics": {"--model": f"{_NO_MODEL}; judge is the command that takes one"},
    "results": {"--model": f"{_NO_MODEL}; the table has the metrics of all models that judged"},
    "select": _CONFIDENCES,
    "vote": _CONFIDENCES,
    "usc-select": {
        "--model": f"{_NO_MODEL}; the input holds its answers, which usc-generate --model writes"
    },
    "livecode-select": _CONFIDENCES,
    "livecode-parse": {"--model": f"{_NO_MODEL}; the first response is taken as it is"},
    "merge": {
        "--model": f"{_NO_MODEL}; the shards have their numbers",
        "--input": "the folder is given as it is: merge FOLDER --output FILE",
        "--limit": "shards are merged whole; leave it out",
    },
    "report": {
        "--model": f"{_NO_MODEL}; the output has its numbers",
        "--input": "the output is given as it is: report OUT",
        "--output": "the report is next to the output; --html names the page",
        "--limit": "all records are in the report; leave it out",
    },
    "compare": {
        "--model": f"{_NO_MODEL}; give two finished runs, A and B",
        "--input": "the runs are given as they are: compare A B",
    },
    "families": {
        "--input": "the config of a model is all that is read; name it with --model",
        "--output": "the list goes to stdout; redirect it to keep it, with --json",
        "--limit": "all families are listed; --model looks at one",
    },
    "schema": {
        "--model": _NO_MODEL,
        "--input": "the declared types are printed; name the system",
        "--output": "the schema goes to stdout; redirect it to keep it",
        "--limit": "a schema is printed whole; leave it out",
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
        "--output": "the list goes to stdout; redirect it to keep it",
        "--limit": "all models are listed; prune --keep N drops all but N of them",
    },
}

DESCRIPTION = """\
usage: jaxscore COMMAND [flags]

Exact, fast scoring of text under causal language models, on JAX. Text that
requests share is computed once.

  python -m jaxscore demo                          see it work, no download
  python -m jaxscore score --model NAME --input FILE.jsonl --output FILE.jsonl
  python -m jaxscore COMMAND --help                inputs, outputs, common flags
  python -m jaxscore COMMAND --help-all            all flags
  python -m jaxscore --config configs/paths.yaml   command and flags from a file
  python -m jaxscore --print-completion bash       completion for a shell
  python -m jaxscore --version
"""


def page() -> str:
    """Return the list of commands for `--help`."""
    blocks = [DESCRIPTION]
    width = max(map(len, [*NAMES, *PASSED_ON]))
    for title, group in GROUPS.items():
        lines = [f"  {name:{width}}  {summary}\n" for name, summary in group.items()]
        blocks.append("".join([f"{title}:\n", *lines]))
    return "\n".join(blocks)


def completion(shell: str) -> str:
    """Return a script that completes commands and flags in a shell.

    Args:
        shell: one that shtab knows.

    Raises:
        InputError: shtab is not installed, or does not know the shell.
    """
    try:
        import shtab
    except ImportError:
        raise InputError("--print-completion needs shtab: pip install shtab") from None
    try:
        check_choice("--print-completion", shell, shtab.SUPPORTED_SHELLS)
    except ValueError as problem:
        raise InputError(str(problem)) from None
    from jaxscore.cli import app  # deferred: it imports this module

    parser = argparse.ArgumentParser("jaxscore", add_help=False)
    commands = parser.add_subparsers()
    helps = {name: summary for group in GROUPS.values() for name, summary in group.items()}
    for name in NAMES:
        command_parser = commands.add_parser(name, help=helps[name])
        for option in app.command(name).options:
            about: Any = {"choices": option.type.choices or None}
            if option.words == SWITCH:
                about = {"action": "store_true"}
            names = option.names or (option.dest,)
            action = command_parser.add_argument(
                *names, help=option.help.replace("%", "%%"), **about
            )
            if option.type.base is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def passed_on(name: str, words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a command of `PASSED_ON`, which another program reads."""
    module = importlib.import_module(f"jaxscore.cli.{name.replace('-', '_')}")
    args: argparse.Namespace = module.words(words)
    args.command = name
    return args
