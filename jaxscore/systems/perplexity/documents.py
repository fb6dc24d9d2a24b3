"""Documents of `perplexity`: lines of a table, a text file, or the text files of a folder."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.items import NOTHING, read_rows
from jaxscore.io.json_input import check_regular, json_kind, read_text, require_field
from jaxscore.io.printable import is_valid_unicode, one_line
from jaxscore.io.tables import is_dataset

FIELDS = ("id", "text")
# Fields of a record that no input line may have, see `jaxscore.systems.perplexity.records`.
RESULTS = frozenset(
    "begin text_sha256 n_tokens n_scored n_bytes n_words n_windows sum_logprob mean_logprob "
    "perplexity bits_per_byte bits_per_word error".split()
)
TABLES = frozenset({".jsonl", ".json", ".csv", ".tsv", ".parquet"})  # by their names
SHOWN = 60  # characters of an id in a message


@dataclasses.dataclass(frozen=True)
class Document:
    """A text.

    Attributes:
        name: what to call it in a list of failures.
        extra: the other fields, which the record of the document repeats.
        error: why it cannot be scored; None where it can be.
    """

    name: str
    id: str | int
    text: str
    extra: dict[str, Any]
    error: str | None = None


def load(
    path: Path, limit: int | None = None, columns: Mapping[str, str] = NOTHING
) -> Iterator[Document]:
    """Documents in order, one in memory at a time.

    Args:
        path: a `.txt` file, which is one document; a folder, whose `.txt` files are documents in
            the order of their names; or JSONL or a table with `text` and optionally `id`, see
            `jaxscore.io.items`.
        limit: how many from the beginning; None is all.
        columns: field -> its name in the file; of a table alone.

    Raises:
        InputError: the files cannot be read, or hold nothing.
    """
    return itertools.islice(_load(path, columns), limit)


def _load(path: Path, columns: Mapping[str, str]) -> Iterator[Document]:
    folder = path.is_dir() and not is_dataset(path)
    if not folder and path.suffix.lower() != ".txt":
        try:
            for row in read_rows(path, columns):
                yield _of_object(row.item, row.number, row.where)
        except InputError as problem:
            if path.is_dir() or path.suffix.lower() in TABLES:
                raise
            raise InputError(f"{problem}; the name of a plain text ends in .txt") from None
        return
    if columns:
        raise InputError(f"{path}: --column names fields of a table, and text files have none")
    files = sorted(path.glob("*.txt")) if folder else [path]
    if not files:
        raise InputError(
            f"{path}: found a folder without a .txt file; expected text files, a file of JSONL or "
            "another table, or a folder that save_to_disk of datasets wrote"
        )
    for file in files:
        check_regular(file)
        yield _usable(Document(str(file), file.name, read_text(file), {}))


def check(path: Path, limit: int | None = None, columns: Mapping[str, str] = NOTHING) -> None:
    """Read everything once, so that what is unusable is known before the model is loaded.

    Raises:
        InputError: as `load`; no document is usable.
    """
    with contextlib.suppress(OSError):  # what cannot be looked at cannot be read, see below
        if path.is_fifo():
            raise InputError(f"{path}: found a pipe, which can be read only once; give a file")
    first, usable = None, False
    for one in load(path, limit, columns):
        first, usable = first or one, usable or one.error is None
    if first is not None and not usable:
        raise InputError(f"{path}: no document is usable; the first, {first.name}: {first.error}")


def read(items: Iterable[Any]) -> Iterator[Document]:
    """Documents from texts, or from objects as the input file has them.

    A `Document` stays as it is.

    Raises:
        InputError: one text in place of a list of them.
    """
    if isinstance(items, str | Mapping):
        raise InputError("found one document, expected a list of them; put it in brackets")
    for k, one in enumerate(items, start=1):
        if isinstance(one, Document):
            yield one
        elif isinstance(one, str):
            yield _usable(Document(f"item {k}", k, one, {}))
        else:
            yield _of_object(one, k, f"item {k}")


def _of_object(item: Any, number: int, where: str) -> Document:
    name, id = where, number
    try:
        if not isinstance(item, dict):
            raise InputError(f"{where}: found {json_kind(item)}, expected a text or an object")
        id = require_field(item, "id", (str, int), where) if "id" in item else number
        if "id" in item:
            name = f"{where} (id {one_line(str(id), SHOWN)})"
        text = require_field(item, "text", str, where)
        extra = {field: value for field, value in item.items() if field not in FIELDS}
        if taken := sorted(RESULTS.intersection(extra)):
            raise InputError(
                f'{where}: field "{taken[0]}" is one of the results that the output line has; '
                "rename it, or leave it out"
            )
    except InputError as problem:
        return Document(name, id, "", {}, str(problem).removeprefix(f"{where}: "))
    return _usable(Document(name, id, text, extra))


def _usable(one: Document) -> Document:
    if is_valid_unicode(one.text):
        return one
    error = "its text has half a surrogate pair, which is no character"
    return dataclasses.replace(one, text="", error=error)
