"""Parts of the reports of several systems; a part without contents gives no Markdown blocks."""

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
    """Describe the effect of a space before the answers, unless the findings do."""
    audit = record.get("answer_blank") or {}
    if not audit.get("results") or audit["finding"] is not None:
        return []
    moved = " and the ".join(
        f"{name} {significant(means['with_blank'], 4)} instead of "
        f"{significant(means['as_published'], 4)}"
        for name, means in audit["results"].items()
    )
    return [
        f"A sample of {audit['n_items']} items was scored with a space before the answers too: it "
        f"raises the probability of {audit['n_raised']} of {audit['n_answers']} answers, and would "
        f"make the {moved}. `--answer-separator` puts it there."
    ]


def remarks(lines: Sequence[str]) -> list[str]:
    """List warnings about valid but suspicious input."""
    return ["## Warnings", "\n".join(f"- {text(line)}" for line in lines)] if lines else []


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


def boundary(chosen: str, audit: Mapping[str, Any] | None, units: str) -> list[str]:
    """Describe the boundary of a run, and the effect of another on its answers or queries.

    Args:
        audit: see `shell.report.Report.boundary_audit`; None without one.
        units: "answers" or "queries".
    """
    if audit is None:
        return []
    others = " and ".join(
        f"`{name}` would change {count} of them" for name, count in audit["changed"].items()
    )
    left_out = ""
    if n := audit.get("n_too_long"):
        left_out = f" {n} longer {units} are not audited."
    if n := audit.get("n_passed_over"):
        left_out += f" They are a sample; {n} others are not audited."
    out = [
        f"Boundary `{chosen}` says where {units} start. Of {audit['n_requests']} {units} "
        f"{others}.{left_out}"
    ]
    if effect := audit.get("effect"):
        ways = [chosen, *audit["changed"]]
        rows = [
            [f"{name[:1].upper()}{name[1:]}", *(significant(means[way], 4) for way in ways),
             str(means["n"])]
            for name, means in effect["results"].items()
        ]  # fmt: skip
        sampled = effect["what"]
        out += [
            f"On a sample of the {sampled} the boundaries give the following. Which one to "
            f"believe: {effect['advice']}.",
            table(["", *(f"`{way}`" for way in ways), sampled.capitalize()], rows),
        ]
    return out


def calibration(measured: Mapping[str, Any], events: str) -> list[str]:
    """Return Markdown blocks of a reliability table and its expected error.

    Args:
        measured: `ece` and `bins`.
        events: name of the events, such as "answers".
    """
    bins = measured["bins"]
    return [
        "## Calibration",
        f"Expected calibration error {number(measured['ece'])}, over {len(bins)} bins of equal "
        f"width with all {events} of all questions as events that are true or not. Where a model "
        "is calibrated, mean probability and share correct are equal in every bin.",
        reliability_table(bins, events),
    ]


def reliability_table(bins: Sequence[Mapping[str, Any]], events: str) -> str:
    """Return the mean probability and share of true events in each bin."""
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
    """Describe the effect of rounding on a run's numbers and decisions, if it was audited."""
    if "noise" not in record:
        return []
    audit, title = record["noise"], "## Noise floor"
    if audit is None:
        return [title, "No request was scored, so none was scored again."]
    rows = [
        [NOISE[name], significant(row["largest"], 2), significant(row["mean"], 2)]
        for name, row in audit["spread"].items()
    ]
    layouts = ", ".join(text(name) for name in audit["layouts"])
    n, tokens = audit["n_requests"], audit["n_tokens"]
    parts = [
        f"{n} requests, drawn by the seed, were scored in {len(audit['layouts'])} layouts: "
        f"{layouts}. These differ only by rounding. Spread is a number's largest value less its "
        "smallest: the largest of these requests, and their mean."
    ]
    if tokens is not None:
        differs = audit["n_greedy_differs"]
        parts.append(
            f"Of {tokens} tokens {differs} are the most probable one in some layouts only."
        )
    out = [title, " ".join(parts), table(["Number", "Largest spread", "Mean"], rows)]
    if audit["decisions"]:
        rows = [
            [text(row["what"]), f"{row['n_within']} of {row['n']}", text(row["statistic"]),
             significant(row["margin"], 2)]
            for row in audit["decisions"]
        ]  # fmt: skip
        out += [
            "Each of two candidates may move by the largest spread, so a decision whose margin is "
            f"at most twice that lies within the noise and is not a finding. {MARK} marks it.",
            table(["Decision", "Within", "Margin of", "At most"], rows),
        ]
    return out


