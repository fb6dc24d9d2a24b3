"""Parts that reports of several systems have; no Markdown block if there is nothing to say."""

import dataclasses
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report.counts import counted
from jaxscore.report.document import Card, Field, Items, Section, Source
from jaxscore.report.html.strips import Strips, TokenText, tokens
from jaxscore.report.markdown import (
    INTERVAL,
    NOTHING,
    interval,
    number,
    significant,
    table,
    text,
)
from jaxscore.types.results import Strip

MARK = "≈"
NOISE = {
    "token_logprob": "log-probability of a token, nats",
    "token_entropy": "entropy at a token, nats",
    "token_self_certainty": "self-certainty at a token, nats",
    "token_kl": "KL divergence of two models at a token, nats",
    "token_js": "Jensen-Shannon divergence of two models at a token, nats",
    "sum_logprob": "log-probability of a request, nats",
    "mean_logprob": "its mean per token, nats",
    "mean_self_certainty": "self-certainty of a request, nats",
    "label_logprob": "log-probability of a label, nats",
    "label_probability": "probability of a label among the labels",
}


def answer_blank(record: Mapping[str, Any]) -> list[str]:
    """What a blank before the answers would do, unless the findings say it."""
    found = record.get("answer_blank") or {}
    if not found.get("results") or found["finding"] is not None:
        return []
    moved = " and the ".join(
        f"{name} {significant(one['with_blank'], 4)} instead of "
        f"{significant(one['as_published'], 4)}"
        for name, one in found["results"].items()
    )
    return [
        f"A sample of {found['n_items']} items was scored with a blank before the answers too: it "
        f"raises the probability of {found['n_raised']} of {found['n_answers']} answers, and would "
        f"make the {moved}. `--answer-separator` puts it there."
    ]


def remarks(lines: Sequence[str]) -> list[str]:
    """What is legal and still worth telling."""
    return ["## Remarks", "\n".join(f"- {text(line)}" for line in lines)] if lines else []


SCORED_CONTENTS = {
    "assistant": "all messages of the assistant",
    "last": "the last message of the assistant",
    "all": "all messages",
}


def conversations(settings: Mapping[str, Any]) -> list[str]:
    """Return a sentence about the scored tokens of conversations; nothing of a run without any."""
    roles = settings.get("score_roles")
    if roles is None:
        return []
    ends = " and the tokens that end their turns" if settings["score_turn_end"] else ""
    return [
        f"Of a conversation the contents of {SCORED_CONTENTS[roles]}{ends} are scored, as the "
        "model's chat template writes them."
    ]


def boundary(chosen: str, audit: Mapping[str, Any] | None, what: str) -> list[str]:
    """The boundary of a run, and what another would change of its `what` (answers, queries).

    Args:
        audit: see `shell.report.Report.boundary_audit`; None without one.
    """
    if audit is None:
        return []
    others = " and ".join(
        f"`{name}` would change {count} of them" for name, count in audit["changed"].items()
    )
    left_out = ""
    if n := audit.get("n_too_long"):
        left_out = f" {n} longer {what} are not audited."
    if n := audit.get("n_passed_over"):
        left_out += f" They are a sample; {n} others are not audited."
    out = [
        f"Boundary `{chosen}` says where {what} start. Of {audit['n_requests']} {what} "
        f"{others}.{left_out}"
    ]
    if effect := audit.get("effect"):
        ways = [chosen, *audit["changed"]]
        rows = [
            [f"{name[:1].upper()}{name[1:]}", *(significant(one[way], 4) for way in ways),
             str(one["n"])]
            for name, one in effect["results"].items()
        ]  # fmt: skip
        sampled = effect["what"]
        out += [
            f"On a sample of the {sampled} the boundaries give the following. Which one to "
            f"believe: {effect['advice']}.",
            table(["", *(f"`{way}`" for way in ways), sampled.capitalize()], rows),
        ]
    return out


def calibration(found: Mapping[str, Any], events: str) -> list[str]:
    """Markdown blocks of a reliability table and its expected error.

    Args:
        found: `ece` and `bins`.
        events: what is true or not, such as "answers".
    """
    bins = found["bins"]
    return [
        "## Calibration",
        f"Expected calibration error {number(found['ece'])}, over {len(bins)} bins of equal "
        f"width with all {events} of all questions as events that are true or not. Where a model "
        "is calibrated, mean probability and share correct are equal in every bin.",
        reliability_table(bins, events),
    ]


