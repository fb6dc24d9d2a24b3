"""Perplexity and bits per byte of documents of any length, each token scored once."""

import dataclasses
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np

from jaxscore.analysis.bootstrap import Estimate, numbers_of, ratio
from jaxscore.analysis.text_measures import bits, perplexity
from jaxscore.errors import InputError, NoItems, is_valid_unicode
from jaxscore.io.items import NOTHING, Row, read_rows
from jaxscore.io.json_input import check_regular, read_text
from jaxscore.io.streams import form_of
from jaxscore.io.tables import is_dataset
from jaxscore.lm import Capabilities
from jaxscore.report.counts import counted
from jaxscore.report.document import Document
from jaxscore.shell.fields import PAIRED, Mean, Metric, Total
from jaxscore.shell.flags import flag
from jaxscore.shell.report import Report
from jaxscore.shell.settings import SliceSettings
from jaxscore.shell.system import Summary, System, failed
from jaxscore.systems.perplexity import window_bos
from jaxscore.systems.perplexity.report import report, without_spaces
from jaxscore.systems.perplexity.windows import ScoredDocument, score_documents
from jaxscore.text.whole_words import lacks_spaces

WIDE = 2048  # tokens of a window, beyond which shorter windows are clearly faster on a CPU
TOO_WIDE = (
    "windows read up to {length} tokens, and on a CPU shorter ones are faster: with --max-length "
    "512 tokens have less context"
)
TABLES = frozenset({".jsonl", ".json", ".csv", ".tsv", ".parquet"})
UNITS = {"token": "n_scored", "byte": "n_bytes", "word": "n_words"}
COUNTS = ("n_tokens", "n_scored", "n_bytes", "n_words", "n_windows")


