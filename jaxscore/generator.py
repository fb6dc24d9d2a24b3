"""Prompts in, text out: greedy or seeded sampling with a KV cache."""

import math
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from jaxscore.engine.engine import Engine
from jaxscore.engine.text_pipeline import TextPipeline
from jaxscore.engine.writing import Writing
from jaxscore.models.model import Model
from jaxscore.plan.sequence_checks import placeholder
from jaxscore.plan.token_requests import TokenRequest
from jaxscore.requests import GenerationRequest
from jaxscore.results import Generated, Results
from jaxscore.text.encoder import TextEncoder, is_text

# In the place of what is no request.
NOTHING = TokenRequest(np.zeros(0, np.int32), 0, 0.0, 1.0, 0, (), ())


class EngineOwner(Protocol):
    """What a `Scorer` has that a generator needs."""

    @property
    def engine(self) -> Engine: ...
    @property
    def encoder(self) -> TextEncoder: ...
    @property
    def model(self) -> Model: ...


class Generator:
    """Writes text with a scorer's model.

    Example:
        >>> generator = Generator(Scorer.from_pretrained("demo"))
        >>> [written] = generator.generate([GenerationRequest("0", "The cat", max_new_tokens=10)])
        >>> written.text
    """

    def __init__(self, scorer: EngineOwner) -> None:
        self.scorer, self.encoder, self.model = scorer, scorer.encoder, scorer.model
        eos = self.model.eos_ids
        own = self.encoder.tokenizer.eos_token_id
        self.eos_ids = eos or (() if own is None else (int(own),))
        self._texts = TextPipeline(scorer.engine, self.eos_ids, self._decode)

    def generate(self, requests: Iterable[GenerationRequest]) -> list[Generated]:
        """Continue each prompt.

        Args:
            requests: in any order; what their prompts share is computed once.

        Returns:
            One result for each request, in order; one that cannot be generated has `error` set. A
            text ends at one of the checkpoint's EOS ids, before a stop string, at its
            `max_new_tokens`, or where the model has no positions left.

        Raises:
            InputError: the scorer's journal cannot be used.
        """
        requests = list(requests)
        wrong = [_wrong_type(request) for request in requests]
        texts = [
            "" if complaint or not is_text(request.prompt) else request.prompt
            for request, complaint in zip(requests, wrong, strict=True)
        ]
        asked = [
            Writing(NOTHING, error=complaint)
            if complaint
            else Writing(self._asked(request, ids), error=self._complaint(request, ids))
            for request, complaint, ids in zip(
                requests, wrong, self.encoder.prompt_ids(texts), strict=True
            )
        ]
        return Results(
            _result(getattr(request, "id", k), one)
            for k, (request, one) in enumerate(zip(requests, self._texts.run(asked), strict=True))
        )

    def _asked(self, request: GenerationRequest, ids: np.ndarray) -> TokenRequest:
        return TokenRequest(
            ids,
            min(request.max_new_tokens, self._room(ids)),
            request.temperature,
            request.top_p,
            request.seed % 2**32,
            request.stop,
            self.eos_ids,
        )

    def _room(self, ids: np.ndarray) -> int:
        """Tokens that may follow; the last one is never fed, which only our own cache knows."""
        return self.model.max_positions - len(ids) + (self.model.cached is not None)

    def _complaint(self, request: GenerationRequest, ids: np.ndarray) -> str | None:
        if not is_text(request.prompt):
            return "its prompt has half a surrogate pair, which is no character"
        if not len(ids):
            return "its prompt has no tokens, so nothing comes after it"
        if self._room(ids) < 1:
            return (
                f"its prompt has {len(ids)} tokens, the model takes {self.model.max_positions} "
                "positions, which leaves none to write in; shorten it"
            )
        if int(ids.max()) >= self.model.vocab_size:
            return (
                f"token id {int(ids.max())} is beyond the model's vocabulary of "
                f"{self.model.vocab_size}; tokenizer and model do not belong together"
            )
        if held := sorted({*ids.tolist()} & {*self.model.placeholders}):
            return placeholder(held[0], self.model.placeholders)
        r = request
        hot = not 0 <= r.temperature < math.inf  # which NaN is too
        if r.max_new_tokens < 1 or hot or not 0 < r.top_p <= 1:
            return (
                f"max_new_tokens {r.max_new_tokens}, temperature {r.temperature} and top_p "
                f"{r.top_p}: expected at least 1, at least 0 and finite, and above 0 up to 1"
            )
        if "" in r.stop:
            return "a stop string is empty, so the text would end before it begins"
        longer, n_new = self.model.longer, min(r.max_new_tokens, self._room(ids))
        if longer is not None and len(ids) <= longer[0] < len(ids) + n_new - 1:
            return (
                f"its prompt of {len(ids)} tokens and {n_new} new ones go beyond the "
                f"{longer[0]} up to which this model has other rotary frequencies; ask for at "
                f"most {longer[0] - len(ids) + 1} new tokens"
            )
        return None

    def _decode(self, ids: list[int]) -> str:
        return self.encoder.tokenizer.decode(ids, skip_special_tokens=True)


def _result(id: str | int, one: Writing) -> Generated:
    if one.error:
        return Generated(id, "", np.zeros(0, np.int32), None, one.error)
    return Generated(id, one.text, np.array(one.written, np.int32), one.finish)


def _wrong_type(request: Any) -> str | None:
    """Which field of a request has a wrong type."""
    if not isinstance(request, GenerationRequest):
        return f"it is of type {type(request).__name__}, expected a GenerationRequest or a string"
    r = request
    whole, number = int | np.integer, int | float | np.integer | np.floating
    expected = {
        "prompt": (r.prompt, str, "a string"),
        "max_new_tokens": (r.max_new_tokens, whole, "a whole number"),
        "temperature": (r.temperature, number, "a number"),
        "top_p": (r.top_p, number, "a number"),
        "stop": (r.stop, tuple | list, "a tuple of strings"),
        "seed": (r.seed, whole, "a whole number"),
    }
    for name, (value, kind, words) in expected.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            return f"its {name} is of type {type(value).__name__}, expected {words}"
    if not all(isinstance(one, str) for one in r.stop):
        return "its stop strings are not all strings"
    return None
