"""How well the documents of an experiment were ranked (the retrieval part of BERGEN's metrics).

    run.retrieve.top_5.kilt_nq.dev.<retriever>.trec   documents of each question, best first
    eval_dev_ranking_run.trec                         the same by the ids of the ranking labels
    eval_dev_ranking_metrics.json                     P_1 and recall_k

A question counts if it is in the run and its record has ranking labels, whatever reference they
belong to. Reranked runs (`run.rerank…`, `eval_dev_reranking_run.trec`) are the same with
`reranking` for `ranking`.
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

# stage, part of file names -> patterns of its runs, the first that exists
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
        k: of recall_k: the config's `generation_top_k`, else the last `top_k` in a run's name.
        metrics_path: file of its means.
    """

    path: Path
    k: int
    metrics_path: Path

    @property
    def names(self) -> tuple[str, str]:
        """Its metrics."""
        return "P_1", f"recall_{self.k}"


class Scored(NamedTuple):
    """The content of a run.

    Attributes:
        documents: question -> document -> score, the higher of two if it comes twice.
        failures: lines that cannot be used.
        spoiled: questions of those lines, which have no whole ranking.
    """

    documents: dict[str, dict[str, float]]
    failures: list[tuple[str, str]]
    spoiled: set[str]


def has_labels(records: Records) -> bool:
    """Whether any record says which documents hold its answer."""
    return any(item.ranking_label for item in records.usable)


def find(folder: Path, split: str, stage: str) -> Run | None:
    """The run of a stage, or None if the folder has none.

    Raises:
        InputError: there are several, or nothing says what k is.
    """
    by_pattern = [
        sorted(folder.glob(pattern.format(split=glob.escape(split)))) for pattern in STAGES[stage]
    ]
    if not (found := next(filter(None, by_pattern), [])):
        return None
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"{folder}: {len(found)} runs of one stage ({names}); leave one")
    k = experiment_folder.read_config(folder, split)["generation_top_k"]
    for path in (path for paths in by_pattern for path in paths):
        k = k or next(reversed(re.findall(r"\.top_([1-9]\d{0,8})\.", path.name)), None)
    if k is None:
        raise InputError(
            f"{folder}: nothing says what k of recall_k is; give `generation_top_k` in "
            "config.yaml, or a run named run.retrieve.top_<k>…"
        )
    return Run(found[0], int(k), folder / f"eval_{split}_{stage}_metrics.json")


def load(path: Path) -> Scored:
    """Read a run in trec_eval's format: question, Q0, document, rank, score and run, a line each.

    Raises:
        InputError: the file cannot be read or is not UTF-8.
    """
    documents: dict[str, dict[str, float]] = {}
    failures, spoiled = [], set()
    for number, text in read_lines(path):
        if not text.strip():
            continue
        # The published script writes tabs, which leave blanks to the ids; others write blanks.
        fields = text.split("\t") if "\t" in text else text.split()
        score = _number(fields[4]) if len(fields) == 6 else None
        if score is None:
            why = "expected question, Q0, document, rank, score and run, with blanks between"
            failures.append((f"{path}:{number}", f"{why}; found {text[:60]!a}"))
            spoiled.add(fields[0])
            continue
        scores = documents.setdefault(fields[0], {})
        scores[fields[2]] = max(score, scores.get(fields[2], score))
    return Scored(documents, failures, spoiled)


def evaluate(run: Run, scored: Scored, records: Records) -> Summary:
    """P_1 and recall_k of the questions that are in the run and have ranking labels.

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
    first = [precision(found, relevant[name], 1) for name, found in rankings.items()]
    recalled = [recall(found, relevant[name], run.k) for name, found in rankings.items()]
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
    """question -> ids of its documents. A question that comes twice must say the same twice."""
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
    if not isinstance(label, list) or not all(isinstance(part, list) for part in label):
        return None
    ids = [id for part in label for id in part]
    return {str(id) for id in ids} if all(type(id) in (str, int) for id in ids) else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


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
