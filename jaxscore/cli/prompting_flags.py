"""Flags of prompts: chat template, system prompt and few-shot examples."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxscore.cli import model_flags
from jaxscore.cli.help_pages import advanced
from jaxscore.errors import InputError
from jaxscore.io.json_input import read_jsonl, read_text
from jaxscore.io.run_files import file_digest
from jaxscore.systems.prompt_settings import PromptSettings


def add(parser: argparse.ArgumentParser, line: str) -> None:
    """--apply-chat-template, --system, --system-file, --fewshot and --num-fewshot.

    Args:
        line: what a line of the examples' file holds.
    """
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--apply-chat-template",
        action="store_true",
        help="make each prompt a conversation by the tokenizer's chat template; the continuation "
        "is scored as the start of the assistant's turn",
    )
    group.add_argument("--system", metavar="TEXT", help="system prompt before each prompt")
    advanced(
        group,
        "--system-file",
        type=Path,
        metavar="FILE",
        help="the same from a text file, without line ends at its end",
    )
    group.add_argument(
        "--fewshot",
        type=Path,
        metavar="FILE",
        help=f"JSONL of examples before each prompt: {line}; an item that is an example does not "
        "see it",
    )
    group.add_argument(
        "--num-fewshot",
        type=model_flags.count,
        metavar="N",
        help="how many of the examples, drawn by --seed, the same for all items (default: all, in "
        "the file's order)",
    )


def add_separator(parser: argparse._ActionsContainer, published: str) -> None:
    """--answer-separator.

    Args:
        published: name of the published separator, for the help.
    """
    parser.add_argument(
        "--answer-separator",
        metavar="TEXT",
        help=f"text between a prompt and its answer, scored with the answer (default: {published}, "
        "as published)",
    )


def settings(args: argparse.Namespace, read: Callable[[Any, int, str], Any]) -> dict[str, Any]:
    """The flags as settings of `evaluate`.

    Args:
        read: makes an example of (object of a line, its number, what to call it).

    Raises:
        InputError: flags that contradict, or a file that cannot be used, with file and line.
    """
    if args.system is not None and args.system_file is not None:
        raise InputError(
            "--system and --system-file: both give the system prompt; give one of them"
        )
    if args.num_fewshot is not None and args.fewshot is None:
        raise InputError(
            "--num-fewshot draws from the examples of --fewshot FILE, which is missing"
        )
    system = args.system
    if args.system_file is not None:
        system = read_text(args.system_file).rstrip("\r\n")
        if not system.strip():
            raise InputError(f"{args.system_file}: the file is empty, expected a system prompt")
    examples = []
    if args.fewshot is not None:
        lines = read_jsonl(args.fewshot)
        examples = [read(one, number, f"{args.fewshot}:{number}") for number, one in lines]
    out = {
        "apply_chat_template": args.apply_chat_template,
        "system_prompt": system,
        "fewshot": examples,
        "num_fewshot": args.num_fewshot,
    }
    PromptSettings(**out)  # refused before the model is loaded
    return out


def inputs(args: argparse.Namespace) -> list[Path | None]:
    """The files that `settings` reads."""
    return [args.system_file, args.fewshot]


def about(args: argparse.Namespace) -> dict[str, str | None]:
    """The examples' file, for settings and manifest."""
    if args.fewshot is None:
        return {}
    return {"fewshot": str(args.fewshot), "fewshot_sha256": file_digest(args.fewshot)}
