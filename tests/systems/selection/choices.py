"""Chooses between the responses of items, as each system does."""

from jaxscore.io.items import item_label
from jaxscore.io.json_output import to_json_value
from jaxscore.systems.entries import Entry
from jaxscore.systems.selection.choosing import choose_all
from jaxscore.systems.selection.symbolic import SymbolicComparison


def choose(kind, items, settings, symbolic=None):
    """One `Result` per item, and the `Selection` that made them."""
    entries = [Entry(item_label(k, item), k, to_json_value(item)) for k, item in enumerate(items)]
    with SymbolicComparison() as own:
        selection = kind(settings, entries[0].item, symbolic or own)
        return choose_all(selection, entries)[0], selection
