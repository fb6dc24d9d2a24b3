"""Whether two tokenizers give the same ids for every text."""

import json
from collections.abc import Mapping
from typing import Any

from jaxscore.text.encoder import TextEncoder

# What follows the ids: names of tokens, and special tokens, of which `TextEncoder.prefix` is kept.
NOT_OF_IDS = frozenset({"version", "truncation", "padding", "post_processor", "decoder"})
WHERE_TOKENS_MATCH = ("content", "single_word", "lstrip", "rstrip", "normalized")


def difference(one: TextEncoder, other: TextEncoder) -> str | None:
    """What differs between two tokenizers, for people; None where nothing does that moves an id.

    It compares what the tokenizers hold, so two that are written in other ways and still give the
    same ids count as different.
    """
    first, second = _held(one), _held(other)
    mine, theirs = _vocabulary(first), _vocabulary(second)
    if mine != theirs:
        n = sum(theirs.get(token) != id for token, id in mine.items())
        n += sum(token not in mine for token in theirs)
        return f"{n} tokens of their vocabularies differ, {_first_difference(mine, theirs)}"
    if (added := _added(first)) != (others := _added(second)):
        ids = sorted(id for id in {*added, *others} if added.get(id) != others.get(id))
        return f"{len(ids)} of their added tokens differ, the first one with id {ids[0]}"
    for name in sorted({*first, *second} - NOT_OF_IDS - {"added_tokens"}):
        if first.get(name) != second.get(name):
            return f"their {name.replace('_', ' ')} differs"
    if one.tokenizer.split_special_tokens != other.tokenizer.split_special_tokens:
        return "one reads special tokens in a text as letters (split_special_tokens)"
    if one.prefix != other.prefix:
        return f"before a text one puts the ids {one.prefix} and the other {other.prefix}"
    return None


def _held(encoder: TextEncoder) -> dict[str, Any]:
    held: dict[str, Any] = json.loads(encoder.tokenizer.backend_tokenizer.to_str())
    return held


def _vocabulary(held: Mapping[str, Any]) -> dict[str, int]:
    """Token -> id, without added tokens."""
    model = held.get("model") or {}
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, Mapping):
        return dict(vocabulary)
    return {token: id for id, (token, *_) in enumerate(vocabulary)}  # a unigram model's


def _added(held: Mapping[str, Any]) -> dict[int, tuple[Any, ...]]:
    """Id -> what decides where an added token is found in a text."""
    tokens = held.get("added_tokens") or []
    return {one["id"]: tuple(one.get(name) for name in WHERE_TOKENS_MATCH) for one in tokens}


def _first_difference(mine: Mapping[str, int], theirs: Mapping[str, int]) -> str:
    """The lowest id that stands for different tokens."""
    token, other = ({id: token for token, id in one.items()} for one in (mine, theirs))
    id = min(id for id in {*token, *other} if token.get(id) != other.get(id))
    found = [f"{one[id]!r}" if id in one else "nothing" for one in (token, other)]
    return f"the first one is id {id}, {found[0]} in one and {found[1]} in the other"
