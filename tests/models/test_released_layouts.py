"""Checkpoints as models are released: torch's scores on the numbers that they stand for."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from jaxscore.cli.main import main
from jaxscore.device.dots import E2M1, E4M3, from_storage
from jaxscore.errors import InputError
from jaxscore.models.load import load
from jaxscore.models.weights.quantization import mxfp4
from jaxscore.models.weights.tensor_files import map_file
from tests.models import released
from tests.models.checkpoints import (
    FIFTH,
    assert_agree,
    distance,
    loaded,
    ragged,
    saved,
    scorer,
    scores_on_devices,
    torch_scores,
)
from tests.models.weights.quantization.checkpoints import FP8
from tests.models.weights.test_lora import adapt, with_adapter

pytestmark = pytest.mark.lines

QUANTIZED = ("gpt_oss", "deepseek_v3")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(kind)`: a folder as released, the same numbers plain, and torch's model."""
    known = {}

    def make(kind):
        if kind not in known:
            folder = tmp_path_factory.mktemp("released")
            known[kind] = folder / "whole", *getattr(released, kind)(folder)
        return known[kind]

    return make


def scores(model):
    return scorer(model).score_sequences(ragged())


def same(got, want):
    """Whether two trees of parameters have the same bits."""
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, got, want)))


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_as_released(made, kind):
    folder, _, model = made(kind)
    own = loaded(folder)
    assert_agree(scores(own), torch_scores(model, ragged()))
    assert own.checkpoint.stored_as.startswith("mxfp4" if kind == "gpt_oss" else "fp8")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_parameters_are_those_of_the_same_numbers_stored_plain(made, kind, dtype):
    folder, plain, _ = made(kind)
    assert same(loaded(folder, dtype=dtype).params, loaded(plain, dtype=dtype).params)


def test_blocks_are_expanded_expert_by_expert(made, monkeypatch):
    asked = set()
    computed = mxfp4._computed

    def counted(parts, name):
        one = computed(parts, name)

        def whole():
            raise AssertionError(f"{name} was expanded whole")

        def piece(index):
            asked.add((name, index))
            return one.piece(index)

        return dataclasses.replace(one, compute=whole, piece=piece)

    monkeypatch.setattr(mxfp4, "_computed", counted)
    loaded(made("gpt_oss")[0])
    assert asked == {
        (f"model.layers.{layer}.mlp.experts.{name}_proj", expert)
        for layer in range(2)
        for name in ("gate_up", "down")
        for expert in range(6)
    }


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_int8_weights_are_made_of_the_numbers(made, kind):
    folder, plain, _ = made(kind)
    options = {"dtype": "float32", "implementation": "native", "quantize": "int8"}
    quantized = load(folder, **options)
    assert same(quantized.params, load(plain, **options).params)
    moved = distance(scores(quantized), scores(loaded(folder)))
    assert 1e-4 < moved < 5


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_weights_that_stay_as_stored(made, kind):
    folder, plain, _ = made(kind)
    for dtype in ("float32", "bfloat16"):
        kept = load(folder, dtype=dtype, quantize="stored")
        want = loaded(plain, dtype=dtype)
        assert same(from_storage(kept.params), from_storage(want.params))
    values = {"gpt_oss": E2M1, "deepseek_v3": E4M3}[kind]
    experts = kept.params["experts"]
    assert {experts[name]["weight"].quant_type for name in ("gate", "up", "down")} == {values}
    small, large = (
        sum(x.nbytes for x in jax.tree.leaves(p)) for p in (experts, want.params["experts"])
    )
    assert small < (0.32 if kind == "gpt_oss" else 0.8) * large
    exact = load(folder, dtype="float32", quantize="stored")
    assert distance(scores(exact), scores(loaded(folder))) < 1e-6


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_converted(made, tmp_path, kind):
    folder, _, model = made(kind)
    out = tmp_path / "converted"
    words = ["--model", folder, "--output", out, "--dtype", "float32"]
    assert main(["convert", *map(str, words)]) == 0
    assert same(loaded(out).params, loaded(folder).params)
    assert_agree(scores(loaded(out)), torch_scores(model, ragged()))


