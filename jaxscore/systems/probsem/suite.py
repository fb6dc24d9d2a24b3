"""Test suites of ProbSem: files, contexts, queries, and the text before each query."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError, near
from jaxscore.io.items import Row
from jaxscore.io.json_input import check_unicode, json_kind, read_json, read_text, require_field
from jaxscore.io.streams import compression_of
from jaxscore.systems.evaluation import Failure

NO_ANSWER = -1  # as `expected`: no query is known to be right; outside the accuracy
EXPECTED = "an object with `pretext`, `context`, `posttext` and `queries`"
SHOWN = 60  # characters of a context in a message
SHOWN_NAMES = 20  # of prompts or tests that exist, in a message


@dataclasses.dataclass(frozen=True)
class Context:
    """One sample of a suite, or a few-shot example.

    Attributes:
        index: from 1, as in the file.
        expected: index of the right query from 0, or `NO_ANSWER`.
        where: what messages call an example.
    """

    index: int
    text: str
    expected: int
    where: str = ""

    @property
    def name(self) -> str:
        """What to call it in a list of failures."""
        return f"context {self.index} {self.text[:SHOWN]!r}{'…' if len(self.text) > SHOWN else ''}"

    def check(self, n_queries: int) -> None:
        """Refuse an index that no query has.

        Raises:
            InputError: naming the place.
        """
        if self.expected != NO_ANSWER and not 0 <= self.expected < n_queries:
            raise InputError(
                f"{self.where}: expected is {self.expected}, and the queries are 0 to "
                f"{n_queries - 1}; give the index of one, or {NO_ANSWER} to leave the context out "
                "of the accuracy"
            )


def read_context(value: Any, index: int, where: str) -> Context:
    """One sample from an object as a suite has it.

    Raises:
        InputError: it is no object, or a field is missing or of another type.
    """
    if not isinstance(value, dict):
        raise InputError(f"{where}: found {str(value)[:20]}, expected an object")
    text = require_field(value, "text", str, where)
    return Context(index, text, require_field(value, "expected", int, where), where)


def read_example(value: Any, position: int, where: str) -> Context:
    """A context with the query that is expected; see `System.read_example`."""
    context = value if isinstance(value, Context) else read_context(value, position, where)
    if context.expected == NO_ANSWER:
        raise InputError(f"{where}: expected is {NO_ANSWER}, so no query can be shown as right")
    return context


@dataclasses.dataclass(frozen=True)
class Suite:
    """A prompt with its continuations: every query after every context.

    Attributes:
        context: objects with `text` and `expected`.
    """

    context: tuple[Any, ...]
    queries: tuple[str, ...]
    prompt: str | None = ""
    pretext: str | None = ""
    posttext: str | None = ""

    def __post_init__(self) -> None:
        """Check that there is something to score."""
        for name in ("prompt", "pretext", "posttext"):
            object.__setattr__(self, name, getattr(self, name) or "")
        for k, query in enumerate(self.queries, start=1):
            if not isinstance(query, str) or not query:
                found = "empty" if query == "" else str(query)[:20]
                raise InputError(f'field "queries", entry {k} is {found}, expected a text to score')
        if not self.queries:
            raise InputError('field "queries" is empty, expected the texts to compare')
        if not self.context:
            raise InputError(
                'field "context" is empty, expected objects with `text` and `expected`'
            )
        if not self.contexts:
            name, why = self.unusable[0]
            raise InputError(f"no context is usable; the first, {name}: {why}")

    @functools.cached_property
    def _read(self) -> tuple[list[Context], list[Failure]]:
        contexts, failures = [], []
        for index, value in enumerate(self.context, start=1):
            name = f"context {index}"
            try:
                context = read_context(value, index, name)
                context.check(len(self.queries))
                contexts.append(context)
            except InputError as problem:
                failures.append(Failure(name, str(problem).removeprefix(f"{name}: ")))
        return contexts, failures

    @property
    def contexts(self) -> list[Context]:
        """The usable contexts."""
        return self._read[0]

    @property
    def unusable(self) -> list[Failure]:
        """The others; they are in no result."""
        return self._read[1]

    def shown(self, context: Context, lines: Sequence[str] = ()) -> str:
        """Text between prompt and query, without empty parts.

        Args:
            lines: of the query, before the one that is scored.
        """
        parts = (self.pretext, context.text, self.posttext)
        return "\n".join([*filter(None, parts), *lines])

    def split(
        self, context: Context, query: str, boundary: str, separator: str | None
    ) -> tuple[str, str]:
        """What stands between prompt and query, and the text that is scored.

        The boundary "upstream" joins them as the published package does: an empty text keeps its
        line end, and of a query with line ends the last line alone is scored, after the others.

        Args:
            separator: between text and query, scored with the query; None is the published line
                end, which is not.
        """
        is_upstream = boundary == "upstream"
        *lines, scored = query.split("\n") if is_upstream else [query]
        text = self.shown(context, lines)
        if separator is not None:
            return text, separator + scored
        return (f"{text}\n" if text or is_upstream else ""), scored


def prompt_files(name: str) -> list[str]:
    """Names that the prompt's file of a suite `<prompt>_<test>.json` may have, longest first."""
    stem = name.removesuffix(compression_of(Path(name))).removesuffix(".json")
    places = [place for place, letter in enumerate(stem) if letter == "_"]
    return [f"{stem[:place]}.txt" for place in reversed(places) if place]


