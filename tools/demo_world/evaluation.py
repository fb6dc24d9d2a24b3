"""Accuracy of the model on held-out names, and samples of its answers for `self-certainty`."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxscore.engine.generation import Generator
from jaxscore.scorer import Scorer
from jaxscore.systems.selection.ranking import select, vote
from jaxscore.types.requests import GenerationRequest, LabelRequest, Request
from tools.demo_world import held_out

SEED = 1  # of the evaluation's items; the inputs of the demo have another
POWER = 0.5  # of the Borda votes
SAMPLES = 8  # of each question
MOST_TOKENS = 72  # two reasons and the answer take about fifty
TEMPERATURE = 1.0
QUESTIONS = 96  # of the demo, 135 KB; with a few dozen, chance decides which sample is right


def scorer_of(folder: Path) -> Scorer:
    """The model of a folder in float32."""
    return Scorer.from_pretrained(str(folder), dtype="float32")


@dataclasses.dataclass(frozen=True)
class PathFigures:
    """Means over items; log-probabilities are means over an answer's tokens, in nats."""

    logprob_without_path: float
    logprob_with_path: float
    path_raises: float
    right_beats_wrong: float


def path_figures(scorer: Scorer, n_items: int) -> PathFigures:
    """Measure the gain of a support path, and the share of right answers above the wrong ones."""
    items = held_out.path_items(SEED, n_items)
    bare = _means(scorer, [(item.prompt(False), item.chain.answer) for item in items])
    right = _means(scorer, [(item.prompt(True), item.chain.answer) for item in items])
    rivals = [(item.prompt(True), wrong) for item in items for wrong in item.wrong]
    wrong = _means(scorer, rivals).reshape(n_items, -1)
    return PathFigures(
        logprob_without_path=float(bare.mean()),
        logprob_with_path=float(right.mean()),
        path_raises=float((right > bare).mean()),
        right_beats_wrong=float((right > wrong.max(axis=1)).mean()),
    )


