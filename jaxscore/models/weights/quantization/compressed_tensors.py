"""Formats of the `compressed-tensors` package, without sparsity.

    pack-quantized       q_proj.weight_packed  I32 [out, ceil(in * bits / 32)], offset so that
                                                the lowest value is 0
                         q_proj.weight_shape   [out, in]
    naive-, int- and     q_proj.weight         I8 or F8_E4M3 [out, in]
    float-quantized
    all formats          q_proj.weight_scale   float, by `strategy`:
                         tensor [1], channel [out, 1], group [out, G], block [ceil, ceil]
                         q_proj.weight_zero_point  if the values are asymmetric, same shape;
                         packed along its rows in pack-quantized groups and channels
                         q_proj.weight_g_idx   I32 [in], the group of each input channel
    -> q_proj.weight, float32 [out, in]: (value - zero) * scale

Formulas: `compressed_tensors/quantization/lifecycle/forward.py` and `compressors/`, version 0.12.
The package changed its packing of 3, 5, 6 and 7 bits in version 0.20, so these are refused.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import regex

from jaxscore.errors import InputError
from jaxscore.models.weights.quantization.dequantize import (
    FLOAT32,
    Computed,
    Found,
    Parts,
    Scheme,
    block_rows,
    good_scales,
    integer_rows,
    n_blocks,
    scaled,
    times_blocks,
    unpacked,
)
from jaxscore.models.weights.quantization.fp8 import ROUNDED, widened
from jaxscore.models.weights.quantization.settings import Settings
from jaxscore.models.weights.tensor_files import Tensors

READ = frozenset("quant_method format quantization_status config_groups kv_cache_scheme".split())
# Unquantized modules are recognised by their tensors' names, so `ignore` is not needed.
INERT = frozenset("global_compression_ratio ignore version run_compressed".split())
GROUP_READ = frozenset("weights input_activations targets format".split())
ARGS_READ = frozenset(
    "num_bits type symmetric strategy group_size block_structure dynamic actorder".split()
)
# Settings of calibration
ARGS_INERT = frozenset("observer observer_kwargs scale_dtype zp_dtype".split())
PACKED, PLAIN = "pack-quantized", ("naive-quantized", "int-quantized", "float-quantized")
FORMATS = (PACKED, *PLAIN)
BITS = (2, 4, 8)
STRATEGIES = ("tensor", "channel", "group", "block")
FLOATS = ("F32", "BF16", "F16")
LEFT_OUT = "activations are not rounded, although the config rounds them at inference"
ROUNDED_ZEROS = tuple(f"{name.removesuffix('scale')}zero_point" for name in ROUNDED)
PATTERN_SECONDS = 10.0  # for all patterns and modules
PATTERN = "re:"
LINEAR = "Linear"  # class of all quantized modules


class _Args(NamedTuple):
    """Storage of the weights of a group of modules; `size` and `block` depend on the strategy."""

    packed: bool
    bits: int
    floats: bool
    symmetric: bool
    strategy: str
    reordered: bool
    size: int
    block: tuple[int, int]


class _Group(NamedTuple):
    args: _Args
    targets: tuple[str, ...]


def read(settings: Settings) -> Scheme:
    """Check the settings and return the scheme.

    Raises:
        InputError: a setting is not supported, such as sparsity or transforms.
    """
    sparsity = settings.values.get("sparsity_config") or {}
    if isinstance(sparsity, dict) and sparsity.get("format") == "dense":
        settings = Settings(
            {name: value for name, value in settings.values.items() if name != "sparsity_config"},
            settings.where,
        )
    settings.refuse_others(READ, INERT)
    settings.one_of("quantization_status", ("compressed",))
    default = settings.one_of("format", (*FORMATS, "mixed-precision"))
    config_groups = settings.below(settings.values.get("config_groups"), "config_groups")
    groups = []
    is_rounded = settings.values.get("kv_cache_scheme") is not None
    for name in config_groups.values:
        group = config_groups.below(config_groups.values[name], name)
        group.refuse_others(GROUP_READ, frozenset())
        packing = group.values.get("format") or (None if default == "mixed-precision" else default)
        if packing not in FORMATS:
            raise group.refusal("format", packing, f"handled are {', '.join(FORMATS)}")
        groups.append(_Group(_args(group, packing), _targets(group)))
        is_rounded = is_rounded or group.values.get("input_activations") is not None
    if not groups:
        raise config_groups.refusal("config_groups", {}, "expected at least one group")
    value_types = {
        f"{group.args.bits}-bit {'floats' if group.args.floats else 'integers'}" for group in groups
    }
    return Scheme(
        "compressed-tensors",
        " and ".join(sorted(value_types)),
        LEFT_OUT if is_rounded else "",
        lambda tensors: _find(tensors, groups, settings.where),
    )


def _args(group: Settings, packing: str) -> _Args:
    args = group.below(group.values.get("weights"), "weights")
    args.refuse_others(ARGS_READ, ARGS_INERT)
    value_type = args.one_of("type", ("int", "float"), "int")
    packed = packing == PACKED
    if packed and value_type == "float":
        raise args.refusal("type", value_type, f"expected 'int' in format {PACKED!r}")
    args.one_of("dynamic", (False,), False)
    actorder = args.one_of("actorder", (None, False, "weight", "static", "group", "dynamic"))
    reordered = actorder in ("group", "dynamic")
    bits = args.one_of("num_bits", BITS if value_type == "int" else (8,), 8)
    group_size = args.values.get("group_size")
    inferred = "tensor"
    if group_size is not None:
        inferred = "channel" if group_size == -1 else "group"
    strategy = args.values.get("strategy") or inferred
    if strategy not in STRATEGIES:
        raise args.refusal("strategy", strategy, f"handled are {', '.join(STRATEGIES)}")
    size = 0
    if strategy == "group" and (size := args.size("group_size")) < 1:
        raise args.refusal("group_size", size, "expected a whole number above 0")
    block = args.blocks("block_structure") if strategy == "block" else (0, 0)
    symmetric = args.one_of("symmetric", (True, False), True)
    if not symmetric and (value_type == "float" or strategy == "block"):
        raise args.refusal("symmetric", symmetric, f"expected true for {value_type} and {strategy}")
    return _Args(packed, bits, value_type == "float", symmetric, strategy, reordered, size, block)


def _targets(group: Settings) -> tuple[str, ...]:
    targets = group.values.get("targets")
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise group.refusal("targets", targets, "expected names, classes or patterns")
    return tuple(targets)


def _find(tensors: Tensors, groups: list[_Group], where: str) -> Found:
    computed: dict[str, Computed] = {}
    used = {name for name in tensors.stored if name.endswith((*ROUNDED, *ROUNDED_ZEROS))}
    modules = []
    for name in tensors.stored:
        module, _, last = name.rpartition(".")
        if last == "weight_packed" or (
            last == "weight" and f"{module}.weight_scale" in tensors.stored
        ):
            modules.append((module, name))
    args_of = _matched([module for module, _ in modules], groups, where)
    for module, name in modules:
        parts = Parts(tensors, name)
        computed[f"{module}.weight"] = _computed(parts, module, args_of[module])
        used |= parts.used
    return Found(computed, frozenset(used))


def _matched(modules: list[str], groups: list[_Group], where: str) -> dict[str, _Args]:
    """Return the arguments of each module: a target may be its name, a pattern or its class.

    Names take precedence over patterns, and patterns over classes.
    """
    if len({group.args for group in groups}) == 1:
        return dict.fromkeys(modules, groups[0].args)
    ranks: list[tuple[Callable[[str], Any], _Args]] = []
    for make_test in (_named, _patterned, _of_class):
        for group in groups:
            for target in sorted(group.targets):
                if (test := make_test(target, where)) is not None:
                    ranks.append((test, group.args))
    out = {}
    for module in modules:
        args = next((args for test, args in ranks if test(module)), None)
        if args is None:
            raise InputError(f"{where}: module {module} matches no target of config_groups")
        out[module] = args
    return out


def _named(target: str, where: str) -> Callable[[str], Any] | None:
    return None if target.startswith(PATTERN) or target == LINEAR else target.__eq__


def _of_class(target: str, where: str) -> Callable[[str], Any] | None:
    return (lambda module: True) if target == LINEAR else None


def _patterned(target: str, where: str) -> Callable[[str], Any] | None:
    if not target.startswith(PATTERN):
        return None
    pattern = target.removeprefix(PATTERN)
    try:
        re.compile(pattern)  # the syntax that the package uses
        compiled = regex.compile(pattern)
    except (re.error, regex.error, OverflowError, RecursionError) as problem:
        raise InputError(f"{where}: target {target!r} is not a valid pattern ({problem})") from None

    def test(module: str) -> bool:
        try:
            return compiled.match(module, timeout=PATTERN_SECONDS) is not None
        except TimeoutError:
            raise InputError(
                f"{where}: target {target!r} takes more than {PATTERN_SECONDS:g} s for module "
                f"{module}; write it without nested repeats"
            ) from None

    return test


def _computed(parts: Parts, module: str, args: _Args) -> Computed:
    name = f"{module}.weight_packed" if args.packed else f"{module}.weight"
    dtypes = ("I32",) if args.packed else ("F8_E4M3",) if args.floats else ("I8",)
    stored = parts.take(name, dtypes, 2)
    shape = (stored.shape[0], stored.shape[1])
    if args.packed:
        shape = _shape(parts, f"{module}.weight_shape", stored, args)
    n_groups = 1
    if args.strategy == "group":
        n_groups, remainder = divmod(shape[1], args.size)
        if remainder or not n_groups:
            raise parts.refusal(
                name,
                f"has {shape[1]} input channels, which is not a multiple of the group size "
                f"{args.size}",
            )
    scales_shape = {
        "tensor": (1, 1), "channel": (shape[0], 1), "group": (shape[0], n_groups),
        "block": n_blocks(shape, args.block) if args.strategy == "block" else (),
    }[args.strategy]  # fmt: skip
    scales = _flat(parts, f"{module}.weight_scale", FLOATS, scales_shape)
    stored_zeros, packed_zeros = _stored_zeros(parts, module, args, scales_shape)
    index = f"{module}.weight_g_idx"
    groups = None
    if args.reordered or parts.has(index):
        groups = parts.shaped(index, ("I32",), (shape[1],))

    def zero_points() -> np.ndarray:
        assert stored_zeros is not None
        if packed_zeros:
            return _unpacked(stored_zeros.T, args.bits, shape[0]).T
        if args.floats:
            return stored_zeros
        return _in_range(parts, f"{module}.weight_zero_point", stored_zeros, args.bits)

    def factors() -> np.ndarray:
        checked_scales = good_scales(parts, f"{module}.weight_scale", scales)
        has_zeros = args.symmetric and stored_zeros is not None
        if has_zeros and (zero_points().astype(np.float32) != 0).any():
            raise parts.refusal(
                f"{module}.weight_zero_point", "is not all zeros though symmetric is true"
            )
        return checked_scales

    def integers() -> np.ndarray:
        if args.packed:
            return _unpacked(stored, args.bits, shape[1])
        return _in_range(parts, f"{module}.weight", stored, args.bits)

    def compute() -> np.ndarray:
        values = widened(stored) if args.floats else integers()
        if args.strategy == "block":
            return times_blocks(values.astype(np.float32), factors(), args.block)
        order = None if groups is None else _groups(parts, index, groups, n_groups)
        zeros = None if args.symmetric else zero_points().T
        return scaled(values.T, factors().T, zeros, order).T

    rows = None
    if groups is None or (groups == -1).all():
        block = shape[0] // scales_shape[0], shape[1] // scales_shape[1]
        block = args.block if args.strategy == "block" else block
        if args.floats:
            stored_bytes = stored.view(np.uint8)
            dtype = stored.dtype.name
            rows = block_rows(dtype, shape, block, lambda _: stored_bytes, lambda _: factors())
        else:
            exact, zeros = scales.dtype != FLOAT32, None if args.symmetric else zero_points
            rows = integer_rows(args.bits, shape, block, integers, zeros, factors, exact=exact)
    return Computed(parts.where, shape, FLOAT32, compute, rows=rows)


def _in_range(parts: Parts, name: str, stored: np.ndarray, bits: int) -> np.ndarray:
    """Return int8 values after checking that they fit into `bits` bits.

    Raises:
        InputError: a value does not fit.
    """
    least = -(1 << (bits - 1))
    if stored.size and (stored.min() < least or stored.max() > -least - 1):
        raise parts.refusal(
            name,
            f"has values from {stored.min()} to {stored.max()}, expected {least} to {-least - 1} "
            f"for {bits} bits",
        )
    return stored


def _shape(parts: Parts, name: str, stored: np.ndarray, args: _Args) -> tuple[int, int]:
    """Read the stored shape [out, in] and check it against the packed words."""
    written = parts.shaped(name, ("I64", "I32"), (2,))
    n_out, n_in = (int(n) for n in written)
    expected = (stored.shape[0], stored.shape[1])
    if n_in < 1 or (n_out, -(-n_in * args.bits // 32)) != expected:
        raise parts.refusal(
            name,
            f"is {[n_out, n_in]}, which does not match packed words of shape {list(expected)} with "
            f"{args.bits} bits",
        )
    return n_out, n_in


def _flat(parts: Parts, name: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Read a tensor [rows, columns] that may be stored without axes of length one."""
    array = parts.take(name, dtypes)
    squeezed = {(1, 1): ((), (1,)), (shape[0], 1): ((shape[0],),)}.get((shape[0], shape[1]), ())
    if array.shape != shape and array.shape not in squeezed:
        raise parts.refusal(name, f"has shape {list(array.shape)}, expected {list(shape)}")
    return array.reshape(shape)


