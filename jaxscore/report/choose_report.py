"""Report of `choose` for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.report import calibration_section, sections
from jaxscore.report.markdown import interval, number, table, text

RULES = {
    "": "Highest log-probability (acc)",
    "_norm": "Highest per byte (acc_norm)",
    "_pmi": "Highest PMI (acc_pmi)",
}
INTRODUCTION = """\
Each option is scored whole after its context. **acc** takes the option with the highest sum of
log-probability, **acc_norm** the one with the highest sum per UTF-8 byte of the option without the
blanks before it, **acc_pmi** the one that the context raises most above its log-probability after
the premise {premise}. Of equal options the first is taken. **Skill**: (observed - chance) / (1 -
chance), with 1 / number of options as chance. **Brier**: mean over an item's options of
(probability - truth)², with a softmax over the sums as probabilities. The interval of a share is
Wilson's 95% score interval; the others hold 95% of {n_bootstrap} bootstrap means over the items. A
dash stands where fewer than two items, or equal values, cannot tell.
"""
TAIL = 400  # characters of a context that are shown, the last ones


def report(record: Mapping[str, Any]) -> str:
    """Markdown of a run; `record` is what the report's JSON holds."""
    settings, summary = record["settings"], record["summary"]
    parts = [
        f"# Multiple choice: {text(settings['model'])}",
        *_accuracies(summary),
        INTRODUCTION.format(
            premise=text(repr(settings["pmi_context"])), n_bootstrap=settings["n_bootstrap"]
        ),
        *_ties(summary),
        *_categories(summary["by_category"]),
        *sections.boundary(settings["boundary"], record["boundary_audit"], "options"),
        *sections.noise(record),
        *(
            calibration_section.section(record["calibration"], "options")
            if _judged(summary)
            else []
        ),
        *sections.remarks(record["remarks"]),
        *sections.failures(record["failures"], "items"),
        *_worst(record["items"]),
        *sections.settings(settings),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _judged(summary: Mapping[str, Any]) -> bool:
    return summary["n_with_gold"] > 0


def _accuracies(summary: Mapping[str, Any]) -> list[str]:
    if not _judged(summary):
        return [f"{summary['n_scored']} items were scored; none of them has a gold option."]
    means = summary["overall"]
    rows = []
    for rule, title in RULES.items():
        acc, skill = means[f"acc{rule}"], means[f"skill{rule}"]
        rows.append(
            [
                title,
                number(acc.mean, 4),
                interval(acc.low, acc.high),
                number(skill.mean, 4),
                interval(skill.low, skill.high),
                str(acc.n),
            ]
        )
    header = ["", "Accuracy", "95% interval", "Skill", "95% interval", "Items"]
    brier, chance = means["brier"], means["chance"]
    return [
        table(header, rows),
        f"Chance {number(chance.mean, 4)}. Brier {number(brier.mean)} "
        f"(95% interval {interval(brier.low, brier.high)}), {brier.n} items.",
    ]


def _ties(summary: Mapping[str, Any]) -> list[str]:
    named = {"choice": "acc", "choice_norm": "acc_norm", "choice_pmi": "acc_pmi"}
    some = [f"{n} by {named[rule]}" for rule, n in summary["ties"].items() if n]
    if not some:
        return []
    return [f"Items whose best value several options share: {', '.join(some)}."]


def _categories(by_category: Mapping[str, Any]) -> list[str]:
    if len(by_category) < 2:
        return []
    rows = [
        [
            text(name),
            str(means["acc"].n),
            number(means["chance"].mean, 3),
            number(means["acc"].mean, 3),
            interval(means["acc"].low, means["acc"].high, 3),
            number(means["acc_norm"].mean, 3),
            number(means["acc_pmi"].mean, 3),
            number(means["brier"].mean, 4),
        ]
        for name, means in by_category.items()
    ]
    header = "Category|Items|Chance|acc|95% interval|acc_norm|acc_pmi|Brier".split("|")
    return ["## By category", table(header, rows)]


def _worst(items: Sequence[Mapping[str, Any]]) -> list[str]:
    good = [one for one in items if "error" not in one]
    return sections.items("Items", sorted(good, key=surety), heading, _body)


def surety(item: Mapping[str, Any]) -> tuple[bool, float]:
    """Wrong items first, then by the probability of the right option; then those without one."""
    if "gold" not in item:
        return True, 1.0 + item["probability"][item["choice"]]
    return item["acc"], item["probability"][item["gold"]]


def heading(item: Mapping[str, Any]) -> str:
    """An item's name, and the last line of its context."""
    lines = [line for line in item["context"].splitlines() if line.strip()]
    return f"{item['id']}: {lines[-1] if lines else ''}"


def _body(item: Mapping[str, Any]) -> str:
    columns = zip(*(item[name] for name in ("options", "sum_logprob", "n_bytes")), strict=True)
    pmi = item["pmi"] or [None] * len(item["options"])
    rows = [
        [
            text(option),
            _marks(item, k),
            number(total, 4),
            number(total / length, 4),
            number(pmi[k], 4),
            number(item["probability"][k], 4),
        ]
        for k, (option, total, length) in enumerate(columns)
    ]
    header = ["Option", "", "Sum, nats", "Per byte", "PMI", "Probability"]
    verdict = {True: "Right", False: "Wrong", None: "No gold option"}[item.get("acc")]
    context = item["context"]
    cut = f"… {context[-TAIL:]}" if len(context) > TAIL else context
    shown = f" Context: {text(cut, TAIL + 2)}" if cut.strip() else " No context."
    noise = sections.marked(item)
    right = ", right or wrong" if sections.marked(item, "acc_within_noise") else ""
    marks = f"{noise} option{right}" if noise else ""
    return f"{verdict}{marks}. {text(item['category'])}.{shown}\n\n{table(header, rows, left=2)}"


def _marks(item: Mapping[str, Any], k: int) -> str:
    chosen = [name for name in ("choice", "choice_norm", "choice_pmi") if item[name] == k]
    named = {"choice": "sum", "choice_norm": "byte", "choice_pmi": "PMI"}
    return ", ".join(["gold"] * (item.get("gold") == k) + [named[name] for name in chosen])
