"""Perplexity of documents as one call: texts and settings in, an `Evaluation` out."""

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.analysis.perplexity import bits, perplexity
from jaxscore.analysis.ratio import ratio
from jaxscore.errors import InputError
from jaxscore.lm import Capabilities, require_local
from jaxscore.systems.evaluation import (
    CommonSettings,
    Evaluation,
    Failure,
    check_at_least,
    check_found,
)
from jaxscore.systems.perplexity.documents import read
from jaxscore.systems.perplexity.reading import scored

UNITS = {"token": "n_scored", "byte": "n_bytes", "word": "n_words"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Settings of `perplexity`.

    Attributes:
        max_length: tokens that a window reads at most; None is the model's positions.
        stride: tokens that each window after the first scores; None is `max_length`.
        prefix_token_id: stands before each document in place of the tokenizer's BOS; None is
            that BOS, where the tokenizer has one.
    """

    max_length: int | None = None
    stride: int | None = None
    prefix_token_id: int | None = None

    def __post_init__(self) -> None:
        """Check all values; see `CommonSettings`."""
        super().__post_init__()
        for name, least in (("max_length", 1), ("stride", 1), ("prefix_token_id", 0)):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), least)
        if self.truncate is not None:
            raise InputError(
                "truncate: documents are read in windows, so none is too long; leave it out"
            )
        if self.audit_noise:
            raise InputError(
                "audit_noise: perplexity decides nothing that rounding could turn; leave it out"
            )

    def record(self) -> dict[str, Any]:
        """The settings as a report has them; the windows' are resolved by `evaluate`."""
        every = super().record()
        return {k: v for k, v in every.items() if k not in ("truncate", "max_length", "stride")}


def evaluate(lm: Any, items: Iterable[Any], settings: Settings) -> Evaluation:
    """Score every token of each document once, in windows.

    Args:
        lm: a `LocalLM`.
        items: texts, or objects as the input file has them. One that is unusable fails alone.

    Raises:
        InputError: no items, a model of another process, or windows that the model cannot read.
    """
    lm = require_local("perplexity", lm)
    how = _windows(settings, lm.capabilities)
    started = time.perf_counter()
    found = list(scored(lm, read(items), prefix_token_id=settings.prefix_token_id, **how))
    seconds = time.perf_counter() - started
    check_found(len(found), "documents")
    records = [one.record() for one in found]
    good = [one for one in records if "error" not in one]
    summary = summarise(good, settings.n_bootstrap, settings.seed)
    return Evaluation(
        summary=summary,
        items=records,
        n_items=len(records),
        rows=records,
        details={"summary": summary, "windows": how},
        long={"documents": records},
        headline=headline(summary),
        failures=[Failure(one.name, one.error) for one in found if one.error is not None],
        remarks=remarks(good),
        seconds=seconds,
    )


def _windows(settings: Settings, can: Capabilities) -> dict[str, int]:
    """`max_length` and `stride`.

    Raises:
        InputError: the model has fewer positions or ids, or the stride is longer than a window.
    """
    assert can.max_positions is not None  # a local model knows both
    assert can.vocab_size is not None
    most = can.max_positions
    length = most if settings.max_length is None else settings.max_length
    if length > most:
        raise InputError(
            f"max_length is {length}, and the model takes {most} positions; give at most that, or "
            "leave it out"
        )
    stride = length if settings.stride is None else settings.stride
    if stride > length:
        raise InputError(
            f"stride is {stride}, and a window reads {length} tokens, so that some would have no "
            f"window; give at most {length}"
        )
    prefix, columns = settings.prefix_token_id, can.vocab_size
    if prefix is not None and prefix >= columns:
        raise InputError(f"prefix_token_id is {prefix}, expected an id from 0 to {columns - 1}")
    return {"max_length": length, "stride": stride}


def summarise(good: Sequence[Mapping[str, Any]], n_bootstrap: int, seed: int) -> dict[str, Any]:
    """Sums over all documents, and means per token, byte and word with their intervals.

    Args:
        good: the records of the documents that were scored.
    """
    nats = [-one["sum_logprob"] for one in good]
    counts = ("n_tokens", "n_scored", "n_bytes", "n_words", "n_windows")
    out: dict[str, Any] = {"n_documents": len(good)}
    out |= {name: sum(one[name] for one in good) for name in counts}
    out["n_left_out"] = out["n_tokens"] - out["n_scored"]
    for unit, field in UNITS.items():
        mean = ratio(nats, [one[field] for one in good], n_bootstrap, seed)
        out[f"bits_per_{unit}"] = _mapped(mean, bits)
        name = "perplexity" if unit == "token" else f"{unit}_perplexity"
        out[name] = _mapped(mean, lambda one: perplexity(-one))
    return out


def _mapped(one: Estimate, change: Any) -> Estimate:
    """An estimate in another unit; a rising function keeps the order of the bootstrap's draws."""
    values = (None if value is None else change(value) for value in (one.mean, one.low, one.high))
    return Estimate(one.n, *values)


def remarks(good: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the numbers leave out."""
    without = sum(one["n_scored"] < one["n_tokens"] for one in good)
    if not without:
        return []
    return [
        f"the first token of {without} of {len(good)} documents has nothing before it and so no "
        "probability; bits per byte and per word count its bytes and words; prefix_token_id "
        "(--prefix-token-id) puts a token before each document"
    ]


def headline(summary: Mapping[str, Any]) -> str:
    """Bits per byte with its interval, and the perplexities."""
    per_byte: Estimate = summary["bits_per_byte"]
    if per_byte.mean is None:
        return "no document was scored"
    span = ""
    if per_byte.low is not None and per_byte.high is not None:
        span = f" (95% interval {per_byte.low:.4f} to {per_byte.high:.4f})"
    return (
        f"bits per byte {per_byte.mean:.4f}{span}, perplexity per token "
        f"{summary['perplexity'].mean:.6g}, per word {summary['word_perplexity'].mean:.6g}, "
        f"{per_byte.n} documents"
    )
