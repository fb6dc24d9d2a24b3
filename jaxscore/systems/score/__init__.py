"""Log-probability, entropy and self-certainty of each token of a text, in bounded memory."""

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypedDict

import numpy as np

from jaxscore.errors import InputError, one_line
from jaxscore.lm import Capabilities
from jaxscore.systems.entries import SHOWN, Entry, read_entry, read_item, taken_field
from jaxscore.systems.evaluation import Evaluation, Failure, failed_records
from jaxscore.systems.prompt_settings import PLAIN, Example, Prompting, PromptSettings, remarks
from jaxscore.systems.score.measures import MeasuredFields, MeasureFields, MeasureSettings
from jaxscore.systems.score.report import WorstRequests, report
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.settings import TextSettings, setting
from jaxscore.systems.system import Compared, Metric, PerToken, System
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import FIELDS, Request, Unusable, items_of, parse_request
from jaxscore.types.results import ScoredRequest, failed

HELP = """\
Score the continuation of each line under a causal language model.

input, one object per line:
  {"id": "a", "context": "The capital of Norway is", "continuation": " Oslo"}
  `context` may be left out; `id` defaults to the line's number. A blank between
  the two belongs to the continuation. A JSON array, .csv, .tsv, .parquet or a
  folder of datasets' save_to_disk holds the same; --column continuation=answer
  reads the field from the column `answer`.

output, in the same order, numbers in nats:
  id, token_ids, tokens, logprob[], entropy[], self_certainty[], greedy[],
  sum_logprob, mean_logprob, perplexity, mean_entropy, mean_self_certainty,
  n_tokens, n_scored
  Arrays align with the continuation's tokens; a token with nothing before it
  has null. Other fields of an input line are repeated in its output line.
  An OUT that ends in .csv, .tsv or .parquet (pip install pyarrow) is a table
  with these columns: `id` is text, and `extra` has the other fields as JSON
  text, as in .csv and .tsv arrays are. A .parquet made from a .parquet or a
  folder of datasets has the columns of the input instead, with their types.
  --measures adds fields of these names, nats where they have a unit:
    rank[], varentropy[], renyi2[]       of each token's distribution
    top_k                                as top_id[], top_logprob[], top_token[]
    min_k, min_k_pp, fast_detect         one number per text
  --unit word adds words[] and word_surprisal[], in bits.
  With --api-base what a server does not return is null: token_ids, entropy,
  self_certainty and their means, and `greedy` of a server that lists nothing.
  Beside OUT lie OUT.run.json: what made it, and how many requests failed; and
  OUT.report.html, a page for a browser: charts, and the requests with coloured
  tokens, least probable first (at most 50,000 of them).
  --audit-noise says there, and on stdout, how far rounding moves the numbers.

exit code: 0 all scored, 1 some requests failed (their lines hold `error`),
           2 unusable input.
"""
BOUNDARIES: dict[str, Boundary] = {"joint": "joint", "separate": "separate"}
BLANK = (
    "its context is blank, so the empty line after system prompt and examples would count to its "
    "continuation; give it a context, or take boundary separate, or apply the chat template"
)
# What an endpoint does not give; the numbers of its other fields are those of a local model.
UNKNOWN = frozenset("token_ids entropy self_certainty mean_entropy mean_self_certainty".split())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A text to score, and what stands before it."""

    context: str = ""
    continuation: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(TextSettings, PromptSettings, MeasureSettings):
    """Settings of `score`, see also `MeasureSettings` and `PromptSettings`."""

    boundaries = BOUNDARIES
    audit_boundary: bool = setting(True, is_flag=False)
    """Count the requests that the other boundary would change."""

    def check_model(self, can: Capabilities) -> None:
        """Refuse what a model cannot do.

        Raises:
            InputError: naming the setting.
        """
        super().check_model(can)
        if self.added_fields and not can.has_distribution:
            raise InputError(
                f"{', '.join(sorted(self.added_fields))}: an endpoint does not give what they are "
                "computed from; take a local model, or leave measures and unit out"
            )
        if can.vocab_size is not None and "top_k" in self.measures and self.top_k > can.vocab_size:
            raise InputError(
                f"setting top_k is {self.top_k}, but the model has a vocabulary of "
                f"{can.vocab_size}; give a smaller one"
            )


class ScoreFields(TypedDict, total=False):
    """Fields of every scored text; nats."""

    id: str | int
    token_ids: PerToken[np.int32]
    tokens: PerToken[str]
    logprob: PerToken[np.float32]
    entropy: PerToken[np.float32]
    self_certainty: PerToken[np.float32]
    greedy: PerToken[bool]
    sum_logprob: Annotated[float, Metric("log-probability of a text, nats")]
    mean_logprob: Annotated[float, Metric("mean log-probability of a text, nats per token")]
    perplexity: float
    mean_entropy: Annotated[float, Metric("mean entropy, nats per token")]
    mean_self_certainty: Annotated[float, Metric("mean self-certainty, nats per token")]
    n_tokens: int
    n_scored: int
    truncated: int


class Record(ScoreFields, MeasureFields, total=False):
    """One output line, with the fields of the measures that were requested."""


def evaluate(
    lm: Any,
    entries: Iterable[Entry[Item]],
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
    page_items: WorstRequests | None = None,
) -> Evaluation:
    """Score each text.

    Args:
        lm: an `LM` that scores. Fields that it does not report are None.
        on_item, page_items: see `System`.

    Raises:
        InputError: settings that the model cannot do.
    """
    can = lm.capabilities
    settings.check_model(can)
    examples = [Example(shot.context, shot.continuation, _key(shot)) for shot in settings.drawn()]
    prompting = settings.prompting(lm, examples)
    run = ScoringRun(
        lm,
        settings,
        policies=prompting.policies(BOUNDARIES),
        special_tokens=prompting.special_tokens,
        audit_boundary=settings.audit_boundary,
    )
    tokenizer = lm.encoder.tokenizer if can.is_local else None
    measured = MeasuredFields(settings, tokenizer, summary_only=settings.summary_only)
    prompts = _Prompts(prompting, run.policy)
    totals, failures, records = _Totals(), [], []
    scored = scored_entries(
        run, entries, prompts.request, settings.n_requests, **measured.requested
    )
    unknown = () if can.has_distribution else UNKNOWN
    for entry, record in _records(scored, settings, measured, unknown):
        totals.add(record)
        if "error" in record:
            failures.append(Failure(entry.name, record["error"]))
        if page_items is not None:
            page_items.add(record, entry.item.context if entry.item else "")
        if on_item is None:
            records.append(as_lists(record))
        else:
            on_item(record)
    summary = totals.summary()
    return Evaluation(
        summary=summary,
        items=records,
        n_items=totals.n_requests,
        rows=records,
        details={"summary": summary, "boundary_audit": run.boundaries.counts("requests")},
        long={"items": records},
        headline=totals.headline(),
        failures=failures,
        remarks=[*remarks(prompts.n_left_out), *measured.remarks()],
        prompting=settings.facts(prompting, prompts.n_left_out),
        page_items=page_items,
        **run.measured(),
    )


def merge(records: Iterable[Mapping[str, Any]], settings: Settings) -> Evaluation:
    """Evaluate the texts of all records as one run would; see `System.merge`."""
    totals, page_items = _Totals(), WorstRequests(settings.measures)
    failures: list[Failure] = []
    for record in records:
        totals.add(record)
        page_items.add(record, "")  # records have no context
        failures += failed_records([record])
    summary = totals.summary()
    return Evaluation(
        summary=summary,
        n_items=totals.n_requests,
        details={"summary": summary},
        headline=totals.headline(),
        failures=failures,
        page_items=page_items,
    )


def _records(
    scored_entries: Iterable[tuple[Entry[Item], ScoredRequest]],
    settings: Settings,
    measured: MeasuredFields,
    unknown: Collection[str],
) -> Iterator[tuple[Entry[Item], dict[str, Any]]]:
    """Each entry with its record; `unknown` as of `record_of`."""
    for entry, scored in scored_entries:
        added = {} if scored.error else measured.of(scored)
        record = record_of(
            scored, entry.extra, summary_only=settings.summary_only, unknown=unknown, added=added
        )
        yield entry, record


def scored_entries(
    run: ScoringRun,
    entries: Iterable[Entry[Item]],
    request_of: Callable[[Entry[Item]], Request],
    n_requests: int | None,
    **requested: Any,
) -> Iterator[tuple[Entry[Item], ScoredRequest]]:
    """Stream texts through a model: each entry with its result, in order.

    Args:
        request_of: the request of a usable entry; an `InputError` fails that entry alone.
        n_requests: the number of entries, if known.
        requested: as of `ScoringRun.stream`.

    Yields:
        Entry and result, which holds the error alone if the entry cannot be used.
    """
    waiting: deque[tuple[Entry[Item], str | None]] = deque()  # with why it cannot be used

    def requests() -> Iterator[Request]:
        for entry in entries:
            error, request = entry.error, None
            try:
                request = None if entry.item is None else request_of(entry)
            except InputError as problem:
                error = str(problem)
            waiting.append((entry, error))
            if request is not None:
                yield request

    for scored in run.stream(requests(), n_requests=n_requests, **requested):
        entry, error = waiting.popleft()
        while error is not None:
            yield entry, failed(entry.id, error)
            entry, error = waiting.popleft()
        yield entry, scored
    for entry, error in waiting:
        assert error is not None  # every other one has had its result
        yield entry, failed(entry.id, error)


def request_of(entry: Entry[Item]) -> Request:
    """The request of a usable entry."""
    assert entry.item is not None
    return Request(entry.id, entry.item.context, entry.item.continuation)


class _Prompts:
    """Makes requests of entries, with system prompt and examples before them.

    Attributes:
        n_left_out: items that are one of the examples.
    """

    def __init__(self, prompting: Prompting, policy: Boundary) -> None:
        """Args:
        policy: where continuations start, see `jaxscore.text.encoder`.
        """
        self.n_left_out = 0
        self._prompting, self._is_plain = prompting, prompting == PLAIN
        self._refuses_blank = policy == "joint"

    def request(self, entry: Entry[Item]) -> Request:
        """The request of a usable entry.

        Raises:
            InputError: its continuation would have no clear start.
        """
        if self._is_plain or entry.item is None:
            return request_of(entry)
        item = entry.item
        if self._refuses_blank and not item.context.strip():
            raise InputError(BLANK)
        key = _key(item)
        self.n_left_out += self._prompting.n_left_out([key])
        context = self._prompting.context_of(item.context, key)
        return Request(entry.id, context, self._prompting.continuation_of(item.continuation))


def _key(item: Item) -> Hashable:
    """What identifies an example: its context, and if that is blank its continuation.

    Answers to one question then differ by nothing that stands before them.
    """
    context = item.context.strip()
    return (context, "" if context else item.continuation)


def read_example(value: Any, position: int, where: str) -> Item:
    """An example, which may be a `Request`; see `System.read_example`."""
    if isinstance(value, Request):
        return Item(context=value.context, continuation=value.continuation)
    return read_item(SYSTEM, value, position, where)


def read_objects(objects: Any, reserved: Collection[str]) -> Iterator[Entry[Item]]:
    """Read what `Scorer.score` takes; an item that cannot be used fails alone.

    Args:
        objects: as of `types.requests.requests_from`. The other fields of a dict, and the other
            columns of a DataFrame, are repeated in the records.
        reserved: names that other fields may not have.

    Raises:
        InputError: one item in place of a list of them.
    """
    try:
        objects = items_of(objects)
    except TypeError as problem:
        raise InputError(str(problem)) from None
    for position, value in enumerate(objects):
        request = parse_request(value, position)
        fields = value if isinstance(value, Mapping) else {}
        extra = {name: field for name, field in fields.items() if name not in FIELDS}
        clashing = sorted(extra.keys() & reserved)
        error = taken_field(clashing[0]) if clashing else None
        if isinstance(request, Unusable):
            error = request.error
        item = None
        if error is None and isinstance(request, Request):
            item = Item(context=request.context, continuation=request.continuation)
        extra = {name: field for name, field in extra.items() if name not in reserved}
        yield Entry(one_line(str(request.id), SHOWN), request.id, item, error, extra)


def read_request(value: Any, position: int, where: str) -> tuple[Request, Mapping[str, Any]]:
    """A request and its other fields, from an object as the input file has it.

    Args:
        position: from 1; the id of an object without `id`.
        where: for messages.

    Raises:
        InputError: it cannot be used, with its place.
    """
    entry = read_entry(SYSTEM, value, position, where, RESULT_FIELDS)
    if entry.item is None:
        raise InputError(f"{where}: {entry.error}")
    return request_of(entry), entry.extra


def record_of(
    scored: ScoredRequest,
    extra: Mapping[str, Any],
    *,
    summary_only: bool,
    unknown: Collection[str] = (),
    added: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of a text, numbers in nats; values per token are NumPy arrays, NaN for null.

    Args:
        extra: other fields of the input, which come last.
        unknown: fields that the model's interface does not give, such as `UNKNOWN`: null.
        added: fields of further measures, see `MeasuredFields`.
    """
    if scored.error:
        return {"id": scored.id, "error": scored.error, **extra}
    record: dict[str, Any] = {"id": scored.id}
    sums = scored.sums()
    if not summary_only:
        record |= {
            "token_ids": scored.token_ids,
            "tokens": scored.tokens,
            "logprob": scored.logprob,
            "entropy": scored.entropy,
            "self_certainty": scored.self_certainty,
            "greedy": _greedy(scored, sums["n_tokens"] - sums["n_scored"]),
        }
    record |= sums
    record |= {name: None for name in unknown if name in record}
    record |= added or {}
    if scored.truncated:
        record["truncated"] = scored.truncated
    return {**record, **extra}


