"""The table of families in jaxscore/models/README.md is what the parity tests compare."""

from importlib import import_module
from pathlib import Path

import pytest

from jaxscore.models.families import FAMILIES
from tools.family_table import COMMON, compared_values, table

PAGE = Path(__file__).parents[2] / "jaxscore" / "models" / "README.md"


def test_the_page_has_the_table():
    text = PAGE.read_text(encoding="utf-8")
    _, after = text.split("<!-- families -->\n")
    found, _ = after.split("<!-- /families -->\n")
    assert found == table(), "run python tools/family_table.py"


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_row_has_what_its_family_reads(kind):
    [row] = [line for line in table().splitlines() if line.startswith(f"| `{kind}` |")]
    _, _, module, compared, _, _ = map(str.strip, row.split("|"))
    assert kind in import_module(f"jaxscore.models.families.{module}").FAMILIES
    values = compared_values(kind)
    assert set(values["tie_word_embeddings"]) == {"true", "false"}
    assert ("rope_parameters" in values) == ("rope_parameters" in FAMILIES[kind].reads)
    named = {name for name in values if f"`{name}`" in compared}
    assert named == set(values) - COMMON - {"rope_parameters"}
    # The sentence before the table speaks for these.
    assert set(values.get("attention_bias", ["true", "false"])) == {"true", "false"}
    for name in values:
        if name.endswith(("_eps", "_epsilon")) or name in ("hidden_act", "activation_function"):
            assert len(values[name]) > 1, name
