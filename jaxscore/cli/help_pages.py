"""Help pages of 80 columns: the common flags, or all of them."""

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxscore.cli.listing import REFUSED
from jaxscore.shell.flags import ANY, MAYBE, ONE, SOME, SWITCH, Flag

if TYPE_CHECKING:
    from jaxscore.cli.app import Command

WIDTH = 80  # columns
INDENT = 24  # columns before the text about a flag
SEVERAL_PROCESSES, MANY_FILES = "several processes", "many files"
SECTIONS = {  # title of a section -> text below it
    SEVERAL_PROCESSES: "the same command in each, on the same files; the first one writes\n",
    MANY_FILES: """\
--output FOLDER/ with a slash, also s3://bucket/FOLDER/: one output per input,
with its manifest. The same command skips finished ones, and exits with 1 if
some inputs are unusable. `jaxscore merge FOLDER/` makes one file of them.
""",
}
HELP = ("-h", "--help", "--help-all")
HELP_OPTIONS = (
    Flag(names=HELP[:2], dest="help", words=SWITCH, help="this page"),
    Flag(names=HELP[2:], dest="help", words=SWITCH, help="this page, with all flags",
           is_advanced=True),
)  # fmt: skip


def page(command: "Command", *, everything: bool) -> str:
    """Usage, description and flags; without `everything` the common flags."""
    refused = [
        Flag(names=(name,), dest="", words=MAYBE, metavar="X", help=f"refused: {why}",
               is_advanced=True)
        for name, why in REFUSED.get(command.name, {}).items()
    ]  # fmt: skip
    options = [*HELP_OPTIONS, *command.options, *refused]
    shown = [option for option in options if everything or not option.is_advanced]
    prog = f"jaxscore {command.name}"
    blocks = [_usage(prog, command), command.help.strip("\n")]
    groups = dict.fromkeys(
        "positional arguments" if not option.names else option.group for option in shown
    )
    for title in sorted(groups, key=lambda title: title != "positional arguments"):
        lines = [f"{title}:"]
        if text := SECTIONS.get(title):
            lines.append(textwrap.indent(text, "  "))
        for option in shown:
            if title == (option.group if option.names else "positional arguments"):
                lines += _entry(option)
        blocks.append("\n".join(lines))
    n_hidden = len(options) - len(shown)
    more = f"\n{n_hidden} more flags: {prog} --help-all" if n_hidden else ""
    blocks.append(f"{prog} --config FILE reads flags from a YAML file.{more}")
    return "\n\n".join(blocks) + "\n"


def _usage(prog: str, command: "Command") -> str:
    """Required flags; `[flags]` represents all others."""
    required = [
        " ".join([*option.names[:1], _values(option)]).strip()
        for option in command.options
        if option.is_required
    ]
    text = " ".join(["usage:", prog, *required, "[flags]"])
    return textwrap.fill(text, WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False)


def _values(option: Flag) -> str:
    """The placeholders after a flag."""
    if option.words == SWITCH:
        return ""
    choices = f"{{{','.join(map(str, option.type.choices))}}}"
    names = option.metavar or (choices if option.type.choices else option.dest.upper())
    first, last = names if isinstance(names, tuple) else (names, names)
    return {
        ONE: first,
        MAYBE: f"[{first}]",
        SOME: f"{first} [{last} ...]",
        ANY: f"[{first} [{last} ...]]",
    }[option.words or ONE]


def _entry(option: Flag) -> Iterator[str]:
    values = _values(option)
    if not option.names:
        label = f"  {option.metavar}"
    else:
        label = "  " + ", ".join(f"{name} {values}".strip() for name in option.names)
    text = textwrap.wrap(option.help, WIDTH - INDENT, break_on_hyphens=False)
    if len(label) <= INDENT - 2 and text:
        yield f"{label:{INDENT}}{text.pop(0)}"
    else:
        yield textwrap.fill(label, WIDTH, subsequent_indent=" " * 6, break_on_hyphens=False)
    yield from (" " * INDENT + line for line in text)