def marked(result: Mapping[str, Any], field: str = "within_noise") -> str:
    """Return the mark of a decision within the noise, after a space, or an empty text."""
    return f" {MARK}" if result.get(field) else ""


def within_noise(
    record: Mapping[str, Any], results: Iterable[Mapping[str, Any]]
) -> list[bool | None]:
    """Return True for each result that rounding could change; empty without an audit."""
    return [result.get("within_noise") for result in results] if "noise" in record else []


def settings(values: Mapping[str, Any]) -> list[str]:
    """List settings and versions, without those that are None."""
    rows = [[name, text(_shown(value))] for name, value in values.items() if value is not None]
    return ["## Settings and versions", table(["Setting", "Value"], rows, left=2)]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return str(value)


LEAST, MOST = 1e-4, 1e15  # other numbers are written with a power of ten
VOID = 1e6  # multiple of the mean from which an interval's end is meaningless
FAILURES = 200  # listed below the items; all are in the table of items and in the JSON file
CONTEXT = 1_000  # characters of a context that a page holds, from its end


def sentence(headline: str) -> str:
    """Return a headline as a sentence."""
    return f"{headline[:1].upper()}{headline[1:]}."


def verdict(source: Source, headline: str = "") -> str:
    """Return the headline after the findings, which explain how to read it.

    Args:
        headline: a sentence in place of the source's headline.
    """
    findings = source.record.get("findings", ())
    return " ".join([*map(sentence, findings), headline or sentence(source.headline)])


def is_void(estimate: Estimate) -> bool:
    """Return True if a number's interval is too wide to be meaningful."""
    ends = [abs(end) for end in (estimate.low, estimate.high) if end is not None]
    return max(ends, default=0.0) > max(VOID, VOID * abs(estimate.mean or 0.0))


def estimate_card(title: str, estimate: Estimate, units: str) -> Card:
    """Return the card of a mean with its interval and its count.

    Args:
        units: name of the averaged items, such as "questions".
    """
    over = counted(estimate.n, units)
    if is_void(estimate):
        mean = dataclasses.replace(estimate, low=None, high=None)
        return Card(title, three(estimate.mean), f"{INTERVAL}too wide to be of use\n{over}", mean)
    span = (
        ""
        if estimate.low is None
        else f"{INTERVAL}{three(estimate.low)} to {three(estimate.high)}\n"
    )
    return Card(title, three(estimate.mean), f"{span}{over}", estimate)


def three(value: float | None) -> str:
    """Format a number with three significant digits, up to 15 before the point, zeros included."""
    if value is None or not math.isfinite(value):
        return NOTHING if value is None else str(value)
    if value == 0:
        return "0"
    if abs(value) < LEAST or abs(value) >= MOST:
        return f"{value:.2e}"
    places = 2 - math.floor(math.log10(float(f"{abs(value):.2e}")))
    return f"{value:,.{max(0, places)}f}"


def yes_no(value: bool | None) -> str:
    """Format a flag for a column."""
    return NOTHING if value is None else "yes" if value else "no"


def closing(record: Mapping[str, Any], failed: str) -> list[Section]:
    """Return the last sections: noise floor, warnings, failures, settings.

    Args:
        failed: name of the items, such as "questions".
    """
    failures: Sequence[Mapping[str, str]] = record["failures"]
    failed_blocks: list[str] = []
    if n := len(failures):
        lines = [
            f"- {text(failure['name'])}: {text(failure['error'])}"
            for failure in failures[:FAILURES]
        ]
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
    """Return a section of Markdown blocks, the first one its heading; none without blocks."""
    if not blocks:
        return []
    return [Section(blocks[0].removeprefix("## "), blocks[1:], opened)]


