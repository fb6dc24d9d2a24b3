"""Perplexity and bits per byte of documents of any length, each token scored once."""

import dataclasses
import hashlib
import json
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

import numpy as np

from jaxscore.analysis.bootstrap import Estimate, numbers_of, ratio
from jaxscore.analysis.text_measures import bits, perplexity
from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.io.items import NOTHING, Row
from jaxscore.report.counts import counted
from jaxscore.report.document import Document
from jaxscore.shell.conversations import (
    UNLESS_MESSAGES,
    Conversation,
    ConversationItem,
    ConversationSettings,
    stream_items,
)
from jaxscore.shell.fields import PAIRED, Mean, Metric, Total
from jaxscore.shell.flags import flag
from jaxscore.shell.report import Report
from jaxscore.shell.settings import WINDOW_GROUP, SliceSettings, WindowSettings
from jaxscore.shell.system import Summary, System, failed
from jaxscore.systems.perplexity import window_bos
from jaxscore.systems.perplexity.report import report, without_spaces
from jaxscore.text.decoder import TokenBytes
from jaxscore.text.whole_words import lacks_spaces
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest

WIDE = 2048  # tokens of a window, beyond which shorter windows are clearly faster on a CPU
TOO_WIDE = (
    "windows read up to {length} tokens, and on a CPU shorter ones are faster: with --max-length "
    "512 tokens have less context"
)
NO_PROBABILITY = "none of its tokens has a probability"
NO_CHUNK = "it is shorter than a window of {length} tokens, whose second half is scored"
BEGIN = 100  # characters of a document in its record
BLANKS = re.compile(r"\s+")
UNITS = {"token": "n_scored", "byte": "n_bytes", "word": "n_words"}
COUNTS = ("n_tokens", "n_scored", "n_bytes", "n_words", "n_windows")


