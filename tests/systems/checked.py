"""Items of systems as before a model is loaded, and runs that continue earlier ones."""

import dataclasses
import json

from jaxscore.errors import NothingUsable
from jaxscore.shell.evaluate import run_system
from jaxscore.shell.items import Items, list_fields
from jaxscore.shell.made import record_facts
from jaxscore.shell.records import Records
from jaxscore.systems import declaration


def checked_items(system, source, *, limit=None, columns=None, **options):
    """The items of a path or a list, and the settings."""
    declared = declaration(system)
    settings = declared.settings(**options)

    def rows():
        return declared.read(source, columns or {}, list_fields(declared, settings))

    items = Items(declared, rows, settings, limit=limit)
    try:
        declared.check(items, settings)
    except NothingUsable as problem:
        raise NothingUsable(f"{source}: {problem}") from None
    return items, settings


def run(system, lm, source, earlier=(), **options):
    """The report of a run that continues the records of an earlier one."""
    items, settings = checked_items(system, source, **options)
    if earlier:
        items.recall(earlier, settings, {} if lm is None else record_facts(lm))
    return run_system(declaration(system), lm, items, settings, Records.temporary())


def recall(system, source, earlier, made, **options):
    """The items with what is recalled, and the number of records that have changed."""
    items, settings = checked_items(system, source, **options)
    return items, items.recall(earlier, settings, made)


def summaries_agree(system, report, parts, **options):
    """Records that are written and read, and those of runs over parts, say what one run says."""
    declared = declaration(system)
    settings = declared.settings(**options)
    for records in (report.items, [record for part in parts for record in part.items]):
        summary = declared.summarize(json.loads(json.dumps(records)), settings)
        assert summary == dataclasses.replace(report.found, failures=summary.failures)
        assert [why for _, why in summary.failures] == [why for _, why in report.failures]
    return True