ADAPTED = {"gpt_oss": ["q_proj", "o_proj"], "deepseek_v3": ["kv_a_proj_with_mqa", "kv_b_proj"]}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_an_adapter_is_merged_into_the_numbers(made, tmp_path, kind):
    folder, plain, model = made(kind)
    before = torch_scores(model, ragged())
    other = released.plain(tmp_path / "other", plain, {})
    merged = adapt(other, tmp_path / "adapter", target_modules=ADAPTED[kind], r=3)
    want = torch_scores(merged.merge_and_unload(), ragged())
    assert distance(want, before) > 1e-2
    assert_agree(scores(with_adapter(folder, tmp_path / "adapter")), want)


def test_an_adapter_of_stacked_experts_is_refused(made, tmp_path):
    folder, plain, _ = made("gpt_oss")
    model = released.plain(tmp_path / "other", plain, {})
    adapter = tmp_path / "adapter"
    adapt(model, adapter, target_modules=["q_proj"], r=2)
    file = adapter / "adapter_model.safetensors"
    module = "base_model.model.model.layers.0.mlp.experts.gate_up_proj"
    halves = {"lora_A": np.ones((2, 64), np.float32), "lora_B": np.ones((64, 2), np.float32)}
    more = {f"{module}.{name}.weight": value for name, value in halves.items()}
    save_file(load_file(file) | more, file)
    with pytest.raises(InputError, match=r"module model\.layers\.0\.mlp\.experts\.gate_up_proj is"):
        with_adapter(folder, adapter)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *((kind, ["model=2"]) for kind in QUANTIZED),
        ("gpt_oss", ["fsdp=4,model=2", "stored"]),
        ("deepseek_v3", ["fsdp=8", "stored"]),
    ],
)
def test_several_devices(made, kind, how):
    folder, _, model = made(kind)
    got = scores_on_devices(folder, *how)
    assert_agree(got, torch_scores(model, ragged()))
    assert distance(got, scores(loaded(folder))) < 1e-5


EVEN = {
    "flint": "num_experts",
    "lara_mini": "num_experts",
    "minimax_m3_vl_text": "num_local_experts",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVEN)
def test_mixtures_on_two_devices(tmp_path, kind):
    """Sinks, a delta rule beside windows, and clamped gates."""
    model = saved(tmp_path, kind, **{EVEN[kind]: 6})
    assert_agree(scores_on_devices(tmp_path, "model=2"), torch_scores(model, ragged()))


MORE_TOKENS = {
    "deepseek_v2": (3, "eh_proj"),
    "deepseek_v3": (3, "eh_proj"),
    "glm4_moe": (3, "eh_proj"),
    "ernie4_5_moe": (None, "mtp_linear_proj.0"),
}


@pytest.mark.parametrize("kind", MORE_TOKENS)
def test_a_layer_that_predicts_a_second_token_is_left_out(tmp_path, kind):
    layer, product = MORE_TOKENS[kind]

    def more(tensors):
        if layer is None:
            return tensors | released.ernies_next_token_layer(tensors)
        return tensors | released.next_token_layer(tensors, layer)

    want = torch_scores(saved(tmp_path, kind), ragged())
    released.changed(tmp_path, more)
    assert_agree(scores(loaded(tmp_path)), want)

    def without(tensors):
        return {name: one for name, one in tensors.items() if f"{product}.weight" not in name}

    released.changed(tmp_path, without)
    with pytest.raises(InputError, match="tensors that the model does not use"):
        loaded(tmp_path)


@pytest.mark.parametrize("kind", ["deepseek_v3", "glm4_moe", "ernie4_5_moe", "minimax_m2"])
def test_a_trained_correction_of_the_choice(tmp_path, kind):
    """Classes start it at zero, and released models have another one for each expert."""
    if kind == "deepseek_v3" and not FIFTH:
        pytest.skip("transformers 4.57 gives groups that are left out a score of 0, not the least")
    without = saved(tmp_path, kind)
    draw = np.random.default_rng(8)

    def drawn(tensors):
        names = [name for name in tensors if name.endswith("e_score_correction_bias")]
        assert names
        more = {name: draw.normal(0, 0.5, tensors[name].shape) for name in names}
        return tensors | {name: value.astype(np.float32) for name, value in more.items()}

    released.changed(tmp_path, drawn)
    want = torch_scores(released.plain(tmp_path / "plain", tmp_path, {}), ragged())
    assert distance(want, torch_scores(without, ragged())) > 1e-2
    assert_agree(scores(loaded(tmp_path)), want)