def model_of(record: Mapping[str, Any]) -> str:
    """Return the model's name: the last part of its path."""
    return _parts(record["settings"].get("model", "no model"))[-1]


def _parts(path: Any) -> list[str]:
    return str(path).rstrip("/").split("/")


def sides(a: Any, b: Any, settings: Iterable[tuple[str, Any, Any]] = ()) -> tuple[str, str]:
    """Return short names of two paths by their difference, for a title.

    Args:
        a, b: paths, or names of models; the short names are the last parts, as far as needed.
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
    """Return the indices of the records that did not fail, in the order of their keys.

    Args:
        key: one or several numbers or flags.
    """
    indices, keys = array("q"), array("d")
    for index, record in enumerate(records):
        if "error" not in record:
            indices.append(index)
            keys.extend(key(record))
    if not indices:
        return np.zeros(0, np.int64)
    columns = np.array(keys).reshape(len(indices), -1).T
    return np.array(indices)[np.lexsort(columns[::-1])]


def with_failures(items: Items, failed: Iterable[Mapping[str, str]]) -> Items:
    """Append the items that could not be evaluated, each by its name."""
    failures = [*failed]
    if not failures:
        return items
    n, more = items.n, len(failures)
    first, *others = items.columns
    names = [failure["name"] for failure in failures]
    strips = items.strips
    if strips is not None:
        ends = [strips.first, strips.first[-1:].repeat(more)]
        strips = dataclasses.replace(strips, first=np.concatenate(ends))
    return dataclasses.replace(
        items,
        columns=[
            dataclasses.replace(first, values=[*first.values, *names]),
            *(
                dataclasses.replace(column, values=[*column.values, *[NOTHING] * more])
                for column in others
            ),
        ],
        fields=[Field(field.title, [*field.values, *[""] * more]) for field in items.fields],
        tables=[
            dataclasses.replace(rows, items=[*rows.items, *[()] * more]) for rows in items.tables
        ],
        strips=strips,
        errors={**items.errors, **{n + k: row["error"] for k, row in enumerate(failures)}},
        within_noise=[*items.within_noise, *[None] * more] if items.within_noise else [],
    )


def strips_of(
    source: Source, tokens_of: Callable[[Strip], TokenText] | None = None, **more: Any
) -> Strips | None:
    """Return the strips of all items; None if tokens are unknown.

    Args:
        tokens_of: the tokens of a strip; None is `token_text`.
        more: other fields of `Strips`.
    """
    if not source.strips:
        return None
    every = [strip for strips in source.strips for strip in strips]
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
    """Return the end of a long context."""
    rest = len(context) - CONTEXT
    return context if rest <= 0 else f"({rest} characters before) … {context[-CONTEXT:]}"


def token_text(strip: Strip) -> TokenText:
    """Return the tokens of a scored text."""
    scored = strip.scored
    return TokenText(
        scored.token_ids,
        scored.tokens,
        scored.logprob,
        scored.entropy,
        scored.self_certainty,
        scored.greedy,
        scored.measures.get("rank"),
    )


def table_by_n(rows: Sequence[Mapping[str, Any]], field: str) -> str:
    """Return a table with a row per N and a column per way of choosing.

    Args:
        rows: see `Marks.rows` of `systems.selection.grading`.
        field: name of the displayed estimate.
    """
    ways = list(dict.fromkeys(row["way"] for row in rows if row[field] is not None))
    by_n_and_way = {(row["best_n"], row["way"]): row for row in rows}
    lines = []
    for n in dict.fromkeys(row["best_n"] for row in rows):
        fewer = next(row["n_with_fewer"] for row in rows if row["best_n"] == n)
        cells = [
            _estimate_cell(by_n_and_way[n, way][field]) if (n, way) in by_n_and_way else NOTHING
            for way in ways
        ]
        lines.append([str(n), str(fewer), *cells])
    return table(["N", "Items with fewer", *map(text, ways)], lines, left=0)


def _estimate_cell(estimate: Estimate) -> str:
    return f"{number(estimate.mean, 4)} ({interval(estimate.low, estimate.high)})"
