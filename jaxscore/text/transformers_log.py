"""What transformers logs while we use it; the host's own choice is put back afterwards."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def errors_only() -> Iterator[None]:
    """Inside, transformers logs errors and nothing below them."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
