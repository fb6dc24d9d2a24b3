"""How a model is stored in a GGUF file, and its tensors under Hugging Face's names."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import GgufFile
from jaxscore.models.weights.gguf.layouts import (
    Heads,
    Joined,
    Layout,
    check_decoder,
    dtype_of,
    entry_of,
    piece_of,
    rows_of,
    values_of,
)
from jaxscore.models.weights.gguf.metadata import ROPE_FACTORS, Keys
from jaxscore.models.weights.quantization.dequantize import Computed

# A name with the number of an expert is of an old Mixtral; `ssm_a`, `ssm_d` and Falcon-H1's
# `ffn_norm` have no kind.
NAME = re.compile(
    r"(?:blk\.(\d+)\.)?((?:shortconv\.)?\w+)(?:\.(\d+))?(?:\.(weight|bias|scale)|(?<=\.ssm_[ad])|(?<=\.ffn_norm))"
)
FLOAT32 = np.dtype(np.float32)
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How a model is stored.

    Attributes:
        family: its model type.
        config: attributes of `config.json`, each a constant or a function of the metadata.
        names: of tensors of a layer. One with `{j}` is read at each index of the first axis; one
            that ends in a dot is whole, without `weight` or `bias`.
        top: names of tensors of no layer.
        layer: name of a layer.
        layouts: changes to undo, by part and kind (`attn_q.weight`).
        joined: tensors that are made of several stored ones, by their names in a layer.
        of_config: tensors that are read as attributes.
        given: keys with a number for each layer that is a tensor elsewhere, by its name in a layer;
            with `[1]` behind the name it is a vector.
        ignored: keys that the shapes of tensors say too, or that decide no number.
        checks: of what only one value is handled.
    """

    family: str
    config: Mapping[str, Any]
    names: Mapping[str, str] = dataclasses.field(default_factory=lambda: BLOCK)
    top: Mapping[str, str] = dataclasses.field(default_factory=lambda: TOP)
    layer: str = "model.layers.{i}."
    layouts: Mapping[str, Layout] = dataclasses.field(default_factory=dict)
    joined: Mapping[str, Joined] = dataclasses.field(default_factory=dict)
    of_config: frozenset[str] = frozenset({ROPE_FACTORS})
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    checks: tuple[Callable[[Keys], object], ...] = ()

    def attributes(self, keys: Keys) -> dict[str, Any]:
        """What the `config.json` of the model would be.

        Raises:
            InputError: a key that is missing, or a value that is not handled.
        """
        keys.ignore(self.ignored)
        for check in self.checks:
            check(keys)
        own = {
            name: value(keys) if callable(value) else value for name, value in self.config.items()
        }
        return {"model_type": self.family} | keys.of_all() | own

    def tensors(self, file: GgufFile) -> dict[str, Computed]:
        """Weights by Hugging Face's names.

        Raises:
            InputError: a tensor that is not known, or whose type cannot be read here.
        """
        check_decoder(file)
        keys = Keys(file)
        heads, n_layers = keys.heads(), keys.n_layers()
        found = self._given(keys, n_layers)
        used = set(self.of_config)
        for layer in range(n_layers):
            for theirs, joined in self.joined.items():
                parts = [f"blk.{layer}.{part}" for part in joined.parts]
                if parts[0] in file.tensors:
                    name = self.layer.format(i=layer) + theirs
                    found[name] = _join(file, joined, parts, heads)
                    used |= set(parts)
        for name in file.tensors:
            if name in used or keys.is_left_out(name):
                continue
            own = self._weights(file, name, heads)
            if both := sorted(found.keys() & own.keys()):
                raise InputError(f"{file.path}: tensor {name} is {both[0]}, which is there twice")
            found |= own
        return found

    def _given(self, keys: Keys, n_layers: int) -> dict[str, Computed]:
        """Tensors whose values are in the metadata."""
        found = {}
        for theirs, key in self.given.items():
            for layer, value in enumerate(keys.reals(key, n_layers)):
                array = np.asarray(value, np.float32).reshape(theirs.count("[1]") or ())
                name = self.layer.format(i=layer) + theirs.removesuffix("[1]")
                found[name] = Computed(
                    keys.file.path, array.shape, FLOAT32, functools.partial(np.array, array)
                )
        return found

    def _weights(self, file: GgufFile, name: str, heads: Heads) -> dict[str, Computed]:
        """The weights that a stored tensor gives."""
        match = NAME.fullmatch(name)
        layer, part, expert, kind = match.groups() if match else (None, "", None, "")
        stored = part if kind is None else f"{part}.{kind}"
        names = self.top if layer is None else self.names
        if part == "attn_qkv" and part not in names and {"attn_q", "attn_k", "attn_v"} <= {*names}:
            return self._three(file, name, heads)
        stem = f"{part}_exps" if expert is not None else part
        pattern = names.get(f"{stem}.{kind}", names.get(stem))
        if pattern is None or (kind == "scale" and f"{stem}.{kind}" not in names):
            raise self._unknown(file, name)
        theirs = pattern.removesuffix(".") if pattern.endswith(".") else f"{pattern}.{kind}"
        if layer is not None:
            theirs = self.layer.format(i=layer) + theirs
        if "{j}" not in theirs:
            if expert is not None:
                raise self._unknown(file, name)
            return {theirs: self._one(file, name, stored, heads)}
        if expert is not None:
            return {theirs.format(j=expert): self._one(file, name, "", heads)}
        tensor = file.tensors[name]
        if len(tensor.shape) < 2:
            raise InputError(
                f"{file.path}: tensor {name} has shape {list(tensor.shape)}, expected one tensor "
                "for each index of a first axis"
            )
        return {
            theirs.format(j=j): Computed(
                tensor.where,
                tensor.shape[1:],
                dtype_of(tensor),
                functools.partial(piece_of, file, name, j),
                rows=rows_of(entry_of(tensor, j)),
            )
            for j in range(tensor.shape[0])
        }

    def _unknown(self, file: GgufFile, name: str) -> InputError:
        return InputError(
            f"{file.path}: tensor {name} is not known for architecture {file.architecture!r}"
        )

    def _one(self, file: GgufFile, name: str, part: str, heads: Heads) -> Computed:
        tensor = file.tensors[name]
        read = functools.partial(values_of, file, name)
        if part not in self.layouts:
            rows = rows_of(tensor)
            return Computed(tensor.where, tensor.shape, dtype_of(tensor), read, rows=rows)
        layout = self.layouts[part]
        dtype = FLOAT32 if layout.is_float32 else dtype_of(tensor)
        shape = layout.shape(tensor.shape)
        rows = rows_of(tensor, lambda rows: layout.change(rows, heads))
        return Computed(
            tensor.where,
            shape,
            dtype,
            lambda: layout.change(read(), heads),
            rows=rows if layout.keeps_rows else None,
        )

    def _three(self, file: GgufFile, name: str, heads: Heads) -> dict[str, Computed]:
        """Queries, keys and values of one tensor, whose rows follow each other."""
        tensor, kind = file.tensors[name], name.rpartition(".")[2]
        width, rest = divmod(tensor.shape[0], heads.queries + 2 * heads.keys)
        if rest:
            raise InputError(
                f"{file.path}: tensor {name} has {tensor.shape[0]} rows, expected a multiple of "
                f"{heads.queries + 2 * heads.keys} heads"
            )
        start, found = 0, {}
        for part, n in (("attn_q", heads.queries), ("attn_k", heads.keys), ("attn_v", heads.keys)):
            rows = slice(start, start + n * width)
            layout = self.layouts.get(f"{part}.{kind}", Layout(lambda values, _: values))

            def compute(rows: slice = rows, layout: Layout = layout) -> np.ndarray:
                return layout.change(values_of(file, name)[rows], heads)

            theirs = f"{self.layer.format(i=name.split('.')[1])}{self.names[part]}.{kind}"
            shape = (n * width, *tensor.shape[1:])
            found[theirs] = Computed(tensor.where, shape, dtype_of(tensor), compute)
            start = rows.stop
        return found


def _join(file: GgufFile, joined: Joined, parts: list[str], heads: Heads) -> Computed:
    if missing := [part for part in parts if part not in file.tensors]:
        raise InputError(f"{file.path}: has no tensor {missing[0]}")
    tensors = [file.tensors[part] for part in parts]
    dtypes = {dtype_of(tensor) for tensor in tensors}
    dtype = dtypes.pop() if len(dtypes) == 1 else FLOAT32
    shapes = [tensor.shape for tensor in tensors]
    if any(len(shape) != joined.n_axes for shape in shapes):
        raise InputError(f"{file.path}: tensor {parts[0]} has shape {list(shapes[0])}")

    def join(values: list[np.ndarray]) -> np.ndarray:
        try:
            return joined.join([part.astype(dtype, copy=False) for part in values], heads)
        except ValueError:
            listed = ", ".join(f"{part} {list(file.tensors[part].shape)}" for part in parts)
            raise InputError(f"{file.path}: tensors that do not fit: {listed}") from None

    return Computed(
        tensors[0].where,
        joined.shape(shapes),
        dtype,
        lambda: join([values_of(file, part) for part in parts]),
        (lambda index: join([piece_of(file, part, index) for part in parts]))
        if joined.has_pieces
        else None,
    )
