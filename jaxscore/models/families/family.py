"""What a family is: a config translation and a table of weight names."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxscore.device.decoder import DecoderConfig

Path = tuple[str, ...]  # where a parameter stands in the tree of `decoder.init_params`


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a parameter comes from in a checkpoint.

    Attributes:
        name: the tensor; `{i}` stands for the layer where the parameter is stacked.
        transposed: the checkpoint has [in, out], we have [out, in].
        part: (k, n): the k-th of n equal parts along our first axis.
    """

    name: str
    transposed: bool = False
    part: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Family:
    """Data, no behaviour.

    Attributes:
        reads: config attributes that `translate` reads, or refuses where it cannot.
        translate: a transformers config object to a `DecoderConfig`; raises InputError naming
            the attribute that it does not handle.
        sources: for a `DecoderConfig` the tensor of every parameter.
        prefix: what some checkpoints put before every name, and some leave out.
        buffers: patterns of tensors that hold nothing learned (masks, rotary tables).
    """

    reads: frozenset[str]
    translate: Callable[[Any], DecoderConfig]
    sources: Callable[[DecoderConfig], Mapping[Path, Source]]
    prefix: str
    buffers: tuple[str, ...] = ()
