"""Contexts of `probsem`."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import require_field
from jaxscore.systems.compare.systems import fields
from jaxscore.systems.compare.unit import Choice, System, Title, Unit, shown

NUMBERS = {
    "expected_score": "probability of the expected query among the queries",
    "expected_logp": "log-probability of the expected query, as `logp`",
}
CHOICES = {
    "passed": Title("the expected query has the highest score", right=True, statistic="logp"),
    "query": Title("query with the highest score", statistic="logp"),
}
NO_ANSWER = -1


def read(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
    """One unit per context."""
    text = require_field(dict(record), "text", str, "the context")
    queries = [str(one) for one in fields.listed(record, "queries")]
    expected = require_field(dict(record), "expected", int, "the context")
    if not NO_ANSWER <= expected < len(queries):
        raise InputError(f"expected is {expected}, and there are {len(queries)} queries")
    own = record.get("context_text")
    named: dict[str, Any] = {
        "id": None,
        "name": shown(f"context {record.get('context')}: {text if own is None else own}"),
        "text": (text, queries, expected),
    }
    if (error := fields.error(record)) is not None:
        yield Unit(**named, error=error)
        return
    logp = fields.finite(record, "logp", count=len(queries))
    scores = fields.finite(record, "scores", count=len(queries))
    n_tokens = fields.numbers(record, "n_tokens", count=len(queries))
    known = expected != NO_ANSWER
    within = fields.mark(record, "within_noise")
    choices = {
        # `within_noise` is of whether it passes, or of the query where none is expected.
        "query": Choice(queries[fields.best(scores)], fields.lead(logp), None if known else within)
    }
    numbers = {}
    if known:
        right = [k == expected for k in range(len(queries))]
        margin = fields.right_from_wrong(logp, right)
        choices["passed"] = Choice(fields.mark(record, "passed"), margin, within)
        numbers = {"expected_score": scores[expected], "expected_logp": logp[expected]}
    yield Unit(
        **named, n_tokens=sum(int(one or 0) for one in n_tokens), numbers=numbers, choices=choices
    )


SYSTEM = System(
    name="probsem",
    what="contexts",
    commands=("probsem",),
    read=read,
    numbers=NUMBERS,
    choices=CHOICES,
    fixed=("boundary", "answer_separator", "normalize", "temperature"),
)
