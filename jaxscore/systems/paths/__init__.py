"""Path Evaluation: does a support path make the answer of a question more probable?

For each path of a question its last entity is the answer. Its probability is the geometric mean
of its tokens' probabilities, with and without the path in the prompt, averaged over system
prompts.
"""

import dataclasses
import itertools
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import numpy as np

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Estimate, estimate
from jaxscore.analysis.margins import Decisions
from jaxscore.errors import InputError, one_line
from jaxscore.io.json_input import read_lines
from jaxscore.io.json_output import Lazy
from jaxscore.lm import LM
from jaxscore.report.sections import worst_first
from jaxscore.systems.audits import Answers, Pair
from jaxscore.systems.entries import SHOWN, Entry, read_item
from jaxscore.systems.evaluation import Evaluation, Failure, mark_noise
from jaxscore.systems.paths.report import report
from jaxscore.systems.prompt_settings import AnswerSettings, Example, Prompting, remarks
from jaxscore.systems.rounding_audit import Noise
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.settings import FileFlag, IntervalSettings, setting
from jaxscore.systems.system import ArrayOutput, Compared, Decision, Metric, System
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest, Strip

HELP = """\
How much does a support path raise the probability of the answer, its last
entity?

input, one object per line:
  {"id": "q1", "question": "Where was Ada born?",
   "paths": [["Ada", "born in", "London"], []]}
  Empty paths are skipped; `id` defaults to the line's number. In .csv and .tsv
  `paths` is JSON text.

prompts:
  baseline   {system prompt}\\nQuestion: {question} Answer:
  retrieved  {system prompt}\\nSupport Path: {A -> B -> C}\\nQuestion: {question}
             Answer:
  A few-shot example shows its first path that is not empty.

The answer follows without a blank, as published. A sample is scored with one
too; if it raises most answers, the output says so first (--answer-separator).

A probability is exp(mean log-probability of the answer's tokens), averaged over
system prompts.

output, as the published script writes it:
  for each path baseline_prob, retrieved_prob, absolute_improvement,
  relative_improvement ("Infinity" where the baseline is 0) and the results of
  each system prompt. With --audit-noise also `within_noise`: whether rounding
  could change the sign of the improvement.
  Beside OUT.json lie a readable report, OUT_report.md, and its data,
  OUT_report.json: means with bootstrap intervals, by length of path, least gain
  first, settings; and OUT_report.html, the same for a browser with charts and
  coloured tokens. For an OUT of another name these are OUT.report.md and so on.

exit code: 0 all scored, 1 some paths failed (they hold `error`),
           2 unusable input, or no path in it.
"""
DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful assistant that answers questions accurately based on the given information."
)
# upstream is what the published script scores
BOUNDARIES: dict[str, Boundary] = {
    "separate": "separate",
    "joint": "joint",
    "upstream": "reencoded",
}
ADVICE = (
    "separate, the formula of the paper: the answer's ids after the prompt's; joint reads "
    "both as one text; take upstream to repeat numbers of the published script, which encodes the "
    "text again after each token"
)
# name of a mean -> the field of a path's record that it is over
COLUMNS = {
    "baseline": "baseline_prob",
    "retrieved": "retrieved_prob",
    "absolute": "absolute_improvement",
    "relative": "relative_improvement",
}


@dataclasses.dataclass(frozen=True)
class Item:
    """A question with its paths, each a list of entities and relations."""

    question: str
    paths: tuple[list[str], ...]

    def __post_init__(self) -> None:
        """Check the paths."""
        for k, path in enumerate(self.paths, start=1):
            if not isinstance(path, list) or not all(isinstance(part, str) for part in path):
                raise InputError(
                    f'field "paths", entry {k}: expected a list of strings, found {str(path)[:60]}'
                )


