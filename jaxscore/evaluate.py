"""`evaluate`: one function that runs a system, for the command line and for notebooks."""

import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.io.json_output import json_parts, to_json_value
from jaxscore.lm import require
from jaxscore.report import markdown
from jaxscore.report.document import Document, Source
from jaxscore.shell.system import System as NewSystem
from jaxscore.systems.entries import iterate_objects, read_objects, usable, with_examples
from jaxscore.systems.evaluation import (
    Evaluation,
    Failure,
    check_found,
    refuse_source,
    with_unusable,
)
from jaxscore.systems.remarks import MOST_REMARKS, first_remarks
from jaxscore.systems.settings import Settings, settings_from
from jaxscore.systems.system import SYSTEMS, System, declaration
from jaxscore.types.results import data_frame

if TYPE_CHECKING:
    from jaxscore.systems.compare import ComparedRuns


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """What an evaluation found, for files, notebooks and people.

    Attributes:
        system: its name in `SYSTEMS`.
        evaluation: what the system gave back.
        settings: what made the result: model, settings, versions, date.
    """

    system: str
    evaluation: Evaluation
    settings: Mapping[str, Any]

    @property
    def summary(self) -> Mapping[str, Any]:
        """What is said of all items together: name -> number or `Estimate`."""
        return self.evaluation.summary

    @property
    def items(self) -> list[Mapping[str, Any]]:
        """One record per item, as the system's output file has it."""
        return list(self.evaluation.items)

    @property
    def failures(self) -> list[Failure]:
        """Items that could not be evaluated, and why; they are in no mean."""
        return list(self.evaluation.failures)

    @property
    def headline(self) -> str:
        """The result in one line."""
        return self.evaluation.headline

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as the report's JSON file has it."""
        found: dict[str, Any] = to_json_value(self._record())
        return found

    def _record(self) -> dict[str, Any]:
        """`to_dict` before its `Estimate`s and tuples become plain, for the page."""
        found = self.evaluation
        noise = None if found.noise is None else found.noise.record(found.decisions)
        return {
            **found.details,
            **({"findings": list(found.findings)} if found.findings else {}),
            "remarks": list(found.remarks),
            "failures": [one._asdict() for one in found.failures],
            **({"noise": noise} if found.audited else {}),
            "settings": dict(self.settings),
            **found.long,
        }

    def json(self) -> str:
        """`to_dict` as strict JSON."""
        return "".join(self.json_parts())

    def json_parts(self) -> Iterator[str]:
        """`json` in parts, so that a report of many items is never in memory as a whole."""
        return json_parts(self._record())

    def markdown(self) -> str:
        """The Markdown report.

        Raises:
            InputError: the system has none.
        """
        return markdown.render(self._known_document())

    def html(self) -> str:
        """The page for a browser: one file that loads nothing.

        Raises:
            InputError: the system has none.
        """
        from jaxscore.report.html.frame import render

        return render(self._known_document())

    def _known_document(self) -> Document:
        if self.document is None:
            raise InputError(f"{self.system} has no page of its own; use to_dict or to_frame")
        return self.document

    @functools.cached_property
    def document(self) -> Document | None:
        """Numbers, charts, tables and items of the report, or None if the system has no report."""
        report, found = declaration(self.system).report, self.evaluation
        if report is None:
            return None
        source = Source(
            system=self.system,
            record=self._record(),
            headline=found.headline,
            n_items=found.n_items,
            strips=found.strips,
            vocabulary=found.vocabulary,
            results=found.items,
            items=found.page_items,
        )
        return report(source)

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per result.

        Raises:
            InputError: pandas is not installed.
        """
        return frame_of(self.evaluation.rows)

    def __repr__(self) -> str:
        found = self.evaluation
        failed = f", {len(found.failures)} failed" if found.failures else ""
        return f"<Report {self.system}: {found.n_items} items{failed}; {found.headline}>"

    def _repr_markdown_(self) -> str:
        return repr(self) if self.document is None else self.markdown()


def frame_of(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Rows as a pandas DataFrame; an `Estimate` becomes its mean.

    Raises:
        InputError: pandas is not installed.
    """
    plain = [
        {name: value.mean if isinstance(value, Estimate) else value for name, value in row.items()}
        for row in rows
    ]
    return data_frame(plain)


