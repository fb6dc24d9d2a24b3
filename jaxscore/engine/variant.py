"""A model as requests of some lengths see it, and its compiled programs."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxscore.device.rows import Scores
from jaxscore.device.score import score_batch, score_shard
from jaxscore.engine.programs import Programs
from jaxscore.models.model import Model


class Variant(NamedTuple):
    """A model, its programs, and its function (shape, params, batch, *caches) -> scores."""

    model: Model
    programs: Programs
    score: Callable[..., Scores]


def variants_of(model: Model, options: dict[str, Any]) -> list[Variant]:
    """One, or two where long requests have other rotary frequencies.

    Args:
        options: the compiler's, see `device.backends.same_bits`.
    """
    models = [model] if model.longer is None else [model, model.longer[1]]
    return [_variant(one, options) for one in models]


def _variant(model: Model, options: dict[str, Any]) -> Variant:
    run = score_batch if model.mesh is None else score_shard
    score = functools.partial(run, model.hidden_states, model.unembedding)
    return Variant(model, Programs(model.mesh, options), score)
