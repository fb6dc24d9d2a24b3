"""Sections that every report ends with. Each gives Markdown blocks, none where it is empty."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxscore.report.markdown import significant, table, text

MARK = "≈"
NO_TEXT = "(no text)"
SHOWN = 50  # items of a page; all are in the JSON file
LONGEST_HEADING = 100  # characters of an item in its heading
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


def findings(record: Mapping[str, Any]) -> list[str]:
    """How the numbers are to be read: what comes before them."""
    return [f"**{text(line)}.**" for line in record.get("findings", ())]


def answer_blank(record: Mapping[str, Any]) -> list[str]:
    """What a blank before the answers would do, unless `findings` says it."""
    found = record.get("answer_blank", {})
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


def boundary(chosen: str, audit: Mapping[str, Any] | None, what: str) -> list[str]:
    """The boundary of a run, and what another would change of its `what` (answers, queries).

    Args:
        audit: `n_<what>` and `changed`, `n_too_long` and `n_passed_over` if some were left out,
            and `effect`, see `ScoringRun.effect`, if another changes some; None without an audit.
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
    n_audited = audit[f"n_{what}"]
    out = [
        f"Boundary `{chosen}` says where {what} start. Of {n_audited} {what} {others}.{left_out}"
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


def failures(failed: Sequence[Mapping[str, str]], what: str) -> list[str]:
    """`what` failed, each with its `name` and `error`."""
    lines = [f"- {text(one['name'])}: {text(one['error'])}" for one in failed]
    return [f"## Failed: {len(lines)} {what}, in no mean", "\n".join(lines)] if lines else []


def items(
    what: str,
    worst_first: Sequence[Mapping[str, Any]],
    heading: Callable[[Mapping[str, Any]], str],
    body: Callable[[Mapping[str, Any]], str],
) -> list[str]:
    """The worst items of a run, each under itself as a heading.

    Args:
        what: the items, with a capital letter ("Questions").
        heading: an item's own text.
        body: the Markdown under the heading, its score first.
    """
    if not worst_first:
        return []
    n, shown = len(worst_first), min(len(worst_first), SHOWN)
    some = f" ({shown} of {n} shown)" if shown < n else ""
    parts = [f"## {what}, worst first{some}"]
    for one in worst_first[:shown]:
        title = text(heading(one), LONGEST_HEADING) or NO_TEXT
        parts += [f"### {title}", body(one)]
    return parts


def whole(value: str, what: str) -> str:
    """An item's whole text, for the body of an item whose heading cuts it; else nothing."""
    return f" {what}: {text(value)}" if len(value) > LONGEST_HEADING else ""


def noise(record: Mapping[str, Any]) -> list[str]:
    """How far rounding moves a run's numbers, and how many decisions lie within that.

    Nothing where no audit was asked for.
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
