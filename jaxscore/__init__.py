"""Exact, fast scoring of text under causal language models, on JAX."""

from jaxscore.errors import InputError
from jaxscore.requests import Request, ScoredRequest
from jaxscore.scorer import Scorer
from jaxscore.version import VERSION

__all__ = ["InputError", "Request", "ScoredRequest", "Scorer"]
__version__ = VERSION
