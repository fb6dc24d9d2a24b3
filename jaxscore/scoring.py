"""`Scoring`: a system as a function of tables, for engines that call it on their workers.

ray.data.read_parquet(...).map_batches(Scoring("demo"), batch_format="pyarrow")
dataset.map(Scoring("demo"), batched=True)
frame.mapInArrow(Scoring("demo").on_batches, schema)
"""

import inspect
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.processes import check_not_forked
from jaxscore.io.records import METADATA, append_fields, append_records, check_free
from jaxscore.io.tables import plain_row
from jaxscore.scorer import Scorer
from jaxscore.shell import evaluate as shell
from jaxscore.shell.fields import Decision
from jaxscore.shell.items import Items, with_examples
from jaxscore.shell.settings import settings_from
from jaxscore.shell.system import System, item_fields, table_columns, unit_fields
from jaxscore.systems import SYSTEMS, declaration
from jaxscore.version import VERSION

MODEL_OPTIONS = frozenset(inspect.signature(Scorer.from_pretrained).parameters) - {
    "model", "journal", "progress",
}  # fmt: skip

_lock = threading.Lock()
# (process, model and its options) -> its files, the model, and a lock, since one thread at a time
# uses it
_loaded: dict[tuple[int, str], tuple[list[tuple[str, int, int]], Scorer, threading.Lock]] = {}


