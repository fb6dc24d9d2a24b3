"""Manifests of finished outputs: their fields, and a check of an output against its manifest.

A manifest is in the folder of its output. Every command reads and writes manifests with these
functions, so a damaged one gives the same message everywhere.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Required, TypedDict

from jaxscore.errors import InputError
from jaxscore.io import processes, remote
from jaxscore.io.atomic import atomic
from jaxscore.io.json_input import read_json
from jaxscore.io.json_output import json_text
from jaxscore.io.local_path import ADDRESS, mask_address
from jaxscore.io.remote import displayed
from jaxscore.io.streams import is_stream
from jaxscore.io.typed_json import read_typed

MANIFEST = ".run.json"  # ending of a manifest's name
OUTPUTS = "outputs"  # field of a manifest: name of a file -> its facts, see `output_facts`
REMEDY = "restore the manifest, or delete it and score the input again"
UNVERIFIED = (
    "not verified: {n} outputs, whose manifests of an earlier version have no digest of them"
)

NO_FLAGS = {
    "run",
    "run_file",
    "load_source",
    "companions",
    "words",
    "published",
    "command",
    "loaded",
    "scorer",
    "part",
    "forms",
    "fingerprints",
}  # attributes of argparse's result beside flags

# Flags that do not decide what records say.
OF_THE_RUN = frozenset(
    "input output shard force journal quiet by html no_html device mesh batch_tokens distributed "
    "coordinator num_processes process_id join_timeout engine actors".split()
)


class OutputFacts(TypedDict, total=False):
    """Facts of a finished file."""

    sha256: Required[str]
    size: Required[int]
    records: int
    identity: dict[str, int | str | None] | None


class SpreadFacts(TypedDict):
    """Spread of one number over layouts; an infinite one is a text."""

    largest: float | Literal["Infinity", "-Infinity"]
    mean: float | Literal["Infinity", "-Infinity"]


class NoiseFacts(TypedDict):
    """Fields of `Noise.record` that `merge` adds up."""

    n_requests: int
    layouts: list[str]
    spread: dict[str, SpreadFacts]
    n_tokens: int | None
    n_greedy_differs: int | None


class VersionFacts(TypedDict, total=False):
    """Versions of programs."""

    jaxscore: str


class ModelFacts(TypedDict, total=False):
    """Facts of a loaded model."""

    model: str | None
    dtype: str | None
    numbers: int


class Made(TypedDict):
    """Everything that decides the records of a run, see `cli.made`."""

    command: str
    flags: dict[str, Any]
    files: dict[str, str | None]
    records: int
    numbers: int
    name: str | None
    weights: dict[str, str] | None
    tokenizer: str | None
    loaded: dict[str, Any] | None


class SampleEffect(TypedDict):
    """Fields of an `Effect`."""

    n_items: int
    means: dict[str, float]
    n_answers: int
    n_raised: int
    rise: float


class RunFacts(TypedDict):
    """Fields of `Facts`."""

    seconds: float
    warnings: dict[str, int]
    counts: dict[str, int | float]
    boundaries: dict[str, int]
    boundary: SampleEffect | None
    blank: SampleEffect | None
    noise: NoiseFacts | None
    n_runs: int


class Manifest(TypedDict, total=False):
    """Fields of a manifest that commands read. It has further fields, which are not checked."""

    command: Required[str]
    flags: Required[dict[str, Any]]
    made: Made
    facts: RunFacts
    about: dict[str, Any]
    vocabulary: int | None
    output: str
    outputs: dict[str, OutputFacts]
    versions: VersionFacts
    machine: dict[str, Any] | None
    model: ModelFacts | None
    input_path: str
    input_identity: dict[str, int | str | None] | None
    input_sha256: str | None
    seconds: float
    counts: dict[str, int | float] | None
    failed: int
    is_empty: bool
    shards: dict[str, dict[str, int | str | None] | None] | int
    empty: list[str]
    missing: list[str]


def manifest_path(output: Path) -> Path:
    """Path of an output's manifest."""
    return output.parent / f"{output.name}{MANIFEST}"


def read_manifest(output: Path) -> dict[str, Any] | None:
    """Read the manifest of a local or remote output; None if it is missing.

    Raises:
        InputError: it is not a manifest; has file, line, what was found and expected.
    """
    return read_manifest_file(manifest_path(output))


def read_manifest_file(path: Path) -> dict[str, Any] | None:
    """Read a manifest by its own path, see `read_manifest`."""
    manifest: dict[str, Any] | None = read_typed(path, Manifest, "a manifest", REMEDY)
    return manifest


