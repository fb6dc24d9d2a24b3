"""Path Evaluation: does a support path make the answer of a question more probable?

For each path of a question its last entity is the answer. Its probability is the geometric mean
of its tokens' probabilities, with and without the path in the prompt, averaged over system
prompts.
"""

import dataclasses
import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypedDict

import numpy as np

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Estimate, estimate
from jaxscore.errors import InputError, one_line
from jaxscore.io.json_input import read_lines
from jaxscore.io.json_output import Lazy
from jaxscore.report.counts import counted
from jaxscore.report.document import Document
from jaxscore.report.html.strips import NUMBERS
from jaxscore.report.sections import context_end
from jaxscore.shell.fields import PAIRED, Decision, Metric, Result
from jaxscore.shell.flags import file_flag, flag
from jaxscore.shell.items import SHOWN, Items
from jaxscore.shell.prompts import AnswerSettings, Example, ExampleItem, Prompting
from jaxscore.shell.report import Report
from jaxscore.shell.settings import IntervalSettings
from jaxscore.shell.system import PAGE, Layout, Summary, System
from jaxscore.systems.paths.report import report
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest, Strip

DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful assistant that answers questions accurately based on the given information."
)
# name of a mean -> its field in a path's record
COLUMNS = {
    "baseline": "baseline_prob",
    "retrieved": "retrieved_prob",
    "absolute": "absolute_improvement",
    "relative": "relative_improvement",
}


@dataclasses.dataclass(frozen=True)
class Item(ExampleItem):
    """A question with its paths, each a list of entities and relations."""

    question: str
    paths: tuple[list[str], ...]

    def __post_init__(self) -> None:
        """Check the paths."""
        for k, path in enumerate(self.paths, start=1):
            if not isinstance(path, list) or not all(isinstance(entity, str) for entity in path):
                raise InputError(
                    f'field "paths", entry {k}: expected a list of strings, found {str(path)[:60]}'
                )

    def check_example(self) -> None:
        """Check that there is a path to show, the first one that is not empty."""
        if not any(self.paths):
            raise InputError("no path that is not empty, whose last entity is the answer")


