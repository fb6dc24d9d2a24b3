"""Requests in, scores out: the only place where arrays cross between host and device."""

import functools
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscore import packing
from jaxscore.device.rows import Rows, Scores
from jaxscore.device.score import score_rows
from jaxscore.forest import Forest, TokenSequence, build
from jaxscore.models import checkpoint
from jaxscore.models.load import load
from jaxscore.models.model import Model
from jaxscore.platform import use_compilation_cache
from jaxscore.progress import Progress
from jaxscore.requests import Request, ScoredRequest, failed
from jaxscore.text import Encoded, TextEncoder, is_text, load_tokenizer

IN_FLIGHT = 2  # batches: one computing, one waiting, so that the device never waits for the host
WINDOW = 8192  # requests planned together by `stream`
BATCH_TOKENS = 4096


class SequenceScores(NamedTuple):
    """float32 nats and bool, one entry for each scored token of a `TokenSequence`."""

    logprob: np.ndarray
    entropy: np.ndarray
    self_certainty: np.ndarray
    greedy: np.ndarray


class Compiled(NamedTuple):
    """One program of a scorer, for the record."""

    rows: int
    row_length: int
    seconds: float
    temporary_bytes: int


class Scorer:
    """Scores text under one model.

    Example:
        >>> scorer = Scorer.from_pretrained("demo")
        >>> [scored] = scorer.score([Request("0", "The cat", " sat down")])
        >>> scored.sum_logprob, scored.mean_entropy
    """

    def __init__(
        self,
        model: Model,
        encoder: TextEncoder,
        *,
        batch_tokens: int = BATCH_TOKENS,
        progress: bool = False,
    ) -> None:
        """See `from_pretrained` for the arguments that the two share."""
        if batch_tokens < packing.SHORTEST_ROW:
            raise ValueError(f"batch_tokens {batch_tokens} is below {packing.SHORTEST_ROW}")
        self.model, self.encoder = model, encoder
        self.batch_tokens, self.progress = batch_tokens, progress
        self.compiled: list[Compiled] = []
        self.tokens_given = self.tokens_unique = self.tokens_laid_out = self.tokens_scored = 0
        self._programs: dict[tuple[int, int], Any] = {}
        self._score_rows = jax.jit(
            functools.partial(score_rows, model.hidden_states, model.unembedding)
        )

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        dtype: str = "auto",
        implementation: str = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
        batch_tokens: int = BATCH_TOKENS,
        progress: bool = False,
    ) -> "Scorer":
        """Load a checkpoint.

        Args:
            model: a local folder, a hub id, or "demo".
            dtype: "auto", "float32" or "bfloat16"; sums over the vocabulary are float32 always.
            implementation: "auto", "native" or "transformers".
            revision: of a hub id.
            trust_remote_code: lets the tokenizer, and nothing else, bring code.
            batch_tokens: tokens a batch, padding included; decides speed and memory.
            progress: a bar on stderr with tokens a second and the time left.

        Raises:
            InputError: the model cannot be used, and why.
        """
        use_compilation_cache()
        folder = checkpoint.resolve(model, revision, with_code=trust_remote_code)
        loaded = load(folder, dtype=dtype, implementation=implementation)
        encoder = TextEncoder(load_tokenizer(folder, trust_remote_code=trust_remote_code))
        return cls(loaded, encoder, batch_tokens=batch_tokens, progress=progress)

    def score(
        self, requests: Iterable[Request], *, boundary: str = "joint", truncate: str | None = None
    ) -> list[ScoredRequest]:
        """All requests planned together, in their order.

        Args:
            requests: in any order; what they share is computed once.
            boundary: where the continuation starts, see `jaxscore.text`.
            truncate: "left" drops the context's oldest tokens (after the BOS) from a request
                that is longer than the model's positions; None fails that request.

        Returns:
            One result a request. A request that cannot be scored has `error` set, and the
            others are not touched by it.
        """
        requests = list(requests)
        return list(
            self.stream(
                requests, boundary=boundary, truncate=truncate, window=max(1, len(requests))
            )
        )

    def stream(
        self,
        requests: Iterable[Request],
        *,
        boundary: str = "joint",
        truncate: str | None = None,
        window: int = WINDOW,
        n_requests: int | None = None,
    ) -> Iterator[ScoredRequest]:
        """Like `score`, for more than fits in memory.

        Args:
            requests, boundary, truncate: as in `score`.
            window: requests that are planned together, share their text and are held.
            n_requests: how many there will be, where it is known: for the time left.
        """
        if truncate not in (None, "left"):
            raise ValueError(f"truncate is {truncate!r}, expected None or 'left'")
        if window < 1:
            raise ValueError(f"window is {window}, expected at least 1")
        return self._stream(requests, boundary, truncate, window, n_requests)

    def _stream(
        self,
        requests: Iterable[Request],
        boundary: str,
        truncate: str | None,
        window: int,
        n_requests: int | None,
    ) -> Iterator[ScoredRequest]:
        waiting: deque[tuple[list[Request], list[_Prepared]]] = deque()

        def windows() -> Iterator[list[TokenSequence]]:
            source = iter(requests)
            while part := list(itertools.islice(source, window)):
                usable = [request if is_text(request) else Request(0, "", "") for request in part]
                encoded = self.encoder.encode(usable, boundary)
                prepared = [
                    self._prepare(sequences, truncate) if one is request else NO_TEXT
                    for request, one, sequences in zip(part, usable, encoded, strict=True)
                ]
                waiting.append((part, prepared))
                yield [sequence for item in prepared for sequence in item.sequences]

        for scores in self._run(windows(), n_requests):
            part, prepared = waiting.popleft()
            left = iter(scores)
            for request, item in zip(part, prepared, strict=True):
                own = list(itertools.islice(left, len(item.sequences)))
                yield self._result(request, item, own)

    def score_sequences(self, sequences: Sequence[TokenSequence]) -> list[SequenceScores]:
        """Token ids instead of text.

        Raises:
            ValueError: a sequence is longer than the model's positions or has an id that the
                model does not know.
        """
        for k, sequence in enumerate(sequences):
            if complaint := self._complaint(sequence):
                raise ValueError(f"sequence {k}: {complaint}")
        [scores] = self._run(iter([list(sequences)]))
        return scores

    def _prepare(self, encoded: Encoded, truncate: str | None) -> "_Prepared":
        """The sequences as they will be scored, or none and why not."""
        sequences, cut = [], 0
        for sequence in encoded:
            over = len(sequence.ids) - 1 - self.model.max_positions
            keep = len(self.encoder.prefix)
            # Without a BOS one context token must stay, or the continuation's first has none.
            if truncate == "left" and 0 < over <= sequence.start - max(keep, 1):
                ids = np.concatenate([sequence.ids[:keep], sequence.ids[keep + over :]])
                sequence, cut = TokenSequence(ids, sequence.start - over), max(cut, over)
            if complaint := self._complaint(sequence):
                return _Prepared((), 0, complaint)
            sequences.append(sequence)
        return _Prepared(tuple(sequences), cut, None)

    def _complaint(self, sequence: TokenSequence) -> str | None:
        n, most = len(sequence.ids), self.model.max_positions
        if n - 1 > most:
            continuation = n - sequence.start
            hint = (
                "shorten it"
                if continuation > most
                else "shorten the context, or drop its oldest tokens with --truncate left"
            )
            return (
                f"{n} tokens ({continuation} of them continuation), the model takes {most} "
                f"positions; {hint}"
            )
        if n and int(sequence.ids.max()) >= self.model.vocab_size:
            return (
                f"token id {int(sequence.ids.max())} is beyond the model's vocabulary of "
                f"{self.model.vocab_size}; tokenizer and model do not belong together"
            )
        return None

    def _result(
        self, request: Request, prepared: "_Prepared", scores: list[SequenceScores]
    ) -> ScoredRequest:
        if prepared.error:
            return failed(request.id, prepared.error)
        if not all(np.isfinite(part).all() for one in scores for part in one):
            return failed(
                request.id,
                "the model gave a log-probability or entropy that is not finite; "
                "check the weights, or score in float32",
            )
        ids = [sequence.ids[sequence.start :] for sequence in prepared.sequences]

        def joined(column: int, fill: Any) -> np.ndarray:
            """All sequences' values, with `fill` for tokens that have nothing before them."""
            parts = [
                np.pad(one[column], (len(own) - len(one[column]), 0), constant_values=fill)
                for own, one in zip(ids, scores, strict=True)
            ]
            return np.concatenate(parts) if parts else np.zeros(0, bool if column == 3 else "f4")

        token_ids = np.concatenate(ids) if ids else np.zeros(0, np.int32)
        return ScoredRequest(
            id=request.id,
            token_ids=token_ids,
            tokens=self.encoder.tokens(token_ids),
            logprob=joined(0, np.nan),
            entropy=joined(1, np.nan),
            self_certainty=joined(2, np.nan),
            greedy=joined(3, False),
            truncated=prepared.truncated,
        )

    def _run(
        self, windows: Iterator[list[TokenSequence]], n_expected: int | None = None
    ) -> Iterator[list[SequenceScores]]:
        """Scores of each window, with `IN_FLIGHT` batches dispatched ahead, across windows."""
        flight: deque[tuple[_Window, packing.RowBatch, Scores]] = deque()
        open_windows: deque[_Window] = deque()
        with Progress(self.progress) as progress:

            def fetch() -> None:
                window, batch, scores = flight.popleft()
                window.take(batch, jax.device_get(scores))
                progress.advance(batch.n_tokens)

            for sequences in windows:
                window = self._plan(sequences)
                open_windows.append(window)
                progress.extend(window.plan.n_tokens, len(sequences), n_expected)
                for batch in window.plan.batches():
                    window.n_open += 1
                    flight.append((window, batch, self._dispatch(batch, progress)))
                    if len(flight) > IN_FLIGHT:
                        fetch()
                window.planned = True
                while open_windows and open_windows[0].done:
                    yield open_windows.popleft().scores()
            while flight:
                fetch()
            for window in open_windows:
                yield window.scores()

    def _plan(self, sequences: list[TokenSequence]) -> "_Window":
        forest = build(sequences, share=self.model.shares_text)
        plan = packing.plan(
            forest,
            max_positions=self.model.max_positions,
            width=self.model.width,
            batch_tokens=self.batch_tokens,
            pack=self.model.shares_text,
        )
        self.tokens_given += forest.n_given
        self.tokens_unique += forest.n_nodes
        self.tokens_laid_out += plan.n_tokens
        self.tokens_scored += len(forest.edge_of)
        return _Window(forest, plan)

    def _dispatch(self, batch: packing.RowBatch, progress: Progress) -> Scores:
        rows = Rows(
            ids=jnp.asarray(batch.ids),
            position=jnp.asarray(batch.position),
            subtree_end=jnp.asarray(batch.subtree_end),
            query=jnp.asarray(batch.query),
            target=jnp.asarray(batch.target),
            n_queries=jnp.int32(len(batch.edge)),
        )
        program = self._programs.get(batch.shape)
        if program is None:
            with progress.says(f"compiling for {batch.shape[0]} rows of {batch.shape[1]}"):
                program = self._programs[batch.shape] = self._compile(batch.shape, rows)
        return program(self.model.params, rows)

    def _compile(self, shape: tuple[int, int], rows: Rows) -> Any:
        """Ahead of time, so that nothing can ever be compiled behind the user's back."""
        started = time.perf_counter()
        program = self._score_rows.lower(self.model.params, rows).compile()
        analysis = program.memory_analysis()
        temporary = int(analysis.temp_size_in_bytes) if analysis else 0
        self.compiled.append(Compiled(*shape, time.perf_counter() - started, temporary))
        return program


