"""`jaxscore journal`: what a journal holds, and making it smaller."""

import argparse
from pathlib import Path

from jaxscore.errors import InputError
from jaxscore.journal import database
from jaxscore.printable import one_line

DESCRIPTION = """\
Look into a journal, or drop what is kept of models that are no longer wanted.

A journal keeps finished scores and texts that a model has written, so that a run goes on where it
was interrupted and another one that asks for the same need not compute it again. They are kept
for each model, dtype and implementation apart; which one is meant is told by the files' content,
not by their name.

  info   one line for each model: a number, texts that were scored and that were written, bytes,
         and what it is; the last used first
  prune  drop all but the --keep models that were used last, and give the space back

examples:
  python -m jaxscore journal info out.jsonl.journal
  python -m jaxscore journal prune out.jsonl.journal --keep 1
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "journal",
        help="look into a journal of finished scores and texts, or prune it",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("info", "prune"))
    parser.add_argument("path", type=Path, metavar="FILE")
    parser.add_argument(
        "--keep",
        type=int,
        metavar="N",
        help="with prune: models to keep, those used last (default 1)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    keep = 1 if args.keep is None else args.keep
    if keep < 0 or (args.keep is not None and args.action == "info"):
        raise InputError(
            f"--keep {keep} with {args.action}: expected a number of at least 0, with prune"
        )
    if args.action == "prune":
        n_models, n_bytes = database.prune(args.path, keep)
        print(f"{n_models} models dropped, {n_bytes} bytes freed")
    for k, one in enumerate(database.held(args.path), 1):
        facts = " ".join(
            f"{name}={str(value)[:12]}" for name, value in one.about.items() if value is not None
        )
        print(
            one_line(
                f"{k}: {one.n_sequences} texts scored, {one.n_texts} written, {one.n_bytes} bytes, "
                f"used {one.used}: {facts}"
            )
        )
    return 0
