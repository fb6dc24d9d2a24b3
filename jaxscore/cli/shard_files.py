"""The shards of a command over many files: inputs, outputs, and which of them are finished."""

import argparse
import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.cli.outputs import report_paths
from jaxscore.errors import Held, InputError
from jaxscore.io import processes, remote
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import json_text
from jaxscore.io.local_path import Folder, check_inside, check_name
from jaxscore.io.manifest import (
    MANIFEST,
    manifest_path,
    output_difference,
    read_manifest,
    recorded_in,
)
from jaxscore.io.streams import compression_of, form_of, is_stream
from jaxscore.io.tables import is_dataset
from jaxscore.io.typed_json import read_bytes, read_typed
from jaxscore.shell.system import System
from jaxscore.systems import declaration

LISTING = "_shards-"  # start of the names of lists in the output folder: input -> its output
SIGNS = "*?["  # of a pattern
FORMS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".txt")  # taken from a folder
BESIDE = "beside_sha256"  # of an identity: digest of the file that is read with an input
MOST_REQUESTS = 16  # to a store at a time
TABLES = (".csv", ".tsv", ".parquet")


class Shard(NamedTuple):
    """An input file.

    Attributes:
        name: below the folder of all inputs.
        identity: size and version, see `identity_of`.
        beside: file of the same folder that is read with it, see `with_beside`.
    """

    source: Path
    name: str
    output: Path | None
    identity: Mapping[str, Any] | None
    beside: Path | None = None


def shards_of(args: argparse.Namespace, paths: Sequence[Path]) -> Iterator[Shard]:
    """Return all shards, by name.

    Raises:
        InputError: no file exists, or two have one name or one output.
    """
    files: Found = {}
    system = declaration(args.command)
    for path in paths:
        for name, file in _files(path, args.output, getattr(args, "forms", FORMS)).items():
            if name in files:
                raise InputError(
                    f"--input {remote.displayed(path)}: two inputs have the name {name}, and one "
                    "output; give their common folder, or run twice"
                )
            files[name] = file
    names: dict[str, str] = {}  # of outputs -> of their inputs
    for name in sorted(files):
        source, identity = files[name]
        output = _output(system, args, name, source)
        other = names.setdefault(_place(output), name)
        if other != name:
            raise InputError(
                f"--input: {other} and {name} have one output, {remote.displayed(output)}; rename "
                "one of them, or give them to two runs with an --output each"
            )
        shard = Shard(source, name, output, identity or identity_of(source))
        yield with_beside(args, shard)


def with_beside(args: argparse.Namespace, shard: Shard) -> Shard:
    """Return a shard with the file that is read with it, whose digest joins the identity."""
    companions = getattr(args, "companions", lambda name: ())
    for name in companions(shard.source.name):
        beside = _sibling(shard.source, name)
        if (data := read_bytes(beside)) is not None:
            digest = hashlib.sha256(data).hexdigest()
            identity = {**(shard.identity or {}), BESIDE: digest}
            return shard._replace(identity=identity, beside=beside)
    return shard


def _sibling(path: Path, name: str) -> Path:
    """Return the path of a name in the folder of a local or remote file."""
    address = remote.address_of(path)
    if address is None:
        return path.with_name(name)
    return remote.stage(f"{address.partition('?')[0].rpartition('/')[0]}/{name}")


def _output(system: System, args: argparse.Namespace, name: str, source: Path) -> Path:
    """Return the output of a shard: the input's name, in a form that records have."""
    form = form_of(source)
    if system.layout is not None:
        name = f"{name.removesuffix(compression_of(source))}"
        name = name if form == ".json" else f"{name}.json"
    elif source.is_dir() or form not in (".jsonl", ".ndjson", *TABLES):
        name = f"{name}.jsonl"
    return remote.below(args.output, name)


def output_name(shard: Shard) -> str | None:
    """Return the output's name below the output folder."""
    if shard.output is None:
        return None
    n_parts = len(Path(shard.name).parts)
    address = remote.address_of(shard.output)
    parts = shard.output.parts if address is None else address.split("/")
    return "/".join(parts[-n_parts:])


