"""A checkpoint behind `/completions`, listing its tokens in the ways that servers do."""

import json
import threading
from typing import Any

import numpy as np

from jaxscore import Scorer
from jaxscore.plan.requests import TokenSequence
from jaxscore.types.requests import LabelRequest
from tests.endpoints.server import Answer

ANSWERED: dict[Any, Any] = {}  # of all servers, since tests ask the same
STYLES = ("decoded", "named", "hidden_bos")


class ModelServer:
    """The `behave` of a `Server`.

    Args:
        style: "decoded" is vLLM's: each token decoded alone, `text_offset` the sum of their
            lengths, a BOS included. "named" gives the vocabulary's names and true offsets.
            "hidden_bos" is "decoded" without the BOS.
        least: answers 400 where fewer tokens are asked for.
        counts: whether the answer has `usage`.
    """

    def __init__(
        self, scorer: Scorer, style: str = "decoded", *, least: int = 0, counts: bool = True
    ) -> None:
        self.scorer, self.style, self.least, self.counts = scorer, style, least, counts
        self._lock = threading.Lock()

    def __call__(self, path: str, body: dict[str, Any], attempt: int) -> Answer:
        if body["max_tokens"] < self.least:
            return Answer({"error": {"message": f"max_tokens must be at least {self.least}"}}, 400)
        with self._lock:
            choice, counted = self._choice(body)
        usage = {"usage": {"prompt_tokens": counted}} if self.counts else {}
        return Answer({"choices": [choice], **usage})

    def _choice(self, body: dict[str, Any]) -> tuple[dict[str, Any], int]:
        asked = (id(self.scorer), self.style, json.dumps(body))
        if asked not in ANSWERED:
            ANSWERED[asked] = self._computed(body)
        return ANSWERED[asked]

    def _computed(self, body: dict[str, Any]) -> tuple[dict[str, Any], int]:
        encoder, text = self.scorer.encoder, body["prompt"]
        [ids] = encoder.prompt_ids([text])
        if not body.get("echo"):
            top = self._next(text, body["logprobs"])
            return {"text": next(iter(top)), "logprobs": {"top_logprobs": [top]}}, len(ids)
        [scores] = self.scorer.score_sequences([TokenSequence(ids, 0)])
        values: list[float | None] = [None, *map(float, scores.logprob)][: len(ids)]
        top_lists: list[dict[str, float] | None] = [
            None if value is None else {"": value + (0.0 if greedy else 0.5)}
            for value, greedy in zip(values, [False, *scores.greedy], strict=True)
        ]
        tokens = [encoder.tokenizer.decode([i]) for i in ids.tolist()]
        lengths = list(map(len, tokens))
        offsets = [sum(lengths[:k]) for k in range(len(tokens))]
        if self.style == "named":
            tokens = encoder.tokens(ids)
            [[encoding]] = encoder.bounded.pieces_of_each([text])
            offsets = [start for start, _ in encoding.offsets]
            offsets = [0] * (len(ids) - len(offsets)) + offsets
        elif self.style == "hidden_bos":
            n = len(encoder.prefix)
            tokens, values, top_lists = tokens[n:], values[n:], top_lists[n:]
            offsets = [offset - offsets[n] for offset in offsets[n:]]
        counted = len(tokens)
        for token, value in list(self._next(text, 1).items()) * body["max_tokens"]:
            tokens.append(token)
            values.append(value)
            top_lists.append({token: value})
            offsets.append(len(text))
        listed = {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": top_lists,
            "text_offset": offsets,
        }
        return {"text": text, "logprobs": listed}, counted

    def _next(self, text: str, n: int) -> dict[str, float]:
        """The n most probable next tokens."""
        every = tuple(range(len(self.scorer.encoder.tokenizer)))
        [scores] = self.scorer.label([LabelRequest(0, text, every)])
        order = np.argsort(-scores.logprob)[:n]
        decode = self.scorer.encoder.tokenizer.decode
        return {decode([int(k)]): float(scores.logprob[k]) for k in order}
