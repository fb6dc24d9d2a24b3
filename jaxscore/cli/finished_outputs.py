"""Finished outputs: checked against their manifests, and read."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.cli.made import MADE
from jaxscore.errors import InputError
from jaxscore.io import remote
from jaxscore.io.json_input import json_kind
from jaxscore.io.manifest import changed_output, file_identity, output_difference
from jaxscore.io.records import TOGETHER
from jaxscore.io.tables import open_batches


class Finished(NamedTuple):
    """A finished shard: its name, its output and its manifest."""

    name: str
    output: Path
    manifest: Mapping[str, Any]


@contextlib.contextmanager
def verified(shard: Finished) -> Iterator[Path]:
    """Open a local copy of a shard's output, or the local output itself.

    Raises:
        InputError: it is not the output that its manifest describes.
    """
    with remote.fetched(shard.output) as path:
        why = output_difference(shard.output, shard.manifest, copy=path)
        if why is not None:
            raise changed_output(shard.output, why)
        before = file_identity(path)
        yield path
        if file_identity(path) != before:
            raise changed_output(shard.output, "it changed while it was read")


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