def read_system_prompts(path: Path) -> list[str]:
    """System prompts of a text file, one per line.

    Raises:
        InputError: the file cannot be read or holds only blank lines.
    """
    lines = [text.strip() for _, text in read_lines(path) if text.strip()]
    if not lines:
        raise InputError(f"{path}: no system prompt in it, expected one a line")
    return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(AnswerSettings, IntervalSettings):
    """Settings of `paths`."""

    boundaries = BOUNDARIES
    boundary: Literal["separate", "joint", "upstream"] = setting(
        "separate",
        help="separate: prompt and answer encoded apart (default); joint: as one text; "
        "upstream: encoded again after each token, as the published script does",
    )
    system_prompts: tuple[str, ...] = setting(
        (DEFAULT_SYSTEM_PROMPT,),
        metavar="TEXT",
        help="evaluate under each and average (default: a helpful assistant)",
        file=FileFlag(
            name="system-prompts-file",
            read=read_system_prompts,
            help="one system prompt per line, added to --system-prompts; blank lines are skipped",
        ),
    )

    def __post_init__(self) -> None:
        """Check all values; see `AnswerSettings`."""
        super().__post_init__()
        prompts = self.system_prompts
        if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
            raise InputError(f"setting system_prompts is {prompts!r}, expected at least one string")
        if self.system_prompt is not None and prompts != (DEFAULT_SYSTEM_PROMPT,):
            raise InputError(
                "system_prompt and system_prompts: both say which text stands first; give "
                "one of the two (--system, --system-prompts)"
            )

    @property
    def systems(self) -> tuple[str, ...]:
        """The system prompts that each path is evaluated under."""
        return self.system_prompts if self.system_prompt is None else (self.system_prompt,)

    def record(self) -> dict[str, Any]:
        """The settings as a report has them."""
        return super().record() | {"system_prompts": list(self.systems)}


def _improves(record: Mapping[str, Any]) -> bool:
    return record["absolute_improvement"] > 0


def _log_gain(record: Mapping[str, Any]) -> float:
    """Margin of the improvement's sign.

    The logarithm of an average of exp(mean log-probability) moves by no more than the mean
    log-probabilities do, so the margin is the difference of the averages' logarithms. In
    probabilities it would depend on the most probable answers of the audit.
    """
    without, with_path = (
        math.log(record[name]) if record[name] > 0 else -math.inf
        for name in ("baseline_prob", "retrieved_prob")
    )
    return abs(margins.gap(with_path, without))


class PathRecord(TypedDict, total=False):
    """One path of an item; `error` and nulls if it could not be scored."""

    path: list[str]
    answer: str
    baseline_prob: Annotated[float | None, Metric("probability without the path")]
    retrieved_prob: Annotated[float | None, Metric("probability with the path")]
    absolute_improvement: Annotated[
        float | None,
        Metric("absolute improvement of the probability"),
        Decision(
            "the path raises the probability",
            is_right=True,
            name="improves",
            statistic="|log(with / without)|",
            value=_improves,
            margin=_log_gain,
            within="within_noise",
        ),
    ]
    relative_improvement: Annotated[float | None, Metric("relative improvement")]
    prompt_results: list[dict[str, Any]]
    within_noise: bool
    error: str


class Record(TypedDict):
    """One entry of the output, for an item."""

    id: str | int
    question: str
    path_evaluations: list[PathRecord]


class Case(NamedTuple):
    """A path of an item that is not empty."""

    id: str | int
    question: str
    path: Sequence[str]

    @property
    def name(self) -> str:
        """What to call it in messages."""
        texts = (str(self.id), " -> ".join(self.path))
        return ": ".join(
            one_line(text[:SHOWN]) + ("…" if len(text) > SHOWN else "") for text in texts
        )


def cases_of(entries: Sequence[Entry[Item]]) -> list[list[Case]]:
    """The paths of each entry."""
    return [
        [Case(entry.id, entry.value.question, path) for path in entry.value.paths if path]
        for entry in entries
    ]


