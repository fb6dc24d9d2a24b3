"""Results of requests: classes, conversion to dicts and data frames, display in notebooks."""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.analysis.text_measures import perplexity
from jaxscore.errors import InputError, one_line
from jaxscore.types.token_texts import LEGEND, tokens_html

PER_TOKEN = ("logprob", "entropy", "self_certainty", "greedy")

ARRAYS = ("token_ids", "tokens", *PER_TOKEN, "top_id", "top_logprob", "top_token")


class Result:
    """Result of one request. Results are compared by value, including arrays."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Return True if all fields are equal. NaN, as in unscored tokens, equals NaN."""
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(getattr(self, name), getattr(other, name)) for name in _fields(self))

    __hash__ = None  # type: ignore[assignment]  # arrays can change

    def to_dict(self) -> dict[str, Any]:
        """Convert all fields to plain Python values; NaN stays NaN."""
        values = ((name, getattr(self, name)) for name in _fields(self))
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in values
        }


def _fields(result: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(result)]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        are_floats = a.dtype.kind == "f" and b.dtype.kind == "f"
        return bool(np.array_equal(a, b, equal_nan=are_floats))
    if isinstance(a, float) and isinstance(b, float) and a != a:
        return b != b
    return bool(a == b)


def data_frame(columns: Any) -> Any:
    """Create a pandas DataFrame from columns or rows.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise InputError(
            "to_frame returns a pandas DataFrame, but pandas is not installed; pip install pandas"
        ) from None
    return pandas.DataFrame(columns)


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TopTokens(Result):
    """The k most probable tokens at each position, by descending logit, then by ascending id.

    Attributes:
        id: int32 [n, k]; -1 for an unscored token.
        logprob: float32 [n, k], nats; NaN for an unscored token.
        token: names in the vocabulary; empty for an unscored token.
    """

    id: np.ndarray
    logprob: np.ndarray
    token: list[list[str]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScoredRequest(Result):
    """Per-token results of one request, aligned with its continuation's tokens.

    Attributes:
        id: the request's id.
        token_ids: int32 [n].
        tokens: names in the vocabulary; of a text read in windows, looked up when they are read.
        logprob, entropy, self_certainty: float32 [n], nats; NaN for an unscored token: one without
            a preceding token. Every sum leaves it out.
        greedy: bool [n], True if the token is the most probable one; object [n] with None for
            unknown values if an endpoint does not report it for every token.
        truncated: number of context tokens dropped at the left; 0 without `truncate`.
        error: the reason why the request could not be scored (the arrays are then empty), or None.
        measures: name of each requested measure -> float32 [n], NaN for an unscored token.
        top: the most probable tokens at each position, or None if not requested.
        n_windows: number of windows that the text was read in; 1 without `text_windows`.
        end: name of each measure -> its value after the last token; empty unless requested, or if
            the text fills the model's positions.
    """

    id: str | int
    token_ids: np.ndarray
    tokens: Sequence[str]
    logprob: np.ndarray
    entropy: np.ndarray
    self_certainty: np.ndarray
    greedy: np.ndarray
    truncated: int = 0
    error: str | None = None
    measures: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    top: TopTokens | None = None
    n_windows: int = 1
    end: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def scored(self) -> np.ndarray:
        """Mask of the tokens that have a probability, bool [n]."""
        return ~np.isnan(self.logprob)

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def n_scored(self) -> int:
        return int(self.scored.sum())

    @property
    def sum_logprob(self) -> float | None:
        """Log-probability of the continuation in nats, or None if no token was scored."""
        values = self._values(self.logprob)
        return float(values.sum()) if len(values) else None

    @property
    def mean_logprob(self) -> float | None:
        """Mean log-probability in nats per token, or None if no token was scored."""
        return _mean(self._values(self.logprob))

    @property
    def perplexity(self) -> float | None:
        """`exp(-mean_logprob)`; infinity if it exceeds float64."""
        return perplexity(self.mean_logprob)

    @property
    def mean_entropy(self) -> float | None:
        """Mean entropy of the model's distribution, nats per scored token."""
        return _mean(self._values(self.entropy))

    @property
    def mean_self_certainty(self) -> float | None:
        """Mean self-certainty, nats per scored token (arXiv 2502.18581)."""
        return _mean(self._values(self.self_certainty))

    def sums(self) -> dict[str, Any]:
        """Compute sums, means and counts over the scored tokens, by name."""
        is_scored = self.scored
        n = int(is_scored.sum())
        arrays = (self.logprob, self.entropy, self.self_certainty)
        if n < len(is_scored):
            arrays = tuple(array[is_scored] for array in arrays)
        # One after the other, since a text may have millions of tokens.
        total = [float(array.astype(np.float64).sum()) if n else None for array in arrays]
        mean = [None if value is None else value / n for value in total]
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
        """Convert all fields and sums to plain Python values; NaN stays NaN.

        Each measure is a separate field; the most probable tokens are `top_id`, `top_logprob` and
        `top_token`.
        """
        out = Result.to_dict(self) | self.sums() | {"tokens": [*self.tokens]}
        del out["measures"], out["top"], out["end"]
        out |= {name: values.tolist() for name, values in self.measures.items()}
        if self.top is not None:
            out |= {f"top_{name}": values for name, values in self.top.to_dict().items()}
        return out

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per token of the continuation.

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
        is_scored = self.scored
        return (array if is_scored.all() else array[is_scored]).astype(np.float64)


