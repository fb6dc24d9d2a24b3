"""`--config FILE`: reads a command and its flags from a YAML file.

    command: paths
    model: demo
    input: paths.jsonl                   as on the command line: from the working directory
    system-prompts: [Be brief., Think.]  a list for a flag that takes several values
    quiet: true                          a flag without a value; false leaves it out

The file becomes words of the command line, which argparse validates. Values are taken as they are
written, not as YAML 1.1 reads them (`journal: off` is no Boolean and `revision: 010` not 8).
"""

import argparse
import copy
import difflib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.io.local_path import local_path

if TYPE_CHECKING:  # most commands read no YAML
    import yaml

FLAG = "--config"
HELP = ("-h", "--help", "--help-all")
PLAIN_TAGS = {  # what YAML makes of plain texts; others ask for objects of some program
    f"tag:yaml.org,2002:{kind}" for kind in "str int float bool null timestamp seq".split()
}
UNSET: list[str] = []  # a list, since "extend" adds to a default; recognized by identity
TAKES_ONE = "takes_one"  # attribute of an action that takes a list or one word


class Entry(NamedTuple):
    """A value of the file as text; None for nothing, a list for a list."""

    value: str | list[str] | bool | None
    where: str


def expand_config(
    words: Sequence[str],
    names: Collection[str],
    parser_of: Callable[[str], argparse.ArgumentParser],
) -> list[str]:
    """Replace `--config FILE` in the words of the command line by the words of the file.

    Args:
        words: as given; without `--config` they are returned unchanged. The command may precede or
            follow the file, or be named in the file alone. Flags of the command line override the
            file's.
        names: of all commands.
        parser_of: returns the parser of a command.

    Raises:
        InputError: the file cannot be read, or has a key or value that the parser does not take.
        SystemExit: the other words are invalid; from argparse.
    """
    path, rest = _split(words)
    if path is None:
        return rest
    entries = read_config(path)
    given = rest.pop(0) if rest and rest[0] in names else None
    command, where = entries.pop("command", Entry(given, ""))
    if command is None and not where:
        raise InputError(f'{path}: no key "command", which says what to run')
    if not isinstance(command, str) or command not in names:
        raise InputError(f"{where}: {command!r} is no command; {_near(str(command), names)}")
    if given not in (None, command):
        raise InputError(f"{where}: the file is for {command}, not for {given}")
    if pages := [word for word in rest if word in HELP]:
        return [command, pages[0]]
    parser = parser_of(command)
    flags, positional = _words(entries, parser, _given_dests(rest, parser))
    try:
        _lenient(parser, refuse=True).parse_args(_join(flags, positional))
    except ValueError as problem:
        raise InputError(f"{path}: {problem}") from None
    end = rest.index("--") if "--" in rest else len(rest)
    return [command, *_join([*rest[:end], *flags], [*rest[end + 1 :], *positional])]


