"""The command line: from words, and the file of `--config`, to the values of declared flags."""

import argparse
import dataclasses
import functools
import importlib
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from jaxscore.cli import help_pages, listing
from jaxscore.cli.listing import PASSED_ON, REFUSED
from jaxscore.errors import InputError, is_valid_unicode, near
from jaxscore.shell.flags import ANY, MAYBE, ONE, SOME, SWITCH, Flag
from jaxscore.version import VERSION

ACTIONS: dict[str, dict[str, Any]] = {  # what argparse makes of a flag: the list of its words
    SWITCH: {"action": "store_const", "const": []},
    ONE: {"action": "append"},
    MAYBE: {"nargs": "?", "action": "extend", "const": [], "type": lambda word: [word]},
    ANY: {"nargs": "*", "action": "extend"},
    SOME: {"nargs": "+", "action": "extend"},
}
Words = dict[str, list[str]]  # field -> the words after its flag


@dataclasses.dataclass(frozen=True)
class Command:
    """A command: its flags, and the function that runs it.

    Attributes:
        help: its page, without the flags.
        options: its flags, in the order of the page.
        run: runs the command; the values of all flags are attributes of its argument.
        attributes: further attributes of that argument.
        expand: replaces a published flag by the flags that do the same.
    """

    name: str
    help: str
    options: Sequence[Flag]
    run: Callable[[Any], int]
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    expand: Callable[[Words], None] = lambda words: None

    @functools.cached_property
    def by_name(self) -> dict[str, Flag]:
        """Spelling -> flag."""
        return {name: option for option in self.options for name in option.names}

    def changed(self, dest: str, **changes: Any) -> "Command":
        """Return the command with another declaration of a flag."""
        options = [
            dataclasses.replace(option, **changes) if option.dest == dest else option
            for option in self.options
        ]
        return dataclasses.replace(self, options=options)

    @property
    def positional(self) -> list[Flag]:
        """Flags whose words may be given by their place."""
        return [option for option in self.options if option.is_positional]


def command(name: str) -> Command:
    """Import a command."""
    module = f"jaxscore.cli.{name.replace('-', '_')}"
    if importlib.util.find_spec(module) is not None:
        declared: Command = importlib.import_module(module).COMMAND
        return declared
    from jaxscore.cli.system_command import command_of
    from jaxscore.systems import declaration

    return command_of(declaration(name))


