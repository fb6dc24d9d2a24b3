"""What a `quantization_config` comes to, once it is read and checked."""

from collections.abc import Callable
from typing import NamedTuple

from jaxscore.models.weights.checkpoint import Tensors
from jaxscore.models.weights.stored_types.computed import Found


class Scheme(NamedTuple):
    """How a checkpoint's quantized tensors are read.

    Attributes:
        numbers: what they are stored as, for people.
        left_out: what runs of the checkpoint elsewhere may also round, and scores here do not.
        find: the tensors that stand for stored ones; raises InputError naming what is wrong.
    """

    numbers: str
    left_out: str
    find: Callable[[Tensors], Found]
