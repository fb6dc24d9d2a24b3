"""`self-certainty` as one call: items with outputs in, a confidence for each output."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from jaxscore.engine.defaults import WINDOW
from jaxscore.errors import InputError
from jaxscore.lm import require_local
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.samples import confidences as task
from jaxscore.systems.samples import earlier_output, right_responses
from jaxscore.systems.samples.evaluations import choices
from jaxscore.systems.samples.in_order import InOrder
from jaxscore.systems.samples.right_responses import RightResponses
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.selection.answers import AUTO, NO_READABLE_ANSWER, RULES
from jaxscore.systems.settings import IntervalSettings, check_setting

CHARACTERS_PER_TOKEN = 3
BATCHES_TOGETHER = 64  # planned at once: few enough that results reach the file soon

Place = tuple[int, int]  # of an item, and of one of its outputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(IntervalSettings):
    """Settings of `self-certainty`.

    Attributes:
        alignment: "formula" takes the prediction of each token, made before it; "upstream" the
            one made after it, as the published script does.
        input_field, output_field: names of an item's two fields.
        gold: the field with the right answer, a list of acceptable ones, or a list of verdicts on
            the outputs: tell how well four confidences find the right outputs; None does not.
        answer_rule: with gold: how answers are read, one of `answer_rules.RULES`.
    """

    alignment: str = "formula"
    input_field: str = task.INPUT_FIELD
    output_field: str = task.OUTPUT_FIELD
    gold: str | None = None
    answer_rule: str = AUTO

    def __post_init__(self) -> None:
        """Check all values; see `IntervalSettings`."""
        super().__post_init__()
        check_setting("alignment", self.alignment, tuple(task.ALIGNMENTS))
        for name in ("input_field", "output_field"):
            if not isinstance(value := getattr(self, name), str):
                raise InputError(f"setting {name} is {value!r}, expected the name of a field")
        choices.check_gold(self.gold)
        check_setting("answer_rule", self.answer_rule, RULES)
        if self.gold is None and self.answer_rule != AUTO:
            raise InputError(
                f"setting answer_rule is {self.answer_rule} without gold: no answer is read; name "
                "the field with the right answer"
            )
        if self.gold is not None and self.alignment != "formula":
            raise InputError(
                f"setting gold with alignment {self.alignment}: its log-probabilities are of other "
                "tokens than the outputs have; take alignment formula"
            )

    def record(self) -> dict[str, Any]:
        """The settings as a report has them; the gold where there is one."""
        out = super().record()
        graded = ("gold", "answer_rule")
        return out if self.gold is not None else {k: v for k, v in out.items() if k not in graded}


@dataclasses.dataclass
class Work:
    """Items with what is known of them; a run fills in what is missing.

    Attributes:
        items: as from `confidences.load`.
        confidences: one per item.
        n_previous: records that the output file has already; they stay in it.
        facts: what each record says of the model: model, revision, lora, quantize, reproducible;
            None: as the scorer describes itself.
        path: of the output file, for messages.
        right: which outputs are right; None where nobody asked.
    """

    items: Sequence[task.Item]
    confidences: list[task.Confidence]
    n_previous: int = 0
    facts: Mapping[str, Any] | None = None
    path: Path = Path("output")
    right: RightResponses | None = None

    def __iter__(self) -> Iterator[task.Item]:
        return iter(self.items)

    @property
    def missing(self) -> list[Place]:
        """Everything that is still to be scored."""
        return task.missing(self.confidences)

    def records(self) -> Iterable[dict[str, Any]]:
        """What the output file holds by now."""
        known = task.evaluate(self.items, self.confidences, self.n_previous)
        return (self._graded(k, record) for k, record in enumerate(known))

    def finished(self, index: int) -> dict[str, Any] | None:
        """An item's record; None while an output is missing."""
        one = self.confidences[index]
        return None if one.missing else self._graded(index, task.record(self.items[index], one))

    def _graded(self, index: int, record: dict[str, Any]) -> dict[str, Any]:
        """The record with `right`, where that is asked for."""
        if self.right is None:
            return record
        error = self.right.errors.get(index)
        graded = {**record, "right": self.right.right[index]}
        rules = self.right.rules.get(index)
        if rules is not None and rules.forms is not None:
            graded["answer_forms"] = self.right.forms[index]
        return graded if error is None else {**graded, "error": error}

    def made_with(self, settings: Settings, dtype: str | None) -> dict[str, Any]:
        """What each record says of how it was made; `dtype` None where it is not known yet.

        Raises:
            InputError: the file holds confidences that were made in another way.
        """
        out = {
            **(self.facts or {}),
            "alignment": settings.alignment,
            "input_field": settings.input_field,
            "output_field": settings.output_field,
        }
        if settings.truncate is None:  # a run that may cut inputs goes on with whole ones, not
            out["truncate"] = None  # the reverse
        if dtype is not None:
            out["dtype"] = dtype
        task.check_settings(self.items, self.confidences, out, self.path)
        return out


