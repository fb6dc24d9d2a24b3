"""Outputs of a run besides its answers: details, results file, audit, progress, cache owner."""

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
from jaxscore.adapters.model import Made
from jaxscore.adapters.scoring import Answer
from jaxscore.engine.provenance import commit
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.json_output import json_line
from jaxscore.plan.requests import TokenSequence
from jaxscore.scorer import Scorer
from jaxscore.text.encoder import TextEncoder
from jaxscore.version import VERSION


class Details:
    """Writes the file, which is whole after each window.

    What an earlier run wrote stays until the first line: a run whose answers are all in
    `--use_cache` writes none. Of several processes the first one writes.
    """

    def __init__(self, path: Path, encoder: TextEncoder) -> None:
        """Raises:
        InputError: the file cannot be made.
        """
        self._encoder = encoder
        self._begun = False
        if not processes.is_first():
            path = Path(os.devnull)
        try:
            self._file = path.open("ab")
        except OSError as problem:
            raise InputError(f"details={path}: cannot be written ({problem.strerror})") from None

    def write(self, request: Instance, answers: list[Answer]) -> None:
        """One request: of a text in several windows the answers are one after another."""
        ids = np.concatenate([one.sequence.targets for one in answers])
        columns = {
            name: np.concatenate([getattr(one.scores, name) for one in answers])
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
        if cut := max(one.cut for one in answers):
            line["truncated"] = cut
        if not self._begun:
            self._file.truncate(0)
            self._begun = True
        self._file.write(json_line(line))

    def flush(self) -> None:
        """See that all lines are in the file."""
        self._file.flush()

    def close(self) -> None:
        """Nothing is written after it; also twice."""
        self._file.close()


def info(made: Made, args: Arguments, noise: list[dict[str, Any]]) -> dict[str, Any]:
    """hf's keys of a model in the results file, and ours under `jaxscore`."""
    scorer = made.scorer
    local = made.folder is None or args.pretrained == "demo" or Path(args.pretrained).exists()
    cache = None if args.cache_dir is None else Path(args.cache_dir)
    sha = scorer.about.get("model", "") if local else commit(args.pretrained, args.revision, cache)
    facts = scorer.facts()
    out: dict[str, Any] = {
        "model_num_parameters": scorer.engine.planner.facts.n_parameters,
        "model_dtype": scorer.model.dtype,
        "model_revision": args.revision or "main",
        "model_sha": sha or "",
        "jaxscore": {
            "version": VERSION,
            **{name: scorer.about.get(name) for name in ("jax", "device_kind", "reproducible")},
            "implementation": scorer.model.implementation,
            "max_length": made.length,
            "tokens_given": facts["counts"]["tokens_given"],
            "tokens_computed": facts["counts"]["tokens_unique"],
            "plan": facts["plan"],
            **({"stored_as": facts["stored_as"]} if "stored_as" in facts else {}),
            **({"noise": noise} if noise else {}),
        },
    }
    if args.peft:
        out["peft_sha"] = args.peft
    return out


KEY = "jaxscore: what decides the answers"
# Arguments that change answers and are no part of `Scorer.about`
DECIDE = (
    "tokenizer",
    "add_bos_token",
    "prefix_token_id",
    "max_gen_toks",
    "think_end_token",
)


def claim(kept: MutableMapping[str, Any], about: dict[str, Any]) -> None:
    """Write down what decides the answers, or see that a file with answers says the same.

    Args:
        kept: the cache, by key.
        about: as JSON has it; empty where it is not known.

    Raises:
        InputError: the file has answers of another model, or of one that nobody knows.
    """
    advice = "give --use_cache another name, or remove the file"
    if not about:
        raise InputError(
            "--use_cache: this scorer was made from parameters, so nobody can tell whose answers "
            "a cache has; leave it out"
        )
    own = json.dumps(about, sort_keys=True)
    found = kept.get(KEY)
    if found is None and len(kept):
        raise InputError(f"--use_cache: the file has answers of another kind of model; {advice}")
    if found is None:
        kept[KEY] = own
        return
    if found != own:
        then = json.loads(found)
        names = [name for name in {**then, **about} if then.get(name) != about.get(name)]
        told = ", ".join(f"{name} {then.get(name)!r} is now {about.get(name)!r}" for name in names)
        raise InputError(f"--use_cache: the file has answers of another model ({told}); {advice}")


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


log = logging.getLogger("lm_eval.jaxscore")  # lm-evaluation-harness shows what is below its own


class Shown:
    """Around one call."""

    def __init__(self, scorer: Scorer, quiet: bool, what: str, n: int) -> None:
        """`n` of `what` are computed; `quiet` shows no bar."""
        self._scorer, self._quiet, self._what, self._n = scorer, quiet, what, n

    def __enter__(self) -> None:
        self._before = self._scorer.progress
        self._given, self._computed = self._counts()
        self._started = time.perf_counter()
        self._scorer.progress = not self._quiet

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self._scorer.progress = self._before
        given, computed = self._counts()
        given, computed = given - self._given, computed - self._computed
        if problem is None and computed:
            log.info(
                "%d %s in %.1f s: %d tokens given, %d computed, %.1f times fewer",
                self._n,
                self._what,
                time.perf_counter() - self._started,
                given,
                computed,
                given / computed,
            )

    def _counts(self) -> tuple[int, int]:
        counts = self._scorer.facts()["counts"]
        return counts["tokens_given"], counts["tokens_unique"]
