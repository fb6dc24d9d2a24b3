"""The parameter tree of a checkpoint: the tensors that each parameter is read from, checked first.

With `--quantize int8` the layers' weights are symmetric int8 with a scale per output channel,
rounded to nearest:

    weight[o, i]  ~  values[o, i] * scale[o]        scale[o] = max_i |weight[o, i]| / 127

With `--quantize stored` they stay in the file's blocks, see `device.dots`, if one form holds those
of all layers exactly and the parameter takes whole rows as they are stored.
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

# First keys of weights that stay in blocks
IN_LAYERS = ("layers", "attentions", "recurrent", "mlps", "experts")
MATRICES = ("token", "position", "weight")  # last keys of what is rounded; the rest stays float32
LARGEST_INT8 = 127

# (tensor's name, whether it is transposed, columns of the weight) -> form, or None
ExpectedForm = Callable[[str, bool, int], Form | None]
# (path in the tree, shape) -> sharding
Placement = Callable[[tuple[str, ...], tuple[int, ...]], Sharding]


def on_one_device(path: tuple[str, ...], shape: tuple[int, ...]) -> Sharding:
    """Placement of everything on the first device."""
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


def shapes_of(config: decoder.DecoderConfig, dtype: np.dtype) -> decoder.Params:
    """The parameter tree as `jax.ShapeDtypeStruct`.

    Matrices are of `dtype`, or int8 if they have scales, or `Blocks`; vectors are float32.
    """
    shapes, tree = parameter_shapes(config)
    out: list[Any] = []
    forms = dict(config.stored)
    for keys, shape in shapes.items():
        if (form := forms.get("/".join(keys))) is not None:
            out.append(abstract_blocks(form, shape, dtype))
            continue
        kind = dtype if keys[-1] in MATRICES else np.dtype(np.float32)
        if keys[-1] in MATRICES and (*keys[:-1], SCALE) in shapes:
            kind = np.dtype(np.int8)
        out.append(jax.ShapeDtypeStruct(shape, kind))
    return jax.tree_util.tree_unflatten(tree, out)


@functools.lru_cache(maxsize=4)
def parameter_shapes(
    config: decoder.DecoderConfig,
) -> tuple[Mapping[tuple[str, ...], tuple[int, ...]], Any]:
    """Shape of each parameter, and the tree; kept since the trace takes a second for hybrids."""
    # The key is made inside, where it is traced: outside it would compile and run two programs.
    made = jax.eval_shape(lambda: init_params(jax.random.key(0), config))
    leaves, tree = jax.tree_util.tree_flatten_with_path(made)
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
        placement: sharding of each parameter; a process reads the shards of its devices.
        integers: see `device.backends.Backend`.
        shapes: result of `shapes_of`, which takes a while, if it is known.

    Raises:
        InputError: tensors that are missing, left over, not floats or of another shape.
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
        InputError: as `load_params`, except for errors in values.
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
    """How to read each parameter, by path, and the structure of their tree.

    Args:
        in_tree: result of `shapes_of`.

    Raises:
        InputError: tensors that are missing, left over, not floats or of another shape.
    """
    table = family.sources(config)
    tree = jax.tree.structure(in_tree)
    paths = jax.tree_util.tree_leaves_with_path(in_tree, is_leaf=is_blocks)
    shapes = {keys_of(path): expected for path, expected in paths}
    forms = dict(config.stored)
    leaves: dict[tuple[str, ...], Leaf] = {}
    used: set[str] = set()
    for keys, expected in shapes.items():
        # Scales are computed from the weights that they belong to
        origin = (*keys[:-1], "weight") if keys[-1] == SCALE else keys
        kind = np.dtype(expected.dtype)
        leaf, names = _leaf(reader, table[origin], shapes[origin].shape, kind, integers)
        used |= names
        if is_blocks(expected):
            source = _resolved(reader, table[keys], expected.shape)
            form = forms["/".join(keys)]
            leaves |= _block_leaves(reader, keys, source, leaf, expected, form)
            continue
        if keys[-1] == SCALE:
            leaf = _computed_leaf(reader.folder, keys, leaf, expected.shape, int8_scales)
        elif kind == np.int8:
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
    """Require stored tensors without learned values to have those of the config; their names."""
    names = {name for name in constants if name in reader.stored}
    for name in sorted(names):
        found = np.asarray(reader.values(name, None))
        if found.tolist() != list(constants[name]):
            raise InputError(
                f"{reader.folder}: tensor {name} is {str(found.tolist())[:60]}, and the config "
                f"makes it {str(list(constants[name]))[:60]}; the config and the weights do not "
                "belong together"
            )
    return names


def stored_forms(
    folder: Path,
    family: Family,
    config: decoder.DecoderConfig,
    tensors: Tensors | None,
    expected_form: ExpectedForm | None = None,
) -> tuple[tuple[str, Form], ...]:
    """Weights of layers that can stay in the blocks of their file: `DecoderConfig.stored`.

    Args:
        tensors: of the checkpoint; None if only its config is known.
        expected_form: the form of a weight by the config, used without tensors.

    Raises:
        InputError: there are none.
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
            found = {
                expected_form(family.prefix + name, bool(source.transposed), expected.shape[-1])
                for name, _ in _names(source, expected.shape)
            }
            form = found.pop() if is_whole and len(found) == 1 else None
        if form is not None:
            forms.append(("/".join(keys), form))
    if not forms:
        raise InputError(
            f"{folder}: --quantize stored keeps the weights of layers in the blocks of a quantized "
            "checkpoint, and none here are in blocks that can be kept; take --quantize int8, or "
            "leave it out"
        )
    return tuple(forms)


