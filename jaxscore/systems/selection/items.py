"""Items with sampled responses, as the published scripts (arXiv 2502.18581) hand them on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from jaxscore.errors import InputError
from jaxscore.io.json_input import json_kind


class Item(TypedDict, total=False):
    """Sampled responses to one question. A record repeats these fields and all others.

    Attributes:
        output: responses; of `usc-select` the reply that names one.
        responses: between which that reply chooses.
        confidence_list: self-certainty of each response, nats per token.
        confidence_settings: its `noise` says how far rounding moves a confidence, in nats.
        generator: model that wrote the responses.
        dataset, task, subtask: decide how answers are read and compared.
        question_id: of LiveCodeBench.
    """

    output: list[str | None]
    responses: list[str | None]
    confidence_list: list[float | None]
    confidence_settings: dict[str, Any]
    generator: str
    dataset: str
    task: str
    subtask: str
    question_id: str | int


def responses(fields: Mapping[str, Any], field: str, most: int | None = None) -> list[str | None]:
    """The first `most` responses; None for one that is null or no text.

    Raises:
        InputError: no list of responses, or an empty one.
    """
    values = _list(fields, field)[:most]
    if not values:
        raise InputError(f'field "{field}" is empty, expected at least one response')
    return [value if isinstance(value, str) else None for value in values]


def confidences(
    fields: Mapping[str, Any], most: int | None, n_responses: int
) -> list[float | None]:
    """The confidence of each response; None for one that is null or not finite.

    Raises:
        InputError: no list of numbers, of another length, or without any number.
    """
    values = _list(fields, "confidence_list", "; `self-certainty` makes it")[:most]
    if len(values) != n_responses:
        raise InputError(
            f'field "confidence_list" has {len(values)} values for {n_responses} responses, '
            "expected one for each"
        )
    out: list[float | None] = []
    for rank, value in enumerate(values, start=1):
        if value is None or value in ("Infinity", "-Infinity"):
            out.append(None)
        elif isinstance(value, float):
            out.append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            out.append(float(value) if abs(value) < 1 << 1023 else None)
        else:
            raise InputError(
                f'field "confidence_list", value {rank}: found {json_kind(value)}, expected a '
                "number"
            )
    if all(value is None for value in out):
        raise InputError('field "confidence_list" holds no number')
    return out


def noise(fields: Mapping[str, Any]) -> float | None:
    """How far rounding moves a confidence of the item, in nats; None if it is not known.

    Raises:
        InputError: it is no number of nats.
    """
    settings = fields.get("confidence_settings")
    value = settings.get("noise") if isinstance(settings, dict) else None
    if value is None:
        return None
    if value == "Infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e300:
        raise InputError(
            f'field "confidence_settings", entry "noise": found {str(value)[:20]!r}, expected '
            "nats, 0 or more"
        )
    return float(value)


def _list(fields: Mapping[str, Any], field: str, remedy: str = "") -> list[Any]:
    if field not in fields:
        there = ", ".join(map(repr, fields)) or "none"
        raise InputError(f'no field "{field}", expected a list{remedy}; there are {there}')
    value = fields[field]
    if not isinstance(value, list):
        raise InputError(f'field "{field}" is {json_kind(value)}, expected a list{remedy}')
    return value


def oddities(texts: Sequence[str | None], values: Sequence[float | None] = ()) -> list[str]:
    """Notes on responses that are no text and confidences that are no number."""
    missing = [str(k) for k, text in enumerate(texts, start=1) if text is None]
    unknown = [str(k) for k, value in enumerate(values, start=1) if value is None]
    return [
        *([f"response {', '.join(missing)} is no text, so it has no answer"] if missing else []),
        *([f"confidence {', '.join(unknown)} is no number, so it ranks last"] if unknown else []),
    ]
