"""Attention under the interval mask as one kernel for Hopper and Blackwell (Pallas, Mosaic GPU).

The same computation as `kernel_gpu`, for a JAX without Pallas Triton. Each program computes one
block of queries of one head. One warpgroup copies the listed blocks of keys and values to `STAGES`
slots of shared memory in turn. The others multiply them by their share of the queries on tensor
cores: with `wgmma`, which accumulates in registers, or `tcgen05.mma`, which accumulates in tensor
memory.

    grid (heads, query blocks)      q, out [N, T, H]      k [K, H, T]      v [K, T, H]

The kernel uses only constructs that Pallas' interpreter supports (that of JAX 0.12 for Blackwell),
so that tests run the kernel itself. For this reason the weights pass through shared memory, and
Hopper adds the products of a step to its sums in registers.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from jaxscore.device.attention import kernel_gpu
from jaxscore.device.attention.kernel_gpu import (
    LOG2_E,
    LOWEST,
    KernelInputs,
    make_kernel_inputs,
    restore_rows,
)
from jaxscore.device.attention.kv_cache import MASKED
from jaxscore.device.attention.score_rule import ScoreRule

KEYS = 64  # keys in a block
STAGES = 2  # blocks of keys in shared memory
WARPGROUPS = 2  # warpgroups that compute; they take registers from the one that copies
REGISTERS, COPYING_REGISTERS = 240, 24  # per thread, of 65536 for warpgroups of 128 threads


class Sizes(NamedTuple):
    """Sizes of the kernel for one padded head width.

    Attributes:
        warpgroups: number of warpgroups that compute.
        columns: number of columns of the output that a warpgroup has in registers at a time.
    """

    warpgroups: int
    columns: int


def _kernel_mosaic(
    products: type["Hopper"] | type["Blackwell"],
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
    """`interval.blocked` as a kernel for heads of up to 256 channels.

    Args:
        products: class for the tensor cores of the GPU.
        window, rule, dtype: see `interval.attention`.
        interpret: parameters of Pallas' interpreter for GPUs, to run the kernel on a CPU; None to
            run it on a GPU.
    """
    width = next(width for width in products.SIZES if q_RLNH.shape[-1] <= width)
    queries = products.SIZES[width].warpgroups * products.ROWS
    arrays = q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window
    inputs = make_kernel_inputs(*arrays, dtype=dtype, queries=queries, keys=KEYS, width=width)
    out, lse = _run(products, inputs, window is not None, rule, interpret)
    return restore_rows(out, lse, q_RLNH.shape)


@dataclasses.dataclass(frozen=True)
class Hopper:
    """Products of a warpgroup with `wgmma`, which accumulates in registers."""

    # With 64 columns the largest width spills 272 bytes.
    SIZES: ClassVar = {
        64: Sizes(WARPGROUPS, 64),
        128: Sizes(WARPGROUPS, 64),
        256: Sizes(WARPGROUPS, 32),
    }
    ROWS: ClassVar = 64  # queries per warpgroup
    LAYOUT: ClassVar = plgpu.Layout.WGMMA

    warpgroup: Any
    width: int

    @classmethod
    def scratch(cls, width: int) -> dict[str, Any]:
        """Return memory and barriers in addition to those that every GPU needs."""
        return {}

    def product(self, q: Any, k: Any) -> Array:
        """Multiply queries [ROWS, width] by keys [width, KEYS]."""

        def run(acc_ref: Any) -> Array:
            plgpu.wgmma(acc_ref, q, k)
            return acc_ref[...]

        return pl.run_scoped(run, plgpu.ACC((q.shape[0], k.shape[1]), jnp.float32))

    def start(self, zeros: Array) -> tuple[Array, ...]:
        """Return the initial accumulator, made of copies of `zeros` [ROWS, columns]."""
        return (zeros,) * (self.width // zeros.shape[1])

    def accumulate(self, acc: tuple[Array, ...], alpha: Any, p: Any, v: Any) -> Any:
        """Scale the accumulator by `alpha(shape)` and add weights times values [KEYS, width]."""
        updated = []
        for n, columns in enumerate(acc):
            values = v.at[:, pl.ds(n * columns.shape[1], columns.shape[1])]
            updated.append(columns * alpha(columns.shape) + self.product(p, values))
        return tuple(updated)

    def columns(self, acc: tuple[Array, ...]) -> Iterator[Array]:
        """Yield the accumulator in groups of columns."""
        yield from acc


@dataclasses.dataclass(frozen=True)
class Blackwell:
    """Products of a warpgroup with `tcgen05.mma`, which accumulates in tensor memory.

    The methods are those of `Hopper`.

    Attributes:
        scores_tmem, output_tmem: tensor memory for scores and accumulators of all warpgroups, in
            adjacent columns.
        product_done: barriers for the completion of each warpgroup's product.
        access_done: barriers for the accesses of each warpgroup's threads to tensor memory.
    """

    # Two warpgroups of the largest width fit neither in shared memory nor in the 512 columns of
    # tensor memory.
    SIZES: ClassVar = {64: Sizes(WARPGROUPS, 32), 128: Sizes(WARPGROUPS, 32), 256: Sizes(1, 32)}
    ROWS: ClassVar = 128
    LAYOUT: ClassVar = plgpu.Layout.TCGEN05

    warpgroup: Any
    width: int
    scores_tmem: Any
    output_tmem: Any
    product_done: Any
    access_done: Any

    @classmethod
    def scratch(cls, width: int) -> dict[str, Any]:
        n = cls.SIZES[width].warpgroups
        barrier = plgpu.Barrier(num_barriers=n, orders_tensor_core=True)
        return {
            "scores_tmem": plgpu.TMEM((cls.ROWS, n * KEYS), jnp.float32),
            "output_tmem": plgpu.TMEM((cls.ROWS, n * width), jnp.float32),
            "product_done": barrier,
            "access_done": barrier,
        }

    def product(self, q: Any, k: Any) -> Array:
        scores_ref = self.scores_tmem.at[:, pl.ds(self.warpgroup * KEYS, KEYS)]
        self._multiply(scores_ref, q, k, accumulate=False)
        scores = self._load(scores_ref)
        self._order_accesses()
        return scores

    def start(self, zeros: Array) -> tuple[Array, ...]:
        for ref in self._column_refs():
            plgpu.async_store_tmem(ref, zeros)
        plgpu.commit_tmem()
        self._order_accesses()
        return ()

    def accumulate(self, _: tuple[Array, ...], alpha: Any, p: Any, v: Any) -> Any:
        for ref in self._column_refs():
            plgpu.async_store_tmem(ref, self._load(ref) * alpha(ref.shape))
        plgpu.commit_tmem()
        self._order_accesses()
        acc_ref = self.output_tmem.at[:, pl.ds(self.warpgroup * self.width, self.width)]
        self._multiply(acc_ref, p, v, accumulate=True)
        return ()

    def columns(self, _: tuple[Array, ...]) -> Iterator[Array]:
        yield from map(self._load, self._column_refs())

    def _column_refs(self) -> list[Any]:
        """Return references to this warpgroup's accumulator in groups of columns."""
        columns = self.SIZES[self.width].columns
        starts = [self.warpgroup * self.width + n for n in range(0, self.width, columns)]
        return [self.output_tmem.at[:, pl.ds(start, columns)] for start in starts]

    def _load(self, ref: Any) -> Array:
        values = plgpu.async_load_tmem(ref, layout=self.LAYOUT)
        plgpu.wait_load_tmem()
        return values

    def _order_accesses(self) -> None:
        """Order this warpgroup's accesses to tensor memory before its next product."""
        plgpu.barrier_arrive(self.access_done.at[self.warpgroup])
        plgpu.barrier_wait(self.access_done.at[self.warpgroup])

    def _multiply(self, acc_ref: Any, a: Any, b: Any, accumulate: bool) -> None:
        barrier = self.product_done.at[self.warpgroup]
        plgpu.tcgen05_mma(acc_ref, a, b, barrier, accumulate=accumulate)
        plgpu.barrier_wait(barrier)