def evaluate(
    system: str,
    scorer: Any,
    items: Any,
    *,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
    about: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Report:
    """Run one of the published systems.

    Example:
        >>> with Scorer.from_pretrained("demo") as scorer:
        ...     report = evaluate("paths", scorer, [{"question": q, "paths": [[a, r, b]]}])
        >>> report.summary["absolute"].mean

    Args:
        system: a key of `SYSTEMS`.
        scorer: a `Scorer`, or another `jaxscore.lm.LM` if it can do what the system needs; None
            for a system that computes nothing with a model.
        items: objects as the system's input file has them; of "score" also what `Scorer.score`
            takes; of "probsem" one suite, with the prompt's text as `prompt`.
        on_item: takes each item's record as it is finished, for systems that stream ("score",
            "sample", "self-certainty", "usc-generate"); `Report.items` is then empty and memory
            stays bounded.
        about: what to add to the report's settings, such as the name of the input file.
        settings: of the system, see `Settings` in its module. The command line's flags have the
            same names and values.

    Raises:
        InputError: an unknown system or setting, or a scorer or items that the system cannot use.
    """
    if system not in SYSTEMS:
        near = difflib.get_close_matches(system, SYSTEMS, n=1)
        hint = f"is it {near[0]}?" if near else f"expected one of {', '.join(SYSTEMS)}"
        raise InputError(f"no system {system!r}; {hint}")
    declared = declaration(system)
    chosen = settings_from(declared.settings, settings)
    if on_item is not None and not isinstance(declared, NewSystem) and not declared.streams:
        raise InputError(
            f"{system} gives all its records at the end and takes no on_item; leave it out and "
            "read Report.items"
        )
    if isinstance(declared, NewSystem):
        from jaxscore.shell import evaluate as shell

        return shell.evaluate(declared, scorer, items, chosen, about=about, on_item=on_item)
    chosen = with_examples(declared, chosen)
    read = iterate_objects if declared.is_lazy else read_objects
    entries: Any = read(declared, items, chosen)
    if declared.work is not None:
        entries = declared.work(entries, chosen)
    return run_declared(declared, scorer, entries, chosen, about=about, on_item=on_item)


def run_declared(
    system: System,
    lm: Any,
    entries: Any,
    settings: Settings,
    *,
    about: Mapping[str, Any] | None = None,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
    with_page: bool = False,
) -> Report:
    """Run a declared system: evaluate the usable entries, and report all.

    Args:
        entries: all `Entry`s of the input, as an iterator if the system is lazy; a `Work` if it
            declares one.
        settings: with their few-shot examples read, see `with_examples`.
        about, on_item: as of `evaluate`.
        with_page: collect the items of the page, which is done without `on_item` in any case.
    """
    if system.needs:
        if system.work is None:  # otherwise a complete run needs no model
            require(system.name, lm, *system.needs_with(settings))
    elif system.source is None:
        refuse_source(system.name, lm)
    elif not isinstance(lm, system.source):
        raise InputError(
            f"a source that is {type(lm).__name__}, but {system.name} needs a "
            f"{system.source.__name__}"
        )
    options: dict[str, Any] = {} if on_item is None else {"on_item": on_item}
    if system.page_items is not None and (with_page or on_item is None):
        options["page_items"] = system.page_items(settings)
    if system.is_lazy:
        found = system.evaluate(lm, entries, settings, **options)
        check_found(found.n_items, system.what)
    elif system.work is not None:
        if not entries.is_done:
            require(system.name, lm, *system.needs)
        found = system.evaluate(lm, entries, settings, **options)
    else:
        found = system.evaluate(lm, usable(entries), settings, **options)
        found = with_unusable(entries, found, system.has_ids)
    made = {
        **({} if lm is None else lm.describe()),
        **settings.record(),
        **found.prompting,
        **(about or {}),
    }
    of_model = lm.remarks if system.needs and lm is not None else ()  # known after the results
    remarks = first_remarks([*found.remarks, *of_model], MOST_REMARKS)
    found = dataclasses.replace(found, remarks=remarks)
    return Report(system.name, found, provenance.of_run(made))


def compare(a: Any, b: Any, **settings: Any) -> "ComparedRuns":
    """Compare two finished runs of one system on the same items.

    Example:
        >>> report = compare("float32.jsonl", "bfloat16.jsonl")
        >>> report.summary["sum_logprob"].difference

    Args:
        a, b: each the path of a file that a command wrote, or the `Report` of `evaluate`, without
            `on_item`.
        settings: `n_bootstrap`, `n_resamples`, `seed`, `limit`, `force`, as of the command.

    Raises:
        InputError: a run cannot be read, they are of two systems or differ in what they count, or
            no item of one is in the other.
    """
    from jaxscore.systems import compare as comparing
    from jaxscore.systems.compare import open_run

    chosen = settings_from(comparing.Settings, settings)
    opened_a, opened_b = (
        open_run.open_run(Path(run))
        if isinstance(run, str | Path)
        else open_run.of_items(run.system, run.items, run.settings)
        for run in (a, b)
    )
    return comparing.compare(opened_a, opened_b, chosen)