def hyphenate(argv: Sequence[str]) -> list[str]:
    """Replace underscores in flags: --system_prompts is --system-prompts. Values stay."""
    out = []
    for word in argv:
        name, equals, value = word.partition("=")
        if re.fullmatch(r"--[\w-]+", name):
            word = name.replace("_", "-") + equals + value
        out.append(word)
    return out


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line.

    Returns:
        The values of all flags, and `command`, `run`, which runs it, and `words`.

    Raises:
        SystemExit: with code 0 after a help page, with 2 for bad usage.
    """
    for word in argv:
        if not is_valid_unicode(word):
            _refuse(f"argument {word!a} is not UTF-8")
    if argv and argv[0] in PASSED_ON:
        return listing.passed_on(argv[0], argv[1:])
    try:
        words, config = _split_config(hyphenate(argv))
    except InputError as problem:
        _refuse(str(problem))
    if not words:
        _refuse("the command is missing; jaxscore --help lists them, jaxscore demo shows them")
    name, *rest = words
    if name in help_pages.HELP:
        print(listing.page(), end="")
        sys.exit(0)
    if name == "--version":
        print(f"jaxscore {VERSION}")
        sys.exit(0)
    if name == "--print-completion":
        try:
            print(listing.completion(" ".join(rest)))
        except InputError as problem:
            _refuse(str(problem))
        sys.exit(0)
    if name.startswith("-"):
        _refuse(f"{name} comes before the command; give it after: jaxscore COMMAND {name}")
    if name not in listing.NAMES:
        like = near(name, [*listing.NAMES, *PASSED_ON])
        hint = f"is it {like}?" if like else "jaxscore --help lists them"
        _refuse(f"{name}: no such command; {hint}")
    try:
        args = values(command(name), rest, config)
    except InputError as problem:
        _refuse(str(problem), name)
    args.words = words
    return args


def _refuse(why: str, *command: str) -> NoReturn:
    print(f"{' '.join(['jaxscore', *command])}: error: {why}", file=sys.stderr)
    sys.exit(2)


def _split_config(words: list[str]) -> tuple[list[str], Any]:
    """Read the file of `--config`; return the other words with its command first, and its values.

    Raises:
        InputError: the file cannot be read, or is for another command.
    """
    if not any(word.partition("=")[0] == "--config" for word in _before_dashes(words)):
        return words, None
    from jaxscore.cli.config import Config  # deferred: imports YAML

    path, rest = Config.find(words)
    config = Config.read(path)
    name = rest.pop(0) if rest and rest[0] in listing.NAMES else None
    return [config.command(name), *rest], config


def _before_dashes(words: Sequence[str]) -> Iterator[str]:
    return itertools.takewhile(lambda word: word != "--", words)


def values(command: Command, words: Sequence[str], config: Any = None) -> argparse.Namespace:
    """Parse the words after a command.

    Args:
        config: values of flags that the words do not give.

    Raises:
        InputError: a flag is unknown, refused, missing, or has a value that it does not take.
        SystemExit: with code 0 after a help page.
    """
    _check_flags(command, words)
    assigned, rest = _split(command, words)
    _place(command, assigned, rest)
    where = {} if config is None else config.fill(command, assigned)
    command.expand(assigned)
    args = argparse.Namespace(command=command.name, run=command.run, **command.attributes)
    for option in command.options:
        if option.dest not in assigned:
            vars(args).setdefault(option.dest, option.absent)  # of two flags of one field
            continue
        line = where.get(option.dest, "")
        try:
            setattr(args, option.dest, option.argument(assigned[option.dest]))
        except (InputError, ValueError) as problem:
            raise InputError(f"{line}argument {option.title}: {problem}") from None
    for option in command.options:
        if option.unless in assigned and option.dest in assigned:
            replaced_by = f"--{option.unless}"
            raise InputError(f"argument {option.title}: not allowed with argument {replaced_by}")
    needed = [o for o in command.options if o.is_required and o.unless not in assigned]
    if missing := [option.title for option in needed if option.dest not in assigned]:
        raise InputError(f"the following arguments are required: {', '.join(missing)}")
    return args


def _check_flags(command: Command, words: Sequence[str]) -> None:
    """Print a help page; refuse unknown flags and those that the command does not take."""
    options, refused = command.by_name, REFUSED.get(command.name, {})
    for word in _before_dashes(words):
        name = word.partition("=")[0]
        if name in help_pages.HELP:
            print(help_pages.page(command, everything=name == "--help-all"), end="")
            sys.exit(0)
        if name in refused:
            raise InputError(f"{name}: refused: {refused[name]}")
        if not re.fullmatch(r"--?[^\W\d][\w-]*", name) or " " in word or name in options:
            continue
        if word[:2] in options and word[1] != "-":  # -n4
            continue
        bare = name.lstrip("-")
        if len(bare) == 1 and f"-{bare}" in options:
            raise InputError(f"{name}: no such flag; is it -{bare}?")
        like = near(bare, [flag[2:] for flag in [*options, "--config"] if flag.startswith("--")])
        hint = f"is it --{like}?" if like else f"jaxscore {command.name} --help-all lists all flags"
        raise InputError(f"{name}: no such flag; {hint}")


def _split(command: Command, words: Sequence[str]) -> tuple[Words, list[str]]:
    """Assign words to flags by argparse; return also the words of no flag."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    groups: dict[str, Any] = {}
    for option in command.options:
        container: Any = parser
        if option.excludes is not None:
            container = groups.get(option.excludes) or parser.add_mutually_exclusive_group()
            groups[option.excludes] = container
        if option.names:
            container.add_argument(*option.names, dest=option.dest, **ACTIONS[option.words])
    end = words.index("--") if "--" in words else len(words)
    try:
        assigned, rest = parser.parse_known_args(words[:end])
    except argparse.ArgumentError as problem:
        raise InputError(str(problem)) from None
    words_of = {dest: value for dest, value in vars(assigned).items() if value is not None}
    return words_of, [*rest, *words[end + 1 :]]


def _place(command: Command, assigned: Words, rest: list[str]) -> None:
    """Assign words of no flag to the positional flags that have no words yet.

    Raises:
        InputError: a word is left over.
    """
    flags, by_place = dict(assigned), rest
    for option in command.positional:
        n = len(rest) if option.type.is_list and not option.names else 1
        if rest and assigned.setdefault(option.dest, rest[:n]) == rest[:n]:  # or twice
            rest = rest[n:]
    if not rest:
        return
    for option, word in zip(command.positional, by_place, strict=False):
        words = " ".join(flags.get(option.dest, [word]))
        if words != word:
            is_placed = len(by_place) >= len(command.positional)  # the flag is then in excess
            excess, value = (words, word) if is_placed else (word, words)
            raise InputError(
                f"{excess!r} is one too many: {option.metavar} is {value!r} already; give it once, "
                f"by its place or by {option.names[0]}"
            )
    raise InputError(f"unrecognized arguments: {' '.join(rest)}")