def select(entries: Sequence[Entry[Item]], settings: Settings) -> Sequence[Entry[Item]]:
    """All entries.

    Raises:
        InputError: one is unusable, or none has a path.
    """
    for entry in entries:
        if entry.error is not None:
            raise InputError(f"{entry.name}: {entry.error}")
    if not any(cases_of(entries)):
        raise InputError(
            f"found no path in the {len(entries)} items, expected at least one path that is not "
            'empty, such as "paths": [["Ada", "born in", "London"]]'
        )
    return entries


def read_example(value: Any, position: int, where: str) -> Item:
    """An example; prompts show its first path that is not empty; see `System`."""
    item: Item = read_item(SYSTEM, value, position, where)
    if not any(item.paths):
        raise InputError(f"{where}: no path that is not empty, whose last entity is the answer")
    return item


def prompts_of(question: str, path: Sequence[str]) -> tuple[str, str]:
    """The prompt without and with a path, to the letter of the published script.

    A system prompt and a line end come before it.
    """
    text = f"Question: {question} Answer:"
    return text, f"Support Path: {' -> '.join(path)}\n{text}"


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Prompts without and with a path, under each system prompt."""

    pairs: Sequence[Sequence[Prompting]]

    @classmethod
    def of(cls, prompting: Prompting, settings: Settings) -> "Prompts":
        """Prompts with examples, whose paths stand in the prompts with a path alone."""
        examples = examples_of(settings)
        return cls(
            [
                [
                    dataclasses.replace(prompting, system=system, system_end="\n", examples=own)
                    for own in examples
                ]
                for system in settings.systems
            ]
        )

    def requests(self, case: Case, separator: str | None = None) -> list[Request]:
        """For each system prompt the answer after the baseline and the retrieved prompt."""
        return [
            Request(
                case.name,
                prompting.context_of(prompt, case.question),
                prompting.continuation_of((separator or "") + case.path[-1]),
            )
            for pair in self.pairs
            for prompting, prompt in zip(pair, prompts_of(case.question, case.path), strict=True)
        ]


def examples_of(settings: Settings) -> list[tuple[Example, ...]]:
    """Examples of baseline prompts, and the same of retrieved ones, with questions as keys."""
    shots = [(item.question, next(filter(None, item.paths))) for item in settings.drawn()]
    separator = settings.answer_separator or ""
    return [
        tuple(
            Example(prompts_of(question, path)[k], separator + path[-1], question)
            for question, path in shots
        )
        for k in (0, 1)
    ]


def _answers(cases: Sequence[Case], prompts: Prompts, settings: Settings) -> Answers:
    """The answers of all paths, for scores and audits."""
    return Answers(
        what="paths",
        units=cases,
        requests=lambda case, _, separator: prompts.requests(case, separator),
        measure=lambda case, scored, _: {
            "mean improvement": path_record(case, scored, settings.systems)["absolute_improvement"]
        },
        separator=settings.answer_separator,
        why_no_blanks=settings.why_no_blanks(),
    )


def evaluate(lm: LM, entries: Sequence[Entry[Item]], settings: Settings) -> Evaluation:
    """Score each path's answer with and without the path.

    Raises:
        InputError: settings that the model cannot do.
    """
    settings.check_model(lm.capabilities)
    system = next(filter(None, settings.systems), None)
    prompting = settings.prompting(lm, examples_of(settings)[0], system=system)
    run = ScoringRun(
        lm,
        settings,
        policies=prompting.policies(BOUNDARIES),
        special_tokens=prompting.special_tokens,
        advice=ADVICE,
    )
    by_entry = cases_of(entries)
    cases = [case for own in by_entry for case in own]
    pairs = run.score_answers(_answers(cases, Prompts.of(prompting, settings), settings))
    paths = [
        path_record(case, [scored for _, scored in own], settings.systems)
        for case, own in zip(cases, pairs, strict=True)
    ]
    left = iter(paths)
    records = [
        {
            "id": entry.id,
            "question": entry.value.question,
            "path_evaluations": [next(left) for _ in own],
        }
        for entry, own in zip(entries, by_entry, strict=True)
    ]
    decisions = mark(records, run.noise, settings)
    found = merge(records, settings)
    least_gain_first = _least_gain_first(paths)
    n_left_out = prompting.n_left_out(entry.value.question for entry in entries)
    return dataclasses.replace(
        found,
        rows=[
            {name: value for name, value in path.items() if name != "prompt_results"}
            for path in found.long["paths"]
        ],
        details={
            **found.details,
            "answer_blank": run.blank,
            "boundary_audit": run.boundaries.counts("answers"),
        },
        remarks=[*remarks(n_left_out), *run.remarks],
        decisions=decisions,
        prompting=settings.facts(prompting, n_left_out),
        strips=[strips_of(pairs[place]) for place in least_gain_first],
        **run.measured(),
    )


def mark(
    records: Sequence[Mapping[str, Any]], noise: Noise | None, settings: Settings
) -> list[Decisions]:
    """Mark the paths whose improvement rounding could turn; see `System.mark`."""
    return mark_noise(
        [path for record in records for path in record["path_evaluations"]],
        PathRecord,
        noise,
        "mean_logprob",
        {"within_noise": "sign of the improvement"},
        "mean_logprob, as log(with / without)",
    )


def merge(records: Sequence[Mapping[str, Any]], settings: Settings) -> Evaluation:
    """Evaluate the items of all records as one run would; see `System.merge`."""
    paths = Paths(records)
    means, gain_by_length = summarise(records, settings.n_bootstrap, settings.seed)
    return Evaluation(
        summary=means,
        items=records,
        n_items=len(records),
        details={
            "summary": means,
            "by_length": [{"entities": n, "gain": gain} for n, gain in gain_by_length.items()],
        },
        long={"paths": Lazy(paths.least_gain_first(), paths.with_question)},
        headline=headline(means["absolute"]),
        failures=[
            Failure(Case(record["id"], record["question"], path["path"]).name, path["error"])
            for record in records
            for path in record["path_evaluations"]
            if "error" in path
        ],
        lines=averages(means),
    )


class Paths:
    """All paths of some records, one after the other."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self._records = records
        ends = itertools.accumulate(len(record["path_evaluations"]) for record in records)
        self._ends = np.fromiter(ends, np.int64)

    def with_question(self, place: int) -> dict[str, Any]:
        """A path with the id and the question of its record."""
        item = int(np.searchsorted(self._ends, place, "right"))
        record = self._records[item]
        own = record["path_evaluations"]
        path = own[place - int(self._ends[item])]  # counted from the end of its record
        return {"id": record["id"], "question": record["question"], **_with_numbers(path)}

    def least_gain_first(self) -> np.ndarray:
        """Places of the paths that were scored."""
        every = (path for record in self._records for path in record["path_evaluations"])
        return _least_gain_first(every)


