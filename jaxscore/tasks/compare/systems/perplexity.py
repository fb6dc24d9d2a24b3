"""Documents of `perplexity`."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxscore.tasks.compare.systems import fields
from jaxscore.tasks.compare.unit import System, Unit, shown

NUMBERS = {
    "bits_per_byte": "bits per byte, mean over documents",
    "bits_per_word": "bits per word, mean over documents",
    "mean_logprob": "mean log-probability, nats per token, mean over documents",
    "sum_logprob": "log-probability of a document, nats",
}


def read(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
    """One unit per document."""
    id = fields.name(record, "id")
    if (error := fields.error(record)) is not None:
        yield Unit(id=id, name=shown(id), error=error)
        return
    n_scored = fields.number(record.get("n_scored"), "n_scored")
    yield Unit(
        id=id,
        name=shown(id),
        text=record.get("text_sha256"),
        n_tokens=None if n_scored is None else int(n_scored),
        numbers=fields.known(record, tuple(NUMBERS)),
    )


SYSTEM = System(
    name="perplexity",
    what="documents",
    commands=("perplexity",),
    read=read,
    numbers=NUMBERS,
    choices={},
    fixed=(),
)
