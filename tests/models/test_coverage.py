"""The table of coverage is what loads."""

import importlib.metadata

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from jaxscore.models.families import FAMILIES
from jaxscore.models.model_types import NOT_BY_4, SINCE, WITHOUT_4, WRAPPERS_WITHOUT_4, covered
from jaxscore.models.transformers_flax import GUARDS
from jaxscore.models.wrappers import RENAMED, WRAPPERS
from tests.models import checkpoints
from tests.releases import of_4

pytestmark = pytest.mark.lines

KNOWN = {one.model_type: one for one in covered()}
LINE = importlib.metadata.version("transformers")
LINE = "5" if LINE.startswith("5.") else LINE.rpartition(".")[0]


def test_every_family_and_wrapper_is_listed():
    assert list(KNOWN) == sorted({*FAMILIES, *RENAMED, *WRAPPERS})
    assert KNOWN["llama"].implementations == ("native", "transformers")
    assert KNOWN["mistral3"].texts == ("mistral", "ministral3")
    assert KNOWN["qwen3_vl"].texts == ("qwen3",)
    assert {kind for kind, one in KNOWN.items() if len(one.implementations) > 1} == set(GUARDS)
    assert {one.since for one in KNOWN.values()} == {SINCE}


def test_what_is_not_compared_under_4_is_what_the_tests_skip_there():
    skipped = checkpoints.NOT_BY_4
    missing = {kind for kind, why in skipped.items() if why == checkpoints.MISSING}
    assert missing == WITHOUT_4
    assert set(skipped) - missing == NOT_BY_4
    assert set(FAMILIES) >= WITHOUT_4 | NOT_BY_4


# Released model type -> transformers'
RELEASED = RENAMED | {"NemotronH_Nano_Omni_Reasoning_V3": "nemotron_h_omni"}


@pytest.mark.parametrize("kind", KNOWN)
def test_each_line_that_is_listed_has_a_class(kind):
    assert LINE not in KNOWN[kind].lines or RELEASED.get(kind, kind) in CONFIG_MAPPING


@of_4
def test_a_class_that_is_not_compared_is_told_from_one_that_does_not_exist():
    assert not WITHOUT_4 & set(CONFIG_MAPPING)
    assert set(CONFIG_MAPPING) >= NOT_BY_4


def test_a_wrapper_is_compared_under_the_lines_of_its_texts():
    by_5_alone = {kind for kind, one in KNOWN.items() if one.lines == ("5",)}
    wrappers = WRAPPERS_WITHOUT_4 | set(
        "NemotronH_Nano_Omni_Reasoning_V3 gemma3n gemma4 gemma4_unified lfm3_vl llama4 "
        "minimax_m3_vl nemotron_h_omni qwen3_5 qwen3_5_moe qwen4_exp".split()
    )
    assert by_5_alone == WITHOUT_4 | NOT_BY_4 | wrappers
    assert KNOWN["mistral3"].lines == ("4.57", "5")  # ministral3 by 5 alone, mistral by both
