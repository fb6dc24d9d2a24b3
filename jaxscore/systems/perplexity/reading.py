"""Documents as windows of token ids, some of them in memory at a time, and back.

documents   encoded some at a time, each cut into rolling_windows
groups      windows of one document or of many, planned and scored together
records     of each document when its last window has come, in order
"""

import functools
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from jaxscore.engine.defaults import WINDOW, WINDOW_TOKENS
from jaxscore.lm import LocalLM
from jaxscore.plan.requests import TokenSequence, rolling_windows
from jaxscore.systems.perplexity.documents import Document
from jaxscore.systems.perplexity.records import Progress
from jaxscore.text.bounded_tokenizer import TextError, encode_each
from jaxscore.types.requests import Request

CHUNK, CHUNK_CHARACTERS = 256, 1 << 20  # documents that are encoded together
NO_TOKENS = "it has no token that has a probability"


def scored(
    lm: LocalLM,
    documents: Iterable[Document],
    *,
    max_length: int,
    stride: int,
    prefix_token_id: int | None,
    most: int = WINDOW,
    most_tokens: int = WINDOW_TOKENS,
) -> Iterator[Progress]:
    """Every document with the sums of its rolling_windows, in order.

    Args:
        lm: encodes the documents and scores the windows.
        max_length, stride: of the rolling_windows, see `jaxscore.plan.requests`.
        prefix_token_id: stands before each document that does not begin with it, in place of
            the tokenizer's BOS; None is that BOS, where the tokenizer has one.
        most, most_tokens: windows and tokens that are planned together.
    """
    open_documents: deque[Progress] = deque()
    owners: deque[list[Progress]] = deque()

    def groups() -> Iterator[list[TokenSequence]]:
        group: list[TokenSequence] = []
        n_tokens = 0
        for one, own in _cut(lm, documents, max_length, stride, prefix_token_id):
            open_documents.append(one)
            for window in own:
                if not group:
                    owners.append([])
                owners[-1].append(one)
                group.append(window)
                n_tokens += window.n_input_tokens
                if len(group) == most or n_tokens >= most_tokens:
                    yield group
                    group, n_tokens = [], 0
        if group:
            yield group

    for scores in lm.engine.run(groups()):
        for one, own in zip(owners.popleft(), scores, strict=True):
            one.take(own)
        while open_documents and open_documents[0].finished:
            yield open_documents.popleft()
    yield from open_documents


def _cut(
    lm: LocalLM,
    documents: Iterable[Document],
    max_length: int,
    stride: int,
    prefix_token_id: int | None,
) -> Iterator[tuple[Progress, list[TokenSequence]]]:
    """Each document with its windows; one that cannot be scored has an error and no window."""
    for chunk in _chunks(documents):
        requests = [Request(0, "", one.text) for one in chunk]
        encode = functools.partial(lm.encoder.encode, special_tokens=prefix_token_id is None)
        for document, found in zip(chunk, encode_each(encode, requests), strict=True):
            one = Progress.of(document)
            if isinstance(found, TextError):
                one.error = one.error or str(found)
                yield one, []
                continue
            [whole] = found
            ids = whole.ids
            if prefix_token_id is None:
                one.n_tokens = len(ids) - whole.start
                first = whole.first_scored
            else:
                one.n_tokens = len(ids)
                if ids[:1].tolist() != [prefix_token_id]:  # a text that begins with it has it
                    ids = np.concatenate([np.array([prefix_token_id], np.int32), ids])
                first = 1
            own = rolling_windows(ids, first, max_length, stride) if one.error is None else []
            if not own:
                one.error = one.error or NO_TOKENS
            elif complaints := lm.engine.complaints(own):
                one.error, own = complaints[min(complaints)], []
            one.n_windows = len(own)
            yield one, own


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Neighbours that are encoded together."""
    chunk: list[Document] = []
    n_characters = 0
    for one in documents:
        chunk.append(one)
        n_characters += len(one.text)
        if len(chunk) == CHUNK or n_characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, n_characters = [], 0
    if chunk:
        yield chunk
