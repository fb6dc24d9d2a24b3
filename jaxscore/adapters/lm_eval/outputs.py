"""Outputs of a run besides its answers: details, results file, noise audit, cache owner, log."""

import json
import logging
import os
import random
import time
from collections import defaultdict
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance

from jaxscore.adapters.arguments import Arguments
from jaxscore.adapters.model import Answer, LoadedModel
from jaxscore.engine.provenance import commit
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.json_output import json_line
from jaxscore.plan.requests import TokenSequence
from jaxscore.scorer import Scorer
from jaxscore.text.encoder import TextEncoder
from jaxscore.version import VERSION

log = logging.getLogger("lm_eval.jaxscore")  # lm-evaluation-harness displays its child loggers

CACHE_KEY = "jaxscore: what decides the answers"
# Arguments that change answers and are not in `Scorer.about`.
CACHE_ARGUMENTS = (
    "tokenizer",
    "add_bos_token",
    "prefix_token_id",
    "max_gen_toks",
    "think_end_token",
)
AUDIT_SEED = 0

# (task, document) -> index of each choice -> its log-likelihood in nats
Choices = defaultdict[tuple[str, Any], dict[int, float]]


class Details:
    """Writes `details=FILE`: a JSON line of per-token numbers for every request.

    The file is complete after each window. An earlier file stays until the first line is written:
    a run whose answers are all in `--use_cache` writes none. Only the first process writes.

    Raises:
        InputError: the file cannot be created.
    """

    def __init__(self, path: Path, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._has_lines = False
        if not processes.is_first():
            path = Path(os.devnull)
        try:
            self._file = path.open("ab")
        except OSError as problem:
            raise InputError(f"details={path}: cannot be written ({problem.strerror})") from None

    def write(self, request: Instance, answers: list[Answer]) -> None:
        """Write a request; `answers` are those of its windows, in order."""
        ids = np.concatenate([answer.sequence.targets for answer in answers])
        columns = {
            name: np.concatenate([getattr(answer.scores, name) for answer in answers])
            for name in ("logprob", "entropy", "self_certainty", "greedy")
        }
        line: dict[str, Any] = {
            "task": request.task_name,
            "doc_id": request.doc_id,
            "choice": request.idx,
            "request_type": request.request_type,
            "token_ids": ids,
            "tokens": self._encoder.tokens(ids),
            **columns,
            "sum_logprob": float(columns["logprob"].sum(dtype=np.float64)),
        }
        if cut := max(answer.cut for answer in answers):
            line["truncated"] = cut
        if not self._has_lines:
            self._file.truncate(0)
            self._has_lines = True
        self._file.write(json_line(line))

    def flush(self) -> None:
        """Write buffered lines to the file."""
        self._file.flush()

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._file.close()


def model_info(model: LoadedModel, args: Arguments, noise: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the model for the results file: hf's keys, and jaxscore's under `jaxscore`."""
    scorer = model.scorer
    is_local = model.folder is None or args.pretrained == "demo" or Path(args.pretrained).exists()
    if is_local:
        sha = scorer.about.get("model", "")
    else:
        cache = None if args.cache_dir is None else Path(args.cache_dir)
        sha = commit(args.pretrained, args.revision, cache)
    facts = scorer.facts()
    return {
        "model_num_parameters": scorer.engine.planner.facts.n_parameters,
        "model_dtype": scorer.model.dtype,
        "model_revision": args.revision or "main",
        "model_sha": sha or "",
        "jaxscore": {
            "version": VERSION,
            **{name: scorer.about.get(name) for name in ("jax", "device_kind", "reproducible")},
            "implementation": scorer.model.implementation,
            "max_length": model.length,
            "tokens_given": facts["counts"]["tokens_given"],
            "tokens_computed": facts["counts"]["tokens_unique"],
            "plan": facts["plan"],
            **({"stored_as": facts["stored_as"]} if "stored_as" in facts else {}),
            **({"noise": noise} if noise else {}),
        },
        **({"peft_sha": args.peft} if args.peft else {}),
    }


def claim_cache(cache: MutableMapping[str, Any], about: dict[str, Any]) -> None:
    """Store the model's identity in a new `--use_cache` file, or check that of an old one.

    lm-evaluation-harness keys its cache only by the request.

    Args:
        about: the settings that change answers, as JSON; empty if unknown.

    Raises:
        InputError: the file has answers of another model, or the model is unknown.
    """
    advice = "give --use_cache another name, or remove the file"
    if not about:
        raise InputError(
            "--use_cache: this scorer was created from parameters, so a cache cannot name the "
            "model of its answers; leave it out"
        )
    record = json.dumps(about, sort_keys=True)
    stored = cache.get(CACHE_KEY)
    if stored is None and len(cache):
        raise InputError(f"--use_cache: the file has answers of another kind of model; {advice}")
    if stored is None:
        cache[CACHE_KEY] = record
    elif stored != record:
        then = json.loads(stored)
        changes = ", ".join(
            f"{name} {then.get(name)!r} is now {about.get(name)!r}"
            for name in {**then, **about}
            if then.get(name) != about.get(name)
        )
        raise InputError(
            f"--use_cache: the file has answers of another model ({changes}); {advice}"
        )


def audit_noise(
    scorer: Scorer,
    n: int,
    requests: Sequence[Instance],
    sequences: Sequence[TokenSequence],
    totals: Sequence[float],
) -> dict[str, Any]:
    """Score some requests again in other layouts, see `jaxscore.shell.rounding_audit`.

    A document is undecided if its two best choices are closer than twice the largest spread.

    Args:
        n: number of requests to draw and score again.
        requests, sequences, totals: the aligned values of one call; totals in nats.

    Returns:
        JSON: `requests` scored again, `layouts`, `largest_spread` of a log-likelihood in nats,
        and per task the `documents` with several choices and how many are `undecided`.
    """
    indices = random.Random(AUDIT_SEED).sample(range(len(requests)), min(n, len(requests)))
    by_layout = [[totals[k] for k in indices]]
    layouts = scorer.other_layouts()
    for other in layouts.values():
        scores = other.score_sequences([sequences[k] for k in indices])
        by_layout.append([float(tokens.logprob.sum(dtype=np.float64)) for tokens in scores])
    largest = float(np.ptp(np.array(by_layout), axis=0).max(initial=0.0))
    return {
        "requests": len(indices),
        "layouts": ["as in the run", *layouts],
        "largest_spread": largest,
        "tasks": _count_undecided(requests, totals, 2 * largest),
    }


def _count_undecided(
    requests: Sequence[Instance], totals: Sequence[float], distance: float
) -> dict[str, dict[str, int]]:
    with_context: Choices = defaultdict(dict)
    without: Choices = defaultdict(dict)
    for request, total in zip(requests, totals, strict=True):
        choices = with_context if request.args[0] else without
        choices[str(request.task_name), request.doc_id][request.idx] = total
    by_task: dict[str, dict[str, int]] = {}
    # A task with `acc_mutual_info` also requests each choice without its context.
    for (task, _), of_choice in (without | with_context).items():
        if len(of_choice) > 1:
            second, best = sorted(of_choice.values())[-2:]
            counts = by_task.setdefault(task, {"documents": 0, "undecided": 0})
            counts["documents"] += 1
            counts["undecided"] += best - second <= distance
    return by_task


class CallLog:
    """Context of one call: shows the progress bar, and logs time and token counts at the end.

    Args:
        quiet: True hides the bar.
        unit: name of the units of work, plural.
        n: amount of work.
    """

    def __init__(self, scorer: Scorer, quiet: bool, unit: str, n: int) -> None:
        self._scorer, self._quiet, self._unit, self._n = scorer, quiet, unit, n

    def __enter__(self) -> None:
        self._progress = self._scorer.progress
        self._given, self._computed = self._counts()
        self._started = time.perf_counter()
        self._scorer.progress = not self._quiet

    def __exit__(self, problem_type: object, problem: object, trace: object) -> None:
        self._scorer.progress = self._progress
        n_given, n_computed = self._counts()
        n_given, n_computed = n_given - self._given, n_computed - self._computed
        if problem is None and n_computed:
            log.info(
                "%d %s in %.1f s: %d tokens given, %d computed, %.1f times fewer",
                self._n,
                self._unit,
                time.perf_counter() - self._started,
                n_given,
                n_computed,
                n_given / n_computed,
            )

    def _counts(self) -> tuple[int, int]:
        counts = self._scorer.facts()["counts"]
        return counts["tokens_given"], counts["tokens_unique"]
