"""Report of `perplexity` for people."""

from collections.abc import Mapping
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import sections
from jaxscore.report.markdown import NOTHING, number, significant, table, text

SHOWN = 50  # documents, most bits per byte first; all are in the JSON file
UNITS = {
    "byte": ("Byte", "bits_per_byte", "byte_perplexity", "n_bytes"),
    "word": ("Word", "bits_per_word", "word_perplexity", "n_words"),
    "token": ("Token", "bits_per_token", "perplexity", "n_scored"),
}


def report(record: Mapping[str, Any]) -> str:
    """Markdown of a run; `record` is what the report's JSON holds."""
    settings, summary = record["settings"], record["summary"]
    rows = [
        [
            title,
            significant(summary[per].mean, 6),
            _interval(summary[per]),
            significant(summary[exponent].mean, 6),
            _interval(summary[exponent]),
            f"{summary[count]:,}",
        ]
        for title, per, exponent, count in UNITS.values()
    ]
    parts = [
        f"# Perplexity: {text(settings['model'])}",
        table(["Per", "Bits", "95% interval", "Perplexity", "95% interval", "Counted"], rows),
        *explained(record),
        *sections.remarks(record["remarks"]),
        *sections.failures(record["failures"], "documents"),
        *_worst(record),
        *sections.settings(settings),
    ]
    return "\n\n".join(parts) + "\n"


def explained(record: Mapping[str, Any]) -> list[str]:
    """How the means are computed, as Markdown blocks."""
    settings, summary, windows = record["settings"], record["summary"], record["windows"]
    return [
        f"{summary['n_documents']} documents. The means are over all bytes, words or tokens "
        "together, so that a long document weighs more. A word is what stands between blanks. The "
        f"interval holds 95% of {settings['n_bootstrap']} bootstrap means that resample documents; "
        "- where one document or equal values cannot tell.",
        f"Windows read up to {windows['max_length']} tokens, and each after a document's first "
        f"scores up to {windows['stride']} new ones. {summary['n_left_out']} tokens have no "
        "probability and are in no sum.",
    ]


def worst_first(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The documents that were scored, most bits per byte first."""
    good = [one for one in record["documents"] if "error" not in one]
    return sorted(good, key=lambda one: -one["bits_per_byte"])


def _interval(one: Estimate) -> str:
    if one.low is None or one.high is None:
        return NOTHING
    return f"{significant(one.low, 6)} to {significant(one.high, 6)}"


def _worst(record: Mapping[str, Any]) -> list[str]:
    worst = worst_first(record)
    rows = [
        [
            text(str(one["id"]), 60),
            text(one["begin"]),
            number(one["bits_per_byte"], 4),
            significant(one["bits_per_word"], 5),
            significant(one["perplexity"], 5),
            str(one["n_scored"]),
        ]
        for one in worst[:SHOWN]
    ]
    some = f" (the first {SHOWN} of {len(worst)})" if len(worst) > SHOWN else ""
    header = ["Id", "Begins", "Bits per byte", "Bits per word", "Perplexity", "Tokens"]
    title = f"## Documents, most bits per byte first{some}"
    return [title, table(header, rows, left=2)] if rows else []
