"""`evaluate` runs a system on items, and `compare` compares runs, from Python."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.errors import InputError
from jaxscore.shell import evaluate as shell
from jaxscore.shell.report import Report
from jaxscore.shell.settings import settings_from
from jaxscore.systems import SYSTEMS, declaration

if TYPE_CHECKING:
    from jaxscore.systems.compare import ComparedRuns
    from jaxscore.systems.compare.table import ComparedTable

__all__ = ["Report", "compare", "evaluate"]


def evaluate(
    system: str,
    scorer: Any,
    items: Any,
    *,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
    about: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Report:
    """Run one of the published systems.

    Example:
        >>> with Scorer.from_pretrained("demo") as scorer:
        ...     report = evaluate("paths", scorer, [{"question": q, "paths": [[a, r, b]]}])
        >>> report.summary["absolute"].mean

    Args:
        system: a key of `SYSTEMS`.
        scorer: a `Scorer`, or another `jaxscore.lm.LM` if it can do what the system needs; None
            for a system that computes nothing with a model.
        items: objects with the fields of the system's input file; for "score" also the arguments of
            `Scorer.score`; for "probsem" one suite, with the prompt's text as `prompt`.
        on_item: a callback for each item's finished record, with values per token as NumPy arrays.
        about: additions to the report's settings, such as the name of the input file.
        settings: settings of the system, see `Settings` in its module. The command line's flags
            have the same names and values.

    Raises:
        InputError: an unknown system or setting, or a scorer or items that the system cannot use.
    """
    if system not in SYSTEMS:
        near = difflib.get_close_matches(system, SYSTEMS, n=1)
        hint = f"is it {near[0]}?" if near else f"expected one of {', '.join(SYSTEMS)}"
        raise InputError(f"no system {system!r}; {hint}")
    declared = declaration(system)
    chosen = settings_from(declared.settings, settings)
    return shell.evaluate(declared, scorer, items, chosen, about=about, on_item=on_item)


def compare(a: Any, b: Any, *more: Any, **settings: Any) -> "ComparedRuns | ComparedTable":
    """Compare finished runs of one system on the same items.

    Example:
        >>> report = compare("float32.jsonl", "bfloat16.jsonl")
        >>> report.summary["sum_logprob"].difference

    Args:
        a, b, more: each the path of a file that a command wrote, or the `Report` of `evaluate`,
            without `on_item`. All are compared with `a`.
        settings: `bytes`, `by`, `by_id`, `n_bootstrap`, `n_resamples`, `seed`, `limit`, `force`,
            see the command.

    Returns:
        The comparison of two runs, or a table of three and more.

    Raises:
        InputError: a run cannot be read, the runs are of different systems or units, or have no
            item in common.
    """
    from jaxscore.systems.compare import Settings, open_run
    from jaxscore.systems.compare.table import compare_all

    chosen = settings_from(Settings, settings)
    opened = [
        open_run.open_run(Path(run))
        if isinstance(run, str | Path)
        else open_run.of_items(run.system, run.items, run.settings)
        for run in (a, b, *more)
    ]
    return compare_all(opened, chosen)
