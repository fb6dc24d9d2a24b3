"""Metadata of a record's fields: what their numbers are, for comparisons, marks and tables."""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")
PER_TOKEN = "per token"
PerToken = Annotated[list[T], PER_TOKEN]
"""Type of a record's field with a value for each token, null if it is not known."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """Metadata of a number of a record that `compare` compares.

    A field may have several. A list is one number for each part of the item:

        scores: Annotated[list[float], Metric("log-probability of an answer", "answer_logprob")]

    Attributes:
        title: the displayed name, with the unit.
        name: in the comparison, if it is not the field's.
        value: computes it from the record if the field itself is not the number; the record then
            has this field. None if the item does not have the number.
    """

    title: str
    name: str | None = None
    value: Callable[[Mapping[str, Any]], float | Sequence[float | None] | None] | None = None


@dataclasses.dataclass(frozen=True)
class Decision:
    """Metadata of a decision of a record, which rounding could change.

    A field may have several, each with a name.

    Attributes:
        title: the displayed name.
        is_right: True if it says right or wrong, so that its share is a metric.
        statistic: name of the number whose difference is the margin; None without a margin.
        value: computes what was decided from the record if the field itself does not say it.
        margin: computes by how much, in units of the statistic; None or infinite if the scores do
            not decide it.
        within: field that says whether the margin lies within the noise floor, or computes it.
        name: in the comparison, if it is not the field's.
        spread: key of the noise's spread by which the margin is judged, or a function of (largest
            spread by key, settings of the run).
    """

    title: str
    is_right: bool = False
    statistic: str | None = None
    value: Callable[[Mapping[str, Any]], str | bool | None] | None = None
    margin: Callable[[Mapping[str, Any]], float | None] | None = None
    within: str | Callable[[Mapping[str, Any]], bool | None] | None = None
    name: str | None = None
    spread: str | Callable[[Mapping[str, float], Any], float] = "sum_logprob"


@dataclasses.dataclass(frozen=True)
class Result:
    """Metadata of the number that a system is about; audits report its mean.

    Attributes:
        title: its displayed name, such as "accuracy".
    """

    title: str


class Place:
    """Metadata of a field with the record's place in the output, from 0."""


@dataclasses.dataclass(frozen=True)
class NoiseFloor:
    """Metadata of an object of a record in which a noise audit notes how far a number moves.

    Attributes:
        entry: name of the object's entry that gets the largest spread.
        spread: key of the noise's spread.
    """

    entry: str
    spread: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """The way in which `compare` finds the units of two runs and pairs them: by id and by text.

    A unit is a record, or an entry of a list that the record holds. Functions take the unit with
    all fields of its record, those that the user added included:

        Compared(
            signature=("path_evaluations",),
            text=("question", "path"),
            parts="path_evaluations",  # list[PathRecord], which declares the metrics
            part_name="path",  # ["A", "in", "B"]: the unit's id is "q1: A -> in -> B"
        )

        Compared(  # of a report's file {"questions": [...], "settings": {...}}
            signature=("answers", "truth"),
            list_in="questions",
            text=("question", "answers", "truth"),
            id=(),
            name=lambda record, place: f"line {record.get('line')}: {record['question']}",
            n_tokens="n_tokens",
        )

    Attributes:
        text: fields of the request, or a function of them: two units are a pair if these agree.
            Empty if the records do not have it.
        id: field that identifies a record; of several the first that it has, otherwise its place.
            Empty if the text is all that identifies it.
        name: takes the unit and the place of its record from 0 and names it for people; the
            default is the id.
        parts: field with a list of objects, each of them a unit; the units of a record are one
            group in intervals and tests. Empty if the record is the unit.
        part_name: field of a part that completes its id; a list is joined by arrows.
        answer: field with what was judged; pairs in which it differs are counted.
        n_tokens: field with the number of scored tokens, or a list of such numbers.
        error: computes the reason why a unit lacks numbers, if its field `error` does not say so.
        numbers: computes metrics that are not declared, by name, such as a user's columns.
        settings: names of settings that the functions need: the unit has them as fields.
        order: metrics that come before the others; the first one is the headline.
        fixed: settings that decide what is counted: runs in which they differ are not compared.
        input_fields: fields of the input's lines whose texts are compared if the records do not
            have them.
        what: the units, in the plural, if they are not the system's items.
        name_of_runs: name of the records, if several systems write records that can be
            compared with each other, or one system writes records of two kinds.
        record: the declared type of the records, if it is not the system's.
        signature: fields that identify the records in a file without a manifest. Of several
            systems that fit, the one with the most fields is taken.
        without: fields that such a record does not have.
        list_in: field of the report's file that holds the records; empty if the output file has
            them.
        file: pattern of the file's name, for messages.
    """

    text: tuple[str, ...] | Callable[[Mapping[str, Any]], object]
    signature: tuple[str, ...]
    without: tuple[str, ...] = ()
    id: tuple[str, ...] = ("id",)
    name: Callable[[Mapping[str, Any], int], object] | None = None
    parts: str = ""
    part_name: str = ""
    answer: str | None = None
    n_tokens: str = "n_scored"
    error: Callable[[Mapping[str, Any]], str | None] | None = None
    numbers: Callable[[Mapping[str, Any]], Mapping[str, float | None]] | None = None
    settings: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ("boundary",)
    input_fields: tuple[str, ...] | None = None
    what: str = ""
    name_of_runs: str = ""
    record: type | None = None
    list_in: str = ""
    file: str = ""


class PublishedFlags(NamedTuple):
    """Flags of a published script that are not settings.

    Attributes:
        add: declares a flag of an argparse parser, and returns its action.
        check: refuses arguments that contradict each other.
    """

    add: Callable[[Any], Any]
    check: Callable[[Any], None]


def per_token_fields(record: type) -> frozenset[str]:
    """The fields of a record that are declared as `PerToken`."""
    return frozenset(name for name, _ in metadata_of(record, str))


@functools.cache  # `merge` marks records one by one
def _annotations(record: type) -> Mapping[str, Any]:
    return typing.get_type_hints(record, include_extras=True)


def metadata_of(record: type, kind: type[T]) -> list[tuple[str, T]]:
    """Fields with their metadata of a kind (`Metric`, `Decision`), in the order of the record."""
    return [
        (name, extra)
        for name, hint in _annotations(record).items()
        for extra in getattr(hint, "__metadata__", ())
        if isinstance(extra, kind)
    ]


ARROW_TYPES = {
    str: "string",
    int: "int64",
    float: "float64",
    bool: "bool_",
    np.int32: "int32",
    np.float32: "float32",
}


def arrow_type(hint: Any) -> str:
    """Arrow's name of a type, in brackets for a list: `list[float]` -> `[float64]`.

    Raises:
        TypeError: tables do not have columns of this type.
    """
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) in (list, Sequence):
        return f"[{arrow_type(parts[0])}]"
    if parts:  # X | None
        return arrow_type(parts[0])
    if hint not in ARROW_TYPES:
        raise TypeError(f"{hint}: expected one of {', '.join(t.__name__ for t in ARROW_TYPES)}")
    return ARROW_TYPES[hint]
