"""The numbers are those of lm-evaluation-harness' own `hf` model."""

import json

import pytest

from tests.adapters.lm_eval.evaluated import assert_same, by_hf, evaluated
from tests.adapters.lm_eval.folders import TEMPLATE, case, changed, made
from tests.adapters.lm_eval.tasks import SCORED, WRITTEN
from tests.releases import TRANSFORMERS_4

pytestmark = [pytest.mark.lines, pytest.mark.filterwarnings("ignore")]  # those of its libraries

ALL = (*SCORED, *WRITTEN)


def compare(folder, args=None, names=ALL, **settings):
    import jaxscore.adapters.lm_eval  # noqa: F401  registers the model

    args = args or {}
    theirs = by_hf(folder, args, *names, **settings)
    own = {"pretrained": str(folder), "dtype": "float32", **args}
    assert_same(evaluated("jaxscore", own, *names, **settings), theirs, *names)
    return theirs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-llama3", "tiny-gpt2", "tiny-qwen2"])
def test_tokenizers_with_bos_with_eos_alone_and_without_bos(name):
    compare(case(name))


LONG = {"max_position_embeddings": 64}
FAMILIES = {
    "gemma2": ("gemma2", "metaspace", {"attn_logit_softcapping": 5.0, **LONG}),
    "bloom": ("bloom", "byte_level", {}),
    "opt": ("opt", "unigram", LONG),
    "mistral": ("mistral", "unigram", {"sliding_window": 9, **LONG}),
    "gpt_neox": ("gpt_neox", "byte_level", LONG),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_families(name, tmp_path):
    kind, tokenizer, config = FAMILIES[name]
    compare(made(tmp_path / name, kind, tokenizer, **config))


CONFIGURATIONS = {
    "short": {"max_length": 40},
    "shorter than a context": {"max_length": 18},
    "bos": {"add_bos_token": True},
    "no bos": {"add_bos_token": False},
    "prefix": {"prefix_token_id": 17},
    "other tokenizer": {"tokenizer": str(case("tiny-llama3"))},
    "thinking to a text": {"think_end_token": " the"},
    "thinking to an id": {"think_end_token": 40},
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("model", ["tiny-llama3", "tiny-gpt2"])
def test_arguments(name, model):
    if (name, model, TRANSFORMERS_4) == ("bos", "tiny-gpt2", True):
        pytest.skip("GPT-2's class ignores add_bos_token before transformers 5")
    compare(
        case(model),
        CONFIGURATIONS[name],
        [one for one in ALL if "short" not in name or one in SCORED],
    )


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("multiturn", [False, True])
def test_chat_templates(multiturn, tmp_path):
    """A template that writes BOS and refuses a system message, with an argument of its own."""
    folder = changed(tmp_path / "chat", case("tiny-llama3"))
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    compare(
        folder,
        {"chat_template_args": {"loud": True}},
        apply_chat_template=True,
        fewshot_as_multiturn=multiturn,
        system_instruction="Be brief.",
    )


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_the_checkpoints_repetition_penalty(penalty, tmp_path):
    folder = changed(
        tmp_path / "penalty",
        case("tiny-llama3"),
        generation_config={"repetition_penalty": penalty, "do_sample": True, "temperature": 0.6},
    )
    assert json.loads((folder / "generation_config.json").read_text())["do_sample"]
    compare(folder, names=WRITTEN)


@pytest.mark.slow
def test_several_ids_that_end_a_text(tmp_path):
    folder = changed(
        tmp_path / "ends",
        case("tiny-llama3"),
        generation_config={"eos_token_id": [4, *range(40, 90)]},
    )
    compare(folder, names=WRITTEN)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "kwargs",
    [
        {"until": ["<|eot_id|>", "e"], "max_gen_toks": 20},
        {"until": ["e c", "at", " ca"], "max_gen_toks": 20},
        {"until": [], "max_new_tokens": 9},
        {"until": ["\n"], "max_length": 90},
        {"until": [""], "max_gen_toks": 9},
        {"until": "t", "max_tokens": 30, "repetition_penalty": 1.2, "num_beams": 1},
    ],
    ids=str,
)
def test_generation_arguments(kwargs):
    compare(case("tiny-llama3"), names=WRITTEN, gen_kwargs=kwargs)
