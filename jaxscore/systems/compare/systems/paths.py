"""Questions of `paths`, path by path."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import require_field
from jaxscore.systems.compare.systems import fields
from jaxscore.systems.compare.unit import Choice, System, Title, Unit, shown

NUMBERS = {
    "absolute_improvement": "absolute improvement of the probability",
    "relative_improvement": "relative improvement",
    "baseline_prob": "probability without the path",
    "retrieved_prob": "probability with the path",
}
CHOICES = {
    "improves": Title(
        "the path raises the probability", right=True, statistic="|log(with / without)|"
    )
}


def read(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
    """One unit per path; those of one question are a group."""
    id, question = (
        fields.name(record, "id"),
        require_field(dict(record), "question", str, "the item"),
    )
    for one in fields.listed(record, "path_evaluations"):
        if not isinstance(one, dict):
            raise InputError('field "path_evaluations" has an entry that is no object')
        path = " -> ".join(map(str, fields.listed(one, "path")))
        named: dict[str, Any] = {
            "id": f"{id}: {path}",
            "name": shown(f"{id}: {path}"),
            "text": (question, one["path"]),
            "group": place,
        }
        if (error := fields.error(one)) is not None:
            yield Unit(**named, error=error)
            continue
        found = fields.known(one, tuple(NUMBERS))
        yield Unit(**named, numbers=found, choices={"improves": _improves(one, found)})


def _improves(one: Mapping[str, Any], found: Mapping[str, float | None]) -> Choice:
    gain = found.get("absolute_improvement")
    if gain is None:
        return Choice(None)
    with_path, without = found.get("retrieved_prob") or 0.0, found.get("baseline_prob") or 0.0
    margin = fields.lead(fields.logs([with_path, without]))
    return Choice(gain > 0, margin, fields.mark(one, "within_noise"))


SYSTEM = System(
    name="paths",
    what="paths",
    commands=("paths",),
    read=read,
    numbers=NUMBERS,
    choices=CHOICES,
    fixed=("boundary", "answer_separator"),
)
