"""The records of all shards, marked by their common noise floor and written as one run would."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.analysis.margins import Decisions, sum_decisions
from jaxscore.errors import InputError
from jaxscore.io import remote, run_files
from jaxscore.io.json_input import json_kind, read_array, read_jsonl_records
from jaxscore.io.json_output import array_writer, json_line
from jaxscore.io.manifest import changed_output, file_identity, output_difference
from jaxscore.io.records import METADATA, TOGETHER, cell_of, csv_line, parse_cell
from jaxscore.io.streams import form_of, is_stream, open_binary
from jaxscore.io.tables import DELIMITERS, open_batches, plain_row, read_csv, read_parquet
from jaxscore.systems.evaluation import Evaluation
from jaxscore.systems.rounding_audit import united_noise
from jaxscore.systems.system import Decision, System, metadata_of


class Finished(NamedTuple):
    """A finished shard: its name, its output and its manifest."""

    name: str
    output: Path
    manifest: Mapping[str, Any]


class Marks:
    """Marks records that rounding could change, by the noise floor of all shards.

    Attributes:
        is_audited: whether the runs audited rounding errors.
        noise: of all shards; None if it was not audited, or nothing was scored.
        fields: of the records, with the marks; empty if records stay as they are.
        n_records: number of records so far.
    """

    def __init__(self, shards: Sequence[Finished], system: System, settings: Any) -> None:
        found = [shard.manifest.get("noise") for shard in shards]
        # A run that found all results in its output, and so loaded no model, knows no noise.
        self.is_audited = any({"noise", "model"} <= shard.manifest.keys() for shard in shards)
        self.noise = united_noise([noise for noise in found if noise])
        self._mark = None if self.noise is None else system.mark
        self._settings = settings
        declared = [decision.within for _, decision in metadata_of(system.record, Decision)]
        self.fields = [name for name in declared if self._mark and isinstance(name, str)]
        self._decisions: list[Decisions] = []
        self.n_records = 0

    def add(self, record: dict[str, Any]) -> None:
        """Count a record and mark it, in place."""
        self.n_records += 1
        if self._mark is not None:
            found = self._mark([record], self.noise, self._settings)
            self._decisions = sum_decisions([self._decisions, found])

    def add_to(self, found: Evaluation) -> Evaluation:
        """Return the evaluation with the noise floor and the marked decisions."""
        return dataclasses.replace(
            found, audited=self.is_audited, noise=self.noise, decisions=self._decisions
        )


def merged(
    shards: Sequence[Finished],
    output: Path,
    file: Any,
    system: System,
    settings: Any,
    marks: Marks,
) -> Generator[Mapping[str, Any]]:
    """Mark all records, write them to the output, and yield each; see `System.merge_rewrites`.

    Raises:
        InputError: a shard's output has another form than the merged one.
    """
    forms = list(dict.fromkeys(form_of(shard.output) for shard in shards))
    if len(forms) > 1:
        raise InputError(
            f"{remote.displayed(shards[0].output.parent)}: found outputs of several forms "
            f"({', '.join(form or 'no ending' for form in forms)}), expected one; score the inputs "
            "of each form into a folder of its own, and merge each"
        )
    kind = forms[0] if is_stream(output) and forms[0] != ".parquet" else form_of(output)
    for shard in shards:
        if form_of(shard.output) != kind:
            raise InputError(
                f"{remote.displayed(shard.output)}: found {form_of(shard.output) or 'no ending'}, "
                f"and --output is {kind or 'without one'}; give an --output of the shards' form"
            )
    if kind == ".parquet":
        yield from _merged_tables(shards, file, marks, as_json=system.merge_rereads)
    elif system.merge_rewrites:
        for record in _records(shards):
            marks.add(record)
            yield record
    elif kind == ".json":
        is_ascii = system.array is None or system.array.is_ascii
        with array_writer(file, is_ascii=is_ascii) as write:
            for record in _records(shards):
                marks.add(record)
                write(record)
                yield record
    elif kind in DELIMITERS:
        yield from _merged_rows(shards, file, DELIMITERS[kind], system.columns(settings), marks)
    else:
        for shard in shards:
            with verified(shard) as path, open_binary(path) as lines:
                for number, line in enumerate(lines, start=1):
                    record = parse_line(line, f"{remote.displayed(shard.output)}:{number}")
                    marks.add(record)
                    file.buffer.write(json_line(record) if marks.fields else line)
                    yield record


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


def verify_empty(shards: Sequence[Finished]) -> None:
    """Check the outputs without records.

    Raises:
        InputError: one is not the output that its manifest describes.
    """
    for shard in shards:
        with verified(shard):
            pass


def _records(shards: Sequence[Finished]) -> Iterator[dict[str, Any]]:
    """The records of arrays, one file at a time."""
    for shard in shards:
        with verified(shard) as path:
            yield from read_array(path)


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


def records_of(shard: Finished, types: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """Read the records of one shard, in whatever form.

    Args:
        types: columns of a table in text, as `System.columns` has them.
    """
    with remote.fetched(shard.output) as path:
        form = form_of(path)
        if form in DELIMITERS:
            for _, row in read_csv(path):
                yield _record_of(row, types)
        elif form == ".json":
            yield from read_array(path)
        elif form == ".parquet":
            yield from read_parquet(path)
        else:
            yield from (record for _, record in read_jsonl_records(path))


def _record_of(row: Mapping[str, str], types: Mapping[str, str]) -> dict[str, Any]:
    """The record of a row of a table in text."""
    record = {name: parse_cell(text, types.get(name, "string")) for name, text in row.items()}
    if not record["error"]:
        del record["error"]
    return record


def _merged_rows(
    shards: Sequence[Finished], file: Any, delimiter: str, types: Mapping[str, str], marks: Marks
) -> Iterator[Mapping[str, Any]]:
    """Write the rows of all CSV or TSV files as one run would, and yield the record of each.

    Raises:
        InputError: a shard has other columns than the first one.
    """
    names: list[str] | None = None
    for shard in shards:
        with verified(shard) as path:
            for _, row in read_csv(path):
                if names is None:
                    names = list(row)
                    file.write(csv_line(names, delimiter))
                elif names != list(row):
                    raise _other_columns(shard, ", ".join(row), shards[0], ", ".join(names))
                record = _record_of(row, types)
                marks.add(record)
                cells = {name: cell_of(record[name]) for name in marks.fields if name in record}
                file.write(csv_line({**row, **cells}.values(), delimiter))
                yield record


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
            with verified(shard) as path, open_batches(path) as (schema, own):
                if state["writer"] is None:
                    if without is not None:
                        metadata = dict(schema.metadata or {})
                        metadata.pop(without.encode(), None)
                        schema = schema.with_metadata(metadata or None)
                    state.update(schema=schema, waiting=schema.empty_table())
                    state["writer"] = parquet.ParquetWriter(file, schema)
                elif not schema.equals(state["schema"]):
                    found, expected = _difference(schema, state["schema"])
                    raise _other_columns(shard, found, shards[0], expected)
                yield from own

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


def _merged_tables(
    shards: Sequence[Finished], file: Any, marks: Marks, *, as_json: bool
) -> Iterator[Mapping[str, Any]]:
    """Write the rows of all tables in groups as one run would, and yield each.

    Args:
        as_json: yield JSON values, which takes three times as long as the rest.

    Raises:
        InputError: a shard has other columns, or other types of them, than the first one.
    """
    import pyarrow
    from pyarrow import parquet

    writer = waiting = first = None
    try:
        for shard in shards:
            with verified(shard) as path, open_batches(path) as (schema, batches):
                if writer is None:
                    if not are_made_alike(shards):
                        metadata = dict(schema.metadata or {})
                        metadata.pop(METADATA.encode(), None)
                        schema = schema.with_metadata(metadata or None)
                    first, waiting = schema, schema.empty_table()
                    writer = parquet.ParquetWriter(file.buffer, schema)
                elif not schema.equals(first):
                    found, expected = _difference(schema, first)
                    raise _other_columns(shard, found, shards[0], expected)
                for batch in batches:
                    rows = batch.to_pylist()
                    if as_json:
                        rows = [plain_row(row, shard.name) for row in rows]
                    for row in rows:
                        if row["error"] is None:
                            del row["error"]
                        marks.add(row)
                        yield row
                    table = pyarrow.table(batch)
                    for name in marks.fields:
                        field = table.schema.field(name)
                        column = pyarrow.array([row[name] for row in rows], field.type)
                        place = table.schema.get_field_index(name)
                        table = table.set_column(place, field, column)
                    waiting = pyarrow.concat_tables([waiting, table])
                    while waiting.num_rows >= TOGETHER:
                        writer.write_table(waiting.slice(0, TOGETHER).combine_chunks())
                        waiting = waiting.slice(TOGETHER)
        if writer is not None and waiting is not None and waiting.num_rows:
            writer.write_table(waiting.combine_chunks())
    finally:
        if writer is not None:
            writer.close()


def are_made_alike(shards: Sequence[Finished]) -> bool:
    """Whether all manifests have the digest and the version that a Parquet schema has."""
    manifests = [shard.manifest for shard in shards]
    made_of = [each["made"] for each in manifests if "made" in each]
    if made_of:
        return all(made == made_of[0] for made in made_of)
    facts = [(each.get(run_files.MADE), each.get("versions")) for each in manifests]
    made = {(digest, (versions or {}).get("jaxscore")) for digest, versions in facts}
    return len(made) == 1


def _difference(schema: Any, first: Any) -> tuple[str, str]:
    """The fields in which two schemas of Arrow differ, as text; all names if only their order."""
    found, expected = (
        {field.name: f"{field.name}: {field.type}" for field in one} for one in (schema, first)
    )
    names = [name for name in found | expected if found.get(name) != expected.get(name)]
    if not names:
        return ", ".join(found), ", ".join(expected)
    return tuple(  # type: ignore[return-value]
        ", ".join(fields.get(name, f"no {name}") for name in names) for fields in (found, expected)
    )


def _other_columns(shard: Finished, found: str, first: Finished, expected: str) -> InputError:
    return InputError(
        f"{remote.displayed(shard.output)}: found columns {found}, expected those of "
        f"{remote.displayed(first.output)}, {expected}; give the input of {shard.name} the columns "
        "and types of the others, and score it again"
    )
