"""Lines of `score`."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxscore.systems.compare.systems import fields
from jaxscore.systems.compare.unit import System, Unit

NUMBERS = {
    "sum_logprob": "log-probability of a text, nats",
    "mean_logprob": "mean log-probability of a text, nats per token",
    "mean_entropy": "mean entropy, nats per token",
    "mean_self_certainty": "mean self-certainty, nats per token",
    "min_k": "Min-K%, nats",
    "min_k_pp": "Min-K%++",
    "fast_detect": "Fast-DetectGPT",
}


def read(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
    """One unit per line."""
    yield fields.text_unit(record, tuple(NUMBERS))


SYSTEM = System(
    name="score",
    what="texts",
    commands=("score",),
    read=read,
    numbers=NUMBERS,
    choices={},
    fixed=("boundary", "min_k", "log_base"),
    input_fields=("context", "continuation"),
)
