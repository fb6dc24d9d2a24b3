"""`jaxscore usc-generate`: the command of the system, with -d of the published script."""

import dataclasses
import re

from jaxscore.cli.app import Words
from jaxscore.cli.system_command import command_of
from jaxscore.errors import InputError
from jaxscore.shell.flags import Flag
from jaxscore.systems import declaration

DATA_NAME = Flag(
    names=("-d", "--data-name"),
    dest="published",
    is_advanced=True,
    metavar="usc-N-FILE",
    help="the same as -n N --input FILE, as the published script spells it",
)


def _expand(words: Words) -> None:
    """Replace -d by the flags that it gives.

    Raises:
        InputError: its value is malformed, or contradicts -n or --input.
    """
    if (data_names := words.pop("published", None)) is None:
        return
    match = re.fullmatch(r"usc-([1-9][0-9]{0,8})-(.+)", data_names[-1])
    if match is None:
        raise InputError(
            f"argument -d/--data-name: {data_names[-1]}: expected usc-N-FILE, such as "
            "usc-8-samples.json"
        )
    n, path = match.groups()
    other_n, inputs = words.get("n", [n])[-1], words.get("input", [path])
    if other_n != n or any(word != path for word in inputs):
        raise InputError(
            f"-d means -n {n} --input {path}, and -n {other_n} --input {' '.join(inputs)} "
            "is given; give -d alone, or -n and --input"
        )
    words |= {"n": [n], "input": [path]}


_COMMAND = command_of(declaration("usc-generate"))
COMMAND = dataclasses.replace(_COMMAND, options=[*_COMMAND.options, DATA_NAME], expand=_expand)
