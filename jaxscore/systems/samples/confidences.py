"""`self-certainty`: how far from uniform are a model's predictions while it reads an output?

    self-certainty = mean over the output's tokens of KL(uniform || p(. | x, y<i))
                   = -1/(nV) sum_i sum_j log(V p(j | x, y<i))        (arXiv 2502.18581)

An item has one input and many outputs, and gets a `confidence_list`, one number per output.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jaxscore.analysis.bootstrap import Estimate, estimate
from jaxscore.io.items import item_label, read_items
from jaxscore.io.json_input import json_kind
from jaxscore.io.json_output import to_json_value
from jaxscore.systems.samples import earlier_output, sample_items
from jaxscore.systems.samples.sample_items import NothingUsable
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest

# flag value -> policy of `jaxscore.text.encoder`; the published script reads one token late
ALIGNMENTS: dict[str, Boundary] = {"formula": "separate", "upstream": "after"}
INPUT_FIELD, OTHER_INPUT_FIELD, OUTPUT_FIELD = "model_input", "input", "output"
# What a record has beside the item's own fields; `processed_index` is the published script's.
OWN_FIELDS = (
    "confidence_list", "processed_index", "confidence_settings", "confidence_errors",
    "mean_logprob_list", "mean_entropy_list", "perplexity_list",
)  # fmt: skip
# Further confidences of a response, where they are asked for: field -> attribute of its scores.
MEASURED = {
    "mean_logprob_list": "mean_logprob",
    "mean_entropy_list": "mean_entropy",
    "perplexity_list": "perplexity",
}
SUFFIX = "-confidence-list"  # of the published script's output, before `.json`
NOISE = "noise"  # among the settings, where it was audited
NO_TOKENS = "no tokens, so there is no prediction to be certain of"
LONE_TOKEN = "one token with nothing before it, so it is not predicted"


@dataclasses.dataclass(frozen=True)
class Item:
    """One input with its outputs.

    Attributes:
        index: from 0.
        name: for people, counted from 1.
        given: all of its fields.
        context: the model's input.
        outputs: as given; one that is no text cannot be scored, and the others can.
        fields: the names of the two fields they come from.
        error: why the item as a whole cannot be used; it then has no outputs.
    """

    index: int
    name: str
    given: dict[str, Any]
    context: str
    outputs: list[Any]
    fields: tuple[str, str]
    error: str | None = None


@dataclasses.dataclass
class Confidence:
    """What is known of an item's outputs so far.

    Attributes:
        values: nats per token, one per output; None where it is not known.
        errors: why an output has none, by its place.
        settings: what the values were computed with; None where no value is known, or where it
            was not written down, as by the published script.
        measured: further confidences by their field, a key of `MEASURED`, one per output; None
            where they are neither asked for nor known.
    """

    values: list[float | None]
    errors: dict[int, str]
    settings: Mapping[str, Any] | None
    measured: dict[str, list[float | None]] | None = None

    @property
    def missing(self) -> list[int]:
        """Places of outputs that are still to be scored."""
        lists = [self.values, *(self.measured or {}).values()]
        return [
            k
            for k in range(len(self.values))
            if k not in self.errors and any(one[k] is None for one in lists)
        ]

    def take(self, place: int, scored: ScoredRequest, settings: Mapping[str, Any]) -> None:
        """Put a result at an output's place."""
        value = scored.mean_self_certainty
        if value is not None:
            cut = scored.truncated > 0 or (self.settings or {}).get("truncate") is not None
            self.values[place] = value
            for name, values in (self.measured or {}).items():
                values[place] = getattr(scored, MEASURED[name])
            self.settings = {**settings, "truncate": "left"} if cut else settings
        else:
            self.errors[place] = scored.error or (LONE_TOKEN if scored.n_tokens else NO_TOKENS)


@dataclasses.dataclass(frozen=True)
class Summary:
    """Counts over all items.

    Attributes:
        n_scored: of the `n_outputs`.
        mean: over the outputs that have a confidence, in nats per token; its interval resamples
            items, since outputs of one item are not independent.
        failures: (name, why) of items and outputs without.
    """

    n_items: int
    n_outputs: int
    n_scored: int
    mean: Estimate
    failures: list[tuple[str, str]]


