"""A checkpoint's tokenizer, what it puts before a text, and how two tokenizers differ.

transformers is imported when it is first needed: that takes most of the time in which a short run
starts, and scoring text needs the backend alone.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, models

from jaxscore.errors import InputError
from jaxscore.text.bounded_tokenizer import panics_as_errors, special_tokens_around

NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
_BECOMING = threading.Lock()
# Parts of tokenizer.json that change no id. The post-processor does, but only its prefix is used.
NOT_OF_IDS = frozenset({"version", "truncation", "padding", "post_processor", "decoder"})
MATCHING_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized")


class CheckpointTokenizer:
    """A backend that becomes a `transformers.PreTrainedTokenizerFast` at the first further use.

    Any attribute of that class can be read, set or called: the object then takes on that class.

    Attributes:
        backend_tokenizer: of the library `tokenizers`.
        name_or_path: folder or file that the tokenizer was read from.
        split_special_tokens: whether special tokens in a text are read as letters.
        remarks: warnings about the files, until the object takes on transformers' class.
    """

    def __init__(
        self,
        backend: Tokenizer,
        path: str,
        settings: dict[str, Any],
        remarks: Sequence[str] = (),
    ) -> None:
        """`settings` are arguments of transformers' class: names of special tokens, template."""
        vars(self).update(
            backend_tokenizer=backend,
            name_or_path=path,
            remarks=tuple(remarks),
            split_special_tokens=backend.encode_special_tokens,
            _settings=settings,
        )

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """Name of each token in the vocabulary, or None if there is none."""
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        return [self.backend_tokenizer.id_to_token(int(id)) for id in ids]

    def _become(self) -> Any:
        """Take on the class and the attributes of transformers' tokenizer.

        Raises:
            InputError: it refuses the settings.
        """
        with _BECOMING:
            if type(self) is CheckpointTokenizer:
                made = self._in_transformers()
                own = [*vars(self)]
                vars(self).update(vars(made))
                object.__setattr__(self, "__class__", type(made))
                for name in {*own} - {*vars(made)}:
                    del vars(self)[name]
        return self

    def _in_transformers(self) -> Any:
        failure = f"{self.name_or_path}: no usable tokenizer"
        with panics_as_errors(failure, error=InputError), errors_only():
            from transformers import PreTrainedTokenizerFast

            tokenizer = PreTrainedTokenizerFast(
                tokenizer_object=Tokenizer(models.WordLevel({"": 0}, unk_token="")),
                name_or_path=self.name_or_path,
                # Each call sets the backend's by it.
                split_special_tokens=self.split_special_tokens,
                **self._settings,
            )
        # Each release changes a tokenizer that it is given, so it gets this one after that.
        tokenizer._tokenizer = self.backend_tokenizer
        return tokenizer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # such as those that `copy` looks for
            raise AttributeError(name)
        return getattr(self._become(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._become(), name, value)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._become()(*args, **options)

    def __len__(self) -> int:
        return len(self._become())


@contextlib.contextmanager
def errors_only() -> Iterator[None]:
    """Silence transformers' log below errors, and restore the host's setting afterwards.

    Its first import is silent too: without PyTorch it would warn that no model is available,
    which is not true of ours.
    """
    before = os.environ.get(NO_ADVICE)
    os.environ[NO_ADVICE] = "1"
    try:
        from transformers.utils import logging
    finally:
        if before is None:
            del os.environ[NO_ADVICE]
        else:
            os.environ[NO_ADVICE] = before

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def special_prefix(tokenizer: Any) -> list[int]:
    """Ids that the tokenizer puts before every text, found by encoding a short one."""

    def encode(probe: str, special_tokens: bool) -> list[int]:
        with panics_as_errors(f"{tokenizer.name_or_path}: the tokenizer cannot read {probe!r}"):
            if isinstance(tokenizer, CheckpointTokenizer):
                backend = tokenizer.backend_tokenizer
                return list(backend.encode(probe, add_special_tokens=special_tokens).ids)
            ids: list[int] = tokenizer(probe, add_special_tokens=special_tokens)["input_ids"]
        return ids

    found = special_tokens_around(encode)
    if found is None:
        raise InputError(
            f"{type(tokenizer).__name__}: which special tokens it puts before a text is not clear; "
            "is tokenizer.json the one of this model?"
        )
    return found[0]


def copy_backend(tokenizer: Any) -> Tokenizer:
    """Copy the tokenizer's backend, without truncation and padding.

    A call of the tokenizer with `truncation=True` or `padding=True`, also in another thread, sets
    both on its backend for every user. The copy shares the large parts: vocabulary and merges.
    """
    source = tokenizer.backend_tokenizer
    backend = Tokenizer(source.model)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = getattr(source, name)
        if part is not None:
            setattr(backend, name, part)
    added = source.get_added_tokens_decoder()
    backend.add_tokens([added[id] for id in sorted(added)])
    assert backend.get_added_tokens_decoder() == added
    # Whether special tokens in a text are read as letters; each call sets it on the source.
    backend.encode_special_tokens = bool(tokenizer.split_special_tokens)
    return backend


def tokenizer_difference(first: Any, second: Any) -> str | None:
    """Describe what differs between two tokenizers, or None if no id can differ.

    Compares the tokenizers' parts. Two that are written differently and still give the same ids
    count as different.
    """
    ours: dict[str, Any] = json.loads(first.backend_tokenizer.to_str())
    theirs: dict[str, Any] = json.loads(second.backend_tokenizer.to_str())
    vocabulary, other = _vocabulary(ours), _vocabulary(theirs)
    if vocabulary != other:
        n = sum(other.get(token) != id for token, id in vocabulary.items())
        n += sum(token not in vocabulary for token in other)
        return f"{n} tokens of their vocabularies differ, {_first_difference(vocabulary, other)}"
    if (added := _added_tokens(ours)) != (others := _added_tokens(theirs)):
        ids = sorted(id for id in {*added, *others} if added.get(id) != others.get(id))
        return f"{len(ids)} of their added tokens differ, the first one with id {ids[0]}"
    for name in sorted({*ours, *theirs} - NOT_OF_IDS - {"added_tokens"}):
        if ours.get(name) != theirs.get(name):
            return f"their {name.replace('_', ' ')} differs"
    if first.split_special_tokens != second.split_special_tokens:
        return "one reads special tokens in a text as letters (split_special_tokens)"
    prefixes = special_prefix(first), special_prefix(second)
    if prefixes[0] != prefixes[1]:
        return f"before a text one puts the ids {prefixes[0]} and the other {prefixes[1]}"
    return None


def _vocabulary(parts: Mapping[str, Any]) -> dict[str, int]:
    """Token -> id, without added tokens."""
    vocabulary = (parts.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, Mapping):
        return dict(vocabulary)
    return {token: id for id, (token, *_) in enumerate(vocabulary)}  # a unigram model's


def _added_tokens(parts: Mapping[str, Any]) -> dict[int, tuple[Any, ...]]:
    """Id -> the flags that decide where an added token matches a text."""
    tokens = parts.get("added_tokens") or []
    return {token["id"]: tuple(token.get(flag) for flag in MATCHING_FLAGS) for token in tokens}


def _first_difference(ours: Mapping[str, int], theirs: Mapping[str, int]) -> str:
    """The lowest id that stands for different tokens."""
    names = [{id: token for token, id in ids.items()} for ids in (ours, theirs)]
    id = min(id for id in {*names[0], *names[1]} if names[0].get(id) != names[1].get(id))
    found = [f"{name[id]!r}" if id in name else "nothing" for name in names]
    return f"the first one is id {id}, {found[0]} in one and {found[1]} in the other"
