"""What is compared: one item of a run, its numbers and decisions, and how a system is read."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jaxscore.io.printable import one_line

SHOWN = 80  # characters of an item's name
Number = float | None


class Choice(NamedTuple):
    """A decision about one item.

    Attributes:
        value: what was decided: a text, or whether it is right; None where nothing was.
        margin: by how much, in the statistic of its `Title`; infinite where nothing could turn it,
            None where it has none.
        within: whether it lies within the noise floor of its run; None where that is not known.
    """

    value: str | bool | None
    margin: float | None = None
    within: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One item of a run, or one part of it that is compared by itself.

    Attributes:
        id: by which it is matched; None where its system has no ids, so that its text is all.
        name: for people.
        text: what was asked, whatever the form, as one value whose `repr` says all of it; None
            where the file does not hold it.
        answer: what was judged, likewise, where that may differ between two runs on one text.
        group: place of the item in its run that it is a part of; None where it is a whole one.
        n_tokens: how many were scored, where the file says so.
        error: why it has no numbers.
        unread: whether that is because its record is not as its system writes it.
        numbers: name -> one number, or one per part of the item; None, or a number that is not
            finite, is left out.
        choices: name -> decision.
    """

    id: str | int | None
    name: str
    text: object = None
    answer: object = None
    group: int | None = None
    n_tokens: int | None = None
    error: str | None = None
    unread: bool = False
    numbers: Mapping[str, Number | list[Number] | list[float]] = dataclasses.field(
        default_factory=dict
    )
    choices: Mapping[str, Choice] = dataclasses.field(default_factory=dict)


class Title(NamedTuple):
    """How a number or a decision is called.

    Attributes:
        title: for people, with its unit.
        right: of a decision: whether it says right or wrong (yes or no), so that its share is a
            number of the run.
        statistic: of a decision: what its margin is a difference of.
    """

    title: str
    right: bool = False
    statistic: str | None = None


@dataclasses.dataclass(frozen=True)
class System:
    """How the results of a system are read.

    Attributes:
        name: for people and in the report.
        what: its units, in the plural.
        commands: that write it.
        read: a record, its place from 0 in the run and the run's facts as units.
        numbers, choices: name -> title, in the order of the report; a number of another name has
            its name as title.
        fixed: settings that decide what is counted: runs in which they differ are not compared.
        input_fields: of the input's lines, where the results do not hold the texts; None where
            they do.
        signature, without, list_in, file: see `system.Compared`.
        version: of the records.
    """

    name: str
    what: str
    commands: tuple[str, ...]
    read: Callable[[Mapping[str, Any], int, Mapping[str, Any]], Iterable[Unit]]
    numbers: Mapping[str, str]
    choices: Mapping[str, Title]
    fixed: tuple[str, ...] = ("boundary",)
    input_fields: tuple[str, ...] | None = None
    signature: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    list_in: str = ""
    file: str = ""
    version: int = 1


def shown(text: object) -> str:
    """An item's name, on one line and of bounded length."""
    return one_line(" ".join(str(text).split())[:SHOWN])
