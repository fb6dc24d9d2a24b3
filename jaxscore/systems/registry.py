"""The systems by name; their modules are imported on first use."""

import importlib
from typing import NamedTuple

from jaxscore.systems.system import System


class Modules(NamedTuple):
    """Modules of a system, imported on first use.

    Attributes:
        task: has `SYSTEM`, a declaration, or one of the name after a colon; or `Settings` and
            `evaluate(lm, items, settings)` if the system is not declared yet.
        report: has `report(record) -> str`, the Markdown; None if the system is declared or has
            no report.
        page: has `page(source) -> Document`; None if the system is declared or has no page.
    """

    task: str
    report: str | None
    page: str | None = None


def _system(task: str, report: str | None = None, page: str | None = None) -> Modules:
    """A system from module names within `systems`, `report` and `report.html.systems`."""
    return Modules(
        f"jaxscore.systems.{task}",
        report and f"jaxscore.report.{report}",
        page and f"jaxscore.report.html.systems.{page}",
    )


SYSTEMS = {
    "score": _system("score.system"),
    "choose": _system("choose.system"),
    "perplexity": _system("perplexity.system"),
    "divergence": _system("divergence.system"),
    "paths": _system("paths.system"),
    "chronologic": _system("chronologic.system"),
    "probsem": _system("probsem.system"),
    "sample": _system("sample.system"),
    "self-certainty": _system("self_certainty.system"),
    "select": _system("selection.select_and_vote:SELECT"),
    "vote": _system("selection.select_and_vote:VOTE"),
    "livecode-select": _system("selection.livecode:LIVECODE_SELECT"),
    "livecode-parse": _system("selection.livecode:LIVECODE_PARSE"),
    "usc-generate": _system("usc_generate.system"),
    "usc-select": _system("selection.usc_select"),
    "judge": _system("rag.judge"),
    "bem": _system("rag.bem"),
    "metrics": _system("rag.metrics"),
    "compare": _system("compare.system"),
}


def declaration(system: str) -> System | None:
    """What a system declares, or None for one that is not declared in one place yet."""
    module, _, name = SYSTEMS[system].task.partition(":")
    return getattr(importlib.import_module(module), name or "SYSTEM", None)
