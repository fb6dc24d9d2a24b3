"""Reads YAML files that people write as plain values; every message names file and line.

PyYAML constructs only single scalars. Its value of a whole file can be larger than the file by any
factor (aliases of aliases, `<<`), contain itself, or take forever to compare; and some of its
scalars raise other errors than its own (`!!int ""`).
"""

from pathlib import Path
from typing import Any

import yaml

from jaxscore.errors import InputError
from jaxscore.io.json_input import MOST_NESTED, TOO_DEEP, read_text

MOST_CHARACTERS = 1 << 17  # PyYAML takes seconds for these
MOST_VALUES = 100_000  # with those of an alias at each of its uses
LONGEST_NUMBER = 1000  # characters; sixties (1:30:00) take quadratic time
TAG = "tag:yaml.org,2002:"
SCALARS = frozenset(f"{TAG}{name}" for name in "str int float bool null timestamp".split())
# A lone `=` is a value in YAML 1.1, which PyYAML tags but cannot construct.
TEXTS = frozenset({f"{TAG}str", f"{TAG}value"})


def read_node(path: Path) -> yaml.Node | None:
    """Read the syntax tree of a file with one document, or None if it is empty.

    Raises:
        InputError: the file cannot be read, is too long, or is not YAML.
    """
    text = read_text(path, "a readable YAML file in UTF-8", 4 * MOST_CHARACTERS)
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"{path}: found {len(text)} characters, expected a file of settings of up to "
            f"{MOST_CHARACTERS}"
        )
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise InputError(f"{path}: not usable YAML ({TOO_DEEP})") from None
    except (yaml.YAMLError, ValueError, OverflowError) as problem:  # "\UFFFFFFFF" is an overflow
        mark = getattr(problem, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        reason = getattr(problem, "problem", None) or str(problem).splitlines()[0]
        raise InputError(f"{path}{line}: not usable YAML ({reason})") from None


def read_yaml(path: Path) -> Any:
    """Read a file as dicts, lists, texts, numbers and dates, or None if it is empty.

    Raises:
        InputError: see `read_node`; it has a tag of some program, a key twice, a key that is not a
            scalar, or more than `MOST_VALUES`.
    """
    node = read_node(path)
    return None if node is None else _Constructor(path).value(node, MOST_NESTED)


class _Constructor:
    """Constructs the values of a file's nodes, and counts them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left = MOST_VALUES
        self._scalars = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise self._error(node, f"more than {MOST_VALUES} values, those of aliases included")
        if depth < 0:  # also an alias that contains itself
            raise self._error(node, TOO_DEEP)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{TAG}seq":
            return [self.value(item, depth - 1) for item in node.value]
        if isinstance(node, yaml.MappingNode) and node.tag == f"{TAG}map":
            return self._mapping(node, depth)
        raise self._error(node, f"tag {node.tag}, expected plain values")

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, "a key is a list or a mapping")
            key = self._scalar(key_node)
            if key in out:
                raise self._error(key_node, f"key {key!r} is there twice")
            out[key] = self.value(value_node, depth - 1)
        return out

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag in TEXTS:
            return node.value
        if node.tag not in SCALARS:
            raise self._error(node, f"tag {node.tag}, expected plain values")
        tag_name = node.tag.removeprefix(TAG)
        try:
            if len(node.value) > LONGEST_NUMBER:
                raise ValueError
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, ValueError):
            raise self._error(node, f"{node.value[:60]!r} is not a valid {tag_name}") from None

    def _error(self, node: yaml.Node, why: str) -> InputError:
        line = node.start_mark.line + 1
        return InputError(f"{self._path}:{line}: not usable YAML ({why})")
