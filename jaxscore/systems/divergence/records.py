"""One text under two models: its numbers per token, and what they come to."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxscore.analysis.perplexity import perplexity
from jaxscore.systems.score.requests_file import failed
from jaxscore.types.results import ScoredRequest

# Of every token, float32 nats; `same_argmax` stands beside them.
NUMBERS = (
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
SUMS = (
    *(f"mean_{name}" for name in NUMBERS),
    "same_argmax_share",
    "perplexity",
    "reference_perplexity",
    "binoculars",
    "binoculars_upstream",
    "n_tokens",
    "n_scored",
)
RESULT_FIELDS = frozenset({"token_ids", "tokens", *PER_TOKEN, *SUMS, "truncated", "error"})


def columns(summary_only: bool) -> dict[str, str]:
    """Those of a table of results: name -> its type, see `jaxscore.io.records`."""
    arrays = {"token_ids": "[int32]", "tokens": "[string]"}
    arrays |= dict.fromkeys(NUMBERS, "[float32]") | {"same_argmax": "[bool_]"}
    counts = {"n_tokens", "n_scored"}
    numbers = {name: "int64" if name in counts else "float64" for name in SUMS}
    return ({} if summary_only else arrays) | numbers | {"truncated": "int64"}


def values_of(scored: ScoredRequest) -> dict[str, np.ndarray]:
    """float32 [n_scored] of each name in `PER_TOKEN`, of the tokens that have a probability."""
    known = scored.scored
    own = {name: values[known] for name, values in scored.measures.items()}
    own |= {"logprob": scored.logprob[known], "entropy": scored.entropy[known]}
    # - sum p ln q = H(p) + KL(p || q)
    own["cross_entropy"] = own["entropy"] + own["kl"]
    own["logprob_difference"] = own["logprob"] - own["reference_logprob"]
    return {name: own[name] for name in PER_TOKEN}


def record(
    scored: ScoredRequest,
    values: Mapping[str, np.ndarray],
    extra: Mapping[str, Any],
    *,
    summary_only: bool,
    arrays: bool,
) -> dict[str, Any]:
    """One line of the output; `extra` fields of the input come last.

    Args:
        values: `values_of` it; nothing where it failed.
        arrays: leave NumPy arrays, in which NaN stands for null, as `json_line` takes them.
    """
    if scored.error:
        return failed(scored.id, scored.error, extra)
    out: dict[str, Any] = {"id": scored.id}
    if not summary_only:
        known = scored.scored
        every: dict[str, Any] = {name: _aligned(values[name], known) for name in NUMBERS}
        same: Any = _aligned(values["same_argmax"], known)
        if not arrays:
            every = {name: _listed(one) for name, one in every.items()}
        out |= {"token_ids": scored.token_ids if arrays else scored.token_ids.tolist()}
        out |= {"tokens": scored.tokens, **every}
        out["same_argmax"] = [None if one != one else bool(one) for one in same.tolist()]
    out |= sums(values, scored.n_tokens)
    if scored.truncated:
        out["truncated"] = scored.truncated
    return {**out, **extra}


def sums(values: Mapping[str, np.ndarray], n_tokens: int) -> dict[str, Any]:
    """Means over the scored tokens, computed in float64; None where there are none.

    `binoculars` is the score of arXiv 2401.12070 with M1 = p and M2 = q: the log-perplexity under p
    divided by the cross-entropy - sum p ln q. `binoculars_upstream` is what
    the authors' program computes with p as observer and q as performer: its numerator is the
    log-perplexity under q.
    """
    n = len(values["kl"])
    mean = {name: float(values[name].mean(dtype=np.float64)) if n else None for name in PER_TOKEN}
    cross = mean["cross_entropy"]
    of_p, of_q = mean["logprob"], mean["reference_logprob"]
    return {
        **{f"mean_{name}": mean[name] for name in NUMBERS},
        "same_argmax_share": mean["same_argmax"],
        "perplexity": perplexity(of_p),
        "reference_perplexity": perplexity(of_q),
        "binoculars": _ratio(of_p, cross),
        "binoculars_upstream": _ratio(of_q, cross),
        "n_tokens": n_tokens,
        "n_scored": n,
    }


def _ratio(mean_logprob: float | None, cross_entropy: float | None) -> float | None:
    """None also where both models are certain of every token."""
    return None if mean_logprob is None or not cross_entropy else -mean_logprob / cross_entropy


def _aligned(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """With NaN for tokens without a probability."""
    out = np.full(len(known), np.nan, np.float32)
    out[known] = values
    return out


def _listed(values: np.ndarray) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