def check_apart(shards: Sequence[Shard], folder: Path | None = None) -> None:
    """Refuse outputs that would replace an input of the same run, or a file elsewhere.

    Args:
        folder: the folder of all outputs; None for a single output, whose links are followed.

    Raises:
        InputError: an output, its manifest or its report is an input, or a link out of the folder.
    """
    read = [path for shard in shards for path in (shard.source, shard.beside)]
    sources = {_place(path) for path in read if path is not None and str(path) != "-"}
    for shard in shards:
        if shard.output is None or is_stream(shard.output):
            continue
        reports = report_paths(shard.output)
        page = reports[0].with_suffix(".html")
        for path in (shard.output, manifest_path(shard.output), *reports, page):
            if folder is not None and remote.address_of(path) is None:
                check_inside(path, folder)
            if _place(path) in sources:
                raise InputError(
                    f"--output {remote.displayed(path)} is an input of this run; give another "
                    "name or folder"
                )


def _place(path: Path) -> str:
    """Return a text that is equal for all paths of one file or address."""
    address = remote.address_of(path)
    return os.path.realpath(path) if address is None else _normal(address)


def _normal(address: str) -> str:
    scheme, _, parts = address.partition("://")
    scheme = {"gcs": "gs"}.get(scheme.lower(), scheme.lower())
    return f"{scheme}://{'/'.join(filter(None, parts.split('/')))}"


Found = dict[str, tuple[Path, Mapping[str, Any] | None]]


def _files(path: Path, output: Path, forms: Sequence[str]) -> Found:
    """Return the files that one word of --input means: name -> path, and identity if it is known.

    Names are relative to the folder, or to the part of a pattern before its first sign. Files
    below the output are left out.
    """
    address = remote.address_of(path)
    if address is not None:
        if not is_pattern(path) and not isinstance(path, Folder):
            return {path.name: (path, None)}
        matches, top = _remote_files(path, address), _normal("/".join(_top(path)))
    elif str(path) == "-":
        return {"stdin.jsonl": (path, None)}
    elif path.is_file() or (path.is_dir() and is_dataset(path)):
        return {path.name: (path, None)}
    elif is_pattern(path):
        matches, top = _matches(path), os.path.realpath(Path(*_top(path)))
    else:
        files = ((file.relative_to(path).as_posix(), file) for file in sorted(path.rglob("*")))
        matches = {name: (file, None) for name, file in files if file.is_file()}
        top = os.path.realpath(path)
    if not is_pattern(path):
        matches = {name: file for name, file in matches.items() if _is_taken(name, forms)}
    start, output_prefix = f"{top.rstrip('/')}/", f"{_place(output)}/"
    if output_prefix.startswith(start) and output_prefix != start:
        output_prefix = output_prefix.removeprefix(start)
        matches = {
            name: file for name, file in matches.items() if not name.startswith(output_prefix)
        }
    for name in matches:
        check_name(name, f"--input {remote.displayed(path)}")
    if not matches:
        raise InputError(
            f"--input {remote.displayed(path)}: found no file, expected files, patterns such as "
            f"'data/*.jsonl.gz', or a folder with files of {', '.join(forms)}"
        )
    return matches


def _remote_files(path: Path, address: str) -> Found:
    n_parts = len(_top(path))
    return {
        "/".join(file.address.split("/")[n_parts:]): (remote.stage(file.address), file.identity)
        for file in remote.find(address)
    }


def _matches(pattern: Path) -> Found:
    matches = map(Path, sorted(glob.glob(str(pattern), recursive=True)))
    n_parts = len(_top(pattern))
    return {"/".join(file.parts[n_parts:]): (file, None) for file in matches if file.is_file()}


def _top(path: Path) -> tuple[str, ...]:
    """Return the parts of a folder, or of a pattern before the first part with a sign."""
    address = remote.address_of(path)
    parts = path.parts if address is None else tuple(address.rstrip("/").split("/"))
    if not is_pattern(path):
        return parts
    return parts[: next(k for k, level in enumerate(parts) if set(level) & set(SIGNS))]


def _is_taken(name: str, forms: Sequence[str]) -> bool:
    """Return True if a file below a folder is an input: of one of the forms, and not hidden."""
    return (
        form_of(Path(name)) in forms
        and not any(
            level.startswith((".", "_")) and level not in (".", "..")  # refused, not skipped
            for level in name.split("/")
        )
        and not name.endswith((MANIFEST, ".report.json", "_report.json"))
    )


def is_pattern(path: Path) -> bool:
    text = remote.address_of(path) or str(path)
    if text.lower().startswith(("http:", "https:")):
        text = text.partition("?")[0]  # of a query, not of a pattern
    return any(sign in text for sign in SIGNS) and not path.exists()