def _split(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file of `--config`, or None without the flag, and the other words."""
    end = words.index("--") if "--" in words else len(words)
    places = [k for k in range(end) if words[k].partition("=")[0] == FLAG]
    if not places:
        return None, list(words)
    if len(places) > 1:
        raise InputError(f"{FLAG} is given {len(places)} times, expected once")
    [k] = places
    _, equals, value = words[k].partition("=")
    path = value if equals else "".join(words[k + 1 : k + 2])
    if not path:
        raise InputError(f"{FLAG}: expected a file after it")
    return local_path(path), [*words[:k], *words[k + (1 if equals else 2) :]]


def _join(flags: list[str], positional: list[str]) -> list[str]:
    """Separate positional words by `--`: a flag that takes a list would take them too."""
    return [*flags, "--", *positional] if positional else flags


def read_config(path: Path) -> dict[str, Entry]:
    """Read keys, with hyphens, and their values.

    Raises:
        InputError: the file cannot be read, is no YAML mapping of keys to values or lists, or
            has a key twice.
    """
    import yaml

    from jaxscore.io.yaml_input import read_node

    node = read_node(path)
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path}: expected `key: value` lines, with `command: …` among them")
    entries: dict[str, Entry] = {}
    for key_node, value_node in node.value:
        where = f"{path}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise InputError(f"{where}: a key is a list or a mapping, expected a flag's name")
        key = key_node.value.replace("_", "-")
        if key in entries:
            raise InputError(f"{where}: key {key!r} is given twice, first at {entries[key].where}")
        entries[key] = Entry(_value(value_node, f"{where}: {key}"), where)
    return entries


def _value(node: "yaml.Node", what: str) -> str | list[str] | bool | None:
    import yaml

    if isinstance(node, yaml.SequenceNode) and node.tag in PLAIN_TAGS:
        # A list in a list is not followed: it may hold itself.
        items = [isinstance(item, yaml.ScalarNode) and _value(item, what) for item in node.value]
        if not all(isinstance(item, str) for item in items):
            raise InputError(f"{what}: its list holds more than texts and numbers")
        return [str(item) for item in items]
    if not isinstance(node, yaml.ScalarNode) or node.tag not in PLAIN_TAGS:
        raise InputError(f"{what}: expected a text, a number, true, false, or a list of those")
    if not is_valid_unicode(node.value) or "\0" in node.value:  # no argument can hold these
        raise InputError(f"{what} is {node.value!a}, expected text without zero bytes")
    if node.tag.endswith(":null"):
        return None
    if node.tag.endswith(":bool") and node.value.lower() in ("true", "false"):
        return node.value.lower() == "true"
    return node.value


def _words(
    entries: dict[str, Entry], parser: argparse.ArgumentParser, given: set[str]
) -> tuple[list[str], list[str]]:
    """Flags and positional words of entries whose `dest` the command line does not give."""
    actions = _actions(parser)
    flags: list[str] = []
    positional: dict[str, str] = {}
    seen: dict[str, str] = {}
    for key, entry in entries.items():
        if key not in actions:
            raise InputError(f"{entry.where}: no key {key!r}; {_near(key, actions)}")
        name, action = actions[key]
        if action.dest in seen:
            raise InputError(f"{entry.where}: {key} is the same as {seen[action.dest]}")
        seen[action.dest] = f"{key}, at {entry.where}"
        value = _checked(key, entry, action)
        for word in value if isinstance(value, list) else ():
            # After a list's flag a value cannot be distinguished from a flag.
            if word == "--" or word.partition("=")[0] in parser._option_string_actions:
                raise InputError(
                    f"{entry.where}: {key} holds {word!r}, which the command line takes for a "
                    "flag; give flags as keys of their own"
                )
        if action.dest in given:
            continue
        if not name:
            positional[action.dest] = str(value)
        elif isinstance(value, list):
            flags += [name, *value]
        elif value is True:
            flags.append(name)
        elif isinstance(value, str):
            flags.append(f"{name}={value}")
    order = [action.dest for action in parser._actions if not action.option_strings]
    return flags, [positional[dest] for dest in order if dest in positional]


def _checked(key: str, entry: Entry, action: argparse.Action) -> str | list[str] | bool:
    """The value, if it is of the kind that the flag takes."""
    expected, kind, takes_true = {
        0: ("true or false", bool, False),
        None: ("a text or a number", str, False),
        "?": ("a text, a number or true", str, True),
        "*": ("a list or true", list, True),
    }.get(action.nargs, ("a list", list, False))
    value = entry.value
    if hasattr(action, TAKES_ONE) and isinstance(value, str):
        return value
    if value is None or not (isinstance(value, kind) or (takes_true and value is True)):
        found = {bool: str(value).lower(), list: "a list", str: repr(value)}.get(type(value))
        raise InputError(f"{entry.where}: {key} is {found or 'empty'}, expected {expected}")
    return value


def _given_dests(rest: Sequence[str], parser: argparse.ArgumentParser) -> set[str]:
    """Names of `dest` that the command line gives, and of those that these exclude."""
    found = vars(_lenient(parser, refuse=False).parse_args(rest))
    given = {dest for dest, value in found.items() if value is not UNSET}
    for group in parser._mutually_exclusive_groups:
        members = {action.dest for action in group._group_actions}
        if members & given:
            given |= members
    return given


def _lenient(parser: argparse.ArgumentParser, *, refuse: bool) -> argparse.ArgumentParser:
    """Copy the parser, with nothing required and `UNSET` as every default.

    Args:
        refuse: raise ValueError instead of exiting.
    """
    made = copy.deepcopy(parser)
    for action in made._actions:
        action.required, action.default = False, UNSET
    for group in made._mutually_exclusive_groups:
        group.required = False
    if refuse:

        def error(message: str) -> NoReturn:
            raise ValueError(message)

        made.error = error  # type: ignore[method-assign]
    return made


def _actions(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.Action]]:
    """Name of the flag, empty for a positional one, and its action, by key."""
    out: dict[str, tuple[str, argparse.Action]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        for name in action.option_strings or [""]:
            out[name.lstrip("-") or action.dest.replace("_", "-")] = name, action
    return out


def _near(word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=3)
    return f"is it {' or '.join(near)}?" if near else f"expected one of {', '.join(sorted(known))}"
