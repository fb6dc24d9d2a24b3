"""Numbers of each token and text under two models, and of all texts of a run together."""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.analysis.bootstrap import Estimate, estimate, estimate_of_groups
from jaxscore.analysis.text_measures import perplexity
from jaxscore.types.results import ScoredRequest

NUMBERS = (  # per token, float32 nats; also `same_argmax`
    "kl",
    "reverse_kl",
    "js",
    "cross_entropy",
    "logprob",
    "reference_logprob",
    "logprob_difference",
    "entropy",
    "reference_entropy",
)
PER_TOKEN = (*NUMBERS, "same_argmax")
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}
RATIOS = ("binoculars", "binoculars_upstream")  # per text


def values_of(scored: ScoredRequest) -> dict[str, np.ndarray]:
    """float32 [n_scored] of each name in `PER_TOKEN`, for the tokens that have a probability."""
    is_scored = scored.scored
    values = {name: measure[is_scored] for name, measure in scored.measures.items()}
    values |= {"logprob": scored.logprob[is_scored], "entropy": scored.entropy[is_scored]}
    # - sum p ln q = H(p) + KL(p || q)
    values["cross_entropy"] = values["entropy"] + values["kl"]
    values["logprob_difference"] = values["logprob"] - values["reference_logprob"]
    return {name: values[name] for name in PER_TOKEN}


def means_of(values: Mapping[str, np.ndarray], n_tokens: int) -> dict[str, Any]:
    """Means over the scored tokens of a text, computed in float64; None if there are none.

    `binoculars` is the score of arXiv 2401.12070 with M1 = p and M2 = q: the log-perplexity under p
    divided by the cross-entropy - sum p ln q. `binoculars_upstream` is what
    the authors' program computes with p as observer and q as performer: its numerator is the
    log-perplexity under q.
    """
    n = len(values["kl"])
    mean = {name: float(values[name].mean(dtype=np.float64)) if n else None for name in PER_TOKEN}
    cross = mean["cross_entropy"]

    def per_cross_entropy(logprob: float | None) -> float | None:
        """None also if both models are certain of every token."""
        return None if logprob is None or not cross else -logprob / cross

    return {
        **{f"mean_{name}": mean[name] for name in NUMBERS},
        "same_argmax_share": mean["same_argmax"],
        "perplexity": perplexity(mean["logprob"]),
        "reference_perplexity": perplexity(mean["reference_logprob"]),
        "binoculars": per_cross_entropy(mean["logprob"]),
        "binoculars_upstream": per_cross_entropy(mean["reference_logprob"]),
        "n_tokens": n_tokens,
        "n_scored": n,
    }


def kl_of_texts(
    records: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[int, Mapping[str, Any], np.ndarray | None]]:
    """Place, record and float32 [n_tokens] KL divergence of each text with a scored token.

    With `summary_only` a run has the values per token in the extras of its records, and a file
    does not: None.
    """
    extra = getattr(records, "extra", lambda index: None)
    for index, record in enumerate(records):
        if record.get("n_scored"):
            kl = (record if "kl" in record else extra(index) or {}).get("kl")
            yield index, record, None if kl is None else np.array(kl, np.float32)


def summarise(records: Sequence[Mapping[str, Any]], n_bootstrap: int, seed: int) -> dict[str, Any]:
    """Means over all scored tokens, and of the ratios over all texts, with intervals."""
    sums = {name: array("d") for name in PER_TOKEN}
    ratios = {name: array("d") for name in RATIOS}
    counts, every_kl = array("q"), array("f")
    for _, record, kl in kl_of_texts(records):
        counts.append(record["n_scored"])
        for name, column in sums.items():
            field = "same_argmax_share" if name == "same_argmax" else f"mean_{name}"
            column.append(float(record[field]) * record["n_scored"])
        for name, values in ratios.items():
            if record[name] is not None:
                values.append(float(record[name]))
        if kl is not None:
            every_kl.frombytes(kl[~np.isnan(kl)].tobytes())
    means = {
        name: estimate_of_groups(column, counts, n_bootstrap, seed) for name, column in sums.items()
    }
    return {
        **means,
        "perplexity": _perplexity(means["logprob"]),
        "reference_perplexity": _perplexity(means["reference_logprob"]),
        **{name: estimate(values, n_bootstrap, seed) for name, values in ratios.items()},
        "kl_percentiles": _percentiles(np.array(every_kl), sum(counts)),
    }


def _percentiles(kl: np.ndarray, n: int) -> dict[str, Any]:
    """Percentiles of the KL divergence of n tokens, in nats.

    None if not all are known, there are fewer than two, or less than one of them would lie above.
    """
    is_known = 1 < n == len(kl)
    # Compared in whole thousandths, since 1 - 99.9 / 100 is not exact.
    has = {name: is_known and n * round(1000 - 10 * q) >= 1000 for name, q in PERCENTILES.items()}
    values = np.percentile(kl, [*PERCENTILES.values()]) if is_known else np.zeros(len(PERCENTILES))
    return {
        "n": n,
        **{name: v if has[name] else None for name, v in zip(has, values.tolist(), strict=True)},
        "max": float(kl.max()) if is_known else None,
    }


def _perplexity(mean: Estimate) -> Estimate:
    """exp(-mean), with the interval of the mean in reverse order."""
    ends = [perplexity(value) for value in (mean.mean, mean.high, mean.low)]
    if any(value is not None and math.isinf(value) for value in ends):
        ends[1:] = [None, None]
    return Estimate(mean.n, *ends)
