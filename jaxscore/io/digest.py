"""SHA-256 of a user's file, for the settings of a report."""

import hashlib
from pathlib import Path


def digest(path: Path) -> str | None:
    """SHA-256 of a file, hexadecimal; None for a pipe, which can be read only once."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
