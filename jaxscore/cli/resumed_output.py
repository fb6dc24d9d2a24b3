"""What commands share whose output a later run can continue."""

import argparse
import sys
from pathlib import Path
from typing import Any

from jaxscore.cli import messages
from jaxscore.io.json_output import GrowingArray


def model_facts(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """What each record says of the model: known before it is loaded. None for what is not given."""
    return {
        "model": model,
        "revision": args.revision,
        "lora": None if args.lora is None else str(args.lora),
        "quantize": args.quantize,
        "reproducible": args.reproducible or None,
    }


def tell_continued(args: argparse.Namespace, output: Path, n_previous: int, n_changed: int) -> None:
    """That an earlier run has left some items, if one has."""
    if n_previous:
        messages.remark(args, f"continuing {output}, which holds {n_previous} items")
    if n_changed:
        messages.remark(args, f"{n_changed} of them have changed and are computed again")


def interrupted(args: argparse.Namespace, growing: GrowingArray) -> int:
    """The exit code of a run that was interrupted, having said what is left of it.

    Raises:
        KeyboardInterrupt: nothing is.
    """
    if not growing.is_written:
        raise KeyboardInterrupt
    print(
        f"jaxscore {args.command}: interrupted; {growing.path} holds the items that were "
        "finished, and the same command goes on from there",
        file=sys.stderr,
    )
    return 130
