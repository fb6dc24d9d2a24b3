"""The kernels of this platform against the same computations in XLA's operations."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxscore.device.attention.interval import ATTENTION, blocked
from jaxscore.device.attention.score_rule import Alibi, ScoreRule
from jaxscore.device.backends import (
    BACKENDS,
    MOSAIC_KERNELS,
    AttentionName,
    Backend,
    current_backend,
)
from jaxscore.device.experts import BLOCK, GROUPED, SUMS
from tools.device_check.checks import Options, report
from tools.device_check.timing import time_call

ALLOWED = {"float32": 1e-4, "bfloat16": 3e-2}  # of values near 1; 8 bits before the last product
SHAPES = (  # rows, length, query heads, key heads, head width
    (8, 512, 14, 2, 64),
    (1, 4096, 14, 2, 64),
    (1, 4096, 32, 8, 128),
    (2, 1024, 8, 4, 256),
    (4, 768, 12, 12, 80),
)
SMALL_SHAPES = ((2, 96, 4, 2, 16),)
EXPERTS = (4096, 2048, 768, 64, 8)  # tokens, width, inner width, experts, of which a token has
SMALL_EXPERTS = (64, 32, 64, 4, 2)


def run(options: Options) -> bool:
    """A line for each shape and type; a NOTE where this device runs no kernel."""
    backend = current_backend()
    small = options.small
    verdicts = []
    if small:
        names = [one.attention for one in BACKENDS.values() if one.attention.startswith("kernel")]
        verdicts += attention(names, SMALL_SHAPES, small)
    elif backend.attention.startswith("kernel"):
        verdicts += attention([backend.attention], SHAPES, small)
    else:
        report(None, f"attention runs as {backend.attention!r} here, which is no kernel")
    if small or backend.experts in GROUPED:
        sizes = SMALL_EXPERTS if small else EXPERTS
        verdicts.append(experts(backend, sizes, small))
        verdicts += sums(backend, sizes, small)
    else:
        report(None, f"experts run as {backend.experts!r} here, which is no kernel")
    capability = getattr(jax.devices()[0], "compute_capability", "")
    other = MOSAIC_KERNELS.get(capability)
    if not small and other and backend.attention == "kernel_gpu":
        # What replaces Triton's kernel where JAX lacks it: last, as it has run nowhere yet.
        verdicts += attention([other], SHAPES, small)
    return all(verdicts)


def attention(
    names: list[AttentionName], shapes: tuple[Any, ...], interpret: bool
) -> Iterator[bool]:
    """A question with many answers in each row; plain, with window and soft cap, with ALiBi.

    A GPU takes no kernel in float32.
    """
    for name in names:
        kernel: Callable[..., Any] = ATTENTION[name]
        kernel = functools.partial(kernel, interpret=True) if interpret else kernel
        for shape in shapes:
            R, L, N, _, H = shape
            slopes = tuple(0.5 ** (k + 1) for k in range(N))
            rules = {
                "plain": (ScoreRule(H**-0.5), None),
                "window and soft cap": (ScoreRule(H**-0.5, 30.0), jnp.int32(L // 3)),
                "ALiBi": (ScoreRule(H**-0.5, None, Alibi(slopes)), None),
            }
            for dtype in ALLOWED if interpret or name == "kernel_tpu" else ("bfloat16",):
                given = tries(shape)
                for kind, (rule, window) in rules.items():
                    how = {"rule": rule, "dtype": jnp.dtype(dtype)}
                    ours, ours_s, _ = time_call(functools.partial(kernel, **how), *given, window)
                    theirs, theirs_s, _ = time_call(
                        functools.partial(blocked, **how), *given, window
                    )
                    worst = max(
                        float(np.abs(x - y).max()) for x, y in zip(ours, theirs, strict=True)
                    )
                    yield report(
                        worst < ALLOWED[dtype],
                        f"{name}, {R} x {L}, {N} heads of {H}, {dtype}, {kind}: "
                        f"{1e3 * ours_s:.2f} ms, in XLA's operations {1e3 * theirs_s:.2f} ms; "
                        f"worst difference {worst:.1e}",
                    )


def tries(shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """Queries, keys, values, positions and subtree ends: in each row one question, many answers."""
    R, L, N, K, H = shape
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (
        jax.random.normal(key, (R, L, heads, H), jnp.float32)
        for key, heads in zip(keys, (N, K, K), strict=True)
    )
    shared, own = L // 2, max(1, L // 16)
    at = np.arange(L)
    branch = (at - shared) // own
    position = np.where(at < shared, at, shared + (at - shared) % own)
    end = np.where(at < shared, L, np.minimum(shared + (branch + 1) * own, L))
    rows = (np.tile(x, (R, 1)).astype(np.int32) for x in (position, end))
    return (q, k, v, *map(jnp.asarray, rows))


def experts(backend: Backend, sizes: tuple[int, ...], interpret: bool) -> bool:
    """Blocks of rows with matrices of their own against one product after the other."""
    tokens, width, inner, count, k = sizes
    n_blocks, block = tokens * k // BLOCK + count, BLOCK
    keys = jax.random.split(jax.random.key(1), 2)
    x = jax.random.normal(keys[0], (n_blocks, block, width), jnp.float32).astype(jnp.bfloat16)
    weights = jax.random.normal(keys[1], (count, inner, width), jnp.float32) * width**-0.5
    matrix = jnp.arange(n_blocks, dtype=jnp.int32) * count // n_blocks
    given = x, weights.astype(jnp.bfloat16), matrix, jnp.int32(n_blocks)
    good = []
    for name in GROUPED if interpret else [backend.experts]:
        product = functools.partial(GROUPED[name], interpret=interpret)

        def kernel(x: Any, w: Any, m: Any, n: Any, product: Any = product) -> Any:
            return product(x, w, None, m, n)

        def plain(x: Any, w: Any, m: Any, n: Any) -> Any:
            return jax.lax.map(
                lambda one: jnp.matmul(one[0], w[one[1]].T, preferred_element_type=jnp.float32),
                (x, m),
            )

        ours, ours_s, _ = time_call(kernel, *given)
        theirs, theirs_s, _ = time_call(plain, *given)
        worst = float(np.abs(ours - theirs).max())
        rate = 2 * x.size * inner / ours_s
        good.append(
            report(
                worst < ALLOWED["bfloat16"],
                f"experts by {name}, {n_blocks} x {block} rows of {width}, {count} of "
                f"{inner} x {width}: {1e3 * ours_s:.2f} ms ({rate / 1e12:.1f} TFLOP/s), one after "
                f"the other {1e3 * theirs_s:.2f} ms; worst difference {worst:.1e}",
            )
        )
    return all(good)


def sums(backend: Backend, sizes: tuple[int, ...], interpret: bool) -> Iterator[bool]:
    """Weighted sums of each token's rows, a quarter of its pairs', against a scatter."""
    tokens, width, _, _, k = sizes
    n = tokens * k // 4
    keys = jax.random.split(jax.random.key(2), 4)
    pair = jax.random.permutation(keys[0], tokens * k)[:n]
    row = jnp.full(tokens * k, -1, jnp.int32).at[pair].set(jnp.arange(n, dtype=jnp.int32))
    share = jax.random.uniform(keys[1], (tokens, k), jnp.float32)
    y = jax.random.normal(keys[2], (n, width), jnp.float32)
    before = jax.random.normal(keys[3], (tokens, width), jnp.float32)

    def plain(y: Any, pair: Any, share: Any, before: Any) -> Any:
        return before.at[pair // k].add(y * share.reshape(-1)[pair][:, None])

    for name in SUMS if interpret else [backend.experts] if backend.experts in SUMS else []:
        kernel = functools.partial(SUMS[name], is_first=jnp.bool_(False), interpret=interpret)
        ours, ours_s, _ = time_call(kernel, y, row.reshape(tokens, k), share, before)
        theirs, theirs_s, _ = time_call(plain, y, pair, share, before)
        worst = float(np.abs(ours - theirs).max())
        yield report(
            worst < ALLOWED["float32"],
            f"sums of experts' rows by {name}, {n} rows of {width} to {tokens} tokens: "
            f"{1e3 * ours_s:.2f} ms, by a scatter {1e3 * theirs_s:.2f} ms; "
            f"worst difference {worst:.1e}",
        )