NAMES_OF_5 = (
    "axk1 axk2 deepseek_v3 ernie4_5_moe exaone_moe flint granitemoe hy_v3 kolibri1 lara_mini "
    "longcat_flash mellum mimo_v2_flash phimoe sarvam_moe"
).split()


@pytest.mark.skipif(not FIFTH, reason="transformers 4.57 has separate experts")
@pytest.mark.parametrize("kind", NAMES_OF_5)
def test_names_of_transformers_5(tmp_path, kind):
    """Fused experts, and other names than in released files."""
    model = saved(tmp_path, kind)
    model.save_pretrained(tmp_path, save_original_format=False)
    assert any(
        name.endswith("experts.gate_up_proj") for name in load_file(tmp_path / "model.safetensors")
    )
    assert_agree(scores(loaded(tmp_path)), torch_scores(model, ragged()))


OF_LLAVA = {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."}
# wrapper, its text, the text's prefixes as released, and names of tensors of its towers
WRAPPED = {
    "llama4": (
        "llama4_text",
        {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
        ["vision_model.model.layers.0.self_attn.q_proj.weight", "vision_model.class_embedding",
         "multi_modal_projector.linear_1.weight"],
    ),
    "gemma4": (
        "gemma4_text",
        {"model.": "model.language_model."},
        ["model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight",
         "model.embed_vision.embedding_projection.weight",
         "model.audio_tower.layers.0.norm_out.weight",
         "model.embed_audio.embedding_projection.weight"],
    ),
    "gemma3n": (
        "gemma3n_text",
        {"model.": "model.language_model."},
        ["model.vision_tower.timm_model.conv_stem.conv.weight",
         "model.embed_vision.embedding_projection.weight",
         "model.audio_tower.subsample_conv_projection.input_proj_linear.weight",
         "model.embed_audio.embedding.weight"],
    ),
    "gemma4_unified": (
        "gemma4_unified_text",
        {"model.": "model.language_model."},
        ["model.vision_embedder.patch_dense.weight", "model.vision_embedder.pos_embedding",
         "model.embed_vision.embedding_projection.weight",
         "model.embed_audio.embedding_projection.weight"],
    ),
    "kimi_k25": (
        "deepseek_v3",
        {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
        ["vision_tower.encoder.blocks.0.wqkv.weight", "mm_projector.proj.0.weight"],
    ),
    "aria": (
        "aria_text",
        OF_LLAVA,
        ["vision_tower.vision_model.post_layernorm.weight", "multi_modal_projector.query"],
    ),
    "aya_vision": (
        "cohere2",
        OF_LLAVA,
        ["vision_tower.vision_model.head.probe", "multi_modal_projector.linear_1.weight"],
    ),
    "cohere2_vision": (
        "cohere2",
        OF_LLAVA,
        ["vision_tower.vision_model.head.probe", "multi_modal_projector.linear_1.weight"],
    ),
    "exaone4_5": (
        "exaone4",
        {"model.": "model.language_model.", "lm_head.": "lm_head."},
        ["model.visual.patch_embed.proj.weight", "mtp.fc.weight"],
    ),
    "lfm2_vl": (
        "lfm2",
        {"model.": "model.language_model."},
        ["model.vision_tower.vision_model.post_layernorm.weight",
         "model.multi_modal_projector.linear_1.weight"],
    ),
    "lfm3_vl": (
        "lfm3",
        {"model.": "model.language_model."},
        ["model.vision_tower.patch_embed.weight", "model.multi_modal_projector.linear_1.weight"],
    ),
    "lighton_ocr": (
        "qwen3",
        {"model.": "model.language_model.", "lm_head.": "lm_head."},
        ["model.vision_encoder.ln_pre.weight", "model.vision_projection.linear_1.weight"],
    ),
    "ovis2": (
        "qwen2",
        {"model.": "model.language_model.", "lm_head.": "lm_head."},
        ["model.vision_tower.head_norm.weight", "model.visual_embeddings_table.weight"],
    ),
    "fuyu": ("persimmon", OF_LLAVA, ["vision_embed_tokens.weight", "vision_embed_tokens.bias"]),
    "got_ocr2": (
        "qwen2",
        OF_LLAVA,
        ["vision_tower.pos_embed", "multi_modal_projector.conv_upsampler1.weight"],
    ),
    "moss_transcribe_diarize": (
        "qwen3",
        {"model.": "model.language_model.", "lm_head.": "lm_head."},
        ["model.audio_tower.layer_norm.weight", "model.multi_modal_projector.norm.weight"],
    ),
    "nemotron_h_omni": (
        "nemotron_h",
        {"backbone.": "language_model.backbone.", "lm_head.": "language_model.lm_head."},
        ["vision_model.radio_model.model.norm.weight", "mlp1.1.weight",
         "sound_encoder.encoder.layers.0.norm_out.weight", "sound_projection.linear1.weight"],
    ),
    "idefics3": (
        "llama",
        {"model.": "model.text_model.", "lm_head.": "lm_head."},
        ["model.vision_model.post_layernorm.weight",
         "model.connector.modality_projection.proj.weight"],
    ),
    "internvl": (
        "qwen2",
        OF_LLAVA,
        ["vision_tower.embeddings.cls_token", "multi_modal_projector.layer_norm.weight"],
    ),
    "llava": (
        "llama",
        OF_LLAVA,
        ["vision_tower.vision_model.post_layernorm.weight",
         "multi_modal_projector.linear_1.weight"],
    ),
    "llava_next": (
        "mistral",
        OF_LLAVA,
        ["image_newline", "vision_tower.vision_model.post_layernorm.weight"],
    ),
    "llava_onevision": (
        "qwen2",
        {"model.": "model.language_model.", "lm_head.": "lm_head."},
        ["model.image_newline", "model.vision_tower.vision_model.post_layernorm.weight"],
    ),
    "smolvlm": (
        "llama",
        {"model.": "model.text_model.", "lm_head.": "lm_head."},
        ["model.vision_model.post_layernorm.weight",
         "model.connector.modality_projection.proj.weight"],
    ),
    "mistral3": (
        "ministral3",
        {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
        ["vision_tower.transformer.layers.0.attention.q_proj.weight",
         "multi_modal_projector.norm.weight"],
    ),
}  # fmt: skip
WRAPPED["NemotronH_Nano_Omni_Reasoning_V3"] = WRAPPED["nemotron_h_omni"]
NEW = {"gemma4_text", "gemma4_unified_text", "lfm3", "ministral3"}


def wrapped(folder, wrapper, **config):
    """A text model in a wrapper's file; torch's text model."""
    kind, prefixes, towers = WRAPPED[wrapper]
    if kind in NEW and not FIFTH:
        pytest.skip(f"transformers 4.57 does not have {kind}")
    model = saved(folder, kind, **config)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    top = {"model_type": wrapper, "text_config": raw, "vision_config": {"hidden_size": 8}}
    if wrapper in ("aria", "exaone4_5"):  # whose ids are small by default
        top |= {"image_token_id": 1000}
    if wrapper == "NemotronH_Nano_Omni_Reasoning_V3":
        top["llm_config"] = top.pop("text_config")
        top |= {"ps_version": "v2", "template": "omni", "use_thumbnail": True}
    if wrapper == "exaone4_5":
        top |= {"video_token_id": 1001}
    (folder / "config.json").write_text(json.dumps(top), encoding="utf-8")

    def renamed(tensors):
        out = dict.fromkeys(towers, np.ones((3, 2), np.float32))
        for name, value in tensors.items():
            first = next(first for first in prefixes if name.startswith(first))
            out[prefixes[first] + name.removeprefix(first)] = value
        return out

    released.changed(folder, renamed)
    return model


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_a_text_in_a_wrapper(tmp_path, wrapper):
    model = wrapped(tmp_path, wrapper)
    own = loaded(tmp_path)
    assert_agree(scores(own), torch_scores(model, ragged()))
    assert own.checkpoint.left_out.startswith(f"{len(WRAPPED[wrapper][2])} tensors (")
    released.changed(tmp_path, lambda tensors: tensors | {"model.sight.weight": np.ones(2)})
    with pytest.raises(InputError, match="1 tensors that the model does not use"):
        loaded(tmp_path)


def test_a_fuyu_without_a_text_config(tmp_path):
    """As it is released: transformers rotates half of each head, whatever the config says."""
    model = wrapped(tmp_path, "fuyu")
    file = tmp_path / "config.json"
    top = json.loads(file.read_text(encoding="utf-8"))
    text = top.pop("text_config")
    rope = text.pop("rope_parameters", {})
    flat = {**text, **top, "rope_theta": 25000.0, "partial_rotary_factor": 0.5}
    file.write_text(json.dumps(flat), encoding="utf-8")
    assert_agree(scores(loaded(tmp_path)), torch_scores(model, ragged()))
    for name, value in {"partial_rotary_factor": 0.25, "rope_parameters": rope}.items():
        file.write_text(json.dumps(flat | {name: value}), encoding="utf-8")
        with pytest.raises(InputError, match=f"{name}.* is outside of a text_config"):
            loaded(tmp_path)


def test_a_quantized_text_in_a_wrapper(tmp_path):
    """As Ministral 3 is released: one scale for each matrix of the text, and the tower plain."""
    model, exact = wrapped(tmp_path, "mistral3"), {}

    def packed(tensors):
        out, numbers = released.fp8_static(tensors)
        exact.update(numbers)
        return out

    config = {
        "activation_scheme": "static",
        "dequantize": False,
        "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
        "quant_method": "fp8",
        "weight_block_size": None,
    }
    released.changed(tmp_path, packed, quantization_config=config)
    state = model.state_dict()
    for name, value in exact.items():
        state[name.removeprefix("language_model.")] = torch.from_numpy(value)
    before = torch_scores(model, ragged())
    model.load_state_dict(state)
    want = torch_scores(model, ragged())
    assert distance(want, before) > 1e-2
    assert_agree(scores(loaded(tmp_path)), want)


def test_settings_of_quantized_weights_within_the_text(tmp_path):
    """As Kimi K2.5 has them, whose text has a model type that transformers does not know."""
    folder, exact = tmp_path / "model", tmp_path / "exact"
    wrapped(folder, "kimi_k25")
    tensors = load_file(folder / "model.safetensors")
    stored, numbers = released.fp8_static(tensors)
    stored = {name: one for name, one in stored.items() if not name.endswith("activation_scale")}
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = raw["text_config"] | {"model_type": "kimi_k2"}
    exact.mkdir()
    save_file(tensors | numbers, exact / "model.safetensors")
    (exact / "config.json").write_text(json.dumps(raw | {"text_config": text}), encoding="utf-8")
    settings = {"activation_scheme": "dynamic", "quant_method": "fp8", "weight_block_size": None}
    settings |= {"modules_to_not_convert": ["lm_head"]}
    text = text | {"quantization_config": settings}
    released.changed(folder, lambda _: stored, text_config=text)
    assert loaded(folder).checkpoint.stored_as.startswith("fp8")
    assert same(loaded(folder).params, loaded(exact).params)


def test_gemma_4_has_keys_of_layers_that_share_them(tmp_path):
    """The released files hold them, and nothing reads them."""
    model = wrapped(tmp_path, "gemma4", num_kv_shared_layers=2)

    def more(tensors):
        out, first = dict(tensors), "model.language_model.layers."
        for layer in (2, 3):
            for name in ("k_proj", "v_proj", "k_norm"):
                as_before = f"{first}{layer - 2}.self_attn.{name}.weight"
                out[f"{first}{layer}.self_attn.{name}.weight"] = tensors[as_before] + 1
        return out

    released.changed(tmp_path, more)
    assert_agree(scores(loaded(tmp_path)), torch_scores(model, ragged()))


def test_fp8_of_a_projection_that_is_cut_in_two(made):
    """Keys and values come out of one matrix, whose blocks end within a head."""
    folder, _, model = made("deepseek_v3")
    stored = map_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    rows = FP8["weight_block_size"][0]
    assert stored[name].shape[0] % (6 + 6) == 0 != rows % (6 + 6)
    assert f"{name}_scale_inv" in stored
    latent = loaded(folder).params["layers"]["attention"]["latent"]
    want = model.state_dict()[name].reshape(4, 12, -1)
    keys, values = want[:, :6].reshape(24, -1), want[:, 6:].reshape(24, -1)
    for ours, theirs in (("key_up", keys), ("value_up", values)):
        got = np.asarray(latent[ours]["weight"][1]).reshape(24, -1)
        np.testing.assert_array_equal(got, theirs.numpy())


def test_experts_whose_rows_follow_each_other(tmp_path):
    saved(tmp_path, "dbrx")
    file, name = tmp_path / "model.safetensors", "transformer.blocks.1.ffn.experts.mlp.v1"
    stored = load_file(file)
    stored[name] = stored[name][:-1]
    save_file(stored, file)
    with pytest.raises(InputError, match=r"mlp.v1 has shape \[95, 32\], .* rows of 4 matrices"):
        loaded(tmp_path)
