"""Targets with a defect that a fuzzer has to find, for tests of `tools/fuzz.py`."""

import time
import warnings
from pathlib import Path


def raises(data: bytes, folder: Path) -> None:
    """Behind four conditions: one in 2^32 random inputs meets them."""
    if len(data) > 3 and data[0] == ord("f"):  # noqa: SIM102 - each is a branch of its own
        if data[1] == ord("u"):  # noqa: SIM102
            if data[2] == ord("z"):  # noqa: SIM102
                if data[3] == ord("z"):
                    raise ValueError("planted")


def warns(data: bytes, folder: Path) -> None:
    if data[:1] == b"w":
        warnings.warn("planted", stacklevel=1)


def hangs(data: bytes, folder: Path) -> None:
    if data[:1] == b"h":
        time.sleep(600)


def eats(data: bytes, folder: Path) -> None:
    if data[:1] == b"e":
        held = bytes(400 << 20).replace(b"\0", b"x")
        time.sleep(3)  # libFuzzer looks each second
        del held


def is_sound(data: bytes, folder: Path) -> None:
    (folder / "input").write_bytes(data)
