"""Which option is chosen, by three rules, and whether it is right.

sum    the highest ln p(option | context)
norm   the highest ln p(option | context) per UTF-8 byte of the option
PMI    the highest ln p(option | context) - ln p(option | premise), its pointwise mutual
       information with the context (Holtzman et al. 2021, arXiv 2104.08315)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.analysis import margins
from jaxscore.analysis.brier import brier
from jaxscore.analysis.margins import Decisions
from jaxscore.analysis.skill import skill
from jaxscore.analysis.softmax import softmax
from jaxscore.engine.rounding_audit import Noise
from jaxscore.systems.choose.items import Item, Unread
from jaxscore.types.results import ScoredRequest

RULES = ("", "_norm", "_pmi")  # endings of `choice`, `acc` and `skill`
# Columns of a table of records: name -> its type, see `jaxscore.io.records`.
TABLE = {
    "context": "string",
    "options": "[string]",
    "category": "string",
    "sum_logprob": "[float64]",
    "n_tokens": "[int64]",
    "n_bytes": "[int64]",
    "pmi": "[float64]",
    "probability": "[float64]",
    **{f"choice{rule}": "int64" for rule in RULES},
    "gold": "int64",
    **{f"acc{rule}": "bool_" for rule in RULES},
    "chance": "float64",
    **{f"skill{rule}": "float64" for rule in RULES},
    "brier": "float64",
    "within_noise": "bool_",
    "acc_within_noise": "bool_",
    "truncated": "[int64]",
}
NOT_WHOLE = "it has no tokens of its own, so it has no probability"


def n_bytes(option: str) -> int:
    """UTF-8 bytes of an option without the blanks before it; with them where it has nothing else.

    lm-evaluation-harness writes the blank between context and option itself and does not count it.
    """
    return len((option.lstrip() or option).encode())


def complaint(one: ScoredRequest) -> str | None:
    """Why an option has no log-probability of all of its tokens; None where it has one."""
    if one.error is not None:
        return one.error
    if not one.n_tokens:
        return NOT_WHOLE
    if one.n_scored < one.n_tokens:
        return (
            "its first token has nothing before it and so no probability; give a context, or a "
            "model whose tokenizer writes a BOS"
        )
    return None


def unread(one: Unread) -> dict[str, Any]:
    """The record of an object that is no item."""
    return {"id": one.id, "error": one.error}


def record(
    item: Item, scored: Sequence[ScoredRequest], premises: Mapping[str, float | None]
) -> dict[str, Any]:
    """The record of an item; one that failed has `error` and no scores.

    Args:
        scored: one for each option.
        premises: option -> its log-probability after the premise, nats; None where it has none.
    """
    out: dict[str, Any] = {
        "id": item.id,
        "context": item.context,
        "options": list(item.options),
        "category": item.category,
    }
    for k, one in enumerate(scored):
        if (why := complaint(one)) is not None:
            return {**out, "error": f"option {k + 1}: {why}", **item.extra}
    sums = [float(one.sum_logprob or 0.0) for one in scored]
    lengths = [n_bytes(option) for option in item.options]
    before = [premises[option] for option in item.options]
    pmi = None
    if None not in before:
        pmi = [one - float(other or 0.0) for one, other in zip(sums, before, strict=True)]
    by_rule = {
        "": sums,
        "_norm": [total / length for total, length in zip(sums, lengths, strict=True)],
        "_pmi": pmi,
    }
    probability = softmax(sums)
    out |= {
        "sum_logprob": sums,
        "n_tokens": [one.n_tokens for one in scored],
        "n_bytes": lengths,
        "pmi": pmi,
        "probability": probability.tolist(),
    }
    # The first of equal ones, as argmax has it.
    chosen = {
        rule: None if values is None else int(np.argmax(values)) for rule, values in by_rule.items()
    }
    out |= {f"choice{rule}": k for rule, k in chosen.items()}
    if item.gold is not None:
        correct = right_options(item.options, item.gold)
        right = {rule: None if k is None else correct[k] for rule, k in chosen.items()}
        out |= {"gold": item.gold, **{f"acc{rule}": one for rule, one in right.items()}}
        out["chance"] = sum(correct) / len(sums)
        out |= {
            f"skill{rule}": None if one is None else skill(one, sum(correct), len(sums))
            for rule, one in right.items()
        }
        out["brier"] = brier(probability, truth(item.options, item.gold))
    if any(one.truncated for one in scored):
        out["truncated"] = [one.truncated for one in scored]
    return {**out, **item.extra}


def right_options(options: Sequence[str], gold: int) -> list[bool]:
    """Whether each option is right: its text is that of the gold option."""
    return [option == options[gold] for option in options]


def truth(options: Sequence[str], gold: int) -> list[float]:
    """Probability of each option if the answer is certain; equal options have equal parts of 1."""
    right = right_options(options, gold)
    return [one / sum(right) for one in right]


def n_ties(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Of each rule, the items whose best value several options have."""
    good = [one for one in records if "error" not in one]
    values = {
        "choice": [one["sum_logprob"] for one in good],
        "choice_norm": [
            [a / b for a, b in zip(one["sum_logprob"], one["n_bytes"], strict=True)] for one in good
        ],
        "choice_pmi": [one["pmi"] for one in good if one["pmi"] is not None],
    }
    return {rule: sum(margins.lead(one) == 0 for one in some) for rule, some in values.items()}


def mark(records: Sequence[dict[str, Any]], noise: Noise) -> list[Decisions]:
    """Add to each item what rounding could turn of the choice by the sum.

    `within_noise` is of which option is chosen, `acc_within_noise` of whether it is the right one,
    on items whose right option is known.
    """
    spread = noise.spread["sum_logprob"].largest
    good = [one for one in records if "error" not in one]
    for one in good:
        sums = one["sum_logprob"]
        one["within_noise"] = margins.within(margins.lead(sums), spread)
        if "gold" in one:
            right = right_options(one["options"], one["gold"])
            margin = margins.right_from_wrong(sums, right)
            one["acc_within_noise"] = margins.within(margin, spread)
    return [
        margins.count(what, "sum_logprob", spread, [one.get(field) for one in good])
        for what, field in (
            ("option with the highest sum", "within_noise"),
            ("whether it is the right one", "acc_within_noise"),
        )
    ]
