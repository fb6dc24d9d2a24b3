"""Text models in checkpoints with towers: their scores are torch's, and only texts are scored."""

import json
import re

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from jaxscore import Scorer
from jaxscore.cli.main import main
from jaxscore.engine.generation import Generator
from jaxscore.errors import InputError
from jaxscore.models.native import translate
from jaxscore.models.weights.tensor_files import Tensors
from jaxscore.models.wrappers import WRAPPERS, text_of, text_tensors
from jaxscore.plan.requests import TokenSequence
from jaxscore.types.requests import GenerationRequest
from tests.engine.generation.test_generator import OfIds
from tests.models.checkpoints import (
    EXPERTS,
    assert_agree,
    distance,
    loaded,
    ragged,
    redrawn,
    scorer,
    spelled,
    torch_scores,
)
from tests.models.families import BASE, GATED, MIXTURE, OWN_HEADS, VOCABULARY
from tests.models.recurrent_families import DELTA

pytestmark = pytest.mark.lines

ASKED = {int(id) for sequence in ragged() for id in sequence.ids}
IMAGE, START = sorted(set(range(VOCABULARY)) - ASKED)[:2]
ENCODER = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
PIXTRAL = ENCODER | {"model_type": "pixtral", "head_dim": 8}
VISUAL = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24, "patch_size": 4}
VISUAL |= {"out_hidden_size": 32}
MROPE = {"rope_theta": 300.0, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
INTERLEAVED = {"rope_type": "default", "mrope_section": [2, 2, 2], "mrope_interleaved": True}
IDS = {"vision_start_token_id": START, "image_token_id": IMAGE}
INDEX = {"image_token_index": IMAGE}
NEAR = {"sliding_window": 5, "rope_theta": 300.0, "sliding_window_pattern": 2}
# name -> wrapper, what stands at its top, its text, its tower, in the spelling of 4.57
CONFIGS = {
    "gemma3": ("gemma3", INDEX | {"mm_tokens_per_image": 1}, OWN_HEADS | NEAR, ENCODER),
    "mistral3": (
        "mistral3",
        INDEX | {"tie_word_embeddings": False},
        GATED | {"model_type": "mistral", "rope_theta": 300.0},
        PIXTRAL,
    ),
    "qwen2_vl": ("qwen2_vl", IDS, GATED | MROPE, VISUAL | {"hidden_size": 32, "embed_dim": 16}),
    "qwen2_5_vl": ("qwen2_5_vl", IDS, GATED | MROPE, VISUAL | {"fullatt_block_indexes": [0]}),
    "qwen3_vl": (
        "qwen3_vl",
        IDS,
        OWN_HEADS | {"rope_theta": 300.0, "rope_scaling": INTERLEAVED},
        VISUAL | {"deepstack_visual_indexes": [0]},
    ),
}
CONFIGS["qwen3_vl_moe"] = (
    "qwen3_vl_moe",
    IDS | {"tie_word_embeddings": False},
    OWN_HEADS | MIXTURE | {"rope_theta": 300.0, "rope_scaling": INTERLEAVED},
    VISUAL | {"deepstack_visual_indexes": [0]},
)
if "qwen3_5" in CONFIG_MAPPING:
    CONFIGS["qwen3_5"] = (
        "qwen3_5",
        IDS,
        DELTA
        | {
            "head_dim": 32,
            "rope_parameters": INTERLEAVED | {"rope_theta": 300.0, "mrope_section": [1, 1, 2]},
        },
        VISUAL,
    )
if "minimax_m3_vl" in CONFIG_MAPPING:
    CONFIGS["minimax_m3_vl"] = (
        "minimax_m3_vl",
        INDEX | {"video_token_index": START, "projector_hidden_size": 16},
        BASE["minimax_m3_vl_text"],
        ENCODER | {"num_channels": 3},
    )
for _name in ("mistral3", "qwen2_vl", "qwen3_vl"):
    _kind, _top, *_parts = CONFIGS[_name]
    CONFIGS[f"{_name} tied"] = _kind, _top | {"tie_word_embeddings": True}, *_parts


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """`checkpoints[name]`: a folder and torch's model, made when it is first asked for."""

    class Saved(dict):
        def __missing__(self, name):
            kind, top, text, tower = CONFIGS[name]
            config = top | {"text_config": spelled(text), "vision_config": dict(tower)}
            torch.manual_seed(7)
            model = AutoModelForImageTextToText.from_config(
                AutoConfig.for_model(kind, **config), attn_implementation="eager", **EXPERTS
            )
            folder = tmp_path_factory.mktemp("wrapper")
            redrawn(model.eval(), kind).save_pretrained(folder)
            self[name] = folder, model
            return self[name]

    return Saved()


def config_of(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def copied(source, folder, rename=lambda name: name):
    """A checkpoint with other names of tensors."""
    folder.mkdir(exist_ok=True)
    tensors = load_file(source / "model.safetensors")
    save_file(
        {rename(name): value for name, value in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_of_the_text_model_are_torchs(checkpoints, name):
    folder, model = checkpoints[name]
    own = loaded(folder)
    assert_agree(scorer(own).score_sequences(ragged()), torch_scores(model, ragged()))
    towers = {"visual"} if "qwen" in name else {"vision_tower", "multi_modal_projector"}
    towers |= {"patch_merge_mlp"} if name == "minimax_m3_vl" else set()
    assert set(re.findall(r"\d+ of (\w+)", own.checkpoint.left_out)) == towers


SPELLINGS = {
    "language_model.model.": "model.language_model.",
    "language_model.lm_head.": "lm_head.",
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
    "model.visual.": "visual.",
    "visual.": "model.visual.",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
    "model.": "model.language_model.",
    "patch_merge_mlp.": "model.patch_merge_mlp.",
}


def otherwise(name):
    """The other spelling of the name of a wrapper's tensor."""
    old = next(old for old in SPELLINGS if name.startswith(old))
    return SPELLINGS[old] + name.removeprefix(old)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_both_spellings_of_the_tensors_names(checkpoints, tmp_path, name):
    folder, _ = checkpoints[name]
    want = scorer(loaded(folder)).score_sequences(ragged())
    other = loaded(copied(folder, tmp_path, otherwise))
    assert distance(scorer(other).score_sequences(ragged()), want) == 0


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_vl tied", "qwen2_5_vl"])
def test_attributes_of_the_text_at_the_top(checkpoints, tmp_path, name):
    """As the first files of these families have them."""
    folder, _ = checkpoints[name]
    raw = config_of(folder)
    text = raw.pop("text_config")
    del text["model_type"]
    _, want = translate(folder, raw | {"text_config": text})
    assert translate(tmp_path, text | raw)[1] == want
    assert translate(tmp_path, text | raw | {"text_config": text})[1] == want
    with pytest.raises(
        InputError, match=r"rms_norm_eps.* at the top level differ from text_config"
    ):
        translate(tmp_path, text | raw | {"text_config": text, "rms_norm_eps": 0.25})


@pytest.mark.parametrize("transposed", [False, True])
def test_experts_of_qwen3_vl_in_either_orientation(checkpoints, tmp_path, transposed):
    """Released files and 4.57 have [in, out], transformers 5 saves [out, in]."""
    folder, _ = checkpoints["qwen3_vl_moe"]
    want = scorer(loaded(folder)).score_sequences(ragged())
    file = copied(folder, tmp_path) / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("experts.gate_up_proj"))
    if (tensors[name].shape[1] == 32) != transposed:
        for name in tensors:
            if ".experts." in name:
                tensors[name] = tensors[name].swapaxes(1, 2).contiguous()
    save_file(tensors, file)
    assert distance(scorer(loaded(tmp_path)).score_sequences(ragged()), want) == 0


def test_square_experts_of_qwen3_vl_are_refused(checkpoints, tmp_path):
    file = copied(checkpoints["qwen3_vl_moe"][0], tmp_path) / "model.safetensors"
    square = {
        name: torch.zeros(len(one), 32, 32) if ".experts." in name else one
        for name, one in load_file(file).items()
    }
    save_file(square, file)
    with pytest.raises(InputError, match=r"_proj\[0\] is square, so its orientation"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("name", "attribute"), [("gemma3", "image_token_index"), ("qwen2_vl", "image_token_id")]
)
def test_a_text_with_an_image_is_refused(checkpoints, name, attribute):
    own = scorer(loaded(checkpoints[name][0]))
    bad = TokenSequence(np.array([1, IMAGE, 2], np.int32), 0)
    with pytest.raises(
        ValueError, match=f"sequence 1: token id {IMAGE} is the model's {attribute}"
    ):
        own.score_sequences([*ragged()[:1], bad])


def test_a_prompt_with_an_image_is_refused(checkpoints):
    prompts = [np.array([1, START], np.int32), np.array([1, 2], np.int32)]
    own = Scorer(loaded(checkpoints["qwen2_vl"][0]), OfIds(prompts), batch_tokens=64)
    refused, taken = Generator(own).generate([GenerationRequest(k, str(k), 2) for k in range(2)])
    assert f"token id {START} is the model's vision_start_token_id" in refused.error
    assert taken.error is None


@pytest.mark.parametrize("name", ["mistral3", "mistral3 tied", "gemma3"])
def test_a_converted_wrapper(checkpoints, tmp_path, capsys, name):
    folder, model = checkpoints[name]
    out = tmp_path / "converted"
    source = copied(folder, tmp_path / "source")
    assert main(["convert", "--model", str(source), "--output", str(out)]) == 0
    assert re.search(r"left out of the model: \d+ tensors \(\d+ of ", capsys.readouterr().err)
    own = loaded(out)
    assert_agree(scorer(own).score_sequences(ragged()), torch_scores(model, ragged()))
    assert own.checkpoint.placeholders == loaded(folder).checkpoint.placeholders


@pytest.mark.parametrize("name", ["extra", "vision_tower2.weight", "model.vision.weight"])
def test_a_tensor_of_neither_is_refused(checkpoints, tmp_path, name):
    file = copied(checkpoints["gemma3"][0], tmp_path) / "model.safetensors"
    save_file(load_file(file) | {name: torch.zeros(2, 2)}, file)
    with pytest.raises(InputError, match="1 tensors that the model does not use"):
        loaded(tmp_path)


def test_a_tensor_under_two_prefixes(tmp_path):
    names = ("language_model.model.norm.weight", "model.language_model.norm.weight")
    held = {name: np.zeros(1) for name in names}
    tensors = Tensors(held, dict.fromkeys(held, tmp_path), held)
    with pytest.raises(InputError, match="are the same tensor of the text"):
        text_tensors(tmp_path, tensors, WRAPPERS["gemma3"])


TEXT = {"text_config": {"hidden_size": 64, "head_dim": 8}}
REFUSED = [
    ("gemma3", {}, "'gemma3' has text_config None, expected an object"),
    ("qwen3_vl", {"text_config": [1]}, r"text_config \[1\], expected an object"),
    ("fuyu", {"text_config": {}}, r"text_config \{\}, expected an object"),
    (
        "mistral3",
        {"text_config": {"model_type": "llama"}},
        "model_type 'llama', which is not handled in a 'mistral3'; handled are mistral, ministral3",
    ),
    ("gemma3", TEXT | {"scale": 2.0}, "scale=2.0"),
    ("gemma3", TEXT | {"image_token_index": "a"}, "image_token_index is 'a', expected a token id"),
    (
        "gemma3",
        TEXT | {"image_token_index": 3, "image_token_id": 4},
        "name one attribute and differ",
    ),
    ("gemma3", TEXT | {"hidden_size": 32}, "hidden_size at the top level differ from text_config"),
    ("gemma3", {"text_config": {"hidden_size": 1 << 40}}, "hidden_size is .* expected at most"),
]


@pytest.mark.parametrize(("kind", "raw", "message"), REFUSED, ids=str)
def test_wrappers_that_are_not_handled(tmp_path, kind, raw, message):
    with pytest.raises(InputError, match=message):
        translate(tmp_path, {"model_type": kind} | raw)


@pytest.mark.parametrize(
    ("kind", "text", "want"),
    [
        ("gemma4", {"num_hidden_layers": 2}, "gemma4_text"),
        ("llama4", {"num_hidden_layers": 2}, "llama4_text"),
        ("mistral3", {"model_type": "ministral3"}, "ministral3"),
        ("qwen3_vl", {}, "qwen3"),
    ],
)
def test_which_family_a_text_is(kind, text, want):
    found = text_of({"model_type": kind, "text_config": text, "dtype": {"": "float32"}}, "")
    assert found.family == want
    assert found.placeholders
    assert set(found.placeholders.values()) <= set(WRAPPERS[kind].tokens)


def test_one_attribute_with_several_placeholders():
    raw = {"model_type": "ovis2", "text_config": {}, "visual_indicator_token_ids": [3, 5]}
    found = text_of(raw | {"vocab_size": 151936, "hidden_size": 4096}, "").placeholders
    assert {id for id, name in found.items() if name == "visual_indicator_token_ids"} == {3, 5}
    with pytest.raises(InputError, match=r"token_ids is \[3, .a.\], expected a token id"):
        text_of(raw | {"visual_indicator_token_ids": [3, "a"]}, "")


def test_the_weights_say_whether_the_unembedding_is_the_embedding():
    """transformers 5 writes true at the top and false below for a tied mistral3, 4.57 neither."""
    raw = {"model_type": "mistral3", "text_config": {"model_type": "mistral"}}
    assert text_of(raw, "").raw["tie_word_embeddings"] is False
    assert text_of(raw, "", tied=True).raw["tie_word_embeddings"] is True
    raw |= {"tie_word_embeddings": True}
    raw["text_config"] |= {"tie_word_embeddings": False}
    assert text_of(raw, "").raw["tie_word_embeddings"] is True
    assert text_of(raw, "", tied=False).raw["tie_word_embeddings"] is False


@pytest.mark.parametrize("kind", WRAPPERS)
def test_placeholders_are_the_classes(kind):
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} does not have {kind}")
    wrapper, made = WRAPPERS[kind], CONFIG_MAPPING[kind]()
    for name, default in wrapper.tokens.items():
        found = getattr(made, name, None)
        assert (tuple(found) if isinstance(found, list) else found) == default
    known = {*wrapper.tokens, *wrapper.aliases}
    names = {name for name in made.to_dict() if "token_i" in name and name[0] != "_"}
    assert names - known <= {
        "bos_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "pad_token_id",
        "sep_token_id",
    }
    assert made.attribute_map.items() <= dict(wrapper.aliases).items()
