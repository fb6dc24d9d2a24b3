"""What the model has learned, measured on held-out names."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tokenizers import Tokenizer

from jaxscore.device.rows import Rows, Scores
from jaxscore.device.score import score_rows
from jaxscore.models.checkpoint import open_tensors, read_config
from jaxscore.models.model import Model
from jaxscore.models.native import build
from tools.demo_world import held_out

ROWS, ROW_LENGTH, MOST_TARGETS = 16, 192, 16
SEED = 1  # of the evaluation's items; the inputs of the demo have another


@dataclasses.dataclass(frozen=True)
class Demo:
    """The model of a folder in float32, with its tokenizer."""

    model: Model
    tokenizer: Tokenizer

    @classmethod
    def load(cls, folder: Path) -> "Demo":
        model = build(folder, read_config(folder), open_tensors(folder), "float32")
        return cls(model, Tokenizer.from_file(str(folder / "tokenizer.json")))

    def logprobs(self, pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
        """For each (prompt, answer) the answer's tokens' log-probabilities, in nats.

        The answer is tokenized alone; one pair a row.

        Raises:
            ValueError: a pair that is longer than a row, or an answer of too many tokens.
        """
        out: list[np.ndarray] = []
        for low in range(0, len(pairs), ROWS):
            encoded = [self._encode(*pair) for pair in pairs[low : low + ROWS]]
            found = np.asarray(self._score(self.model.params, _rows(encoded)).logprob)[:, 0]
            at = 0
            for _, answer in encoded:
                out.append(found[at : at + len(answer)])
                at += len(answer)
        return out

    @functools.cached_property
    def _score(self) -> Callable[[Any, Rows], Scores]:
        return jax.jit(
            functools.partial(score_rows, self.model.hidden_states, self.model.unembedding)
        )

    def _encode(self, prompt: str, answer: str) -> tuple[list[int], list[int]]:
        ids = self.tokenizer.encode(prompt).ids
        targets = self.tokenizer.encode(answer, add_special_tokens=False).ids
        if len(ids) + len(targets) > ROW_LENGTH or len(targets) > MOST_TARGETS:
            raise ValueError(
                f"{len(ids)} and {len(targets)} tokens; rows have {ROW_LENGTH}, "
                f"answers at most {MOST_TARGETS}: {prompt!r}"
            )
        return ids, targets


def _rows(encoded: Sequence[tuple[list[int], list[int]]]) -> Rows:
    """One pair a row, from its start; tokens after it are never asked for."""
    ids = np.zeros((ROWS, ROW_LENGTH), np.int32)
    position = np.tile(np.arange(ROW_LENGTH, dtype=np.int32), (ROWS, 1))
    query = np.zeros(ROWS * MOST_TARGETS, np.int32)
    target = np.zeros((ROWS * MOST_TARGETS, 1), np.int32)
    n = 0
    for row, (prompt, answer) in enumerate(encoded):
        ids[row, : len(prompt) + len(answer)] = prompt + answer
        start = row * ROW_LENGTH + len(prompt) - 1
        query[n : n + len(answer)] = np.arange(start, start + len(answer))
        target[n : n + len(answer), 0] = answer
        n += len(answer)
    return Rows(ids, position, np.full_like(ids, ROW_LENGTH), query, target, np.int32(n))


@dataclasses.dataclass(frozen=True)
class PathFigures:
    """Means over items; log-probabilities are means over an answer's tokens, in nats."""

    logprob_without_path: float
    logprob_with_path: float
    path_raises: float
    right_beats_wrong: float


def path_figures(demo: Demo, n_items: int) -> PathFigures:
    """How much a support path helps, and whether wrong answers stay behind the right one."""
    items = held_out.path_items(SEED, n_items)
    bare = _means(demo, [(item.prompt(False), item.chain.answer) for item in items])
    right = _means(demo, [(item.prompt(True), item.chain.answer) for item in items])
    rivals = [(item.prompt(True), wrong) for item in items for wrong in item.wrong]
    wrong = _means(demo, rivals).reshape(n_items, -1)
    return PathFigures(
        logprob_without_path=float(bare.mean()),
        logprob_with_path=float(right.mean()),
        path_raises=float((right > bare).mean()),
        right_beats_wrong=float((right > wrong.max(axis=1)).mean()),
    )


def table(demo: Demo, n_items: int = 192) -> str:
    """Every figure on that many held-out items of each kind, one a line."""
    paths = path_figures(demo, n_items)
    choices = held_out.choice_items(SEED, n_items)
    truths = held_out.truth_items(SEED, n_items)
    judged = held_out.judge_items(SEED, n_items)
    rows = [
        ("items of each kind", f"{n_items}"),
        ("mean logprob of the answer without path", f"{paths.logprob_without_path:.3f}"),
        ("mean logprob of the answer with path", f"{paths.logprob_with_path:.3f}"),
        ("path raises the probability", f"{paths.path_raises:.1%}"),
        ("right answer beats every wrong one, with path", f"{paths.right_beats_wrong:.1%}"),
        ("multiple choice of three, accuracy", f"{label_accuracy(demo, choices):.1%}"),
        ("true or false, accuracy", f"{label_accuracy(demo, truths):.1%}"),
        ("judge, accuracy", f"{label_accuracy(demo, judged):.1%}"),
    ]
    return "\n".join(f"{name:<48}{value:>10}" for name, value in rows)


def _means(demo: Demo, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    return np.array([tokens.mean() for tokens in demo.logprobs(pairs)])


def label_accuracy(demo: Demo, items: Sequence[held_out.LabelItem]) -> float:
    """The share of items whose right label is the most probable one."""
    scores = _means(demo, [(item.prompt, label) for item in items for label in item.labels])
    chosen = scores.reshape(len(items), -1).argmax(axis=1)
    return float(np.mean(chosen == np.array([item.right for item in items])))
