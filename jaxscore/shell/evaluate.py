"""One system on items, from Python or from a file: score, audit, and mark the records."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.io.row_tables import rows_of
from jaxscore.lm import require
from jaxscore.shell.audits import (
    NO_SHARING,
    ON_PAGE_ALONE,
    AuditedLM,
    Facts,
    effects_of,
    variants_of,
)
from jaxscore.shell.items import Items, scored, with_examples
from jaxscore.shell.records import Records
from jaxscore.shell.report import Report, marked
from jaxscore.shell.system import PAGE, ROWS, System

MOST_PLACES = 1000  # of failed items, for messages
OnItem = Callable[[Mapping[str, Any]], None]
OnRows = Callable[[Mapping[str, Any], Mapping[str, Any]], None]


def run_system(
    system: System,
    lm: Any,
    items: Items,
    settings: Any,
    records: Records,
    *,
    about: Mapping[str, Any] | None = None,
    on_item: OnItem | None = None,
    on_rows: OnRows | None = None,
) -> Report:
    """Score items, and audit the run.

    Args:
        lm: the model; None for a system that needs none, and if all is recalled.
        items: checked, see `System.check`, with what is recalled.
        records: empty; gets the records.
        about: entries to add to the report's settings.
        on_item: takes each record as it is finished, its values per token as NumPy arrays.
        on_rows: takes the rows of each record, see `io.row_tables.row_writer`; without it they
            stay in the record.

    Raises:
        InputError: the model lacks a capability, or the system needs none.
    """
    needs = () if len(items.recalled) == items.n_all else system.needs(settings)
    if needs:
        require(system.name, lm, *needs)
    elif lm is not None and not system.needs(settings):
        raise InputError(
            f"{system.name} computes nothing with a model; give None in place of a scorer"
        )
    watched = AuditedLM(lm, settings) if needs else lm
    places: dict[str, str] = {}
    for entry, record in scored(system, watched, items, settings):
        page = record.pop(PAGE, None)
        add_rows(record, items.shared(entry), on_rows)
        if "error" in record and len(places) < MOST_PLACES:
            places[system.name_of(record)] = entry.name
        records.append(record, page)
        if on_item is not None:
            on_item(record)
    facts, noted, vocabulary = Facts(n_runs=1), {}, None
    if needs:
        facts = watched.facts()
        effects: Any = effects_of(system, lm, items, settings, facts, records)
        if "blank" in variants_of(settings, facts.counts) and "blank" not in effects:
            facts.warnings[NO_SHARING] += 1
        facts = dataclasses.replace(facts, **effects)
        noted = {**lm.describe(), **watched.about}
        vocabulary = lm.capabilities.vocab_size
    if records.has_extras:
        facts.counts[ON_PAGE_ALONE] += len(records)
    about_run = provenance.of_run({**noted, **(about or {})})
    records = marked(system, settings, records, facts.noise)
    return Report(system, settings, records, facts, about_run, vocabulary, places)


def add_rows(
    record: dict[str, Any], shared: Mapping[str, Any], on_rows: OnRows | None = None
) -> None:
    """Write the rows of a record and count them in it, or add them to it.

    Args:
        shared: the fields that all of its rows have.
        on_rows: takes them; also the reason of a failed record, as a row.
    """
    parts = record.pop(ROWS, None)
    if on_rows is None:
        if parts is not None:
            record["rows"] = [row for columns in parts for row in rows_of({}, columns)]
            record["n_rows"] = len(record["rows"])
        return
    if "error" in record:
        on_rows({**shared, "error": record["error"]}, {})
    if parts is not None:
        record["n_rows"] = 0
        for columns in parts:
            on_rows(shared, columns)
            record["n_rows"] += len(next(iter(columns.values())))


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
    if isinstance(objects, Iterator):
        objects = list(objects)  # which can be read once
    items = Items(system, lambda: system.read(objects), settings, is_file=False)
    settings = items.settings
    system.check(items, settings)
    items.check_slices()
    records = Records.temporary()
    return run_system(system, lm, items, settings, records, about=about, on_item=on_item)