def reliability_table(bins: Sequence[Mapping[str, Any]], events: str) -> str:
    """Mean probability and share of true events in each bin."""
    rows = []
    for bin in bins:
        p, share = bin["mean_probability"], bin["frequency"]
        rows.append(
            [
                f"{bin['low']:.1f} to {bin['high']:.1f}",
                str(bin["n"]),
                number(p, 4),
                number(share, 4),
                NOTHING if p is None else f"{share - p:+.4f}",
            ]
        )
    header = ["Probability", events.capitalize(), "Mean probability", "Share correct", "Difference"]
    return table(header, rows)


def noise(record: Mapping[str, Any]) -> list[str]:
    """How far rounding moves a run's numbers, and how many decisions lie within that.

    Nothing if no audit was requested.
    """
    if "noise" not in record:
        return []
    found, title = record["noise"], "## Noise floor"
    if found is None:
        return [title, "No request was scored, so none was scored again."]
    rows = [
        [NOISE[name], significant(one["largest"], 2), significant(one["mean"], 2)]
        for name, one in found["spread"].items()
    ]
    layouts = ", ".join(text(name) for name in found["layouts"])
    n, tokens = found["n_requests"], found["n_tokens"]
    parts = [
        f"{n} requests, drawn by the seed, were scored in {len(found['layouts'])} layouts: "
        f"{layouts}. These differ by rounding alone. Spread is a number's largest value less its "
        "smallest: the largest of these requests, and their mean."
    ]
    if tokens is not None:
        differs = found["n_greedy_differs"]
        parts.append(
            f"Of {tokens} tokens {differs} are the most probable one in some layouts only."
        )
    out = [title, " ".join(parts), table(["Number", "Largest spread", "Mean"], rows)]
    if found["decisions"]:
        rows = [
            [text(one["what"]), f"{one['n_within']} of {one['n']}", text(one["statistic"]),
             significant(one["margin"], 2)]
            for one in found["decisions"]
        ]  # fmt: skip
        out += [
            "Each of two candidates may move by the largest spread, so a decision whose margin is "
            f"at most twice that lies within the noise: it is no finding. {MARK} marks it.",
            table(["Decision", "Within", "Margin of", "At most"], rows),
        ]
    return out


def marked(result: Mapping[str, Any], field: str = "within_noise") -> str:
    """The mark of a decision within the noise, with a blank before it, or nothing."""
    return f" {MARK}" if result.get(field) else ""


def within_noise(
    record: Mapping[str, Any], results: Iterable[Mapping[str, Any]]
) -> list[bool | None]:
    """Whether rounding could change each result; empty without an audit of rounding errors."""
    return [result.get("within_noise") for result in results] if "noise" in record else []


def settings(values: Mapping[str, Any]) -> list[str]:
    """Settings and versions; None stands for what was not given or is not known."""
    rows = [[name, text(_shown(value))] for name, value in values.items() if value is not None]
    return ["## Settings and versions", table(["Setting", "Value"], rows, left=2)]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return str(value)


LEAST, MOST = 1e-4, 1e15  # other numbers are written with a power of ten
VOID = 1e6  # an interval that ends beyond so many times its number
FAILURES = 200  # listed below the items; all are in the table of items and in the JSON file
CONTEXT = 1_000  # characters of a context that a page holds, from its end


def sentence(headline: str) -> str:
    """A headline as a sentence."""
    return f"{headline[:1].upper()}{headline[1:]}."


def verdict(source: Source, headline: str = "") -> str:
    """Return the headline, after the findings that say how it is to be read.

    Args:
        headline: a sentence in place of the source's headline.
    """
    findings = source.record.get("findings", ())
    return " ".join([*map(sentence, findings), headline or sentence(source.headline)])


def is_void(estimate: Estimate) -> bool:
    """Return True if a number's interval has so many digits that it says nothing."""
    ends = [abs(end) for end in (estimate.low, estimate.high) if end is not None]
    return max(ends, default=0.0) > max(VOID, VOID * abs(estimate.mean or 0.0))


def estimate_card(title: str, one: Estimate, what: str) -> Card:
    """A mean with its interval and its count.

    Args:
        what: it is over, such as "questions".
    """
    over = counted(one.n, what)
    if is_void(one):
        mean = dataclasses.replace(one, low=None, high=None)
        return Card(title, three(one.mean), f"{INTERVAL}too wide to be of use\n{over}", mean)
    span = "" if one.low is None else f"{INTERVAL}{three(one.low)} to {three(one.high)}\n"
    return Card(title, three(one.mean), f"{span}{over}", one)


