"""The kernels of this platform against the same computations in XLA's operations."""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscore.device.attention.interval import ATTENTION, blocked
from jaxscore.device.attention.score_rule import Alibi, ScoreRule
from jaxscore.device.backends import (
    BACKENDS,
    MOSAIC_KERNELS,
    AttentionName,
    current_backend,
)
from jaxscore.device.experts import BLOCK, GROUPED, SUMS
from tools.device_check.checks import (
    NOTE,
    SKIPPED,
    Options,
    guarded,
    largest_difference,
    record,
    report,
)
from tools.device_check.timing import median_seconds

ALLOWED = {"float32": 1e-4, "bfloat16": 3e-2}  # of values near 1; 8 bits before the last product
SHAPES = (  # rows, length, query heads, key heads, head width
    (8, 512, 14, 2, 64),
    (1, 4096, 32, 8, 128),
    (2, 1024, 8, 4, 256),
    (4, 768, 12, 12, 80),
)
SMALL_SHAPES = ((2, 96, 4, 2, 16),)
EXPERTS = (4096, 2048, 768, 64, 8)  # tokens, width, inner width, experts, of which a token has
SMALL_EXPERTS = (64, 32, 64, 4, 2)
COMPILERS = 8  # threads


class Case(NamedTuple):
    """A kernel and the same computation in XLA's operations, on the same arguments.

    Attributes:
        name: the kernel, shapes, and the variant.
        allowed: the largest difference allowed.
        flops: the operations of the kernel's products, or None if they are not counted.
    """

    name: str
    kernel: Callable[..., Any]
    plain: Callable[..., Any]
    args: tuple[Any, ...]
    plain_args: tuple[Any, ...]
    allowed: float
    flops: float | None = None


def run(options: Options) -> None:
    """Check the kernels that `options.subject` names."""
    chosen = list(CASES[options.subject](options.small))
    if not chosen:
        backend = current_backend()
        text = f"attention is {backend.attention!r} and experts are {backend.experts!r} here"
        return record(SKIPPED, f"{options.subject}: there is no such kernel on this device: {text}")
    compare(chosen, options)


def compare(chosen: list[Case], options: Options) -> None:
    """Report the numbers of each case as soon as it is compiled, and then the times of all.

    Compilers run in threads: the first of a kernel takes up to a minute, most of it on one core.
    """
    checked: list[tuple[Case, Any, Any]] = []

    def numbers(case: Case, compiled: Any) -> None:
        kernel, plain = compiled.result()
        got, want = jax.device_get((kernel(*case.args), plain(*case.plain_args)))
        worst = largest_difference(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True))
        report(worst < case.allowed, f"{case.name}: worst difference {worst:.1e}")
        checked.append((case, kernel, plain))

    def times(case: Case, kernel: Any, plain: Any) -> None:
        kernel_s = median_seconds(functools.partial(kernel, *case.args))
        plain_s = median_seconds(functools.partial(plain, *case.plain_args))
        rate = "" if case.flops is None else f" ({case.flops / kernel_s / 1e12:.1f} TFLOP/s)"
        record(
            NOTE,
            f"{case.name}: {1e3 * kernel_s:.2f} ms{rate}, "
            f"in XLA's operations {1e3 * plain_s:.2f} ms",
        )

    pool = ThreadPoolExecutor(COMPILERS)
    waiting = [(case, pool.submit(_compile, case)) for case in chosen]
    for case, compiled in waiting:
        if options.has_time(case.name):
            guarded(case.name, numbers, case, compiled)
    pool.shutdown(wait=False, cancel_futures=True)
    for entry in checked:
        if options.has_time(f"{entry[0].name}: its time"):
            guarded(entry[0].name, times, *entry)


def _compile(case: Case) -> tuple[Any, Any]:
    return (
        jax.jit(case.kernel).lower(*case.args).compile(),
        jax.jit(case.plain).lower(*case.plain_args).compile(),
    )


def platform_attention(small: bool) -> Iterator[Case]:
    """Cases of the attention kernel of this platform; `small` interprets those of all platforms."""
    if small:
        names = dict.fromkeys(backend.attention for backend in BACKENDS.values())
    else:
        names = {current_backend().attention: None}
    for name in names:
        if name.startswith("kernel"):
            yield from attention(name, small)


def replacement(small: bool) -> Iterator[Case]:
    """Cases of the attention kernel that replaces Triton's where JAX lacks it."""
    name = MOSAIC_KERNELS.get(getattr(jax.devices()[0], "compute_capability", ""))
    if name and not small and current_backend().attention == "kernel_gpu":
        yield from attention(name, small)


