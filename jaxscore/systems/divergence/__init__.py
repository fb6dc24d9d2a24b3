"""How far two models lie apart on the same texts, token by token."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypedDict

import numpy as np

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.errors import InputError
from jaxscore.lm import LocalLM
from jaxscore.systems.divergence.report import report
from jaxscore.systems.divergence.summary import (
    NUMBERS,
    PER_TOKEN,
    RATIOS,
    TEXT_FIELDS,
    Totals,
    Worst,
    means_of,
    values_of,
)
from jaxscore.systems.entries import Entry
from jaxscore.systems.evaluation import Evaluation, Failure, failed_records
from jaxscore.systems.score import (
    BOUNDARIES,
    Item,
    as_lists,
    read_objects,
    request_of,
    scored_entries,
)
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.settings import IntervalSettings, TextSettings
from jaxscore.systems.system import PerToken, System
from jaxscore.text.decoder import TokenBytes
from jaxscore.types.results import ScoredRequest, Strip

HELP = """\
How far do two models lie apart on the same texts? p is the distribution over
the next token of --model, q that of --reference. The same model twice, with
another --reference-dtype, --reference-quantize or --reference-lora, shows what
that setting changes.

input, one object per line, as that of score:
  {"id": "a", "context": "The capital of Norway is", "continuation": " Oslo"}

output, in the same order, numbers in nats:
  id, token_ids, tokens, kl[] (KL(p || q)), reverse_kl[] (KL(q || p)),
  js[] (Jensen-Shannon), cross_entropy[] (- sum p ln q), logprob[] and
  reference_logprob[] (ln p, ln q of the token), logprob_difference[],
  entropy[], reference_entropy[], same_argmax[], the mean_ of each,
  same_argmax_share, perplexity, reference_perplexity, binoculars,
  binoculars_upstream, n_tokens, n_scored
  Arrays align with the continuation's tokens; a token with nothing before it
  has null. Other fields of an input line are repeated in its output line.
  `binoculars` is the score of arXiv 2401.12070.
  Beside OUT.jsonl lie a readable report, OUT.jsonl.report.md, its data,
  OUT.jsonl.report.json (means with intervals, percentiles, the tokens and texts
  with the largest divergence), OUT.jsonl.report.html, a page for a browser with
  the tokens of these texts coloured by KL(p || q), and OUT.jsonl.run.json: what
  made it.

exit code: 0 all compared, 1 some texts failed (their lines hold `error`),
           2 unusable input, or two models that cannot be compared.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(TextSettings, IntervalSettings):
    """Settings of `divergence`."""


class Record(TypedDict, total=False):
    """One output line; nats. p is the distribution of the model, q of the reference."""

    id: str | int
    token_ids: PerToken[np.int32]
    tokens: PerToken[str]
    kl: PerToken[np.float32]
    reverse_kl: PerToken[np.float32]
    js: PerToken[np.float32]
    cross_entropy: PerToken[np.float32]
    logprob: PerToken[np.float32]
    reference_logprob: PerToken[np.float32]
    logprob_difference: PerToken[np.float32]
    entropy: PerToken[np.float32]
    reference_entropy: PerToken[np.float32]
    same_argmax: PerToken[bool]
    mean_kl: float
    mean_reverse_kl: float
    mean_js: float
    mean_cross_entropy: float
    mean_logprob: float
    mean_reference_logprob: float
    mean_logprob_difference: float
    mean_entropy: float
    mean_reference_entropy: float
    same_argmax_share: float
    perplexity: float
    reference_perplexity: float
    binoculars: float
    binoculars_upstream: float
    n_tokens: int
    n_scored: int
    truncated: int


def evaluate(
    lm: LocalLM,
    entries: Iterable[Entry[Item]],
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
) -> Evaluation:
    """Compare two models on each text.

    Args:
        lm: compares two models.
        on_item: see `System`.
    """
    run = ScoringRun(lm, settings, policies=BOUNDARIES)
    totals = Totals(TokenBytes(lm.encoder.tokenizer).join_all)
    n_items, failures, records = 0, [], []
    for entry, scored in scored_entries(run, entries, request_of, settings.n_requests):
        n_items += 1
        values = {} if scored.error else values_of(scored)
        record = record_of(scored, values, entry.extra, summary_only=settings.summary_only)
        if scored.error:
            failures.append(Failure(entry.name, scored.error))
        elif entry.item is not None:
            totals.add(entry.item.context, scored, values, record)
        if on_item is None:
            records.append(as_lists(record))
        else:
            on_item(record)
    summary = totals.summary(settings.n_bootstrap, settings.seed)
    return Evaluation(
        summary=summary,
        items=records,
        n_items=n_items,
        rows=records,
        details={"summary": summary, "boundary_audit": run.boundaries.counts("requests")},
        long={"worst_tokens": totals.worst_tokens(), "worst_texts": totals.worst_texts()},
        headline=headline(summary["kl"], summary["same_argmax"]),
        failures=failures,
        strips=totals.strips(),
        **run.measured(),
    )


