"""What an accelerator has, by the vendor's own pages: its memory and its peak."""

from typing import NamedTuple


class Chip(NamedTuple):
    """One chip.

    Attributes:
        memory_bytes: of its high-bandwidth memory.
        flops: bfloat16 FLOP per second at its peak.
        cores: that it has; JAX may show each of them as a device of its own.
    """

    memory_bytes: int
    flops: float
    cores: int


# By JAX's `device_kind`, from docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e and tpu7x.
CHIPS = {
    "TPU v4": Chip(32 * 2**30, 275e12, 2),
    "TPU v5 lite": Chip(16 * 2**30, 197e12, 1),
    "TPU v5": Chip(95 * 2**30, 459e12, 2),
    "TPU v6 lite": Chip(32 * 2**30, 918e12, 1),
    "TPU7x": Chip(192 * 2**30, 2307e12, 2),
}
