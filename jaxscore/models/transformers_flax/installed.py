"""Whether the installed transformers has Flax classes: 4.57 is the last line that does."""

import importlib.metadata
from importlib.util import find_spec

from jaxscore.errors import InputError, install_extra


def require_flax_classes(who: str) -> None:
    """Return where transformers has its Flax classes.

    Args:
        who: what asks for one, for the message.

    Raises:
        InputError: it has none, and what to install.
    """
    if find_spec("transformers.modeling_flax_utils") is None:
        version = importlib.metadata.version("transformers")
        raise InputError(
            f"{who} runs on a Flax class of transformers, and transformers {version} has none; "
            f"{install_extra('flax-classes')}, which takes transformers 4.57, the last line that "
            "has them"
        )
