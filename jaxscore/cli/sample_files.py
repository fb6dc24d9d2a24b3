"""Flags and places of the commands on files of sampled responses."""

import argparse
from pathlib import Path

from jaxscore.cli import model_flags, outputs, table_flags
from jaxscore.systems.selection.answers import AUTO, RULE_HELP, RULES


def add_flags(parser: argparse.ArgumentParser, output: str) -> None:
    """The input, the output and --limit; `output` ends the default name, for people."""
    parser.add_argument(
        "--input",
        "--input-file",
        required=True,
        type=Path,
        metavar="FILE",
        help=f"items: {table_flags.FORMS}",
    )
    table_flags.add_array_output(parser, output)
    model_flags.add_limit_flag(parser, "items")


def add_answer_rule(parser: argparse.ArgumentParser) -> None:
    """--answer-rule, of the commands that read answers."""
    parser.add_argument("--answer-rule", choices=RULES, default=AUTO, help=RULE_HELP)


def output_path(args: argparse.Namespace, suffix: str) -> Path:
    """--output, or the input's name with a suffix, in the input's folder.

    Raises:
        InputError: it is the input, or no name for JSON.
    """
    path = table_flags.array_path(args, suffix)
    outputs.check_output(path, args.input)
    return path