def load(
    path: Path,
    input_field: str = INPUT_FIELD,
    output_field: str = OUTPUT_FIELD,
    limit: int | None = None,
) -> list[Item]:
    """The first `limit` items of a `.json` or `.parquet` file, see `read`.

    Raises:
        InputError: as `read_items`; no item can be used.
    """
    given = read_items(path, [output_field])[:limit]
    try:
        return read(given, input_field, output_field)
    except NothingUsable as problem:
        raise NothingUsable(f"{path}: {problem}") from None


def read(
    given: Iterable[Any], input_field: str = INPUT_FIELD, output_field: str = OUTPUT_FIELD
) -> list[Item]:
    """Items from objects as a file has them. An item that cannot be used says why.

    `input` is read where `model_input`, if that is the field asked for, is absent.

    Raises:
        NothingUsable: no items, or none that can be used.
        InputError: one is no object.
    """
    items = [
        _item(index, one, input_field, output_field)
        for index, one in enumerate(sample_items.objects(given))
    ]
    sample_items.refuse_if_all_failed((item.name, item.error) for item in items)
    return items


def _item(index: int, given: dict[str, Any], input_field: str, output_field: str) -> Item:
    given = {name: value for name, value in given.items() if name not in OWN_FIELDS}
    if input_field == INPUT_FIELD and given.get(INPUT_FIELD) is None and OTHER_INPUT_FIELD in given:
        input_field = OTHER_INPUT_FIELD
    name, fields = item_label(index, given), (input_field, output_field)
    error = _complaint(given, input_field, str) or _complaint(given, output_field, list)
    if error:
        return Item(index, name, given, "", [], fields, error)
    return Item(index, name, given, given[input_field], given[output_field], fields)


def _complaint(given: dict[str, Any], field: str, expected: type) -> str | None:
    wanted = "a string" if expected is str else "a list of strings"
    if field not in given:
        there = ", ".join(map(repr, given)) or "none"
        return f'no field "{field}", expected {wanted}; there are {there}'
    if not isinstance(given[field], expected):
        return f'field "{field}" is {json_kind(given[field])}, expected {wanted}'
    return None


def resume(
    items: Sequence[Item],
    previous: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    measured: bool = False,
) -> tuple[list[Confidence], int]:
    """What is known of each item from the records that an earlier run has left.

    An item's confidences are kept where its input and outputs are still the same. A number that
    is not finite (the published script writes NaN for an output without tokens) is not known.

    Args:
        items: of this run.
        previous: item k's record at place k; may be fewer than items.
        path: where the records come from.
        measured: whether the confidences of `MEASURED` are asked for.

    Returns:
        One entry per item, and how many items have changed.

    Raises:
        InputError: as `earlier_output.check_input`.
    """
    found = [_known(item, record) for item, record in zip(items, previous, strict=False)]
    same = [
        None if item.error else one is not None for item, one in zip(items, found, strict=False)
    ]
    same += [False] * (len(previous) - len(same))
    n_changed = earlier_output.check_input(len(items), same, path)
    found += [None] * (len(items) - len(found))
    out = [one or _unknown(item) for item, one in zip(items, found, strict=True)]
    for one in out:
        if measured and one.measured is None:
            one.measured = {name: [None] * len(one.values) for name in MEASURED}
    return out, n_changed


def check_settings(
    items: Sequence[Item],
    confidences: Sequence[Confidence],
    settings: Mapping[str, Any],
    path: Path,
) -> None:
    """Refuse confidences that were computed in another way than this run's, as far as both say.

    Raises:
        InputError: as `earlier_output.check_settings`.
    """
    for item, one in zip(items, confidences, strict=True):
        if one.settings is not None:
            earlier_output.check_settings(item.name, one.settings, settings, path)


def n_of_unknown_origin(confidences: Sequence[Confidence]) -> int:
    """Items whose numbers come from a file that does not say how they were computed."""
    return sum(
        one.settings is None and any(v is not None for v in one.values) for one in confidences
    )


def _unknown(item: Item) -> Confidence:
    return Confidence([None] * len(item.outputs), _unscorable(item.outputs), None)


def _known(item: Item, record: Mapping[str, Any]) -> Confidence | None:
    """None where the record is not of this item."""
    input_field, output_field = item.fields
    values, settings = record.get("confidence_list"), record.get("confidence_settings")
    same = record.get(input_field) == item.context and not item.error
    same = same and record.get(output_field) == to_json_value(item.outputs)
    if not same or not isinstance(values, list) or len(values) > len(item.outputs):
        return None
    out = _unknown(item)
    for place, value in enumerate(values):  # fewer in older scripts: as many as the first item has
        if _is_number(value) and place not in out.errors:
            out.values[place] = value
    if isinstance(settings, dict) and any(value is not None for value in out.values):
        out.settings = settings
        out.measured = _measured(record, len(item.outputs))
    elif out.missing:
        return _unknown(item)  # never numbers of two origins in one item
    return out


