"""Parts that pages of several systems have."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import sections
from jaxscore.report.document import Card, Field, Items, Section
from jaxscore.report.html.source import Source
from jaxscore.report.html.strips import Strips, TokenText, tokens
from jaxscore.report.markdown import NOTHING
from jaxscore.types.results import Strip

LEAST = 1e-4  # smaller numbers are written with a power of ten
FAILURES = 200  # listed below the items; all are in the table of items and in the JSON file
CONTEXT = 1_000  # characters of a context that a page holds, from its end


def sentence(headline: str) -> str:
    """A headline as a sentence."""
    return f"{headline[:1].upper()}{headline[1:]}."


def verdict(source: Source) -> str:
    """The headline as a sentence, after the findings that say how it is to be read."""
    findings = source.record.get("findings", ())
    return " ".join([*map(sentence, findings), sentence(source.headline)])


def estimate_card(title: str, one: Estimate, what: str) -> Card:
    """A mean with its interval and its count.

    Args:
        what: it is over, such as "questions".
    """
    span = "" if one.low is None else f"95% interval {three(one.low)} to {three(one.high)}\n"
    return Card(title, three(one.mean), f"{span}{one.n:,} {what}", one)


def three(value: float | None) -> str:
    """A number with three significant digits, all digits before the point, zeros included."""
    if value is None or not math.isfinite(value):
        return NOTHING if value is None else str(value)
    if value == 0:
        return "0"
    if abs(value) < LEAST:
        return f"{value:.2e}"
    places = 2 - math.floor(math.log10(float(f"{abs(value):.2e}")))
    return f"{value:,.{max(0, places)}f}"


def yes_no(value: bool | None) -> str:
    """A flag as a column shows it."""
    return NOTHING if value is None else "yes" if value else "no"


def closing(record: Mapping[str, Any], failed: str) -> list[Section]:
    """Noise floor, remarks, failures, settings: what the Markdown ends with.

    Args:
        failed: what a failure is of, such as "questions".
    """
    listed = record["failures"][:FAILURES]
    failures = sections.failures(listed, failed)
    if failures:
        n = len(record["failures"])
        more = f"The first {FAILURES} are listed; all {n} are in the JSON file."
        failures = [
            f"## Failed: {n} {failed}, in no mean", *failures[1:], *([more] if n > FAILURES else [])
        ]  # fmt: skip
    return [
        *section(sections.noise(record)),
        *section(sections.remarks(record["remarks"]), opened=True),
        *section(failures, opened=True),
        *section(sections.settings(record["settings"])),
    ]


def section(blocks: Sequence[str], *, opened: bool = False) -> list[Section]:
    """A section from Markdown blocks that begin with its heading; none from no blocks."""
    if not blocks:
        return []
    return [Section(blocks[0].removeprefix("## "), blocks[1:], opened)]


def model_of(record: Mapping[str, Any]) -> str:
    """The model's name."""
    return str(record["settings"].get("model", "no model"))


def with_failures(items: Items, failed: Iterable[Mapping[str, str]]) -> Items:
    """The items, and behind them those that could not be evaluated, each by its name."""
    given = [*failed]
    if not given:
        return items
    n, more = items.n, len(given)
    first, *others = items.columns
    names = [one["name"] for one in given]
    strips = items.strips
    if strips is not None:
        ends = [strips.first, strips.first[-1:].repeat(more)]
        strips = dataclasses.replace(strips, first=np.concatenate(ends))
    return dataclasses.replace(
        items,
        columns=[
            dataclasses.replace(first, values=[*first.values, *names]),
            *(dataclasses.replace(one, values=[*one.values, *[NOTHING] * more]) for one in others),
        ],
        fields=[Field(one.title, [*one.values, *[""] * more]) for one in items.fields],
        tables=[dataclasses.replace(one, items=[*one.items, *[()] * more]) for one in items.tables],
        strips=strips,
        errors={**items.errors, **{n + k: one["error"] for k, one in enumerate(given)}},
        within_noise=[*items.within_noise, *[None] * more] if items.within_noise else [],
    )


def strips_of(
    source: Source, tokens_of: Callable[[Strip], TokenText] | None = None, **more: Any
) -> Strips | None:
    """The strips of all items; None where no tokens are known.

    Args:
        tokens_of: the tokens of a strip; None are those of a `ScoredRequest` as it is.
        more: other fields of `Strips`.
    """
    if not source.strips:
        return None
    every = [strip for own in source.strips for strip in own]
    names: dict[int, str] = {}
    return Strips(
        first=np.cumsum([0, *map(len, source.strips)]),
        titles=[strip.title for strip in every],
        contexts=[context_end(strip.context) for strip in every],
        tokens=tokens([(tokens_of or _tokens)(strip) for strip in every], names),
        names=names,
        vocabulary=source.vocabulary,
        **more,
    )


def context_end(context: str) -> str:
    """The end of a long context."""
    rest = len(context) - CONTEXT
    return context if rest <= 0 else f"({rest} characters before) … {context[-CONTEXT:]}"


def _tokens(strip: Strip) -> TokenText:
    one = strip.scored
    return TokenText(
        one.token_ids,
        one.tokens,
        one.logprob,
        one.entropy,
        one.self_certainty,
        one.greedy,
        one.measures.get("rank"),
    )
