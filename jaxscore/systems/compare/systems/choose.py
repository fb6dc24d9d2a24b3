"""Items of `choose`: multiple choice by log-probabilities."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.choose.choices import right_options
from jaxscore.systems.compare.systems import fields
from jaxscore.systems.compare.unit import Choice, System, Title, Unit, shown

NUMBERS = {"gold_logprob": "log-probability of the right option, nats"}
HOW = {"": "log-probability", "_norm": "log-probability per byte", "_pmi": "PMI"}
STATISTIC = "log-probability"
CHOICES = {
    **{
        f"acc{end}": Title(f"the option chosen by {how} is right", right=True,
                           statistic=STATISTIC if not end else None)
        for end, how in HOW.items()
    },
    **{
        f"choice{end}": Title(f"option chosen by {how}", statistic=STATISTIC if not end else None)
        for end, how in HOW.items()
    },
}  # fmt: skip


def read(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
    """One unit per item."""
    id = fields.name(record, "id")
    if (error := fields.error(record)) is not None:
        yield Unit(id=id, name=shown(id), error=error)
        return
    options = [str(one) for one in fields.listed(record, "options")]
    logprob = fields.finite(record, "sum_logprob", count=len(options))
    gold = _place(record, "gold", len(options))
    choices = {}
    for end in HOW:
        chosen = _place(record, f"choice{end}", len(options))
        if chosen is not None:
            margin = None if end else fields.lead(logprob)
            within = None if end else fields.mark(record, "within_noise")
            choices[f"choice{end}"] = Choice(options[chosen], margin, within)
        if (right := fields.mark(record, f"acc{end}")) is not None:
            apart = None
            if gold is not None and not end:
                apart = fields.right_from_wrong(logprob, right_options(options, gold))
            within = None if end else fields.mark(record, "acc_within_noise")
            choices[f"acc{end}"] = Choice(right, apart, within)
    yield Unit(
        id=id,
        name=shown(id),
        text=(record.get("context"), options, gold),
        numbers={} if gold is None else {"gold_logprob": logprob[gold]},
        choices=choices,
    )


def _place(record: Mapping[str, Any], field: str, n: int) -> int | None:
    """The place of an option, from 0; None where it is null or absent."""
    value = record.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n:
        raise InputError(f'field "{field}" is {value!r}, expected the place of one of {n} options')
    return value


SYSTEM = System(
    name="choose",
    what="items",
    commands=("choose",),
    read=read,
    numbers=NUMBERS,
    choices=CHOICES,
)
