"""Divergence of two models on the same texts, token by token."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypedDict

import numpy as np

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.analysis.text_measures import perplexity
from jaxscore.report.counts import counted
from jaxscore.report.document import Document
from jaxscore.shell.conversations import Conversation, ConversationSettings, stream_items
from jaxscore.shell.fields import Mean, PerToken, Result, Total
from jaxscore.shell.report import Report
from jaxscore.shell.settings import SliceSettings, TextSettings, WindowSettings
from jaxscore.shell.system import PAGE, Summary, System, failed
from jaxscore.systems.divergence.report import report
from jaxscore.systems.divergence.summary import NUMBERS, means_of, summarise, values_of
from jaxscore.systems.divergence.worst import strip_of, worst_texts, worst_tokens
from jaxscore.systems.score import EMPTY, Item, Score
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(WindowSettings, TextSettings, ConversationSettings, SliceSettings):
    """Settings of `divergence`."""

    fixed = (*WindowSettings.fixed, *ConversationSettings.fixed)


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
    mean_kl: Annotated[
        float, Result("mean KL divergence"), Mean("KL(p ‖ q), nats per token", "n_scored")
    ]
    mean_reverse_kl: Annotated[float, Mean("KL(q ‖ p), nats per token", "n_scored", in_table=False)]
    mean_js: Annotated[float, Mean("Jensen-Shannon, nats per token", "n_scored", in_table=False)]
    mean_cross_entropy: float
    mean_logprob: Annotated[
        float, Mean("Perplexity, p", "n_scored", "perplexity", change=perplexity)
    ]
    mean_reference_logprob: Annotated[
        float, Mean("Perplexity, q", "n_scored", "reference_perplexity", change=perplexity)
    ]
    mean_logprob_difference: float
    mean_entropy: float
    mean_reference_entropy: float
    same_argmax_share: Annotated[float, Mean("Same most probable token", "n_scored")]
    perplexity: float
    reference_perplexity: float
    binoculars: float
    binoculars_upstream: float
    n_tokens: Annotated[int, Total()]
    n_scored: Annotated[int, Total("tokens")]
    n_windows: int
    truncated: int
    scored_messages: list[dict[str, Any]]


def _record(
    item: Item, talk: Conversation | None, scored: ScoredRequest, settings: Settings
) -> dict[str, Any]:
    """Return the record of a text; values per token are NumPy arrays, NaN for null."""
    if scored.error:
        return {"error": scored.error}
    values, is_scored = values_of(scored), scored.scored
    same = _aligned(values["same_argmax"], is_scored).tolist()
    arrays = {
        "token_ids": scored.token_ids,
        "tokens": scored.tokens,
        **{name: _aligned(values[name], is_scored) for name in NUMBERS},
        "same_argmax": [None if value != value else bool(value) for value in same],
    }
    means = means_of(values, scored.n_tokens)
    if settings.reads_windows:
        means["n_windows"] = scored.n_windows
    if scored.truncated:
        means["truncated"] = scored.truncated
    if talk is not None:
        means |= talk.fields(scored)
    page = {
        "context": item.context if talk is None else talk.before,
        "self_certainty": scored.self_certainty,
        "greedy": scored.greedy,
    }
    if settings.summary_only:
        return {**means, PAGE: {**arrays, **page}}
    return {**arrays, **means, PAGE: page}


def _aligned(values: np.ndarray, is_scored: np.ndarray) -> np.ndarray:
    """Return float32 [n_tokens] with NaN for tokens without a probability."""
    out = np.full(len(is_scored), np.nan, np.float32)
    out[is_scored] = values
    return out


def headline(kl: Estimate, same_argmax: Estimate) -> str:
    """Return the mean KL divergence with its interval, and the share of equal argmaxes."""
    if kl.mean is None or same_argmax.mean is None:
        return "no token was scored"
    return (
        f"mean KL divergence {kl.mean:.4g} nats per token{kl.span()}; same argmax at "
        f"{100 * same_argmax.mean:.2f} % of {counted(kl.n, 'tokens')}"
    )


class Divergence(System):
    """Compare two models on the same texts, token by token. p is the distribution over
    the next token of --model, q that of --reference. The same model twice, with
    another --reference-dtype, --reference-quantize or --reference-lora, shows what
    that setting changes.

    input, one object per line, as that of score:
      {"id": "a", "context": "The capital of Norway is", "continuation": " Oslo"}
      or a .txt file; --stride and --max-length read long texts in windows. A
      conversation has `messages` in place of both, and in its record
      scored_messages.

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
      Next to OUT.jsonl are a readable report, OUT.jsonl.report.md (means with
      intervals, percentiles, the tokens and texts with the largest divergence), its
      numbers, OUT.jsonl.report.json, OUT.jsonl.report.html, a page for a browser
      with the tokens of these texts colored by KL(p || q), and OUT.jsonl.run.json:
      how it was made. With --summary-only the report of `merge` lacks percentiles
      and tokens.

    exit code: 0 all compared, 1 some texts failed (their lines hold `error`),
               2 unusable input, or two models that cannot be compared.
    """

    name, what = "divergence", "texts"
    item, settings, record = Item, Settings, Record
    read, check, text_field = Score.read, Score.check, Score.text_field

    def needs(self, settings: Settings | None) -> tuple[str, ...]:
        """A pair of local models."""
        return ("is_local", "compares_models")

    def score(self, lm: Any, items: Sequence[Item], settings: Settings) -> Iterator[dict[str, Any]]:
        """Compare two models on each text; only a window of texts is in memory."""

        def request_of(item: Item) -> tuple[Request, Conversation | None]:
            if item.messages is None:
                return Request("", item.context, item.continuation), None
            talk = settings.conversation(lm, item.messages)
            settings.note_conversation(lm, talk)
            return talk.request, talk

        options = {**settings.options(), **settings.text_windows(lm), "n_requests": len(items)}
        for item, talk, scored in stream_items(lm, items, request_of, **options):
            if scored.error is None:
                settings.note_windows(lm, scored.n_windows)
            is_empty = not scored.error and not scored.n_tokens
            yield {"error": EMPTY} if is_empty else _record(item, talk, scored, settings)

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
        """Means over all scored tokens, and percentiles of their KL divergence."""
        numbers = summarise(records, settings.n_bootstrap, settings.seed)
        return Summary(
            headline=headline(numbers["kl"], numbers["same_argmax"]),
            numbers=numbers,
            failures=failed(records),
        )

    def report(self, run: Report) -> Document:
        """Tokens and texts with the largest divergence; see `divergence.report`."""
        texts = worst_texts(run.records)
        strips = [[strip_of(text)] for text in texts if "tokens" in text]
        tokens = worst_tokens(run.records)
        return report(run.source(strips=strips, worst_texts=texts, worst_tokens=tokens))


SYSTEM = Divergence()
