"""Sections that every report ends with. Each gives Markdown blocks, none where it is empty."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.reports.markdown import significant, table, text

MARK = "≈"
NOISE = {
    "token_logprob": "log-probability of a token, nats",
    "token_entropy": "entropy at a token, nats",
    "token_self_certainty": "self-certainty at a token, nats",
    "sum_logprob": "log-probability of a request, nats",
    "mean_logprob": "its mean a token, nats",
    "mean_self_certainty": "self-certainty of a request, nats",
    "label_logprob": "log-probability of a label, nats",
    "label_probability": "probability of a label among the labels",
}


def remarks(lines: Sequence[str]) -> list[str]:
    """What is legal and still worth telling."""
    return ["## Remarks", "\n".join(f"- {text(line)}" for line in lines)] if lines else []


def boundary(chosen: str, n: int, what: str, changed: Mapping[str, int]) -> str:
    """The policy of a run, and how many of its n `what` (answers, queries) others would change."""
    others = " and ".join(
        f"`{name}` would score {count} of them otherwise" for name, count in changed.items()
    )
    return f"Boundary `{chosen}` says where {what} start. Of {n} {what} {others}."


def failures(failed: Sequence[Mapping[str, str]], what: str) -> list[str]:
    """`what` failed, each with its `name` and `error`."""
    lines = [f"- {text(one['name'])}: {text(one['error'])}" for one in failed]
    return [f"## Failed: {len(lines)} {what}, in no mean", "\n".join(lines)] if lines else []


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
