"""What transformers logs while we use it; the host's own choice is put back afterwards."""

import contextlib
import os
from collections.abc import Iterator

NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


@contextlib.contextmanager
def errors_only() -> Iterator[None]:
    """Inside, transformers logs errors and nothing below them.

    Its first import says nothing either: without PyTorch it would tell that no model is available,
    which of ours is not so.
    """
    told = os.environ.get(NO_ADVICE)
    os.environ[NO_ADVICE] = "1"
    try:
        from transformers.utils import logging
    finally:
        if told is None:
            del os.environ[NO_ADVICE]
        else:
            os.environ[NO_ADVICE] = told

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
