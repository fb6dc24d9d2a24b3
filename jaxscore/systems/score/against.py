"""The same continuation after two contexts: the gain of each token, and numbers of a text.

Sums and means are over the tokens that have a probability after both contexts.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import numpy as np

from jaxscore.analysis.text_measures import bits, perplexity
from jaxscore.errors import InputError
from jaxscore.report.counts import counted
from jaxscore.shell.fields import Mean, Metric, PerToken
from jaxscore.shell.flags import flag
from jaxscore.shell.settings import Settings
from jaxscore.types.results import ScoredRequest

GROUP = "another context"
OTHER_TOKENS = (
    "its continuation has other tokens after the other context; add --boundary separate to encode "
    "it alone"
)
NO_GAIN = (
    "{n} of {total} texts have tokens without a probability after the other context, and so no "
    "gain; give --prefix-token-id ID, a token before each text such as the EOS"
)


def _mean_gain(record: Mapping[str, Any]) -> float | None:
    """Return the gain of a text per token; None if no token is scored after both contexts."""
    return None if record["sum_gain"] is None else float(record["sum_gain"]) / record["n_both"]


class AgainstFields(TypedDict, total=False):
    """Fields of a text that was also scored after another context; nats unless named otherwise."""

    against_logprob: PerToken[np.float32]
    gain: PerToken[np.float32]
    sum_gain: Annotated[
        float,
        Metric("gain of a text by its context, nats"),
        Mean("Gain by the context, nats per token", "n_both", "mean_gain", value=_mean_gain),
    ]
    gain_bits: float
    ifd: Annotated[
        float,
        Metric("ratio of mean surprisals with and without the context (IFD)"),
        Mean("IFD"),
    ]
    ifd_ppl: float
    long_ppl: Annotated[float, Metric("perplexity of the tokens that need the context (LongPPL)")]
    n_long: int
    n_both: int
    against_truncated: int


PER_TOKEN = ("against_logprob", "gain")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgainstSettings(Settings):
    """Settings of the other context."""

    against: str | None = flag(
        None,
        metavar="TEXT",
        group=GROUP,
        help="score each continuation after TEXT too ('' for none), and add its gain by the "
        "context: IFD, LongPPL. ReCaLL (arXiv 2406.15968) is `ifd` with the prefix as context and "
        "--against ''",
    )
    against_field: str | None = flag(
        None,
        expected="the name of a field",
        metavar="FIELD",
        group=GROUP,
        help="the same; this field of each item has the other context",
    )
    long_gain: float = flag(
        2.0,
        metavar="NATS",
        group=GROUP,
        is_advanced=True,
        help="long_ppl is over tokens whose gain is above this (default 2)",
    )
    long_logprob: float = flag(
        -2.0,
        metavar="NATS",
        group=GROUP,
        is_advanced=True,
        help="and whose log-probability is above this (default -2)",
    )

    def __post_init__(self) -> None:
        """Check all values; see `Settings`."""
        super().__post_init__()
        if self.against is not None and self.against_field is not None:
            raise InputError("against and against_field: both give the other context; give one")
        for name in ("long_gain", "long_logprob"):
            value = getattr(self, name)
            if not self.has_other and value != getattr(AgainstSettings, name):
                raise InputError(
                    f"setting {name} is {value!r}, which only matters with --against or "
                    f"--against-field; add one, or leave out --{name.replace('_', '-')}"
                )

    @property
    def has_other(self) -> bool:
        """True if continuations are scored after another context too."""
        return self.against is not None or self.against_field is not None

    @property
    def further_fields(self) -> tuple[str, ...]:
        """See `Settings.further_fields`."""
        fields = () if self.against_field is None else (self.against_field,)
        return (*super().further_fields, *fields)

    def omitted_fields(self) -> frozenset[str]:
        """See `Settings.omitted_fields`."""
        fields = () if self.has_other else AgainstFields.__annotations__
        return super().omitted_fields() | frozenset(fields)


@np.errstate(invalid="ignore")  # two infinities have no difference
def gain_fields(
    scored: ScoredRequest, other: ScoredRequest, settings: AgainstSettings
) -> dict[str, Any]:
    """Compute the fields of a text.

    Args:
        scored: the continuation after its context, with at least one token.
        other: the same after the other context.

    Returns:
        The fields of `AgainstFields`, or `error`.
    """
    if other.error:
        return {"error": f"after the other context: {other.error}"}
    if scored.tokens != other.tokens or not np.array_equal(scored.token_ids, other.token_ids):
        return {"error": OTHER_TOKENS}
    logprob, before = (each.logprob.astype(np.float64) for each in (scored, other))
    gain = logprob - before
    both = scored.scored & other.scored
    n_both = int(both.sum())
    total = float(gain[both].sum()) if n_both else None
    surprisal = before[both].sum()
    needy = logprob[both & (gain > settings.long_gain) & (logprob > settings.long_logprob)]
    record = {
        "against_logprob": other.logprob,
        "gain": gain.astype(np.float32),
        "sum_gain": total,
        "gain_bits": None if total is None else bits(total),
        "ifd": float(logprob[both].sum() / surprisal) if surprisal else None,
        "ifd_ppl": None if total is None else perplexity(total / n_both),
        "long_ppl": perplexity(float(needy.mean())) if len(needy) else None,
        "n_long": len(needy),
        "n_both": n_both,
    }
    if other.truncated:
        record["against_truncated"] = other.truncated
    return record


class Gains:
    """Sums of the gains of all texts."""

    def __init__(self) -> None:
        """Start without texts."""
        self._gain, self._n_tokens, self._n_incomplete = 0.0, 0, 0
        self._ifd: list[float] = []

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a record without `error`, as JSON has it."""
        self._n_incomplete += record["n_both"] < record["n_scored"]
        if record["sum_gain"] is not None:
            self._gain += float(record["sum_gain"])
            self._n_tokens += record["n_both"]
        if record["ifd"] is not None:
            self._ifd.append(float(record["ifd"]))

    def numbers(self) -> dict[str, Any]:
        """Return the summary's numbers: nats per token, and IFD over texts."""
        n = len(self._ifd)
        return {
            "n_both": self._n_tokens,
            "mean_gain": self._gain / self._n_tokens if self._n_tokens else None,
            "n_ifd": n,
            "mean_ifd": sum(self._ifd) / n if n else None,
            "ifd_below_1": sum(value < 1 for value in self._ifd) / n if n else None,
        }

    def headline(self) -> str:
        """Return the end of the headline; empty without a gain."""
        numbers = self.numbers()
        if not numbers["n_ifd"]:
            return ""
        return (
            f"; gain by the context {numbers['mean_gain']:.4f} nats per token, IFD below 1 in "
            f"{100 * numbers['ifd_below_1']:.1f} % of {counted(numbers['n_ifd'], 'texts')}"
        )

    def warnings(self, n_texts: int) -> list[str]:
        """Return a warning about tokens without a gain, or nothing."""
        n = self._n_incomplete
        return [NO_GAIN.format(n=n, total=n_texts)] if n else []
