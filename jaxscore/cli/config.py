"""`--config FILE`: reads a command and its flags from a YAML file.

    command: paths
    model: demo
    input: paths.jsonl                   as on the command line: from the working directory
    system-prompts: [Be brief., Think.]  a list for a flag that takes several values
    quiet: true                          a flag without a value; false leaves it out

Values are taken as they are written, not as YAML 1.1 reads them (`journal: off` is not a Boolean
and `revision: 010` not 8).
"""

import difflib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from jaxscore.cli.listing import NAMES, REFUSED
from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.io.local_path import local_path
from jaxscore.io.yaml_input import read_node
from jaxscore.shell.flags import ANY, MAYBE, ONE, SWITCH, Flag

if TYPE_CHECKING:
    from jaxscore.cli.app import Command, Words

FLAG = "--config"
PLAIN_TAGS = {  # of plain texts; others ask for objects of some program
    f"tag:yaml.org,2002:{kind}" for kind in "str int float bool null timestamp seq".split()
}


class Entry(NamedTuple):
    """A value of the file as text; None for nothing, a list for a list."""

    value: str | list[str] | bool | None
    where: str


class Config:
    """The keys of a file, with hyphens, and their values."""

    def __init__(self, path: Path, entries: dict[str, Entry]) -> None:
        self._path, self._entries = path, entries

    @staticmethod
    def find(words: list[str]) -> tuple[Path, list[str]]:
        """Return the file of `--config`, and the other words.

        Raises:
            InputError: the flag is given twice, or without a file.
        """
        end = words.index("--") if "--" in words else len(words)
        places = [k for k in range(end) if words[k].partition("=")[0] == FLAG]
        if len(places) > 1:
            raise InputError(f"{FLAG} is given {len(places)} times, expected once")
        [k] = places
        _, equals, value = words[k].partition("=")
        path = value if equals else "".join(words[k + 1 : k + 2])
        if not path:
            raise InputError(f"{FLAG}: expected a file after it")
        return local_path(path), [*words[:k], *words[k + (1 if equals else 2) :]]

    @classmethod
    def read(cls, path: Path) -> "Config":
        """Read a file.

        Raises:
            InputError: the file cannot be read, is not a YAML mapping of keys to values or lists,
                or has a key twice.
        """
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
                raise InputError(
                    f"{where}: key {key!r} is given twice, first at {entries[key].where}"
                )
            entries[key] = Entry(_value(value_node, f"{where}: {key}"), where)
        return cls(path, entries)

    def command(self, expected: str | None) -> str:
        """Return the file's command; `expected` is that of the command line.

        Raises:
            InputError: they differ, or neither is given.
        """
        name, where = self._entries.pop("command", Entry(expected, ""))
        if name is None and not where:
            raise InputError(f'{self._path}: no key "command", which says what to run')
        if not isinstance(name, str) or name not in NAMES:
            raise InputError(f"{where}: {name!r} is no command; {_near(str(name), NAMES)}")
        if expected not in (None, name):
            raise InputError(f"{where}: the file is for {name}, not for {expected}")
        return name

    def fill(self, command: "Command", assigned: "Words") -> dict[str, str]:
        """Add the file's words for flags that the command line does not give.

        Returns:
            Field -> the line of the file, for messages.

        Raises:
            InputError: a key is not a flag, or has a value of another kind.
        """
        options = {name.lstrip("-"): option for name, option in command.by_name.items()}
        options |= {o.dest.replace("_", "-"): o for o in command.positional if not o.names}
        excluded = {o.excludes for o in command.options if o.excludes and o.dest in assigned}
        lines: dict[str, str] = {}
        keys: dict[str, str] = {}
        groups: dict[str, Flag] = {}  # of flags that exclude each other -> the first that is set
        for key, (value, where) in self._entries.items():
            if why := REFUSED.get(command.name, {}).get(f"--{key}"):
                raise InputError(f"{where}: --{key}: refused: {why}")
            if key not in options:
                raise InputError(f"{where}: no key {key!r}; {_near(key, options)}")
            option = options[key]
            if option.dest in keys:
                raise InputError(f"{where}: {key} is the same as {keys[option.dest]}")
            keys[option.dest] = f"{key}, at {where}"
            words = _words(option, key, value, where)
            if words is None or option.dest in assigned or option.excludes in excluded:
                continue
            if option.excludes and (other := groups.setdefault(option.excludes, option)) != option:
                raise InputError(
                    f"{where}: argument {option.title}: not allowed with argument {other.title}"
                )
            assigned[option.dest] = words
            lines[option.dest] = f"{where}: "
        return lines


def _value(node: yaml.Node, title: str) -> str | list[str] | bool | None:
    if isinstance(node, yaml.SequenceNode) and node.tag in PLAIN_TAGS:
        # A list in a list is not followed: it may contain itself.
        items = [isinstance(item, yaml.ScalarNode) and _value(item, title) for item in node.value]
        if not all(isinstance(item, str) for item in items):
            raise InputError(f"{title}: its list holds more than texts and numbers")
        return [str(item) for item in items]
    if not isinstance(node, yaml.ScalarNode) or node.tag not in PLAIN_TAGS:
        raise InputError(f"{title}: expected a text, a number, true, false, or a list of those")
    if not is_valid_unicode(node.value) or "\0" in node.value:  # no argument can have these
        raise InputError(f"{title} is {node.value!a}, expected text without zero bytes")
    if node.tag.endswith(":null"):
        return None
    if node.tag.endswith(":bool") and node.value.lower() in ("true", "false"):
        return node.value.lower() == "true"
    return node.value


def _words(option: Flag, key: str, value: Any, where: str) -> list[str] | None:
    """Return the words of a flag for a value of the file; None leaves the flag out."""
    expected, value_type = {
        SWITCH: ("true or false", bool),
        ONE: ("a text or a number", str),
        MAYBE: ("a text, a number or true", str),
        ANY: ("a list or true", list),
    }.get(option.words or "", ("a list", list))
    if value is True and option.words in (MAYBE, ANY):
        return []
    if isinstance(value, str) and option.takes_address:  # one file
        return [value]
    if value and isinstance(value, list) and option.type.is_list:  # also of a repeated flag
        return value
    if not isinstance(value, value_type):
        is_a = {bool: str(value).lower(), list: "a list", str: repr(value)}.get(type(value))
        raise InputError(f"{where}: {key} is {is_a or 'empty'}, expected {expected}")
    if isinstance(value, bool):
        return [] if value else None
    if value == [] and option.words != ANY:  # a quoted empty text is a value
        raise InputError(f"{where}: argument {option.title}: expected at least one argument")
    return value if isinstance(value, list) else [str(value)]


def _near(word: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(word, list(names), n=3)
    return f"is it {' or '.join(near)}?" if near else f"expected one of {', '.join(sorted(names))}"
