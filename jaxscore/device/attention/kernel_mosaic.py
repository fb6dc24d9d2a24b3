"""Attention under the interval mask as one kernel for Hopper GPUs (Pallas, Mosaic GPU).

The same computation as `kernel_gpu`, for a JAX without Pallas Triton. Each program takes one block
of queries of one head. One warpgroup copies the listed blocks of keys and values to `STAGES` slots
of shared memory in turn; two others multiply them, each with half of the queries, by the tensor
cores' instruction `wgmma`.

    grid (heads, query blocks)      q, out [N, T, H]      k [K, H, T]      v [K, T, H]

All constructs are known to Pallas' interpreter, so that tests run the kernel itself: weights go
through shared memory, and the products of a step are added in registers.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from jaxscore.device.attention import kernel_gpu
from jaxscore.device.attention.kernel_gpu import LOG2_E, LOWEST, ByHead, by_head, by_row
from jaxscore.device.attention.kv_cache import MASKED
from jaxscore.device.attention.score_rule import ScoreRule

# Padded widths of heads, and columns of values in one product; 64 of the widest spill 272 bytes.
WIDTHS = {64: 64, 128: 64, 256: 32}
ROWS = 64  # queries of a warpgroup, as `wgmma` has them
WARPGROUPS = 2  # that compute
KEYS = 64  # in a block
STAGES = 2  # blocks of keys in shared memory
REGISTERS, COPYING_REGISTERS = 240, 24  # of 65536 for 128 threads each


def kernel_sm90(
    q_RLNH: Float[Array, "R L N H"],
    k_RLKH: Float[Array, "R L K H"],
    v_RLKH: Float[Array, "R L K H"],
    position_RL: Int[Array, "R L"],
    subtree_end_RL: Int[Array, "R L"],
    window: Int[Array, ""] | None,
    *,
    rule: ScoreRule,
    dtype: Any,
    interpret: Any = None,
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """`interval.blocked` as a kernel for compute capability 9.0 and heads of up to 256 channels.

    Args:
        interpret: parameters of Pallas' interpreter for GPUs, to run the kernel on a CPU.
    """
    width = next(one for one in WIDTHS if q_RLNH.shape[-1] <= one)
    queries = WARPGROUPS * ROWS
    arrays = q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window
    inputs = by_head(*arrays, dtype=dtype, queries=queries, keys=KEYS, width=width)
    out, lse = _run(inputs, window is not None, rule, interpret)
    return by_row(out, lse, q_RLNH.shape)


lower_small = functools.partial(kernel_gpu.lower_small, kernel_sm90)


def _run(inputs: ByHead, windowed: bool, rule: ScoreRule, interpret: Any) -> tuple[Array, Array]:
    """The kernel call: mixed values [N, T, width] and log-sum-exp [N, T]."""
    N, T, width = inputs.q.shape
    dtype, columns = inputs.q.dtype, WIDTHS[width]
    given = dict(inputs._asdict(), k=inputs.k.swapaxes(1, 2))
    slopes, penalties = rule.kernel_bias(inputs.position) or (None, None)
    bias = {"slopes": slopes, "penalties": penalties}
    given |= {name: one for name, one in bias.items() if one is not None}

    def tiles(*shape: int) -> Any:
        """Shared memory as `wgmma` reads it, with the same tiles for both factors."""
        swizzle = min(128, columns * dtype.itemsize)  # bytes
        tiling = plgpu.TilingTransform((8, swizzle // dtype.itemsize))
        return plgpu.SMEM(shape, dtype, transforms=(tiling, plgpu.SwizzleTransform(swizzle)))

    scratch = {
        "q": tiles(WARPGROUPS, ROWS, width),
        "k": tiles(STAGES, width, KEYS),
        "v": tiles(STAGES, KEYS, width),
        "weights": tiles(WARPGROUPS, ROWS, KEYS),
        "end": plgpu.SMEM((STAGES, KEYS), jnp.int32),
    }
    of_queries = {}
    if windowed or slopes is not None:
        scratch["position"] = plgpu.SMEM((STAGES, KEYS), jnp.int32)
        of_queries["position"] = plgpu.SMEM((WARPGROUPS, ROWS), jnp.int32)
    if penalties is not None:
        scratch["penalties"] = plgpu.SMEM((STAGES, KEYS), jnp.float32)
        of_queries["penalties"] = plgpu.SMEM((WARPGROUPS, ROWS), jnp.float32)
    body = functools.partial(
        _kernel,
        per_key=N // inputs.k.shape[0],
        scale=rule.scale,
        softcap=rule.softcap,
        windowed=windowed,
        columns=columns,
        # JAX 0.10's interpreter does not know layouts of registers, and needs none.
        laid_out=plgpu.layout_cast if interpret is None else lambda x, _: x,
    )

    def kernel(*refs: Any, **shared: Any) -> None:
        body(dict(zip(given, refs[:-2], strict=True)), *refs[-2:], **shared)

    kernel.__name__ = "interval_attention"
    run = plgpu.kernel(
        kernel,
        out_type=(
            jax.ShapeDtypeStruct((N, T, width), jnp.float32),
            jax.ShapeDtypeStruct((N, T), jnp.float32),
        ),
        scratch_types={
            "slots": scratch,
            "of_queries": of_queries,
            "loaded_queries": plgpu.Barrier(num_arrivals=WARPGROUPS * (1 + len(of_queries))),
            "loaded": plgpu.Barrier(num_arrivals=len(scratch) - 2, num_barriers=STAGES),
            "used": plgpu.Barrier(num_arrivals=WARPGROUPS, num_barriers=STAGES),
        },
        grid=(N, T // (WARPGROUPS * ROWS)),
        grid_names=("head", "queries"),
        num_threads=WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=interpret,
    )
    return run(*given.values())


def _kernel(
    given: dict[str, Any],
    out_ref: Any,
    lse_ref: Any,
    *,
    slots: dict[str, Any],
    of_queries: dict[str, Any],
    loaded_queries: Any,
    loaded: Any,
    used: Any,
    **what: Any,
) -> None:
    """One block of queries of one head."""
    # Over 60 lines: a kernel reads from top to bottom.
    head, nth_queries = lax.axis_index("head"), lax.axis_index("queries")
    warpgroup = lax.axis_index("warpgroup")
    laid_out, layout = what["laid_out"], plgpu.Layout.WGMMA
    by_query, by_key = layout.reduce(1), layout.reduce(0)
    columns = what["columns"]
    key_head = head // what["per_key"]
    start = nth_queries * (WARPGROUPS * ROWS)
    whole, some = given["visits"][nth_queries, 0], given["visits"][nth_queries, 1]

    @pl.when(warpgroup == WARPGROUPS)
    def _copy() -> None:
        plgpu.set_max_registers(COPYING_REGISTERS, action="decrease")
        for n in range(WARPGROUPS):
            own = pl.ds(start + n * ROWS, ROWS)
            plgpu.copy_gmem_to_smem(given["q"].at[head, own], slots["q"].at[n], loaded_queries)
            for name, slot in of_queries.items():
                source = given[name].at[head, own] if name == "penalties" else given[name].at[own]
                plgpu.copy_gmem_to_smem(source, slot.at[n], loaded_queries)

        def copy_keys(nth: Array, carry: None) -> None:
            slot = lax.rem(nth, jnp.int32(STAGES))

            @pl.when(nth >= STAGES)
            def _wait() -> None:
                plgpu.barrier_wait(used.at[slot])

            @pl.when(nth < some)
            def _load() -> None:
                own = pl.ds(given["order"][nth_queries, nth] * KEYS, KEYS)
                sources = {
                    "k": given["k"].at[key_head, :, own],
                    "v": given["v"].at[key_head, own],
                    "end": given["end"].at[own],
                }
                if "position" in slots:
                    sources["position"] = given["position"].at[own]
                if "penalties" in slots:
                    sources["penalties"] = given["penalties"].at[head, own]
                for name, source in sources.items():
                    plgpu.copy_gmem_to_smem(source, slots[name].at[slot], loaded.at[slot])

        # The last rounds only wait until all blocks are used.
        lax.fori_loop(0, some + STAGES, copy_keys, None)

    @pl.when(warpgroup < WARPGROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(REGISTERS, action="increase")
        pairs, first = (ROWS, KEYS), start + warpgroup * ROWS
        plgpu.barrier_wait(loaded_queries)

        def down(x: Array, shape: tuple[int, int] = pairs) -> Array:
            return lax.broadcast_in_dim(x, shape, [0])

        def difference(of: str, slot: Array) -> Array:
            """A number of each query minus that of each key."""
            of_i = laid_out(of_queries[of][warpgroup], by_query)
            of_j = laid_out(slots[of][slot], by_key)
            return down(of_i) - lax.broadcast_in_dim(of_j, pairs, [1])

        def product(a: Any, b: Any) -> Array:
            def run(sums: Any) -> Array:
                plgpu.wgmma(sums, a, b)
                return sums[...]

            return pl.run_scoped(run, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))

        def step(masked: bool, nth: Array, carry: Any) -> Any:
            mixed, top, total = carry
            slot = lax.rem(nth, jnp.int32(STAGES))
            plgpu.barrier_wait(loaded.at[slot])
            scores = product(slots["q"].at[warpgroup], slots["k"].at[slot])
            scale, softcap = what["scale"], what["softcap"]
            if softcap is None:
                scores = scores * (scale * LOG2_E)
            else:  # the hardware's own tanh has 11 bits
                grown = jnp.exp2(scores * (2 * LOG2_E * scale / softcap))
                scores = (softcap * LOG2_E) * (1.0 - 2.0 / (1.0 + grown))
            if "slopes" in given:
                distance = difference("position", slot).astype(jnp.float32)
                scores = scores - distance * given["slopes"][head]
            if "penalties" in slots:
                scores = scores - difference("penalties", slot)
            if masked:
                i = first + laid_out(lax.broadcasted_iota(jnp.int32, pairs, 0), layout)
                j = given["order"][nth_queries, nth] * KEYS
                j = j + laid_out(lax.broadcasted_iota(jnp.int32, pairs, 1), layout)
                end = laid_out(slots["end"][slot], by_key)
                seen = (j <= i) & (i < lax.broadcast_in_dim(end, pairs, [1]))
                if what["windowed"]:
                    window = given["window"][0]
                    # No window is one that is wider than every distance.
                    window = jnp.where(window == 0, jnp.int32(2**31 - 1), window)
                    seen = seen & (difference("position", slot) < window)
                scores = jnp.where(seen, scores, MASKED)
            higher = jnp.maximum(top, scores.max(axis=1))
            weights = jnp.exp2(scores - down(higher))
            shrink = jnp.exp2(top - higher)
            total = total * shrink + weights.sum(axis=1)
            slots["weights"][warpgroup] = weights.astype(slots["weights"].dtype)
            plgpu.commit_smem()
            parts = []
            for n, part in enumerate(mixed):
                values = slots["v"].at[slot, :, pl.ds(n * columns, columns)]
                more = product(slots["weights"].at[warpgroup], values)
                parts.append(part * down(shrink, part.shape) + more)
            plgpu.barrier_arrive(used.at[slot])
            return tuple(parts), higher, total

        nothing = laid_out(jnp.zeros((ROWS, columns), jnp.float32), layout)
        carry = (
            (nothing,) * (slots["v"].shape[2] // columns),
            laid_out(jnp.full((ROWS,), LOWEST, jnp.float32), by_query),
            laid_out(jnp.zeros((ROWS,), jnp.float32), by_query),
        )
        carry = lax.fori_loop(0, whole, functools.partial(step, False), carry)
        mixed, top, total = lax.fori_loop(whole, some, functools.partial(step, True), carry)
        total = jnp.where(total == 0.0, 1.0, total)
        share, own = 1.0 / total, pl.ds(first, ROWS)
        for n, part in enumerate(mixed):
            out_ref[head, own, pl.ds(n * columns, columns)] = part * down(share, part.shape)
        lse_ref[head, own] = top * (1 / LOG2_E) + jnp.log(total)
