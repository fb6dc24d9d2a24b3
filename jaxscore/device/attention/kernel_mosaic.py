"""Attention under the interval mask as one kernel for Hopper and Blackwell (Pallas, Mosaic GPU).

The same computation as `kernel_gpu`, for a JAX without Pallas Triton. Each program takes one block
of queries of one head. One warpgroup copies the listed blocks of keys and values to `STAGES` slots
of shared memory in turn; the others multiply them, each with its part of the queries, by the tensor
cores' instruction: `wgmma`, with sums in registers, or `tcgen05.mma`, with sums in tensor memory.

    grid (heads, query blocks)      q, out [N, T, H]      k [K, H, T]      v [K, T, H]

All constructs are known to Pallas' interpreter, to that of JAX 0.12 in the case of Blackwell, so
that tests run the kernel itself: weights go through shared memory, and Hopper adds the products of
a step in registers.
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
from jaxscore.device.attention.kernel_gpu import LOG2_E, LOWEST, ByHead, by_head, by_row
from jaxscore.device.attention.kv_cache import MASKED
from jaxscore.device.attention.score_rule import ScoreRule

KEYS = 64  # in a block
STAGES = 2  # blocks of keys in shared memory
WARPGROUPS = 2  # that compute, and get registers of the one that copies
REGISTERS, COPYING_REGISTERS = 240, 24  # of 65536 for 128 threads each


class Sizes(NamedTuple):
    """Of the kernel for heads of one padded width: warpgroups that compute, and the columns of
    mixed values that one of them has in registers at a time."""

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
        products: the tensor cores of the GPU.
        interpret: parameters of Pallas' interpreter for GPUs, to run the kernel on a CPU.
    """
    width = next(one for one in products.SIZES if q_RLNH.shape[-1] <= one)
    queries = products.SIZES[width].warpgroups * products.ROWS
    arrays = q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window
    inputs = by_head(*arrays, dtype=dtype, queries=queries, keys=KEYS, width=width)
    out, lse = _run(products, inputs, window is not None, rule, interpret)
    return by_row(out, lse, q_RLNH.shape)


