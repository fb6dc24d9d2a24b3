"""LoRA adapters: what PEFT itself merges, or a refusal."""

import functools
import json
import re
import warnings

import jax
import ml_dtypes
import numpy as np
import peft
import pytest
import torch
from safetensors.numpy import load_file, save_file

from jaxscore.errors import InputError
from jaxscore.models.families import FAMILIES
from jaxscore.models.families.family import bare_name
from jaxscore.models.load import load
from jaxscore.models.transformers_flax import GUARDS
from jaxscore.models.weights import lora
from jaxscore.models.weights import tensor_files as files
from tests.models.checkpoints import (
    assert_agree,
    distance,
    from_folder,
    loaded,
    ragged,
    saved,
    scorer,
    torch_scores,
)
from tests.releases import flax_classes

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CASES = {
    "two modules": ("llama", {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 12}),
    "all but one": (
        "llama",
        {"target_modules": "all-linear", "r": 3, "lora_alpha": 5, "exclude_modules": ["o_proj"]},
    ),
    "untied head": ("llama", {"target_modules": ["lm_head", "o_proj"], "r": 2, "lora_alpha": 1.5}),
    "head with a bias": ("phi", {"target_modules": r".*\.?lm_head", "r": 2}),
    "rank-stabilised": (
        "llama",
        {"target_modules": "all-linear", "r": 9, "lora_alpha": 4, "use_rslora": True},
    ),
    "patterns": (
        "llama",
        {
            "target_modules": "all-linear",
            "r": 4,
            "lora_alpha": 4,
            "rank_pattern": {r"layers\.1\.mlp\.\w+_proj": 7, "k_proj": 2},
            # "proj" is the end of a name and of no module; the first that fits is taken
            "alpha_pattern": {"proj": 100, "0.self_attn.q_proj": 9, "q_proj": 2.5, "down_proj": 16},
        },
    ),
    "rank-stabilised patterns": (
        "llama",
        {
            "target_modules": ["q_proj", "k_proj", "gate_proj"],
            "r": 4,
            "lora_alpha": 4,
            "use_rslora": True,
            "rank_pattern": {"q_proj": 9},
            "alpha_pattern": {"q_proj": 2, "gate_proj": 7},
        },
    ),
    "some layers": (
        "llama",
        {"target_modules": ["up_proj"], "layers_to_transform": [1], "r": 4, "lora_alpha": 8},
    ),
    "fused and [in, out]": (
        "gpt2",
        {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True, "r": 4},
    ),
    "square and [in, out], rank-stabilised": (
        "gpt2",
        {
            "target_modules": ["attn.c_proj"],
            "fan_in_fan_out": True,
            "r": 4,
            "use_rslora": True,
            "rank_pattern": {"h.0.attn.c_proj": 2},
        },
    ),
}


def adapt(model, folder, **settings):
    """A random adapter of the torch model, saved to the folder; returns PEFT's model."""
    config = peft.LoraConfig(**{"lora_alpha": 8, "task_type": "CAUSAL_LM", **settings})
    torch.manual_seed(3)
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_" in name:  # B starts at zero, which merges into nothing
                value.normal_(std=0.3)
    with warnings.catch_warnings():
        # Heads are saved with their original weights, and the base has no folder.
        warnings.filterwarnings("ignore", message="Setting `save_emb|Could not find a config file")
        adapted.save_pretrained(folder)
    return adapted


def with_adapter(folder, adapter, *, dtype="float32", implementation="native"):
    with warnings.catch_warnings():
        # Flax's own modules, where transformers' classes are built on them.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="flax")
        return load(folder, dtype=dtype, implementation=implementation, adapter=adapter)


