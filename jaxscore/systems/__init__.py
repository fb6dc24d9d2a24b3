"""The evaluation systems: each turns items into requests, and scored requests into records."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxscore.shell.system import System

# Module below `jaxscore.systems`, with the name of its declaration if that is not SYSTEM, and the
# line of `jaxscore --help`, which is empty if another command runs the system.
SYSTEMS = {
    "score": ("score", "log-probability, entropy and self-certainty of each token"),
    "divergence": ("divergence", "how far two models lie apart, token by token"),
    "choose": ("choose", "the most probable of several texts, and whether it is right"),
    "perplexity": ("perplexity", "perplexity and bits per byte of documents of any length"),
    "preferences": ("preferences", "log-probabilities of preference pairs, for TRL's DPO"),
    "paths": ("paths", "information gain of knowledge paths (Path Evaluation)"),
    "chronologic": ("chronologic", "probability scores of answers, or letters (ChronoLogic)"),
    "probsem": ("probsem", "the most probable query after each context (ProbSem)"),
    "sample": ("sample", "many responses of a model to each prompt"),
    "self-certainty": ("self_certainty", "how certain a model is of each sampled response"),
    "select": (
        "selection.select_and_vote:SELECT",
        "the response with the highest self-certainty",
    ),
    "vote": (
        "selection.select_and_vote:VOTE",
        "the answer of most responses, weighed by self-certainty",
    ),
    "livecode-select": (
        "selection.livecode:LIVECODE_SELECT",
        "the code of the response with the highest confidence",
    ),
    "livecode-parse": ("selection.livecode:LIVECODE_PARSE", "the code of the first response"),
    "usc-generate": (
        "usc_generate",
        "ask a model which of its responses is the most consistent",
    ),
    "usc-select": (
        "selection.usc_select",
        "the response that the model called the most consistent",
    ),
    "judge": ("rag.judge", "a model judges the responses of RAG experiments"),
    "bem": ("rag.bem", ""),
    "metrics": ("rag.metrics", "EM, F1, ROUGE and the like of RAG experiments"),
}


def declaration(system: str) -> "System":
    """Return the declaration of a system of `SYSTEMS`."""
    module, _, name = SYSTEMS[system][0].partition(":")
    declared: System = getattr(
        importlib.import_module(f"jaxscore.systems.{module}"), name or "SYSTEM"
    )
    return declared
