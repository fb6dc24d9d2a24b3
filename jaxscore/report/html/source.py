"""What a page is made of."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.types.results import Strip


@dataclasses.dataclass(frozen=True)
class Source:
    """A finished run.

    Attributes:
        system: the command.
        record: what its JSON file holds, `Estimate`s still whole.
        headline: the result in one line.
        n_items: how many items there were, failed ones included.
        strips: of each item of the record's list of items; empty where no tokens are known.
        vocabulary: columns of the model's distribution; None where it is not known.
        results: one record per item, where the evaluation keeps them.
        items: what the page shows of items that the record does not hold, since they were taken
            as they came; None where it holds them.
    """

    system: str
    record: Mapping[str, Any]
    headline: str
    n_items: int
    strips: Sequence[Sequence[Strip]] = ()
    vocabulary: int | None = None
    results: Sequence[Mapping[str, Any]] = ()
    items: Any = None