@dataclasses.dataclass(frozen=True)
class Item:
    """A document."""

    text: str

    def __post_init__(self) -> None:
        """Check that the text can be encoded."""
        if not is_valid_unicode(self.text):
            raise InputError("its text contains a lone surrogate (invalid Unicode)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(SliceSettings):
    """Settings of `perplexity`."""

    max_length: int | None = flag(
        None,
        least=1,
        metavar="N",
        help="tokens that a window reads (default: the model's positions; on a CPU fewer, such as "
        "512, are faster)",
    )
    stride: int | None = flag(
        None, least=1, metavar="N", help="tokens that a window scores (default: --max-length)"
    )
    audit_noise: int = flag(0, least=0, is_flag=False)

    def __post_init__(self) -> None:
        """Check all values; see `Settings`."""
        super().__post_init__()
        if self.truncate is not None:
            raise InputError(
                "truncate: documents are read in windows, so none is too long; leave it out"
            )
        if self.audit_noise:
            raise InputError(
                "audit_noise: perplexity decides nothing that rounding could turn; leave it out"
            )
        if self.max_length is not None and self.stride is not None:
            _check_stride(self.stride, self.max_length)

    def record(self) -> dict[str, Any]:
        """The settings as a report has them; `score` notes the resolved windows."""
        omitted = ("truncate", "max_length", "stride")
        return {name: value for name, value in super().record().items() if name not in omitted}


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


def _windows(settings: Settings, model: Capabilities) -> dict[str, int]:
    """`max_length` and `stride`, with the defaults that the model decides.

    Raises:
        InputError: the model has fewer positions, or the stride is longer than a window.
    """
    assert model.max_positions is not None  # a local model knows them
    most = model.max_positions
    length = most if settings.max_length is None else settings.max_length
    if length > most:
        raise InputError(
            f"max_length is {length}, and the model takes {most} positions; give at most that, or "
            "leave it out"
        )
    stride = length if settings.stride is None else settings.stride
    _check_stride(stride, length)
    return {"max_length": length, "stride": stride}


def _check_stride(stride: int, length: int) -> None:
    """Refuse a stride that is longer than a window."""
    if stride > length:
        raise InputError(
            f"stride is {stride}, and a window reads {length} tokens, so that some would have no "
            f"window; give at most {length}"
        )


def _record(document: ScoredDocument) -> dict[str, Any]:
    if document.error is not None:
        return {"error": document.error}
    total = document.sum_logprob
    mean = total / document.n_scored
    return {
        "begin": document.begin,
        "text_sha256": document.text_sha256,
        "n_tokens": document.n_tokens,
        "n_scored": document.n_scored,
        "n_bytes": document.n_bytes,
        "n_words": document.n_words,
        "n_windows": document.n_windows,
        "sum_logprob": total,
        "mean_logprob": mean,
        "perplexity": perplexity(mean),
        "bits_per_byte": -bits(total) / document.n_bytes,
        "bits_per_word": -bits(total) / document.n_words,
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


def _warnings(numbers: Mapping[str, np.ndarray]) -> list[str]:
    without = int((numbers["n_scored"] < numbers["n_tokens"]).sum())
    if not without:
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
    """How well does a model predict whole documents, however long? Each token is
    scored once, in windows that the model can read.

    input, one of
      JSONL       {"id": "a", "text": "It was the best of times, ..."}, one document
                  per line; `id` defaults to the line's number. A JSON array, .csv,
                  .tsv, .parquet or a folder of datasets' save_to_disk holds the
                  same; --column text=body reads a field from the column `body`
      a .txt file one document
      a folder    each .txt file in it is a document, in the order of their names

    windows: each reads up to --max-length tokens and scores those that no window
    before it scored: at most --stride, the first one up to --max-length. By default
    they are those of lm-evaluation-harness' loglikelihood_rolling. Half the
    stride gives tokens more context and takes twice as long.
    Only the first window of a document reads its BOS. At most 32 of the others are
    scored again with one; if that lowers their perplexity by more than noise, the
    run reports both numbers.

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

    def needs(self, settings: Settings | None) -> tuple[str, ...]:
        """A local model, whose windows of tokens are scored."""
        return ("is_local",)

    def read(
        self, source: Any, columns: Mapping[str, str] = NOTHING, lists: Sequence[str] = ()
    ) -> Iterator[Row]:
        """Read a table, a `.txt` file as one row, or each `.txt` file of a folder as one.

        Objects from Python may be the texts alone.

        Raises:
            InputError: the files cannot be read, or hold nothing.
        """
        if not isinstance(source, Path):
            for row in super().read(source):
                is_object = isinstance(row.item, Mapping)
                yield row if is_object else row._replace(item={"text": row.item})
            return
        path = source
        is_folder = path.is_dir() and not is_dataset(path)
        if not is_folder and form_of(path) != ".txt":
            try:
                yield from read_rows(path, columns, lists)
            except InputError as problem:
                if path.is_dir() or form_of(path) in TABLES or isinstance(problem, NoItems):
                    raise
                raise InputError(f"{problem}; the name of a plain text ends in .txt") from None
            return
        if columns:
            raise InputError(f"{path}: --column names fields of a table, and text files have none")
        files = sorted(path.glob("*.txt")) if is_folder else [path]
        if not files:
            raise InputError(
                f"{path}: found a folder without a .txt file; expected text files, a file of JSONL "
                "or another table, or a folder that save_to_disk of datasets wrote"
            )
        for number, file in enumerate(files, start=1):
            check_regular(file)
            yield Row(number, str(file), {"id": file.name, "text": read_text(file)})

    def score(self, lm: Any, items: Sequence[Item], settings: Settings) -> Iterator[dict[str, Any]]:
        """Score every token of each document once, in windows.

        Raises:
            InputError: windows that the model cannot read.
        """
        windows = _windows(settings, lm.capabilities)
        lm.about.update(windows)
        audit = window_bos.Audit(lm, windows["max_length"], settings.seed)
        longest = 0
        with lm.timed():
            for document in score_documents(lm, items, audit=audit, **windows):
                longest = max(longest, document.n_tokens)
                yield _record(document)
            lm.counts.update(audit.counts())
        is_on_cpu = lm.engine.model.devices.platform == "cpu"
        if is_on_cpu and settings.max_length is None and longest > WIDE:
            lm.warnings[TOO_WIDE.format(length=min(longest, windows["max_length"]))] += 1

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
            warnings=[*_warnings(numbers), *without_spaces(summary)],
        )

    def findings(self, run: Report) -> list[str]:
        """That a BOS would make later windows more probable, if it does."""
        return window_bos.findings(run.facts.counts)

    def report(self, run: Report) -> Document:
        """The most bits per byte first; see `perplexity.report`."""
        return report(run.source(items=run.records))


SYSTEM = Perplexity()