def file_digest(path: Path) -> str | None:
    """SHA-256 of a file in hexadecimal, or None for a pipe, which can be read only once."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_identity(path: Path) -> dict[str, Any] | None:
    """Return the size and version of a local or remote file, or None if it is missing.

    Writing to a local file changes its ctime, also if its mtime is set back.
    """
    if remote.address_of(path) is not None:
        return remote.identity(path)
    if not path.is_file():
        return None
    facts = path.stat()
    versions = {name: str(getattr(facts, f"st_{name}")) for name in ("mtime_ns", "ctime_ns", "ino")}
    return {"size": facts.st_size, **versions}


def output_facts(path: Path, n_records: int | None = None) -> dict[str, Any]:
    """Return the facts of a finished file for its manifest.

    Args:
        path: a local path, also of a file that will be uploaded.
        n_records: number of records, or None if the file has no records.
    """
    facts: dict[str, Any] = {"sha256": file_digest(path), "size": path.stat().st_size}
    if n_records is not None:
        facts["records"] = n_records
    return {**facts, "identity": file_identity(path)}


def output_difference(
    path: Path, manifest: Mapping[str, Any], *, copy: Path | None = None, name: str | None = None
) -> str | None:
    """Describe how a finished file differs from the facts in its manifest.

    Without a copy, a file whose identity has not changed is not read.

    Args:
        path: path of a local or remote file.
        copy: a local copy of the file, or the file itself, which is always read.
        name: name of the file in the manifest, if it was renamed.

    Returns:
        A part of a message, or None if nothing differs or the manifest has no digest of any file.
    """
    outputs = manifest.get(OUTPUTS)
    if not outputs:
        return None
    if (facts := outputs.get(name or path.name)) is None:
        return f"found facts of {', '.join(sorted(outputs))}, expected those of this file"
    expected = f"expected {facts['size']} bytes"
    if (n_records := facts.get("records")) is not None:
        expected += f" with {n_records} records"
    if copy is None:
        identity = file_identity(path)
        if identity is None:
            return f"found no such file, {expected}"
        if len(identity) > 1 and identity == facts.get("identity"):
            return None
        if identity["size"] not in (None, facts["size"]):
            return f"found {identity['size']} bytes, {expected}"
        with remote.fetched(path) as fetched:
            return output_difference(path, manifest, copy=fetched, name=name)
    if (size := copy.stat().st_size) != facts["size"]:
        return f"found {size} bytes, {expected}"
    if file_digest(copy) != facts["sha256"]:
        return f"found other bytes of the same size, {expected}"
    return None


def changed_output(path: Path, why: str) -> InputError:
    """Return the error for a finished file that differs from its manifest.

    Args:
        why: the difference, see `output_difference`.
    """
    return InputError(
        f"{displayed(path)}: not as its manifest describes it ({why}); run the command that wrote "
        "it again"
    )


def remove_manifest(output: Path) -> None:
    """Remove an output's manifest before the output is replaced: no other run's lies beside it."""
    if processes.is_first() and not is_stream(output):
        manifest_path(output).unlink(missing_ok=True)


def publish_manifest(output: Path, flags: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Write an output's manifest beside it.

    Args:
        flags: argparse's result, including defaults and `command`.
        facts: JSON values about the run: versions, machine, model, plan, counts, failures,
            seconds.

    Returns:
        Path of the manifest.

    Raises:
        InputError: as of `atomic`.
    """
    own = {
        "command": flags["command"],
        "output": _flag_value(output),
        "flags": manifest_flags(flags),
    }
    # `facts` may hold an earlier manifest, whose command, output and flags give way.
    record = {**own, **facts, **own}
    path = manifest_path(output)
    with atomic(path) as file:
        file.write(json_text(record))
    return path


def manifest_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags as a manifest has them.

    Args:
        flags: argparse's result.
    """
    return {k: _flag_value(v) for k, v in sorted(flags.items()) if k not in NO_FLAGS}


def _flag_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_flag_value(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    if isinstance(value, Path) and remote.address_of(value) is not None:
        text = displayed(value)
    elif ADDRESS.match(text) and not re.search(r"\s", text):  # other texts are not changed
        text = mask_address(text)
    return text.encode("utf-8", "backslashreplace").decode()  # a path may be invalid Unicode


def add_identities(manifest: Path) -> None:
    """Replace the identities of uploaded files in a local manifest by those in their store."""
    fields = read_json(manifest, "a manifest")
    outputs = fields.get(OUTPUTS, {}) if isinstance(fields, dict) else {}
    for name, facts in outputs.items():
        facts["identity"] = remote.identity(manifest.with_name(name))
    if outputs:
        with atomic(manifest) as file:
            file.write(json_text(fields))
