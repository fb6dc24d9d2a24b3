"""ProbSem: a distribution over given queries after each context of a test suite."""

import collections
import dataclasses
import itertools
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Estimate, proportion
from jaxscore.analysis.forecasts import softmax
from jaxscore.errors import InputError
from jaxscore.io.items import NOTHING, Row
from jaxscore.report.counts import counted
from jaxscore.report.document import Document
from jaxscore.shell.fields import PAIRED, Decision, Metric, Result
from jaxscore.shell.flags import flag
from jaxscore.shell.items import Items
from jaxscore.shell.prompts import AnswerSettings, Example, Prompting
from jaxscore.shell.report import Report
from jaxscore.shell.system import PAGE, SHOWN, Layout, Rewritten, Summary, System, failed
from jaxscore.systems.probsem.report import DISABLED, report
from jaxscore.systems.probsem.suite import NO_ANSWER, Context, read_suite, read_suite_file
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest, Strip

# upstream is what the published script scores
BOUNDARIES: dict[str, Boundary] = {
    "joint": "exact",
    "separate": "separate",
    "upstream": "last_query",
}
ADVICE = (
    "joint, the formula of the paper: the tokens of the query alone; separate splits tokens that "
    "a text joins; upstream counts too many or too few tokens: take it only to repeat published "
    "numbers"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(AnswerSettings):
    """Settings of `probsem`; the accuracy has Wilson's interval, which draws nothing."""

    boundaries = BOUNDARIES
    advice = ADVICE
    fixed = (*AnswerSettings.fixed, "normalize", "temperature")
    normalize: bool = flag(
        False,
        "--norm",
        help="mean log-probability of a query's tokens instead of their sum",
    )
    temperature: float = flag(
        1.0,
        "--temp",
        metavar="T",
        help="divides the log-probabilities; above 1 the scores come closer together (default 1)",
    )
    boundary: Literal["joint", "separate", "upstream"] = flag(
        "joint",
        help="where a query starts. joint: encoded as one text with what is before it, after the "
        "newline (default); separate: encoded apart; upstream: the last n tokens, n being what "
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
        """The measure that is divided by the temperature to get `logp`."""
        return "mean_logprob" if self.normalize else "sum_logprob"


def _expected(record: Mapping[str, Any]) -> int:
    """Return the index of a stored record's expected query, or `NO_ANSWER`.

    Raises:
        InputError: there is no such query.
    """
    expected, n = record["expected"], len(record["queries"])
    if not NO_ANSWER <= expected < n:
        raise InputError(f"expected is {expected}, and there are {n} queries")
    return int(expected)


def _of_expected(field: str) -> Any:
    """Return a function of a record: the field's value for the expected query, or None."""
    return lambda record: None if (k := _expected(record)) == NO_ANSWER else record[field][k]


def _best_query(record: Mapping[str, Any]) -> str:
    query: str = record["queries"][record["scores"].index(max(record["scores"]))]
    return query


def _logp(record: Mapping[str, Any]) -> list[float]:
    """Return the log-probabilities of a stored record, which has infinities as text."""
    return [float(value) for value in record["logp"]]


def _lead(record: Mapping[str, Any]) -> float:
    return margins.lead(_logp(record))


def _verdict_margin(record: Mapping[str, Any]) -> float:
    """Return the lead of the expected query over the others, or else that of the best query."""
    expected = _expected(record)
    if expected == NO_ANSWER:
        return _lead(record)
    is_right = [k == expected for k in range(len(record["logp"]))]
    return margins.right_from_wrong(_logp(record), is_right)


def _spread(largest: Mapping[str, float], settings: Settings) -> float:
    """Return the spread of `logp`.

    With the boundary "upstream" a mean may be over more tokens than have a log-probability; this
    is then an upper bound.
    """
    return largest[settings.statistic] / settings.temperature


class Record(TypedDict, total=False):
    """The result of a context; `error` in place of the numbers if a query could not be scored."""

    context: int | str
    context_text: Annotated[str, PAIRED]
    text: Annotated[str, PAIRED]
    # Not on `passed`, which is null if no query is expected; `within_noise` is then about the
    # best query.
    expected: Annotated[
        int,
        PAIRED,
        Decision(
            "the expected query has the highest score",
            name="passed",
            is_right=True,
            statistic="logp",
            value=lambda record: record.get("passed"),
            margin=_verdict_margin,
            within="within_noise",
            spread=_spread,
        ),
    ]
    queries: Annotated[list[str], PAIRED]
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
            is_main=True,
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
    passed: Annotated[bool | None, Result("accuracy")]
    within_noise: bool


def prompting_of(lm: Any, suite: Context, settings: Settings) -> Prompting:
    """Return the prompting for all contexts of a suite.

    Args:
        suite: any context of the suite.
    """
    boundary, separator = settings.boundary, settings.answer_separator
    examples = [
        Example(
            *suite.split(shot.text, suite.queries[shot.expected], boundary, separator), shot.text
        )
        for shot in settings.drawn()
    ]
    opening = f"{suite.prompt}\n" if suite.prompt or boundary == "upstream" else ""
    return dataclasses.replace(settings.prompting(lm, examples), opening=opening)


def requests_of(context: Context, prompting: Prompting, settings: Settings) -> list[Request]:
    """Return every query after a context; the suite's prompt precedes the examples."""
    contexts: dict[str, str] = {}  # prompt -> text before the query, usually equal for all
    requests = []
    for k, query in enumerate(context.queries):
        prompt, scored = context.split(
            context.text, query, settings.boundary, settings.answer_separator
        )
        if prompt not in contexts:
            contexts[prompt] = prompting.context_of(prompt, context.text)
        requests.append(Request(str(k), contexts[prompt], prompting.continuation_of(scored)))
    return requests


def record_of(
    context: Context, scored: Sequence[ScoredRequest], settings: Settings
) -> dict[str, Any]:
    """Return the record of a context without its number; `error` if a query could not be scored.

    Args:
        scored: the result of each query.
    """
    record: dict[str, Any] = {
        "text": context.shown(context.text),
        "context_text": context.text,
        "expected": context.expected,
        "queries": list(context.queries),
    }
    logp = []
    for k, result in enumerate(scored):
        total = result.sum_logprob
        if result.error or total is None:
            error = result.error or "none of its tokens has a probability"
            return {**record, "error": f"query {k} {context.queries[k][:SHOWN]!r}: {error}"}
        n = result.n_tokens if settings.boundary == "upstream" else result.n_scored
        logp.append(total / (n if settings.normalize else 1) / settings.temperature)
    scores = softmax(logp).tolist()
    # A tie for the highest score passes, as in the published script's accuracy.
    is_known = context.expected != NO_ANSWER
    return {
        **record,
        "logp": logp,
        "scores": scores,
        "n_tokens": [result.n_tokens for result in scored],
        "passed": scores[context.expected] == max(scores) if is_known else None,
    }


def summarise(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the accuracy over scored contexts that expect a query, and counts of contexts.

    The accuracy is None only if every context expects -1, so its presence does not depend on texts
    that are too long to be scored.
    """
    n_scored = n_judged = n_without_answer = 0
    passed = array("b")
    for record in records:
        if "expected" not in record:  # unusable
            continue
        is_judged, is_scored = record["expected"] != NO_ANSWER, "error" not in record
        n_judged += is_judged
        n_without_answer += not is_judged
        n_scored += is_scored
        if is_judged and is_scored:
            passed.append(record["passed"])
    return {
        "accuracy": proportion(np.array(passed)) if n_judged else None,
        "n_scored": n_scored,
        "n_without_answer": n_without_answer,
    }


def repeated_queries(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return warnings about repeated queries of a suite."""
    suites = dict.fromkeys(tuple(record["queries"]) for record in records if "queries" in record)
    return [
        f"query {query[:SHOWN]!r}{'…' if len(query) > SHOWN else ''} occurs {count} times: "
        "each occurrence gets a separate share"
        for queries in suites
        for query, count in collections.Counter(queries).items()
        if count > 1
    ]


def headline(accuracy: Estimate | None, n_scored: int, n_without_answer: int = 0) -> str:
    """Return the accuracy with its interval and omissions, or the reason why it is undefined."""
    if not n_scored:
        return "no context was scored"
    if accuracy is None:
        return f"{counted(n_scored, 'contexts')} scored; {DISABLED}"
    if accuracy.mean is None:
        scored = counted(n_scored, "contexts")
        return f"{scored} scored, none of those with an expected query"
    left_out = f"; {n_without_answer} expect -1 and are left out" if n_without_answer else ""
    n = counted(accuracy.n, "contexts")
    return f"accuracy {accuracy.mean:.3f}{accuracy.span('.3f')}, {n}{left_out}"


class ProbSem(System):
    """Compute the probability of each of a few queries after a context (ProbSem).

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
      --boundary upstream keeps the newlines of an empty prompt and an empty text,
      and of a query of several lines scores only the last one, as published.

    A query's logp is the sum of its tokens' log-probabilities (--normalize: their
    mean), divided by the temperature; the scores of a context are the softmax over
    its queries. A line of --fewshot has the fields of an entry of `context`, and
    is shown with its expected query.

      Without --prompt and --test, --input has suites, each with its prompt's file
      next to it or a field "prompt". --output is then NAME.json, an array of
      contexts with NAME_report.md, or FOLDER/ for several suites.

    outputs, in --output-dir:
      <prompt>_<test>_<model>_results.csv    text, query, logp, score
      <prompt>_<test>_<model>_results.json   the same with token counts, verdicts
                                             and settings
      <prompt>_<test>_<model>_report.md      readable, the worst 50 contexts
      <prompt>_<test>_<model>_report.html    the same for a browser, all contexts
      <the table>.run.json                   how the result was made
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

    name = "probsem"
    what = "contexts"
    item, settings, record = Context, Settings, Record
    layout = Layout(is_ascii=False, repeats=False)

    def read(
        self, source: Any, columns: Mapping[str, str] = NOTHING, lists: Sequence[str] = ()
    ) -> Iterator[Row]:
        """Read the contexts of a suite, or of its file with its prompt."""
        is_file = isinstance(source, Path)
        return (read_suite_file(source) if is_file else read_suite(source)).rows()

    def check(self, items: Items, settings: Settings) -> None:
        """See `System.check`.

        Raises:
            InputError: no context is usable, or an example expects a query that the suite lacks.
        """
        super().check(items, settings)
        n_queries = len(next(iter(items)).queries)
        for k, example in enumerate(settings.fewshot, start=1):
            try:
                example.check(n_queries)
            except InputError as problem:
                raise InputError(f"few-shot example {k}: {problem}") from None

    def score(
        self, lm: Any, items: Sequence[Context], settings: Settings
    ) -> Iterator[dict[str, Any]]:
        """Score every query after every context."""
        settings.check_model(lm.capabilities)
        first = next(iter(items), None)
        if first is None:
            return
        # Boundaries with a different text for some suites, see `Context.split`.
        is_upstream = settings.boundary == "upstream"
        names = tuple(name for name in BOUNDARIES if (name == "upstream") != is_upstream)
        other = dataclasses.replace(settings, boundary="joint" if is_upstream else "upstream")
        prompting, other_prompting = (prompting_of(lm, first, each) for each in (settings, other))
        settings.note(lm, prompting, (context.text for context in items))
        pending: deque[list[Request]] = deque()  # of contexts without a record

        def requests() -> Iterator[Request]:
            for context in items:
                queries = requests_of(context, prompting, settings)
                others = requests_of(context, other_prompting, other)
                for k, request in enumerate(queries):
                    if request != others[k]:
                        texts = request.context, request.continuation
                        queries[k] = Rewritten(request.id, *texts, boundaries=names)
                pending.append(queries)
                yield from queries

        n = len(items) * len(first.queries)
        results = lm.stream(requests(), n_requests=n, **settings.options())
        for context in items:
            scored = list(itertools.islice(results, len(context.queries)))
            parts = zip(context.queries, pending.popleft(), scored, strict=True)
            strips = [
                Strip(query, request.context, result).to_page() for query, request, result in parts
            ]
            yield {**record_of(context, scored, settings), PAGE: {"strips": strips}}
        next(results, None)  # ends the measured time

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
        """Return the accuracy over the contexts that expect a query."""
        numbers = summarise(records)
        return Summary(
            headline=headline(**numbers),
            numbers=numbers,
            details={name: numbers[name] for name in ("accuracy", "n_without_answer")},
            failures=failed(records, "context"),
            warnings=repeated_queries(records),
        )

    def rows(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a row for each query of a context that was scored."""
        if "error" in record:
            return []
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
            for k, query in enumerate(record["queries"])
        ]

    def report(self, run: Report) -> Document:
        """Return the report, failed contexts first; see `probsem.report`."""
        return report(run.source(items=run.records, strips=run.strips()))


SYSTEM = ProbSem()