def three(value: float | None) -> str:
    """A number with three significant digits, up to 15 before the point, zeros included."""
    if value is None or not math.isfinite(value):
        return NOTHING if value is None else str(value)
    if value == 0:
        return "0"
    if abs(value) < LEAST or abs(value) >= MOST:
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
    failures: Sequence[Mapping[str, str]] = record["failures"]
    failed_blocks: list[str] = []
    if n := len(failures):
        lines = [f"- {text(one['name'])}: {text(one['error'])}" for one in failures[:FAILURES]]
        failed_blocks = [f"## Failed: {counted(n, failed)}, in no mean", "\n".join(lines)]
    if n > FAILURES:
        failed_blocks.append(f"The first {FAILURES} are listed; all {n} are in the JSON file.")
    return [
        *section(noise(record)),
        *section(remarks(record["remarks"]), opened=True),
        *section(failed_blocks, opened=True),
        *section(settings(record["settings"])),
    ]


def section(blocks: Sequence[str], *, opened: bool = False) -> list[Section]:
    """A section from Markdown blocks that begin with its heading; none from no blocks."""
    if not blocks:
        return []
    return [Section(blocks[0].removeprefix("## "), blocks[1:], opened)]


def model_of(record: Mapping[str, Any]) -> str:
    """The model's name: the last part of its path."""
    return _parts(record["settings"].get("model", "no model"))[-1]


def _parts(path: Any) -> list[str]:
    return str(path).rstrip("/").split("/")


def sides(a: Any, b: Any, settings: Iterable[tuple[str, Any, Any]] = ()) -> tuple[str, str]:
    """Short names of two paths by their difference, for a title.

    Args:
        a, b: paths, or names of models; the names are the last parts that tell them apart.
        settings: name, and the value of each side. The first different one is added to equal paths.
    """
    paths = [_parts(a), _parts(b)]
    for n in range(1, max(map(len, paths)) + 1):
        ends = ["/".join(parts[-n:]) for parts in paths]
        if ends[0] != ends[1]:
            return ends[0], ends[1]
    for name, *values in settings:
        if values[0] != values[1]:
            shown = [f"no {name}" if v is None else f"{name} {_parts(v)[-1]}" for v in values]
            return f"{paths[0][-1]}, {shown[0]}", shown[1]
    return paths[0][-1], paths[1][-1]


def worst_first(
    records: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], tuple[float, ...]]
) -> np.ndarray:
    """Places of the records that did not fail, in the order of their keys.

    Args:
        key: one or several numbers or flags.
    """
    places, keys = array("q"), array("d")
    for place, record in enumerate(records):
        if "error" not in record:
            places.append(place)
            keys.extend(key(record))
    if not places:
        return np.zeros(0, np.int64)
    columns = np.array(keys).reshape(len(places), -1).T
    return np.array(places)[np.lexsort(columns[::-1])]


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
    """The strips of all items; None if no tokens are known.

    Args:
        tokens_of: the tokens of a strip; None is `token_text`.
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
        tokens=tokens([(tokens_of or token_text)(strip) for strip in every], names),
        names=names,
        vocabulary=source.vocabulary,
        **more,
    )


def context_end(context: str) -> str:
    """The end of a long context."""
    rest = len(context) - CONTEXT
    return context if rest <= 0 else f"({rest} characters before) … {context[-CONTEXT:]}"


def token_text(strip: Strip) -> TokenText:
    """The tokens of a scored text."""
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


def table_by_n(rows: Sequence[Mapping[str, Any]], field: str) -> str:
    """One row per N, one column per way of choosing.

    Args:
        rows: as of `Marks.rows` of `systems.selection.grading`.
        field: name of the displayed estimate.
    """
    ways = list(dict.fromkeys(row["way"] for row in rows if row[field] is not None))
    found = {(row["best_n"], row["way"]): row for row in rows}
    lines = []
    for n in dict.fromkeys(row["best_n"] for row in rows):
        fewer = next(row["n_with_fewer"] for row in rows if row["best_n"] == n)
        cells = [
            _estimate_cell(found[n, way][field]) if (n, way) in found else NOTHING for way in ways
        ]
        lines.append([str(n), str(fewer), *cells])
    return table(["N", "Items with fewer", *map(text, ways)], lines, left=0)


def _estimate_cell(estimate: Estimate) -> str:
    return f"{number(estimate.mean, 4)} ({interval(estimate.low, estimate.high)})"