@dataclasses.dataclass(frozen=True)
class Item(ConversationItem):
    """A document, or a conversation."""

    texts = ("text",)

    text: str = dataclasses.field(default="", metadata=UNLESS_MESSAGES)

    def __post_init__(self) -> None:
        """Check the messages, and that the text can be encoded."""
        super().__post_init__()
        if not is_valid_unicode(self.text):
            raise InputError("its text contains a lone surrogate (invalid Unicode)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(WindowSettings, ConversationSettings, SliceSettings):
    """Settings of `perplexity`."""

    fixed = (*WindowSettings.fixed, *ConversationSettings.fixed)

    max_length: int | None = flag(
        None,
        least=1,
        metavar="N",
        group=WINDOW_GROUP,
        help="tokens that a window reads (default: the model's positions; on a CPU fewer, such as "
        "512, are faster)",
    )
    window_bos: Literal["every", "first"] = flag(
        "first",
        group=WINDOW_GROUP,
        help="first: the tokenizer's BOS in the first window alone, as in lm-evaluation-harness "
        "(default); every: in place of the first token that each window reads",
    )
    audit_noise: int = flag(0, least=0, is_flag=False)

    def __post_init__(self) -> None:
        """Check all values; see `Settings`."""
        super().__post_init__()
        if self.audit_noise:
            raise InputError(
                "audit_noise: perplexity decides nothing that rounding could turn; leave it out"
            )

    @property
    def reads_windows(self) -> bool:
        """See `WindowSettings.reads_windows`."""
        return True


def _bits_per_word(document: Mapping[str, Any]) -> float | None:
    """Return a record's bits per word, or None if spaces do not separate its words."""
    words = document["begin"], document["n_bytes"], document["n_words"]
    return None if lacks_spaces(*words) else document["bits_per_word"]


class Record(TypedDict, total=False):
    """One output line; log-probabilities in nats."""

    id: str | int
    begin: str
    text_sha256: Annotated[str, PAIRED]
    n_tokens: Annotated[int, Total()]
    n_scored: Annotated[int, Total("tokens")]
    n_bytes: Annotated[int, Total("bytes")]
    n_words: Annotated[int, Total()]
    n_windows: int
    sum_logprob: Annotated[float, Metric("log-probability of a document, nats")]
    mean_logprob: Annotated[
        float,
        Metric("mean log-probability, nats per token, mean over documents"),
        Mean("Perplexity per token", "n_scored", "perplexity", change=perplexity),
        Mean("Mean log-probability, nats per token", "n_scored", in_table=False),
    ]
    perplexity: float
    bits_per_byte: Annotated[
        float,
        Metric("bits per byte, mean over documents", is_main=True),
        Mean("Bits per byte", "n_bytes", is_main=True),
    ]
    bits_per_word: Annotated[
        float,
        Metric("bits per word, mean over documents", is_main=True),
        Mean("Bits per word", "n_words", value=_bits_per_word),
    ]
    scored_messages: list[dict[str, Any]]


def _facts(item: Item, talk: Conversation | None) -> dict[str, Any]:
    """Return the fields of a record that a document's text, or scored contents, decide."""
    contents = [item.text] if talk is None else talk.contents
    identity = item.text if talk is None else json.dumps(item.messages, sort_keys=True)
    return {
        "begin": contents[0][:BEGIN],
        "text_sha256": hashlib.sha256(identity.encode()).hexdigest(),
        "n_bytes": sum(len(text.encode()) for text in contents),
        "n_words": sum(map(_n_words, contents)),
    }


def _n_words(text: str) -> int:
    """Count the pieces between white space, as lm-evaluation-harness does for `word_perplexity`.

    White space at the beginning or the end adds an empty one.
    """
    return 1 + sum(1 for _ in BLANKS.finditer(text))


def _record(facts: Mapping[str, Any], scored: ScoredRequest) -> dict[str, Any]:
    total = scored.sum_logprob
    if scored.error is not None or total is None:
        return {"error": scored.error or NO_PROBABILITY}
    n_scored = scored.n_scored
    mean = total / n_scored
    return {
        "begin": facts["begin"],
        "text_sha256": facts["text_sha256"],
        "n_tokens": scored.n_tokens,
        "n_scored": n_scored,
        "n_bytes": facts["n_bytes"],
        "n_words": facts["n_words"],
        "n_windows": scored.n_windows,
        "sum_logprob": total,
        "mean_logprob": mean,
        "perplexity": perplexity(mean),
        "bits_per_byte": -bits(total) / facts["n_bytes"],
        "bits_per_word": -bits(total) / facts["n_words"],
    }


def summarise(numbers: Mapping[str, np.ndarray], n_bootstrap: int, seed: int) -> dict[str, Any]:
    """Sums over the scored documents, and means per token, byte and word with intervals.

    Args:
        numbers: `sum_logprob` and `COUNTS` of the documents.
    """
    nats = -numbers["sum_logprob"]
    summary: dict[str, Any] = {"n_documents": len(nats)}
    summary |= {name: int(numbers[name].sum()) for name in COUNTS}
    summary["n_left_out"] = summary["n_tokens"] - summary["n_scored"]
    for unit, field in UNITS.items():
        mean = ratio(nats, numbers[field], n_bootstrap, seed)
        summary[f"bits_per_{unit}"] = mean.changed_by(bits)
        name = "perplexity" if unit == "token" else f"{unit}_perplexity"
        summary[name] = mean.changed_by(lambda nats: perplexity(-nats))
    return summary


def _warnings(numbers: Mapping[str, np.ndarray], settings: Settings) -> list[str]:
    without = int((numbers["n_scored"] < numbers["n_tokens"]).sum())
    if not without or settings.score_from == "half":
        return []
    return [
        f"the first token of {without} of {len(numbers['n_tokens'])} documents has nothing before "
        "it and so no probability; bits per byte and per word count its bytes and words; "
        "--prefix-token-id puts a token before each document"
    ]


def headline(summary: Mapping[str, Any]) -> str:
    """Bits per byte with its interval, and the perplexities."""
    per_byte: Estimate = summary["bits_per_byte"]
    if per_byte.mean is None:
        return "no document was scored"
    span = per_byte.span(".4f", " (", ")")
    per_word = f", per word {summary['word_perplexity'].mean:.6g}"
    if summary["n_without_spaces"]:
        per_word = ""
    return (
        f"bits per byte {per_byte.mean:.4f}{span}, perplexity per token "
        f"{summary['perplexity'].mean:.6g}{per_word}, {counted(per_byte.n, 'documents')}"
    )


class Perplexity(System):
    """Measure how well a model predicts whole documents of any length. Each token is
    scored once, in windows that the model can read.

    input, one of
      JSONL       {"id": "a", "text": "It was the best of times, ..."}, one document
                  per line; `id` defaults to the line's number. Conversations have
                  `messages` in place of `text`, see score. A JSON array, .csv,
                  .tsv, .parquet or a folder of datasets' save_to_disk holds the
                  same; --column text=body reads a field from the column `body`
      a .txt file one document; with --lines each line that is not empty is one
      a folder    each .txt file in it is a document, in the order of their names

    windows: each reads up to --max-length tokens and scores those that no window
    before it scored: at most --stride, the first one up to --max-length. By default
    they are those of lm-evaluation-harness' loglikelihood_rolling. Half the
    stride gives tokens more context and takes twice as long.
    By default only the first window of a document reads its BOS; --window-bos every
    puts it in each. At most 32 later windows are scored again with it, and the run
    reports both numbers. --max-length 512 --window-bos every --score-from half
    scores the tokens that llama.cpp's llama-perplexity scores; n_bytes and n_words
    are then those of the scored tokens.

    A document fails if it has more than 2,097,152 characters without a place where
    the tokenizer certainly splits a text; of some tokenizers no place is certain.

    output, one line per document, in order, log-probabilities in nats:
      id, begin, text_sha256, n_tokens, n_scored, n_bytes (UTF-8), n_words,
      n_windows, sum_logprob, mean_logprob, perplexity (per token), bits_per_byte,
      bits_per_word; other fields of the input line. An OUT that ends in .csv, .tsv
      or .parquet is a table with these columns.
      Next to OUT are OUT.report.md and OUT.report.json (means over all documents
      together), OUT.report.html, a page for a browser with the worst documents
      first, and OUT.run.json.

    exit code: 0 all scored, 1 some documents failed (their lines hold `error`),
               2 unusable input.
    """

    name, what = "perplexity", "documents"
    item, settings, record = Item, Settings, Record
    text_field = "text"

    def needs(self, settings: Settings | None) -> tuple[str, ...]:
        """A local model, whose windows of tokens are scored."""
        return ("is_local",)

    def read(
        self, source: Any, columns: Mapping[str, str] = NOTHING, lists: Sequence[str] = ()
    ) -> Iterator[Row]:
        """See `System.read`; objects from Python may be the texts alone."""
        for row in super().read(source, columns, lists):
            is_object = isinstance(row.item, Mapping)
            yield row if is_object else row._replace(item={"text": row.item})

    def score(self, lm: Any, items: Sequence[Item], settings: Settings) -> Iterator[dict[str, Any]]:
        """Score every token of each document once, in windows.

        Raises:
            InputError: windows that the model cannot read.
        """
        windows = settings.text_windows(lm)
        audit = window_bos.Audit(lm, windows["text_windows"], settings)
        longest = 0

        def request_of(item: Item) -> tuple[Request, tuple[Any, Conversation | None]]:
            if item.messages is None:
                return Request("", "", item.text), (_facts(item, None), None)
            talk = settings.conversation(lm, item.messages)
            settings.note_conversation(lm, talk)
            return talk.request, (_facts(item, talk), talk)

        is_half = settings.score_from == "half"
        token_bytes = TokenBytes(lm.encoder.tokenizer) if is_half else None
        options = {**settings.options(), **windows}
        for _, further, scored in stream_items(lm, items, request_of, **options):
            facts, talk = further or ({}, None)
            longest = max(longest, scored.n_tokens)
            if scored.n_windows:  # a shorter document fails
                settings.note_windows(lm, scored.n_windows)
            if talk is None:
                audit.add(scored)
            if token_bytes is not None and scored.error is None:
                if not scored.n_windows:
                    yield {"error": NO_CHUNK.format(length=lm.about["max_length"])}
                    continue
                raw = b"".join(map(token_bytes.raw, scored.token_ids[scored.scored].tolist()))
                facts |= {"n_bytes": len(raw), "n_words": _n_words(raw.decode("utf-8", "replace"))}
            record = _record(facts, scored)
            yield record if talk is None or "error" in record else record | talk.fields(scored)
        with lm.timed():
            lm.counts.update(audit.counts())
        is_on_cpu = lm.engine.model.devices.platform == "cpu"
        if is_on_cpu and settings.max_length is None and longest > WIDE:
            length = min(longest, lm.about["max_length"])
            lm.warnings[TOO_WIDE.format(length=length)] += 1

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
        """Means per token, byte and word over the scored documents together."""
        no_spaces = array("b")

        def scored() -> Iterator[Mapping[str, Any]]:
            for record in records:
                if "error" not in record:
                    words = record["begin"], record["n_bytes"], record["n_words"]
                    no_spaces.append(lacks_spaces(*words))
                    yield record

        numbers = numbers_of(scored(), ("sum_logprob", *COUNTS))
        summary = summarise(numbers, settings.n_bootstrap, settings.seed)
        summary["n_without_spaces"] = sum(no_spaces)
        return Summary(
            headline=headline(summary),
            numbers=summary,
            failures=failed(records),
            warnings=[*_warnings(numbers, settings), *without_spaces(summary)],
        )

    def findings(self, run: Report) -> list[str]:
        """Return by how much a BOS in later windows moves their perplexity."""
        return window_bos.findings(run.facts.counts)

    def report(self, run: Report) -> Document:
        """The most bits per byte first; see `perplexity.report`."""
        return report(run.source(items=run.records))


SYSTEM = Perplexity()