class Strip(NamedTuple):
    """Scored text of an item, for pages that display its tokens.

    Attributes:
        title: the role of the text in the item, such as "with the path"; may be empty.
        context: the text before it.
        scored: its tokens and their scores.
    """

    title: str
    context: str
    scored: ScoredRequest

    def to_page(self) -> dict[str, Any]:
        """Return the fields that a page displays, for JSON."""
        names = ("token_ids", "tokens", "logprob", "entropy", "self_certainty", "greedy")
        values = {name: getattr(self.scored, name) for name in names}
        return {"title": self.title, "context": self.context, **values}

    @classmethod
    def from_page(cls, fields: Mapping[str, Any]) -> "Strip":
        """Return the strip of `to_page`'s fields as JSON has them."""
        scored = ScoredRequest(
            id="",
            token_ids=np.array(fields["token_ids"], np.int32),
            tokens=fields["tokens"],
            logprob=np.array(fields["logprob"], np.float32),
            entropy=np.array(fields["entropy"], np.float32),
            self_certainty=np.array(fields["self_certainty"], np.float32),
            greedy=np.array(fields["greedy"], object if None in fields["greedy"] else bool),
        )
        return cls(fields["title"], fields["context"], scored)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LabelScores(Result):
    """Next-token distribution over the labels of one request, in their order.

    Attributes:
        logprob: float64 [labels], nats, under the whole vocabulary.
        probability: float64 [labels], softmax over the labels alone: sums to 1.
        outside: probability of the rest of the vocabulary, 0 to 1. Near 1, the model would not
            answer with a label.
        error: the reason why the request could not be scored (the arrays are then empty), or None.
        truncated: number of prompt tokens dropped at the left; 0 without `truncate`.
    """

    id: str | int
    logprob: np.ndarray
    probability: np.ndarray
    outside: float
    error: str | None = None
    truncated: int = 0


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Choice(Result):
    """Probabilities of a few texts after a prompt.

    Attributes:
        prompt: the text before the options.
        options: the texts.
        logprob: float64 [options], nats, summed over an option's tokens; longer options tend to
            have lower values.
        probability: float64 [options], softmax over the options alone: sums to 1.
        error: the reason why the options could not be compared (the arrays are then empty), or
            None.
    """

    prompt: str
    options: tuple[str, ...]
    logprob: np.ndarray
    probability: np.ndarray
    error: str | None = None

    @property
    def best(self) -> str | None:
        """The most probable option, the first of several equal ones; None after an error."""
        return None if self.error is not None else self.options[int(self.logprob.argmax())]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per option.

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
        listed = ", ".join(f"{option!r} {p:.3f}" for option, p in pairs)
        return f"<Choice {self.best!r}: {listed}>"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ListedLabelScores(Result):
    """Probabilities of labels from an endpoint's list of the most probable next tokens.

    Attributes:
        logprob: float64 [labels], nats; NaN for a label that is not listed.
        probability: float64 [labels], softmax over the listed labels, NaN for the others; upper
            bounds if a label is missing.
        missing: the labels that are not listed.
        missing_at_most: upper bound of the probability of each missing label, the probability of
            the last listed token; 0 if no label is missing.
        error: the reason why the list is missing (the arrays are then empty), or None.
    """

    id: str | int
    logprob: np.ndarray
    probability: np.ndarray
    missing: tuple[str, ...]
    missing_at_most: float
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Generated(Result):
    """Text that a model generated after a prompt.

    Attributes:
        text: the text without special tokens, cut before the first stop string in it.
        token_ids: int32 [generated], up to the token that completed a stop string, without EOS.
        finish: "eos", "stop" or "length", or None after an error.
        error: the reason why the text could not be generated, or None.
        eos_id: the EOS that ended the text, or None if it ended otherwise.
    """

    id: str | int
    text: str
    token_ids: np.ndarray
    finish: str | None
    error: str | None = None
    eos_id: int | None = None


def failed(id: str | int, error: str) -> ScoredRequest:
    """Create the result of a request that could not be scored."""
    empty = np.zeros(0, np.float32)
    return ScoredRequest(
        id, np.zeros(0, np.int32), [], empty, empty, empty, np.zeros(0, bool), error=error
    )


class Results(list[Any]):
    """Results of one call, in the order of its requests: a list with a display for notebooks."""

    DISPLAYED = 20  # maximum number of results in a notebook's cell

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per request, without arrays.

        Raises:
            InputError: pandas is not installed.
        """
        rows = [
            {
                name: value
                for name, value in result.to_dict().items()
                if name not in ARRAYS and name not in getattr(result, "measures", ())
            }
            for result in self
        ]
        return data_frame(rows)

    def __repr__(self) -> str:
        n_failed = sum(result.error is not None for result in self)
        failed = f", {n_failed} failed" if n_failed else ""
        names = {type(result).__name__ for result in self}
        return f"<{len(self)} results{failed}: {', '.join(sorted(names)) or 'none'}>"

    def _repr_html_(self) -> str:
        lines = [
            result._repr_html_() if isinstance(result, ScoredRequest) else html.escape(repr(result))
            for result in self[: self.DISPLAYED]
        ]
        n_more = len(self) - self.DISPLAYED
        lines += [f"<div>and {n_more} more</div>"] if n_more > 0 else []
        return "".join(lines)
