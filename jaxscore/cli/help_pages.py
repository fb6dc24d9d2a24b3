"""The parser of all commands: help of at most 80 columns, and suggestions for typing errors."""

import argparse
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jaxscore.errors import InputError, near
from jaxscore.io import remote
from jaxscore.io.local_path import ADDRESS, check_local, local_path
from jaxscore.io.streams import descriptor

WIDTH = 80  # columns
OUTPUTS = ("output", "output_dir", "html")  # names of flags whose place may be a stream
REMOTE = "remote"  # name of a default: the flags that take addresses and standard input
ADVANCED = "advanced"  # attribute of an action that only `--help-all` shows


def advanced(container: argparse._ActionsContainer, *names: str, **options: Any) -> None:
    """`add_argument` for a flag that only `--help-all` shows."""
    setattr(container.add_argument(*names, **options), ADVANCED, True)


class _Help(argparse._HelpAction):
    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        print(parser.page(everything=option == "--help-all"), end="")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Parses a command's flags. They must be written in full; a mistyped one gets a suggestion."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "allow_abbrev": False, "add_help": False})
        self.register("type", Path, _path)  # what `type=Path` of every flag means
        self.add_argument("-h", "--help", action=_Help, help="this page")
        advanced(self, "--help-all", action=_Help, help="this page, with all flags")

    def format_help(self) -> str:
        """Help with the common flags."""
        return self.page(everything=False)

    def page(self, *, everything: bool) -> str:
        """Usage, description and flags; without `everything` the common flags."""
        formatter = argparse.RawDescriptionHelpFormatter(self.prog, width=WIDTH)
        formatter.add_text(self.format_usage().rstrip())
        formatter.add_text(self.description)
        n_hidden = 0
        for group in self._action_groups:
            shown = [
                action
                for action in group._group_actions
                if everything or not hasattr(action, ADVANCED)
            ]
            n_hidden += len(group._group_actions) - len(shown)
            if shown:
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(shown)
                formatter.end_section()
        more = f"\n{n_hidden} more flags: {self.prog} --help-all" if n_hidden else ""
        formatter.add_text(f"{self.prog} --config FILE reads flags from a YAML file.{more}")
        return formatter.format_help()

    def format_usage(self) -> str:
        """Required flags; `[flags]` stands for all others."""
        formatter = argparse.HelpFormatter(self.prog)
        needed = [
            " ".join([*action.option_strings[:1], formatter._format_args(action, _name(action))])
            for action in self._actions
            if action.required
        ]
        text = " ".join(["usage:", self.prog, *needed, "[flags]"])
        return textwrap.fill(text, WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False) + "\n"

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, but report an unknown flag before a missing one.

        Raises:
            SystemExit: with code 2, by `error`.
        """
        for name in _unknown(args or (), self):
            flags = [flag[2:] for flag in self._option_string_actions if flag.startswith("--")]
            word = name.lstrip("-")
            if len(word) == 1 and f"-{word}" in self._option_string_actions:
                self.error(f"{name}: no such flag; is it -{word}?")
            like = near(word, [*flags, "config"])  # config: see io.config_file
            hint = f"is it --{like}?" if like else f"{self.prog} --help-all lists all flags"
            self.error(f"{name}: no such flag; {hint}")
        found = super().parse_known_args(args, namespace)
        self._check_places(found[0])
        return found

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        """Convert a word as argparse does; name the schemes where addresses are taken."""
        if action.type is Path and action.dest in (self.get_default(REMOTE) or ()):
            try:
                if ADDRESS.match(text) and not remote.is_address(text):
                    remote.stage(text)
            except InputError as problem:
                raise argparse.ArgumentError(action, str(problem)) from None
        return super()._get_value(action, text)

    def _check_places(self, args: argparse.Namespace) -> None:
        """Refuse addresses and standard input where the command takes neither."""
        for dest, value in vars(args).items():
            paths = value if isinstance(value, list) else [value]
            for path in paths if dest not in getattr(args, REMOTE, ()) else ():
                if not isinstance(path, Path):
                    continue
                if (address := remote.address_of(path)) is not None:
                    try:
                        check_local(address)
                    except InputError as problem:
                        self.error(f"argument {self._flag(dest)}: {problem}")
                if dest not in OUTPUTS and (str(path) == "-" or descriptor(path) == 0):
                    self.error(
                        f"{dest} is {path}: standard input is not read; write it to a file and "
                        "give that"
                    )

    def _flag(self, dest: str) -> str:
        actions = (action for action in self._actions if action.dest == dest)
        return next((action.option_strings[0] for action in actions if action.option_strings), dest)


def _path(text: str) -> Path:
    try:
        return remote.stage(text) if remote.is_address(text) else local_path(text)
    except InputError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _name(action: argparse.Action) -> str:
    return action.dest if not action.option_strings else action.dest.upper()


def _unknown(words: Sequence[str], parser: argparse.ArgumentParser) -> Iterator[str]:
    """Words that argparse would take for flags, and that the parser does not have."""
    known = parser._option_string_actions
    for word in itertools.takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        flag = re.fullmatch(r"--?[^\W\d][\w-]*", name) and " " not in word
        attached = not word.startswith("--") and word[:2] in known  # -n4
        if flag and name not in known and not attached:
            yield name
