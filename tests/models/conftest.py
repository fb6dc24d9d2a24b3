import json
import shutil

import pytest

from tests.models.checkpoints import NOT_BY_4, saved, with_attributes

# Families that transformers 4.57 lacks and whose decoder's config has, in the first case, no field
# in use and no mechanism that neither a family of 4.57 nor one of the twenty others has.
MADE_OF_OTHERS = """
    afmoe bamba cohere2_moe cwm deepseek_v2 deepseek_v32 ernie4_5_moe exaone exaone_moe flint
    gemma4_unified_text glm4_moe_lite glm_moe_dsa gpt_bigcode granite_swa granitemoe_swa
    granitemoehybrid hy_v3 hyperclovax internlm3 iquestcoder jais2 kimi_linear lara_mini lfm3
    mamba mamba2 mellum minicpm3 minimax_m2 minimax_m3_vl_text nanochat qwen3_5_moe_text
    qwen3_5_text qwen3_next sarvam_mla sarvam_moe solar_open youtu
""".split()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of families that the other line skips.

    Of test_parity.py only families that have mechanisms of their own, or are not listed yet.
    """
    for item in items:
        kind = getattr(item, "callspec", None) and item.callspec.params.get("kind")
        is_repeated = item.path.name == "test_parity.py" and kind in MADE_OF_OTHERS
        if kind in NOT_BY_4 and not is_repeated:
            item.add_marker("transformers_5")


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    """`originals[kind]`: a saved checkpoint of the family, made when it is first asked for."""

    class Saved(dict):
        def __missing__(self, kind):
            folder = tmp_path_factory.mktemp(kind)
            saved(folder, kind)  # skips the test where the installed line cannot
            self[kind] = folder
            return folder

    return Saved()


@pytest.fixture
def checkpoint(originals, tmp_path):
    """`checkpoint(kind, **attributes)`: a copy of a checkpoint with its config changed."""

    def make(kind, **attributes):
        folder = tmp_path / kind
        shutil.copytree(originals[kind], folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        changed = with_attributes(config, attributes)
        (folder / "config.json").write_text(json.dumps(changed), encoding="utf-8")
        return folder

    return make
