"""The printed table of families is what the parity tests compare."""

from importlib import import_module

import pytest

from jaxscore.models.families import FAMILIES
from tests.models.families import REFUSED
from tests.models.family_table import COMMON, compared_values, table


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_row_has_what_its_family_reads(kind):
    [row] = [line for line in table().splitlines() if line.startswith(f"| `{kind}` |")]
    _, _, module, compared, _, _ = map(str.strip, row.split("|"))
    assert kind in import_module(f"jaxscore.models.families.{module}").FAMILIES
    values = compared_values(kind)
    if any(one == kind and "tie_word_embeddings" in named for one, named, _ in REFUSED):
        assert "tie_word_embeddings" not in values
    else:
        assert set(values["tie_word_embeddings"]) == {"true", "false"}
    assert ("rope_parameters" in values) == ("rope_parameters" in FAMILIES[kind].reads)
    named = {name for name in values if f"`{name}`" in compared}
    assert named == set(values) - COMMON - {"rope_parameters"}
    # jaxscore/models/README.md says so of all families.
    assert set(values.get("attention_bias", ["true", "false"])) == {"true", "false"}
    for name in values:
        if name.endswith(("_eps", "_epsilon")) or name in ("hidden_act", "activation_function"):
            assert len(values[name]) > 1, name
