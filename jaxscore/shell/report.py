"""A finished run, however it was made: by scoring, by `merge`, or read from its output."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxscore.analysis import margins
from jaxscore.io.json_output import Lazy, json_number
from jaxscore.report import slices as report_slices
from jaxscore.report.counts import counted
from jaxscore.report.document import Document, Source
from jaxscore.shell.audits import JOINTS, ON_PAGE_ALONE, WITHOUT_SPACE, Effect, Facts
from jaxscore.shell.fields import Decision, NoiseFloor, Total, metadata_of
from jaxscore.shell.prompts import OWN_EXAMPLES
from jaxscore.shell.records import Records
from jaxscore.shell.rendered import Rendered
from jaxscore.shell.rounding_audit import Noise
from jaxscore.shell.settings import Settings
from jaxscore.shell.slices import NONE, means_of, slices_of
from jaxscore.shell.system import Record, Summary, System, result_of, unit_fields, unit_title, units
from jaxscore.text.chat_template import IN_REASONING
from jaxscore.types.results import Strip, data_frame

MOST_WARNINGS = 100  # about single records
SKIPPED = ("too_long", "passed_over")
AUDITED_PER_FILE = (
    "audits: each of {n} files was audited by itself, and numbers are over all of their samples; "
    "one run would draw one sample"
)


class Failure(NamedTuple):
    """An item that could not be evaluated.

    Attributes:
        name: for people: its id, or what its system calls it.
    """

    name: str
    error: str


@dataclasses.dataclass(frozen=True, repr=False)
class Report(Rendered):
    """The results of an evaluation, for files, notebooks and people.

    Attributes:
        declared: the system.
        chosen: its settings.
        records: one per item, as the output has it.
        facts: the facts of the run that its records do not have.
        about: model, versions, date and input, for people.
        vocabulary: columns of the model's distribution; None if it is not known.
        places: id of a failed item -> its file and line, if the run knows them.
    """

    declared: System
    chosen: Settings
    records: Records
    facts: Facts
    about: Mapping[str, Any]
    vocabulary: int | None = None
    places: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def system(self) -> str:
        """The name in `SYSTEMS`."""
        return self.declared.name

    @functools.cached_property
    def found(self) -> Summary:
        """The summary of the records."""
        return self.declared.summarize(self.records, self.chosen)

    @functools.cached_property
    def slices(self) -> dict[str, Any]:
        """The means for each value of each field of the setting `by`; see `slices_of`."""
        return slices_of(self.declared, self.chosen, self.records)

    @property
    def summary(self) -> Mapping[str, Any]:
        """Numbers of all items together: name -> number or `Estimate`."""
        return self.found.numbers

    @property
    def headline(self) -> str:
        """The result in one line."""
        return self.found.headline

    @property
    def items(self) -> list[Record]:
        """One record per item, as the system's output file has it."""
        return list(self.records)

    @property
    def failures(self) -> list[Failure]:
        """Items that could not be evaluated, and why; they are in no mean."""
        return [Failure(*each) for each in self.found.failures]

    @property
    def settings(self) -> dict[str, Any]:
        """The origin of the result: model, settings, versions, date."""
        left_out = {}  # of the prompts' facts the one that shards add up
        if "fewshot_drawn" in self.about:
            left_out = {"fewshot_left_out": self.facts.warnings[OWN_EXAMPLES]}
        return {**self.about, **self.chosen.record(), **left_out}

    @functools.cached_property
    def remarks(self) -> list[str]:
        """Warnings for a reader of the numbers."""
        remarks = [
            _filled(text, {"n": n, **self.facts.counts}) for text, n in self.facts.warnings.items()
        ]
        effect, counts = self.facts.blank, self.facts.counts
        if counts[WITHOUT_SPACE] and (effect is None or not effect.n_answers):
            remarks.append(
                f"{counts[WITHOUT_SPACE]} of {counts[JOINTS]} requests have no space between "
                "context and continuation; see --answer-separator"
            )
        warnings = self.found.warnings
        remarks += warnings[:MOST_WARNINGS]
        if n := len(warnings[MOST_WARNINGS:]):
            remarks.append(f"and {n} more")
        remarks += [
            f"field {field!r} of --by: missing in {each['n_without']} of "
            f"{counted(each['all']['n_items'], self.declared.what)}, whose value is {NONE}"
            for field, each in self.slices.items()
            if each["n_without"]
        ]
        is_audited = self.facts.noise is not None or any(self.facts.boundaries.values())
        if is_audited and self.facts.n_runs > 1:
            remarks.append(AUDITED_PER_FILE.replace("{n}", str(self.facts.n_runs)))
        return remarks

    @functools.cached_property
    def findings(self) -> list[str]:
        """Sentences that say how the headline is to be read."""
        sentences = list(self.declared.findings(self))
        if self.facts.counts["in_reasoning"]:
            sentences.insert(0, IN_REASONING)
        effect, (_, title) = self.facts.blank, result_of(self.declared)
        if effect is None or not effect.n_items or not effect.raises_most:
            return sentences
        published, with_blank = effect.means.values()
        sampled = f"a sample of {effect.n_items} {unit_title(self.declared)}"
        counts, joints = self.facts.counts, ""
        if n := counts[WITHOUT_SPACE]:
            joints = (
                f", by {effect.rise:.3g} nats on average; {n} of {counts[JOINTS]} requests have no "
                "space there"
            )
        return [
            *sentences,
            f"With a space before the answer the {title} is {with_blank:.4g} instead of "
            f"{published:.4g}; see --answer-separator ({sampled}; the space raises the "
            f"probability of {effect.n_raised} of {counted(effect.n_answers, 'answers')}{joints})",
        ]

    @functools.cached_property
    def decisions(self) -> list[margins.Decisions]:
        """Marked decisions by kind; none without a noise audit."""
        kinds = _judged(self.declared, self.chosen, self.facts.noise)
        if not kinds:
            return []
        marks: dict[str, list[bool | None]] = {str(decision.within): [] for _, decision, _ in kinds}
        for record in self.records:
            for unit in units(self.declared, record):
                for mark, values in marks.items():
                    values.append(unit.get(mark))
        return [
            margins.count(
                decision.title, str(decision.statistic), spread, marks[str(decision.within)]
            )
            for _, decision, spread in kinds
        ]

    @property
    def lacks_texts(self) -> bool:
        """Return True if the page lacks tokens or contexts that the page of the run had."""
        return bool(self.facts.counts[ON_PAGE_ALONE]) and not self.records.has_extras

    def boundary_audit(self) -> dict[str, Any] | None:
        """The audit of boundaries as a JSON object; None without one.

        Returns:
            `n_requests`, audited; `changed`, other boundary -> requests that it would change;
            `n_too_long` and `n_passed_over` if some were left out; `effect`, on the system's
            result over a sample, if another boundary changes some.
        """
        counts = self.facts.boundaries
        if not counts["audited"]:
            return None
        changed = {k: n for k, n in counts.items() if k not in ("audited", *SKIPPED)}
        out: dict[str, Any] = {"n_requests": counts["audited"], "changed": changed}
        out |= {f"n_{name}": counts[name] for name in SKIPPED if counts[name]}
        effect = self.facts.boundary
        if effect is not None and effect.n_items and any(changed.values()):
            advice = getattr(self.chosen, "advice", "")
            out["effect"] = {**self._effect(effect), "advice": advice}
        return out

    def boundary_lines(self) -> list[str]:
        """The audit of boundaries, and its effect, for the closing block."""
        audit = self.boundary_audit()
        if audit is None:
            return []
        changes = ", ".join(f"{name} would change {n}" for name, n in audit["changed"].items())
        left_out = ""
        if n := audit.get("n_too_long"):
            left_out = f"; {n} are too long to be audited"
        if n := audit.get("n_passed_over"):
            left_out += f"; a sample, {n} others are not audited"
        chosen = next(iter(self.chosen.policies()))
        lines = [f"{chosen}: of {counted(audit['n_requests'], 'requests')} {changes}{left_out}"]
        effect = self.facts.boundary
        if "effect" in audit and effect is not None:
            moved = ", ".join(f"{mean:.4g} ({way})" for way, mean in effect.means.items())
            _, title = result_of(self.declared)
            sampled = f"{title} over {effect.n_items} {unit_title(self.declared)}"
            lines.append(f"{sampled}: {moved}; believe {audit['effect']['advice']}")
        return lines

    def answer_blank(self) -> dict[str, Any] | None:
        """The effect of a space before answers as a JSON object; None if it was not scored."""
        effect = self.facts.blank
        if effect is None or not effect.n_items:
            return None
        counts = {name: getattr(effect, name) for name in ("n_items", "n_answers", "n_raised")}
        return {
            **counts,
            **self._effect(effect),
            "raises_most": effect.raises_most,
            "finding": self.findings[-1] if effect.raises_most else None,
        }

    def _effect(self, effect: Effect) -> dict[str, Any]:
        _, title = result_of(self.declared)
        results = {title: {"n": effect.n_items, **effect.means}}
        return {"what": unit_title(self.declared), "results": results}

    def _counted(self) -> dict[str, dict[str, float]]:
        """Counts whose names have a dot, as objects."""
        out: dict[str, dict[str, float]] = {}
        for name, n in self.facts.counts.items():
            group, dot, field = name.rpartition(".")
            if dot:
                out.setdefault(group, {})[field] = n
        return out

    def data(self) -> dict[str, Any]:
        """The report's JSON file, `Estimate`s still whole."""
        summary, noise = self.found, self.facts.noise
        is_audited = getattr(self.chosen, "audit_noise", 0) or noise is not None
        audited = {"noise": noise and noise.record(self.decisions)} if is_audited else {}
        blank = self.answer_blank()
        return {
            "summary": summary.numbers,
            **({"slices": self.slices} if self.slices else {}),
            **summary.details,
            **self._counted(),
            **({} if blank is None else {"answer_blank": blank}),
            **({"boundary_audit": self.boundary_audit()} if self.chosen.policies() else {}),
            **({"findings": self.findings} if self.findings else {}),
            "remarks": self.remarks,
            "failures": [failure._asdict() for failure in self.failures],
            **audited,
            "settings": self.settings,
        }

    def source(self, *, items: Any = None, strips: Sequence[Any] = (), **listed: Any) -> Source:
        """Return the source of a system's report.

        Args:
            items: the items of the page.
            strips: scored texts of each listed item.
            listed: sequences of the page by name, which no file has.
        """
        return Source(
            system=self.system,
            record=self.data() | listed,
            headline=self.headline,
            n_items=len(self.records),
            strips=strips,
            vocabulary=self.vocabulary,
            results=self.records,
            items=items,
        )

    def strips(self) -> Sequence[Sequence[Strip]]:
        """Return the scored texts of each record, or nothing if no record has any.

        They are the field `strips` of `PAGE`, each as `Strip.to_page` makes it.
        """

        def strips_of(index: int) -> list[Strip]:
            page = self.records.extra(index) or {"strips": ()}
            return [Strip.from_page(fields) for fields in page["strips"]]

        places = range(len(self.records)) if self.records.has_extras else ()
        return Lazy(places, strips_of)

    @functools.cached_property
    def document(self) -> Document | None:
        """Numbers, charts, tables and items of the report, or None if there is none."""
        document = self.declared.report(self)
        if document is None or not self.slices:
            return document
        return report_slices.with_slices(document, self.slices, self._slice_titles())

    def _slice_titles(self) -> report_slices.Titles:
        totals = metadata_of(self.declared.record, Total)
        means = means_of(self.declared, self.chosen)
        counts = {name: total.title for name, total in totals if total.title}
        return report_slices.Titles(
            self.declared.what,
            counts,
            {name: mean.title for name, _, mean in means if mean.in_table},
        )

    def slice_lines(self) -> list[str]:
        """Return the tables of the setting `by` for a terminal."""
        return [*report_slices.lines(self.slices, self._slice_titles())]

    def to_frame(self) -> Any:
        """A pandas DataFrame without lists; see `System.rows`.

        Raises:
            InputError: pandas is not installed.
        """
        rows = (row for record in self.records for row in self.declared.rows(record))
        return data_frame(
            [{k: v for k, v in row.items() if not isinstance(v, list)} for row in rows]
        )

    def __repr__(self) -> str:
        n = len(self.found.failures)
        failed = f", {n} failed" if n else ""
        return f"<Report {self.system}: {len(self.records)} items{failed}; {self.headline}>"


