"""Layouts of tensors that conversion to GGUF changes, and how each is undone.

Every function here takes and returns values with the axes of the checkpoint: [out, in] of a
matrix, [E, out, in] of experts.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]


class Heads(NamedTuple):
    """Number of heads of queries, and of keys and values, in each layer of a file."""

    queries: int
    keys: int


class Layout(NamedTuple):
    """How one tensor becomes the checkpoint's.

    Attributes:
        change: of the values.
        shape: of the result, from the stored one.
        is_float32: the values are computed in float32 whatever their type.
        keeps_rows: `change` only moves whole rows, and so also takes rows of bytes.
    """

    change: Callable[[np.ndarray, Heads], np.ndarray]
    shape: Callable[[Shape], Shape] = lambda shape: shape
    is_float32: bool = False
    keeps_rows: bool = False


class Joined(NamedTuple):
    """How several tensors of a layer become one.

    Attributes:
        parts: names in the file, without the layer.
        join: the values of the parts, of one type.
        shape: of the result, from the stored ones.
        has_pieces: `join` may be applied to each index of the first axis alone.
    """

    parts: tuple[str, ...]
    join: Callable[[Sequence[np.ndarray]], np.ndarray]
    shape: Callable[[Sequence[Shape]], Shape]
    has_pieces: bool = True


def unpermute(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of queries or keys in Hugging Face's order, from [H, half, 2] to [H, 2, half].

    llama.cpp rotates neighbours (2i, 2i + 1) where Hugging Face rotates the halves (i, i + n/2).
    """
    half = rows.shape[0] // n_heads // 2
    return rows.reshape(n_heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _by_groups(rows: np.ndarray, heads: Heads) -> np.ndarray:
    """[q; k; v] as groups of heads: their queries, then one head of keys and one of values."""
    width = rows.shape[0] // (heads.queries + 2 * heads.keys)
    ends = [heads.queries * width, (heads.queries + heads.keys) * width]
    groups = [
        part.reshape(heads.keys, -1, *rows.shape[1:]) for part in np.split(rows, ends, axis=0)
    ]
    return np.concatenate(groups, axis=1).reshape(rows.shape)


def _alternating(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Values of two vectors [..., n] in turn, [..., 2n]."""
    return np.stack(parts, axis=-1).reshape(*parts[0].shape[:-1], -1)


def _transposed(values: np.ndarray) -> np.ndarray:
    return values.swapaxes(-1, -2)


def _key_value_up(parts: Sequence[np.ndarray]) -> np.ndarray:
    """[H, rank, k] and [H, v, rank] as the rows of k, then v, of each head: [H (k + v), rank]."""
    keys, values = parts
    return np.concatenate([_transposed(keys), values], axis=1).reshape(-1, keys.shape[1])


QUERIES = Layout(lambda rows, heads: unpermute(rows, heads.queries), keeps_rows=True)
KEYS = Layout(lambda rows, heads: unpermute(rows, heads.keys), keeps_rows=True)
MINUS_ONE = Layout(lambda scales, _: scales.astype(np.float32) - np.float32(1), is_float32=True)
GROUPS = Layout(_by_groups, keeps_rows=True)
TRANSPOSED = Layout(lambda values, _: _transposed(values), lambda shape: shape[::-1])
ROW = Layout(lambda values, _: values.reshape(1, -1), lambda shape: (1, math.prod(shape)))

PERMUTED = {
    f"attn_{part}.{kind}": QUERIES if part == "q" else KEYS
    for part in "qk"
    for kind in ("weight", "bias")
}


def minus_one(*norms: str) -> dict[str, Layout]:
    """Layouts of norms to which conversion has added the one that the family adds."""
    return {f"{name}.weight": MINUS_ONE for name in ("output_norm", *norms)}


def _gate_up(kind: str) -> tuple[str, str]:
    return f"ffn_gate_exps.{kind}", f"ffn_up_exps.{kind}"


def _down(kind: str) -> tuple[str]:
    return (f"ffn_down_exps.{kind}",)


# Experts [E, out, in], and their biases [E, out]
GATE_THEN_UP = Joined(
    _gate_up("weight"),
    lambda parts: np.concatenate(parts, axis=-2),
    lambda shapes: (shapes[0][0], 2 * shapes[0][1], shapes[0][2]),
)
GATE_THEN_UP_TRANSPOSED = Joined(
    _gate_up("weight"),
    lambda parts: _transposed(np.concatenate(parts, axis=-2)),
    lambda shapes: (shapes[0][0], shapes[0][2], 2 * shapes[0][1]),
)
GATE_UP_ALTERNATING = Joined(
    _gate_up("weight"),
    lambda parts: _alternating([_transposed(part) for part in parts]),
    lambda shapes: (shapes[0][0], shapes[0][2], 2 * shapes[0][1]),
)
GATE_UP_BIAS_ALTERNATING = Joined(
    _gate_up("bias"), _alternating, lambda shapes: (shapes[0][0], 2 * shapes[0][1])
)
DOWN = Joined(_down("weight"), lambda parts: parts[0], lambda shapes: shapes[0])
DOWN_BIAS = Joined(_down("bias"), lambda parts: parts[0], lambda shapes: shapes[0])
DOWN_TRANSPOSED = Joined(
    _down("weight"),
    lambda parts: _transposed(parts[0]),
    lambda shapes: (shapes[0][0], shapes[0][2], shapes[0][1]),
)
KEY_VALUE_UP = Joined(
    ("attn_k_b.weight", "attn_v_b.weight"),
    _key_value_up,
    lambda shapes: (shapes[0][0] * (shapes[0][2] + shapes[1][1]), shapes[0][1]),
    has_pieces=False,
)
