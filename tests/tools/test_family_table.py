"""The table of families in jaxscore/models/README.md is what the parity tests compare."""

from pathlib import Path

import pytest

from jaxscore.models.families import FAMILIES
from tools.family_table import table

PAGE = Path(__file__).parents[2] / "jaxscore" / "models" / "README.md"


def test_the_page_has_the_table():
    text = PAGE.read_text(encoding="utf-8")
    _, after = text.split("<!-- families -->\n")
    found, _ = after.split("<!-- /families -->\n")
    assert found == table(), "run python tools/family_table.py"


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_row_has_what_its_family_reads(kind):
    [row] = [line for line in table().splitlines() if line.startswith(f"| `{kind}` |")]
    compared = row.split("|")[2]
    assert "`tie_word_embeddings` both" in compared
    assert ("`rope_parameters`" in compared) == ("rope_parameters" in FAMILIES[kind].reads)
