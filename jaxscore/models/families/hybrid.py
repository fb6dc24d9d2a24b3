"""Weight tables of decoders with recurrent layers: each kind of layer is stacked on its own."""

import dataclasses
import itertools
import math

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families.family import Part, Table

ATTENTION, RECURRENT = ("layers", "attention"), ("recurrent",)


def by_kind(config: DecoderConfig, table: Table) -> Table:
    """The table with rows of `ATTENTION` and `RECURRENT` for the layers of each kind.

    Args:
        table: rows of attention as in a decoder that has it in all layers, rows of the
            recurrence under `RECURRENT`, and others.
    """
    if config.recurrent is None:
        return {path: source for path, source in table.items() if path[0] != RECURRENT[0]}
    recurrent = config.recurrent.layers
    attention = tuple(i for i in range(config.n_layers) if i not in recurrent)
    out: Table = {}
    for path, source in table.items():
        if path[0] == RECURRENT[0]:
            out[path] = dataclasses.replace(source, layers=recurrent)
        elif path[:2] != ATTENTION:
            out[path] = source
        elif attention:
            out["attentions", "main", *path[2:]] = dataclasses.replace(source, layers=attention)
    return out


def parts(groups: int, *rows: int) -> list[Part]:
    """Parts of a fused tensor, each of whose groups has this number of rows for each part."""
    piece = math.gcd(*rows)
    stops = [stop // piece for stop in itertools.accumulate(rows)]
    starts = [0, *stops[:-1]]
    return [Part(groups, stops[-1], start, stop) for start, stop in zip(starts, stops, strict=True)]
