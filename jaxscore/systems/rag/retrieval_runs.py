"""`metrics`: how well the documents of an experiment were ranked (the retrieval part of BERGEN).

    run.retrieve.top_5.kilt_nq.dev.<retriever>.trec   documents of each question, best first
    eval_dev_ranking_run.trec                         the same by the ids of the ranking labels
    eval_dev_ranking_metrics.json                     P_1 and recall_k

A question counts where it is in the run and its record has ranking labels, whatever reference
they belong to. Reranked runs (`run.rerank…`, `eval_dev_reranking_run.trec`) are the same with
`reranking` for `ranking`.
"""

import dataclasses
import glob
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxscore.analysis import ranking
from jaxscore.errors import InputError
from jaxscore.io.json_input import read_lines
from jaxscore.systems.rag import experiment_config
from jaxscore.systems.rag.records import Records

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
    """Where the ranking of a stage is.

    Attributes:
        k: of recall_k: the config's `generation_top_k`, else the last `top_k` in a run's name.
    """

    folder: Path
    split: str
    stage: str
    path: Path
    k: int

    @property
    def names(self) -> tuple[str, str]:
        """Its metrics."""
        return "P_1", f"recall_{self.k}"

    @property
    def metrics_path(self) -> Path:
        """Where its means are."""
        return self.folder / f"eval_{self.split}_{self.stage}_metrics.json"


@dataclasses.dataclass(frozen=True)
class Scored:
    """The content of a run.

    Attributes:
        documents: question -> document -> score, the higher of two where it comes twice.
        failures: (name, why) of lines that cannot be used.
        spoiled: questions of those lines, which have no whole ranking.
    """

    documents: dict[str, dict[str, float]]
    failures: list[tuple[str, str]]
    spoiled: set[str]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Means over questions.

    Attributes:
        means: P_1 and recall_k; empty where no question counts.
        n_found: relevant documents that the run holds, at any rank.
        failures: (name, why) of records and lines that cannot be used.
    """

    means: dict[str, float]
    n_questions: int
    n_found: int
    failures: list[tuple[str, str]]


def labelled(output: Records) -> bool:
    """Whether any record says which documents hold its answer."""
    return any(record.ranking_label for record in output.records)


def find(folder: Path, split: str, stage: str) -> Run | None:
    """The run of a stage; None where the folder has none.

    Raises:
        InputError: there are several, or nothing says what k is.
    """
    for found in _runs(folder, split, stage):
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise InputError(f"{folder}: {len(found)} runs of one stage ({names}); leave one")
        return Run(folder, split, stage, found[0], _depth(folder, split, stage))
    return None


def load(path: Path) -> Scored:
    """A run in trec_eval's format: question, Q0, document, rank, score and run, a line each.

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


def evaluate(run: Run, scored: Scored, output: Records) -> Summary:
    """P_1 and recall_k of the questions that are in the run and have ranking labels."""
    relevant, failures = _relevant(output)
    documents = {
        name: scores
        for name, scores in scored.documents.items()
        if relevant.get(name) and name not in scored.spoiled
    }
    rankings = {name: ranking.ranked(scores) for name, scores in documents.items()}
    first = [ranking.precision(one, relevant[name], 1) for name, one in rankings.items()]
    recall = [ranking.recall(one, relevant[name], run.k) for name, one in rankings.items()]
    means = [math.fsum(values) / len(values) for values in (first, recall) if values]
    return Summary(
        means=dict(zip(run.names, means, strict=False)),
        n_questions=len(rankings),
        n_found=sum(len(relevant[name] & scores.keys()) for name, scores in documents.items()),
        failures=scored.failures + failures,
    )


def _relevant(output: Records) -> tuple[dict[str, set[str]], list[tuple[str, str]]]:
    """question -> ids of its documents. A question that comes twice must say the same twice."""
    relevant: dict[str, set[str]] = {}
    failures: list[tuple[str, str]] = []
    disputed: set[str] = set()
    for record in output.records:
        if record.ranking_label is None:
            continue
        ids = _ids(record.ranking_label)
        question = str(record.q_id)
        if ids is None:
            found = str(record.ranking_label)[:60]
            why = f'field "ranking_label": expected a list of lists of ids, found {found}'
            failures.append((output.name(record), why))
            disputed.add(question)
        elif relevant.setdefault(question, ids) != ids:
            why = "an earlier record of this q_id has other ranking labels"
            failures.append((output.name(record), why))
            disputed.add(question)
    return {name: ids for name, ids in relevant.items() if name not in disputed}, failures


def _ids(label: Any) -> set[str] | None:
    if not isinstance(label, list) or not all(isinstance(one, list) for one in label):
        return None
    ids = [one for reference in label for one in reference]
    if not all(type(one) in (str, int) for one in ids):
        return None
    return {str(one) for one in ids}


def _runs(folder: Path, split: str, stage: str) -> Iterator[list[Path]]:
    """The files of each pattern of a stage, for those patterns that have some."""
    for pattern in STAGES[stage]:
        if found := sorted(folder.glob(pattern.format(split=glob.escape(split)))):
            yield found


def _depth(folder: Path, split: str, stage: str) -> int:
    if k := experiment_config.load(folder, split).generation_top_k:
        return k
    for path in itertools.chain.from_iterable(_runs(folder, split, stage)):
        if depths := re.findall(r"\.top_([1-9]\d{0,8})\.", path.name):
            return int(depths[-1])
    raise InputError(
        f"{folder}: nothing says what k of recall_k is; "
        "give `generation_top_k` in config.yaml, or a run named run.retrieve.top_<k>…"
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
