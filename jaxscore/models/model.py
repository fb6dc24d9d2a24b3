"""What the scorer needs to know of a model, whichever implementation it has."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxscore.device.rows import Unembedding
from jaxscore.device.score import HiddenStates


@dataclasses.dataclass(frozen=True)
class Model:
    """Two pure functions over parameters, and the facts that planning needs.

    Attributes:
        hidden_states, unembedding: see `device.score`.
        params: a tree of device arrays.
        max_positions: longest path that the model takes.
        width: of the hidden states; decides which row lengths pay.
        shares_text: rows may hold tries. False for transformers' classes, whose mask is
            two-dimensional: they take one request a row.
        implementation: "native" or "transformers".
        dtype: "float32" or "bfloat16".
        model_type: the config's.
    """

    hidden_states: HiddenStates
    unembedding: Callable[[Any], Unembedding]
    params: Any
    vocab_size: int
    max_positions: int
    width: int
    shares_text: bool
    implementation: str
    dtype: str
    model_type: str
