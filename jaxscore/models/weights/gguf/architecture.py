"""Storage of a model in a GGUF file, and its tensors under Hugging Face's names."""

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

# Old files of Mixtral have a tensor per expert, with its number in the name. `ssm_a`, `ssm_d` and
# Falcon-H1's `ffn_norm` have no suffix `weight` or `bias`.
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
    """Storage of the models of an architecture.

    Attributes:
        family: the model type.
        config: attributes of `config.json`, each a constant or a function of the metadata.
        names: Hugging Face's names of tensors of a layer, by the name in the file. A name with
            `{j}` is read at each index of the first axis. A name that ends in a dot is complete,
            without `weight` or `bias`.
        top: names of tensors outside the layers.
        layer: the prefix of the tensors of layer `{i}`.
        layouts: changes to undo, by stored name in a layer (`attn_q.weight`).
        joined: tensors that are joined from several stored ones, by their names in a layer.
        config_tensors: tensors that are read as attributes of the config.
        from_metadata: metadata keys that have one number per layer where Hugging Face has a
            tensor, by the tensor's name in a layer; a name that ends in `[1]` is a vector.
        ignored: keys that repeat the shapes of tensors or do not affect scores.
        checks: functions that refuse unsupported values.
    """

    family: str
    config: Mapping[str, Any]
    names: Mapping[str, str] = dataclasses.field(default_factory=lambda: BLOCK)
    top: Mapping[str, str] = dataclasses.field(default_factory=lambda: TOP)
    layer: str = "model.layers.{i}."
    layouts: Mapping[str, Layout] = dataclasses.field(default_factory=dict)
    joined: Mapping[str, Joined] = dataclasses.field(default_factory=dict)
    config_tensors: frozenset[str] = frozenset({ROPE_FACTORS})
    from_metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    checks: tuple[Callable[[Keys], object], ...] = ()

    def attributes(self, keys: Keys) -> dict[str, Any]:
        """Return the model's config as `config.json` would have it.

        Raises:
            InputError: a key is missing, or a value is not supported.
        """
        keys.ignore(self.ignored)
        for check in self.checks:
            check(keys)
        attributes = {
            name: value(keys) if callable(value) else value for name, value in self.config.items()
        }
        return {"model_type": self.family} | keys.common_attributes() | attributes

    def tensors(self, file: GgufFile) -> dict[str, Computed]:
        """Return the weights by Hugging Face's names.

        Raises:
            InputError: a tensor is not known, or its type cannot be read here.
        """
        check_decoder(file)
        keys = Keys(file)
        heads, n_layers = keys.heads(), keys.n_layers()
        weights = self._metadata_tensors(keys, n_layers)
        used = set(self.config_tensors)
        for layer in range(n_layers):
            for target, joined in self.joined.items():
                parts = [f"blk.{layer}.{part_name}" for part_name in joined.parts]
                if parts[0] in file.tensors:
                    name = self.layer.format(i=layer) + target
                    weights[name] = _join(file, joined, parts, heads)
                    used |= set(parts)
        for name in file.tensors:
            if name in used or keys.is_mtp(name):
                continue
            new_weights = self._weights(file, name, heads)
            if duplicates := sorted(weights.keys() & new_weights.keys()):
                raise InputError(f"{file.path}: tensor {name} is a second {duplicates[0]}")
            weights |= new_weights
        return weights

    def _metadata_tensors(self, keys: Keys, n_layers: int) -> dict[str, Computed]:
        """Return the tensors whose values are in the metadata."""
        weights = {}
        for target, key in self.from_metadata.items():
            for layer, value in enumerate(keys.reals(key, n_layers)):
                array = np.asarray(value, np.float32).reshape(target.count("[1]") or ())
                name = self.layer.format(i=layer) + target.removesuffix("[1]")
                weights[name] = Computed(
                    keys.file.path, array.shape, FLOAT32, functools.partial(np.array, array)
                )
        return weights

    def _weights(self, file: GgufFile, name: str, heads: Heads) -> dict[str, Computed]:
        """Return the weights that a stored tensor contains."""
        match = NAME.fullmatch(name)
        layer, base, expert, suffix = match.groups() if match else (None, "", None, "")
        stored = base if suffix is None else f"{base}.{suffix}"
        names = self.top if layer is None else self.names
        if base == "attn_qkv" and base not in names and {"attn_q", "attn_k", "attn_v"} <= {*names}:
            return self._split_qkv(file, name, heads)
        stem = f"{base}_exps" if expert is not None else base
        pattern = names.get(f"{stem}.{suffix}", names.get(stem))
        if pattern is None or (suffix == "scale" and f"{stem}.{suffix}" not in names):
            raise self._unknown(file, name)
        target = pattern.removesuffix(".") if pattern.endswith(".") else f"{pattern}.{suffix}"
        if layer is not None:
            target = self.layer.format(i=layer) + target
        if "{j}" not in target:
            if expert is not None:
                raise self._unknown(file, name)
            return {target: self._weight(file, name, stored, heads)}
        if expert is not None:
            return {target.format(j=expert): self._weight(file, name, "", heads)}
        tensor = file.tensors[name]
        if len(tensor.shape) < 2:
            raise InputError(
                f"{file.path}: tensor {name} has shape {list(tensor.shape)}, expected experts or "
                "heads along its first axis"
            )
        return {
            target.format(j=j): Computed(
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

    def _weight(self, file: GgufFile, name: str, stored_name: str, heads: Heads) -> Computed:
        tensor = file.tensors[name]
        read = functools.partial(values_of, file, name)
        if stored_name not in self.layouts:
            rows = rows_of(tensor)
            return Computed(tensor.where, tensor.shape, dtype_of(tensor), read, rows=rows)
        layout = self.layouts[stored_name]
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

    def _split_qkv(self, file: GgufFile, name: str, heads: Heads) -> dict[str, Computed]:
        """Return queries, keys and values of a tensor that stores them one after another."""
        tensor, suffix = file.tensors[name], name.rpartition(".")[2]
        width, remainder = divmod(tensor.shape[0], heads.queries + 2 * heads.keys)
        if remainder:
            raise InputError(
                f"{file.path}: tensor {name} has {tensor.shape[0]} rows, expected a multiple of "
                f"{heads.queries + 2 * heads.keys} heads"
            )
        start, weights = 0, {}
        for part_name, n in (
            ("attn_q", heads.queries),
            ("attn_k", heads.keys),
            ("attn_v", heads.keys),
        ):
            rows = slice(start, start + n * width)
            layout = self.layouts.get(f"{part_name}.{suffix}", Layout(lambda values, _: values))

            def compute(rows: slice = rows, layout: Layout = layout) -> np.ndarray:
                return layout.change(values_of(file, name)[rows], heads)

            target = f"{self.layer.format(i=name.split('.')[1])}{self.names[part_name]}.{suffix}"
            shape = (n * width, *tensor.shape[1:])
            weights[target] = Computed(tensor.where, shape, dtype_of(tensor), compute)
            start = rows.stop
        return weights


def _join(file: GgufFile, joined: Joined, parts: list[str], heads: Heads) -> Computed:
    if missing := [part_name for part_name in parts if part_name not in file.tensors]:
        raise InputError(f"{file.path}: tensor {missing[0]} is missing")
    tensors = [file.tensors[part_name] for part_name in parts]
    dtypes = {dtype_of(tensor) for tensor in tensors}
    dtype = dtypes.pop() if len(dtypes) == 1 else FLOAT32
    shapes = [tensor.shape for tensor in tensors]
    if any(len(shape) != joined.n_axes for shape in shapes):
        raise InputError(f"{file.path}: tensor {parts[0]} has shape {list(shapes[0])}")

    def join(values: list[np.ndarray]) -> np.ndarray:
        try:
            return joined.join([array.astype(dtype, copy=False) for array in values], heads)
        except ValueError:
            listed = ", ".join(
                f"{name} {list(shape)}" for name, shape in zip(parts, shapes, strict=True)
            )
            raise InputError(f"{file.path}: tensor shapes do not match: {listed}") from None

    return Computed(
        tensors[0].where,
        joined.shape(shapes),
        dtype,
        lambda: join([values_of(file, part_name) for part_name in parts]),
        (lambda index: join([piece_of(file, part_name, index) for part_name in parts]))
        if joined.has_pieces
        else None,
    )
