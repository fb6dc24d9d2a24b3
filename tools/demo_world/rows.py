"""Documents as token ids with loss weights, packed side by side into rows of one length.

Documents of a group share a beginning. Their tries are packed: a common beginning occurs once,
and `subtree_end` keeps each document from seeing the others, as it does when text is scored.
"""

import random
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from tools.demo_world import prompts
from tools.demo_world.documents import KINDS, LABEL, Document, draw_documents
from tools.demo_world.facts import fixed_world

OPEN_ROWS_MISS = 12  # groups one after another that fit nowhere before the batch counts as full
NO_LABEL = -1
KIND_INDEX = {name: i for i, name in enumerate(KINDS)}


class TrainingRows(NamedTuple):
    """A batch of R rows of L tokens; a pad token is its own document and weighs nothing.

    Attributes:
        ids, position, subtree_end: int32 [R, L], as `jaxscore.device.rows.Rows` has them.
        target: int32 [R, L]: the next token of the document, 0 at its end.
        weight: float32 [R, L]: of the target's loss, 0 where there is none, or several.
        label: int32 [R, L]: where the target is a label, which of `KINDS` it is of; else -1.
    """

    ids: np.ndarray
    position: np.ndarray
    subtree_end: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    label: np.ndarray


class Trie(NamedTuple):
    """Documents of a group in depth-first order, n tokens: lists as in `TrainingRows`."""

    ids: list[int]
    position: list[int]
    subtree_end: list[int]
    target: list[int]
    weight: list[float]


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
        if segment.is_separate:
            flush()
        text += segment.text
        ends.append(len(text))
        kept.append(segment.weight)
        if segment.is_separate:
            flush()
    if text:
        flush()
    return ids, weights


def merge(documents: list[tuple[list[int], list[float]]]) -> Trie:
    """The trie of documents, each its ids and the loss weight of each id as a target.

    A token that has several successors predicts none of them.
    """
    trie = Trie([], [], [], [], [])
    path: list[int] = []  # where the tokens of the document before stand
    for ids, weights in sorted(documents):
        shared = 0
        while shared < min(len(path), len(ids)) and trie.ids[path[shared]] == ids[shared]:
            shared += 1
        fork = 0 < shared < len(path)
        del path[shared:]
        for depth in range(shared, len(ids)):
            node = len(trie.ids)
            if path:
                trie.target[path[-1]] = 0 if fork else ids[depth]
                trie.weight[path[-1]] = 0.0 if fork else weights[depth]
            fork = False
            for array, value in zip(trie, (ids[depth], depth, 0, 0, 0.0), strict=True):
                array.append(value)
            path.append(node)
        for node in path:
            trie.subtree_end[node] = len(trie.ids)
    return trie


def step_rows(
    tokenizer: Tokenizer, seed: int, step: int, progress: float, n_rows: int, row_length: int
) -> TrainingRows:
    """The batch of a step of a run: each group goes to the first row with room for it.

    Chance depends on the seed and the step alone, the mix of documents on the progress. A group
    that is longer than a row loses its last documents.
    """
    rng, world = random.Random(f"documents {seed} {step}"), fixed_world(seed)
    shape = (n_rows, row_length)
    ids, target = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    position, weight = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    subtree_end = np.tile(np.arange(1, row_length + 1, dtype=np.int32), (n_rows, 1))
    label = np.full(shape, NO_LABEL, np.int32)
    used, missed = [0] * n_rows, 0
    while missed < OPEN_ROWS_MISS:
        group = draw_documents(rng, world, progress)
        encoded = [encode_document(tokenizer, document) for document in group]
        trie = merge(encoded)
        while len(trie.ids) > row_length:
            encoded.pop()
            trie = merge(encoded)
        n = len(trie.ids)
        row = next((r for r in range(n_rows) if used[r] + n <= row_length), None)
        if row is None:
            missed += 1
            continue
        low = used[row]
        here = (row, slice(low, low + n))
        used[row] += n
        ids[here], position[here], target[here] = trie.ids, trie.position, trie.target
        subtree_end[here] = low + np.array(trie.subtree_end)
        weight[here] = trie.weight
        label[here] = np.where(weight[here] == LABEL, KIND_INDEX[group[0].document_type], NO_LABEL)
    return TrainingRows(ids, position, subtree_end, target, weight, label)
