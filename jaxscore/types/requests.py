"""What a user asks for."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Text to score: how probable is `continuation` after `context`?

    A blank between the two belongs to the continuation. An empty context is legal: the
    continuation is then scored from the tokenizer's BOS, or, where it has none, from its
    second token on.
    """

    id: str | int
    context: str
    continuation: str


@dataclasses.dataclass(frozen=True, slots=True)
class LabelRequest:
    """Which of a few labels comes next after a prompt?

    Attributes:
        prompt: text, encoded with the tokenizer's BOS unless it writes its own.
        label_ids: a distinct token id for each label, as from `TextEncoder.first_ids`.
    """

    id: str | int
    prompt: str
    label_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Text to continue.

    The next token is chosen as transformers does it: the repetition penalty first, then the
    temperature, then `top_k`, then `top_p`.

    Attributes:
        prompt: text, encoded with the tokenizer's BOS unless it writes its own; or token ids,
            which are used as they are.
        max_new_tokens: at most so many tokens.
        temperature: 0 is greedy; above it, and finite, the logits are divided by it and a token
            is drawn.
        top_p: draw from the smallest set of most probable tokens that holds this much (nucleus
            sampling, arXiv 1904.09751).
        stop: the text ends with the first token by which one of these strings is complete in the
            decoded text, special tokens shown by name. None of them is empty.
        seed: of the draws, modulo 2^32. The same request with the same seed gives the same text,
            whatever it is batched with.
        top_k: draw from this many most probable tokens; 0 is all.
        repetition_penalty: of each id that the prompt or the text already holds, a positive logit
            is divided by it and a negative one multiplied (arXiv 1909.05858); 1 is none. Also
            where the text is greedy.
        eos_ids: tokens that end the text; None is the checkpoint's.
    """

    id: str | int
    prompt: str | Sequence[int] | np.ndarray
    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    top_k: int = 0
    repetition_penalty: float = 1.0
    eos_ids: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to answer, for an endpoint that applies the chat template itself.

    Attributes:
        messages: `{"role": "system" | "user" | "assistant", "content": text}`, in order.
        max_new_tokens, temperature, seed, stop: as of `GenerationRequest`.
    """

    id: str | int
    messages: list[dict[str, str]]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class TextLabelRequest:
    """`LabelRequest` for an endpoint, whose token ids nobody here knows.

    Attributes:
        labels: each the whole text of one token, a leading blank included: " A" is not "A".
    """

    id: str | int
    prompt: str
    labels: tuple[str, ...]
