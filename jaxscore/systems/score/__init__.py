"""Log-probability, entropy and self-certainty of each token of a text, in bounded memory."""

import dataclasses
import itertools
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np

from jaxscore.analysis.text_measures import perplexity
from jaxscore.errors import InputError, one_line
from jaxscore.io.items import NOTHING, Row
from jaxscore.io.json_input import require_field
from jaxscore.lm import Capabilities
from jaxscore.report.counts import counted
from jaxscore.report.document import Document
from jaxscore.report.sections import context_end
from jaxscore.shell.fields import PAIRED, Mean, Metric, Paired, PerToken, Result, Total
from jaxscore.shell.flags import flag
from jaxscore.shell.items import SHOWN, Entry, Items, read_entry, result_fields
from jaxscore.shell.prompts import Example, JointSettings, Prompting, PromptSettings
from jaxscore.shell.report import Report
from jaxscore.shell.settings import SliceSettings, TextSettings, WindowSettings
from jaxscore.shell.system import PAGE, Aside, Summary, System, failed
from jaxscore.systems.score.against import (
    PER_TOKEN,
    AgainstFields,
    AgainstSettings,
    Gains,
    gain_fields,
)
from jaxscore.systems.score.measures import MeasuredFields, MeasureFields, MeasureSettings
from jaxscore.systems.score.report import WorstRequests, report
from jaxscore.text.whole_words import lacks_spaces
from jaxscore.types.requests import FIELDS, Request, Unusable, items_of, parse_request
from jaxscore.types.results import ScoredRequest

EMPTY = "its continuation has no token of its own; is it empty?"
UNCONDITIONED = (
    "the first token of {n} of {total} texts has nothing before it and so no probability{words}; "
    "give a context, or --prefix-token-id ID, a token before each text such as the EOS"
)
UNSPACED = (
    "{n} of {total} texts are written without spaces, so that each is one word: put a space "
    "between their words, or take --unit token"
)
# What an endpoint does not give; the numbers of its other fields are those of a local model.
UNKNOWN = frozenset("token_ids entropy self_certainty mean_entropy mean_self_certainty".split())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A text to score, and what stands before it."""

    context: Annotated[str, PAIRED] = ""
    continuation: Annotated[str, PAIRED]

    @property
    def key(self) -> Hashable:
        """What identifies an example: its context, and if that is blank its continuation.

        Answers to one question then differ by nothing that stands before them.
        """
        context = self.context.strip()
        return (context, "" if context else self.continuation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemWithFields(Item):
    """An item of `--against-field`, with the other fields of its object."""

    others: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(
    SliceSettings, WindowSettings, TextSettings, JointSettings, MeasureSettings, AgainstSettings
):
    """Settings of `score`; see also its bases."""

    fixed = (
        *JointSettings.fixed,
        *WindowSettings.fixed,
        *("min_k", "log_base", "against", "against_field", "long_gain", "long_logprob"),
    )
    audit_boundary: bool = flag(True, is_flag=False)
    """Count the requests that the other boundary would change."""

    def __post_init__(self) -> None:
        """Check all values, and read examples that are `Request`s; see `Settings`."""
        super().__post_init__()
        shots = [
            Item(context=shot.context, continuation=shot.continuation)
            if isinstance(shot, Request)
            else shot
            for shot in self.fewshot
        ]
        object.__setattr__(self, "fewshot", tuple(shots))

    def record(self) -> dict[str, Any]:
        """See `Settings.record`; intervals are those of slices alone."""
        values = super().record()
        return values if self.by else {k: v for k, v in values.items() if k != "n_bootstrap"}

    def complete(self, item: Item | None, others: Mapping[str, Any]) -> Item | None:
        """See `Settings.complete`."""
        if self.against_field is None or item is None:
            return item
        return ItemWithFields(context=item.context, continuation=item.continuation, others=others)

    def texts_of(self, item: Any) -> tuple[list[str], str]:
        """Return the item's context, the other context if there is one, and the continuation.

        Raises:
            InputError: the item does not have the field of the other context.
        """
        contexts = [item.context]
        if self.against is not None:
            contexts.append(self.against)
        elif self.against_field is not None:
            contexts.append(
                require_field(dict(item.others), self.against_field, str, "against_field")
            )
        # With a separator a continuation has the same text after both, also if one is empty.
        joint = next((context for context in contexts if context.strip()), item.context)
        pairs = [self.joined(context, item.continuation) for context in (*contexts, joint)]
        return [context for context, _ in pairs[:-1]], pairs[-1][1]

    def policies(self) -> dict[str, str]:
        """See `ScoringSettings`; only the run's own boundary without an audit."""
        policies = super().policies()
        return policies if self.audit_boundary else {self.boundary: policies[self.boundary]}

    def note(self, lm: Any, prompting: Prompting, keys: Iterable[Hashable]) -> None:
        """See `PromptSettings.note`: a continuation may be reasoning, unlike an answer."""
        PromptSettings.note(self, lm, prompting, keys)

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
    tokens: Annotated[PerToken[str], Paired(lambda record: "".join(record["tokens"]))]
    logprob: PerToken[np.float32]
    entropy: PerToken[np.float32]
    self_certainty: PerToken[np.float32]
    greedy: PerToken[bool]
    sum_logprob: Annotated[
        float,
        Metric("log-probability of a text, nats"),
        Mean("Log-probability of a text, nats", in_table=False),
    ]
    mean_logprob: Annotated[
        float,
        Metric("mean log-probability of a text, nats per token"),
        Result("mean log-probability per token"),
        Mean("Mean log-probability, nats per token", "n_scored"),
        Mean("Perplexity", "n_scored", "perplexity", change=perplexity),
        Mean("Mean log-probability, mean over texts", name="text_mean_logprob", in_table=False),
    ]
    perplexity: float
    mean_entropy: Annotated[
        float,
        Metric("mean entropy, nats per token"),
        Mean("Entropy, nats per token", "n_scored"),
    ]
    mean_self_certainty: Annotated[
        float,
        Metric("mean self-certainty, nats per token"),
        Mean("Self-certainty, nats per token", "n_scored", in_table=False),
    ]
    n_tokens: Annotated[int, Total()]
    n_scored: Annotated[int, Total("tokens")]
    n_windows: int
    truncated: int


