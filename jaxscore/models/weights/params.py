"""Reading of a checkpoint's parameter tree; all tensors are checked before the first is read.

With `--quantize int8` the layers' weights are symmetric int8 with a scale per output channel,
rounded to nearest:

    weight[o, i]  ~  values[o, i] * scale[o]        scale[o] = max_i |weight[o, i]| / 127

With `--quantize stored` weights stay in the file's blocks, see `device.dots`, if one form
represents those of all layers exactly and the parameter consists of whole stored rows.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from jaxscore.device import decoder
from jaxscore.device.dots import (
    FIELDS,
    Blocks,
    Form,
    abstract_blocks,
    common_form,
    is_blocks,
    storage_dtype,
)
from jaxscore.device.init_params import init_params
from jaxscore.device.layers import SCALE
from jaxscore.device.sharding import keys_of
from jaxscore.errors import InputError
from jaxscore.models.families import Family, Source
from jaxscore.models.families.family import bare_name
from jaxscore.models.weights.filling import Leaf, Read, RowWise, device_arrays
from jaxscore.models.weights.tensor_files import (
    StoredRows,
    Tensors,
    check_float,
    check_tied,
    joined,
    outline,
)

# First keys of weights that can stay in blocks
IN_LAYERS = ("layers", "attentions", "recurrent", "mlps", "experts")
MATRICES = (
    "token",
    "position",
    "weight",
)  # last keys of parameters that are rounded; others are float32
LARGEST_INT8 = 127

# (tensor's name, whether it is transposed, columns of the weight) -> form, or None
ExpectedForm = Callable[[str, bool, int], Form | None]
# (path in the tree, shape) -> sharding
Placement = Callable[[tuple[str, ...], tuple[int, ...]], Sharding]


def on_one_device(path: tuple[str, ...], shape: tuple[int, ...]) -> Sharding:
    """Return the placement on the first device."""
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


def shapes_of(config: decoder.DecoderConfig, dtype: np.dtype) -> decoder.Params:
    """Return the parameter tree as `jax.ShapeDtypeStruct`.

    Matrices have `dtype`, or int8 if they have scales, or are `Blocks`; vectors are float32.
    """
    shapes, tree = parameter_shapes(config)
    out: list[Any] = []
    forms = dict(config.stored)
    for keys, shape in shapes.items():
        if (form := forms.get("/".join(keys))) is not None:
            out.append(abstract_blocks(form, shape, dtype))
            continue
        leaf_dtype = dtype if keys[-1] in MATRICES else np.dtype(np.float32)
        if keys[-1] in MATRICES and (*keys[:-1], SCALE) in shapes:
            leaf_dtype = np.dtype(np.int8)
        out.append(jax.ShapeDtypeStruct(shape, leaf_dtype))
    return jax.tree_util.tree_unflatten(tree, out)


@functools.lru_cache(maxsize=4)
def parameter_shapes(
    config: decoder.DecoderConfig,
) -> tuple[Mapping[tuple[str, ...], tuple[int, ...]], Any]:
    """Return the shape of each parameter, and the tree structure.

    The result is cached, since tracing takes a second for hybrid models.
    """
    # The key is created inside, where it is traced: outside it would compile and run two programs.
    params = jax.eval_shape(lambda: init_params(jax.random.key(0), config))
    leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    return {keys_of(path): leaf.shape for path, leaf in leaves}, tree


def load_params(
    folder: Path,
    family: Family,
    config: decoder.DecoderConfig,
    tensors: Tensors,
    dtype: np.dtype,
    placement: Placement = on_one_device,
    *,
    integers: bool,
    shapes: decoder.Params | None = None,
) -> decoder.Params:
    """Read the parameter tree: matrices in `dtype`, vectors (norms and biases) in float32.

    Every tensor is checked before the first is read.

    Args:
        placement: the sharding of each parameter; a process reads only its shards.
        integers: see `device.backends.Backend`.
        shapes: the result of `shapes_of` if the caller has it, since that is slow.

    Raises:
        InputError: a tensor is missing, left over, not of floats, or has the wrong shape.
    """
    reader = Reader.of(folder, tensors, family)
    leaves, tree = read_leaves(reader, family, config, shapes or shapes_of(config, dtype), integers)
    if config.head.tied and family.head in reader.stored:
        token = reader.values(family.sources(config)["embed", "token"].name, None)
        check_tied(folder, token, reader.values(family.head, None))
    placed = [(leaf, placement(keys, leaf.shape)) for keys, leaf in leaves.items()]
    return jax.tree_util.tree_unflatten(tree, list(device_arrays(placed)))


def check_params(
    folder: Path, family: Family, config: decoder.DecoderConfig, tensors: Tensors
) -> None:
    """Check the names, types and shapes of all tensors without reading a value.

    Raises:
        InputError: see `load_params`, except for errors in values.
    """
    reader = Reader.of(folder, tensors, family)
    shapes = shapes_of(config, np.dtype(np.float32))
    read_leaves(reader, family, config, shapes, integers=False)


def read_leaves(
    reader: "Reader",
    family: Family,
    config: decoder.DecoderConfig,
    in_tree: decoder.Params,
    integers: bool,
) -> tuple[dict[tuple[str, ...], Leaf], Any]:
    """Return the leaves that read each parameter, by path, and the tree structure.

    Args:
        in_tree: the result of `shapes_of`.

    Raises:
        InputError: a tensor is missing, left over, not of floats, or has the wrong shape.
    """
    table = family.sources(config)
    tree = jax.tree.structure(in_tree)
    paths = jax.tree_util.tree_leaves_with_path(in_tree, is_leaf=is_blocks)
    shapes = {keys_of(path): expected for path, expected in paths}
    forms = dict(config.stored)
    leaves: dict[tuple[str, ...], Leaf] = {}
    used: set[str] = set()
    for keys, expected in shapes.items():
        # Scales are computed from their weights
        origin = (*keys[:-1], "weight") if keys[-1] == SCALE else keys
        dtype = np.dtype(expected.dtype)
        leaf, names = _leaf(reader, table[origin], shapes[origin].shape, dtype, integers)
        used |= names
        if is_blocks(expected):
            source = _resolved(reader, table[keys], expected.shape)
            form = forms["/".join(keys)]
            leaves |= _block_leaves(reader, keys, source, leaf, expected, form)
            continue
        if keys[-1] == SCALE:
            leaf = _computed_leaf(reader.folder, keys, leaf, expected.shape, int8_scales)
        elif dtype == np.int8:
            leaf = _computed_leaf(reader.folder, keys, leaf, expected.shape, int8_values)
        leaves[keys] = leaf
    used |= _check_constants(reader, family.constants(config))
    ignored = (*family.buffers, *family.unread(config))
    unused = [
        name
        for name in sorted(set(reader.stored) - used)
        if not any(re.fullmatch(pattern, name) for pattern in ignored)
        and not (config.head.tied and name == family.head)
        and not (family.next_tokens and _is_mtp(name, reader.stored, config.n_layers))
        and reader.stored[name] not in reader.tensors.idle
    ]
    if unused:
        raise InputError(
            f"{reader.folder}: {len(unused)} tensors that the model does not use: "
            f"{', '.join(unused[:8])}; the config and the weights do not belong together"
        )
    return leaves, tree


def _check_constants(reader: "Reader", constants: Mapping[str, Sequence[int]]) -> set[str]:
    """Check stored tensors whose values follow from the config, and return their names."""
    names = {name for name in constants if name in reader.stored}
    for name in sorted(names):
        values = np.asarray(reader.values(name, None))
        if values.tolist() != list(constants[name]):
            raise InputError(
                f"{reader.folder}: tensor {name} is {str(values.tolist())[:60]}, expected "
                f"{str(list(constants[name]))[:60]} by the config; the config and the weights do "
                "not belong together"
            )
    return names


def stored_forms(
    folder: Path,
    family: Family,
    config: decoder.DecoderConfig,
    tensors: Tensors | None,
    expected_form: ExpectedForm | None = None,
) -> tuple[tuple[str, Form], ...]:
    """Return the weights of layers that can stay in blocks: the value of `DecoderConfig.stored`.

    Args:
        tensors: the checkpoint's tensors; None if only its config is known.
        expected_form: a function that returns a weight's form by the config, used without tensors.

    Raises:
        InputError: no weight can stay in blocks.
    """
    reader = None if tensors is None else Reader.of(folder, tensors, family)
    table = family.sources(config)
    forms = []
    paths = jax.tree_util.tree_leaves_with_path(shapes_of(config, np.dtype(np.float32)))
    for path, expected in paths:
        keys = keys_of(path)
        if keys[0] not in IN_LAYERS or keys[-1] != "weight":
            continue
        if reader is not None:
            form = _form_of(reader, table[keys], expected.shape)
        else:
            assert expected_form is not None
            source = table[keys]
            is_whole = keys[-2] != "router" and not source.plus and not source.entries
            forms_of_parts = {
                expected_form(family.prefix + name, bool(source.transposed), expected.shape[-1])
                for name, _ in _names(source, expected.shape)
            }
            form = forms_of_parts.pop() if is_whole and len(forms_of_parts) == 1 else None
        if form is not None:
            forms.append(("/".join(keys), form))
    if not forms:
        raise InputError(
            f"{folder}: --quantize stored keeps the weights of layers in the blocks of a quantized "
            "checkpoint, but none of them can stay in blocks; use --quantize int8, or leave it out"
        )
    return tuple(forms)


def _form_of(reader: "Reader", source: Source, shape: tuple[int, ...]) -> Form | None:
    """Return the form in which a weight can stay in blocks, or None."""
    source = _resolved(reader, source, shape)
    names = {reader.stored.get(name, "") for name, _ in _names(source, shape)}
    rows = [reader.tensors.rows.get(name) for name in names]
    if source.plus or source.entries:
        return None
    if any(stored is None or stored.is_transposed != bool(source.transposed) for stored in rows):
        return None
    return common_form([stored.form for stored in rows if stored is not None])


def stored_share(shapes: Any) -> float:
    """Return the share of all parameters that stay in the blocks of their file."""
    leaves = jax.tree.leaves(shapes, is_leaf=is_blocks)
    return sum(leaf.size for leaf in leaves if is_blocks(leaf)) / sum(leaf.size for leaf in leaves)


def _block_leaves(
    reader: "Reader",
    keys: tuple[str, ...],
    source: Source,
    weight: Leaf,
    expected: Blocks,
    form: Form,
) -> dict[tuple[str, ...], Leaf]:
    """Return the leaves that read the arrays of a weight in blocks.

    Args:
        weight: the leaf that reads the weight's values.
        expected: the shapes of the arrays.
    """
    n_rows = expected.shape[-2]

    def read(name: str, index: int | None, field: str) -> np.ndarray:
        rows = _stored_rows(reader, name, index, source, n_rows, field)
        return reader.tensors.rows[reader.stored[name]].convert(rows, field, form)

    leaves = {}
    for field in FIELDS:
        if (array := getattr(expected, field)) is not None:
            reads = [
                functools.partial(read, name, index, field)
                for name, index in _names(source, expected.shape)
            ]
            leaves[*keys, field] = Leaf(
                array.shape, array.dtype, array.dtype, weight.n_leading, reads, computed=True
            )
    return leaves


def _stored_rows(
    reader: "Reader", name: str, index: int | None, source: Source, n_rows: int, field: str
) -> np.ndarray:
    """Read the stored rows of a field of a weight in blocks, in the parameter's row order."""
    stored = reader.tensors.rows[reader.stored[name]]
    rows, source = stored.read(field, index), dataclasses.replace(source, transposed=False)
    rows = _orient(reader.folder, name, index, rows, source, (n_rows, *rows.shape[1:]))
    return np.ascontiguousarray(rows)


