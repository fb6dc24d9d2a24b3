"""`jaxscore journal`: lists the contents of a journal, or prunes it."""

import argparse
import dataclasses
from pathlib import Path
from typing import Literal

from jaxscore.cli import messages
from jaxscore.cli.app import Command
from jaxscore.errors import InputError, format_bytes, one_line
from jaxscore.journal import files
from jaxscore.journal.files import JournaledModel
from jaxscore.report.markdown import aligned
from jaxscore.shell.flags import flag, options_of

DESCRIPTION = """\
Show what a journal holds, or drop the rows of models that are no longer needed.

A journal keeps finished scores, and texts that a model has written. With it an
interrupted run continues, and another run over the same texts does not compute
them again. It is in .jaxscore next to the output: FILE is the output, its
folder or the journal itself. Rows are kept apart by model, dtype and
implementation; the bytes of a model's files identify it, not its name.

  info   the size of the file, and one line per model, the last used first:
         scored and generated texts, the size of their rows, when a run last
         used them, and what computed them
  prune  drop all models but the --keep that were used last, and free their
         space; --keep 0 removes the file, and .jaxscore if nothing else is in
         it

  python -m jaxscore journal info out.jsonl
  python -m jaxscore journal info --input out.jsonl
  python -m jaxscore journal prune out.jsonl --keep 1

exit code: 0 done, 2 no such journal, or unusable input.
"""
COLUMNS = ("", "scored", "written", "size", "last used", "computed by")
RIGHT = slice(4)  # right-aligned columns


@dataclasses.dataclass(kw_only=True)
class Flags:
    """The flags of `journal`."""

    action: Literal["info", "prune"] = flag(is_positional=True, metavar="{info,prune}")
    path: Path | None = flag(None, is_positional=True, metavar="FILE")
    input: Path | None = flag(None, metavar="FILE", help="another spelling of FILE")
    keep: int | None = flag(
        None, metavar="N", help="with prune: models to keep, those used last (default 1)"
    )


def run(args: argparse.Namespace) -> int:
    if (args.path is None) == (args.input is None):
        state = "missing" if args.path is None else f"{args.path} by its place already"
        raise InputError(f"FILE is {state}; give it once, by its place or by --input")
    named: Path = args.path or args.input
    if args.keep is not None and args.action != "prune":
        raise InputError(
            f"--keep {args.keep}: `journal {args.action}` drops nothing; leave --keep out, or use "
            f"`journal prune {named} --keep {args.keep}`"
        )
    keep = 1 if args.keep is None else args.keep
    if keep < 0:
        raise InputError(f"--keep {keep}: expected the number of models to keep, 0 or more")
    path = files.find_journal(named)
    if args.action == "info":
        n_models = _print_contents(path)
        return messages.print_closing_block(done=f"{_count(n_models)} listed")
    n_models, n_bytes = files.prune(path, keep)
    if remains := path.exists():
        _print_contents(path)
    else:
        print(one_line(f"journal {path}: removed"))
    return messages.print_closing_block(
        done=f"{_count(n_models)} dropped",
        results=[f"freed {format_bytes(n_bytes)}"],
        files=[path] if remains else [],
    )


def _print_contents(path: Path) -> int:
    """Print the contents of a journal; returns the number of its models."""
    models = files.list_models(path)
    size = format_bytes(path.stat().st_size)
    print(one_line(f"journal {path}: {_count(len(models))}, {size} on disk"))
    if models:
        rows = [COLUMNS, *(_cells(k, model) for k, model in enumerate(models, 1))]
        print(aligned(rows, RIGHT))
    return len(models)


def _count(n: int) -> str:
    return f"{n} model{'' if n == 1 else 's'}"


def _cells(number: int, model: JournaledModel) -> tuple[str, ...]:
    facts = " ".join(
        f"{name}={str(value)[:12]}" for name, value in model.about.items() if value is not None
    )
    sizes = (str(model.n_sequences), str(model.n_texts), format_bytes(model.n_bytes))
    return (str(number), *sizes, model.used, facts)


COMMAND = Command("journal", DESCRIPTION, options_of(Flags), run)
