"""Report of `choose`."""

from collections.abc import Mapping
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import sections
from jaxscore.report.document import (
    Card,
    Chart,
    Column,
    Document,
    Field,
    Items,
    Row,
    Rows,
    Section,
    Source,
    n_listed,
)
from jaxscore.report.html.chart_parts import by_category, calibrated, means
from jaxscore.report.markdown import NOTHING, interval, number, table, text
from jaxscore.report.prompts import question_of
from jaxscore.report.sections import (
    closing,
    estimate_card,
    model_of,
    section,
    three,
    with_failures,
    within_noise,
    worst_first,
    yes_no,
)
from jaxscore.systems.choose.item import LETTERS

RULES = {
    "acc": "Highest log-probability (acc)",
    "acc_norm": "Highest per byte (acc_norm)",
    "acc_pmi": "Highest PMI (acc_pmi)",
    "acc_token": "Highest per token (acc_token)",
    "acc_calibrated": "Highest calibrated (acc_calibrated)",
}
INTRODUCTION = """\
Each option is scored whole after its context. **acc** takes the option with the highest sum of
log-probability, **acc_norm** the one with the highest sum per UTF-8 byte of the option without the
blanks before it, **acc_pmi** the one that the context raises most above its log-probability after
the premise {premise}, **acc_token** the one with the highest sum per token.{calibrated} Of equal
options the first is taken. **Skill**: (observed - chance) / (1 -
chance), with 1 / number of options as chance. **Brier**: mean over an item's options of
(probability - truth)², with a softmax over the sums as probabilities. The interval of a share is
Wilson's 95% score interval; the others hold 95% of {n_bootstrap} bootstrap means over the items. A
dash stands for fewer than two items, or equal values."""
CALIBRATED = (
    " **acc_calibrated** takes the one whose probability is highest after division by its mean "
    "probability after the texts of `--calibrate`."
)
CHANCE = ("chance", "are what a choice at random would get")


def report(source: Source) -> Document:
    """The report of a run."""
    record = source.record
    summary, settings = record["summary"], record["settings"]
    has_gold = summary["n_with_gold"] > 0
    introduction = INTRODUCTION.format(
        premise=text(repr(settings["pmi_context"])),
        calibrated=CALIBRATED if settings["calibrate"] else "",
        n_bootstrap=settings["n_bootstrap"],
    )
    return Document(
        system="choose",
        title=f"Multiple choice: {model_of(record)}",
        verdict=sections.verdict(source),
        cards=_cards(record) if has_gold else [],
        charts=_charts(record) if has_gold else [],
        items=_items(source),
        sections=[*(_tables(record) if has_gold else []), *closing(record, "items")],
        about=[
            " ".join(introduction.split()),
            *_ties(summary["ties"]),
            *sections.answer_blank(record),
            *sections.boundary(settings["boundary"], record["boundary_audit"], "options"),
        ],
    )


def _cards(record: Mapping[str, Any]) -> list[Card]:
    overall: Mapping[str, Estimate] = record["summary"]["overall"]
    return [
        *(
            estimate_card(title, overall[rule], "items")
            for rule, title in RULES.items()
            if rule in overall
        ),
        estimate_card("Skill, by acc", overall["skill"], "items"),
        estimate_card("Brier", overall["brier"], "items"),
        estimate_card("Bits per byte of the right option", overall["gold_bpb"], "items"),
        *(
            [estimate_card("Orders that change the answer", overall["order_changes"], "items")]
            if "order_changes" in overall
            else []
        ),
        Card("Chance", three(overall["chance"].mean), "1 / number of options"),
        Card("Expected calibration error", three(record["calibration"]["ece"])),
    ]


def _charts(record: Mapping[str, Any]) -> list[Chart]:
    summary = record["summary"]
    overall = summary["overall"]
    rules = [(rule, overall[rule], overall["chance"].mean) for rule in RULES if rule in overall]
    charts = means("Accuracy by rule", rules, "items", reference=CHANCE[1])
    if record["calibration"]["bins"]:
        title = "Reliability of the options' probabilities"
        charts += calibrated(title, record["calibration"], "options")
    if len(summary["by_category"]) > 1:
        charts += by_category(summary, "acc", "acc by category", "items", CHANCE)
    return charts


