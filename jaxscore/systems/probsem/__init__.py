"""ProbSem: a distribution over given queries after each context of a test suite."""

import collections
import dataclasses
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Estimate, proportion
from jaxscore.analysis.forecasts import softmax
from jaxscore.analysis.margins import Decisions
from jaxscore.errors import InputError
from jaxscore.io.json_input import json_kind
from jaxscore.lm import LM
from jaxscore.systems.audits import Answers, Pair
from jaxscore.systems.entries import Entry, read_item
from jaxscore.systems.evaluation import Evaluation, Failure, failed_records
from jaxscore.systems.probsem.report import DISABLED, report
from jaxscore.systems.probsem.suite import (
    EXPECTED,
    NO_ANSWER,
    SHOWN,
    Context,
    Suite,
    prompt_files,
    read_example,
    read_files,
    read_suite_file,
    suite_files,
)
from jaxscore.systems.prompt_settings import AnswerSettings, Example, Prompting
from jaxscore.systems.prompt_settings import remarks as remarks_on_examples
from jaxscore.systems.remarks import Remark
from jaxscore.systems.rounding_audit import Noise
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.settings import setting
from jaxscore.systems.system import ArrayOutput, Compared, Decision, Metric, System
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest, Strip

HELP = """\
How probable is each of a few queries after a context? (ProbSem)

inputs, in --input-dir:
  <prompt>.txt           the text before everything else
  <prompt>_<test>.json   {"pretext": "Answer True or False.",
                          "context": [{"text": "Tova lives in Merrow.",
                                       "expected": 0}],
                          "posttext": "The correct answer is:",
                          "queries": ["True", "False"]}
  `expected` is the index of the right query; -1 leaves a context out of the
  suite's accuracy.

text scored, without its empty parts:
  {prompt}\\n{pretext}\\n{context}\\n{posttext}\\n{query}
  --boundary upstream keeps the line ends of an empty prompt and an empty text,
  and scores the last line alone of a query with several, as published.

A query's logp is the sum of its tokens' log-probabilities (--normalize: their
mean), divided by the temperature; the scores of a context are the softmax over
its queries. A line of --fewshot is as an entry of `context`, and is shown with
its expected query.

  Without --prompt and --test, --input has suites, each with its prompt's file
  beside it or a field "prompt", and --output is NAME.json, an array of contexts
  with NAME_report.md, or FOLDER/ for several suites.

outputs, in --output-dir:
  <prompt>_<test>_<model>_results.csv    text, query, logp, score
  <prompt>_<test>_<model>_results.json   the same with token counts, verdicts
                                         and settings
  <prompt>_<test>_<model>_report.md      readable, the worst 50 contexts
  <prompt>_<test>_<model>_report.html    the same for a browser, all contexts
  <the table>.run.json                   what the result was made of and with
  A flag that changes the numbers adds a suffix after <model>, so that runs with
  different flags keep separate files: --normalize _norm, --temperature 2
  _temp2, --boundary upstream _upstream, --answer-separator X
  _separator-X, --truncate left _truncate-left,
  --limit 9 _first9, --dtype float32 _float32, --quantize int8 _int8,
  --revision X _revision-X, --lora X _lora-X, --api-base URL _endpoint,
  --apply-chat-template _chat, --system X _system-X, --fewshot X --num-fewshot 2
  _fewshot-2-seed0-X. A run with the same flags replaces its files.
  With --audit-noise a context of the JSON file also holds `within_noise`:
  whether rounding could change its verdict.

exit code: 0 all scored, 1 some contexts failed (they are listed),
           2 unusable input.
"""
# upstream is what the published script scores
BOUNDARIES: dict[str, Boundary] = {
    "joint": "exact",
    "separate": "separate",
    "upstream": "last_query",
}
ADVICE = (
    "joint, the formula of the paper: the tokens of the query alone; separate splits "
    "tokens that a text joins; upstream counts tokens too many or too few: take it to repeat "
    "published numbers alone"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(AnswerSettings):
    """Settings of `probsem`; the accuracy has Wilson's interval, which draws nothing."""

    boundaries = BOUNDARIES
    normalize: bool = setting(
        False,
        aliases=("--norm",),
        help="mean log-probability of a query's tokens instead of their sum",
    )
    temperature: float = setting(
        1.0,
        aliases=("--temp",),
        metavar="T",
        help="divides the log-probabilities; above 1 the scores come closer together (default 1)",
    )
    boundary: Literal["joint", "separate", "upstream"] = setting(
        "joint",
        help="where a query starts. joint: encoded as one text with what is before it, after the "
        "line end (default); separate: encoded apart; upstream: the last n tokens, n being what "
        "the query has alone, as the published script does",
    )

    def __post_init__(self) -> None:
        """Check all values; see `AnswerSettings`."""
        super().__post_init__()
        if not self.temperature > 0:
            raise InputError(
                f"setting temperature is {self.temperature!r}, expected a number above 0"
            )

    @property
    def statistic(self) -> str:
        """What `logp` is, before it is divided by the temperature."""
        return "mean_logprob" if self.normalize else "sum_logprob"


def _expected(record: Mapping[str, Any]) -> int:
    """The expected query of a stored record, or `NO_ANSWER`.

    Raises:
        InputError: there is no such query.
    """
    expected, n = record["expected"], len(record["queries"])
    if not NO_ANSWER <= expected < n:
        raise InputError(f"expected is {expected}, and there are {n} queries")
    return int(expected)


def _of_expected(field: str) -> Any:
    """The number of the expected query in a list of one for each; None if none is expected."""
    return lambda record: None if (k := _expected(record)) == NO_ANSWER else record[field][k]


def _best_query(record: Mapping[str, Any]) -> str:
    query: str = record["queries"][record["scores"].index(max(record["scores"]))]
    return query


def _right_from_wrong(record: Mapping[str, Any]) -> float:
    expected = _expected(record)
    return margins.right_from_wrong(
        record["logp"], [k == expected for k in range(len(record["logp"]))]
    )


def _lead(record: Mapping[str, Any]) -> float:
    return margins.lead(record["logp"])


class Record(TypedDict, total=False):
    """The result of a context; `error` in place of the numbers if a query could not be scored."""

    suite: str
    context: int
    text: str
    context_text: str
    expected: int
    queries: list[str]
    logp: Annotated[
        list[float],
        Metric(
            "log-probability of the expected query, as `logp`",
            "expected_logp",
            _of_expected("logp"),
        ),
    ]
    scores: Annotated[
        list[float],
        Metric(
            "probability of the expected query among the queries",
            "expected_score",
            _of_expected("scores"),
        ),
        Decision(
            "query with the highest score",
            name="query",
            statistic="logp",
            value=_best_query,
            margin=_lead,
            within=lambda record: (
                record.get("within_noise") if record["expected"] == NO_ANSWER else None
            ),
        ),
    ]
    n_tokens: list[int]
    passed: Annotated[
        bool | None,
        Decision(
            "the expected query has the highest score",
            is_right=True,
            statistic="logp",
            margin=_right_from_wrong,
            within="within_noise",
        ),
    ]
    within_noise: bool


def load(folder: Path, prompt: str, test: str, limit: int | None = None) -> Suite:
    """The suite of two files of a folder, see `read_files`.

    Raises:
        InputError: the files or the suite cannot be used.
    """
    path = suite_files(folder, prompt, test)[1]
    return read_suite(read_files(folder, prompt, test, limit), str(path))


def read_suite(value: Any, where: str = "suite") -> Suite:
    """A suite from an object as the JSON file has it, with the prompt's text as `prompt`.

    `prompt`, `pretext` and `posttext` may be empty, null or left out.

    Raises:
        InputError: no object; no queries, or queries that are no text; no usable context.
    """
    if not isinstance(value, dict | Suite):
        raise InputError(f"{where}: found {json_kind(value)}, expected {EXPECTED}")
    suite: Suite = read_item(SYSTEM, value, 1, where)
    return suite


def read_objects(value: Any, _: Any) -> Iterator[Entry[Suite]]:
    """The one suite of a run."""
    yield Entry("suite", 1, value if isinstance(value, Suite) else read_suite(value))


def select(entries: Sequence[Entry[Suite]], settings: Settings) -> Sequence[Entry[Suite]]:
    """The suite.

    Raises:
        InputError: an example expects a query that it does not have.
    """
    for example in settings.fewshot:
        example.check(len(entries[0].value.queries))
    return entries


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Prompts of a suite, as a run with each boundary writes them."""

    suite: Suite
    by_boundary: Mapping[str, Prompting]

    @classmethod
    def of(cls, lm: LM, suite: Suite, settings: Settings) -> "Prompts":
        """Prompts with the settings' examples."""
        by_boundary = {}
        for boundary in BOUNDARIES:
            separator = settings.answer_separator
            examples = [
                Example(
                    *suite.split(shot, suite.queries[shot.expected], boundary, separator), shot.text
                )
                for shot in settings.drawn()
            ]
            opening = f"{suite.prompt}\n" if suite.prompt or boundary == "upstream" else ""
            prompting = settings.prompting(lm, examples)
            by_boundary[boundary] = dataclasses.replace(prompting, opening=opening)
        return cls(suite, by_boundary)

    def requests(self, context: Context, boundary: str, separator: str | None) -> list[Request]:
        """Every query after a context; the suite's prompt stands before the examples."""
        prompting = self.by_boundary[boundary]
        whole: dict[str, str] = {}  # prompt -> text before the query: mostly the same of all
        requests = []
        for k, query in enumerate(self.suite.queries):
            prompt, scored = self.suite.split(context, query, boundary, separator)
            if prompt not in whole:
                whole[prompt] = prompting.context_of(prompt, context.text)
            continuation = prompting.continuation_of(scored)
            requests.append(Request(f"{context.index}.{k}", whole[prompt], continuation))
        return requests


def evaluate(lm: LM, entries: Sequence[Entry[Suite]], settings: Settings) -> Evaluation:
    """Score every query after every context.

    Raises:
        InputError: settings that the model cannot do.
    """
    settings.check_model(lm.capabilities)
    [entry] = entries
    suite = entry.value
    prompts = Prompts.of(lm, suite, settings)
    prompting = prompts.by_boundary[settings.boundary]
    run = ScoringRun(
        lm,
        settings,
        policies=prompting.policies(BOUNDARIES),
        special_tokens=prompting.special_tokens,
        advice=ADVICE,
    )
    answers = Answers(
        what="contexts",
        units=suite.contexts,
        requests=prompts.requests,
        measure=lambda context, scored, boundary: _measured(
            record_of(suite, context, scored, settings, boundary)
        ),
        separator=settings.answer_separator,
        depends_on_boundary=True,
        why_no_blanks=settings.why_no_blanks(),
        with_blank="With a blank before the query, in place of the line end,",
        statistic=settings.statistic,
    )
    pairs = run.score_answers(answers)
    named = {} if isinstance(entry.id, int) else {"suite": entry.id}
    records = [
        {**named, **record_of(suite, context, [scored for _, scored in own], settings)}
        for context, own in zip(suite.contexts, pairs, strict=True)
    ]
    decisions = mark(records, run.noise, settings)
    n_left_out = prompting.n_left_out(context.text for context in suite.contexts)
    found = merge(records, settings)
    return dataclasses.replace(
        found,
        n_items=len(suite.context),
        rows=rows_of(records),
        details={
            **found.details,
            "answer_blank": run.blank,
            "boundary_audit": run.boundaries.counts("queries"),
        },
        failures=failures_of(suite, records),
        remarks=[*remarks(suite), *remarks_on_examples(n_left_out), *run.remarks],
        decisions=decisions,
        prompting=settings.facts(prompting, n_left_out),
        strips=[strips_of(suite, own) for own in pairs],
        **run.measured(),
    )


def merge(records: Sequence[Mapping[str, Any]], settings: Settings) -> Evaluation:
    """Evaluate the contexts of all records as one run would; see `System.merge`."""
    summary = summarise(records)
    return Evaluation(
        summary=summary,
        items=records,
        n_items=len(records),
        details={
            "accuracy": summary["accuracy"],
            "n_without_answer": summary["n_without_answer"],
        },
        long={"contexts": records},
        headline=headline(**summary),
        failures=failed_records(records, lambda record: f"context {record['context']}"),
    )


def _measured(record: Mapping[str, Any]) -> dict[str, float | None]:
    """What the audits compare."""
    passed, logp = record.get("passed"), record.get("logp")
    return {
        "accuracy": None if passed is None else float(passed),
        "mean logp": None if logp is None else math.fsum(logp) / len(logp),
    }


def record_of(
    suite: Suite,
    context: Context,
    scored: Sequence[ScoredRequest],
    settings: Settings,
    boundary: str | None = None,
) -> dict[str, Any]:
    """The record of a context; `error` and no numbers if a query could not be scored.

    Args:
        scored: one for each query.
        boundary: None for the boundary of the settings.
    """
    record: dict[str, Any] = {
        "context": context.index,
        "text": suite.shown(context),
        "context_text": context.text,
        "expected": context.expected,
        "queries": list(suite.queries),
    }
    is_upstream = (boundary or settings.boundary) == "upstream"
    logp = []
    for k, result in enumerate(scored):
        total = result.sum_logprob
        if result.error or total is None:
            error = result.error or "it has no token with a probability"
            return {**record, "error": f"query {k} {suite.queries[k][:SHOWN]!r}: {error}"}
        n = result.n_tokens if is_upstream else result.n_scored
        logp.append(total / (n if settings.normalize else 1) / settings.temperature)
    scores = softmax(logp).tolist()
    # A tie for the highest passes, as it does in the published script's accuracy.
    is_known = context.expected != NO_ANSWER
    return {
        **record,
        "logp": logp,
        "scores": scores,
        "n_tokens": [result.n_tokens for result in scored],
        "passed": scores[context.expected] == max(scores) if is_known else None,
    }


def mark(
    records: Sequence[dict[str, Any]], noise: Noise | None, settings: Settings
) -> list[Decisions]:
    """Add `within_noise` to each context that was scored: could rounding change its decision?

    The decision is whether the expected query has the highest `logp`, or which query has it if
    `expected` is -1. With the boundary "upstream" a mean may be over more tokens than have a
    log-probability, and then moves by less than this assumes.
    """
    if noise is None:
        return []
    spread = noise.spread[settings.statistic].largest / settings.temperature
    good = [record for record in records if "error" not in record]
    for record in good:
        margin = (_lead if record["expected"] == NO_ANSWER else _right_from_wrong)(record)
        record["within_noise"] = margins.within(margin, spread)
    marks = [record["within_noise"] for record in good]
    statistic = f"logp ({settings.statistic} / temperature)"
    return [margins.count("which query has the highest score", statistic, spread, marks)]


def summarise(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accuracy of the contexts that were scored and expect a query, and counts of contexts.

    The accuracy is None if every context expects -1, scored or not: whether there is an accuracy
    does not depend on the length of a text.
    """
    n_scored = n_judged = 0
    passed = array("b")
    for record in records:
        is_judged, is_scored = record["expected"] != NO_ANSWER, "error" not in record
        n_judged += is_judged
        n_scored += is_scored
        if is_judged and is_scored:
            passed.append(record["passed"])
    return {
        "accuracy": proportion(np.array(passed)) if n_judged else None,
        "n_scored": n_scored,
        "n_without_answer": len(records) - n_judged,
    }


def rows_of(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One flat record per query of each context that was scored."""
    return [
        {
            "context": record["context"],
            "text": record["text"],
            "query": query,
            "expected": k == record["expected"],
            "logp": record["logp"][k],
            "score": record["scores"][k],
            "n_tokens": record["n_tokens"][k],
        }
        for record in records
        if "error" not in record
        for k, query in enumerate(record["queries"])
    ]


def failures_of(suite: Suite, records: Sequence[Mapping[str, Any]]) -> list[Failure]:
    """The contexts that could not be read, then those that could not be scored."""
    pairs = zip(suite.contexts, records, strict=True)
    failed = [Failure(context.name, record["error"]) for context, record in pairs
              if "error" in record]  # fmt: skip
    return [*suite.unusable, *failed]


def remarks(suite: Suite) -> list[str]:
    """Queries that occur more than once."""
    return [
        Remark(
            f"query {query[:SHOWN]!r}{'…' if len(query) > SHOWN else ''} occurs {count} times: "
            "each occurrence gets a share of its own",
            of_shard=True,
        )
        for query, count in collections.Counter(suite.queries).items()
        if count > 1
    ]


def strips_of(suite: Suite, pairs: Sequence[Pair]) -> list[Strip]:
    """The tokens of each query after a context."""
    return [
        Strip(query, request.context, scored)
        for query, (request, scored) in zip(suite.queries, pairs, strict=True)
    ]


def headline(accuracy: Estimate | None, n_scored: int, n_without_answer: int = 0) -> str:
    """The accuracy with its interval and what it leaves out, or why there is none."""
    if not n_scored:
        return "no context was scored"
    if accuracy is None:
        return f"{n_scored} contexts scored; {DISABLED}"
    if accuracy.mean is None:
        return f"{n_scored} contexts scored, none of those that say which query is expected"
    left_out = f"; {n_without_answer} expect -1 and are left out" if n_without_answer else ""
    return f"accuracy {accuracy.mean:.3f}{accuracy.span('.3f')}, {accuracy.n} contexts{left_out}"


SYSTEM = System(
    name="probsem",
    what="contexts",
    help=HELP,
    item=Suite,
    settings=Settings,
    record=Record,
    evaluate=evaluate,
    read_rows=read_suite_file,
    file_forms=(".json",),
    beside=prompt_files,
    array=ArrayOutput(is_ascii=False),
    merge=merge,
    merge_rereads=True,
    mark=mark,
    page_only="tokens",
    read_objects=read_objects,
    read_example=read_example,
    select=select,
    report=report,
    needs=("scores",),
    compared=(
        Compared(
            signature=("queries",),
            list_in="contexts",
            file="…_results.json",
            id=(),
            name=lambda record, _: (
                f"context {record.get('context')}: {record.get('context_text', record['text'])}"
            ),
            text=lambda record: (record["text"], record["queries"], _expected(record)),
            n_tokens="n_tokens",
            order=("expected_score",),
            fixed=("boundary", "answer_separator", "normalize", "temperature"),
        ),
    ),
)
