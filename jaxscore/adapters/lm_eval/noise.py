"""`audit_noise=N`: how far rounding moves log-likelihoods, and which decisions that could change.

What stands beside a request decides the last bits of its number, see
`jaxscore.engine.rounding_audit`. A document of a task is undecided where its two best choices are
nearer than twice the largest spread.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance

from jaxscore.plan.requests import TokenSequence
from jaxscore.scorer import Scorer

SEED = 0

# (task, document) -> place of each choice -> its log-likelihood in nats
Choices = defaultdict[tuple[str, Any], dict[int, float]]


def audit(
    scorer: Scorer,
    n: int,
    requests: Sequence[Instance],
    sequences: Sequence[TokenSequence],
    totals: Sequence[float],
) -> dict[str, Any]:
    """Compute some requests again in other layouts.

    Args:
        n: requests that are computed again, drawn from all.
        requests, sequences, totals: of one call, aligned; totals in nats.

    Returns:
        As JSON has it: `requests` computed again, `layouts`, `largest_spread` of a
        log-likelihood in nats, and by task `documents` with several choices and how many of them
        are `undecided`.
    """
    places = random.Random(SEED).sample(range(len(requests)), min(n, len(requests)))
    found = [[totals[k] for k in places]]
    layouts = scorer.other_layouts()
    for other in layouts.values():
        scores = other.score_sequences([sequences[k] for k in places])
        found.append([float(one.logprob.sum(dtype=np.float64)) for one in scores])
    spread = np.ptp(np.array(found), axis=0)
    largest = float(spread.max(initial=0.0))
    return {
        "requests": len(places),
        "layouts": ["as in the run", *layouts],
        "largest_spread": largest,
        "tasks": _undecided(requests, totals, 2 * largest),
    }


def _undecided(
    requests: Sequence[Instance], totals: Sequence[float], apart: float
) -> dict[str, dict[str, int]]:
    with_context: Choices = defaultdict(dict)
    without: Choices = defaultdict(dict)
    for request, total in zip(requests, totals, strict=True):
        choices = with_context if request.args[0] else without
        choices[str(request.task_name), request.doc_id][request.idx] = total
    out: dict[str, dict[str, int]] = {}
    # A task with `acc_mutual_info` asks for each choice without its context too.
    for (task, _), of_choice in (without | with_context).items():
        if len(of_choice) > 1:
            second, best = sorted(of_choice.values())[-2:]
            counts = out.setdefault(task, {"documents": 0, "undecided": 0})
            counts["documents"] += 1
            counts["undecided"] += best - second <= apart
    return out
