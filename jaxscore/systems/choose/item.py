"""An item of a multiple choice, in the forms that data sets have.

options    a list; ARC's {"text": [...], "label": [...]}; columns A, B, C ...
gold       the option's index from 0, its text, its letter or its label
"""

import dataclasses
import re
import string
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import json_kind
from jaxscore.report.prompts import without_cue
from jaxscore.shell.items import SHOWN
from jaxscore.shell.prompts import ExampleItem

LETTERS = string.ascii_uppercase
OPTIONS = "{options}"  # field of a context
NO_CATEGORY = "(none)"
FROM_ONE_HINT = "is it counted from 1?"
INDEX = re.compile(r"[0-9]{1,9}")
LETTER = re.compile(r"\(?([A-Za-z])[.):]?")
LABELS = 'field "options" is an object, expected {"text": [...], "label": [...]}'


@dataclasses.dataclass(frozen=True)
class Item(ExampleItem):
    """A choice between texts.

    Attributes:
        context: text before each option.
        options: at least two texts, none of them empty.
        gold: the right option: its index, text or letter in the input, then its index; None if it
            is not known.
        category: any name.
    """

    context: str
    options: tuple[str, ...]
    gold: Any = None
    category: str | None = NO_CATEGORY

    def __post_init__(self) -> None:
        """Check the options and turn `gold` into an index."""
        for number, option in enumerate(self.options, start=1):
            if not isinstance(option, str) or not option:
                value_type = "empty" if option == "" else json_kind(option)
                raise InputError(
                    f'field "options", entry {number} is {value_type}, expected a text'
                )
        if len(self.options) < 2:
            raise InputError(f'field "options" has {len(self.options)} texts, expected at least 2')
        object.__setattr__(self, "gold", _gold_index(self.gold, self.options))
        object.__setattr__(self, "category", self.category or NO_CATEGORY)

    @property
    def key(self) -> Hashable:
        """The identity of an example: an item with the same key does not see it."""
        return self.context.strip(), self.options

    def lettered(self, order: Sequence[int]) -> str:
        """Return the context with a line `A. text` for each option.

        The lines are in place of `{options}`, or else before the "Answer:" of the context.

        Args:
            order: for each letter the index of its option.

        Raises:
            InputError: there are more options than letters.
        """
        if (n := len(self.options)) > len(LETTERS):
            raise InputError(
                f"{n} options, and there are letters for {len(LETTERS)}; leave options_as out"
            )
        lines = [f"{LETTERS[k]}. {self.options[index].strip()}" for k, index in enumerate(order)]
        if OPTIONS in self.context:
            return self.context.replace(OPTIONS, "\n".join(lines))
        text = self.context.rstrip()
        last = text.splitlines()[-1].strip() if text else ""
        cue = last[len(without_cue(last)) :].strip()
        lines.insert(0, text.removesuffix(cue).rstrip())
        return "\n".join([*lines, cue or "Answer:"]).lstrip("\n")

    def check_example(self) -> None:
        """Check that the right option is known."""
        if self.gold is None:
            raise InputError('no field "gold", expected the right option of an example')

    @staticmethod
    def normalize(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of an object with `options` as a list, which other forms become.

        Raises:
            InputError: the form is incomplete, or its gold label is also the index of another
                option.
        """
        options = fields.get("options")
        if isinstance(options, Mapping):
            return {**fields, **_from_labels(options, fields.get("gold"))}
        if options is None and {"A", "B"} <= fields.keys():
            return {**fields, "options": _from_columns(fields)}
        return fields


def _from_labels(options: Mapping[str, Any], gold: Any) -> dict[str, Any]:
    """Return `options` and `gold` of ARC's form."""
    texts, labels = options.get("text"), options.get("label")
    if not isinstance(texts, list) or not isinstance(labels, list):
        raise InputError(LABELS)
    if len(texts) != len(labels) or not all(isinstance(label, str) for label in labels):
        raise InputError(f"{LABELS} with a label for each text")
    label = str(gold).strip()
    if label not in labels:
        return {"options": texts, "gold": gold}
    index = labels.index(label)
    if isinstance(gold, int) and gold != index:
        raise InputError(
            f'field "gold" is {gold}, which is the label of option {index} and the index of option '
            f'{gold}; give the label as a string, "{gold}"'
        )
    same = [text for text in texts if isinstance(text, str) and text.strip() == label]
    if same and same[0] != texts[index]:
        raise InputError(
            f'field "gold" is "{label}", which is the label of option {index} and the text of '
            f"option {texts.index(same[0])}; give the index as a number"
        )
    return {"options": texts, "gold": index}


def _from_columns(fields: Mapping[str, Any]) -> list[Any]:
    """Return the texts in the columns A, B, C ...; those after the last option are empty."""
    columns = [fields.get(letter) for letter in LETTERS]
    n = max((k for k, text in enumerate(columns, start=1) if text not in (None, "")), default=0)
    for letter, text in zip(LETTERS, columns[:n], strict=False):
        if text in (None, ""):
            raise InputError(
                f'column "{letter}" is empty and column "{LETTERS[n - 1]}" is not, expected a text '
                "for each option"
            )
    return [str(text) if type(text) in (int, float) else text for text in columns[:n]]


def _gold_index(value: Any, options: Sequence[str]) -> int | None:
    last = len(options) - 1
    if isinstance(value, float) and value.is_integer():  # a column of a table with gaps
        value = int(value)
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return _index_of_text(value, options)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(
            f'field "gold" is {json_kind(value)}, expected the index of an option from 0 to '
            f"{last}, or its text"
        )
    if not 0 <= value <= last:
        hint = f"; {FROM_ONE_HINT}" if value == len(options) else ""
        raise InputError(
            f'field "gold" is {str(value)[:20]}, expected an index from 0 to {last}{hint}'
        )
    return value


def _index_of_text(value: str, options: Sequence[str]) -> int:
    """Return the index of the option with this text, letter, or index in digits.

    Spaces around a text do not count.

    Raises:
        InputError: no option fits, or several do.
    """
    equal = [option for option in options if option == value] or [
        option for option in options if option.strip() == value.strip()
    ]
    quoted = repr(value[:SHOWN])
    if len(set(equal)) > 1:
        raise InputError(
            f'field "gold" is {quoted}, and so are several options except for spaces; give the '
            "index"
        )
    letter = LETTER.fullmatch(value.strip())
    position = int(value) if INDEX.fullmatch(value) else None
    if letter and not equal:
        position = LETTERS.index(letter[1].upper())
    if position is not None and position >= len(options):
        position = None
    if equal and position is not None and options[position] != equal[0]:
        raise InputError(
            f'field "gold" is the text {quoted}, which is option {options.index(equal[0])} and '
            f"also the index of option {position}; give the index as a number"
        )
    if equal:
        return options.index(equal[0])
    if position is None:
        raise InputError(
            f'field "gold" is {quoted}, expected the text of an option, its letter, or an index '
            f"from 0 to {len(options) - 1}"
        )
    return position