class Record(ScoreFields, MeasureFields, AgainstFields, total=False):
    """One output line, with the requested fields of measures and of another context."""


class Score(System):
    """Score the continuation of each line under a causal language model.

    input, one object per line:
      {"id": "a", "context": "The capital of Norway is", "continuation": " Oslo"}
      `context` may be left out; `id` defaults to the line's number. A space between
      the two belongs to the continuation; if requests lack one and most are more
      probable with it, the output says so first (--answer-separator). A JSON array,
      .csv, .tsv, .parquet or a folder of datasets' save_to_disk holds the same;
      --column continuation=answer reads the field from the column `answer`.

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
      --against TEXT or --against-field FIELD adds, over tokens scored after both
        against_logprob[], gain[]   after the other context; logprob - that
        sum_gain, gain_bits         their sum, the pointwise mutual information
        ifd, ifd_ppl                ratio of mean surprisals; of perplexities
        long_ppl, n_long            perplexity of the tokens that need the context
        n_both                      tokens scored after both
      With --api-base what a server does not return is null: token_ids, entropy,
      self_certainty and their means, and `greedy` of a server that lists nothing.
      Next to OUT are OUT.report.md and OUT.report.json, the numbers of all requests
      together; OUT.report.html, a page for a browser: charts, and the requests with
      colored tokens, least probable first (at most 50,000 of them); and
      OUT.run.json: how it was made, and how many requests failed.
      --audit-noise reports there, and on stdout, how far rounding moves numbers.

    exit code: 0 all scored, 1 some requests failed (their lines hold `error`),
               2 unusable input.
    """

    name, what = "score", "requests"
    item, settings, record = Item, Settings, Record

    def read(
        self, source: Any, columns: Mapping[str, str] = NOTHING, lists: Sequence[str] = ()
    ) -> Iterator[Row]:
        """Read a file, or what `Scorer.score` takes; other fields of an object are retained.

        Raises:
            InputError: a file that cannot be read, or one item in place of a list of them.
        """
        if isinstance(source, Path):
            yield from System.read(self, source, columns, lists)
            return
        try:
            objects = items_of(source)
        except TypeError as problem:
            raise InputError(str(problem)) from None
        for position, value in enumerate(objects):
            request = parse_request(value, position)
            name = one_line(str(request.id), SHOWN)
            row: Any
            if isinstance(request, Unusable):
                row = Entry(name, request.id, error=request.error)
            else:
                others = value.items() if isinstance(value, Mapping) else ()
                row = {field: getattr(request, field) for field in FIELDS}
                row |= {field: other for field, other in others if field not in FIELDS}
            yield Row(position, name, row)

    def check(self, items: Items, settings: Any) -> None:
        """Refuse a file with an unusable line; an object from Python fails alone.

        Raises:
            InputError: also if no item has the field of the other context.
        """
        if items.is_file or not items.n_all:
            items.require_usable(all_of_them=True)
        for field in settings.further_fields:
            if not any(field in item.others for item in items):
                for item in items:
                    settings.texts_of(item)

    def score(self, lm: Any, items: Sequence[Item], settings: Settings) -> Iterator[dict[str, Any]]:
        """Score each text; only a window of texts is in memory.

        Raises:
            InputError: settings that the model cannot do.
        """
        settings.check_model(lm.capabilities)
        examples = [
            Example(*settings.joined(shot.context, shot.continuation), shot.key)
            for shot in settings.drawn()
        ]
        prompting = settings.prompting(lm, examples)
        settings.note(lm, prompting, (item.key for item in items) if examples else ())
        measured = MeasuredFields(settings, lm)
        unknown = () if lm.capabilities.has_distribution else UNKNOWN
        policy = settings.options()["boundary"]
        waiting: deque[tuple[Item, str | None]] = deque()  # with why it has no request

        def requests() -> Iterator[Request]:
            for item in items:
                try:
                    contexts, continuation = settings.texts_of(item)
                    for context in contexts:
                        prompting.check_blank(context, policy)
                    contexts = [prompting.context_of(context, item.key) for context in contexts]
                except InputError as problem:
                    waiting.append((item, str(problem)))
                    continue
                waiting.append((item, None))
                continuation = prompting.continuation_of(continuation)
                for context, request in zip(contexts, (Request, Aside), strict=False):
                    yield request("", context, continuation)

        results = lm.stream(
            requests(),
            n_requests=len(items) * (1 + settings.has_other),
            **settings.options(),
            **settings.text_windows(lm),
            **measured.requested,
        )
        others = results if settings.has_other else itertools.repeat(None)
        for result, other in zip(results, others, strict=False):
            item, error = waiting.popleft()
            while error is not None:
                yield {"error": error}
                item, error = waiting.popleft()
            if not result.error and not result.n_tokens:
                yield {"error": EMPTY}
                continue
            added: dict[str, Any] = {}
            if not result.error:
                settings.note_windows(lm, result.n_windows)
                added = measured.of(result)
                if settings.reads_windows:
                    added["n_windows"] = result.n_windows
            if other is not None and not result.error:
                gains = gain_fields(result, other, settings)
                if "error" in gains:
                    yield gains
                    continue
                omitted = PER_TOKEN if settings.summary_only else ()
                added |= {name: value for name, value in gains.items() if name not in omitted}
            record = record_of(
                result, summary_only=settings.summary_only, unknown=unknown, added=added
            )
            yield {**record, PAGE: {"context": context_end(item.context)}}
        yield from ({"error": error} for _, error in waiting)  # all others have had their results

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Any) -> Summary:
        """The mean log-probability over all tokens."""
        n_tokens, n_unconditioned, n_unspaced, total = 0, 0, 0, 0.0
        gains = Gains() if settings.has_other else None
        for record in records:
            if record.get("sum_logprob") is not None:
                n_tokens += record["n_scored"]
                n_unconditioned += record["n_scored"] < record["n_tokens"]
                total += float(record["sum_logprob"])
                n_unspaced += _lacks_spaces(record.get("words"))
            if gains is not None and "error" not in record:
                gains.add(record)
        mean = total / n_tokens if n_tokens else None
        words = ", nor has its word" if settings.unit == "word" else ""
        headline = "no token was scored"
        if mean is not None:
            headline = (
                f"mean log-probability {mean:.4f} nats per token, {counted(n_tokens, 'tokens')}"
                f"{gains.headline() if gains else ''}"
            )
        return Summary(
            headline=headline,
            numbers={
                "n_requests": len(records),
                "n_scored": n_tokens,
                "mean_logprob": mean,
                **(gains.numbers() if gains else {}),
            },
            failures=failed(records),
            warnings=[
                text.format(n=n, total=len(records), words=words)
                for text, n in ((UNCONDITIONED, n_unconditioned), (UNSPACED, n_unspaced))
                if n
            ]
            + (gains.warnings(len(records)) if gains else []),
        )

    def report(self, run: Report) -> Document:
        """The least probable requests first; see `score.report`."""
        settings: Any = run.chosen
        worst = WorstRequests(settings.measures, has_gain=settings.has_other)
        for place, record in enumerate(run.records):
            extra = run.records.extra(place) or {}  # none after a merge
            worst.add(record, extra.get("context", ""))
        return report(run.source(items=worst))