def _with_numbers(path: Mapping[str, Any]) -> Mapping[str, Any]:
    """A path as `evaluate` makes it, from one of a file, whose infinities are text."""
    field = COLUMNS["relative"]
    return path if "error" in path else {**path, field: float(path[field])}


def _least_gain_first(paths: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """Places of the paths that were scored."""
    return worst_first(paths, lambda path: (path["absolute_improvement"],))


def path_record(
    case: Case, scored: Sequence[ScoredRequest], systems: Sequence[str]
) -> dict[str, Any]:
    """The record of a path.

    Args:
        scored: for each system prompt, the answer without and with the path.
    """
    record: dict[str, Any] = {"path": case.path, "answer": case.path[-1]}
    if errors := [error for result in scored if (error := _error(result)) is not None]:
        nulls = dict.fromkeys(COLUMNS.values())
        return {**record, **nulls, "prompt_results": [], "error": errors[0]}
    found = [probability(result) for result in scored]
    results = [
        {"system_prompt": system, "baseline_prob": without, "retrieved_prob": with_path}
        for system, without, with_path in zip(systems, found[::2], found[1::2], strict=True)
    ]
    baseline = math.fsum(found[::2]) / len(results)
    retrieved = math.fsum(found[1::2]) / len(results)
    gain = retrieved - baseline
    return {
        **record,
        "baseline_prob": baseline,
        "retrieved_prob": retrieved,
        "absolute_improvement": gain,
        "relative_improvement": gain / baseline if baseline > 0 else math.inf,
        "prompt_results": results,
    }


def _error(result: ScoredRequest) -> str | None:
    if result.error is None and not result.n_scored:
        return "the answer has no tokens, so it has no probability"
    return result.error


def probability(result: ScoredRequest) -> float:
    """Geometric mean of the tokens' probabilities."""
    assert result.mean_logprob is not None
    return math.exp(result.mean_logprob)


def summarise(
    records: Sequence[Mapping[str, Any]], n_bootstrap: int, seed: int
) -> tuple[dict[str, Estimate], dict[int, Estimate]]:
    """Means over the paths that were scored, with intervals that resample questions.

    Returns:
        The means of `COLUMNS`, "relative" over the paths whose baseline is above 0; and the mean
        absolute improvement by the number of entities, shortest first.
    """
    fields = tuple(COLUMNS.values())
    items, n_entities, table = array("q"), array("q"), array("d")
    for item, record in enumerate(records):
        for path in record["path_evaluations"]:
            if "error" not in path:
                items.append(item)
                n_entities.append(len(path["path"]))
                table.extend(float(path[field]) for field in fields)
    groups, lengths = np.array(items), np.array(n_entities)  # one question's are not independent
    values = np.array(table).reshape(-1, len(fields))

    def mean(name: str, part: np.ndarray) -> Estimate:
        column = values[:, fields.index(COLUMNS[name])]
        part = part & np.isfinite(column)
        return estimate(column[part], n_bootstrap, seed, groups[part])

    every = np.ones(len(groups), bool)
    return (
        {name: mean(name, every) for name in COLUMNS},
        {int(n): mean("absolute", lengths == n) for n in np.unique(lengths)},
    )


def strips_of(pairs: Sequence[Pair]) -> list[Strip]:
    """The answer's tokens without and with a path, under each system prompt."""
    strips = []
    for k, (request, scored) in enumerate(pairs):
        title = "with the path" if k % 2 else "without the path"
        if len(pairs) > 2:
            title += f", system prompt {k // 2 + 1}"
        strips.append(Strip(title, request.context, scored))
    return strips


def headline(gain: Estimate) -> str:
    """The mean absolute improvement, with its interval."""
    if gain.mean is None:
        return "no path was scored"
    return f"mean improvement of the probability {gain.mean:.4g}{gain.span()}, {gain.n} paths"


def averages(means: Mapping[str, Estimate]) -> list[str]:
    """The averages that the published script prints."""
    baseline, retrieved, absolute, relative = (means[name] for name in COLUMNS)
    if absolute.mean is None:
        return ["No path was scored"]
    lines = [
        f"Average baseline probability: {baseline.mean:.6g}",
        f"Average retrieved probability: {retrieved.mean:.6g}",
        f"Average absolute improvement: {absolute.mean:.6g}",
    ]
    if relative.mean is None:
        return [*lines, "Average relative improvement: none, every baseline is 0"]
    return [
        *lines,
        f"Average relative improvement: {relative.mean:.6g} "
        f"(over {relative.n} paths with a baseline above 0)",
    ]


SYSTEM = System(
    name="paths",
    what="items",
    help=HELP,
    item=Item,
    settings=Settings,
    record=Record,
    evaluate=evaluate,
    read_example=read_example,
    report=report,
    merge=merge,
    merge_rereads=True,
    mark=mark,
    page_only="tokens",
    is_strict=True,
    select=select,
    repeats_fields=False,
    array=ArrayOutput(is_ascii=False),
    limit_aliases=("--max-samples",),
    needs=("scores",),
    compared=(
        Compared(
            signature=("path_evaluations",),
            text=("question", "path"),
            parts="path_evaluations",
            part_name="path",
            what="paths",
            order=("absolute_improvement", "relative_improvement"),
            fixed=("boundary", "answer_separator"),
        ),
    ),
)
