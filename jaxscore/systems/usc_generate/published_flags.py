"""-d of the published `usc-generate`: a data set `usc-N-FILE` gives the input and N."""

import argparse
import re
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.local_path import local_path


class _DataName(argparse.Action):
    """Reads the input and N."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        found = re.fullmatch(r"usc-([1-9][0-9]{0,8})-(.+)", values)
        if found is None:
            problem = f"{values}: expected usc-N-FILE, such as usc-8-samples.json"
            raise argparse.ArgumentError(self, problem)
        try:
            namespace.published = int(found.group(1)), local_path(found.group(2))
        except InputError as problem:
            raise argparse.ArgumentError(self, str(problem)) from None
        n, path = namespace.published
        for name, value in (("n", n), ("input", [path])):
            if getattr(namespace, name) is None:
                setattr(namespace, name, value)
        for action in parser._actions:
            action.required = action.required and action.dest not in ("n", "input")


def add(parser: argparse.ArgumentParser) -> argparse.Action:
    """Declare -d."""
    return parser.add_argument(
        "-d",
        "--data-name",
        action=_DataName,
        dest="published",
        default=argparse.SUPPRESS,
        metavar="usc-N-FILE",
        help="the same as -n N --input FILE, as the published script spells it",
    )


def check(args: argparse.Namespace) -> None:
    """Refuse -d beside another -n or --input.

    Raises:
        InputError: both are given, and differ.
    """
    if (published := vars(args).pop("published", None)) is None:
        return
    n, path = published
    others = [other for other in args.input if other != path]
    if args.n != n or others:
        found = " ".join(map(str, others or [path]))
        raise InputError(
            f"-d says -n {n} --input {path}, beside it -n {args.n} --input {found} is given; "
            "give -d alone, or -n and --input"
        )
    args.input = [path]
