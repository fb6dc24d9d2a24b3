"""Model families as data: a config translation and a table of weight names, with helpers for
such tables."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxscore.device.decoder_config import DecoderConfig

Path = tuple[str, ...]  # path of a parameter in the tree of `init_params`


class Part(NamedTuple):
    """Rows of one parameter in a tensor that fuses several parameters.

    The tensor's rows form `groups` groups of `size` equal pieces; the parameter is the pieces
    [start, stop) of every group. Three fused matrices are one group of three pieces. In a tensor
    that interleaves q k v q k v by head, the queries are the first of three pieces in each of
    `n_heads` groups.
    """

    groups: int
    size: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Source:
    """Checkpoint tensors that a parameter is read from.

    Attributes:
        name: the tensor's name. `{i}` is the layer and `{j}` the expert or head that the parameter
            is stacked over, in this order. A name that ends in `[{j}]` is one tensor with all
            experts along its first axis. `{pair}` and `{side}` are i // 2 and i % 2, for models
            that count two layers as one, and `{owner}` is the entry of `owners`.
        transposed: if True, the checkpoint stores [in, out] and the parameter is [out, in]. None
            to decide by the tensor's shape.
        part: the parameter's rows in a fused tensor; None for all rows.
        skip: number of leading rows to drop.
        plus: constant added to the values in float32 (Gemma stores the scales of norms minus one).
        layers: the layers that `{i}` runs over; None for all.
        elsewhere: layers in which the tensor has another name, and that name.
        otherwise: the source to use if the checkpoint does not have `name`.
        owners: for each index along the first axis, the layer whose module has the tensor.
        entries: number of matrices in a tensor whose name ends in `[{j}]`, if they are concatenated
            along the rows; 0 if they are stacked along a separate axis.
    """

    name: str
    transposed: bool | None = False
    part: Part | None = None
    skip: int = 0
    plus: float = 0.0
    layers: tuple[int, ...] | None = None
    elsewhere: tuple[tuple[int, ...], str] = ((), "")
    otherwise: "Source | None" = None
    owners: tuple[int, ...] = ()
    entries: int = 0


Table = dict[Path, Source]


@dataclasses.dataclass(frozen=True)
class Family:
    """Models that share a config translation and a table of weight names.

    Attributes:
        reads: config attributes that `translate` reads or refuses by value, or that are known to
            change nothing.
        translate: function from a config object of `config.read` to a `DecoderConfig`; raises
            InputError naming the attribute that is not handled.
        sources: function from a `DecoderConfig` to the source of each parameter.
        prefix: prefix of all tensor names, which some checkpoints leave out.
        buffers: patterns of tensors without learned values (masks, rotary tables).
        constants: function from a `DecoderConfig` to the names and required values of tensors that
            are not learned but change the function.
        unread: function from a `DecoderConfig` to patterns of tensors that released checkpoints
            contain and the model does not use.
        head: name of the untied unembedding.
        renamed: substrings of tensor names in some checkpoints -> their replacements in `sources`.
        joined: suffixes of tensor names -> suffixes of the tensors that some checkpoints have
            instead, whose rows are concatenated in this order. See `tensor_files.joined`.
        unread_part: description of the tensors of `unread`, for the note that they are left out;
            empty for no note.
        limit_reason: why the family takes fewer positions than `max_position_embeddings`; empty if
            it does not.
        next_tokens: if True, checkpoints may have multi-token-prediction layers (arXiv 2404.19737),
            which are not loaded.
    """

    reads: frozenset[str]
    translate: Callable[[Any], DecoderConfig]
    sources: Callable[[DecoderConfig], Mapping[Path, Source]]
    prefix: str = "model."
    buffers: tuple[str, ...] = ()
    constants: Callable[[DecoderConfig], Mapping[str, Sequence[int]]] = lambda config: {}
    unread: Callable[[DecoderConfig], tuple[str, ...]] = lambda config: ()
    head: str = "lm_head.weight"
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    unread_part: str = ""
    limit_reason: str = ""
    next_tokens: bool = False


def bare_name(family: Family, name: str) -> str:
    """Return the name of a tensor as `family.sources` has it, without the prefix."""
    name = name.removeprefix(family.prefix)
    for old, new in family.renamed.items():
        name = name.replace(old, new)
    return name


def linear(
    path: Path,
    name: str,
    bias: bool,
    *,
    part: Part | None = None,
    transposed: bool = False,
    layers: tuple[int, ...] | None = None,
) -> Table:
    """Return the table entries of a linear layer."""
    table = {(*path, "weight"): Source(f"{name}.weight", transposed, part, layers=layers)}
    if bias:
        table[*path, "bias"] = Source(f"{name}.bias", part=part, layers=layers)
    return table


def norm(path: Path, name: str, bias: bool, plus: float = 0.0) -> Table:
    """Return the table entries of a norm."""
    table = {(*path, "scale"): Source(f"{name}.weight", plus=plus)}
    return table | ({(*path, "bias"): Source(f"{name}.bias")} if bias else {})


def layer_norms(names: Mapping[str, str], bias: bool = False, plus: float = 0.0) -> Table:
    """Return the table entries of the norms of every layer.

    Args:
        names: our name of each norm -> the checkpoint's.
    """
    table: Table = {}
    for param, hf_name in names.items():
        table |= norm(("layers", param), f"layers.{{i}}.{hf_name}", bias, plus)
    return table


def unembedding(config: DecoderConfig, name: str = "lm_head") -> Table:
    """Return the table entries of the unembedding: none if it is tied and without bias."""
    table: Table = {} if config.head.tied else {("unembed", "weight"): Source(f"{name}.weight")}
    return table | ({("unembed", "bias"): Source(f"{name}.bias")} if config.head.bias else {})
