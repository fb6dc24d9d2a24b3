"""Preference pairs as token ids by the rule of TRL's DPOTrainer, and sums of their scores.

    prompt alone               A B C
    prompt and chosen          A B C D        the prompt ends before the first token in which
    prompt and rejected        A B E F        one of the three differs: here after A B

A prompt that ends in the middle of a token, or that the chat template renders otherwise alone,
loses tokens to both completions. The rule is that of TRL 1.16, `trl/trainer/dpo_trainer.py`
(`tokenize_fn`, the collator's `keep_start`, `compute_ref_log_probs`).
"""

import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.engine.defaults import WINDOW, WINDOW_TOKENS
from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.lm import LocalLM
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.systems.entries import Entry
from jaxscore.text import chat_template
from jaxscore.text.bounded_tokenizer import TextError, encode_each
from jaxscore.text.result_assembly import NOT_FINITE
from jaxscore.text.tokenize_requests import INVALID_UNICODE

CHUNK, CHUNK_CHARACTERS = 256, 1 << 20  # pairs that are tokenized together, and their characters
NO_EOS = "its tokenizer has no EOS token, which TRL puts after a completion; give messages"

Part = str | list[Any]  # a text, or messages


class Pair(NamedTuple):
    """A prompt, and what is preferred and rejected after it: all texts, or all messages."""

    prompt: Part
    chosen: Part
    rejected: Part


class Scored(NamedTuple):
    """Scores of a pair.

    Attributes:
        sums: log-probabilities of both completions, nats.
        counts: tokens in the sums.
        is_cut: whether a text has more tokens than `max_length`.
        is_unequal: whether the prompt alone has tokens that a text does not begin with.
        error: why the pair could not be scored, or None.
    """

    sums: tuple[float, float] = (0.0, 0.0)
    counts: tuple[int, int] = (0, 0)
    is_cut: bool = False
    is_unequal: bool = False
    error: str | None = None


class _Tokenized(NamedTuple):
    """A pair's two sequences, or none if it has an error; `known` has all but its sums."""

    entry: Entry[Any]
    known: Scored
    sequences: tuple[TokenSequence, ...] = ()


def split_prompt(chosen: Part, rejected: Part) -> tuple[Part, Part, Part]:
    """Prompt, chosen and rejected of two texts, or conversations, that begin with the prompt.

    As TRL's `extract_prompt`: the prompt is what both have in common, without a blank at its end.
    If one is the start of the other, the last common element belongs to the completions.
    """
    least = min(len(chosen), len(rejected))
    pairs = enumerate(zip(chosen, rejected, strict=False))
    at = next((k for k, (a, b) in pairs if a != b), None)
    if at is None:
        at = max(0, least - 1)
    elif at and chosen[at - 1] == " ":
        at -= 1
    return chosen[:at], chosen[at:], rejected[at:]


def score_pairs(
    lm: LocalLM, entries: Iterable[Entry[Any]], max_length: int
) -> Iterator[tuple[Entry[Any], Scored]]:
    """Score pairs in bounded memory: each entry with its scores, in order.

    Args:
        max_length: most tokens of a text; 0 is no limit.
    """
    waiting: deque[list[_Tokenized]] = deque()

    def groups() -> Iterator[list[TokenSequence]]:
        group: list[_Tokenized] = []
        n_tokens = 0
        for pair in _tokenize(lm, entries, max_length):
            group.append(pair)
            n_tokens += sum(sequence.n_input_tokens for sequence in pair.sequences)
            if len(group) == WINDOW // 2 or n_tokens >= WINDOW_TOKENS:
                waiting.append(group)
                yield [sequence for pair in group for sequence in pair.sequences]
                group, n_tokens = [], 0
        if group:
            waiting.append(group)
            yield [sequence for pair in group for sequence in pair.sequences]

    for scores in lm.engine.run(groups()):
        remaining = iter(scores)
        for pair in waiting.popleft():
            yield pair.entry, _sum(pair, [next(remaining) for _ in pair.sequences])


def _sum(pair: _Tokenized, scores: Sequence[SequenceScores]) -> Scored:
    if not scores:
        return pair.known
    if not all(np.isfinite(each.logprob).all() for each in scores):
        return Scored(error=NOT_FINITE)
    chosen, rejected = (float(each.logprob.sum(dtype=np.float64)) for each in scores)
    return pair.known._replace(sums=(chosen, rejected))


