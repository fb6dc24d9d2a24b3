"""The systems by name; their modules are imported on first use."""

import importlib

from jaxscore.systems.system import System

# Module below `jaxscore.systems`, with the name of its declaration if that is not SYSTEM
SYSTEMS = {
    "score": "score.system",
    "choose": "choose.system",
    "perplexity": "perplexity.system",
    "divergence": "divergence.system",
    "preferences": "preferences",
    "paths": "paths.system",
    "chronologic": "chronologic.system",
    "probsem": "probsem.system",
    "sample": "sample.system",
    "self-certainty": "self_certainty.system",
    "select": "selection.select_and_vote:SELECT",
    "vote": "selection.select_and_vote:VOTE",
    "livecode-select": "selection.livecode:LIVECODE_SELECT",
    "livecode-parse": "selection.livecode:LIVECODE_PARSE",
    "usc-generate": "usc_generate",
    "usc-select": "selection.usc_select",
    "judge": "rag.judge",
    "bem": "rag.bem",
    "metrics": "rag.metrics",
    "compare": "compare.system",
}


def declaration(system: str) -> System:
    """What a system of `SYSTEMS` declares."""
    module, _, name = SYSTEMS[system].partition(":")
    declared: System = getattr(
        importlib.import_module(f"jaxscore.systems.{module}"), name or "SYSTEM"
    )
    return declared
