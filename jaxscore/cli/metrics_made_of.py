"""What the means of a metrics file were made of: digests of its inputs, in its manifest."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io import run_files
from jaxscore.io.json_input import read_json
from jaxscore.io.run_files import file_digest
from jaxscore.systems.rag.experiment_folder import RagOutput
from jaxscore.systems.rag.records import FIELDS

WHAT = {"records_sha256": "the records", "run_sha256": "the run"}  # digest -> of what, for people


def digests(output: RagOutput, run: Path | None = None) -> dict[str, str | None]:
    """Of the fields of all rows, whatever columns they have, and of the run of a ranking."""
    rows = [
        [row.get(name) for name in FIELDS] if isinstance(row, dict) else row for row in output.rows
    ]
    found: dict[str, str | None] = {
        "records_sha256": hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    }
    if run is not None:
        found["run_sha256"] = file_digest(run)
    return found


def check(path: Path, found: Mapping[str, str | None]) -> None:
    """Refuse to keep means of other inputs; a manifest without digests says nothing of them.

    Args:
        path: the file whose manifest has the digests of the earlier run.
        found: the digests of this run's inputs.

    Raises:
        InputError: an input has changed since the means were computed.
    """
    stored = _stored(run_files.manifest_path(path))
    changed = [WHAT[name] for name, value in found.items() if stored.get(name, value) != value]
    if changed:
        raise InputError(
            f"{path}: the metrics exist and were made of other inputs ({' and '.join(changed)} "
            "changed since); --force computes them again"
        )


def _stored(path: Path) -> Mapping[str, Any]:
    """A manifest; empty where none can be read."""
    try:
        value = read_json(path, "a manifest") if path.is_file() else None
    except InputError:
        return {}
    return value if isinstance(value, dict) else {}
