"""The interface of a language model: its methods for evaluation systems, and its limits.

    LM         score, stream, label, generate, describe: all models, local or on a server
    LocalLM    also the tokenizer, the journal, counters, other layouts: models in this process

A system reads `lm.capabilities` if its behaviour depends on the model, and otherwise just calls the
method. A method that the model does not support raises an `InputError`.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from jaxscore.errors import InputError
from jaxscore.types.results import Generated, ScoredRequest

if TYPE_CHECKING:  # these import JAX
    from jaxscore.engine.engine import Engine
    from jaxscore.engine.generation import Generator
    from jaxscore.engine.progress import RunStatistics
    from jaxscore.journal import Journal
    from jaxscore.text.encoder import Boundary, TextEncoder
    from jaxscore.text.tokenize_requests import Truncate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Supported operations and limits of a model. By default nothing is supported.

    Attributes:
        scores: `score` and `stream` work.
        labels: `label` works.
        generates: `generate` works.
        takes_messages: `generate` takes `ChatRequest`s; a local model needs a chat template.
        compares_models: scores have measures of two models, such as their KL divergence.
        is_local: the model runs in this process and is a `LocalLM`: chat templates and boundary
            audits work, `label` takes token ids, and `score` takes `special_tokens`, `measures`,
            `top`, `classes` and `ends`.
        has_other_layouts: the rounding-error audit works.
        has_distribution: scores have token ids, entropy and self-certainty. Otherwise the ids
            are -1 and the other values NaN.
        shares_prefixes: text that requests share is computed once, unless the model is loaded as
            `reproducible`.
        truncates: `score` accepts `truncate="left"`.
        boundaries: the policies of `jaxscore.text.encoder` that `score` accepts.
        vocab_size: the number of token ids, or None if unknown.
        max_positions: the maximum number of tokens of a text, or None if unknown.
    """

    scores: bool = False
    labels: bool = False
    generates: bool = False
    takes_messages: bool = False
    compares_models: bool = False
    is_local: bool = False
    has_other_layouts: bool = False
    has_distribution: bool = False
    shares_prefixes: bool = False
    truncates: bool = False
    boundaries: tuple[str, ...] = ()
    vocab_size: int | None = None
    max_positions: int | None = None


@runtime_checkable
class LM(Protocol):
    """A language model.

    Results have the order of the requests. A failed request has `error` set in its result and does
    not affect others. Log-probabilities, entropies and self-certainties are in nats.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Supported operations and limits of the model."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Warnings about the model for readers of the results, available after a run."""
        ...

    def describe(self) -> dict[str, Any]:
        """Describe the model and its computation as JSON, for reports."""
        ...

    def score(
        self,
        requests: Iterable[Any],
        *,
        boundary: "Boundary" = "joint",
        truncate: "Truncate | None" = None,
        special_tokens: bool = True,
        measures: Collection[str] = (),
        top: int = 0,
    ) -> list[ScoredRequest]:
        """Score the tokens of each continuation.

        Args:
            requests: `Request`s in any order; a local model also takes the forms of
                `jaxscore.types.requests`.
            boundary: the boundary policy, one of `capabilities.boundaries`.
            truncate: "left" drops the oldest context tokens of a request that is longer than the
                model's positions; with None such a request fails.
            special_tokens: if True, add the tokenizer's BOS to texts without one.
            measures: additional values per token; see `jaxscore.device.lm_head.sums`.
            top: the number of most probable tokens to return per token.

        Returns:
            One `ScoredRequest` per request; its arrays have one entry per token of the
            continuation.

        Raises:
            InputError: the model does not support an argument.
        """
        ...

    def stream(
        self,
        requests: Iterable[Any],
        *,
        boundary: "Boundary" = "joint",
        truncate: "Truncate | None" = None,
        special_tokens: bool = True,
        window: int | None = None,
        n_requests: int | None = None,
        measures: Collection[str] = (),
        top: int = 0,
    ) -> Iterator[ScoredRequest]:
        """Score like `score`, for more requests than fit in memory.

        Args:
            window: the number of requests planned together and kept in memory, or None for the
                model's default.
            n_requests: the number of requests if known, to estimate the remaining time.

        Raises:
            InputError: the model does not support an argument.
        """
        ...

    def label(self, requests: Iterable[Any], *, truncate: "Truncate | None" = None) -> list[Any]:
        """Compute the next-token distribution over a few labels after each prompt.

        Args:
            requests: `LabelRequest`s for a local model, `TextLabelRequest`s otherwise.
            truncate: see `score`; it applies to the prompt.

        Returns:
            One `LabelScores` per request, or one `ListedLabelScores` per `TextLabelRequest`.

        Raises:
            InputError: the model does not support labels or an argument.
        """
        ...

    def generate(self, requests: Iterable[Any], /) -> list[Generated]:
        """Continue prompts or answer conversations.

        Args:
            requests: `GenerationRequest`s, or `ChatRequest`s if the model takes messages.

        Raises:
            InputError: the model does not support generation or requests of this type.
        """
        ...


