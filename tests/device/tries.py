"""Random rows of packed tries, laid out one token at a time from the trees themselves."""

import jax.numpy as jnp
import numpy as np

from jaxscore.device.rows import Chunks, Paths
from jaxscore.plan.chunks import ChunkShape, chunk_plan, cut_chunks, parents


def random_rows(seed: int, n_rows: int, length: int, vocabulary: int = 50):
    """ids, position and subtree_end, int32 [R, L]; each row holds several tries and padding."""
    draw = np.random.default_rng(seed)
    rows = [_row(draw, length, vocabulary) for _ in range(n_rows)]
    return tuple(np.array(part, np.int32) for part in zip(*rows, strict=True))


def _row(draw, length, vocabulary):
    """A walk in depth-first order: each token hangs below the one before it, or climbs first."""
    position, path = [], []
    end = [0] * length
    padding = draw.integers(0, length // 4 + 1)
    for i in range(length):
        # Half of the tokens go on a path; the others climb, some all the way to a new root.
        climb = 0 if draw.random() < 0.7 else draw.integers(0, len(path) + 1)
        if i >= length - padding:
            climb = len(path)  # a pad token is its own tiny tree
        for _ in range(climb):
            end[path.pop()] = i
        position.append(len(path))
        path.append(i)
    for node in path:
        end[node] = length
    return draw.integers(0, vocabulary, length), position, end


def paths(position, subtree_end):
    """For every token of one row the indices of its path from the root, itself last."""
    out = []
    for i in range(len(position)):
        out.append([j for j in range(i + 1) if i < subtree_end[j]])
        assert len(out[-1]) == position[i] + 1
    return out


def device_paths(subtree_end, size, width, is_padding=None):
    """Inputs of recurrent layers, with two empty chunks; parents alone if `size` is 0."""
    end = np.asarray(subtree_end)
    parent = jnp.asarray(parents(end))
    if not size:
        return Paths(parent, None)
    is_padding = np.zeros(end.size, bool) if is_padding is None else is_padding
    chunks = cut_chunks(end, is_padding, size)
    made = chunk_plan(chunks, end.size, ChunkShape(len(chunks) + 2, size, width))
    return Paths(parent, Chunks(*map(jnp.asarray, made)))