def _means(scorer: Scorer, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    scored = scorer.score((Request(i, *pair) for i, pair in enumerate(pairs)), boundary="separate")
    return np.array([scores.mean_logprob for scores in scored])


def label_accuracy(scorer: Scorer, items: Sequence[held_out.LabelItem]) -> float:
    """The share of items whose right label is the most probable one of its labels."""
    chosen = _label_probabilities(scorer, items).argmax(axis=1)
    return float(np.mean(chosen == np.array([item.right for item in items])))


def judge_scores(scorer: Scorer, n_items: int) -> tuple[float, float]:
    """The mean probability of Yes for right responses and for wrong ones."""
    items = held_out.judge_items(SEED, n_items)
    scores = _label_probabilities(scorer, items)[:, 0]
    right = np.array([item.right == 0 for item in items])
    return float(scores[right].mean()), float(scores[~right].mean())


def _label_probabilities(scorer: Scorer, items: Sequence[held_out.LabelItem]) -> np.ndarray:
    """[items, labels]: softmax over the labels' first tokens."""
    labelled = scorer.label(
        LabelRequest(i, item.prompt, scorer.encoder.first_ids(item.labels))
        for i, item in enumerate(items)
    )
    return np.array([scores.probability for scores in labelled])


@dataclasses.dataclass(frozen=True)
class SampleFigures:
    """Shares of questions that are answered rightly, by how one of the samples is chosen.

    Attributes:
        mean: by chance, what the first sample is right in when there are many questions.
        majority, voted: by the most frequent answer, and by Borda votes.
    """

    first: float
    mean: float
    most_certain: float
    majority: float
    voted: float


def sample_figures(scorer: Scorer, n_items: int) -> SampleFigures:
    """Measure how often self-certainty chooses right answers among the model's samples."""
    items = sampled_items(scorer, held_out.reasoned_items(SEED, n_items), SEED)
    return chosen_right(scorer, items)


def chosen_right(scorer: Scorer, items: Sequence[dict[str, Any]]) -> SampleFigures:
    """The figures of items in the form of `self-certainty`, with the right answers."""
    scored = scorer.score(
        [
            Request(i, item["model_input"], output)
            for i, item in enumerate(items)
            for output in item["output"]
        ],
        boundary="separate",
        special_tokens=False,
    )
    at, rows = 0, []
    for item in items:
        answers = [_answer(output) for output in item["output"]]
        certain = [scores.mean_self_certainty for scores in scored[at : at + len(answers)]]
        at += len(answers)
        right = [answer == item["answer"] for answer in answers]
        rows.append(
            (
                right[0],
                np.mean(right),
                right[select(certain, answers).index],
                right[vote(certain, answers, 0.0).index],
                right[vote(certain, answers, POWER).index],
            )
        )
    return SampleFigures(*map(float, np.mean(rows, axis=0)))


def _answer(output: str) -> str | None:
    """Answer in an output that has the requested JSON, or None."""
    try:
        value = json.loads(output)
    except json.JSONDecodeError:
        return None
    return value.get("answer") if isinstance(value, dict) else None


def table(scorer: Scorer, n_items: int = 192) -> str:
    """Every figure on `n` held-out items of each kind, one per line, beside chance."""
    paths = path_figures(scorer, n_items)
    right, wrong = judge_scores(scorer, n_items)
    samples = sample_figures(scorer, n_items)

    def accuracy(items: list[held_out.LabelItem]) -> str:
        chance = 1 / len(items[0].labels)
        return f"{label_accuracy(scorer, items):.1%} (chance {chance:.1%})"

    rows = [
        ("items of each kind", f"{n_items}"),
        ("mean logprob of the answer without path", f"{paths.logprob_without_path:.3f}"),
        ("mean logprob of the answer with path", f"{paths.logprob_with_path:.3f}"),
        ("path raises the probability", f"{paths.path_raises:.1%}"),
        ("right answer beats every wrong one, with path", f"{paths.right_beats_wrong:.1%}"),
        ("choice of two, one of them named", accuracy(held_out.choice_items(SEED, n_items, 1))),
        ("choice of three, two of them named", accuracy(held_out.choice_items(SEED, n_items, 2))),
        ("true or false, false names new", accuracy(held_out.truth_items(SEED, n_items, False))),
        ("true or false, false names swapped", accuracy(held_out.truth_items(SEED, n_items, True))),
        ("judge", accuracy(held_out.judge_items(SEED, n_items))),
        ("judge's mean score of right responses", f"{right:.3f}"),
        ("judge's mean score of wrong responses", f"{wrong:.3f}"),
        ("samples: the first is right", f"{samples.first:.1%}"),
        ("samples: mean over all", f"{samples.mean:.1%}"),
        ("samples: the most self-certain is right", f"{samples.most_certain:.1%}"),
        ("samples: the majority is right", f"{samples.majority:.1%}"),
        ("samples: Borda votes are right", f"{samples.voted:.1%}"),
    ]
    return "\n".join(f"{name:<48}{value:>24}" for name, value in rows)


def sampled_items(
    scorer: Scorer, items: Sequence[held_out.ReasonedItem], seed: int
) -> list[dict[str, Any]]:
    """Items as `self-certainty` reads them, with the right answer."""
    generated = Generator(scorer).generate(
        GenerationRequest(
            i * SAMPLES + k,
            item.prompt,
            MOST_TOKENS,
            temperature=TEMPERATURE,
            seed=(seed * len(items) + i) * SAMPLES + k,
        )
        for i, item in enumerate(items)
        for k in range(SAMPLES)
    )
    texts = [result.text for result in generated]
    return [
        {
            "session_id": f"demo-{i:02d}",
            "model_input": item.prompt,
            "output": texts[i * SAMPLES : (i + 1) * SAMPLES],
            "answer": item.answer,
            "generator": "demo",
        }
        for i, item in enumerate(items)
    ]


def write_samples(folder: Path, scorer: Scorer, seed: int) -> Path:
    """Write `self_certainty.json`: questions with samples of the model's answers."""
    items = sampled_items(scorer, held_out.reasoned_items(seed, QUESTIONS), seed)
    path = folder / "self_certainty.json"
    path.write_text(json.dumps(items, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path
