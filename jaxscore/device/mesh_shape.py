"""Devices along each axis of a mesh. Imports no JAX, so that `--mesh` is checked before it."""

import dataclasses
import re

DATA, MODEL = "data", "model"  # mesh axes
FSDP = "fsdp"  # written in place of DATA if weights are split over it, too


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """Devices along each axis of a mesh.

    Attributes:
        fsdp: each device along `data` stores a part of every weight, see `device.sharding`.
    """

    data: int = 1
    model: int = 1
    fsdp: bool = False

    def __post_init__(self) -> None:
        if self.data < 1 or self.model < 1:
            raise ValueError(f"mesh {self}: expected at least 1 along each axis")

    @classmethod
    def parse(cls, text: str) -> "MeshShape":
        """A mesh from `data=N,model=M` or `fsdp=N,model=M`; a part may be left out.

        Raises:
            ValueError: anything else.
        """
        found: dict[str, int] = {}
        for part in text.split(","):
            match = re.fullmatch(rf"({DATA}|{FSDP}|{MODEL})=([1-9][0-9]{{0,5}})", part)
            if match is None or match[1] in found or {DATA, FSDP} <= {match[1], *found}:
                raise ValueError(
                    f"mesh {text!r}: {part!r} is not expected there; give auto, "
                    f"{DATA}=N,{MODEL}=M or {FSDP}=N,{MODEL}=M with whole numbers from 1, each once"
                )
            found[match[1]] = int(match[2])
        return cls(found.get(DATA, found.get(FSDP, 1)), found.get(MODEL, 1), FSDP in found)

    @property
    def size(self) -> int:
        """Devices in all."""
        return self.data * self.model

    def __str__(self) -> str:
        return f"{FSDP if self.fsdp else DATA}={self.data},{MODEL}={self.model}"
