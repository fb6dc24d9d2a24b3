"""A checkpoint's tokenizer, its special tokens before a text, and differences of two tokenizers.

transformers is imported on demand: the import takes most of the startup time of a short run, and
scoring needs only the backend.
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
_CLASS_LOCK = threading.Lock()
# Components of tokenizer.json that do not affect ids. The post-processor does, but only its prefix
# is used, which is compared separately.
WITHOUT_IDS = frozenset({"version", "truncation", "padding", "post_processor", "decoder"})
MATCHING_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized")


class CheckpointTokenizer:
    """A backend that becomes a `transformers.PreTrainedTokenizerFast` on demand.

    If any other attribute of that class is read or set, the object changes its class to it.

    Attributes:
        backend_tokenizer: the tokenizer of the library `tokenizers`.
        name_or_path: the folder or file of the tokenizer.
        split_special_tokens: if True, special tokens in a text are encoded as ordinary text.
        warnings: warnings about the files, available until the object changes its class.
    """

    def __init__(
        self,
        backend: Tokenizer,
        path: str,
        settings: dict[str, Any],
        warnings: Sequence[str] = (),
    ) -> None:
        """
        Args:
            settings: arguments of transformers' class: names of special tokens, chat template.
        """
        vars(self).update(
            backend_tokenizer=backend,
            name_or_path=path,
            warnings=tuple(warnings),
            split_special_tokens=backend.encode_special_tokens,
            _settings=settings,
        )

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """Return the name of each token in the vocabulary, or None for an unknown id."""
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        return [self.backend_tokenizer.id_to_token(int(id)) for id in ids]

    def _become(self) -> Any:
        """Change to the class and the attributes of transformers' tokenizer.

        Raises:
            InputError: transformers refuses the settings.
        """
        with _CLASS_LOCK:
            if type(self) is CheckpointTokenizer:
                tokenizer = self._in_transformers()
                old_names = {*vars(self)}
                vars(self).update(vars(tokenizer))
                object.__setattr__(self, "__class__", type(tokenizer))
                for name in old_names - {*vars(tokenizer)}:
                    del vars(self)[name]
        return self

    def _in_transformers(self) -> Any:
        failure = f"{self.name_or_path}: no usable tokenizer"
        with panics_as_errors(failure, error=InputError), errors_only():
            from transformers import PreTrainedTokenizerFast

            tokenizer = PreTrainedTokenizerFast(
                tokenizer_object=Tokenizer(models.WordLevel({"": 0}, unk_token="")),
                name_or_path=self.name_or_path,
                # Each call of the tokenizer copies this value to the backend.
                split_special_tokens=self.split_special_tokens,
                **self._settings,
            )
        # Constructors of transformers modify the backend that they receive: set it afterwards.
        tokenizer._tokenizer = self.backend_tokenizer
        return tokenizer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # for example those that `copy` looks up
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

    Also silences its first import, which without PyTorch warns that no models are available. That
    is not true of jaxscore's models.
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
    """Return the ids that the tokenizer puts before every text, by encoding a short one."""

    def encode(probe: str, special_tokens: bool) -> list[int]:
        with panics_as_errors(f"{tokenizer.name_or_path}: the tokenizer cannot read {probe!r}"):
            if isinstance(tokenizer, CheckpointTokenizer):
                backend = tokenizer.backend_tokenizer
                return list(backend.encode(probe, add_special_tokens=special_tokens).ids)
            ids: list[int] = tokenizer(probe, add_special_tokens=special_tokens)["input_ids"]
        return ids

    special_ids = special_tokens_around(encode)
    if special_ids is None:
        raise InputError(
            f"{type(tokenizer).__name__}: the special tokens that it puts before a text are "
            "unknown; check that tokenizer.json belongs to this model"
        )
    return special_ids[0]


def copy_backend(tokenizer: Any) -> Tokenizer:
    """Copy the tokenizer's backend, without truncation and padding.

    Calls of the tokenizer with `truncation=True` or `padding=True`, also in other threads, set both
    on the original backend. The copy shares the large components: vocabulary and merges.
    """
    source = tokenizer.backend_tokenizer
    backend = Tokenizer(source.model)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        component = getattr(source, name)
        if component is not None:
            setattr(backend, name, component)
    added = source.get_added_tokens_decoder()
    backend.add_tokens([added[id] for id in sorted(added)])
    assert backend.get_added_tokens_decoder() == added
    # Set here, since each call of the tokenizer sets it on the original.
    backend.encode_special_tokens = bool(tokenizer.split_special_tokens)
    return backend


def tokenizer_difference(first: Any, second: Any) -> str | None:
    """Describe the difference between two tokenizers, or return None if their ids are the same.

    Compares the components of the tokenizers. Tokenizers with the same ids but different components
    count as different.
    """
    first_json: dict[str, Any] = json.loads(first.backend_tokenizer.to_str())
    second_json: dict[str, Any] = json.loads(second.backend_tokenizer.to_str())
    vocabulary, other = _vocabulary(first_json), _vocabulary(second_json)
    if vocabulary != other:
        n = sum(other.get(token) != id for token, id in vocabulary.items())
        n += sum(token not in vocabulary for token in other)
        return f"{n} tokens of their vocabularies differ, {_first_difference(vocabulary, other)}"
    if (added := _added_tokens(first_json)) != (others := _added_tokens(second_json)):
        ids = sorted(id for id in {*added, *others} if added.get(id) != others.get(id))
        return f"{len(ids)} of their added tokens differ, the first one with id {ids[0]}"
    for name in sorted({*first_json, *second_json} - WITHOUT_IDS - {"added_tokens"}):
        if first_json.get(name) != second_json.get(name):
            return f"their {name.replace('_', ' ')} differs"
    if first.split_special_tokens != second.split_special_tokens:
        return "one encodes special tokens in a text as ordinary text (split_special_tokens)"
    prefixes = special_prefix(first), special_prefix(second)
    if prefixes[0] != prefixes[1]:
        return f"one puts the ids {prefixes[0]} before a text and the other {prefixes[1]}"
    return None


def _vocabulary(tokenizer_json: Mapping[str, Any]) -> dict[str, int]:
    """Return token -> id, without added tokens."""
    vocabulary = (tokenizer_json.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, Mapping):
        return dict(vocabulary)
    return {token: id for id, (token, *_) in enumerate(vocabulary)}  # of a unigram model


def _added_tokens(tokenizer_json: Mapping[str, Any]) -> dict[int, tuple[Any, ...]]:
    """Return id -> the flags that determine the matches of an added token in a text."""
    tokens = tokenizer_json.get("added_tokens") or []
    return {token["id"]: tuple(token.get(flag) for flag in MATCHING_FLAGS) for token in tokens}


def _first_difference(first: Mapping[str, int], second: Mapping[str, int]) -> str:
    """Describe the lowest id that has different tokens."""
    names = [{id: token for token, id in ids.items()} for ids in (first, second)]
    id = min(id for id in {*names[0], *names[1]} if names[0].get(id) != names[1].get(id))
    tokens = [f"{name[id]!r}" if id in name else "nothing" for name in names]
    return f"the first one is id {id}, {tokens[0]} in one and {tokens[1]} in the other"
