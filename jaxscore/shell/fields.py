"""Metadata of a record's fields: what their numbers are, for comparisons, marks and tables."""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np

T = TypeVar("T")
Numbers = float | Sequence[float | None] | Mapping[str, float | None] | None
PER_TOKEN = "per token"
PerToken = Annotated[list[T], PER_TOKEN]
"""Type of a record's field with a value for each token, null if it is not known."""


@dataclasses.dataclass(frozen=True)
class Paired:
    """Metadata of a field of a record that says what was asked.

    `compare` pairs two units if all of these agree. Records that do not repeat the request have
    none; then the item type has them, and the texts are read from the input. A field with a value
    for each token counts if the texts are not known.

    Attributes:
        value: computes what was asked from the record if the field itself does not say it; the
            record then has this field.
    """

    value: Callable[[Mapping[str, Any]], object] | None = None


PAIRED = Paired()


@dataclasses.dataclass(frozen=True)
class Metric:
    """Metadata of a number of a record that `compare` compares.

    A field may have several. A list is one number for each part of the item:

        scores: Annotated[list[float], Metric("log-probability of an answer", "answer_logprob")]

    Attributes:
        title: the displayed name, with the unit.
        name: in the comparison, if it is not the field's.
        value: computes it from the record if the field itself is not the number; the record then
            has this field. None if the item does not have the number; a mapping is one number for
            each name.
        is_main: True if it comes before the others; the first one is the headline.
    """

    title: str
    name: str | None = None
    value: Callable[[Mapping[str, Any]], Numbers] | None = None
    is_main: bool = False


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


@dataclasses.dataclass(frozen=True)
class Mean:
    """Metadata of a number of a record whose mean `--by` reports for each value of a field.

    A field may have several, each with a name:

        mean_kl: Annotated[float, Mean("KL divergence, nats per token", "n_scored")]

    Attributes:
        title: the displayed name, with the unit.
        over: field with the number's weight, such as the tokens that it is a mean over; if empty,
            each item counts once. A mean of true and false over items is a share.
        name: in the report, if it is not the field's.
        value: computes the number from the record if the field itself is not it; the record then
            has this field. None if the item does not have the number.
        change: rising or falling function of the mean, such as the perplexity.
        is_main: True if it comes before the others; the first one has a chart.
        in_table: False if only the JSON file has it.
    """

    title: str
    over: str = ""
    name: str | None = None
    value: Callable[[Mapping[str, Any]], float | None] | None = None
    change: Callable[[float], float | None] | None = None
    is_main: bool = False
    in_table: bool = True


@dataclasses.dataclass(frozen=True)
class Total:
    """Metadata of a count of a record that `--by` adds up for each value of a field.

    Attributes:
        title: head of its column; empty if only the JSON file has it.
    """

    title: str = ""


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


def is_per_token(hint: Any) -> bool:
    """Return True if a type is declared as `PerToken`."""
    return PER_TOKEN in getattr(hint, "__metadata__", ())


def scalar_fields(record: type) -> frozenset[str]:
    """Return the fields of a record that have one text, number or flag."""
    scalars = {str, int, float, bool, type(None)}
    return frozenset(
        name
        for name, hint in typing.get_type_hints(record).items()
        if hint in scalars
        or (isinstance(hint, types.UnionType) and scalars.issuperset(typing.get_args(hint)))
    )


def per_token_fields(record: type) -> frozenset[str]:
    """The fields of a record that are declared as `PerToken`."""
    return frozenset(name for name, _ in metadata_of(record, str))


@functools.cache  # `merge` marks records one by one
def _annotations(record: type) -> Mapping[str, Any]:
    return typing.get_type_hints(record, include_extras=True)


def metadata_of(record: type, metadata_type: type[T]) -> list[tuple[str, T]]:
    """Fields with their metadata of a kind (`Metric`, `Decision`), in the order of the record."""
    return [
        (name, extra)
        for name, hint in _annotations(record).items()
        for extra in getattr(hint, "__metadata__", ())
        if isinstance(extra, metadata_type)
    ]


ARROW_TYPES = {
    dict: "json",  # its text
    str: "string",
    int: "int64",
    float: "float64",
    bool: "bool_",
    np.int32: "int32",
    np.float32: "float32",
}


def arrow_type(hint: Any) -> str:
    """Arrow's name of a type, in brackets for a list: `list[float]` -> `[float64]`.

    Objects, and lists of objects, are JSON text.

    Raises:
        TypeError: tables do not have columns of this type.
    """
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    parts = [argument for argument in typing.get_args(hint) if argument is not type(None)]
    if typing.get_origin(hint) in (list, Sequence):
        inner = arrow_type(parts[0])
        return inner if inner == ARROW_TYPES[dict] else f"[{inner}]"
    if typing.get_origin(hint) is dict:
        return ARROW_TYPES[dict]
    if parts:  # X | None
        return arrow_type(parts[0])
    if hint not in ARROW_TYPES:
        raise TypeError(f"{hint}: expected one of {', '.join(t.__name__ for t in ARROW_TYPES)}")
    return ARROW_TYPES[hint]
