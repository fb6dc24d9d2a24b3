"""A checkpoint's tokenizer, for which transformers is imported when it is first needed.

That import takes most of the time in which a short run starts, and scoring text needs the backend
alone.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer, models

from jaxscore.errors import InputError
from jaxscore.text.bounded_tokenizer import panics_as_errors

NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
_BECOMING = threading.Lock()


class CheckpointTokenizer:
    """A backend that becomes a `transformers.PreTrainedTokenizerFast` at the first further use.

    Any attribute of that class can be read, set or called: the object then takes on that class.

    Attributes:
        backend_tokenizer: of the library `tokenizers`.
        name_or_path: folder or file that the tokenizer was read from.
        split_special_tokens: whether special tokens in a text are read as letters.
    """

    def __init__(self, backend: Tokenizer, path: str, settings: dict[str, Any]) -> None:
        """`settings` are arguments of transformers' class: names of special tokens, template."""
        vars(self).update(
            backend_tokenizer=backend,
            name_or_path=path,
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
                # transformers 5 requires this beside the former; 4.57 knows the former alone.
                clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output=True,
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
