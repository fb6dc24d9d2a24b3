"""Text in, scores out: requests encoded, checked, scored and told again as results."""

import importlib.metadata
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxscore.engine import processes
from jaxscore.engine.batch_budget import AUTO, auto_batch_tokens
from jaxscore.engine.pipeline import BATCH_TOKENS, SequenceScorer
from jaxscore.engine.platform import use_compilation_cache
from jaxscore.journal.database import Journal
from jaxscore.models.load import load
from jaxscore.models.model import Model
from jaxscore.models.weights import checkpoint
from jaxscore.models.weights.fingerprint import fingerprint
from jaxscore.plan.forest import TokenSequence
from jaxscore.plan.window import SequenceScores
from jaxscore.requests import LabelRequest, LabelScores, Request, ScoredRequest, failed
from jaxscore.text.encoder import Encoded, TextEncoder, is_text, load_tokenizer

WINDOW = 8192  # requests planned together by `stream`
NUMBERS = 1  # raised with every change that moves a score, so that no journal mixes the two


class Scorer(SequenceScorer):
    """Scores text under one model.

    Example:
        >>> scorer = Scorer.from_pretrained("demo")
        >>> [scored] = scorer.score([Request("0", "The cat", " sat down")])
        >>> scored.sum_logprob, scored.mean_entropy

    Attributes:
        about: everything but the requests that decides the numbers, as JSON has it; empty for a
            model that did not come from a checkpoint.
    """

    def __init__(
        self,
        model: Model,
        encoder: TextEncoder,
        *,
        batch_tokens: int = BATCH_TOKENS,
        progress: bool = False,
        journal: Journal | None = None,
        reproducible: bool = False,
    ) -> None:
        """See `from_pretrained` and `SequenceScorer` for the arguments that they share."""
        super().__init__(
            model,
            batch_tokens=batch_tokens,
            progress=progress,
            journal=journal,
            reproducible=reproducible,
        )
        self.encoder = encoder
        self.about: dict[str, Any] = {}

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        dtype: str = "auto",
        implementation: str = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
        cache_dir: Path | None = None,
        lora: Path | None = None,
        quantize: str | None = None,
        batch_tokens: int | str = BATCH_TOKENS,
        progress: bool = False,
        journal: Path | None = None,
        mesh: str | None = None,
        reproducible: bool = False,
    ) -> "Scorer":
        """Load a checkpoint.

        Args:
            model: a local folder, a hub id, or "demo".
            dtype: "auto", "float32" or "bfloat16"; sums over the vocabulary are float32 always.
            implementation: "auto", "native" or "transformers".
            revision: of a hub id.
            trust_remote_code: lets the tokenizer, and nothing else, bring code.
            cache_dir: where a hub id is downloaded to; None is the hub's own place.
            lora: a folder with an adapter in PEFT's format, merged into the weights.
            quantize: "int8" stores the layers' weights as 8-bit integers.
            batch_tokens: tokens a batch, padding included; decides speed and memory. "auto" is
                what the device's memory takes.
            progress: a bar on stderr with tokens a second and the time left.
            journal: a file that keeps what is scored, so that the next run with it need not; held
                until `close`.
            mesh: the devices, "auto" or "data=N,model=M"; None is the first one.
            reproducible: the bits of a request's scores depend on that request alone; slower.

        Raises:
            InputError: the model or the journal cannot be used, and why.
        """
        use_compilation_cache()
        folder = checkpoint.resolve(
            model, revision, with_code=trust_remote_code, cache_dir=cache_dir
        )
        loaded = load(
            folder,
            dtype=dtype,
            implementation=implementation,
            adapter=lora,
            quantize=quantize,
            mesh=mesh,
        )
        encoder = TextEncoder(load_tokenizer(folder, trust_remote_code=trust_remote_code))
        arrangement = loaded.arrangement
        copies = f"{fingerprint(folder, lora, times=False)} {arrangement and arrangement.shape}"
        processes.agree("weights or mesh", copies.encode())
        about = {
            "model": fingerprint(folder, lora),
            "model_type": loaded.model_type,
            "dtype": loaded.dtype,
            "quantize": quantize,
            "implementation": loaded.implementation,
            "platform": jax.default_backend(),
            "device_kind": jax.devices()[0].device_kind,
            "reproducible": reproducible,
            "shards": arrangement.shape.model if arrangement else 1,
            "jax": jax.__version__,
            "numbers": NUMBERS,
        }
        if loaded.implementation == "transformers":
            about["transformers"] = importlib.metadata.version("transformers")
        if batch_tokens == AUTO:
            batch_tokens = BATCH_TOKENS if reproducible else auto_batch_tokens(loaded)
        scorer = cls(
            loaded,
            encoder,
            batch_tokens=int(batch_tokens),
            progress=progress,
            journal=None if journal is None else Journal(journal, about),
            reproducible=reproducible,
        )
        scorer.about = about
        return scorer

    def close(self) -> None:
        """Let other runs have the journal."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    def score(
        self,
        requests: Iterable[Request],
        *,
        boundary: str = "joint",
        truncate: str | None = None,
        special_tokens: bool = True,
    ) -> list[ScoredRequest]:
        """All requests planned together, in their order.

        Args:
            requests: in any order; what they share is computed once.
            boundary: where the continuation starts, see `jaxscore.text.encoder`.
            truncate: "left" drops the context's oldest tokens (after the BOS) from a request
                that is longer than the model's positions; None fails that request.
            special_tokens: whether the tokenizer's BOS is put before a text that has none.

        Returns:
            One result a request. A request that cannot be scored has `error` set, and the
            others are not touched by it.
        """
        requests = list(requests)
        return list(
            self.stream(
                requests,
                boundary=boundary,
                truncate=truncate,
                special_tokens=special_tokens,
                window=max(1, len(requests)),
            )
        )

    def stream(
        self,
        requests: Iterable[Request],
        *,
        boundary: str = "joint",
        truncate: str | None = None,
        special_tokens: bool = True,
        window: int = WINDOW,
        n_requests: int | None = None,
    ) -> Iterator[ScoredRequest]:
        """Like `score`, for more than fits in memory.

        Args:
            requests, boundary, truncate, special_tokens: as in `score`.
            window: requests that are planned together, share their text and are held.
            n_requests: how many there will be, where it is known: for the time left.
        """
        if truncate not in (None, "left"):
            raise ValueError(f"truncate is {truncate!r}, expected None or 'left'")
        if window < 1:
            raise ValueError(f"window is {window}, expected at least 1")
        return self._stream(requests, boundary, truncate, special_tokens, window, n_requests)

    def _stream(
        self,
        requests: Iterable[Request],
        boundary: str,
        truncate: str | None,
        special_tokens: bool,
        window: int,
        n_requests: int | None,
    ) -> Iterator[ScoredRequest]:
        waiting: deque[tuple[list[Request], list[_Prepared]]] = deque()

        def windows() -> Iterator[list[TokenSequence]]:
            source = iter(requests)
            while part := list(itertools.islice(source, window)):
                usable = [
                    request
                    if is_text(request.context + request.continuation)
                    else Request(0, "", "")
                    for request in part
                ]
                encoded = self.encoder.encode(usable, boundary, special_tokens=special_tokens)
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

    def label(
        self, requests: Iterable[LabelRequest], *, truncate: str | None = None
    ) -> list[LabelScores]:
        """The next-token distribution over a few ids after each prompt.

        Args:
            requests: in any order; what their prompts share is computed once.
            truncate: as in `score`; here it drops the prompt's oldest tokens.

        Returns:
            One result a request, in order; one that cannot be scored has `error` set.
        """
        requests = list(requests)
        texts = [request.prompt if is_text(request.prompt) else "" for request in requests]
        prepared = []
        for request, text, ids in zip(requests, texts, self.encoder.prompt_ids(texts), strict=True):
            encoded = tuple(
                TokenSequence(np.append(ids, np.int32(label)), len(ids))
                for label in request.label_ids
            )
            if len(set(request.label_ids)) < max(1, len(request.label_ids)):
                found = f"its label ids are {list(request.label_ids)}"
                item = _Prepared((), 0, f"{found}, expected at least one, each once")
            elif text != request.prompt:
                item = NO_TEXT
            elif not len(ids):
                item = _Prepared((), 0, "its prompt has no tokens, so nothing comes after it")
            else:
                item = self._prepare(encoded, truncate)
            prepared.append(item)
        # A label is asked for after the prompt and is no part of it.
        sequences = [one for item in prepared for one in item.sequences]
        [scores] = self._run(iter([sequences]), n_unfed=1)
        left = iter(scores)
        return [
            _label_scores(request.id, item, list(itertools.islice(left, len(item.sequences))))
            for request, item in zip(requests, prepared, strict=True)
        ]

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

    def _result(
        self, request: Request, prepared: "_Prepared", scores: list[SequenceScores]
    ) -> ScoredRequest:
        if prepared.error:
            return failed(request.id, prepared.error)
        if not all(np.isfinite(part).all() for one in scores for part in one):
            return failed(request.id, NOT_FINITE)
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


def _label_scores(
    id: str | int, prepared: "_Prepared", scores: list[SequenceScores]
) -> LabelScores:
    nothing = np.zeros(0)
    if prepared.error:
        return LabelScores(id, nothing, nothing, 0.0, prepared.error)
    logprob = np.array([one.logprob[-1] for one in scores], np.float64)
    if not np.isfinite(logprob).all():
        return LabelScores(id, nothing, nothing, 0.0, NOT_FINITE)
    total = np.exp(logprob).sum()
    weights = np.exp(logprob - logprob.max())
    return LabelScores(id, logprob, weights / weights.sum(), max(0.0, 1.0 - float(total)))


class _Prepared(NamedTuple):
    sequences: Encoded
    truncated: int
    error: str | None


NOT_FINITE = (
    "the model gave a log-probability or entropy that is not finite; "
    "check the weights, or score in float32"
)
NO_TEXT = _Prepared((), 0, "its text has half a surrogate pair, which is no character")