def _stored_zeros(
    parts: Parts, module: str, args: _Args, shape: tuple[int, ...]
) -> tuple[np.ndarray | None, bool]:
    """Return the zero points as stored, and True if they are packed."""
    name = f"{module}.weight_zero_point"
    if args.symmetric and not parts.has(name):
        return None, False
    if args.packed and args.strategy in ("group", "channel"):
        words = parts.take(name, ("I32", "I8"))
        if words.dtype == np.int32:
            n_words = -(-shape[0] * args.bits // 32)
            return parts.shaped(name, ("I32",), (n_words, shape[1])), True
    return _flat(parts, name, ("I8", "F8_E4M3") if args.floats else ("I8",), shape), False


def _unpacked(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Unpack int8 values, which are stored with an offset that makes the lowest one 0."""
    values = unpacked(words, bits, count)
    values -= np.uint8(1 << (bits - 1))
    return values.view(np.int8)


def _groups(parts: Parts, name: str, stored: np.ndarray, n_groups: int) -> np.ndarray | None:
    """Return the group of each input channel, or None for consecutive groups."""
    if (stored == -1).all():  # written by the package without reordering
        return None
    if stored.min() < 0 or stored.max() >= n_groups:
        raise parts.refusal(
            name, f"has groups {stored.min()} to {stored.max()}, expected 0 to {n_groups - 1}"
        )
    if (np.bincount(stored, minlength=n_groups) * n_groups != len(stored)).any():
        raise parts.refusal(name, "has groups of different sizes")
    return stored
