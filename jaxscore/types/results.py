"""What comes back for a request: values, dicts, data frames, and tokens in a notebook."""

import dataclasses
import html
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxscore.analysis.perplexity import perplexity
from jaxscore.errors import InputError
from jaxscore.io.printable import one_line
from jaxscore.types.token_texts import LEGEND, tokens_html

PER_TOKEN = ("logprob", "entropy", "self_certainty", "greedy")

ARRAYS = ("token_ids", "tokens", *PER_TOKEN, "top_id", "top_logprob", "top_token")


class Result:
    """Of one request: compared by value, arrays included, and told as plain values."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal; NaN equals NaN, as for tokens without a probability."""
        if type(other) is not type(self):
            return NotImplemented
        pairs = ((getattr(self, name), getattr(other, name)) for name in _fields(self))
        return all(_same(one, another) for one, another in pairs)

    __hash__ = None  # type: ignore[assignment]  # arrays can change

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain Python values; NaN stays NaN."""
        values = ((name, getattr(self, name)) for name in _fields(self))
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in values
        }


def _fields(one: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(one)]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        floats = one.dtype.kind == "f" and other.dtype.kind == "f"
        return bool(np.array_equal(one, other, equal_nan=floats))
    if isinstance(one, float) and isinstance(other, float) and one != one:
        return other != other
    return bool(one == other)


def data_frame(columns: Any) -> Any:
    """A pandas DataFrame of columns or of rows.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise InputError(
            "to_frame makes a pandas DataFrame, and pandas is not installed; pip install pandas"
        ) from None
    return pandas.DataFrame(columns)


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TopTokens(Result):
    """The k most probable tokens at each place, the most probable first, the lowest id first among
    equal logits.

    Attributes:
        id: int32 [n, k]; -1 at a token with nothing before it.
        logprob: float32 [n, k], nats; NaN there.
        token: the tokenizer's names of them, empty there.
    """

    id: np.ndarray
    logprob: np.ndarray
    token: list[list[str]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScoredRequest(Result):
    """Per-token results of one request, aligned with its continuation's tokens.

    Attributes:
        id: the request's.
        token_ids: int32 [n].
        tokens: the tokenizer's names of them.
        logprob, entropy, self_certainty: float32 [n], nats; NaN for a token with nothing before
            it, which has no probability and stays out of every sum.
        greedy: bool [n], whether the token is the most probable one; of an endpoint that does not
            tell it for each token object [n], with None for the others.
        truncated: context tokens that were left out at the left, 0 unless asked for.
        error: why the request could not be scored; the arrays are then empty.
        measures: by its name each measure that was asked for, float32 [n], NaN as above.
        top: the most probable tokens at each place; None where they were not asked for.
    """

    id: str | int
    token_ids: np.ndarray
    tokens: list[str]
    logprob: np.ndarray
    entropy: np.ndarray
    self_certainty: np.ndarray
    greedy: np.ndarray
    truncated: int = 0
    error: str | None = None
    measures: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    top: TopTokens | None = None

    @property
    def scored(self) -> np.ndarray:
        """bool [n]: which tokens have a probability."""
        return ~np.isnan(self.logprob)

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def n_scored(self) -> int:
        return int(self.scored.sum())

    @property
    def sum_logprob(self) -> float | None:
        """Log-probability of the continuation in nats; None where no token was scored."""
        values = self._values(self.logprob)
        return float(values.sum()) if len(values) else None

    @property
    def mean_logprob(self) -> float | None:
        """Nats per token; None where no token was scored."""
        return _mean(self._values(self.logprob))

    @property
    def perplexity(self) -> float | None:
        """`exp(-mean_logprob)`, infinity where a float64 cannot hold it."""
        return perplexity(self.mean_logprob)

    @property
    def mean_entropy(self) -> float | None:
        """Nats per token, of the model's distribution at each scored token."""
        return _mean(self._values(self.entropy))

    @property
    def mean_self_certainty(self) -> float | None:
        """Nats per token (arXiv 2502.18581)."""
        return _mean(self._values(self.self_certainty))

    def sums(self) -> dict[str, Any]:
        """The sums and means of all scored tokens and their numbers, by name, computed together."""
        values = np.array([self.logprob, self.entropy, self.self_certainty], np.float64)
        total = values.sum(axis=1).tolist()
        if math.isnan(total[0]):
            known = ~np.isnan(values[0])
            values = np.ascontiguousarray(values[:, known])  # summed in the order of one column
            total = values.sum(axis=1).tolist()
        n = values.shape[1]
        total = total if n else [None] * 3
        mean = [None if one is None else one / n for one in total]
        return {
            "sum_logprob": total[0],
            "mean_logprob": mean[0],
            "perplexity": perplexity(mean[0]),
            "mean_entropy": mean[1],
            "mean_self_certainty": mean[2],
            "n_tokens": len(self.token_ids),
            "n_scored": n,
        }

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain Python values; NaN stays NaN.

        Measures stand beside the other values, and the most probable tokens as `top_id`,
        `top_logprob` and `top_token`.
        """
        out = Result.to_dict(self) | self.sums()
        del out["measures"], out["top"]
        out |= {name: values.tolist() for name, values in self.measures.items()}
        if self.top is not None:
            out |= {f"top_{name}": values for name, values in self.top.to_dict().items()}
        return out

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per token of the continuation.

        Raises:
            InputError: pandas is not installed.
        """
        columns = {name: getattr(self, name) for name in ("token_ids", "tokens", *PER_TOKEN)}
        return data_frame(columns | dict(self.measures))

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<ScoredRequest {self.id!r}: failed, {self.error}>"
        total = "not scored" if self.sum_logprob is None else f"{self.sum_logprob:.2f} nats"
        return f"<ScoredRequest {self.id!r}: {total}, {self.n_scored} of {self.n_tokens} tokens>"

    def _repr_html_(self) -> str:
        title = f"<b>{html.escape(one_line(str(self.id), 80))}</b> "
        if self.error is not None:
            return f"<div>{title}failed: {html.escape(self.error)}</div>"
        line = tokens_html(self.tokens, self.logprob, self.entropy, self.greedy)
        total = "" if self.sum_logprob is None else f"{self.sum_logprob:.2f} nats"
        return f'<div title="{LEGEND}">{title}{line} <small>{total}</small></div>'

    def _values(self, array: np.ndarray) -> np.ndarray:
        known = self.scored
        return (array if known.all() else array[known]).astype(np.float64)


class Strip(NamedTuple):
    """A scored text of an item, for pages that show its tokens.

    Attributes:
        title: what the text is of the item, such as "with the path"; may be empty.
        context: what stands before it.
        scored: its tokens and their numbers.
    """

    title: str
    context: str
    scored: ScoredRequest


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LabelScores(Result):
    """The next-token distribution over the labels of one request, in their order.

    Attributes:
        logprob: float64 [labels], nats, under the whole vocabulary.
        probability: float64 [labels], the softmax over the labels alone: sums to 1.
        outside: probability of the rest of the vocabulary, 0 to 1. Near 1 means that the model
            would not have answered with a label.
        error: why the request could not be scored; the arrays are then empty.
        truncated: prompt tokens that were left out at the left, 0 unless asked for.
    """

    id: str | int
    logprob: np.ndarray
    probability: np.ndarray
    outside: float
    error: str | None = None
    truncated: int = 0


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Choice(Result):
    """Which of a few texts is the most probable after a prompt.

    Attributes:
        prompt: what comes before.
        options: the texts.
        logprob: float64 [options], nats: of all tokens of each option together, so that a longer
            option has a lower one.
        probability: float64 [options], the softmax over the options alone: sums to 1.
        error: why the options could not be compared; the arrays are then empty.
    """

    prompt: str
    options: tuple[str, ...]
    logprob: np.ndarray
    probability: np.ndarray
    error: str | None = None

    @property
    def best(self) -> str | None:
        """The most probable option, the first of equal ones; None where there is an error."""
        return None if self.error is not None else self.options[int(self.logprob.argmax())]

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per option.

        Raises:
            InputError: pandas is not installed, or the options could not be compared.
        """
        if self.error is not None:
            raise InputError(self.error)
        names = ("options", "logprob", "probability")
        return data_frame({name: getattr(self, name) for name in names})

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<Choice: failed, {self.error}>"
        pairs = zip(self.options, self.probability, strict=True)
        told = ", ".join(f"{option!r} {p:.3f}" for option, p in pairs)
        return f"<Choice {self.best!r}: {told}>"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ListedLabelScores(Result):
    """What an endpoint's list of most probable next tokens says about the labels, in their order.

    Attributes:
        logprob: float64 [labels], nats; NaN for a label that is not in the list.
        probability: float64 [labels], the softmax over the labels that are listed, NaN for the
            others. Where one is missing these are upper bounds.
        missing: the labels that are not listed.
        missing_at_most: probability that each of them has at most, that of the list's last
            token; 0 where none is missing.
        error: why nothing is known; the arrays are then empty.
    """

    id: str | int
    logprob: np.ndarray
    probability: np.ndarray
    missing: tuple[str, ...]
    missing_at_most: float
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Generated(Result):
    """What a model wrote after a prompt.

    Attributes:
        text: without special tokens; cut before the stop string that begins first in it.
        token_ids: int32, those that were generated, up to the one that completed a stop string;
            the EOS left out.
        finish: "eos", "stop" or "length"; None where there is an error.
        error: why nothing could be generated.
        eos_id: the EOS that ended the text; None where something else did.
    """

    id: str | int
    text: str
    token_ids: np.ndarray
    finish: str | None
    error: str | None = None
    eos_id: int | None = None


def failed(id: str | int, error: str) -> ScoredRequest:
    """The result of a request that could not be scored."""
    nothing = np.zeros(0, np.float32)
    return ScoredRequest(
        id, np.zeros(0, np.int32), [], nothing, nothing, nothing, np.zeros(0, bool), error=error
    )


class Results(list[Any]):
    """The results of one call, in the order of its requests: a list that a notebook can show."""

    SHOWN = 20  # results in a notebook's cell

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per request, arrays left out.

        Raises:
            InputError: pandas is not installed.
        """
        rows = [
            {
                name: value
                for name, value in one.to_dict().items()
                if name not in ARRAYS and name not in getattr(one, "measures", ())
            }
            for one in self
        ]
        return data_frame(rows)

    def __repr__(self) -> str:
        n_failed = sum(one.error is not None for one in self)
        failed = f", {n_failed} failed" if n_failed else ""
        kinds = {type(one).__name__ for one in self}
        return f"<{len(self)} results{failed}: {', '.join(sorted(kinds)) or 'none'}>"

    def _repr_html_(self) -> str:
        lines = [
            one._repr_html_() if isinstance(one, ScoredRequest) else html.escape(repr(one))
            for one in self[: self.SHOWN]
        ]
        more = len(self) - self.SHOWN
        lines += [f"<div>and {more} more</div>"] if more > 0 else []
        return "".join(lines)
