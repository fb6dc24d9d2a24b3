"""Model types that are known and not covered are refused with the reason and what to do."""

import re

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from jaxscore.errors import InputError
from jaxscore.models.families import FAMILIES
from jaxscore.models.inspect_checkpoint import inspect_checkpoint
from jaxscore.models.model_types import RECURRENT, REFUSED, check, covered, reason
from jaxscore.models.native import translate
from jaxscore.models.transformers_flax import GUARDS
from jaxscore.models.wrappers import WRAPPERS
from tests.models.checkpoints import FIFTH, loaded

HYBRIDS = [kind for kind, one in REFUSED.items() if one.kind is RECURRENT]
NAMED = ("glm5_next rwkv zaya").split()
STATE = "and are not covered yet; score it with transformers"


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("implementation", ["auto", "native"])
def test_loading_says_why_before_it_looks_for_weights(tmp_path, kind, implementation):
    """The weights may be stored in a way that nobody reads."""
    file = tmp_path / "config.json"
    file.write_text(f'{{"model_type": "{kind}", "quantization_config": {{"a": 1}}}}')
    inside = REFUSED[kind].text or kind
    want = f"{file}: model_type '{kind}' is not covered by the native decoder: "
    want += ("its text model " if REFUSED[kind].text else "a ") + reason(inside, REFUSED[inside])
    with pytest.raises(InputError, match=f"^{re.escape(want)}$"):
        loaded(tmp_path, implementation=implementation)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_config_alone_is_refused_too(tmp_path, kind):
    with pytest.raises(InputError, match=f"model_type '{kind}' is not covered by the native"):
        translate(tmp_path, {"model_type": kind})


def test_the_hybrids_are_refused_for_their_state():
    assert set(NAMED) <= set(HYBRIDS)
    for kind in HYBRIDS:
        one = REFUSED[kind]
        assert f"a recurrent state ({one.layers}) " in reason(kind, one)
        assert STATE in reason(kind, one)
        assert one.layers


@pytest.mark.parametrize("kind", ["qwen3_vl", "mistral3", "gemma3", "no_such_wrapper"])
def test_a_hybrid_in_any_wrapper(tmp_path, kind):
    raw = {"model_type": kind, "text_config": {"model_type": "rwkv", "hidden_size": 64}}
    with pytest.raises(InputError, match=f"'{kind}' is not .*: its text model rwkv has lay"):
        translate(tmp_path, raw)


@pytest.mark.parametrize("text", [None, [], {}, {"model_type": []}, {"model_type": "gemma3_text"}])
def test_other_texts_are_left_to_their_wrapper(text):
    check({"model_type": "gemma3", "text_config": text}, "")


def test_every_causal_model_type_of_transformers_is_covered_or_refused_by_name():
    if not FIFTH:
        pytest.skip("the list is of transformers 5")
    known = {one.model_type for one in covered()}
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) <= known | set(REFUSED)


@pytest.mark.parametrize("kind", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
def test_a_check_says_the_same_as_the_list(tmp_path, kind):
    """A model type that is refused does not run, whatever else the file says."""
    if kind not in REFUSED:
        return
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    found = inspect_checkpoint(tmp_path)
    inside = REFUSED[kind].text or kind
    assert found.family is None
    assert len(found.refused) == 1
    assert reason(inside, REFUSED[inside]) in found.refused[0]


def test_nothing_is_both_covered_and_refused():
    assert not set(REFUSED) & {*FAMILIES, *GUARDS, *WRAPPERS}
    for one in REFUSED.values():
        assert one.text is None or REFUSED[one.text].kind is one.kind


def test_an_unknown_model_type_is_told_where_the_list_is(tmp_path):
    with pytest.raises(InputError, match=r"'odd' is not covered .*; `python -m jaxscore families`"):
        translate(tmp_path, {"model_type": "odd"})