def _ties(ties: Mapping[str, int]) -> list[str]:
    counts = [f"{n} by {rule.replace('choice', 'acc')}" for rule, n in ties.items() if n]
    if not counts:
        return []
    return [f"Items whose best value several options share: {', '.join(counts)}."]


def _tables(record: Mapping[str, Any]) -> list[Section]:
    """Accuracies by category, and the reliability table."""
    by_category = record["summary"]["by_category"]
    header = "Category|Items|Chance|acc|95% interval|acc_norm|acc_pmi|Brier".split("|")
    rows = [
        [
            text(category),
            str(means["acc"].n),
            number(means["chance"].mean, 3),
            number(means["acc"].mean, 3),
            interval(means["acc"].low, means["acc"].high, 3),
            number(means["acc_norm"].mean, 3),
            number(means["acc_pmi"].mean, 3),
            number(means["brier"].mean, 4),
        ]
        for category, means in by_category.items()
    ]
    return [
        *([Section("By category", [table(header, rows)])] if len(rows) > 1 else []),
        *section(sections.calibration(record["calibration"], "options")),
        *_places(record.get("places") or {}),
    ]


def _places(places: Mapping[str, Any]) -> list[Section]:
    """Return a table of the mean probability of each place, by the number of options."""
    if not places:
        return []
    letters = LETTERS[: max(map(int, places))]
    rows = [
        [n, str(means["n_items"]), number(1 / int(n), 3)]
        + [number(p, 3) for p in means["probability"]]
        + [NOTHING] * (len(letters) - int(n))
        for n, means in places.items()
    ]
    return [
        Section(
            "Mean probability of each place", [table(["Options", "Items", "1/n", *letters], rows)]
        )
    ]


def _items(source: Source) -> Items:
    every = source.items
    order = worst_first(every, _surety)
    items = [every[index] for index in order[: n_listed(len(order))]]
    best = [item["probability"][item["choice"]] for item in items]
    right = [
        None if item.get("gold") is None else item["probability"][item["gold"]] for item in items
    ]
    listed = Items(
        units="items",
        order="wrong ones first, the least probable right option first",
        n_all=source.n_items,
        n_beyond=len(order) - len(items),
        columns=[
            Column("Item", "text", [_heading(item) for item in items]),
            Column("Category", "category", [item["category"] for item in items]),
            *(
                Column(rule, "flag", [yes_no(item.get(rule)) for item in items])
                for rule in RULES
                if rule in source.record["summary"]["overall"]
            ),
            Column("Right option", "number", [number(p, 4) for p in right], "its probability"),
            Column("Chosen", "text", [item["options"][item["choice"]] for item in items]),
            Column(
                "Margin", "number", [number(item.get("margin"), 4) for item in items], "of sums"
            ),
            Column(
                "Its probability",
                "number",
                [number(p, 4) + sections.marked(item) for p, item in zip(best, items, strict=True)],
                "of the option with the highest sum; ≈: rounding could change which one it is",
            ),
        ],
        fields=[Field("Context", [item.get("prompt", item["context"]) for item in items])],
        tables=[
            Rows(
                "Options",
                ["Option", "Sum, nats", "Per byte", "PMI", "Probability"],
                "gold",
                [_options(item) for item in items],
            )
        ],
        within_noise=within_noise(source.record, items),
    )
    return with_failures(listed, source.record["failures"])


def _surety(item: Mapping[str, Any]) -> tuple[bool, float]:
    """Wrong items first, then by the probability of the right option; then those without one."""
    if item.get("gold") is None:
        return True, 1.0 + item["probability"][item["choice"]]
    return item["acc"], item["probability"][item["gold"]]


def _heading(item: Mapping[str, Any]) -> str:
    """An item's id and its question."""
    return f"{item['id']}: {question_of(item['context'])}"


def _options(item: Mapping[str, Any]) -> list[Row]:
    n = len(item["options"])
    pmi = item["pmi"] or [None] * n
    return [
        Row(
            [
                item["options"][k],
                number(item["sum_logprob"][k], 4),
                number(item["sum_logprob"][k] / item["n_bytes"][k], 4),
                number(pmi[k], 4),
                number(item["probability"][k], 4),
            ],
            item["probability"][k],
            item.get("gold") == k,
        )
        for k in range(n)
    ]
