"""What a section is told."""

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Options:
    """The same for every section; each reads what concerns it.

    Attributes:
        small: shapes of two narrow layers, to see on any machine that the check itself works.
        seconds: after which no further measurement is begun.
        batch_tokens: sizes of batches to measure.
        out: a file for numbers that another process is to have too, instead of a verdict.
    """

    small: bool = False
    seconds: float = 300.0
    batch_tokens: tuple[int, ...] = (4096, 16384, 32768)
    out: Path | None = None