def _is_mtp(name: str, stored: Mapping[str, str], n_layers: int) -> bool:
    """Return True if a tensor belongs to a multi-token-prediction layer.

    Such a layer is recognised by its projection of an embedding and a hidden state: a layer
    after the last one with `eh_proj`, or ERNIE's `mtp_` layers.
    """
    if match := re.match(r"layers\.(\d+)\.", name):
        return int(match[1]) >= n_layers and f"{match[0]}eh_proj.weight" in stored
    match = re.match(r"mtp_(?:block|emb_norm|hidden_norm|linear_proj)\.(\d+)\.", name)
    return match is not None and f"mtp_linear_proj.{match[1]}.weight" in stored


class Reader(NamedTuple):
    """Tensors by the family's names, which checkpoints store with or without its prefix.

    Attributes:
        folder: the folder, for error messages.
        tensors: the checkpoint's tensors.
        stored: the checkpoint's names by the family's names.
    """

    folder: Path
    tensors: Tensors
    stored: dict[str, str]

    @classmethod
    def of(cls, folder: Path, tensors: Tensors, family: Family) -> "Reader":
        for target, parts in family.joined.items():
            tensors = joined(tensors, target, parts)
        stored: dict[str, str] = {}
        for name in tensors.stored:
            bare = bare_name(family, name)
            if bare in stored:
                raise InputError(
                    f"{folder}: tensor {bare} is stored twice, as {stored[bare]} and as {name}"
                )
            stored[bare] = name
        return cls(folder, tensors, stored)

    def outline(self, name: str, index: int | None, entries: int = 0) -> np.ndarray:
        """Return the `outline` of a tensor, or of one entry along its first axis.

        An outline allocates no data, so checking its shape costs no copy.

        Args:
            entries: see `Source.entries`.

        Raises:
            InputError: the tensor is missing or has too few entries.
        """
        if name not in self.stored:
            last = name.split(".")[-1]
            similar = [
                full for bare, full in sorted(self.stored.items()) if bare.split(".")[-1] == last
            ]
            prefix = next((w.removesuffix(b) for b, w in self.stored.items() if w != b), "")
            raise InputError(
                f"{self.folder}: tensor {prefix}{name} is missing; there are {len(self.stored)} "
                f"others, such as {', '.join(similar[:3])}"
            )
        array = self.tensors.stored[self.stored[name]]
        view = outline(array.shape, array.dtype)
        if index is None:
            return view
        if entries:
            if array.ndim != 2 or len(array) % entries:
                raise InputError(
                    f"{self.folder}: tensor {name} has shape {list(array.shape)}, expected the "
                    f"rows of {entries} matrices"
                )
            return view[: len(array) // entries]
        if array.ndim < 2 or index >= len(array):
            raise InputError(
                f"{self.folder}: tensor {name} has shape {list(array.shape)}, expected at least "
                f"{index + 1} entries along its first axis"
            )
        return view[index]

    def encoded(self, names: Iterable[tuple[str, int | None]]) -> dict[str, StoredRows]:
        """Return the rows of those tensors of a parameter that can be dequantized row by row."""
        stored_rows = {name: self.tensors.rows.get(self.stored[name]) for name, _ in names}
        return {
            name: rows
            for name, rows in stored_rows.items()
            if rows is not None and rows.decode is not None
        }

    def values(self, name: str, index: int | None, entries: int = 0) -> np.ndarray:
        """Return the values of a tensor, or of one entry along its first axis; see `outline`."""
        stored = self.stored[name]
        if index is not None and entries:
            array = self.tensors.arrays[stored]
            n_rows = len(array) // entries
            return array[index * n_rows : (index + 1) * n_rows]
        return self.tensors.arrays[stored] if index is None else self.tensors.piece(stored, index)


def _leaf(
    reader: Reader, source: Source, shape: tuple[int, ...], dtype: np.dtype, integers: bool
) -> tuple[Leaf, set[str]]:
    """Check a parameter's tensors, and return the leaf that reads it and the tensors' names."""
    source = _resolved(reader, source, shape)
    names = _names(source, shape)
    n_leading = len(_letters(source))
    tensor_shape = shape[n_leading:]

    def read(name: str, index: int | None) -> np.ndarray | RowWise:
        if (rows := encoded.get(name)) is not None and rows.decode is not None:
            stored_rows = _stored_rows(reader, name, index, source, tensor_shape[0], "values")
            return RowWise(stored_rows, rows.decode)
        values = reader.values(name, index, source.entries)
        return _orient(reader.folder, name, index, values, source, tensor_shape)

    for name, index in names:
        array = reader.outline(name, index, source.entries)
        check_float(reader.tensors.where[reader.stored[name]], _label(name, index), array)
        _orient(reader.folder, name, index, array, source, tensor_shape)
    used = {name for name, _ in names}
    encoded = {} if source.transposed or source.plus else reader.encoded(names)
    computed = any(reader.stored[name] in reader.tensors.changed for name in used - {*encoded})
    if not encoded and not computed:
        view, first = read(*names[0]), reader.tensors.stored[reader.stored[names[0][0]]]
        computed = isinstance(view, np.ndarray) and not np.may_share_memory(view, first)
    reads = [functools.partial(read, name, index) for name, index in names]
    kept = storage_dtype(dtype, integers)
    leaf = Leaf(shape, dtype, kept, n_leading, reads, computed)
    return leaf, used


def _resolved(reader: Reader, source: Source, shape: tuple[int, ...]) -> Source:
    """Return the source that the checkpoint has of a parameter, with its orientation.

    Raises:
        InputError: see `_with_orientation`.
    """
    if source.otherwise is not None:
        ((tensor, _),) = _names(source, (1,) * len(_letters(source)))
        if tensor not in reader.stored:
            source = source.otherwise
    if source.transposed is not None:
        return source
    return _with_orientation(
        reader, source, _names(source, shape)[0], shape[len(_letters(source)) :]
    )


def _with_orientation(
    reader: Reader, source: Source, tensor: tuple[str, int | None], shape: tuple[int, ...]
) -> Source:
    """Return a source with the orientation by the shape of its first tensor.

    Raises:
        InputError: the tensor is square, so that its orientation is ambiguous.
    """
    rows, columns = reader.outline(*tensor).shape
    if rows == columns:
        raise InputError(
            f"{reader.folder}: tensor {_label(*tensor)} is square, so its orientation is "
            "ambiguous; give a checkpoint with one tensor per expert"
        )
    return dataclasses.replace(source, transposed=columns != shape[-1])


def _letters(source: Source) -> list[str]:
    """Return the letters of the stacked axes: `i` for layers, `j` for experts or heads."""
    fields = {"i": ("{i}", "{pair}"), "j": ("{j}",)}
    return [
        letter for letter, names in fields.items() if any(name in source.name for name in names)
    ]


def _names(source: Source, shape: tuple[int, ...]) -> list[tuple[str, int | None]]:
    """Return a parameter's tensors, with an index along the first axis for names like `down[3]`."""
    letters, names = _letters(source), []
    for position in itertools.product(*map(range, shape[: len(letters)])):
        at = dict(zip(letters, position, strict=True))
        if source.owners:
            at["owner"] = source.owners[at["i"]]
        if source.layers is not None:
            at["i"] = source.layers[at["i"]]
        if "i" in at:
            at |= {"pair": at["i"] // 2, "side": at["i"] % 2}
        layers, other = source.elsewhere
        template = other if at.get("i") in layers else source.name
        stored_name, bracket, entry = template.format(**at).partition("[")
        names.append((stored_name, int(entry[:-1]) if bracket else None))
    return names


def _label(name: str, index: int | None) -> str:
    return name if index is None else f"{name}[{index}]"


def _orient(
    folder: Path,
    name: str,
    index: int | None,
    view: np.ndarray,
    source: Source,
    shape: tuple[int, ...],
) -> np.ndarray:
    """Return a tensor, or an entry of one, in the parameter's layout; a view if possible.

    Args:
        folder, name, index: the tensor's folder, name and index, for error messages.

    Raises:
        InputError: the tensor has the wrong shape.
    """
    view = view.T if source.transposed else view
    if len(shape) == 1 and view.size == max((*view.shape, 1)):
        view = view.reshape(-1)  # a vector may be stored as a matrix of one row, or as a scalar
    section = source.part
    rows = math.prod(shape) if view.ndim == 1 else shape[0]  # per-head norms may be stored flat
    all_rows = rows + source.skip
    if section is not None:
        all_rows = rows * section.size // (section.stop - section.start) + source.skip
    expected = (all_rows,) if view.ndim == 1 else (all_rows, *shape[1:])
    if view.shape != expected:
        raise InputError(
            f"{folder}: tensor {_label(name, index)} has shape {list(view.shape)}, "
            f"expected {list(expected)}"
        )
    view = view[source.skip :]
    if section is not None:
        pieces = view.reshape(section.groups, section.size, -1, *view.shape[1:])
        view = pieces[:, section.start : section.stop]
    view = view.reshape(shape)
    return view.astype(np.float32) + np.float32(source.plus) if source.plus else view


def _computed_leaf(
    folder: Path,
    keys: tuple[str, ...],
    leaf: Leaf,
    shape: tuple[int, ...],
    compute: Callable[[np.ndarray], np.ndarray],
) -> Leaf:
    """Return a leaf that applies `compute` to the rows of each tensor."""

    def computed(values: np.ndarray) -> np.ndarray:
        try:
            return compute(values)
        except ValueError as problem:
            raise InputError(f"{folder}: {'.'.join(keys)}: {problem}") from None

    def by_rows(read: Read) -> RowWise:
        view = read()
        if isinstance(view, np.ndarray):
            return RowWise(view, computed)
        return RowWise(view.rows, lambda rows: computed(view.compute(rows)))

    reads = [functools.partial(by_rows, read) for read in leaf.reads]
    return dataclasses.replace(leaf, shape=shape, reads=reads, computed=True)


def int8_scales(weight: np.ndarray) -> np.ndarray:
    """Return the scales, float32 [out], of a weight [out, in]; 1 if a channel is all zeros."""
    largest = np.abs(weight.astype(np.float32)).max(axis=-1)
    scales = np.where(largest > 0, largest / np.float32(LARGEST_INT8), np.float32(1))
    return scales.astype(np.float32)


def int8_values(weight: np.ndarray) -> np.ndarray:
    """Round a weight [out, in] to int8.

    Raises:
        ValueError: a weight is not finite.
    """
    weight = weight.astype(np.float32)
    if not np.isfinite(weight).all():
        raise ValueError("a weight is not finite, so it cannot be stored as int8")
    rounded = np.rint(weight / int8_scales(weight)[:, None])
    return np.clip(rounded, -LARGEST_INT8, LARGEST_INT8).astype(np.int8)
