"""Finished outputs: checked against their manifests, and read."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from jaxscore.cli.made import MADE
from jaxscore.errors import InputError
from jaxscore.io import remote
from jaxscore.io.json_input import json_kind
from jaxscore.io.manifest import (
    changed_output,
    file_identity,
    output_difference,
    recorded_in,
)
from jaxscore.io.records import TOGETHER, parquet_module
from jaxscore.io.streams import form_of, open_binary
from jaxscore.io.tables import DELIMITERS, open_batches


class Finished(NamedTuple):
    """A finished shard: its name, its output and its manifest."""

    name: str
    output: Path
    manifest: Mapping[str, Any]

    @property
    def records(self) -> Path:
        """The file with its records: the output, or one next to a table of rows."""
        return recorded_in(self.output, self.manifest)


@contextlib.contextmanager
def verified(shard: Finished, file: Path | None = None) -> Iterator[Path]:
    """Open a local copy of a shard's output, or the local output itself.

    Args:
        file: the output, or another file that the manifest describes; None for the records.

    Raises:
        InputError: it is not the file that the manifest describes.
    """
    file = file or shard.records
    with remote.fetched(file) as path:
        why = output_difference(file, shard.manifest, copy=path)
        if why is not None:
            raise changed_output(file, why)
        before = file_identity(path)
        yield path
        if file_identity(path) != before:
            raise changed_output(file, "it changed while it was read")


def parse_line(line: bytes, where: str) -> dict[str, Any]:
    """The record of a line of JSONL.

    Raises:
        InputError: it is not a JSON object.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{where}: not JSON ({problem}); expected a record") from None
    if not isinstance(record, dict):
        raise InputError(f"{where}: found {json_kind(record)}, expected a record")
    return record


@contextlib.contextmanager
def opened_table(
    file: Any, shards: Sequence[Finished], without: str | None
) -> Iterator[tuple[Iterator[Any], Callable[[Any], None]]]:
    """Open the tables of all shards and one to write: batches of rows, and a function that writes.

    Args:
        without: key of the schema's metadata to leave out; None keeps all.

    Raises:
        InputError: a shard has other columns, or other types of them, than the first one.
    """
    from pyarrow import concat_tables, parquet

    state: dict[str, Any] = {"writer": None}

    def batches() -> Iterator[Any]:
        for shard in shards:
            with verified(shard) as path, open_batches(path) as (schema, shard_batches):
                if state["writer"] is None:
                    if without is not None:
                        metadata = dict(schema.metadata or {})
                        metadata.pop(without.encode(), None)
                        schema = schema.with_metadata(metadata or None)
                    state.update(schema=schema, waiting=schema.empty_table())
                    state["writer"] = parquet.ParquetWriter(file, schema)
                elif not schema.equals(state["schema"]):
                    difference, expected = _difference(schema, state["schema"])
                    raise other_columns(shard, difference, shards[0], expected)
                yield from shard_batches

    def write(table: Any) -> None:
        waiting = concat_tables([state["waiting"], table.cast(state["waiting"].schema)])
        while waiting.num_rows >= TOGETHER:
            state["writer"].write_table(waiting.slice(0, TOGETHER).combine_chunks())
            waiting = waiting.slice(TOGETHER)
        state["waiting"] = waiting

    try:
        yield batches(), write
        if state["writer"] is not None and state["waiting"].num_rows:
            state["writer"].write_table(state["waiting"].combine_chunks())
    finally:
        if state["writer"] is not None:
            state["writer"].close()


def are_made_alike(shards: Sequence[Finished]) -> bool:
    """Return True if all manifests have the facts whose digest is in a Parquet schema."""
    facts = [(each.manifest.get(MADE), each.manifest.get("versions")) for each in shards]
    descriptions = [
        (descriptions, (versions or {}).get("jaxscore")) for descriptions, versions in facts
    ]
    return all(description == descriptions[0] for description in descriptions)


def merge_rows(file: TextIO, shards: Sequence[Finished]) -> None:
    """Write the rows of all shards, in their order, as one table.

    Raises:
        InputError: a shard has other columns than the first one, or is not as its manifest
            describes it.
    """
    form = form_of(shards[0].output)
    if form == ".parquet":
        _merge_parquet_rows(file, shards)
        return
    expected = b""
    for shard in shards:
        with verified(shard, shard.output) as path, open_binary(path) as rows:
            if form in DELIMITERS:
                header = rows.readline()
                while header.count(b'"') % 2:  # a name with a newline
                    header += rows.readline()
                if expected and header != expected:
                    raise other_columns(shard, _names(header), shards[0], _names(expected))
                if not expected:
                    file.buffer.write(header)
                expected = header
            shutil.copyfileobj(rows, file.buffer)


def _names(header: bytes) -> str:
    return header.decode().strip()


def _merge_parquet_rows(file: TextIO, shards: Sequence[Finished]) -> None:
    """Write the rows of tables; whole numbers and missing values of one fit numbers of another."""
    pyarrow, parquet = parquet_module()
    schemas = []
    for shard in shards:
        with verified(shard, shard.output) as path, open_batches(path) as (schema, _):
            schemas.append(schema)
            if schema.names != schemas[0].names:
                others, expected = _difference(schema, schemas[0])
                raise other_columns(shard, others, shards[0], expected)
    try:
        joint = pyarrow.unify_schemas(schemas, promote_options="permissive")
    except pyarrow.ArrowTypeError:
        shard, schema = next(
            pair for pair in zip(shards, schemas, strict=True) if not pair[1].equals(schemas[0])
        )
        others, expected = _difference(schema, schemas[0])
        raise other_columns(shard, others, shards[0], expected) from None
    joint = joint.with_metadata(schemas[0].metadata if are_made_alike(shards) else None)
    with parquet.ParquetWriter(file.buffer, joint) as writer:
        for shard in shards:
            with (
                verified(shard, shard.output) as path,
                path.open("rb") as rows,
                parquet.ParquetFile(rows) as table,
            ):
                for number in range(table.num_row_groups):
                    writer.write_table(table.read_row_group(number).cast(joint))


def _difference(schema: Any, first: Any) -> tuple[str, str]:
    """Describe the fields in which two Arrow schemas differ; all names if only their order does."""
    fields, first_fields = (
        {field.name: f"{field.name}: {field.type}" for field in each} for each in (schema, first)
    )
    names = [name for name in fields | first_fields if fields.get(name) != first_fields.get(name)]
    if not names:
        return ", ".join(fields), ", ".join(first_fields)
    return tuple(  # type: ignore[return-value]
        ", ".join(fields.get(name, f"no {name}") for name in names)
        for fields in (fields, first_fields)
    )


def other_columns(shard: Finished, columns: str, first: Finished, expected: str) -> InputError:
    return InputError(
        f"{remote.displayed(shard.output)}: found columns {columns}, expected those of "
        f"{remote.displayed(first.output)}, {expected}; give the input of {shard.name} the columns "
        "and types of the others, and score it again"
    )
