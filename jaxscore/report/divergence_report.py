"""Report of `divergence` for people."""

from collections.abc import Mapping
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import sections
from jaxscore.report.markdown import NOTHING, significant, table, text

MEANS = {
    "kl": "KL divergence from the model to the reference, KL(p ‖ q)",
    "reverse_kl": "KL divergence from the reference to the model, KL(q ‖ p)",
    "js": "Jensen-Shannon divergence (at most 0.693)",
    "cross_entropy": "cross-entropy of the reference under the model, -Σ p ln q",
    "entropy": "entropy of the model",
    "reference_entropy": "entropy of the reference",
    "logprob": "log-probability under the model, ln p",
    "reference_logprob": "log-probability under the reference, ln q",
    "logprob_difference": "ln p - ln q",
    "same_argmax": "share of tokens at which both have the same most probable token",
    "perplexity": "perplexity under the model",
    "reference_perplexity": "perplexity under the reference",
}
RATIOS = {
    "binoculars": "Binoculars: log-perplexity under the model / cross-entropy",
    "binoculars_upstream": "the same with the log-perplexity under the reference, as the authors' "
    "program has it",
}
PERCENTILES = {"p50": "50 %", "p90": "90 %", "p99": "99 %", "p99_9": "99.9 %", "max": "largest"}


def report(record: Mapping[str, Any]) -> str:
    """Markdown of a run; `record` is what the report's JSON holds."""
    settings, summary = record["settings"], record["summary"]
    rows = [[title, *_cells(summary[name])] for name, title in MEANS.items()]
    of_texts = [[title, *_cells(summary[name])] for name, title in RATIOS.items()]
    parts = [
        f"# Divergence: {text(settings['model'])} against {text(settings['reference'])}",
        "p is the model's distribution over the next token, and q the reference's. Numbers are "
        "nats, over all scored tokens.",
        table(["Per token", "Mean", "95% interval", "Tokens"], rows),
        f"The interval holds 95% of {settings['n_bootstrap']} bootstrap means that resample "
        "texts, since tokens of one text are not independent; - where one text or equal values "
        "cannot tell.",
        table(["Per text", "Mean", "95% interval", "Texts"], of_texts),
        *percentiles(summary["kl_percentiles"]),
        *sections.remarks(record["remarks"]),
        *sections.boundary(settings["boundary"], record["boundary_audit"], "requests"),
        *sections.noise(record),
        *sections.failures(record["failures"], "texts"),
        *worst_tokens(record["worst_tokens"]),
        *_worst_texts(record["worst_texts"]),
        *sections.settings(settings),
    ]
    return "\n\n".join(parts) + "\n"


def _cells(one: Estimate) -> list[str]:
    """Mean, interval and count."""
    low, high = significant(one.low), significant(one.high)
    return [significant(one.mean), NOTHING if one.low is None else f"{low} to {high}", str(one.n)]


def percentiles(found: Mapping[str, Any]) -> list[str]:
    """Those of the KL divergence, as Markdown blocks."""
    if found["max"] is None:
        return []
    rows = [[title, significant(found[name])] for name, title in PERCENTILES.items()]
    return [
        "## KL divergence of the tokens",
        table(["Percentile", "KL(p ‖ q)"], rows),
        f"Of {found['n']} tokens; - where fewer than one of them would lie above.",
    ]


def worst_tokens(tokens: list[Mapping[str, Any]]) -> list[str]:
    """The tokens with the largest divergence, as Markdown blocks."""
    rows = [
        [
            text(str(one["id"])),
            text(one["before"]),
            text(one["token"]),
            *(
                significant(one[name])
                for name in ("kl", "reverse_kl", "js", "logprob", "reference_logprob")
            ),
            "yes" if one["same_argmax"] else "no",
        ]
        for one in tokens
    ]
    header = [
        "Id",
        "Before",
        "Token",
        "KL(p ‖ q)",
        "KL(q ‖ p)",
        "JS",
        "ln p",
        "ln q",
        "Same argmax",
    ]
    title = f"## Tokens, largest KL divergence first (at most {sections.SHOWN})"
    return [title, table(header, rows, left=3)] if rows else []


def _worst_texts(texts: list[Mapping[str, Any]]) -> list[str]:
    numbers = ("mean_kl", "mean_js", "same_argmax_share", "perplexity", "reference_perplexity")
    rows = [
        [
            text(str(one["id"])),
            *(significant(one[name]) for name in (*numbers, "binoculars")),
            str(one["n_scored"]),
        ]
        for one in texts
    ]
    header = ["Id", "KL(p ‖ q)", "JS", "Same argmax", "Perplexity, p", "Perplexity, q"]
    header += ["Binoculars", "Tokens"]
    title = f"## Texts, largest mean KL divergence first (at most {sections.SHOWN})"
    return [title, table(header, rows)] if rows else []
