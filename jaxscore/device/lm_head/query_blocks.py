"""A batch's queries in blocks, as many as there are."""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

Numbers = TypeVar("Numbers")  # a tree of arrays whose first axis counts queries
Slots = Callable[[jax.Array], jax.Array]  # an array of all queries -> its part for some of them


def in_blocks(
    Q: int,
    n_queries: Int[Array, ""],
    sizes: tuple[int, int],
    run: Callable[[Slots], Numbers],
) -> Numbers:
    """What `run` gives for the first `n_queries` of Q queries; for the others 0, or anything.

    Large blocks read the vocabulary seldom, small ones at the end leave few slots empty. How many
    queries there are is data, not shape.

    Args:
        sizes: queries in each block: the first number while so many are left, then the second.
        run: the numbers of the queries that the function picks.
    """

    def step(first, block, b, out):
        start = jnp.minimum(first + b * block, Q - block)
        part = run(lambda x: lax.dynamic_slice_in_dim(x, start, block))
        return jax.tree.map(lambda o, p: lax.dynamic_update_slice_in_dim(o, p, start, 0), out, part)

    large, small = sizes
    small = min(Q, small)
    one = jax.eval_shape(lambda: run(lambda x: x[:small]))
    out = jax.tree.map(lambda x: jnp.zeros((Q, *x.shape[1:]), x.dtype), one)
    done = jnp.int32(0)
    # A block of all Q slots would be the same in each step, and XLA moves what is the same out
    # of the loop: it would run once also where no step does.
    if large < Q:
        n_large = n_queries // large
        out = lax.fori_loop(0, n_large, functools.partial(step, 0, large), out)
        done = n_large * large
    n_small = (n_queries - done + small - 1) // small
    return lax.fori_loop(0, n_small, functools.partial(step, done, small), out)