def _form_of(reader: "Reader", source: Source, shape: tuple[int, ...]) -> Form | None:
    """The form in which a weight can stay in the blocks of its file, or None."""
    source = _resolved(reader, source, shape)
    names = {reader.stored.get(name, "") for name, _ in _names(source, shape)}
    rows = [reader.tensors.rows.get(name) for name in names]
    if source.plus or source.entries:
        return None
    if any(one is None or one.is_transposed != bool(source.transposed) for one in rows):
        return None
    return common_form([one.form for one in rows if one is not None])


def stored_share(shapes: Any) -> float:
    """Share of all parameters that stay in the blocks of their file."""
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
    """How to read the arrays of a weight in blocks.

    Args:
        weight: how to read its values.
        expected: the arrays' shapes.
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
    """What a field of a weight in blocks is made from, in our order: [n_rows, ...]."""
    stored = reader.tensors.rows[reader.stored[name]]
    rows, source = stored.read(field, index), dataclasses.replace(source, transposed=False)
    found = _orient(reader.folder, name, index, rows, source, (n_rows, *rows.shape[1:]))
    return np.ascontiguousarray(found)


def _is_mtp(name: str, stored: Mapping[str, str], n_layers: int) -> bool:
    """Whether a tensor belongs to a multi-token-prediction layer.

    Such a layer is recognised by its projection of an embedding and a hidden state: a layer
    after the last one with `eh_proj`, or ERNIE's `mtp_` layers.
    """
    if found := re.match(r"layers\.(\d+)\.", name):
        return int(found[1]) >= n_layers and f"{found[0]}eh_proj.weight" in stored
    found = re.match(r"mtp_(?:block|emb_norm|hidden_norm|linear_proj)\.(\d+)\.", name)
    return found is not None and f"mtp_linear_proj.{found[1]}.weight" in stored


class Reader(NamedTuple):
    """Tensors by the family's names, which checkpoints store with or without its prefix.

    Attributes:
        folder: named in errors.
        tensors: of the checkpoint.
        stored: the family's name -> the checkpoint's.
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
                    f"{folder}: tensor {bare} is there twice, as {stored[bare]} and as {name}"
                )
            stored[bare] = name
        return cls(folder, tensors, stored)

    def outline(self, name: str, index: int | None, entries: int = 0) -> np.ndarray:
        """`outline` of a tensor, or of one entry along its first axis.

        It has no bytes of its own, so checking its shape costs no copy.

        Args:
            entries: see `Source`.

        Raises:
            InputError: the tensor is missing or has too few entries.
        """
        if name not in self.stored:
            last = name.split(".")[-1]
            similar = [
                whole for bare, whole in sorted(self.stored.items()) if bare.split(".")[-1] == last
            ]
            prefix = next((w.removesuffix(b) for b, w in self.stored.items() if w != b), "")
            raise InputError(
                f"{self.folder}: tensor {prefix}{name} is missing; there are {len(self.stored)} "
                f"others, such as {', '.join(similar[:3])}"
            )
        array = self.tensors.stored[self.stored[name]]
        whole = outline(array.shape, array.dtype)
        if index is None:
            return whole
        if entries:
            if array.ndim != 2 or len(array) % entries:
                raise InputError(
                    f"{self.folder}: tensor {name} gives shape {list(array.shape)}, the config "
                    f"wants the rows of {entries} matrices"
                )
            return whole[: len(array) // entries]
        if array.ndim < 2 or index >= len(array):
            raise InputError(
                f"{self.folder}: tensor {name} gives shape {list(array.shape)}, the config wants "
                f"at least {index + 1} along its first axis"
            )
        return whole[index]

    def encoded(self, names: Iterable[tuple[str, int | None]]) -> dict[str, StoredRows]:
        """Rows of a parameter's tensors, of which a few can be dequantized alone."""
        found = {name: self.tensors.rows.get(self.stored[name]) for name, _ in names}
        return {
            name: rows
            for name, rows in found.items()
            if rows is not None and rows.decode is not None
        }

    def values(self, name: str, index: int | None, entries: int = 0) -> np.ndarray:
        """Values of a tensor, or of one entry along its first axis; `entries` as of `Source`."""
        stored = self.stored[name]
        if index is not None and entries:
            array = self.tensors.arrays[stored]
            n_rows = len(array) // entries
            return array[index * n_rows : (index + 1) * n_rows]
        return self.tensors.arrays[stored] if index is None else self.tensors.piece(stored, index)


def _leaf(
    reader: Reader, source: Source, shape: tuple[int, ...], dtype: np.dtype, integers: bool
) -> tuple[Leaf, set[str]]:
    """How to read a parameter, and the names of its tensors, whose types and shapes are checked."""
    source = _resolved(reader, source, shape)
    names = _names(source, shape)
    n_leading = len(_letters(source))
    own_shape = shape[n_leading:]

    def read(name: str, index: int | None) -> np.ndarray | RowWise:
        if (rows := encoded.get(name)) is not None and rows.decode is not None:
            own = _stored_rows(reader, name, index, source, own_shape[0], "values")
            return RowWise(own, rows.decode)
        values = reader.values(name, index, source.entries)
        return _orient(reader.folder, name, index, values, source, own_shape)

    for name, index in names:
        array = reader.outline(name, index, source.entries)
        check_float(reader.tensors.where[reader.stored[name]], _label(name, index), array)
        _orient(reader.folder, name, index, array, source, own_shape)
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
    """The source of a parameter of this shape that the checkpoint has, with its orientation.

    Raises:
        InputError: as `_with_orientation`.
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
    """A source with the orientation that the shape of its first tensor has.

    Raises:
        InputError: a square tensor, which has either.
    """
    rows, columns = reader.outline(*tensor).shape
    if rows == columns:
        raise InputError(
            f"{reader.folder}: tensor {_label(*tensor)} is square, so whether it is transposed "
            "cannot be known; give a checkpoint with one tensor for each expert"
        )
    return dataclasses.replace(source, transposed=columns != shape[-1])


def _letters(source: Source) -> list[str]:
    """What a parameter is stacked over: `i`, layers, and `j`, experts or heads."""
    names = {"i": ("{i}", "{pair}"), "j": ("{j}",)}
    return [letter for letter, of in names.items() if any(name in source.name for name in of)]


def _names(source: Source, shape: tuple[int, ...]) -> list[tuple[str, int | None]]:
    """Tensors of a parameter, with an index along the first axis for names such as `down[3]`."""
    letters, names = _letters(source), []
    for place in itertools.product(*map(range, shape[: len(letters)])):
        at = dict(zip(letters, place, strict=True))
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
    """A tensor, or an entry of one, in the layout and shape of our tree; a view if possible.

    Args:
        folder, name, index: named in errors.

    Raises:
        InputError: it has another shape.
    """
    view = view.T if source.transposed else view
    if len(shape) == 1 and view.size == max((*view.shape, 1)):
        view = view.reshape(-1)  # a vector may be stored as a matrix of one row, or as a scalar
    part = source.part
    rows = math.prod(shape) if view.ndim == 1 else shape[0]  # per-head norms may be stored flat
    all_rows = rows + source.skip
    if part is not None:
        all_rows = rows * part.size // (part.stop - part.start) + source.skip
    expected = (all_rows,) if view.ndim == 1 else (all_rows, *shape[1:])
    if view.shape != expected:
        raise InputError(
            f"{folder}: tensor {_label(name, index)} gives shape {list(view.shape)}, "
            f"the config wants {list(expected)}"
        )
    view = view[source.skip :]
    if part is not None:
        pieces = view.reshape(part.groups, part.size, -1, *view.shape[1:])
        view = pieces[:, part.start : part.stop]
    view = view.reshape(shape)
    return view.astype(np.float32) + np.float32(source.plus) if source.plus else view


def _computed_leaf(
    folder: Path,
    keys: tuple[str, ...],
    leaf: Leaf,
    shape: tuple[int, ...],
    compute: Callable[[np.ndarray], np.ndarray],
) -> Leaf:
    """The leaf of what `compute` returns for each row of each tensor."""

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
    """float32 [out] of a weight [out, in]; 1 if a channel is all zeros."""
    largest = np.abs(weight.astype(np.float32)).max(axis=-1)
    scales = np.where(largest > 0, largest / np.float32(LARGEST_INT8), np.float32(1))
    return scales.astype(np.float32)


def int8_values(weight: np.ndarray) -> np.ndarray:
    """int8 [out, in] of a weight [out, in].

    Raises:
        ValueError: a weight is not finite, which no integer represents.
    """
    weight = weight.astype(np.float32)
    if not np.isfinite(weight).all():
        raise ValueError("a weight is not finite, so it cannot be stored as int8")
    rounded = np.rint(weight / int8_scales(weight)[:, None])
    return np.clip(rounded, -LARGEST_INT8, LARGEST_INT8).astype(np.int8)
