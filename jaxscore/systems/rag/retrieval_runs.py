"""Quality of an experiment's document rankings (the retrieval metrics of BERGEN).

    run.retrieve.top_5.kilt_nq.dev.<retriever>.trec   documents of each question, best first
    eval_dev_ranking_run.trec                         the same with the ids of the ranking labels
    eval_dev_ranking_metrics.json                     P_1 and recall_k

A question counts if it is in the run and its record has ranking labels, of any reference. Reranked
runs (`run.rerank…`, `eval_dev_reranking_run.trec`) have `reranking` in place of `ranking`.
"""

import dataclasses
import glob
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.json_input import read_lines
from jaxscore.report.counts import counted
from jaxscore.shell.system import Summary
from jaxscore.systems.rag import Records, experiment_folder

# stage, as in file names -> patterns of its runs; the first with a match counts
STAGES = {
    "ranking": (
        "eval_{split}_ranking_run.trec",
        "run.retrieve.top_*.{split}.*trec",
        "run.oracle.*.{split}.trec",
    ),
    "reranking": ("eval_{split}_reranking_run.trec", "run.rerank.*.{split}.*trec"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The ranking of a stage.

    Attributes:
        k: the k of recall_k: the config's `generation_top_k`, else the last `top_k` in a run's
            name.
        metrics_path: the file for its means.
    """

    path: Path
    k: int
    metrics_path: Path

    @property
    def names(self) -> tuple[str, str]:
        """The names of its metrics."""
        return "P_1", f"recall_{self.k}"


class Scored(NamedTuple):
    """The content of a run.

    Attributes:
        documents: question -> document -> score, the maximum if a document occurs twice.
        failures: (file:line, reason) of unusable lines.
        spoiled: questions of these lines, whose rankings are incomplete.
    """

    documents: dict[str, dict[str, float]]
    failures: list[tuple[str, str]]
    spoiled: set[str]


def has_labels(records: Records) -> bool:
    """Return True if any record has ranking labels."""
    return any(item.ranking_label for item in records.usable)


def find(folder: Path, split: str, stage: str) -> Run | None:
    """Return the run of a stage, or None if the folder has none.

    Raises:
        InputError: there are several, or k is neither in the config nor in a file name.
    """
    by_pattern = [
        sorted(folder.glob(pattern.format(split=glob.escape(split)))) for pattern in STAGES[stage]
    ]
    if not (paths := next(filter(None, by_pattern), [])):
        return None
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise InputError(f"{folder}: {len(paths)} runs of one stage ({names}); leave one")
    k = experiment_folder.read_config(folder, split)["generation_top_k"]
    for path in (path for matches in by_pattern for path in matches):
        k = k or next(reversed(re.findall(r"\.top_([1-9]\d{0,8})\.", path.name)), None)
    if k is None:
        raise InputError(
            f"{folder}: the k of recall_k is unknown; set `generation_top_k` in config.yaml, or "
            "name a run run.retrieve.top_<k>…"
        )
    return Run(paths[0], int(k), folder / f"eval_{split}_{stage}_metrics.json")


def load(path: Path) -> Scored:
    """Read a run in trec_eval's format: question, Q0, document, rank, score and run, a line each.

    Raises:
        InputError: the file cannot be read or is not UTF-8.
    """
    documents: dict[str, dict[str, float]] = {}
    failures, spoiled = [], set()
    for line, text in read_lines(path):
        if not text.strip():
            continue
        # The published script separates by tabs, so ids may have spaces; others use spaces.
        fields = text.split("\t") if "\t" in text else text.split()
        score = _number(fields[4]) if len(fields) == 6 else None
        if score is None:
            why = "expected question, Q0, document, rank, score and run, separated by spaces"
            failures.append((f"{path}:{line}", f"{why}; found {text[:60]!a}"))
            spoiled.add(fields[0])
            continue
        scores = documents.setdefault(fields[0], {})
        scores[fields[2]] = max(score, scores.get(fields[2], score))
    return Scored(documents, failures, spoiled)


def evaluate(run: Run, scored: Scored, records: Records) -> Summary:
    """Compute P_1 and recall_k of the questions that are in the run and have ranking labels.

    Returns:
        The means in `numbers`, empty if no question counts, and in `details` `n_questions` and
        `n_found`, the number of relevant documents that the run holds at any rank.
    """
    relevant, failures = _relevant(records)
    documents = {
        name: scores
        for name, scores in scored.documents.items()
        if relevant.get(name) and name not in scored.spoiled
    }
    rankings = {name: ranked(scores) for name, scores in documents.items()}
    first = [precision(ranking, relevant[name], 1) for name, ranking in rankings.items()]
    recalled = [recall(ranking, relevant[name], run.k) for name, ranking in rankings.items()]
    means = [math.fsum(values) / len(values) for values in (first, recalled) if values]
    named = dict(zip(run.names, means, strict=False))
    means_text = ", ".join(f"{name} {value:.4f}" for name, value in named.items())
    n_found = sum(len(relevant[name] & scores.keys()) for name, scores in documents.items())
    return Summary(
        headline=f"{means_text} over {counted(len(rankings), 'questions')}",
        numbers=named,
        failures=scored.failures + failures,
        details={"n_questions": len(rankings), "n_found": n_found},
    )


def _relevant(records: Records) -> tuple[dict[str, set[str]], list[tuple[str, str]]]:
    """Return question -> ids of its relevant documents; records of one question must agree."""
    relevant: dict[str, set[str]] = {}
    failures: list[tuple[str, str]] = []
    disputed: set[str] = set()
    for entry in records.entries:
        if entry.error is not None or (label := entry.item.ranking_label) is None:
            continue
        question, ids = str(entry.item.q_id), _ids(label)
        if ids is None:
            why = f'field "ranking_label": expected a list of lists of ids, found {str(label)[:60]}'
        elif relevant.setdefault(question, ids) != ids:
            why = "an earlier record of this q_id has other ranking labels"
        else:
            continue
        failures.append((entry.name, why))
        disputed.add(question)
    return {name: ids for name, ids in relevant.items() if name not in disputed}, failures


def _ids(label: Any) -> set[str] | None:
    if not isinstance(label, list) or not all(isinstance(entry, list) for entry in label):
        return None
    ids = [id for entry in label for id in entry]
    return {str(id) for id in ids} if all(type(id) in (str, int) for id in ids) else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Return documents from best to worst: by score, then by id in descending byte order.

    Scores are compared in single precision, as in trec_eval, so that two which are equal in
    float32 are a tie. The rank column of a run is not read.
    """
    with np.errstate(over="ignore"):  # overflow becomes infinity, as in trec_eval
        single = np.array(list(scores.values()), np.float64).astype(np.float32).tolist()
    order = sorted(
        zip(single, (name.encode("utf-8") for name in scores), scores, strict=True), reverse=True
    )
    return [name for _, _, name in order]


def precision(ranking: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Return the share of relevant documents in the first k ranks; a missing rank counts as not."""
    return sum(name in relevant for name in ranking[:k]) / k


def recall(ranking: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Return the share of the relevant documents (at least one) in the first k ranks."""
    return sum(name in relevant for name in ranking[:k]) / len(relevant)
