"""Items of `choose`: a context, the options after it, and which of them is right."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.items import NOTHING, read_rows
from jaxscore.io.json_input import json_kind, require_field
from jaxscore.io.printable import one_line
from jaxscore.systems.evaluation import check_found

FIELDS = ("id", "context", "options", "gold", "category")
LISTS = ("options",)
NO_CATEGORY = "(none)"
SHOWN = 60  # characters of an id or an option in a message
# Fields of a record that no input line may have, see `jaxscore.systems.choose.choices`.
RESULTS = frozenset(
    "sum_logprob n_tokens n_bytes pmi probability choice choice_norm choice_pmi acc acc_norm "
    "acc_pmi chance skill skill_norm skill_pmi brier truncated within_noise acc_within_noise "
    "error".split()
)
INDEX = re.compile(r"[0-9]{1,9}")


@dataclasses.dataclass(frozen=True)
class Item:
    """A choice between texts.

    Attributes:
        name: what to call it in a list of failures.
        options: at least two, none of them empty.
        gold: index of the right option; None where it is not known.
        category: `NO_CATEGORY` where the item has none.
        extra: the other fields, which the record of the item repeats.
    """

    name: str
    id: str | int
    context: str
    options: tuple[str, ...]
    gold: int | None
    category: str
    extra: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Unread:
    """An object that is no item, and why."""

    name: str
    id: str | int
    error: str


def load(
    path: Path, limit: int | None = None, columns: Mapping[str, str] = NOTHING
) -> list[Item | Unread]:
    """Items of a file, in order; one that cannot be used does not touch the others.

    Args:
        path: JSONL, or a table, see `jaxscore.io.items`.
        limit: how many from the beginning; None is all.
        columns: field -> its name in the file.

    Raises:
        InputError: the file cannot be read, or no item is usable.
    """
    found = itertools.islice(read_rows(path, columns, LISTS), limit)
    return checked([_read(row.item, row.number, row.where) for row in found], f"{path}: ")


def read(items: Iterable[Any]) -> list[Item | Unread]:
    """Items from objects as the input file has them; an `Item` or an `Unread` stays as it is.

    Raises:
        InputError: none is usable.
    """
    return checked(
        [
            one if isinstance(one, Item | Unread) else _read(one, k, f"item {k}")
            for k, one in enumerate(items, start=1)
        ]
    )


def checked(items: list[Item | Unread], where: str = "") -> list[Item | Unread]:
    """The same items.

    Raises:
        InputError: none of them is usable.
    """
    check_found(len(items))
    if not any(isinstance(one, Item) for one in items):
        [first, *_] = items
        assert isinstance(first, Unread)
        raise InputError(f"{where}no item is usable; the first, {first.name}: {first.error}")
    return items


def _read(item: Any, number: int, where: str) -> Item | Unread:
    name, id = where, number
    try:
        if not isinstance(item, dict):
            raise InputError(f"{where}: found {json_kind(item)}, expected an object")
        id = require_field(item, "id", (str, int), where) if "id" in item else number
        if "id" in item:
            name = f"{where} (id {one_line(str(id), SHOWN)})"
        return _item(item, id, name, where)
    except InputError as problem:
        return Unread(name, id, str(problem).removeprefix(f"{where}: "))


def _item(item: dict[str, Any], id: str | int, name: str, where: str) -> Item:
    extra = {field: value for field, value in item.items() if field not in FIELDS}
    if taken := sorted(RESULTS.intersection(extra)):
        raise InputError(
            f'{where}: field "{taken[0]}" is one of the results that the output line has; rename '
            "it, or leave it out"
        )
    options = require_field(item, "options", list, where)
    for k, option in enumerate(options):
        if not isinstance(option, str) or not option:
            found = "empty" if option == "" else json_kind(option)
            raise InputError(f'{where}: field "options", entry {k + 1} is {found}, expected a text')
    if len(options) < 2:
        raise InputError(f'{where}: field "options" has {len(options)} texts, expected at least 2')
    category = (
        require_field(item, "category", (str, type(None)), where) if "category" in item else None
    )
    return Item(
        name=name,
        id=id,
        context=require_field(item, "context", str, where),
        options=tuple(options),
        gold=_gold(item.get("gold"), options, where),
        category=category or NO_CATEGORY,
        extra=extra,
    )


def _gold(value: Any, options: Sequence[str], where: str) -> int | None:
    """The index of the right option; None where the item does not say it."""
    last = len(options) - 1
    if isinstance(value, float) and value.is_integer():  # a column of a table with gaps
        value = int(value)
    if value is None or (isinstance(value, str) and not value):
        return None
    if isinstance(value, str):
        return _gold_of_text(value, options, where)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(
            f'{where}: field "gold" is {json_kind(value)}, expected the index of an option from 0 '
            f"to {last}, or its text"
        )
    if not 0 <= value <= last:
        raise InputError(
            f'{where}: field "gold" is {str(value)[:20]}, expected an index from 0 to {last}'
        )
    return value


def _gold_of_text(value: str, options: Sequence[str], where: str) -> int:
    """Text is that of an option, blanks around it aside, or else the digits of an index."""
    same = [option for option in options if option == value] or [
        option for option in options if option.strip() == value.strip()
    ]
    shown = repr(value[:SHOWN])
    if len(set(same)) > 1:
        raise InputError(
            f'{where}: field "gold" is {shown}, and so are several options but for their blanks; '
            "give the index"
        )
    by_text = options.index(same[0]) if same else None
    by_index = int(value) if INDEX.fullmatch(value) and int(value) < len(options) else None
    if by_text is not None and by_index is not None and by_text != by_index:
        raise InputError(
            f'{where}: field "gold" is the text {shown}, which is option {by_text} and also the '
            f"index of option {by_index}; give the index as a number"
        )
    found = by_index if by_text is None else by_text
    if found is None:
        raise InputError(
            f'{where}: field "gold" is {shown}, expected the text of an option, or an index from 0 '
            f"to {len(options) - 1}"
        )
    return found