def _lacks_spaces(words: Sequence[str] | None) -> bool:
    if not words:
        return False
    return lacks_spaces(words[0], len("".join(words).encode()), len(words))


SYSTEM = Score()
RESULT_FIELDS = result_fields(SYSTEM, Settings())


def read_request(value: Any, position: int, where: str) -> tuple[Request, Mapping[str, Any]]:
    """A request and its other fields, from an object as the input file has it.

    Args:
        position: from 1; the id of an object without `id`.
        where: for messages.

    Raises:
        InputError: it cannot be used, with its place.
    """
    entry = read_entry(SYSTEM, value, position, where, RESULT_FIELDS)
    if entry.error is not None:
        raise InputError(f"{where}: {entry.error}")
    return Request(entry.id, entry.item.context, entry.item.continuation), entry.extra


def record_of(
    scored: ScoredRequest,
    *,
    summary_only: bool,
    unknown: Collection[str] = (),
    added: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of a text without `id`, in nats; values per token are NumPy arrays, NaN for null.

    Args:
        unknown: fields that the model's interface does not give, such as `UNKNOWN`: null.
        added: fields of further measures, see `MeasuredFields`.
    """
    if scored.error:
        return {"error": scored.error}
    record: dict[str, Any] = {}
    sums = scored.sums()
    if not summary_only:
        record = {
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
    return record


def _greedy(scored: ScoredRequest, n_unscored: int) -> np.ndarray | list[bool | None]:
    """Whether each token is the most probable one, or None if that is not known."""
    if not n_unscored and scored.greedy.dtype == bool:
        return scored.greedy
    values = scored.greedy.tolist()
    for place in np.flatnonzero(~scored.scored).tolist():
        values[place] = None
    return values