def evaluate(
    lm: Any,
    items: Iterable[Any],
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
) -> Evaluation:
    """Score each output.

    Args:
        lm: a `LocalLM`; None is enough for a `Work` from which nothing is missing.
        items: objects as the input file has them, or `Work` that an earlier run has begun.
        on_item: takes each record in the input's order as soon as it is finished, but none that
            the work held already; no record is then in the result. The noise floor, which is
            known at the end, is not in these records.

    Raises:
        InputError: no item can be used; the model does not run in this process.
    """
    work = items if isinstance(items, Work) else _begun(items, settings)
    run = ScoringRun(
        lm,
        settings,
        boundary=settings.alignment,
        policies=task.ALIGNMENTS,
        special_tokens=False,
        audit_boundary=False,
    )
    known = {k for k in range(work.n_previous) if not work.confidences[k].missing}
    told = InOrder(on_item, work.finished, len(work.items), known)
    n_cut = _score(run, lm, work, settings, told.offer) if work.missing else 0
    noise = run.noise
    if noise is not None:
        task.note_noise(work.confidences, noise.spread["mean_self_certainty"].largest)
    told.offer()
    found = task.summarise(work.items, work.confidences, settings.n_bootstrap, settings.seed)
    summary = {
        "n_items": found.n_items,
        "n_outputs": found.n_outputs,
        "n_scored": found.n_scored,
        "mean_self_certainty": found.mean,
    }
    graded = None if work.right is None else _grade(work, work.right, settings)
    details: dict[str, Any] = {"summary": summary}
    failures = [Failure(*one) for one in found.failures]
    line = headline(found)
    if graded is not None and work.right is not None:
        details |= graded
        found_line = quality_line(graded["quality"])
        no_line = "no AUROC: no output has a readable answer"
        line = f"{line}; {no_line if work.right.unreadable else found_line}"
        failures += [Failure(work.items[k].name, why) for k, why in work.right.errors.items()]
    records = [] if on_item is not None else list(work.records())
    cut = f"{n_cut} outputs were scored after an input cut at its left"
    unreadable = [NO_READABLE_ANSWER] if work.right is not None and work.right.unreadable else []
    return Evaluation(
        summary=summary,
        items=records,
        n_items=found.n_items,
        rows=[] if on_item is not None else _rows(work),
        details=details,
        long={"items": records},
        headline=line,
        failures=failures,
        remarks=[*unreadable, *([cut] if n_cut else [])],
        noise=noise,
        audited=settings.audit_noise > 0,
        seconds=run.seconds,
    )


def headline(found: task.Summary) -> str:
    """The mean with its interval, and over how many outputs."""
    mean = found.mean
    if mean.mean is None:
        return f"no confidence: none of {found.n_outputs} outputs was scored"
    span = "" if mean.low is None else f", 95% interval {mean.low:.6g} to {mean.high:.6g}"
    return (
        f"mean self-certainty {mean.mean:.6g} nats per token{span}, {found.n_scored} of "
        f"{found.n_outputs} outputs"
    )