class Scoring:
    """Scores the rows of tables: the same table, with typed columns of the results appended.

    The model is loaded at the first call, once per process. An instance is pickled as its
    arguments, so that each worker of Ray or Spark loads its own model.

    Example:
        >>> scoring = Scoring("demo", columns={"continuation": "text"})
        >>> scoring({"text": ["The cat sat.", "The cat sing."]})["sum_logprob"]
    """

    def __init__(
        self,
        model: str,
        system: str = "score",
        *,
        columns: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """Nothing is loaded yet.

        Args:
            model: a local folder, a hub id, or "demo".
            system: one that gives a record per item, such as "score", "choose", "perplexity" or
                "preferences".
            columns: field of the system's items -> its column, where the names differ.
            settings: settings of the system, see `jaxscore.evaluate`, and of the model, see
                `Scorer.from_pretrained`.

        Raises:
            InputError: the system does not take tables, or has no such setting or field.
        """
        self._model, self._system, self._columns = model, system, dict(columns or {})
        self._options = {k: v for k, v in settings.items() if k in MODEL_OPTIONS}
        self._settings = {k: v for k, v in settings.items() if k not in MODEL_OPTIONS}
        declared = self._declared
        if "audit_boundary" in inspect.signature(declared.settings).parameters:
            self._settings.setdefault("audit_boundary", False)  # tables cannot hold its result
        if self._chosen().row_columns():
            raise InputError(
                "rows: a table has a row per item; give the texts to jaxscore.evaluate, whose "
                "report has the rows (to_frame)"
            )
        self._results = {
            name: type_name
            for name, type_name in table_columns(declared, self._chosen()).items()
            if name not in item_fields(declared)
        } | {"error": "string"}
        if unknown := sorted(self._columns.keys() - set(item_fields(declared))):
            raise InputError(
                f"columns has {unknown[0]!r}, expected fields of {system}: "
                f"{', '.join(item_fields(declared))}"
            )

    def __call__(self, table: Any) -> Any:
        """Score the rows of a table.

        Args:
            table: a pyarrow Table or RecordBatch, a pandas DataFrame, or a dict of columns (lists
                or NumPy arrays).

        Returns:
            The same kind of table with the columns of the results. A row that cannot be scored
            has its reason in the column `error`, and null in the others.

        Raises:
            InputError: a column is missing, or has the name of a result.
        """
        import pyarrow

        if isinstance(table, pyarrow.Table):
            return self._scored(table)
        if isinstance(table, pyarrow.RecordBatch):
            scored = self._scored(pyarrow.Table.from_batches([table])).combine_chunks()
            return (scored.to_batches() or [_empty_batch(scored.schema)])[0]
        if isinstance(table, Mapping):
            lists = {name: _as_list(values) for name, values in table.items()}
            scored = self._scored(pyarrow.table(lists))
            as_numpy = any(isinstance(values, np.ndarray) for values in table.values())
            results = {name: scored.column(name).to_pylist() for name in self._results}
            if as_numpy:
                results = {name: _as_array(values) for name, values in results.items()}
            return {**table, **results}
        if hasattr(table, "to_dict") and hasattr(table, "columns"):  # pandas
            scored = self._scored(pyarrow.Table.from_pandas(table, preserve_index=False))
            results = scored.select(list(self._results)).to_pandas()
            return table.assign(**{name: results[name].to_numpy() for name in results})
        raise InputError(
            f"found {type(table).__name__}, expected a pyarrow Table, a pandas DataFrame or a dict "
            "of columns"
        )

    def on_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Score pyarrow RecordBatches, as Spark's `mapInArrow` passes them."""
        return map(self, batches)

    def schema(self, schema: Any) -> Any:
        """The pyarrow Schema of the result for a table's schema."""
        return append_fields(schema, self._results)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = {"columns": self._columns, **self._options, **self._settings}
        return _make, (self._model, self._system, arguments)

    def __repr__(self) -> str:
        return f"<Scoring {self._system} of {self._model}>"

    @property
    def _declared(self) -> System:
        if self._system not in SYSTEMS:
            raise InputError(f"no system {self._system!r}; expected one of {', '.join(SYSTEMS)}")
        declared = declaration(self._system)
        needs, has_rows = {*declared.needs(None)}, declared.layout is None
        if not has_rows or not needs or needs - {"scores", "is_local"}:
            raise InputError(
                f"system {self._system} gives no row per item of one model; expected one such as "
                "score, choose, perplexity or preferences"
            )
        return declared

    def _chosen(self) -> Any:
        declared = self._declared
        return with_examples(declared, settings_from(declared.settings, self._settings))

    def _scored(self, table: Any) -> Any:
        """A pyarrow Table with the columns of the results."""
        declared = self._declared
        fields = (*item_fields(declared), *self._chosen().further_fields)
        names = {field: self._columns.get(field, field) for field in fields}
        check_free(table.column_names, self._results, ())
        if missing := [name for name in self._columns.values() if name not in table.column_names]:
            raise InputError(
                f'the table lacks the column "{missing[0]}", expected one of '
                f"{', '.join(table.column_names)}"
            )
        present = {field: name for field, name in names.items() if name in table.column_names}
        if not present and table.num_rows:
            raise InputError(
                f"the table has the columns {', '.join(table.column_names)}, expected some of "
                f"{', '.join(names)}; give columns={{FIELD: NAME}}"
            )
        rows = [
            plain_row(dict(zip(present, values, strict=True)), f"row {k}")
            for k, values in enumerate(
                zip(*(table.column(name).to_pylist() for name in present.values()), strict=True)
            )
        ] or [{} for _ in range(table.num_rows)]
        records: Sequence[Mapping[str, Any]] = []
        about: dict[str, Any] = {}
        if rows:
            scorer, lock = _load(self._model, self._options)
            with lock:
                records = _records_of(declared, scorer, rows, self._chosen())
                about = scorer.about
        scored = append_records(table, records, self._results)
        description = {"version": VERSION, "system": self._system, "settings": self._settings}
        described = json.dumps({**description, "model": about or self._model}, default=str)
        return scored.replace_schema_metadata(
            {**(table.schema.metadata or {}), METADATA.encode(): described.encode()}
        )


def _records_of(
    system: System, scorer: Scorer, rows: Sequence[dict[str, Any]], settings: Any
) -> list[Mapping[str, Any]]:
    """The record of each row, its values per token as NumPy arrays."""
    items = Items(system, lambda: system.read(rows), settings, is_file=False)
    if not items.n_usable:
        return [{"error": entry.error} for entry in items.entries()]
    streamed: list[Mapping[str, Any]] = []
    report = shell.evaluate(system, scorer, rows, settings, on_item=streamed.append)
    if report.facts.noise is None:
        return streamed
    marks = [str(decision.within) for _, decision in unit_fields(system, Decision)]
    return [
        {**record, **{name: marked[name] for name in marks if name in marked}}
        for record, marked in zip(streamed, report.records, strict=True)
    ]


def _make(model: str, system: str, arguments: Mapping[str, Any]) -> Scoring:
    return Scoring(model, system, **arguments)


def _load(model: str, options: Mapping[str, Any]) -> tuple[Scorer, threading.Lock]:
    """The model of this process, loaded at the first call."""
    check_not_forked()
    # A process that was forked before the first call loads its own model.
    key = os.getpid(), json.dumps([model, options], default=str, sort_keys=True)
    files = _files(Path(model))
    with _lock:
        if key not in _loaded or _loaded[key][0] != files:
            _loaded[key] = files, Scorer.from_pretrained(model, **options), threading.Lock()
        return _loaded[key][1:]


def _files(model: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a local model's files, which training may have replaced."""
    paths = [model] if model.is_file() else sorted(model.glob("*")) if model.is_dir() else []
    states = ((path.name, path.stat()) for path in paths)
    return [(name, status.st_size, status.st_mtime_ns) for name, status in states]


def _as_list(values: Any) -> Any:
    """A column for pyarrow, which takes no array of more than one dimension."""
    is_nested = isinstance(values, np.ndarray) and (values.ndim > 1 or values.dtype == object)
    return values.tolist() if is_nested else values


def _as_array(values: list[Any]) -> np.ndarray:
    """A NumPy array with an entry per row, of objects if the rows are lists or texts."""
    if any(isinstance(value, list | str) or value is None for value in values):
        array = np.empty(len(values), object)
        array[:] = values
        return array
    return np.array(values)


def _empty_batch(schema: Any) -> Any:
    import pyarrow

    return pyarrow.RecordBatch.from_pylist([], schema)
