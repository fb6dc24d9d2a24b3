"""Flags of `chronologic`, and which of them a server's model cannot take."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli import endpoint_flags, model_flags, outputs, settings_flags, table_flags
from jaxscore.cli.help_pages import advanced
from jaxscore.endpoints.completions import DEFAULT_URL
from jaxscore.errors import InputError
from jaxscore.io.local_path import local_path
from jaxscore.systems.chronologic import answer_scores
from jaxscore.systems.prompt_settings import AnswerSettings

PLACES = {"model": ("MODEL", "--model"), "questions": ("QUESTIONS.jsonl", "--input")}


class Place(argparse.Action):
    """MODEL or QUESTIONS.jsonl, each by its place or by its flag.

    A word by place goes to the first of the two that is not given yet, so that `--model M Q` and
    `M --input Q` mean what they say.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Note one word; argparse ends the program where it is one too many."""
        word = str(values)

        def given(dest: str) -> str | None:
            value = getattr(namespace, dest, self.default)
            return None if value is self.default else str(value)

        names = [self.dest] if option_string else [*PLACES]
        if not option_string and any(given(name) == word for name in names):
            return
        free = [name for name in names if given(name) is None]
        if not free and given(self.dest) != word:
            place, flag = PLACES[self.dest]
            raise argparse.ArgumentError(
                self,
                f"{word!r} is one too many: {place} is {given(self.dest)!r} already; give it "
                f"once, by its place or by {flag}",
            )
        for name in free[:1]:
            setattr(namespace, name, self._value(name, word))

    def _value(self, name: str, word: str) -> str | Path:
        try:
            return local_path(word) if name == "questions" else word
        except InputError as problem:
            raise argparse.ArgumentError(self, str(problem)) from None


def add(parser: argparse.ArgumentParser) -> None:
    """All flags of the command."""
    _add_places(parser)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--full-eval", action="store_true", help="score every question")
    mode.add_argument("--mcq", action="store_true", help="multiple choice on every question")
    parser.add_argument(
        "--samples",
        type=model_flags.positive,
        default=5,
        metavar="N",
        help="questions drawn where neither --full-eval nor --mcq is given (default 5)",
    )
    model_flags.add_limit_flag(parser, "questions")
    table_flags.add(parser, answer_scores.FIELDS)
    parser.add_argument(
        "--output-dir",
        "--output",
        type=Path,
        metavar="DIR",
        help="default: the folder of the questions",
    )
    parser.add_argument(
        "--no-metadata", action="store_true", help="leave the metadata frame out of the prompts"
    )
    parser.add_argument(
        "--boundary",
        choices=tuple(answer_scores.BOUNDARIES),
        default="joint",
        help="where an answer starts. joint: encoded as one text with what is before it "
        "(default); separate: encoded apart; upstream: as many tokens are skipped as the "
        "context has alone, as the published script does",
    )
    settings_flags.add(parser, AnswerSettings)
    parser.add_argument(
        "--include-negation",
        action="store_true",
        help="--mcq: keep the options of type negation",
    )
    advanced(
        parser,
        "--no-shuffle",
        action="store_true",
        help="--mcq: keep the options in the file's order",
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="fit a softmax temperature on half of the questions, drawn by the seed, and show "
        "what it does on the others",
    )
    advanced(
        parser,
        "--n-bootstrap",
        type=model_flags.positive,
        default=1000,
        metavar="N",
        help="draws for the 95%% intervals of means (default 1000)",
    )
    parser.add_argument(
        "--vllm",
        action="store_true",
        help=f"use the server at {DEFAULT_URL} instead of a local model",
    )
    endpoint_flags.add(parser)
    settings_flags.add_groups(parser, AnswerSettings)
    outputs.add_page_flags(parser)
    advanced(parser, "--revision", help="branch, tag or commit of a hub id")
    model_flags.add_lora_flag(parser)
    model_flags.add_model_flags(parser, model_required=False)


def _add_places(parser: argparse.ArgumentParser) -> None:
    places = [
        parser.add_argument(
            "model",
            metavar="MODEL",
            action=Place,
            help="a local Hugging Face folder, a hub id, or `demo`; with an endpoint, its "
            "model's name",
        ),
        parser.add_argument("questions", metavar="QUESTIONS.jsonl", action=Place),
    ]
    for place in places:
        place.required = False  # the flag may stand for it
    for dest, (metavar, flag) in PLACES.items():
        parser.add_argument(
            flag, dest=dest, action=Place, metavar=metavar, help=f"another spelling of {metavar}"
        )


def url(args: argparse.Namespace) -> str | None:
    """The endpoint's URL; None for a local model."""
    return DEFAULT_URL if args.vllm and args.api_base is None else args.api_base


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The flags as settings of `evaluate`."""
    return {
        "mode": "mcq" if args.mcq else "full" if args.full_eval else "sample",
        "samples": args.samples,
        "metadata": not args.no_metadata,
        "include_negation": args.include_negation,
        "shuffle": not args.no_shuffle,
        "calibrate": args.calibrate,
        "boundary": args.boundary,
        "n_bootstrap": args.n_bootstrap,
        **settings_flags.values(args, AnswerSettings),
    }


def check(args: argparse.Namespace) -> None:
    """Refuse places that are missing.

    Raises:
        InputError: naming them.
    """
    for dest, (place, flag) in PLACES.items():
        if getattr(args, dest) is None:
            raise InputError(f"{place} is missing; give it by its place or by {flag}")
