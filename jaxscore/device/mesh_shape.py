"""Devices along each axis of a mesh. Does not import JAX, so that `--mesh` is checked early."""

import dataclasses
import re

DATA, MODEL = "data", "model"  # mesh axes
FSDP = "fsdp"  # replaces DATA in `--mesh` if weights are split over it, too


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """Devices along each axis of a mesh.

    Attributes:
        fsdp: if True, each device along `data` stores a slice of every weight, see
            `device.sharding`.
    """

    data: int = 1
    model: int = 1
    fsdp: bool = False

    def __post_init__(self) -> None:
        if self.data < 1 or self.model < 1:
            raise ValueError(f"mesh {self}: expected at least 1 along each axis")

    @classmethod
    def parse(cls, text: str) -> "MeshShape":
        """Parse `data=N,model=M` or `fsdp=N,model=M`; either entry may be omitted.

        Raises:
            ValueError: the text has another form.
        """
        sizes: dict[str, int] = {}
        for entry in text.split(","):
            match = re.fullmatch(rf"({DATA}|{FSDP}|{MODEL})=([1-9][0-9]{{0,5}})", entry)
            if match is None or match[1] in sizes or {DATA, FSDP} <= {match[1], *sizes}:
                raise ValueError(
                    f"mesh {text!r}: {entry!r} is not expected there; give auto, "
                    f"{DATA}=N,{MODEL}=M or {FSDP}=N,{MODEL}=M with whole numbers from 1, each once"
                )
            sizes[match[1]] = int(match[2])
        return cls(sizes.get(DATA, sizes.get(FSDP, 1)), sizes.get(MODEL, 1), FSDP in sizes)

    @property
    def size(self) -> int:
        """The number of devices."""
        return self.data * self.model

    def __str__(self) -> str:
        return f"{FSDP if self.fsdp else DATA}={self.data},{MODEL}={self.model}"
