"""One system on items, from Python or from a file: score, audit, and mark the records."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxscore.engine import provenance
from jaxscore.lm import require
from jaxscore.shell.audits import NO_SHARING, AuditedLM, Facts, effects_of
from jaxscore.shell.items import Items, scored, with_examples
from jaxscore.shell.records import Records
from jaxscore.shell.report import Report, marked
from jaxscore.shell.system import PAGE, System

MOST_PLACES = 1000  # of failed items, for messages
OnItem = Callable[[Mapping[str, Any]], None]


def run_system(
    system: System,
    lm: Any,
    items: Items,
    settings: Any,
    records: Records,
    *,
    earlier: Any = (),
    about: Mapping[str, Any] | None = None,
    on_item: OnItem | None = None,
) -> Report:
    """Score items, and audit the run.

    Args:
        lm: the model; None for a system that needs none.
        items: checked, see `System.check`.
        records: empty; gets the records.
        earlier: records of an earlier run of the output, see `System.recall`.
        about: what to add to the report's settings.
        on_item: takes each record as it is finished, its values per token as NumPy arrays.

    Raises:
        InputError: the model lacks a capability.
    """
    needs = system.needs(settings)
    if needs:
        require(system.name, lm, *needs)
    watched = AuditedLM(lm, settings) if needs else lm
    places: dict[str, str] = {}
    for entry, record in scored(system, watched, items, settings, earlier):
        page = record.pop(PAGE, None)
        if "error" in record and len(places) < MOST_PLACES:
            places[str(record.get("id"))] = entry.name
        records.append(record, page)
        if on_item is not None:
            on_item(record)
    facts, noted, vocabulary = Facts(n_runs=1), {}, None
    if needs:
        facts = watched.facts()
        effects: Any = effects_of(system, lm, items, settings, facts.boundaries)
        if "blank" in settings.variants() and "blank" not in effects:
            facts.warnings[NO_SHARING] += 1
        facts = dataclasses.replace(facts, **effects)
        noted = {**lm.describe(), **watched.about}
        vocabulary = lm.capabilities.vocab_size
    made = provenance.of_run({**noted, **(about or {})})
    return Report(system, settings, marked(system, records, facts.noise), facts, made, vocabulary)


def evaluate(
    system: System,
    lm: Any,
    objects: Any,
    settings: Any,
    *,
    about: Mapping[str, Any] | None = None,
    on_item: OnItem | None = None,
) -> Report:
    """Run a system on items from Python; see `jaxscore.evaluate`."""
    settings = with_examples(system, settings)
    rows = list(system.rows_of(objects))
    items = Items(system, lambda: rows, settings)
    system.check(items, settings)
    records = Records.temporary()
    return run_system(system, lm, items, settings, records, about=about, on_item=on_item)
