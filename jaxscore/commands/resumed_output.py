"""What commands say whose output a later run can continue."""

import argparse
import sys
from pathlib import Path

from jaxscore.commands import shared
from jaxscore.files.growing import GrowingArray


def tell_continued(args: argparse.Namespace, output: Path, n_previous: int, n_changed: int) -> None:
    """That an earlier run has left some items, if one has."""
    if n_previous:
        shared.remark(args, f"continuing {output}, which holds {n_previous} items")
    if n_changed:
        shared.remark(args, f"{n_changed} of them have changed and are computed anew")


def interrupted(args: argparse.Namespace, growing: GrowingArray) -> int:
    """The exit code of a run that was interrupted, having said what is left of it.

    Raises:
        KeyboardInterrupt: nothing is.
    """
    if not growing.kept:
        raise KeyboardInterrupt
    print(
        f"jaxscore {args.command}: interrupted; {growing.path} holds the items that were "
        "finished, and the same command goes on from there",
        file=sys.stderr,
    )
    return 130
