"""All commands, in groups: their modules are imported when they are asked for."""

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

from jaxscore.cli import refused_flags, system_command
from jaxscore.cli.help_pages import Parser
from jaxscore.systems.registry import SYSTEMS, declaration

GROUPS = {
    "start here": {
        "demo": "the five systems on the embedded model, as one table",
    },
    "score": {
        "score": "log-probability, entropy and self-certainty of each token",
        "divergence": "how far two models lie apart, token by token",
        "choose": "the most probable of several texts, and whether it is right",
        "perplexity": "perplexity and bits per byte of documents of any length",
    },
    "the five systems": {
        "paths": "information gain of knowledge paths (Path Evaluation)",
        "chronologic": "probability scores of answers, or letters (ChronoLogic)",
        "probsem": "the most probable query after each context (ProbSem)",
        "judge": "a model judges the responses of RAG experiments",
        "metrics": "EM, F1, ROUGE and the like of RAG experiments",
        "results": "the metrics of all RAG experiments as one table",
        "self-certainty": "how certain a model is of each sampled response",
    },
    "samples": {
        "sample": "many responses of a model to each prompt",
        "select": "the response with the highest self-certainty",
        "vote": "the answer of most responses, weighed by self-certainty",
        "usc-generate": "ask a model which of its responses is the most consistent",
        "usc-select": "the response that the model called the most consistent",
        "livecode-select": "the code of the response with the highest confidence",
        "livecode-parse": "the code of the first response",
    },
    "after two runs": {
        "compare": "differences of two finished runs of one system, with tests",
    },
    "models and files": {
        "families": "which models are covered, and whether one would load",
        "plan": "what a model takes on given devices, told without its weights",
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

DESCRIPTION = """\
usage: jaxscore COMMAND [flags]

Exact, fast scoring of text under causal language models, on JAX. Text that
requests share is computed once.

  python -m jaxscore demo                          see it work, no download
  python -m jaxscore score --model NAME --input FILE.jsonl --output FILE.jsonl
  python -m jaxscore COMMAND --help                inputs, outputs, common flags
  python -m jaxscore COMMAND --help-all            all flags
  python -m jaxscore --config configs/paths.yaml   command and flags from a file
  python -m jaxscore --version
"""


def page() -> str:
    """The list of commands, as `--help` prints it."""
    blocks = [DESCRIPTION]
    width = max(map(len, [*NAMES, *PASSED_ON]))
    for title, group in GROUPS.items():
        lines = [f"  {name:{width}}  {what}\n" for name, what in group.items()]
        blocks.append("".join([f"{title}:\n", *lines]))
    return "\n".join(blocks)


def parser(name: str) -> Parser:
    """The parser of one command's words; what it gives has `command` and `run`.

    Args:
        name: one of `NAMES`.
    """
    commands = Parser(prog="jaxscore").add_subparsers()
    if name in SYSTEMS and (system := declaration(name)) is not None:
        system_command.add(system, commands)
    else:
        _module(name).add(commands)
    found = commands.choices[name]
    refused_flags.add(found, name)
    found.set_defaults(command=name)
    return found


def passed_on(name: str, words: Sequence[str]) -> argparse.Namespace:
    """What `parser` gives, of one of `PASSED_ON` and its words."""
    found: argparse.Namespace = _module(name).words(words)
    found.command = name
    return found


def _module(name: str) -> Any:
    return importlib.import_module(f"jaxscore.cli.{name.replace('-', '_')}")
