"""`evaluate`: one function that runs a system, for the command line and for notebooks."""

import dataclasses
import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.files.json_output import json_text, plain
from jaxscore.metrics.bootstrap import Estimate
from jaxscore.results import data_frame
from jaxscore.tasks.evaluation import Evaluation, Failure, settings_of


class System(NamedTuple):
    """Where a system lives: modules that are imported when it is first asked for.

    Attributes:
        task: has `Settings` and `evaluate(source, items, settings)`.
        report: has `report(record) -> Markdown`; None where a system has no page.
    """

    task: str
    report: str | None


SYSTEMS = {
    "score": System("jaxscore.tasks.score.evaluation", None),
    "paths": System("jaxscore.tasks.paths.evaluation", "jaxscore.reports.paths_report"),
    "chronologic": System(
        "jaxscore.tasks.chronologic.evaluation", "jaxscore.reports.chronologic_report"
    ),
    "probsem": System("jaxscore.tasks.probsem.evaluation", "jaxscore.reports.probsem_report"),
    "self-certainty": System("jaxscore.tasks.samples.evaluations.self_certainty", None),
    "select": System("jaxscore.tasks.samples.evaluations.select", None),
    "vote": System("jaxscore.tasks.samples.evaluations.vote", None),
    "livecode-select": System("jaxscore.tasks.samples.evaluations.livecode_select", None),
    "livecode-parse": System("jaxscore.tasks.samples.evaluations.livecode_parse", None),
    "usc-generate": System("jaxscore.tasks.samples.evaluations.usc_generate", None),
    "usc-select": System("jaxscore.tasks.samples.evaluations.usc_select", None),
    "judge": System("jaxscore.tasks.rag.evaluation", "jaxscore.reports.judge_report"),
    "bem": System("jaxscore.tasks.rag.bem_evaluation", "jaxscore.reports.judge_report"),
    "metrics": System("jaxscore.tasks.rag.lexical_evaluation", None),
}


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
        found: dict[str, Any] = plain(self._record())
        return found

    def _record(self) -> dict[str, Any]:
        """`to_dict` before its `Estimate`s and tuples become plain, for the page."""
        found = self.evaluation
        noise = None if found.noise is None else found.noise.record(found.decisions)
        return {
            **found.details,
            "remarks": list(found.remarks),
            "failures": [one._asdict() for one in found.failures],
            **({"noise": noise} if found.audited else {}),
            "settings": dict(self.settings),
            **found.long,
        }

    def json(self) -> str:
        """`to_dict` as strict JSON."""
        return json_text(self._record())

    def markdown(self) -> str:
        """The page for people.

        Raises:
            InputError: the system has none.
        """
        module = SYSTEMS[self.system].report
        if module is None:
            raise InputError(f"{self.system} has no page of its own; use to_dict or to_frame")
        return importlib.import_module(module).report(self._record())

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
        return repr(self) if SYSTEMS[self.system].report is None else self.markdown()


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
        scorer: a `Scorer`; an endpoint where the system can ask one; None for a system that
            computes nothing with a model.
        items: objects as the system's input file has them; of "score" also what `Scorer.score`
            takes; of "probsem" one suite, with the prompt's text as `prompt`.
        on_item: takes each item's record as it is finished, for systems that stream ("score",
            "self-certainty", "usc-generate"); `Report.items` is then empty and memory stays
            bounded.
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
    module = importlib.import_module(SYSTEMS[system].task)
    chosen = settings_of(module.Settings, settings)
    more = {} if on_item is None else {"on_item": on_item}
    if not more.keys() <= inspect.signature(module.evaluate).parameters.keys():
        raise InputError(
            f"{system} gives all its records at the end and takes no on_item; leave it out and "
            "read Report.items"
        )
    found = module.evaluate(scorer, items, chosen, **more)
    made = {**source_facts(scorer), **chosen.record(), **(about or {})}
    return Report(system, found, provenance.of_run(made))


def source_facts(source: Any) -> dict[str, Any]:
    """What a report says of its model: a scorer's own facts, or an endpoint's name and URL."""
    describe = getattr(source, "describe", None)
    return {} if describe is None else describe()
