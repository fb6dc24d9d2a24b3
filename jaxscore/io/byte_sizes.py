"""Sizes in bytes as people write and read them: 16GB."""

import re

from jaxscore.errors import InputError

UNITS = {
    "B": 1,
    **{f"{letter}B": 1000 ** (k + 1) for k, letter in enumerate("kMGT")},
    **{f"{letter}iB": 1024 ** (k + 1) for k, letter in enumerate("KMGT")},
}


def parse_bytes(text: str, *, unit_required: bool = True) -> int:
    """Parse a size in bytes: 16GB is 16 * 1000**3, 16GiB is 16 * 1024**3.

    Args:
        unit_required: if False, a plain whole number is a size in bytes.

    Raises:
        InputError: the number or the unit is invalid, or the size is 0.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)", text)
    if not unit_required and re.fullmatch(r"[0-9]{1,18}", text):
        size = int(text)
    else:
        size = int(float(match[1]) * UNITS[match[2]]) if match and match[2] in UNITS else 0
    if size < 1:
        units = ", ".join(UNITS)
        raise InputError(
            f"{text!r} is not a size in bytes; give a number above 0 and one of {units}"
            if unit_required
            else f"{text!r} is not a size in bytes; give a whole number above 0, or a number and "
            f"one of {units}"
        )
    return size


def format_bytes(size: int) -> str:
    """Format a size with three digits and a decimal unit: 16.1 GB."""
    unit = next((unit for unit in ("TB", "GB", "MB", "kB") if size >= UNITS[unit]), "B")
    if unit == "B":
        return f"{size} B"
    return f"{format_three_digits(size / UNITS[unit])} {unit}"


def format_three_digits(value: float) -> str:
    """Format a number of at least 1 with three digits, or all digits of its integer part."""
    return f"{value:.{max(0, 3 - len(str(int(value))))}f}"
