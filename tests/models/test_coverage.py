"""The table of coverage is what loads."""

import importlib.metadata

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from jaxscore.models.coverage import SINCE, WITHOUT_4, covered
from jaxscore.models.families import FAMILIES
from jaxscore.models.transformers_flax.guards import GUARDS
from jaxscore.models.wrappers import WRAPPERS

KNOWN = {one.model_type: one for one in covered()}
LINE = importlib.metadata.version("transformers")
LINE = "5" if LINE.startswith("5.") else LINE.rpartition(".")[0]


def test_every_family_wrapper_and_class_is_listed():
    assert list(KNOWN) == sorted({*FAMILIES, *GUARDS, *WRAPPERS})
    assert KNOWN["llama"].implementations == ("native", "transformers")
    assert KNOWN["mistral3"].texts == ("mistral", "ministral3")
    assert KNOWN["qwen3_vl"].texts == ("qwen3",)
    assert {one.since for one in KNOWN.values()} == {SINCE}
    assert set(KNOWN) >= WITHOUT_4


@pytest.mark.parametrize("kind", KNOWN)
def test_the_lines_are_those_that_have_a_class(kind):
    assert (kind in CONFIG_MAPPING) == (LINE in KNOWN[kind].lines)