class _Prepared(NamedTuple):
    sequences: Encoded
    truncated: int
    error: str | None


NO_TEXT = _Prepared((), 0, "its text has half a surrogate pair, which is no character")


class _Window:
    """Requests planned together, and what has come back for them."""

    def __init__(self, forest: Forest, plan: packing.Plan) -> None:
        self.forest, self.plan = forest, plan
        self.n_open, self.planned = 0, False
        n = forest.n_edges
        self._logprob, self._entropy, self._self_certainty = (
            np.full(n, np.nan, np.float32) for _ in range(3)
        )
        self._greedy = np.zeros(n, bool)

    @property
    def done(self) -> bool:
        return self.planned and not self.n_open

    def take(self, batch: packing.RowBatch, scores: Scores) -> None:
        """Put a batch's answers at their edges."""
        n = len(batch.edge)
        asked = batch.edge >= 0
        edge = batch.edge[asked]
        self._logprob[edge] = scores.logprob[:n][asked]
        self._greedy[edge] = scores.greedy[:n][asked]
        for here, there in (
            (self._entropy, scores.entropy),
            (self._self_certainty, scores.self_certainty),
        ):
            here[edge] = np.broadcast_to(there[:n, None], asked.shape)[asked]
        self.n_open -= 1

    def scores(self) -> list[SequenceScores]:
        """One entry a sequence, in order."""
        columns = [
            values[self.forest.edge_of]
            for values in (self._logprob, self._entropy, self._self_certainty, self._greedy)
        ]
        bounds = self.forest.offsets.tolist()
        return [
            SequenceScores(*(column[a:b] for column in columns))
            for a, b in itertools.pairwise(bounds)
        ]
