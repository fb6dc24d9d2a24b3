"""The evaluation systems: each turns items into requests, and scored requests into records."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxscore.shell.system import System

# Module below `jaxscore.systems`, with the name of its declaration if that is not SYSTEM
SYSTEMS = {
    "score": "score",
    "choose": "choose",
    "perplexity": "perplexity",
    "divergence": "divergence",
    "preferences": "preferences",
    "paths": "paths",
    "chronologic": "chronologic",
    "probsem": "probsem",
    "sample": "sample",
    "self-certainty": "self_certainty",
    "select": "selection.select_and_vote:SELECT",
    "vote": "selection.select_and_vote:VOTE",
    "livecode-select": "selection.livecode:LIVECODE_SELECT",
    "livecode-parse": "selection.livecode:LIVECODE_PARSE",
    "usc-generate": "usc_generate",
    "usc-select": "selection.usc_select",
    "judge": "rag.judge",
    "bem": "rag.bem",
    "metrics": "rag.metrics",
}


def declaration(system: str) -> "System":
    """What a system of `SYSTEMS` declares."""
    module, _, name = SYSTEMS[system].partition(":")
    declared: System = getattr(
        importlib.import_module(f"jaxscore.systems.{module}"), name or "SYSTEM"
    )
    return declared
