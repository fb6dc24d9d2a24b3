"""How well a retriever ranks, as trec_eval counts it (github.com/usnistgov/trec_eval)."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Documents from best to worst: by score, then by id in descending order of its bytes.

    Scores are compared in single precision, as trec_eval holds them, so that two which differ
    only beyond it are a tie. The rank that a run states is not read.
    """
    with np.errstate(over="ignore"):  # beyond float32 is infinity there too
        single = np.array(list(scores.values()), np.float64).astype(np.float32).tolist()
    order = sorted(
        zip(single, (name.encode("utf-8") for name in scores), scores, strict=True), reverse=True
    )
    return [name for _, _, name in order]


def precision(ranking: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Share of the first k places that hold a relevant document; an empty place holds none."""
    return sum(name in relevant for name in ranking[:k]) / k


def recall(ranking: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Share of the relevant documents, one at least, that are among the first k."""
    return sum(name in relevant for name in ranking[:k]) / len(relevant)