@dataclasses.dataclass(frozen=True)
class Hopper:
    """Products of a warpgroup by `wgmma`, sums in registers."""

    # 64 columns of the widest spill 272 bytes.
    SIZES: ClassVar = {
        64: Sizes(WARPGROUPS, 64),
        128: Sizes(WARPGROUPS, 64),
        256: Sizes(WARPGROUPS, 32),
    }
    ROWS: ClassVar = 64  # queries of a warpgroup
    LAYOUT: ClassVar = plgpu.Layout.WGMMA

    warpgroup: Any
    width: int

    @classmethod
    def scratch(cls, width: int) -> dict[str, Any]:
        """Memory and barriers beside those of every GPU."""
        return {}

    def product(self, q: Any, k: Any) -> Array:
        """The product of queries [ROWS, width] and keys [width, KEYS]."""

        def run(sums: Any) -> Array:
            plgpu.wgmma(sums, q, k)
            return sums[...]

        return pl.run_scoped(run, plgpu.ACC((q.shape[0], k.shape[1]), jnp.float32))

    def start(self, zeros: Array) -> tuple[Array, ...]:
        """Sums of mixed values before the first step, as `zeros` [ROWS, columns]."""
        return (zeros,) * (self.width // zeros.shape[1])

    def mix(self, mixed: tuple[Array, ...], shrink: Any, weights: Any, v: Any) -> Any:
        """Sums times `shrink(shape)`, and the product of weights and values [KEYS, width]."""
        parts = []
        for n, part in enumerate(mixed):
            values = v.at[:, pl.ds(n * part.shape[1], part.shape[1])]
            parts.append(part * shrink(part.shape) + self.product(weights, values))
        return tuple(parts)

    def parts(self, mixed: tuple[Array, ...]) -> Iterator[Array]:
        """The sums, some columns after the other."""
        yield from mixed


@dataclasses.dataclass(frozen=True)
class Blackwell:
    """Products of a warpgroup by `tcgen05.mma`, sums in tensor memory; methods as of `Hopper`.

    Attributes:
        scored, mixed: tensor memory of all warpgroups, side by side.
        multiplied: a product of this warpgroup is complete.
        free: all its threads have read or written tensor memory.
    """

    # The widest has no room for two in shared memory, nor in 512 columns of tensor memory.
    SIZES: ClassVar = {64: Sizes(WARPGROUPS, 32), 128: Sizes(WARPGROUPS, 32), 256: Sizes(1, 32)}
    ROWS: ClassVar = 128
    LAYOUT: ClassVar = plgpu.Layout.TCGEN05

    warpgroup: Any
    width: int
    scored: Any
    mixed: Any
    multiplied: Any
    free: Any

    @classmethod
    def scratch(cls, width: int) -> dict[str, Any]:
        n = cls.SIZES[width].warpgroups
        ordered = plgpu.Barrier(num_barriers=n, orders_tensor_core=True)
        return {
            "scored": plgpu.TMEM((cls.ROWS, n * KEYS), jnp.float32),
            "mixed": plgpu.TMEM((cls.ROWS, n * width), jnp.float32),
            "multiplied": ordered,
            "free": ordered,
        }

    def product(self, q: Any, k: Any) -> Array:
        own = self.scored.at[:, pl.ds(self.warpgroup * KEYS, KEYS)]
        self._multiply(own, q, k, accumulate=False)
        scores = self._load(own)
        self._leave()
        return scores

    def start(self, zeros: Array) -> tuple[Array, ...]:
        for own in self._parts():
            plgpu.async_store_tmem(own, zeros)
        plgpu.commit_tmem()
        self._leave()
        return ()

    def mix(self, _: tuple[Array, ...], shrink: Any, weights: Any, v: Any) -> Any:
        for own in self._parts():
            plgpu.async_store_tmem(own, self._load(own) * shrink(own.shape))
        plgpu.commit_tmem()
        self._leave()
        whole = self.mixed.at[:, pl.ds(self.warpgroup * self.width, self.width)]
        self._multiply(whole, weights, v, accumulate=True)
        return ()

    def parts(self, _: tuple[Array, ...]) -> Iterator[Array]:
        yield from map(self._load, self._parts())

    def _parts(self) -> list[Any]:
        """This warpgroup's sums of mixed values, some columns after the other."""
        columns = self.SIZES[self.width].columns
        starts = [self.warpgroup * self.width + n for n in range(0, self.width, columns)]
        return [self.mixed.at[:, pl.ds(start, columns)] for start in starts]

    def _load(self, own: Any) -> Array:
        values = plgpu.async_load_tmem(own, layout=self.LAYOUT)
        plgpu.wait_load_tmem()
        return values

    def _leave(self) -> None:
        """Orders what this warpgroup's threads did in tensor memory before its next product."""
        plgpu.barrier_arrive(self.free.at[self.warpgroup])
        plgpu.barrier_wait(self.free.at[self.warpgroup])

    def _multiply(self, sums: Any, a: Any, b: Any, accumulate: bool) -> None:
        done = self.multiplied.at[self.warpgroup]
        plgpu.tcgen05_mma(sums, a, b, done, accumulate=accumulate)
        plgpu.barrier_wait(done)


kernel_sm90 = functools.partial(_kernel_mosaic, Hopper)
kernel_sm100 = functools.partial(_kernel_mosaic, Blackwell)
lower_small_sm90 = functools.partial(kernel_gpu.lower_small, kernel_sm90)
lower_small_sm100 = functools.partial(kernel_gpu.lower_small, kernel_sm100)


def _run(
    products: type[Hopper] | type[Blackwell],
    inputs: ByHead,
    windowed: bool,
    rule: ScoreRule,
    interpret: Any,
) -> tuple[Array, Array]:
    """The kernel call: mixed values [N, T, width] and log-sum-exp [N, T]."""
    N, T, width = inputs.q.shape
    (warpgroups, columns), rows = products.SIZES[width], products.ROWS
    dtype = inputs.q.dtype
    given = dict(inputs._asdict(), k=inputs.k.swapaxes(1, 2))
    slopes, penalties = rule.kernel_bias(inputs.position) or (None, None)
    bias = {"slopes": slopes, "penalties": penalties}
    given |= {name: one for name, one in bias.items() if one is not None}

    def tiles(*shape: int) -> Any:
        """Shared memory as tensor cores read it, with the same tiles for both factors."""
        swizzle = min(128, columns * dtype.itemsize)  # bytes
        tiling = plgpu.TilingTransform((8, swizzle // dtype.itemsize))
        return plgpu.SMEM(shape, dtype, transforms=(tiling, plgpu.SwizzleTransform(swizzle)))

    scratch = {
        "q": tiles(warpgroups, rows, width),
        "k": tiles(STAGES, width, KEYS),
        "v": tiles(STAGES, KEYS, width),
        "weights": tiles(warpgroups, rows, KEYS),
        "end": plgpu.SMEM((STAGES, KEYS), jnp.int32),
    }
    of_queries = {}
    if windowed or slopes is not None:
        scratch["position"] = plgpu.SMEM((STAGES, KEYS), jnp.int32)
        of_queries["position"] = plgpu.SMEM((warpgroups, rows), jnp.int32)
    if penalties is not None:
        scratch["penalties"] = plgpu.SMEM((STAGES, KEYS), jnp.float32)
        of_queries["penalties"] = plgpu.SMEM((warpgroups, rows), jnp.float32)
    body = functools.partial(
        _kernel,
        per_key=N // inputs.k.shape[0],
        scale=rule.scale,
        softcap=rule.softcap,
        windowed=windowed,
        products=products,
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
            "tensor_cores": products.scratch(width),
            "loaded_queries": plgpu.Barrier(num_arrivals=warpgroups * (1 + len(of_queries))),
            "loaded": plgpu.Barrier(num_arrivals=len(scratch) - 2, num_barriers=STAGES),
            "used": plgpu.Barrier(num_arrivals=warpgroups, num_barriers=STAGES),
        },
        grid=(N, T // (warpgroups * rows)),
        grid_names=("head", "queries"),
        num_threads=warpgroups + 1,
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
    tensor_cores: dict[str, Any],
    loaded_queries: Any,
    loaded: Any,
    used: Any,
    **what: Any,
) -> None:
    """One block of queries of one head."""
    # Over 60 lines: a kernel reads from top to bottom.
    head, nth_queries = lax.axis_index("head"), lax.axis_index("queries")
    warpgroup = lax.axis_index("warpgroup")
    products = what["products"](warpgroup, slots["v"].shape[2], **tensor_cores)
    (warpgroups, columns), rows = products.SIZES[products.width], products.ROWS
    laid_out, layout = what["laid_out"], products.LAYOUT
    by_query, by_key = layout.reduce(1), layout.reduce(0)
    key_head = head // what["per_key"]
    start = nth_queries * (warpgroups * rows)
    whole, some = given["visits"][nth_queries, 0], given["visits"][nth_queries, 1]

    @pl.when(warpgroup == warpgroups)
    def _copy() -> None:
        if warpgroups == WARPGROUPS:
            plgpu.set_max_registers(COPYING_REGISTERS, action="decrease")
        for n in range(warpgroups):
            own = pl.ds(start + n * rows, rows)
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

    @pl.when(warpgroup < warpgroups)
    def _compute() -> None:
        if warpgroups == WARPGROUPS:
            plgpu.set_max_registers(REGISTERS, action="increase")
        pairs, first = (rows, KEYS), start + warpgroup * rows
        plgpu.barrier_wait(loaded_queries)

        def down(x: Array, shape: tuple[int, int] = pairs) -> Array:
            return lax.broadcast_in_dim(x, shape, [0])

        def across(x: Array) -> Array:
            return laid_out(lax.broadcast_in_dim(x, pairs, [1]), layout)

        def difference(of: str, slot: Array) -> Array:
            """A number of each query minus that of each key."""
            of_i = laid_out(of_queries[of][warpgroup], by_query)
            of_j = laid_out(slots[of][slot], by_key)
            return down(of_i) - across(of_j)

        def step(masked: bool, nth: Array, carry: Any) -> Any:
            mixed, top, total = carry
            slot = lax.rem(nth, jnp.int32(STAGES))
            plgpu.barrier_wait(loaded.at[slot])
            scores = products.product(slots["q"].at[warpgroup], slots["k"].at[slot])
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
                seen = (j <= i) & (i < across(end))
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
            factors = slots["weights"].at[warpgroup], slots["v"].at[slot]
            mixed = products.mix(mixed, functools.partial(down, shrink), *factors)
            plgpu.barrier_arrive(used.at[slot])
            return mixed, higher, total

        carry = (
            products.start(laid_out(jnp.zeros((rows, columns), jnp.float32), layout)),
            laid_out(jnp.full((rows,), LOWEST, jnp.float32), by_query),
            laid_out(jnp.zeros((rows,), jnp.float32), by_query),
        )
        carry = lax.fori_loop(0, whole, functools.partial(step, False), carry)
        mixed, top, total = lax.fori_loop(whole, some, functools.partial(step, True), carry)
        total = jnp.where(total == 0.0, 1.0, total)
        share, own = 1.0 / total, pl.ds(first, rows)
        for n, part in enumerate(products.parts(mixed)):
            out_ref[head, own, pl.ds(n * columns, columns)] = part * down(share, part.shape)
        lse_ref[head, own] = top * (1 / LOG2_E) + jnp.log(total)
