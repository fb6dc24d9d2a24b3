"""What a family is: a config translation and a table of weight names."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxscore.device.decoder_config import DecoderConfig

Path = tuple[str, ...]  # where a parameter stands in the tree of `init_params`


class Part(NamedTuple):
    """Some rows of a tensor that holds several parameters.

    Its rows are `groups` groups of `size` equal pieces; of each group the pieces from `start` up
    to `stop` are ours. Three fused matrices are one group of three, the queries of heads that lie
    as q k v q k v are the first piece of three in as many groups as there are heads.
    """

    groups: int
    size: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a parameter comes from in a checkpoint.

    Attributes:
        name: the tensor; `{i}` stands for the layer and `{j}` for the expert or head where the
            parameter is stacked over them, in this order. A name that ends in `[{j}]` is that of
            one tensor with all experts along its first axis.
        transposed: the checkpoint has [in, out], we have [out, in].
        part: the rows that are ours; None for all.
        skip: leading rows that nobody reads.
        plus: added to the values, in float32 (Gemma's norms are stored as their scale less one).
        layers: those that `{i}` stands for; None for all.
    """

    name: str
    transposed: bool = False
    part: Part | None = None
    skip: int = 0
    plus: float = 0.0
    layers: tuple[int, ...] | None = None


Table = dict[Path, Source]


@dataclasses.dataclass(frozen=True)
class Family:
    """Data, no behaviour.

    Attributes:
        reads: config attributes that `translate` reads, or refuses where it cannot, or that are
            known to change nothing.
        translate: a transformers config object to a `DecoderConfig`; raises InputError naming
            the attribute that it does not handle.
        sources: for a `DecoderConfig` the tensor of every parameter.
        prefix: what some checkpoints put before every name, and some leave out.
        buffers: patterns of tensors that hold nothing learned (masks, rotary tables).
        unread: for a `DecoderConfig` patterns of tensors that released checkpoints have and
            nobody reads.
        head: the tensor of the unembedding where it is not tied.
        next_tokens: checkpoints may have layers that predict more tokens than the next
            (arXiv 2404.19737), which are left out.
    """

    reads: frozenset[str]
    translate: Callable[[Any], DecoderConfig]
    sources: Callable[[DecoderConfig], Mapping[Path, Source]]
    prefix: str = "model."
    buffers: tuple[str, ...] = ()
    unread: Callable[[DecoderConfig], tuple[str, ...]] = lambda config: ()
    head: str = "lm_head.weight"
    next_tokens: bool = False