def read_system_prompts(path: Path) -> list[str]:
    """Return the system prompts of a text file, one per line.

    Raises:
        InputError: the file cannot be read or has only empty lines.
    """
    lines = [text.strip() for _, text in read_lines(path) if text.strip()]
    if not lines:
        raise InputError(f"{path}: no system prompt in it, expected one a line")
    return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(AnswerSettings, IntervalSettings):
    """Settings of `paths`."""

    # upstream is what the published script scores
    boundaries: ClassVar[Mapping[str, str]] = {
        "separate": "separate",
        "joint": "joint",
        "upstream": "reencoded",
    }
    advice: ClassVar[str] = (
        "separate, the formula of the paper: the answer's ids after the prompt's; joint reads both "
        "as one text; take upstream to repeat numbers of the published script, which encodes the "
        "text again after each token"
    )
    boundary: Literal["separate", "joint", "upstream"] = flag(
        "separate",
        help="separate: prompt and answer encoded apart (default); joint: as one text; "
        "upstream: encoded again after each token, as the published script does",
    )
    system_prompts: tuple[str, ...] = flag(
        (DEFAULT_SYSTEM_PROMPT,),
        metavar="TEXT",
        help="evaluate under each and average (default: a helpful assistant)",
        also=(
            file_flag(
                "--system-prompts-file",
                read_system_prompts,
                "one system prompt per line, added to --system-prompts; blank lines are skipped",
            ),
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
        """Return the settings for a report."""
        return super().record() | {"system_prompts": list(self.systems)}


def _improves(record: Mapping[str, Any]) -> bool:
    return record["absolute_improvement"] > 0


def _log_gain(record: Mapping[str, Any]) -> float:
    """Return the margin of the improvement's sign.

    The margin is the difference of the averages' logarithms, since the logarithm of an average of
    exp(mean log-probability) moves by no more than the mean log-probabilities. In probabilities it
    would depend on the most probable answers of the audit.
    """
    without, with_path = (
        math.log(record[name]) if record[name] > 0 else -math.inf
        for name in ("baseline_prob", "retrieved_prob")
    )
    return abs(margins.gap(with_path, without))


class PathRecord(TypedDict, total=False):
    """A path of an item; `error` and nulls if it could not be scored."""

    path: Annotated[list[str], PAIRED]
    answer: str
    baseline_prob: Annotated[float | None, Metric("probability without the path")]
    retrieved_prob: Annotated[float | None, Metric("probability with the path")]
    absolute_improvement: Annotated[
        float | None,
        Metric("absolute improvement of the probability", is_main=True),
        Decision(
            "the path raises the probability",
            is_right=True,
            name="improves",
            statistic="|log(with / without)|",
            value=_improves,
            margin=_log_gain,
            within="within_noise",
            spread="mean_logprob",
        ),
        Result("mean improvement"),
    ]
    relative_improvement: Annotated[float | None, Metric("relative improvement", is_main=True)]
    prompt_results: list[dict[str, Any]]
    within_noise: bool
    error: str


class Record(TypedDict):
    """An entry of the output, for an item."""

    id: str | int
    question: Annotated[str, PAIRED]
    path_evaluations: list[PathRecord]


class Paths(System):
    """Compute how much a support path raises the probability of the answer, its last
    entity.

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

    The answer follows without a space, as published. A sample is scored with one
    too; if it raises most answers, the output says so first (--answer-separator).

    A probability is exp(mean log-probability of the answer's tokens), averaged over
    system prompts.

    output, as the published script writes it:
      for each path baseline_prob, retrieved_prob, absolute_improvement,
      relative_improvement ("Infinity" where the baseline is 0) and the results of
      each system prompt. With --audit-noise also `within_noise`: whether rounding
      could change the sign of the improvement.
      Next to OUT.json are a readable report, OUT_report.md, and its data,
      OUT_report.json: means with bootstrap intervals, by length of path, settings;
      and OUT_report.html, the same for a browser with charts, the paths with the
      least gain first and colored tokens. For an OUT of another name these are
      OUT.report.md and so on.

    exit code: 0 all scored, 1 some paths failed (they hold `error`),
               2 unusable input, or no path in it.
    """

    name = "paths"
    item, settings, record = Item, Settings, Record
    parts = "path_evaluations"
    layout = Layout(is_ascii=False, repeats=False)

    def check(self, items: Items, settings: Settings) -> None:
        """Refuse an unusable item, and items without a path."""
        items.require_usable(all_of_them=True)
        if not any(path for item in items for path in item.paths):
            raise InputError(
                f"found no path in {counted(len(items), 'items')}, expected at least one path that "
                'is not empty, such as "paths": [["Ada", "born in", "London"]]'
            )

    def score(self, lm: Any, items: Sequence[Item], settings: Settings) -> Iterator[dict[str, Any]]:
        """Score each path's answer without and with the path, under each system prompt.

        Raises:
            InputError: the model does not support a setting.
        """
        settings.check_model(lm.capabilities)
        examples = examples_of(settings)
        system = next(filter(None, settings.systems), None)
        prompting = settings.prompting(lm, examples[0], system=system)
        settings.note(lm, prompting, (item.question for item in items) if examples[0] else ())
        pairs = prompt_pairs(prompting, examples, settings)
        waiting: deque[Request] = deque()  # requests without a result

        def requests() -> Iterator[Request]:
            for item in items:
                for path in filter(None, item.paths):
                    for request in requests_of(pairs, item.question, path, settings):
                        waiting.append(request)
                        yield request

        n = 2 * len(pairs)
        n_requests = n * sum(bool(path) for item in items for path in item.paths)
        results = lm.stream(requests(), n_requests=n_requests, **settings.options())
        for item in items:
            scored = [(path, list(islice(results, n))) for path in filter(None, item.paths)]
            yield {
                "question": item.question,
                "path_evaluations": [
                    path_record(path, answers, settings.systems) for path, answers in scored
                ],
                PAGE: {
                    "answers": [
                        [_tokens(waiting.popleft(), answer) for answer in answers]
                        for _, answers in scored
                    ]
                },
            }
        next(results, None)  # ends the measured time

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
        """Return means of the probabilities and of the gain, also by the number of entities."""
        means, gain_by_length = summarise(records, settings.n_bootstrap, settings.seed)
        return Summary(
            headline=headline(means["absolute"]),
            numbers=means,
            details={
                "by_length": [{"entities": n, "gain": gain} for n, gain in gain_by_length.items()]
            },
            failures=[
                (name_of(record["id"], path["path"]), path["error"])
                for record in records
                for path in record["path_evaluations"]
                if "error" in path
            ],
            lines=averages(means),
        )

    def rows(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a row for each path, with the path as text."""
        return [{**row, "path": " -> ".join(row["path"])} for row in super().rows(record)]

    def report(self, run: Report) -> Document:
        """Return the report, paths with the least gain first; see `paths.report`."""
        positions, gains = array("q"), array("d")  # of the scored paths
        for k, record in enumerate(run.records):
            for j, path in enumerate(record["path_evaluations"]):
                if "error" not in path:
                    positions.extend((k, j))
                    gains.append(path["absolute_improvement"])
        order = np.array(positions, np.int64).reshape(-1, 2)[
            np.argsort(np.array(gains), kind="stable")
        ]

        def path_at(n: int) -> dict[str, Any]:
            k, j = order[n].tolist()
            record = run.records[k]
            return {"id": record["id"], "question": record["question"], **record[self.parts][j]}

        def strips_at(n: int) -> list[Strip]:
            k, j = order[n].tolist()
            return strips_of(run.records.extra(k)["answers"][j])

        indices = range(len(order))
        strips = Lazy(indices, strips_at) if run.records.has_extras else ()
        return report(run.source(paths=Lazy(indices, path_at), strips=strips))


SYSTEM = Paths()


def name_of(id: str | int, path: Sequence[str]) -> str:
    """Return the name of a path in messages."""
    return ": ".join(
        one_line(text[:SHOWN]) + ("…" if len(text) > SHOWN else "")
        for text in (str(id), " -> ".join(path))
    )


def prompt_pairs(
    prompting: Prompting, examples: Sequence[tuple[Example, ...]], settings: Settings
) -> list[list[Prompting]]:
    """Return prompts without and with a path, under each system prompt.

    Args:
        examples: the examples for both, see `examples_of`.
    """
    return [
        [
            dataclasses.replace(prompting, system=system, system_end="\n", examples=shown)
            for shown in examples
        ]
        for system in settings.systems
    ]


def requests_of(
    pairs: Sequence[Sequence[Prompting]], question: str, path: Sequence[str], settings: Settings
) -> Iterator[Request]:
    """Yield, for each system prompt, the answer after the baseline and the retrieved prompt."""
    answer = (settings.answer_separator or "") + path[-1]
    for pair in pairs:
        for prompting, prompt in zip(pair, prompts_of(question, path), strict=True):
            context = prompting.context_of(prompt, question)
            yield Request("", context, prompting.continuation_of(answer))


def prompts_of(question: str, path: Sequence[str]) -> tuple[str, str]:
    """Return the prompt without and with a path, identical to the published script's.

    A system prompt and a newline come before it.
    """
    text = f"Question: {question} Answer:"
    return text, f"Support Path: {' -> '.join(path)}\n{text}"


def examples_of(settings: Settings) -> list[tuple[Example, ...]]:
    """Return the examples for baseline prompts and for retrieved ones, with questions as keys."""
    shots = [(item.question, next(filter(None, item.paths))) for item in settings.drawn()]
    separator = settings.answer_separator or ""
    return [
        tuple(
            Example(prompts_of(question, path)[k], separator + path[-1], question)
            for question, path in shots
        )
        for k in (0, 1)
    ]


def path_record(
    path: Sequence[str], scored: Sequence[ScoredRequest], systems: Sequence[str]
) -> dict[str, Any]:
    """Return the record of a path.

    Args:
        scored: the scores of the answer without and with the path, for each system prompt.
    """
    record: dict[str, Any] = {"path": list(path), "answer": path[-1]}
    if errors := [error for result in scored if (error := _error(result)) is not None]:
        nulls = dict.fromkeys(COLUMNS.values())
        return {**record, **nulls, "prompt_results": [], "error": errors[0]}
    values = [probability(result) for result in scored]
    results = [
        {"system_prompt": system, "baseline_prob": without, "retrieved_prob": with_path}
        for system, without, with_path in zip(systems, values[::2], values[1::2], strict=True)
    ]
    baseline = math.fsum(values[::2]) / len(results)
    retrieved = math.fsum(values[1::2]) / len(results)
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
        return "the answer has 0 tokens, so its probability is undefined"
    return result.error


def probability(result: ScoredRequest) -> float:
    """Return the geometric mean of the tokens' probabilities."""
    assert result.mean_logprob is not None
    return math.exp(result.mean_logprob)


def summarise(
    records: Sequence[Mapping[str, Any]], n_bootstrap: int, seed: int
) -> tuple[dict[str, Estimate], dict[int, Estimate]]:
    """Return means over the paths that were scored, with intervals that resample questions.

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
    # Resample questions, since the paths of a question are not independent.
    groups, lengths = np.array(items), np.array(n_entities)
    values = np.array(table).reshape(-1, len(fields))

    def mean(name: str, mask: np.ndarray) -> Estimate:
        column = values[:, fields.index(COLUMNS[name])]
        mask = mask & np.isfinite(column)
        return estimate(column[mask], n_bootstrap, seed, groups[mask])

    all_paths = np.ones(len(groups), bool)
    return (
        {name: mean(name, all_paths) for name in COLUMNS},
        {int(n): mean("absolute", lengths == n) for n in np.unique(lengths)},
    )


def _tokens(request: Request, scored: ScoredRequest) -> dict[str, Any]:
    """Return the facts of an answer for the page, as JSON."""
    return {
        "context": context_end(request.context),
        "token_ids": scored.token_ids,
        "tokens": scored.tokens,
        "logprob": scored.logprob,
        "entropy": scored.entropy,
        "self_certainty": scored.self_certainty,
        "greedy": scored.greedy.tolist(),  # None where an endpoint does not report it
    }


def strips_of(answers: Sequence[Mapping[str, Any]]) -> list[Strip]:
    """Return the answer's tokens without and with a path, under each system prompt.

    Args:
        answers: `_tokens` of each.
    """
    strips = []
    for k, answer in enumerate(answers):
        title = "with the path" if k % 2 else "without the path"
        if len(answers) > 2:
            title += f", system prompt {k // 2 + 1}"
        numbers: Any = {name: np.array(answer[name], np.float32) for name in NUMBERS}
        ids = np.array(answer["token_ids"], np.int32)
        greedy = np.array(answer["greedy"], object)
        scored = ScoredRequest("", ids, answer["tokens"], **numbers, greedy=greedy)
        strips.append(Strip(title, answer["context"], scored))
    return strips


def headline(gain: Estimate) -> str:
    """Return the mean absolute improvement with its interval as text."""
    if gain.mean is None:
        return "no path was scored"
    n = counted(gain.n, "paths")
    return f"mean improvement of the probability {gain.mean:.4g}{gain.span()}, {n}"


def averages(means: Mapping[str, Estimate]) -> list[str]:
    """Return the averages that the published script prints."""
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
        f"(over {counted(relative.n, 'paths')} with a baseline above 0)",
    ]
