"""Documents of `perplexity`."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxscore.systems.compare.systems import fields
from jaxscore.systems.compare.unit import System, Unit

NUMBERS = {
    "bits_per_byte": "bits per byte, mean over documents",
    "bits_per_word": "bits per word, mean over documents",
    "mean_logprob": "mean log-probability, nats per token, mean over documents",
    "sum_logprob": "log-probability of a document, nats",
}


def read(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
    """One unit per document."""
    yield fields.text_unit(record, tuple(NUMBERS), record.get("text_sha256"))


SYSTEM = System(
    name="perplexity",
    what="documents",
    commands=("perplexity",),
    read=read,
    numbers=NUMBERS,
    choices={},
    fixed=(),
)
