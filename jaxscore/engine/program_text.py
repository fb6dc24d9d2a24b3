"""Parses the text of a compiled program: collectives, Pallas kernels, joined slices.

The text is XLA's optimised HLO. Each operation is one line, and the body of a loop occurs once,
however often it runs.
"""

import collections
import dataclasses
import importlib.metadata
import importlib.util
import math
import re
from typing import Any

from jax.errors import JaxRuntimeError

from jaxscore.errors import InputError

# An asynchronous collective is two operations; `-done` has the result's shape.
COLLECTIVES = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
COLLECTIVE = re.compile(rf"= (.*?) ({COLLECTIVES})(-done)?\(")
SHAPE = re.compile(r"\b(pred|[a-z]+?([0-9]+)\w*)\[([0-9,]*)\]")
JOINED = 'custom_call_target="ConcatBitcast"'
KERNEL = re.compile(r'op_name="[^"]*?([^"/]+)/pallas_call"')


@dataclasses.dataclass(frozen=True)
class Collective:
    """All operations of one kind in a program's text; bytes are those of their results."""

    op: str
    count: int
    bytes: int


def text_of(program: Any) -> str:
    """A compiled program as HLO; empty if the compiler does not provide it.

    Raises:
        InputError: JAX requires another version of the TPU compiler and cannot read its output.
    """
    try:
        return program.as_text() or ""
    except JaxRuntimeError as problem:
        if importlib.util.find_spec("libtpu") is None:
            raise
        jax, libtpu = (importlib.metadata.version(name) for name in ("jax", "libtpu"))
        raise InputError(
            f"JAX {jax} cannot read the program that libtpu {libtpu} has compiled; install the "
            f"version that it names: pip install 'jax[tpu]=={jax}'"
        ) from problem


def collectives(text: str) -> list[Collective]:
    """Collective operations by kind; a loop's body counts once."""
    count: collections.Counter[str] = collections.Counter()
    size: collections.Counter[str] = collections.Counter()
    for line in text.splitlines():
        if match := COLLECTIVE.search(line):
            count[match[2]] += 1
            size[match[2]] += shape_bytes(match[1])
    return [Collective(op, count[op], size[op]) for op in sorted(count)]


def joined_slices(text: str) -> int:
    """Operations that name slices, copied side by side, as one array; the TPU has no code for
    them (`CreateBitcastConcat` of XLA's memory space assignment)."""
    return text.count(JOINED)


def shape_bytes(text: str) -> int:
    """Bytes of an HLO shape, of all parts if it is a tuple."""
    bits = 0
    for kind, width, dims in SHAPE.findall(text):
        n_numbers = math.prod(map(int, dims.split(","))) if dims else 1
        bits += n_numbers * (8 if kind == "pred" else int(width))
    return bits // 8


def kernels(text: str) -> list[str]:
    """Names of the Pallas kernels, each once."""
    return sorted(set(KERNEL.findall(text)))
