"""How many tokens of a text evaluation harnesses let a model read."""

from collections.abc import Sequence
from pathlib import Path

from jaxscore.models import wrappers
from jaxscore.models.config.acceptance import without
from jaxscore.models.config.reading import read
from jaxscore.models.weights.checkpoint import read_config
from jaxscore.text import tokenizer_files

ATTRIBUTES = ("n_positions", "max_position_embeddings", "n_ctx")
DEFAULT = 2048
INFINITE = int(1e30)  # what transformers writes for a tokenizer without a limit


def of_config(folder: Path, accepted: Sequence[str] = ()) -> int | None:
    """What the config of a checkpoint says; None where it says nothing."""
    where = str(folder / "config.json")
    text = wrappers.text_of(without(read_config(folder), accepted), where, tied=None)
    config = read(text.raw, where).config
    for name in ATTRIBUTES:
        if (value := getattr(config, name, None)) is not None:
            return int(value)
    return None


def max_length(folder: Path, tokenizer_folder: Path, accepted: Sequence[str] = ()) -> int:
    """As lm-evaluation-harness resolves it: the config's length, the tokenizer's, or 2,048.

    Args:
        accepted: keys of the config that are left out.

    This is not the model's own limit: Bloom's positions have none, and this says 2,048.
    """
    if (found := of_config(folder, accepted)) is not None:
        return found
    own = tokenizer_files.read_settings(tokenizer_folder).get("model_max_length")
    return DEFAULT if own is None or own >= INFINITE else int(own)
