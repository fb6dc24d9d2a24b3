"""Chooses between the responses of items, as each system does."""

import json

from jaxscore.io.json_output import to_json_value
from jaxscore.systems.selection.choosing import Context
from jaxscore.systems.selection.symbolic import SymbolicComparison


def choose(system, items, settings):
    """One record per item, and the summary of these records as a file has them."""
    records = list(system.score(None, to_json_value(items), settings))
    return records, system.summarize(json.loads(json.dumps(records)), settings)


def candidates(system, items, settings):
    """The candidates of each item."""
    context = Context(settings, items[0], SymbolicComparison())
    return [system.candidates(to_json_value(item), context) for item in items]