kernel_sm90 = functools.partial(_kernel_mosaic, Hopper)
kernel_sm100 = functools.partial(_kernel_mosaic, Blackwell)
lower_small_sm90 = functools.partial(kernel_gpu.lower_small, kernel_sm90)
lower_small_sm100 = functools.partial(kernel_gpu.lower_small, kernel_sm100)


def _run(
    products: type[Hopper] | type[Blackwell],
    inputs: KernelInputs,
    windowed: bool,
    rule: ScoreRule,
    interpret: Any,
) -> tuple[Array, Array]:
    """Call the kernel; return attention output [N, T, width] and log-sum-exp [N, T]."""
    N, T, width = inputs.q.shape
    (warpgroups, columns), rows = products.SIZES[width], products.ROWS
    dtype = inputs.q.dtype
    arrays = dict(inputs._asdict(), k=inputs.k.swapaxes(1, 2))
    slopes, penalties = rule.kernel_bias(inputs.position) or (None, None)
    bias = {"slopes": slopes, "penalties": penalties}
    arrays |= {name: array for name, array in bias.items() if array is not None}

    def tiles(*shape: int) -> Any:
        """Return shared memory in the layout of tensor cores, with equal tiles for both factors."""
        swizzle = min(128, columns * dtype.itemsize)  # bytes
        tiling = plgpu.TilingTransform((8, swizzle // dtype.itemsize))
        return plgpu.SMEM(shape, dtype, transforms=(tiling, plgpu.SwizzleTransform(swizzle)))

    slots = {
        "q": tiles(warpgroups, rows, width),
        "k": tiles(STAGES, width, KEYS),
        "v": tiles(STAGES, KEYS, width),
        "weights": tiles(warpgroups, rows, KEYS),
        "end": plgpu.SMEM((STAGES, KEYS), jnp.int32),
    }
    q_smem = {}
    if windowed or slopes is not None:
        slots["position"] = plgpu.SMEM((STAGES, KEYS), jnp.int32)
        q_smem["position"] = plgpu.SMEM((warpgroups, rows), jnp.int32)
    if penalties is not None:
        slots["penalties"] = plgpu.SMEM((STAGES, KEYS), jnp.float32)
        q_smem["penalties"] = plgpu.SMEM((warpgroups, rows), jnp.float32)
    body = functools.partial(
        _kernel,
        per_key=N // inputs.k.shape[0],
        scale=rule.scale,
        softcap=rule.softcap,
        windowed=windowed,
        products=products,
        # JAX 0.10's interpreter neither supports nor needs register layouts.
        set_layout=plgpu.layout_cast if interpret is None else lambda x, _: x,
    )

    def kernel(*refs: Any, **shared: Any) -> None:
        body(dict(zip(arrays, refs[:-2], strict=True)), *refs[-2:], **shared)

    kernel.__name__ = "interval_attention"
    run = plgpu.kernel(
        kernel,
        out_type=(
            jax.ShapeDtypeStruct((N, T, width), jnp.float32),
            jax.ShapeDtypeStruct((N, T), jnp.float32),
        ),
        scratch_types={
            "slots": slots,
            "q_smem": q_smem,
            "tensor_cores": products.scratch(width),
            "q_loaded": plgpu.Barrier(num_arrivals=warpgroups * (1 + len(q_smem))),
            "k_loaded": plgpu.Barrier(num_arrivals=len(slots) - 2, num_barriers=STAGES),
            "used": plgpu.Barrier(num_arrivals=warpgroups, num_barriers=STAGES),
        },
        grid=(N, T // (warpgroups * rows)),
        grid_names=("head", "queries"),
        num_threads=warpgroups + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=interpret,
    )
    return run(*arrays.values())


def _kernel(
    arrays: dict[str, Any],
    out_ref: Any,
    lse_ref: Any,
    *,
    slots: dict[str, Any],
    q_smem: dict[str, Any],
    tensor_cores: dict[str, Any],
    q_loaded: Any,
    k_loaded: Any,
    used: Any,
    **options: Any,
) -> None:
    """Compute one block of queries of one head."""
    # Over 60 lines: a kernel reads from top to bottom.
    head, q_index = lax.axis_index("head"), lax.axis_index("queries")
    warpgroup = lax.axis_index("warpgroup")
    products = options["products"](warpgroup, slots["v"].shape[2], **tensor_cores)
    (warpgroups, columns), rows = products.SIZES[products.width], products.ROWS
    set_layout, layout = options["set_layout"], products.LAYOUT
    by_query, by_key = layout.reduce(1), layout.reduce(0)
    key_head = head // options["per_key"]
    start = q_index * (warpgroups * rows)
    n_unmasked, n_visible = arrays["visits"][q_index, 0], arrays["visits"][q_index, 1]

    @pl.when(warpgroup == warpgroups)
    def _copy() -> None:
        if warpgroups == WARPGROUPS:
            plgpu.set_max_registers(COPYING_REGISTERS, action="decrease")
        for n in range(warpgroups):
            q_slice = pl.ds(start + n * rows, rows)
            plgpu.copy_gmem_to_smem(arrays["q"].at[head, q_slice], slots["q"].at[n], q_loaded)
            for name, slot in q_smem.items():
                source = (
                    arrays[name].at[head, q_slice]
                    if name == "penalties"
                    else arrays[name].at[q_slice]
                )
                plgpu.copy_gmem_to_smem(source, slot.at[n], q_loaded)

        def copy_keys(visit: Array, carry: None) -> None:
            slot = lax.rem(visit, jnp.int32(STAGES))

            @pl.when(visit >= STAGES)
            def _wait() -> None:
                plgpu.barrier_wait(used.at[slot])

            @pl.when(visit < n_visible)
            def _load() -> None:
                k_slice = pl.ds(arrays["order"][q_index, visit] * KEYS, KEYS)
                sources = {
                    "k": arrays["k"].at[key_head, :, k_slice],
                    "v": arrays["v"].at[key_head, k_slice],
                    "end": arrays["end"].at[k_slice],
                }
                if "position" in slots:
                    sources["position"] = arrays["position"].at[k_slice]
                if "penalties" in slots:
                    sources["penalties"] = arrays["penalties"].at[head, k_slice]
                for name, source in sources.items():
                    plgpu.copy_gmem_to_smem(source, slots[name].at[slot], k_loaded.at[slot])

        # The last iterations only wait until all blocks have been used.
        lax.fori_loop(0, n_visible + STAGES, copy_keys, None)

    @pl.when(warpgroup < warpgroups)
    def _compute() -> None:
        if warpgroups == WARPGROUPS:
            plgpu.set_max_registers(REGISTERS, action="increase")
        pairs, first = (rows, KEYS), start + warpgroup * rows
        plgpu.barrier_wait(q_loaded)

        def broadcast_queries(x: Array, shape: tuple[int, int] = pairs) -> Array:
            return lax.broadcast_in_dim(x, shape, [0])

        def broadcast_keys(x: Array) -> Array:
            return set_layout(lax.broadcast_in_dim(x, pairs, [1]), layout)

        def difference(name: str, slot: Array) -> Array:
            """Subtract the number of each key from the number of each query."""
            query_values = set_layout(q_smem[name][warpgroup], by_query)
            key_values = set_layout(slots[name][slot], by_key)
            return broadcast_queries(query_values) - broadcast_keys(key_values)

        def step(is_masked: bool, visit: Array, carry: Any) -> Any:
            acc, m_i, l_i = carry
            slot = lax.rem(visit, jnp.int32(STAGES))
            plgpu.barrier_wait(k_loaded.at[slot])
            scores = products.product(slots["q"].at[warpgroup], slots["k"].at[slot])
            scale, softcap = options["scale"], options["softcap"]
            if softcap is None:
                scores = scores * (scale * LOG2_E)
            else:  # the hardware's tanh has 11 bits of precision
                exp_2x = jnp.exp2(scores * (2 * LOG2_E * scale / softcap))
                scores = (softcap * LOG2_E) * (1.0 - 2.0 / (1.0 + exp_2x))
            if "slopes" in arrays:
                distance = difference("position", slot).astype(jnp.float32)
                scores = scores - distance * arrays["slopes"][head]
            if "penalties" in slots:
                scores = scores - difference("penalties", slot)
            if is_masked:
                i = first + set_layout(lax.broadcasted_iota(jnp.int32, pairs, 0), layout)
                j = arrays["order"][q_index, visit] * KEYS
                j = j + set_layout(lax.broadcasted_iota(jnp.int32, pairs, 1), layout)
                end = set_layout(slots["end"][slot], by_key)
                mask = (j <= i) & (i < broadcast_keys(end))
                if options["windowed"]:
                    window = arrays["window"][0]
                    # Treat no limit as a window wider than every distance.
                    window = jnp.where(window == 0, jnp.int32(2**31 - 1), window)
                    mask = mask & (difference("position", slot) < window)
                scores = jnp.where(mask, scores, MASKED)
            m_new = jnp.maximum(m_i, scores.max(axis=1))
            p = jnp.exp2(scores - broadcast_queries(m_new))
            alpha = jnp.exp2(m_i - m_new)
            l_i = l_i * alpha + p.sum(axis=1)
            slots["weights"][warpgroup] = p.astype(slots["weights"].dtype)
            plgpu.commit_smem()
            factors = slots["weights"].at[warpgroup], slots["v"].at[slot]
            acc = products.accumulate(acc, functools.partial(broadcast_queries, alpha), *factors)
            plgpu.barrier_arrive(used.at[slot])
            return acc, m_new, l_i

        carry = (
            products.start(set_layout(jnp.zeros((rows, columns), jnp.float32), layout)),
            set_layout(jnp.full((rows,), LOWEST, jnp.float32), by_query),
            set_layout(jnp.zeros((rows,), jnp.float32), by_query),
        )
        carry = lax.fori_loop(0, n_unmasked, functools.partial(step, False), carry)
        acc, m_i, l_i = lax.fori_loop(n_unmasked, n_visible, functools.partial(step, True), carry)
        l_i = jnp.where(l_i == 0.0, 1.0, l_i)
        inverse, q_slice = 1.0 / l_i, pl.ds(first, rows)
        for n, values in enumerate(products.columns(acc)):
            scaled = values * broadcast_queries(inverse, values.shape)
            out_ref[head, q_slice, pl.ds(n * columns, columns)] = scaled
        lse_ref[head, q_slice] = m_i * (1 / LOG2_E) + jnp.log(l_i)
