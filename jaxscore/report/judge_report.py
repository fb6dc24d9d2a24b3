"""Reports of `judge` for people: what matters first, what made it last."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxscore.report import sections
from jaxscore.report.markdown import NOTHING, interval, number, table, text

SHOWN = 50  # records in a list; all are in the JSON file
TITLE = 100  # characters of a question in a heading
HOW = {
    "logits": "The judge's next-token distribution after the prompt, over the first token of each "
    "label. Score: Σ worth · probability over the labels. **Outside**: mean probability of the "
    "rest of the vocabulary; near 1, the judge would not have answered with a label at all.",
    "sequence": "The probability of each whole label after the prompt, over the labels. Score: "
    "Σ worth · probability. **Outside**: mean probability of anything else; near 1, the judge "
    "would not have answered with a label at all.",
    "text": "The judge wrote an answer; the one label that occurs in it is the score. An answer "
    "with none or several has -100 in the column and is outside the mean.",
    "bem": "A classifier's probability that the response is equivalent to a reference, the best "
    "of a record's references.",
}
INTERVALS = {
    "wilson": "The interval is Wilson's 95% interval of a share",
    "bootstrap": "The interval holds 95% of {n_bootstrap} bootstrap means that resample records",
}
NO_INTERVAL = {
    "wilson": "below two records there is none.",
    "bootstrap": "below two records, or where all values are equal, there is none.",
}
PAIRWISE = """\
The judge read both responses and wrote which is better. {order} Rates are over the records whose \
answers name one label, with Wilson's 95% interval of a share; other records have -100 in the \
column. **First preferred**: how many of the answers for one response are for the one that stood \
first, 50 % where the place does not matter."""
ORDERS = {
    True: "Each pair was asked in both orders: a win or a loss is what both answers say, and "
    "answers that disagree are a tie.",
    False: "Which of the two stood first was drawn by the seed.",
}


def report(record: Mapping[str, Any]) -> str:
    """Markdown of one metric of one set of records; `record` is what the JSON file holds."""
    records = record["records"]
    known = [one for one in records if one["known"]]
    unread = [_block("No label, or several", one) for one in records if one["known"] is False]
    if record["kind"] == "pairwise":
        top = _pairwise(record)
        title, worst = "Lost", [_block("Lost", one) for one in known if one["score"] == 0.0]
    else:
        top, title = _scores(record), "Worst first"
        worst = [
            _block(f"Score {one['score']:.4f}", one)
            for one in sorted(known, key=lambda one: one["score"])
        ]
    parts = [
        f"# {text(record['metric'])}: {text(subject(record['settings']))}",
        *top,
        *sections.noise(record),
        *sections.remarks(record["remarks"]),
        *sections.failures(record["failures"], "records"),
        *_listed(title, worst),
        *_listed("Answers that name no label, or several", unread),
        *sections.settings(record["settings"]),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def subject(settings: Mapping[str, Any]) -> str:
    """What was judged, or else who judged."""
    return str(settings.get("folder", settings.get("model", "responses")))


def _scores(record: Mapping[str, Any]) -> list[str]:
    summary, kind = record["summary"], record["kind"]
    low, high = summary["interval"]
    row = [number(summary["mean"]), interval(low, high), str(summary["n"])]
    header = ["Mean", "95% interval", "Records"]
    if summary.get("outside") is not None:
        header.append("Outside")
        row.append(number(summary["outside"], 4))
    if kind == "text":
        header += ["No label", "Several labels"]
        row += [str(summary["n_none"]), str(summary["n_several"])]
    header.append("Failed")
    row.append(str(summary["n_failed"]))
    return [table(header, [row], left=0), *explained_scores(record), *_labels(summary)]


def explained_scores(record: Mapping[str, Any]) -> list[str]:
    """How the scores of single responses came about, and their interval."""
    method = record["summary"]["interval_by"]
    how = INTERVALS[method].format(n_bootstrap=record["settings"]["n_bootstrap"])
    return [HOW[record["kind"]], f"{how}; {NO_INTERVAL[method]}"]


def explained_pairs(record: Mapping[str, Any]) -> list[str]:
    """How two responses were compared."""
    return [PAIRWISE.format(order=ORDERS[bool(record["settings"]["both_orders"])])]


def _labels(summary: Mapping[str, Any]) -> list[str]:
    if "labels" not in summary:
        return []
    rows = [
        [text(label), f"{one['worth']:g}", str(one["n"]), number(one["probability"], 4)]
        for label, one in summary["labels"].items()
    ]
    header = ["Label", "Worth", "Chosen", "Mean probability"]
    return ["## Labels", table(header, rows)]


def _pairwise(record: Mapping[str, Any]) -> list[str]:
    summary = record["summary"]
    rows = [
        [name, percent(one["percent"]), spread(one["interval"])]
        for name, one in summary["rates"].items()
    ]
    counts = [
        ["Records", str(summary["n"])],
        ["No label, or several", str(summary["n_unknown"])],
        ["Failed", str(summary["n_failed"])],
        ["First preferred", percent(summary["first"])],
        ["Both orders agree", percent(summary["agree"])],
    ]
    return [
        table(["", "Percent", "95% interval"], rows),
        *explained_pairs(record),
        table(["", ""], counts),
    ]


def _block(outcome: str, one: Mapping[str, Any]) -> str:
    """One record under its question, with what it scored."""
    question = one["question"]
    lines = [
        f"### {text(question, TITLE) or NOTHING}",
        f"{outcome} (q_id {text(str(one['q_id']))})",
        *([f"Question: {text(question)}"] if len(question) > TITLE else []),
        f"References: {text('; '.join(one['label']))}",
        f"Response: {text(one['response']) or NOTHING}",
    ]
    if "opponent" in one:
        lines.append(f"Opponent: {text(one['opponent']) or NOTHING}")
    if one.get("probability"):
        parts = [f"{text(label)} {p:.4f}" for label, p in one["probability"].items()]
        mark = sections.marked(one)
        lines.append(f"Labels: {', '.join(parts)}; outside {one['outside']:.4f}{mark}")
    if one.get("best"):
        lines.append(f"Best reference: {text(one['best'])}")
    lines += [f"The judge wrote: {text(written) or NOTHING}" for written in one.get("texts", ())]
    return "\n\n".join(lines)


def _listed(title: str, blocks: Sequence[str]) -> list[str]:
    if not blocks:
        return []
    cut = len(blocks) > SHOWN
    some = [f"{SHOWN} of {len(blocks)} shown; all are in the JSON file."] if cut else []
    return [f"## {title}", *some, *blocks[:SHOWN]]


def percent(value: float | None) -> str:
    """A percentage, or a dash."""
    return NOTHING if value is None else f"{value:.1f} %"


def spread(bounds: Iterable[float | None]) -> str:
    """An interval of percentages, or a dash."""
    low, high = bounds
    return interval(low, high, 1)
