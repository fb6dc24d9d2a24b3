"""Test suites of ProbSem: files, contexts, queries, and the text before each query."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError, near
from jaxscore.io.items import Row, check_not_folder
from jaxscore.io.json_input import check_unicode, json_kind, read_json, read_text
from jaxscore.io.streams import compression_of
from jaxscore.shell.items import item_of
from jaxscore.shell.prompts import ExampleItem
from jaxscore.shell.system import SHOWN

NO_ANSWER = -1  # value of `expected` if the right query is unknown; outside the accuracy
EXPECTED = "an object with `pretext`, `context`, `posttext` and `queries`"
SHOWN_NAMES = 20  # prompts or tests listed in a message


@dataclasses.dataclass(frozen=True)
class Context(ExampleItem):
    """A sample of a suite, with the suite's texts and queries; or a few-shot example.

    Attributes:
        text: the sample's text.
        expected: the index of the right query, from 0, or `NO_ANSWER`.
        queries: the suite's queries; empty for an example.
        prompt, pretext, posttext: the suite's texts, see `shown` and `split`.
    """

    text: str
    expected: int
    queries: tuple[str, ...] = ()
    prompt: str = ""
    pretext: str = ""
    posttext: str = ""

    def __post_init__(self) -> None:
        """Check the index."""
        if self.queries:
            self.check(len(self.queries))

    def check(self, n_queries: int) -> None:
        """Check that the expected index is `NO_ANSWER` or that of a query.

        Raises:
            InputError: it is not; names the valid indices.
        """
        if self.expected != NO_ANSWER and not 0 <= self.expected < n_queries:
            raise InputError(
                f"expected is {self.expected}, and the queries are 0 to {n_queries - 1}; give the "
                f"index of one, or {NO_ANSWER} to leave the context out of the accuracy"
            )

    def check_example(self) -> None:
        """Check that there is an expected query to show."""
        if self.expected == NO_ANSWER:
            raise InputError(f"expected is {NO_ANSWER}, so no query can be shown as right")

    def shown(self, text: str, lines: Sequence[str] = ()) -> str:
        """Return the text between prompt and query, without empty parts.

        Args:
            text: the text of this sample or of an example.
            lines: the query's lines before the scored one.
        """
        return "\n".join([*filter(None, (self.pretext, text, self.posttext)), *lines])

    def split(self, text: str, query: str, boundary: str, separator: str | None) -> tuple[str, str]:
        """Return the text between prompt and query, and the text that is scored.

        The boundary "upstream" joins them as in the published package: an empty text keeps its
        newline, and of a query with newlines only the last line is scored.

        Args:
            text: the text of this sample or of an example.
            separator: the separator of text and query, scored with the query; None is the
                published newline, which is not scored.
        """
        is_upstream = boundary == "upstream"
        *lines, scored = query.split("\n") if is_upstream else [query]
        before = self.shown(text, lines)
        if separator is not None:
            return before, separator + scored
        return (f"{before}\n" if before or is_upstream else ""), scored


@dataclasses.dataclass(frozen=True)
class Suite:
    """A prompt with its continuations: every query after every context.

    Attributes:
        context: the objects with `text` and `expected`.
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
                shown = "empty" if query == "" else str(query)[:20]
                raise InputError(f'field "queries", entry {k} is {shown}, expected a text to score')
        if not self.queries:
            raise InputError('field "queries" is empty, expected the texts to compare')
        if not self.context:
            raise InputError(
                'field "context" is empty, expected objects with `text` and `expected`'
            )

    def rows(self) -> Iterator[Row]:
        """Yield each context with the texts of the suite, as an input object."""
        shared = {
            "queries": list(self.queries),
            "prompt": self.prompt,
            "pretext": self.pretext,
            "posttext": self.posttext,
        }
        for index, context in enumerate(self.context, start=1):
            where, value = f"context {index}", context
            if isinstance(context, dict):
                value = {**context, **shared}
                if isinstance(text := context.get("text"), str):
                    where += f" {text[:SHOWN]!r}{'…' if len(text) > SHOWN else ''}"
            yield Row(index, where, value)


def read_suite(value: Any, where: str = "suite") -> Suite:
    """Return a suite from an object of a suite file, with the prompt's text as `prompt`.

    `prompt`, `pretext` and `posttext` may be empty, null or left out.

    Raises:
        InputError: not an object, or without queries or contexts, or queries are not texts.
    """
    if isinstance(value, Suite):
        return value
    if not isinstance(value, dict):
        raise InputError(f"{where}: found {json_kind(value)}, expected {EXPECTED}")
    suite: Suite = item_of(Suite, value, where)
    return suite


def prompt_files(name: str) -> list[str]:
    """Return the possible prompt files of a suite `<prompt>_<test>.json`, longest name first."""
    stem = name.removesuffix(compression_of(Path(name))).removesuffix(".json")
    positions = [position for position, letter in enumerate(stem) if letter == "_"]
    return [f"{stem[:position]}.txt" for position in reversed(positions) if position]


def read_suite_file(path: Path) -> Suite:
    """Return the suite of a file.

    Raises:
        InputError: it is not a suite, or the prompt is neither its field nor a file.
    """
    check_not_folder(path)
    value = read_json(path, EXPECTED)
    check_unicode(value, str(path))
    if isinstance(value, dict) and value.get("prompt") is None:
        names = prompt_files(path.name)
        file = next((file for name in names if (file := path.with_name(name)).is_file()), None)
        if file is None:
            expected = " or ".join(names) or "<prompt>_<test>.json as its name, and <prompt>.txt"
            raise InputError(
                f"{path}: found no prompt, expected {expected} in its folder, or a text as its "
                'field "prompt"'
            )
        value |= {"prompt": read_text(file)}
    return read_suite(value, str(path))


def suite_files(folder: Path, prompt: str, test: str) -> tuple[Path, Path]:
    """Return the paths of the prompt and the suite."""
    return folder / f"{prompt}.txt", folder / f"{prompt}_{test}.json"


def load(folder: Path, prompt: str, test: str) -> Suite:
    """Return the suite of `<prompt>_<test>.json`, with the text of `<prompt>.txt` as `prompt`.

    Raises:
        InputError: a file is missing, not UTF-8 or not a suite.
    """
    prompt_file, path = suite_files(folder, prompt, test)
    _check_exists(folder, prompt_file, "--prompt", "*.txt", "")
    _check_exists(folder, path, "--test", f"{prompt}_*.json", f"{prompt}_")
    text = read_text(prompt_file)
    value = read_json(path, EXPECTED)
    check_unicode(value, str(path))
    return read_suite(value | {"prompt": text} if isinstance(value, dict) else value, str(path))


def _check_exists(folder: Path, path: Path, flag: str, pattern: str, prefix: str) -> None:
    """Check that a name has a file; the error lists the existing names."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder, expected prompts and tests; see --input-dir")
    if path.is_file():
        return
    names = sorted(file.stem.removeprefix(prefix) for file in folder.glob(pattern))
    listed = ", ".join(names[:SHOWN_NAMES]) + (", …" if len(names) > SHOWN_NAMES else "")
    similar = near(path.stem.removeprefix(prefix), names)
    hint = f"; is it {similar}?" if similar else ""
    raise InputError(f"{path}: no such file; for {flag} there are {listed or 'none'}{hint}")