def read_suite_file(
    path: Path, columns: object = None, lists: object = None, *, n_contexts: int | None = None
) -> Iterator[Row]:
    """The suite of a file, see `System.read_rows`.

    Args:
        n_contexts: contexts that are read; None for all.

    Raises:
        InputError: it holds no suite, or there is no prompt: neither as its field nor as a file.
    """
    value = read_json(path, EXPECTED)
    check_unicode(value, str(path))
    if not isinstance(value, dict):
        raise InputError(f"{path}: found {json_kind(value)}, expected {EXPECTED}")
    if value.get("prompt") is None:
        names = prompt_files(path.name)
        found = next((file for name in names if (file := path.with_name(name)).is_file()), None)
        if found is None:
            expected = " or ".join(names) or "<prompt>_<test>.json as its name, and <prompt>.txt"
            raise InputError(
                f"{path}: found no prompt, expected {expected} beside it, or a text as its field "
                '"prompt"'
            )
        value |= {"prompt": read_text(found)}
    yield Row(1, str(path), _limited(value, n_contexts))


def _limited(value: dict[str, Any], n_contexts: int | None) -> dict[str, Any]:
    if isinstance(contexts := value.get("context"), list):
        value["context"] = contexts[:n_contexts]
    return value


def suite_files(folder: Path, prompt: str, test: str) -> tuple[Path, Path]:
    """Where the prompt and the suite lie."""
    return folder / f"{prompt}.txt", folder / f"{prompt}_{test}.json"


def read_files(folder: Path, prompt: str, test: str, limit: int | None = None) -> dict[str, Any]:
    """The object of `<prompt>_<test>.json` with the text of `<prompt>.txt` as `prompt`.

    Args:
        limit: contexts that are read; None for all.

    Raises:
        InputError: a file is missing or no UTF-8, or holds no object.
    """
    prompt_file, path = suite_files(folder, prompt, test)
    _check_exists(folder, prompt_file, "--prompt", "*.txt", "")
    _check_exists(folder, path, "--test", f"{prompt}_*.json", f"{prompt}_")
    text = read_text(prompt_file)
    value = read_json(path, EXPECTED)
    check_unicode(value, str(path))
    if not isinstance(value, dict):
        raise InputError(f"{path}: found {json_kind(value)}, expected {EXPECTED}")
    return _limited(value, limit) | {"prompt": text}


def _check_exists(folder: Path, path: Path, flag: str, pattern: str, prefix: str) -> None:
    """Refuse a name without a file, with the names that there are."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder, expected prompts and tests; see --input-dir")
    if path.is_file():
        return
    names = sorted(found.stem.removeprefix(prefix) for found in folder.glob(pattern))
    listed = ", ".join(names[:SHOWN_NAMES]) + (", …" if len(names) > SHOWN_NAMES else "")
    similar = near(path.stem.removeprefix(prefix), names)
    hint = f"; is it {similar}?" if similar else ""
    raise InputError(f"{path}: no such file; for {flag} there are {listed or 'none'}{hint}")