def _measured(record: Mapping[str, Any], n: int) -> dict[str, list[float | None]] | None:
    """The further confidences of a record; None where it has not all of them."""
    lists = {name: record.get(name) for name in MEASURED}
    if not all(isinstance(one, list) and len(one) == n for one in lists.values()):
        return None
    return {
        name: [
            math.inf if value == "Infinity" else value if _is_number(value) else None
            for value in cast("list[Any]", values)
        ]
        for name, values in lists.items()
    }


def _is_number(value: Any) -> bool:
    """Whether it is finite; `math.isfinite` cannot be asked of a whole number of 400 digits."""
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    return numeric and abs(value) < 1e300


def _unscorable(outputs: Sequence[Any]) -> dict[int, str]:
    errors = {}
    for place, output in enumerate(outputs):
        if not isinstance(output, str):
            errors[place] = f"found {json_kind(output)}, expected a string"
        elif not output:
            errors[place] = NO_TOKENS
    return errors


def missing(confidences: Sequence[Confidence]) -> list[tuple[int, int]]:
    """(item, output) of everything that is still to be scored, in the input's order."""
    return [(k, place) for k, one in enumerate(confidences) for place in one.missing]


def scorable(confidences: Sequence[Confidence]) -> list[tuple[int, int]]:
    """(item, output) of everything that is scored already or can be, in the input's order."""
    return [
        (k, place)
        for k, one in enumerate(confidences)
        for place in range(len(one.values))
        if place not in one.errors
    ]


def requests(items: Sequence[Item], wanted: Iterable[tuple[int, int]]) -> Iterator[Request]:
    """One for each wanted output."""
    for k, place in wanted:
        item = items[k]
        yield Request(f"{item.name}, output {place + 1}", item.context, item.outputs[place])


def evaluate(
    items: Sequence[Item], confidences: Sequence[Confidence], at_least: int
) -> Iterator[dict[str, Any]]:
    """The record of each item, up to the first that is unfinished.

    Args:
        items, confidences: as from `resume`.
        at_least: this many items in any case, since the file had them.
    """
    n = next((k for k, one in enumerate(confidences) if one.missing), len(items))
    n = max(n, at_least)
    for item, one in zip(items[:n], confidences[:n], strict=True):
        yield record(item, one)


def record(item: Item, one: Confidence) -> dict[str, Any]:
    """An item with its confidences, and with what went wrong where something did."""
    out = {**item.given, "confidence_list": one.values, **(one.measured or {})}
    out["processed_index"] = item.index
    if one.settings is not None:
        known = {name: value for name, value in one.settings.items() if value is not None}
        out["confidence_settings"] = known
    if errors := _errors(item, one):
        out["confidence_errors"] = errors
    return out


def _errors(item: Item, one: Confidence) -> list[str]:
    if item.error:
        return [item.error]
    return [f"output {place + 1}: {one.errors[place]}" for place in sorted(one.errors)]


def note_noise(confidences: Sequence[Confidence], spread: float) -> None:
    """Write the spread of a confidence between layouts, in nats, into each item's settings; where
    an earlier run has found a larger one, that stays.

    `check_settings` has made sure that all items have the settings of this run.
    """
    for one in confidences:
        if one.settings is not None:
            earlier: Any = one.settings.get(NOISE)
            largest = max(earlier, spread) if _is_number(earlier) else spread
            one.settings = {**one.settings, NOISE: largest}


def summarise(
    items: Sequence[Item], confidences: Sequence[Confidence], n_bootstrap: int, seed: int
) -> Summary:
    """Counts and the mean over all outputs."""
    found = [(k, v) for k, one in enumerate(confidences) for v in one.values if v is not None]
    values, groups = [v for _, v in found], [k for k, _ in found]
    return Summary(
        n_items=len(items),
        n_outputs=sum(len(item.outputs) for item in items),
        n_scored=len(values),
        mean=estimate(values, n_bootstrap, seed, groups),
        failures=[
            (item.name, error)
            for item, one in zip(items, confidences, strict=True)
            for error in _errors(item, one)
        ],
    )