# Every other family, with an adapter of all that is linear in it: experts, routers, fused matrices.
EVERY = {
    kind: (kind, {"target_modules": "all-linear", "r": 3, "lora_alpha": 5})
    for kind in sorted(FAMILIES)
    if kind != "gpt2"
}
KIMI = "q_proj k_proj v_proj o_proj b_proj g_a_proj g_b_proj"  # its other modules have other names
EVERY["kimi_linear"][1]["target_modules"] = KIMI.split()
# Files have one tensor of all products inward of its delta rule.
EVERY["lara_mini"][1]["exclude_modules"] = [f"in_proj_{name}" for name in ("qkv", "z", "b", "a")]
# Files have one tensor of queries, keys and values.
EVERY["sarvam_moe"][1]["exclude_modules"] = ["q_proj", "k_proj", "v_proj"]
for kind in ("zamba", "zamba2"):
    EVERY[kind][1]["target_modules"] = ["in_proj", "linear"]  # of shared blocks, see below
for kind in ("falcon_h1", "falcon_mamba", "mamba", "mamba2"):
    EVERY[kind][1]["exclude_modules"] = ["out_proj"]  # which PEFT refuses there


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(case)`: folders of the base, the adapter and PEFT's merge, and the merged model."""
    known = {}

    def make(case):
        if case not in known:
            kind, settings = (CASES | EVERY)[case]
            place = tmp_path_factory.mktemp("case")
            base = saved(place / "base", kind)
            merged = adapt(base, place / "adapter", **settings).merge_and_unload()
            merged.save_pretrained(place / "merged")
            known[case] = (place / "base", place / "adapter", place / "merged", merged)
        return known[case]

    return make


@pytest.fixture
def copied(made, tmp_path):
    """`copied(case)`: folders of the base and of a copy of the adapter, to be changed."""

    def make(case="two modules"):
        base, adapter, _, _ = made(case)
        copy = tmp_path / "adapter"
        copy.mkdir()
        for name in (CONFIG, WEIGHTS):
            (copy / name).write_bytes((adapter / name).read_bytes())
        return base, copy

    return make


def reconfigured(adapter, **settings):
    path = adapter / CONFIG
    config = json.loads(path.read_text(encoding="utf-8")) | settings
    path.write_text(json.dumps(config), encoding="utf-8")


def rewritten(adapter, change):
    path = adapter / WEIGHTS
    save_file(change(load_file(path)), path)


def refused(base, adapter, *parts):
    with pytest.raises(InputError) as problem:
        with_adapter(base, adapter)
    for part in parts:
        assert str(part) in str(problem.value)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_what_peft_merges(made, case):
    base, adapter, _, merged = made(case)
    want = torch_scores(merged, ragged())
    assert_agree(scorer(with_adapter(base, adapter)).score_sequences(ragged()), want)
    assert distance(scorer(loaded(base)).score_sequences(ragged()), want) > 0.1


@pytest.mark.slow_after(6)
@pytest.mark.parametrize(
    ("case", "implementation"),
    [(case, "native") for case in CASES | EVERY]
    + [
        pytest.param(case, "transformers", marks=flax_classes)
        for case, (model_type, _) in CASES.items()
        if model_type in GUARDS
    ],
)
def test_weights_are_those_that_peft_merges(made, case, implementation):
    """To float32 rounding: a sum of r products may be taken in another order."""
    base, adapter, merged, _ = made(case)
    got = with_adapter(base, adapter, implementation=implementation).params
    want = loaded(merged, implementation=implementation).params
    before = loaded(base, implementation=implementation).params
    moved = 0
    for (path, one), other, old in zip(
        jax.tree.leaves_with_path(got), jax.tree.leaves(want), jax.tree.leaves(before), strict=True
    ):
        bound = 16 * np.finfo(np.float32).eps * np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=bound, err_msg=str(path))
        moved += bool(np.abs(one - old).max() > 1000 * bound)
        if np.array_equal(other, old):  # what the adapter does not name is not even rounded
            assert np.array_equal(one, old), path
    assert moved


def test_an_adapter_of_a_convolution_is_refused(copied):
    base, adapter = copied("lfm2")
    at = "base_model.model.model.layers.0.conv.conv.lora_"
    halves = {f"{at}A.weight": np.ones((3, 1, 3)), f"{at}B.weight": np.ones((32, 3, 1))}
    rewritten(adapter, lambda t: t | {n: x.astype(np.float32) for n, x in halves.items()})
    refused(base, adapter, "conv.conv has lora_A [3, 1, 3]", "expected [3, in] and [out, 3]")


def test_the_merge_is_rounded_to_bfloat16_once(made):
    base, adapter, _, _ = made("two modules")
    exact, rounded = (
        jax.tree.leaves(with_adapter(base, adapter, dtype=dtype).params)
        for dtype in ("float32", "bfloat16")
    )
    for one, other in zip(exact, rounded, strict=True):
        if other.dtype == np.uint16:  # as the CPU keeps it
            one = np.asarray(one).astype(ml_dtypes.bfloat16).view(np.uint16)
        assert np.array_equal(one, other)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_an_adapter_in_half_precision_is_widened_before_the_product(copied, kind):
    base, adapter = copied()
    rewritten(adapter, lambda tensors: {name: x.astype(kind) for name, x in tensors.items()})
    narrow = jax.tree.leaves(with_adapter(base, adapter).params)
    rewritten(adapter, lambda tensors: {name: x.astype(np.float32) for name, x in tensors.items()})
    wide = jax.tree.leaves(with_adapter(base, adapter).params)
    assert all(np.array_equal(one, other) for one, other in zip(narrow, wide, strict=True))


@pytest.mark.parametrize("case", ["fused and [in, out]", "two modules"])
def test_fan_in_fan_out_follows_from_the_module(made, copied, case):
    """As in PEFT, which warns and sets it right."""
    base, adapter = copied(case)
    reconfigured(adapter, fan_in_fan_out=case == "two modules")
    want = torch_scores(made(case)[3], ragged())
    assert_agree(scorer(with_adapter(base, adapter)).score_sequences(ragged()), want)


@pytest.mark.parametrize("prefixed", ["base", "adapter"])
def test_names_with_and_without_the_prefix(made, copied, tmp_path, prefixed):
    """A checkpoint of the bare model and an adapter of the whole one, and the reverse."""
    base, adapter = copied("fused and [in, out]")
    want = jax.tree.leaves(with_adapter(base, adapter).params)
    if prefixed == "adapter":
        other = tmp_path / "base"
        other.mkdir()
        (other / "config.json").write_bytes((base / "config.json").read_bytes())
        tensors = load_file(base / "model.safetensors")
        bare = {name.removeprefix("transformer."): value for name, value in tensors.items()}
        save_file(bare, other / "model.safetensors")
        base = other
    else:
        rewritten(adapter, lambda t: {n.replace(".transformer.", "."): x for n, x in t.items()})
    got = jax.tree.leaves(with_adapter(base, adapter).params)
    assert all(np.array_equal(one, other) for one, other in zip(got, want, strict=True))


@pytest.mark.parametrize(
    "setting",
    [
        {"peft_type": "LOHA"},
        {"peft_type": None},
        {"task_type": "SEQ_CLS"},
        {"bias": "all"},
        {"bias": "lora_only"},
        {"use_dora": True},
        {"lora_bias": True},
        {"use_qalora": True},
        {"modules_to_save": ["lm_head"]},
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": "olora"},
        {"init_lora_weights": 1},
        {"layer_replication": [[0, 2]]},
        {"target_parameters": ["experts.gate_up_proj"]},
        {"trainable_token_indices": [3]},
        {"megatron_config": {"x": 1}},
        {"loftq_config": {"loftq_bits": 4}},
        {"alora_invocation_tokens": [1, 2]},
        {"setting_of_next_year": 0},
        {"r": 0},
        {"r": 4.0},
        {"r": True},
        {"lora_alpha": None},
        {"lora_alpha": "8"},
        {"lora_alpha": float("nan")},
        {"use_rslora": "yes"},
        {"rank_pattern": {"q_proj": 0}},
        {"alpha_pattern": {"q_proj": "x"}},
        {"alpha_pattern": {"(": 3}},
        {"alpha_pattern": ["q_proj"]},
    ],
    ids=str,
)
def test_a_setting_that_is_not_handled(copied, setting):
    base, adapter = copied()
    reconfigured(adapter, **setting)
    refused(base, adapter, adapter / CONFIG, next(iter(setting)))


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_real_adapters_that_are_not_handled(tmp_path):
    """As PEFT writes them: DoRA, biases, embeddings and modules that are saved whole."""
    kinds = {
        "use_dora": {"use_dora": True, "target_modules": ["q_proj"]},
        "bias": {"bias": "lora_only", "target_modules": ["q_proj"]},
        "modules_to_save": {"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]},
        "embed_tokens.lora_embedding_A": {"target_modules": ["embed_tokens", "lm_head"]},
        "trainable_token_indices": {"trainable_token_indices": [3], "target_modules": ["q_proj"]},
        # For experts, whose weights are parameters and not modules in transformers 5
        "target_parameters": {"target_parameters": ["q_proj.weight"], "target_modules": []},
    }
    for named, settings in kinds.items():
        base = saved(tmp_path / "base", "llama")
        adapt(base, tmp_path / named, r=4, **settings)
        refused(tmp_path / "base", tmp_path / named, named, "merge this adapter with PEFT itself")


HEAD = "base_model.model.lm_head.base_layer.weight"


def test_the_original_head_of_an_adapter_replaces_the_models(copied):
    """As in PEFT, which loads it into the layer that it adapts."""
    base, adapter = copied("untied head")
    before = torch_scores(from_folder(base), ragged())
    rewritten(adapter, lambda tensors: tensors | {HEAD: 1.5 * tensors[HEAD]})
    merged = peft.PeftModel.from_pretrained(from_folder(base), adapter).merge_and_unload()
    want = torch_scores(merged, ragged())
    assert distance(want, before) > 0.1
    assert_agree(scorer(with_adapter(base, adapter)).score_sequences(ragged()), want)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t | {HEAD: t[HEAD][:9].copy()}, "lm_head.weight .* shape [9, 32]; the model"),
        (lambda t: t | {HEAD: t[HEAD].astype(np.int32)}, "base_layer.weight is stored as I32"),
        (lambda t: t | {HEAD.replace(".weight", ".bias"): t[HEAD][:, 0].copy()}, "no such tensor"),
        (
            lambda t: t | {HEAD.replace("lm_head", "model.norm"): t[HEAD].copy()},
            "tensor base_model.model.model.norm.base_layer.weight is not handled",
        ),
        (lambda t: {HEAD: t[HEAD]}, f"tensor {HEAD} is not handled"),
    ],
)
def test_original_tensors_that_do_not_fit(copied, change, named):
    base, adapter = copied("untied head")
    rewritten(adapter, change)
    refused(base, adapter, adapter / WEIGHTS, *named.split(" .* "))


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
SECOND = FIRST.replace("lora_A", "lora_B")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: {}, "is without tensors"),
        (lambda t: {k: v for k, v in t.items() if k != FIRST}, "q_proj has only lora_B"),
        (lambda t: t | {FIRST: t[FIRST][:2].copy()}, "expected [4, in] and [out, 4]"),
        (lambda t: t | {SECOND: t[SECOND][:, 0].copy()}, "expected [4, in] and [out, 4]"),
        (lambda t: t | {SECOND: t[SECOND][:9].copy()}, "is for a weight of shape [9, 32]"),
        (lambda t: t | {FIRST: t[FIRST].astype(np.int32)}, "lora_A.weight is stored as I32"),
        (lambda t: {k.replace("q_proj", "z_proj"): v for k, v in t.items()}, "0.self_attn.z_proj"),
        (lambda t: {k.replace("s.1.", "s.7."): v for k, v in t.items()}, "layers.7.self_attn"),
        (lambda t: {k.removeprefix("base_model."): v for k, v in t.items()}, "tensor model.model"),
        (lambda t: {k.replace(".weight", ".default.weight"): v for k, v in t.items()}, "default"),
        (
            lambda t: t | {k.replace("model.model.", "model."): v.copy() for k, v in t.items()},
            "appears under two names",
        ),
    ],
)
def test_tensors_that_do_not_fit(copied, change, named):
    base, adapter = copied()
    rewritten(adapter, change)
    refused(base, adapter, adapter / WEIGHTS, named)


def test_a_rank_that_the_config_gives_otherwise(copied):
    base, adapter = copied()
    reconfigured(adapter, rank_pattern={"v_proj": 5})
    refused(base, adapter, "v_proj has lora_A [4, 32]", "its rank is 5")


def test_a_tied_head_takes_no_adapter(tmp_path):
    """PEFT would change the embedding with it."""
    model = saved(tmp_path / "base", "llama", tie_word_embeddings=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's own about this
        adapt(model, tmp_path / "adapter", r=4, target_modules=["lm_head"])
    said = "module lm_head is adapted", "its LM head is the embedding"
    refused(tmp_path / "base", tmp_path / "adapter", *said)
    tensors = load_file(tmp_path / "base/model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors, tmp_path / "base/model.safetensors")
    refused(tmp_path / "base", tmp_path / "adapter", "lm_head.weight is not the embedding")


def test_files_that_are_not_there(copied, tmp_path):
    base, adapter = copied()
    refused(base, tmp_path / "nowhere", tmp_path / "nowhere", "no such folder")
    (adapter / WEIGHTS).rename(adapter / "adapter_model.bin")
    refused(base, adapter, "adapter_model.bin", "save the adapter again", WEIGHTS)
    (adapter / "adapter_model.bin").unlink()
    refused(base, adapter, adapter / WEIGHTS, "No such file")
    (adapter / CONFIG).write_text("[]", encoding="utf-8")
    refused(base, adapter, adapter / CONFIG, "expected an object")
    (adapter / CONFIG).unlink()
    refused(base, adapter, adapter, "adapter_config.json is missing")


def test_merged_tensors_are_computed_when_they_are_looked_up_and_not_held(made):
    base, adapter, _, _ = made("two modules")
    plain = files.open_tensors(base)
    merged = lora.merged(
        plain, lora.read(adapter), "llama", functools.partial(bare_name, FAMILIES["llama"])
    )
    named = re.compile(r"model\.layers\.\d+\.self_attn\.[qv]_proj\.weight")
    assert merged.changed == {name for name in plain.stored if named.fullmatch(name)}
    assert set(merged.arrays) == set(plain.arrays)
    assert len(merged.arrays) == len(plain.arrays)
    for name, stored in plain.stored.items():
        if name in merged.changed:
            assert merged.arrays[name] is not merged.arrays[name]
        else:
            assert merged.arrays[name] is stored


def test_the_base_model_is_told_and_not_checked(copied):
    base, adapter = copied()
    reconfigured(adapter, base_model_name_or_path="somebody/something")
    assert lora.read(adapter).base_model == "somebody/something"
    with_adapter(base, adapter)


def test_an_adapter_of_a_block_that_layers_share_is_refused(tmp_path):
    base = saved(tmp_path / "base", "zamba2")
    adapt(base, tmp_path / "adapter", target_modules=["q_proj"], layers_to_transform=[1])
    with pytest.raises(InputError, match=r"q_proj belongs to a block that several layers share"):
        with_adapter(tmp_path / "base", tmp_path / "adapter")