def _tokenize(lm: LocalLM, entries: Iterable[Entry[Any]], max_length: int) -> Iterator[_Tokenized]:
    for chunk in _chunks(entries):
        texts = [_texts(lm, entry) for entry in chunk]
        plain = [entry.item is not None and isinstance(entry.item.chosen, str) for entry in chunk]
        encoded: dict[int, Any] = {}
        for is_plain in (True, False):
            # A template writes its special tokens itself.
            own = [k for k, found in enumerate(texts) if not isinstance(found, str)]
            own = [k for k in own if plain[k] == is_plain]
            encode = functools.partial(lm.encoder.prompt_ids, special_tokens=is_plain)
            ids = iter(encode_each(encode, [text for k in own for text in texts[k]]))
            encoded |= {k: list(itertools.islice(ids, 3)) for k in own}
        for k, entry in enumerate(chunk):
            found = texts[k]
            if isinstance(found, str):
                yield _Tokenized(entry, Scored(error=found))
            else:
                yield _sequences(lm, entry, encoded[k], max_length)


def _chunks(entries: Iterable[Entry[Any]]) -> Iterator[list[Entry[Any]]]:
    """Neighbours that are tokenized together."""
    chunk: list[Entry[Any]] = []
    n_characters = 0
    for entry in entries:
        chunk.append(entry)
        if entry.item is not None:
            n_characters += len(str(entry.item.prompt)) + len(str(entry.item.chosen))
        if len(chunk) == CHUNK or n_characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, n_characters = [], 0
    if chunk:
        yield chunk


def _texts(lm: LocalLM, entry: Entry[Any]) -> tuple[str, str, str] | str:
    """The prompt, and the prompt with each completion; or why there is none."""
    if entry.item is None:
        return str(entry.error)
    tokenizer = lm.encoder.tokenizer
    prompt, chosen, rejected = entry.item.pair
    if isinstance(prompt, str):
        eos = tokenizer.eos_token
        if eos is None:
            return NO_EOS
        ends = [text if text.endswith(eos) else text + eos for text in (chosen, rejected)]
        texts = (prompt, prompt + ends[0], prompt + ends[1])
    else:
        try:
            texts = (
                chat_template.render(tokenizer, prompt),
                chat_template.render(tokenizer, prompt + chosen, add_generation_prompt=False),
                chat_template.render(tokenizer, prompt + rejected, add_generation_prompt=False),
            )
        except InputError as problem:
            return str(problem)
    return texts if all(map(is_valid_unicode, texts)) else INVALID_UNICODE


def _sequences(
    lm: LocalLM, entry: Entry[Any], encoded: Sequence[np.ndarray | TextError], max_length: int
) -> _Tokenized:
    """The two sequences of a pair, cut at `max_length`."""
    for problem in encoded:
        if isinstance(problem, TextError):
            return _Tokenized(entry, Scored(error=str(problem)))
    prompt_ids, *full_ids = (np.asarray(ids) for ids in encoded)
    n_prompt = min(_n_shared(prompt_ids, ids) for ids in full_ids)
    if max_length and n_prompt >= max_length:
        error = (
            f"its prompt has {n_prompt} tokens, which leave no token of {max_length} to the "
            "completion; TRL drops such pairs: shorten the prompt, or raise --max-length"
        )
        return _Tokenized(entry, Scored(error=error))
    sequences = []
    for ids in full_ids:
        cut = ids[: max_length or None]
        sequences.append(TokenSequence(cut, min(n_prompt, len(cut))))
    if complaints := lm.engine.complaints(sequences):
        return _Tokenized(entry, Scored(error=complaints[min(complaints)]))
    first, second = (sequence.n_scored for sequence in sequences)
    known = Scored(
        counts=(first, second),
        is_cut=any(max_length and len(ids) > max_length for ids in full_ids),
        is_unequal=n_prompt < len(prompt_ids),
    )
    return _Tokenized(entry, known, tuple(sequences))


def _n_shared(first: np.ndarray, second: np.ndarray) -> int:
    """Number of ids that both begin with."""
    n = min(len(first), len(second))
    differ = first[:n] != second[:n]
    return int(differ.argmax()) if differ.any() else n