def identity_of(source: Path) -> Mapping[str, Any] | None:
    """Return facts that change with the bytes of an input; None for one that can be read once.

    Raises:
        InputError: it does not exist.
    """
    if remote.address_of(source) is not None:
        if (identity := remote.identity(source)) is None:
            raise InputError(
                f"--input {remote.displayed(source)}: there is no such file, or no access to it; a "
                "folder of a store ends in a slash"
            )
        return identity
    if str(source) == "-" or not (source.is_file() or source.is_dir()):
        return None
    if source.is_file():
        facts = source.stat()
        return {"size": facts.st_size, "mtime_ns": str(facts.st_mtime_ns)}
    facts_of = [(file, file.stat()) for file in sorted(source.rglob("*")) if file.is_file()]
    listed = [
        [file.relative_to(source).as_posix(), stat.st_size, stat.st_mtime_ns]
        for file, stat in facts_of
    ]
    digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
    return {"size": sum(stat.st_size for _, stat in facts_of), "files_sha256": digest}


def write_listing(folder: Path, paths: Sequence[Path], shards: Sequence[Shard]) -> None:
    """Write the names of all shards to a list in the output folder, for `merge`.

    Each --input has its own list: runs of other inputs do not replace it, and a run whose
    input has lost a file replaces that of the run before.
    """
    if not processes.is_first():
        return
    words = "\n".join(sorted("-" if str(path) == "-" else _place(path) for path in paths))
    digest = hashlib.sha256(words.encode(errors="surrogateescape")).hexdigest()[:8]
    path = remote.below(folder, f"{LISTING}{digest}.json")
    names = {shard.name: output_name(shard) for shard in shards}
    with contextlib.suppress(InputError):  # a damaged one is replaced
        if names == read_listing(path):
            return
    if remote.address_of(path) is not None:
        remote.write_bytes(path, json_text(names).encode())
    else:
        with contextlib.suppress(Held), atomic(path) as file:  # another worker writes this list
            file.write(json_text(names))


def listings(folder: Path) -> list[Path]:
    """Return the lists of shards in an output folder."""
    address = remote.address_of(folder)
    if address is None:
        return sorted(folder.glob(f"{LISTING}*.json"))
    return [
        remote.stage(file.address) for file in remote.find(f"{address.rstrip('/')}/{LISTING}*.json")
    ]


def read_listing(path: Path) -> dict[str, str]:
    """Read a list of shards: name of an input -> its output's.

    Raises:
        InputError: it is not such a list, or a name leads out of the folder.
    """
    remedy = "the command that wrote the folder writes it again"
    listing: dict[str, str] = read_typed(path, dict[str, str], "a list of shards", remedy) or {}
    for name in (*listing, *listing.values()):
        check_name(name, str(path))
    return listing


def manifests(
    shards: Sequence[Shard], *, is_forced: bool = False
) -> list[tuple[Shard, dict[str, Any] | None]]:
    """Each shard with its output's manifest, or None if it is not finished.

    Args:
        is_forced: if True, a damaged manifest is empty.

    Raises:
        InputError: a manifest is damaged.
    """

    def read(shard: Shard) -> dict[str, Any] | None:
        try:
            return None if shard.output is None else _manifest(shard.output)
        except InputError:
            if is_forced:
                return {}
            raise

    with ThreadPoolExecutor(MOST_REQUESTS) as pool:
        return list(zip(shards, pool.map(read, shards), strict=True))


def changed_outputs(pairs: Sequence[tuple[Shard, Mapping[str, Any] | None]]) -> list[str | None]:
    """Describe how each shard's output differs from its manifest, see `output_difference`."""

    def change(pair: tuple[Shard, Mapping[str, Any] | None]) -> str | None:
        shard, manifest = pair
        if shard.output is None or manifest is None:
            return None
        paths = sorted({recorded_in(shard.output, manifest), shard.output})
        return next(filter(None, (output_difference(path, manifest) for path in paths)), None)

    with ThreadPoolExecutor(MOST_REQUESTS) as pool:
        return list(pool.map(change, pairs))


def _manifest(output: Path) -> dict[str, Any] | None:
    """Return the manifest of a finished output, or None if one of them is missing."""
    is_there = remote.address_of(output) is not None or output.exists()
    return read_manifest(output) if is_there else None
