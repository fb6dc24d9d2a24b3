"""Documents as token ids with loss weights, packed side by side into rows of one length."""

import random
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from tools.demo_world import prompts
from tools.demo_world.documents import Document, draw_document
from tools.demo_world.facts import fixed_world

OPEN_ROWS_MISS = 12  # documents in a row that fit nowhere before the batch counts as full


class TrainingRows(NamedTuple):
    """A batch of R rows of L tokens; a pad token is its own document and weighs nothing.

    Attributes:
        ids, position, subtree_end: int32 [R, L], as `jaxscore.device.rows.Rows` has them.
        target: int32 [R, L]: the next token of the document, 0 at its end.
        weight: float32 [R, L]: of the target's loss, 0 where there is none.
    """

    ids: np.ndarray
    position: np.ndarray
    subtree_end: np.ndarray
    target: np.ndarray
    weight: np.ndarray


def encode_document(tokenizer: Tokenizer, document: Document) -> tuple[list[int], list[float]]:
    """Ids with the BOS token first, and the loss weight of each id as a target.

    A token belongs to the segment in which it ends.
    """
    ids, weights = [tokenizer.token_to_id(prompts.BOS)], [0.0]
    text, ends, kept = "", [], []

    def flush() -> None:
        nonlocal text, ends, kept
        encoded = tokenizer.encode(text, add_special_tokens=False)
        at = 0
        for token, (_, end) in zip(encoded.ids, encoded.offsets, strict=True):
            while ends[at] < end:
                at += 1
            ids.append(token)
            weights.append(kept[at])
        text, ends, kept = "", [], []

    for segment in document.segments:
        if segment.own:
            flush()
        text += segment.text
        ends.append(len(text))
        kept.append(segment.weight)
        if segment.own:
            flush()
    if text:
        flush()
    return ids, weights


def step_rows(
    tokenizer: Tokenizer, seed: int, step: int, steps: int, n_rows: int, row_length: int
) -> TrainingRows:
    """The batch of a step of a run: each document goes to the first row with room for it.

    Chance depends on the seed and the step alone, the mix of documents on `step / steps`.
    """
    rng, world = random.Random(f"documents {seed} {step}"), fixed_world(seed)
    shape = (n_rows, row_length)
    ids, target = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    position, weight = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    subtree_end = np.tile(np.arange(1, row_length + 1, dtype=np.int32), (n_rows, 1))
    used, missed = [0] * n_rows, 0
    while missed < OPEN_ROWS_MISS:
        tokens, weights = encode_document(tokenizer, draw_document(rng, world, step / steps))
        n = len(tokens)
        row = next((r for r in range(n_rows) if used[r] + n <= row_length), None)
        if row is None:
            missed += 1
            continue
        low = used[row]
        high = used[row] = low + n
        ids[row, low:high] = tokens
        position[row, low:high] = np.arange(n)
        subtree_end[row, low:high] = high
        target[row, low : high - 1] = tokens[1:]
        weight[row, low : high - 1] = weights[1:]
    return TrainingRows(ids, position, subtree_end, target, weight)
