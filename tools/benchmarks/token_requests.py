"""Requests as token ids, random, shaped as the systems' requests are."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tokens:
    """A request: int32 ids, scored from `start` on."""

    ids: np.ndarray
    start: int


def workloads(vocab: int) -> dict[str, list[Tokens]]:
    """Random ids, shaped as the systems' requests are."""
    rng = np.random.default_rng(0)

    def text(n: int) -> np.ndarray:
        return rng.integers(0, vocab, n).astype(np.int32)

    def request(*parts: np.ndarray) -> Tokens:
        ids = np.concatenate(parts)
        return Tokens(ids, len(ids) - len(parts[-1]))

    questions = [text(120) for _ in range(16)]
    answers = [request(q, text(12)) for q in questions for _ in range(5)]
    prompt = text(300)
    shared = [
        request(prompt, question, text(4))
        for question in [text(15) for _ in range(40)]
        for _ in "ab"
    ]
    systems, paths = [text(20), text(12)], []
    for _ in range(20):
        support, question, answer = text(14), text(12), text(3)
        for system in systems:
            paths += [request(system, question, answer), request(system, support, question, answer)]
    plain = [Tokens(text(int(n)), 0) for n in rng.integers(40, 200, 64)]
    starts = [Tokens(text(int(n)), 0) for n in rng.integers(40, 120, 48)]
    return {
        "answers": answers,
        "prompt": shared,
        "paths": paths,
        "plain": plain,
        "write": starts,
    }


def prefix_pair(vocab: int, small: bool) -> tuple[list[Tokens], list[Tokens]]:
    """Questions on one long prompt, and whole texts as long with as many scored tokens a token."""
    rng = np.random.default_rng(1)

    def text(n: int) -> np.ndarray:
        return rng.integers(0, vocab, n).astype(np.int32)

    prompt, asked = text(1500), []
    for _ in range(200 if small else 2000):
        question = np.concatenate([prompt, text(24)])
        asked += [Tokens(np.concatenate([question, text(3)]), len(question)) for _ in "ab"]
    # A question's 24 tokens and two answers' first two are nodes; five of them are scored from.
    dense = round(1527 * 5 / 28)
    return asked, [Tokens(text(1527), 1527 - dense) for _ in range(10)]