def _filled(text: str, counts: Mapping[str, float]) -> str:
    """A warning with the counts whose names are in braces."""
    for name, n in counts.items():
        text = text.replace(f"{{{name}}}", f"{n:.6g}" if isinstance(n, float) else str(n))
    return text


def marked_decisions(system: System) -> list[tuple[str, Decision]]:
    """Fields of a unit with the decisions that a noise audit marks."""
    return [
        (field, decision)
        for field, decision in unit_fields(system, Decision)
        if isinstance(decision.within, str) and decision.margin is not None
    ]


def _judged(
    system: System, settings: Settings, noise: Noise | None
) -> list[tuple[str, Decision, float]]:
    """Marked decisions whose statistic was audited, each with the statistic's largest spread."""
    if noise is None:
        return []
    largest = {name: spread.largest for name, spread in noise.spread.items()}
    return [
        (
            field,
            decision,
            decision.spread(largest, settings)
            if callable(decision.spread)
            else largest[decision.spread],
        )
        for field, decision in marked_decisions(system)
        if callable(decision.spread) or decision.spread in largest
    ]


def marked(system: System, settings: Settings, records: Records, noise: Noise | None) -> Records:
    """Records that say what rounding could change: decisions, and by how much numbers move."""
    kinds, floors = _judged(system, settings, noise), metadata_of(system.record, NoiseFloor)
    if noise is None or not (kinds or floors):
        return records
    largest = {name: spread.largest for name, spread in noise.spread.items()}

    def mark(record: Record) -> Record:
        for unit in units(system, record):
            for field, decision, spread in kinds:
                if field in unit:
                    unit[str(decision.within)] = _mark(unit, field, decision, spread)
        for field, floor in floors:
            if isinstance(noted := record.get(field), dict):
                noted[floor.entry] = _raised(noted.get(floor.entry), largest[floor.spread])
        return record

    return records.changed_by(mark)


def _raised(earlier: Any, spread: float) -> float | str | None:
    """The larger of a noted spread and another one, as JSON has it."""
    earlier_spread = (
        math.inf if earlier == "Infinity" else earlier if isinstance(earlier, float) else 0.0
    )
    return json_number(max(earlier_spread, spread))


def _mark(unit: Record, field: str, decision: Decision, spread: float) -> bool | None:
    margin_of: Callable[[Record], float | None] | None = decision.margin
    margin = None if unit[field] is None or margin_of is None else margin_of(unit)
    return None if margin is None else margins.within(margin, spread)