class LocalLM(LM, Protocol):
    """A model that runs in this process.

    Attributes:
        engine: the engine that scores token sequences.
        encoder: the encoder of text to token ids, with the tokenizer.
        journal: the results of earlier runs, or None.
        statistics: the counters of this process.
        batch_tokens: the number of tokens per batch, including padding.
    """

    @property
    def engine(self) -> "Engine": ...

    @property
    def encoder(self) -> "TextEncoder": ...

    @property
    def journal(self) -> "Journal | None": ...

    @property
    def statistics(self) -> "RunStatistics": ...

    @property
    def batch_tokens(self) -> int: ...

    @property
    def reproducible(self) -> bool:
        """True if the bits of a request's scores do not depend on other requests."""
        ...

    def other_layouts(self) -> Mapping[str, "LocalLM"]:
        """Return the same model with other layouts of batches and rows, by a readable name."""
        ...

    def uncounted(self) -> AbstractContextManager[None]:
        """Score without journal, counters and progress bar."""
        ...

    def generator(self) -> "Generator":
        """Return a generator that yields each result as soon as it is complete."""
        ...


# What to pass instead of a model that lacks a capability.
REMEDIES = {
    "scores": "a Scorer, as Scorer.from_pretrained makes it, or a CompletionsEndpoint",
    "labels": "a Scorer, as Scorer.from_pretrained makes it, or a CompletionsEndpoint",
    "generates": "a Scorer, as Scorer.from_pretrained makes it, or an endpoint",
    "takes_messages": "a Scorer, a ChatEndpoint or an OllamaEndpoint",
    "is_local": "a Scorer, as Scorer.from_pretrained makes it",
    "compares_models": "a DivergenceScorer, as DivergenceScorer.from_pretrained makes it of two "
    "models",
}


def require(system: str, lm: object, *needed: str | type) -> LM:
    """Check that `lm` is a model with the capabilities that a system needs.

    Args:
        system: the name of the system, for the message.
        needed: the required fields of `Capabilities`, keys of `REMEDIES`, or types.

    Raises:
        InputError: `lm` is not a model, or lacks a capability.
    """
    can = lm.capabilities if isinstance(lm, LM) else Capabilities()
    for need in needed:
        if isinstance(lm, need) if isinstance(need, type) else getattr(can, need):
            continue
        value = f" {lm!r}" if isinstance(lm, str) else ""
        remedy = f"a {need.__name__}" if isinstance(need, type) else REMEDIES[need]
        raise InputError(
            f"a source that is {type(lm).__name__}{value}, but {system} needs {remedy}"
        )
    return cast(LM, lm)


def require_local(system: str, lm: object, *needed: str) -> LocalLM:
    """Check that `lm` is a model in this process with some capabilities; see `require`.

    Raises:
        InputError: `lm` is not a local model, or lacks a capability.
    """
    return cast(LocalLM, require(system, lm, "is_local", *needed))
