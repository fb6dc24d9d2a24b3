"""Flags of `score` for numbers beside the usual ones."""

import argparse
from typing import Any

from jaxscore.cli.help_pages import advanced
from jaxscore.systems.score.measures import BLANKS, LOG_BASES, NEEDS, UNITS, MeasureSettings

DEFAULTS = MeasureSettings()


def add(parser: argparse.ArgumentParser) -> None:
    """--measures, --unit and their kin."""
    group = parser.add_argument_group("further measures")
    group.add_argument(
        "--measures",
        type=_names,
        default=DEFAULTS.measures,
        metavar="NAME,NAME",
        help=f"fields to add, of {', '.join(NEEDS)}",
    )
    group.add_argument(
        "--unit",
        choices=UNITS,
        default=DEFAULTS.unit,
        help="word: add `words` and `word_surprisal`",
    )
    advanced(
        group,
        "--min-k",
        type=float,
        default=DEFAULTS.min_k,
        metavar="SHARE",
        help=f"of a text's tokens that min_k and min_k_pp take (default {DEFAULTS.min_k})",
    )
    advanced(
        group,
        "--top-k",
        type=int,
        default=DEFAULTS.top_k,
        metavar="K",
        help=f"tokens of each place that top_k lists (default {DEFAULTS.top_k})",
    )
    advanced(
        group,
        "--log-base",
        choices=tuple(LOG_BASES),
        default=DEFAULTS.log_base,
        help="of word surprisal: 2 is bits (default); all other numbers are nats",
    )
    advanced(
        group,
        "--leading-blank",
        choices=BLANKS,
        default=DEFAULTS.leading_blank,
        help="count: tokens before a word that are blanks alone belong to it (default); skip: "
        "they belong to no word. A remark tells what it changes",
    )


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Their values as settings of the system."""
    names = ("measures", "min_k", "top_k", "unit", "log_base", "leading_blank")
    return {name: getattr(args, name) for name in names}


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