def attention(name: AttentionName, interpret: bool) -> Iterator[Case]:
    """Cases of a question with many answers in each row.

    The first shape is also checked with a window and soft cap, and with ALiBi, if interpreted in
    float32 alone. A GPU takes no kernel in float32.
    """
    kernel: Callable[..., Any] = ATTENTION[name]
    kernel = functools.partial(kernel, interpret=True) if interpret else kernel
    shapes = SMALL_SHAPES if interpret else SHAPES
    for shape in shapes:
        R, L, N, _, H = shape
        slopes = tuple(0.5 ** (k + 1) for k in range(N))
        rules = {
            "plain": (ScoreRule(H**-0.5), None),
            "window and soft cap": (ScoreRule(H**-0.5, 30.0), jnp.int32(L // 3)),
            "ALiBi": (ScoreRule(H**-0.5, None, Alibi(slopes)), None),
        }
        for dtype in ALLOWED if interpret or name == "kernel_tpu" else ("bfloat16",):
            for variant, (rule, window) in rules.items():
                is_quick = shape != shapes[0] or (interpret and dtype == "bfloat16")
                if variant != "plain" and is_quick:
                    continue
                bind = functools.partial(functools.partial, rule=rule, dtype=jnp.dtype(dtype))
                args = (*tries(shape), window)
                text = f"{name}, {R} x {L}, {N} heads of {H}, {dtype}, {variant}"
                yield Case(text, bind(kernel), bind(blocked), args, args, ALLOWED[dtype])


@functools.cache
def tries(shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """Return queries, keys, values, positions and subtree ends: a question with many answers."""
    R, L, N, K, H = shape
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (
        jax.random.normal(key, (R, L, heads, H), jnp.float32)
        for key, heads in zip(keys, (N, K, K), strict=True)
    )
    shared, n_own = L // 2, max(1, L // 16)
    at = np.arange(L)
    branch = (at - shared) // n_own
    position = np.where(at < shared, at, shared + (at - shared) % n_own)
    end = np.where(at < shared, L, np.minimum(shared + (branch + 1) * n_own, L))
    rows = (np.tile(x, (R, 1)).astype(np.int32) for x in (position, end))
    return (q, k, v, *map(jnp.asarray, rows))


def mixture(small: bool) -> Iterator[Case]:
    """Cases of the experts' products and sums of this platform; `small` interprets all."""
    backend = current_backend()
    sizes = SMALL_EXPERTS if small else EXPERTS
    for name in GROUPED if small else {backend.experts} & set(GROUPED):
        yield products(name, sizes, small)
    for name in SUMS if small else {backend.experts} & set(SUMS):
        yield sums(name, sizes, small)


def products(name: str, sizes: tuple[int, ...], interpret: bool) -> Case:
    """Return blocks of rows with different matrices against one product after the other."""
    tokens, width, inner, count, k = sizes
    n_blocks = tokens * k // BLOCK + count
    keys = jax.random.split(jax.random.key(1), 2)
    x = jax.random.normal(keys[0], (n_blocks, BLOCK, width), jnp.float32).astype(jnp.bfloat16)
    weights = jax.random.normal(keys[1], (count, inner, width), jnp.float32) * width**-0.5
    matrix = jnp.arange(n_blocks, dtype=jnp.int32) * count // n_blocks
    args = x, weights.astype(jnp.bfloat16), matrix, jnp.int32(n_blocks)

    def kernel(x: Any, w: Any, m: Any, n: Any) -> Any:
        return GROUPED[name](x, w, None, m, n, interpret=interpret)

    def plain(x: Any, w: Any, m: Any, n: Any) -> Any:
        return jax.lax.map(
            lambda block: jnp.matmul(block[0], w[block[1]].T, preferred_element_type=jnp.float32),
            (x, m),
        )

    text = f"experts by {name}, {n_blocks} x {BLOCK} rows of {width}, {count} of {inner} x {width}"
    return Case(text, kernel, plain, args, args, ALLOWED["bfloat16"], 2.0 * x.size * inner)


def sums(name: str, sizes: tuple[int, ...], interpret: bool) -> Case:
    """Return weighted sums of each token's rows, a quarter of its pairs', against a scatter."""
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

    kernel = functools.partial(SUMS[name], is_first=jnp.bool_(False), interpret=interpret)
    text = f"sums of experts' rows by {name}, {n} rows of {width} to {tokens} tokens"
    args, plain_args = (y, row.reshape(tokens, k), share, before), (y, pair, share, before)
    return Case(text, kernel, plain, args, plain_args, ALLOWED["float32"])


CASES = {"attention": platform_attention, "experts": mixture, "replacement": replacement}
