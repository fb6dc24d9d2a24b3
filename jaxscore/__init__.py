"""Exact, fast scoring of text under causal language models, on JAX.

Modules that import JAX are imported on first use, so that the command line prints its help without
JAX.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

try:
    from jaxscore.errors import InputError

    # `evaluate` is imported here and not on first use: a later import of the module of that name
    # would replace the function.
    from jaxscore.evaluate import Report, compare, evaluate
    from jaxscore.types.requests import GenerationRequest, LabelRequest, Request
    from jaxscore.types.results import ScoredRequest
    from jaxscore.version import VERSION
except KeyboardInterrupt:
    words = sys.orig_argv
    named = words[words.index("-m") + 1 :][:1] if "-m" in words else words[1:2]
    if [os.path.basename(word) for word in named] != ["jaxscore"]:
        raise  # another program handles it
    os.write(2, b"jaxscore: interrupted\n")
    os._exit(130)

if TYPE_CHECKING:
    from jaxscore.device.lm_head.token_scores import score_tokens, token_scores
    from jaxscore.engine.generation import Generator
    from jaxscore.model_pair import DivergenceScorer
    from jaxscore.models.weights.maxtext import tensors_of_maxtext
    from jaxscore.scorer import Scorer
    from jaxscore.scoring import Scoring

__all__ = [
    "DivergenceScorer",
    "GenerationRequest",
    "Generator",
    "InputError",
    "LabelRequest",
    "Report",
    "Request",
    "ScoredRequest",
    "Scorer",
    "Scoring",
    "compare",
    "evaluate",
    "score_tokens",
    "tensors_of_maxtext",
    "token_scores",
]
__version__ = VERSION

_ON_FIRST_USE = {
    "DivergenceScorer": "jaxscore.model_pair",
    "Generator": "jaxscore.engine.generation",
    "Scorer": "jaxscore.scorer",
    "Scoring": "jaxscore.scoring",
    "score_tokens": "jaxscore.device.lm_head.token_scores",
    "tensors_of_maxtext": "jaxscore.models.weights.maxtext",
    "token_scores": "jaxscore.device.lm_head.token_scores",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_ON_FIRST_USE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_FIRST_USE})