def _begun(given: Iterable[Any], settings: Settings) -> Work:
    items = task.read(given, settings.input_field, settings.output_field)
    right = (
        None
        if settings.gold is None
        else right_responses.read(items, settings.gold, settings.answer_rule)
    )
    confidences, _ = task.resume(items, [], Path("output"), measured=right is not None)
    return Work(items, confidences, right=right)


def _grade(work: Work, right: RightResponses, settings: Settings) -> dict[str, Any]:
    return right_responses.report(
        work.items, work.confidences, right, settings.n_bootstrap, settings.seed
    )


def quality_line(quality: Mapping[str, Any]) -> str:
    """How well self-certainty finds the right outputs, in one line."""
    n, n_right = quality["n_responses"], quality["n_right"]
    known = quality["confidences"].get(right_responses.SELF_CERTAINTY)
    if known is None or known["undefined"]:
        why = known["undefined"] if known else "no output has gold and a confidence"
        return f"no AUROC: {why}"
    auroc = known["auroc"]
    span = "" if auroc["low"] is None else f" ({auroc['low']:.3f} to {auroc['high']:.3f})"
    return f"AUROC {auroc['value']:.3f}{span}, {n_right} of {n} outputs are right"


def _score(
    run: ScoringRun, lm: Any, work: Work, settings: Settings, offer: Callable[[], None]
) -> int:
    """Fill in what is missing; gives how many outputs were scored after an input that was cut."""
    lm = require_local("self-certainty", lm, "scores", "has_distribution")
    if work.facts is None:
        work.facts = earlier_output.model_facts(lm)
    made_with = work.made_with(settings, lm.describe()["dtype"])
    wanted = work.missing
    every, missing = task.scorable(work.confidences), {*wanted}
    window = window_size(work.items, every, lm.batch_tokens)
    # What is not missing costs nothing where the journal has it.
    asked = wanted if lm.journal is None else _whole_windows(every, missing, window)
    stream = run.stream(task.requests(work.items, asked), window=window, n_requests=len(asked))
    n_cut = 0
    for (k, place), scored in zip(asked, stream, strict=True):
        if (k, place) not in missing:
            continue
        work.confidences[k].take(place, scored, made_with)
        n_cut += scored.truncated > 0
        if not work.confidences[k].missing:
            offer()
    return n_cut


def _whole_windows(every: Sequence[Place], missing: Set[Place], window: int) -> list[Place]:
    """The windows of a run from the beginning in which something is missing.

    So what is missing has the same neighbours, and with them the same last bits, as in a run that
    was left alone; the journal has what is not missing.
    """
    windows = (every[first : first + window] for first in range(0, len(every), window))
    return [one for own in windows if not missing.isdisjoint(own) for one in own]


def window_size(items: Sequence[task.Item], wanted: Sequence[Place], batch_tokens: int) -> int:
    """How many outputs to plan together: about `BATCHES_TOGETHER` batches of text.

    Results come back a window at a time, so it bounds what an interruption costs; outputs of one
    item share its input within a window.
    """
    per_item = collections.Counter(k for k, _ in wanted)
    characters = sum(len(items[k].context) for k in per_item)
    characters += sum(len(items[k].outputs[place]) for k, place in wanted)
    at_most = BATCHES_TOGETHER * batch_tokens * CHARACTERS_PER_TOKEN
    fitting = int(at_most * len(wanted) / max(1, characters))
    return min(WINDOW, max(fitting, *per_item.values()))


def _rows(work: Work) -> list[dict[str, Any]]:
    """One row per output."""
    return [
        {
            "item": item.name,
            "output": place + 1,
            "self_certainty": value,
            "error": one.errors.get(place),
        }
        for item, one in zip(work.items, work.confidences, strict=True)
        for place, value in enumerate(one.values)
    ]