def _greedy(scored: ScoredRequest, n_unscored: int) -> np.ndarray | list[bool | None]:
    """Whether each token is the most probable one, or None if that is not known."""
    if not n_unscored and scored.greedy.dtype == bool:
        return scored.greedy
    values = scored.greedy.tolist()
    for place in np.flatnonzero(~scored.scored).tolist():
        values[place] = None
    return values


def as_lists(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with lists in place of NumPy arrays, and None in place of their NaN."""

    def listed(values: Any) -> Any:
        if not isinstance(values, np.ndarray):
            return values
        if values.ndim > 1:
            return [listed(row) for row in values]
        return [None if value != value else value for value in values.tolist()]

    return {name: listed(value) for name, value in record.items()}


@dataclasses.dataclass
class _Totals:
    """Sums over all requests, so that none has to be retained."""

    n_requests: int = 0
    n_tokens: int = 0
    logprob: float = 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        self.n_requests += 1
        if record.get("sum_logprob") is not None:
            self.n_tokens += record["n_scored"]
            self.logprob += record["sum_logprob"]

    def summary(self) -> dict[str, Any]:
        """The mean over all scored tokens, or None if no token was scored."""
        mean = self.logprob / self.n_tokens if self.n_tokens else None
        return {"n_requests": self.n_requests, "n_scored": self.n_tokens, "mean_logprob": mean}

    def headline(self) -> str:
        if not self.n_tokens:
            return "no token was scored"
        mean = self.logprob / self.n_tokens
        return f"mean log-probability {mean:.4f} nats per token, {self.n_tokens:,} tokens"


SYSTEM = System(
    name="score",
    what="requests",
    help=HELP,
    item=Item,
    settings=Settings,
    record=Record,
    read_objects=read_objects,
    is_lazy=True,
    is_strict=True,
    read_example=read_example,
    has_report_files=False,
    evaluate=evaluate,
    page_items=lambda settings: WorstRequests(settings.measures),
    report=report,
    merge=merge,
    page_only="contexts",
    needs=("scores",),
    compared=(
        Compared(
            text=(),
            signature=("sum_logprob", "n_scored"),
            what="texts",
            fixed=("boundary", "min_k", "log_base"),
            input_fields=("context", "continuation"),
        ),
    ),
)
RESULT_FIELDS = SYSTEM.result_fields(Settings())