def merge(records: Iterable[Mapping[str, Any]], settings: Settings) -> Evaluation:
    """Evaluate the texts of all records as one run would; see `System.merge`.

    `merge_lists` lists the worst tokens, since records have no contexts.

    Raises:
        InputError: the records have no values per token.
    """
    if settings.summary_only:
        raise InputError(
            "summary_only: records without values per token do not say the mean over all tokens; "
            "run without --summary-only"
        )
    totals, n_items, failures = Totals(lambda ids: ""), 0, []
    for record in records:
        n_items += 1
        if "error" in record:
            failures += failed_records([record])
            continue
        known = [value is not None for value in record["kl"]]
        values = {name: np.array(record[name], np.float32)[known] for name in PER_TOKEN}
        means = _with_numbers(record, (*TEXT_FIELDS, *RATIOS))
        if totals.add_values(values, means):
            totals.add_text(record["id"], means, functools.partial(_strip_of, record))
    summary = totals.summary(settings.n_bootstrap, settings.seed)
    return Evaluation(
        summary=summary,
        n_items=n_items,
        details={"summary": summary},
        long={"worst_tokens": [], "worst_texts": totals.worst_texts()},
        headline=headline(summary["kl"], summary["same_argmax"]),
        failures=failures,
        strips=totals.strips(),
    )


def merge_lists(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The worst tokens of several reports; see `System.merge_lists`."""
    worst = Worst()
    for found in reports:
        for token in (_with_numbers(one, NUMBERS) for one in found["worst_tokens"]):
            worst.offer(token["kl"], token)
    return {"worst_tokens": worst.largest_first()}


def _strip_of(record: Mapping[str, Any]) -> Strip:
    """The tokens of a record, for the page; what records do not have is unknown."""
    unknown = np.full(len(record["tokens"]), np.nan, np.float32)
    logprob, entropy, kl, reference = (
        np.array(record[name], np.float32)  # of None it makes NaN
        for name in ("logprob", "entropy", "kl", "reference_logprob")
    )
    ids = np.array(record["token_ids"], np.int32)
    measures = {"kl": kl, "reference_logprob": reference}
    scored = ScoredRequest(
        record["id"], ids, record["tokens"], logprob, entropy, unknown, unknown, measures=measures
    )
    return Strip("", "", scored)


def _with_numbers(fields: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """An object of JSON with numbers, whose infinities are text there."""
    return {
        name: float(value) if name in names and isinstance(value, str) else value
        for name, value in fields.items()
    }


def record_of(
    scored: ScoredRequest,
    values: Mapping[str, np.ndarray],
    extra: Mapping[str, Any],
    *,
    summary_only: bool,
) -> dict[str, Any]:
    """The record of a text; values per token are NumPy arrays, NaN for null.

    Args:
        values: `values_of` it; nothing if it failed.
        extra: other fields of the input, which come last.
    """
    if scored.error:
        return {"id": scored.id, "error": scored.error, **extra}
    record: dict[str, Any] = {"id": scored.id}
    if not summary_only:
        known = scored.scored
        record |= {"token_ids": scored.token_ids, "tokens": scored.tokens}
        record |= {name: _aligned(values[name], known) for name in NUMBERS}
        same = _aligned(values["same_argmax"], known).tolist()
        record["same_argmax"] = [None if value != value else bool(value) for value in same]
    record |= means_of(values, scored.n_tokens)
    if scored.truncated:
        record["truncated"] = scored.truncated
    return {**record, **extra}


def _aligned(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """float32 [n_tokens] with NaN for tokens without a probability."""
    out = np.full(len(known), np.nan, np.float32)
    out[known] = values
    return out


def headline(kl: Estimate, same_argmax: Estimate) -> str:
    """The mean KL divergence with its interval, and the share of equal argmaxes."""
    if kl.mean is None or same_argmax.mean is None:
        return "no token was scored"
    return (
        f"mean KL divergence {kl.mean:.4g} nats per token{kl.span()}; same argmax at "
        f"{100 * same_argmax.mean:.2f} % of {kl.n:,} tokens"
    )


SYSTEM = System(
    name="divergence",
    what="texts",
    help=HELP,
    item=Item,
    settings=Settings,
    record=Record,
    read_objects=read_objects,
    is_lazy=True,
    is_strict=True,
    evaluate=evaluate,
    report=report,
    merge=merge,
    merge_lists=merge_lists,
    page_only="contexts and self-certainty",
    needs=("is_local", "compares_models"),
)
