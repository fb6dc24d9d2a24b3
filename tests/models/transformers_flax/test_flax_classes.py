"""transformers' own Flax classes: every token agrees with torch, or the config is refused."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from transformers.activations import ACT2FN
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from jaxscore.errors import InputError
from jaxscore.models.families import FAMILIES
from jaxscore.models.transformers_flax import ACTIVATIONS, GUARDS, guarded
from jaxscore.plan.requests import TokenRequest, TokenSequence
from jaxscore.scorer import Scorer
from tests.models import checkpoints
from tests.models.checkpoints import (
    POSITIONS,
    VOCABULARY,
    assert_agree,
    distance,
    loaded,
    ragged,
    scorer,
    torch_logits,
    torch_scores,
)
from tests.releases import NO_FLAX_CLASSES, flax_classes

pytestmark = [pytest.mark.numeric, flax_classes]

FLAX_ACT2FN = pytest.importorskip("transformers.modeling_flax_utils", reason=NO_FLAX_CLASSES).ACT2FN

BASE = {
    "gpt2": checkpoints.BASE["gpt2"],
    "llama": checkpoints.BASE["llama"],
    "gpt_neo": {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "window_size": 5,
        "attention_types": [[["global", "local"], 1]],
    },
    "gptj": {
        "vocab_size": VOCABULARY,
        "n_positions": POSITIONS,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "rotary_dim": 4,
    },
    "opt": {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "hidden_size": 32,
        "ffn_dim": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
    "bloom": {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "n_layer": 2,
        "n_head": 4,
    },
    "xglm": {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "d_model": 32,
        "ffn_dim": 56,
        "num_layers": 2,
        "attention_heads": 4,
    },
    "gemma": {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
}
CLASSES = {
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "gpt_neo": (transformers.GPTNeoConfig, transformers.GPTNeoForCausalLM),
    "gptj": (transformers.GPTJConfig, transformers.GPTJForCausalLM),
    "opt": (transformers.OPTConfig, transformers.OPTForCausalLM),
    "bloom": (transformers.BloomConfig, transformers.BloomForCausalLM),
    "xglm": (transformers.XGLMConfig, transformers.XGLMForCausalLM),
    "gemma": (transformers.GemmaConfig, transformers.GemmaForCausalLM),
}
KINDS = sorted(BASE)


def torch_model(kind, **config):
    """A random float32 model, norms and biases moved away from where they start."""
    make_config, make_model = CLASSES[kind]
    torch.manual_seed(7)
    options = {**BASE[kind], "bos_token_id": None, "eos_token_id": None, **config}
    model = make_model(make_config(**options, attn_implementation="eager")).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim > 1:
                value.normal_(std=0.25)
            else:
                # Gemma's norms add one to their weights.
                zero = name.endswith("bias") or kind == "gemma"
                value.normal_(mean=0.0 if zero else 1.0, std=0.3)
    return model


def flax_model(folder, **options):
    return loaded(folder, implementation="transformers", **options)


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    """One saved checkpoint a kind."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, folder in folders.items():
        torch_model(kind).save_pretrained(folder)
    return folders


@pytest.fixture
def checkpoint(originals, tmp_path):
    """`checkpoint(kind, **attributes)`: a copy of a checkpoint with its config changed."""

    def make(kind, **attributes):
        folder = tmp_path / kind
        shutil.copytree(originals[kind], folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | attributes), encoding="utf-8")
        return folder

    return make


def retensored(folder, change):
    """The folder with its tensors replaced by what `change` makes of them."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)
    return folder


# kind, config, switches: attributes that change the numbers and no tensor, each by itself
CASES = [
    ("gpt2", {}, {"layer_norm_epsilon": 0.1}),
    (
        "gpt2",
        {"tie_word_embeddings": False, "n_inner": 40},
        {"activation_function": "relu", "n_head": 2},
    ),
    ("llama", {}, {"rms_norm_eps": 0.1}),
    (
        "llama",
        {"tie_word_embeddings": True, "num_key_value_heads": 1},
        {"hidden_act": "gelu"},
    ),
    ("gpt_neo", {}, {}),
    ("gpt_neo", {}, {"attention_types": [[["global"], 2]]}),
    ("gpt_neo", {}, {"attention_layers": ["local", "global"]}),  # which counts, not the types
    (
        "gpt_neo",
        {"tie_word_embeddings": False, "intermediate_size": 40},
        {
            "activation_function": "relu",
            "layer_norm_epsilon": 0.1,
            "num_heads": 2,
            "window_size": 3,
            "attention_types": [[["local"], 1], [["global"], 1]],
        },
    ),
    ("gptj", {}, {}),
    (
        "gptj",
        {"n_inner": 40},
        {"activation_function": "gelu", "layer_norm_epsilon": 0.1, "n_head": 2, "rotary_dim": 8},
    ),
    ("opt", {}, {}),
    ("opt", {"_remove_final_layer_norm": True}, {"activation_function": "gelu"}),
    ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 20}, {}),  # the 350m
    (
        "opt",
        {
            "tie_word_embeddings": False,
            "word_embed_proj_dim": 40,
            "_remove_final_layer_norm": True,
        },
        {"do_layer_norm_before": False, "num_attention_heads": 2},
    ),
    ("bloom", {}, {}),
    (
        "bloom",
        {"tie_word_embeddings": False},
        {"apply_residual_connection_post_layernorm": True, "layer_norm_epsilon": 0.1, "n_head": 8},
    ),
    ("bloom", {"pretraining_tp": 2}, {"n_head": 1}),
    ("xglm", {}, {}),
    (
        "xglm",
        {"tie_word_embeddings": False, "pad_token_id": 0},
        {"scale_embedding": False, "activation_function": "relu", "attention_heads": 2},
    ),
    ("gemma", {}, {}),
    ("gemma", {"num_key_value_heads": 4, "hidden_activation": "gelu"}, {"hidden_act": "gelu"}),
    (
        "gemma",
        {
            "tie_word_embeddings": False,
            "attention_bias": True,
            "head_dim": 12,
            "num_key_value_heads": 1,
            "hidden_activation": "relu",
        },
        {"hidden_act": "relu", "rms_norm_eps": 0.1},
    ),
]


@pytest.mark.slow_after(1, of_each="kind")
@pytest.mark.parametrize(("kind", "config", "switches"), CASES, ids=str)
def test_every_token_agrees_with_torch(tmp_path, kind, config, switches):
    model = torch_model(kind, **config, **switches)
    model.save_pretrained(tmp_path)
    want = torch_scores(model, ragged())
    for name in switches:
        kept = {other: value for other, value in switches.items() if other != name}
        without = torch_model(kind, **config, **kept)
        without.load_state_dict(model.state_dict())
        assert distance(torch_scores(without, ragged()), want) > 3e-4, name  # three tolerances
    own = scorer(flax_model(tmp_path))
    assert_agree(own.score_sequences(ragged()), want)
    assert [program.name for program in own.engine.programs.compiled] == [("score", 1, 64)]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_about_as_far_from_float32_as_torch_is(tmp_path, kind):
    """Both start from weights rounded to bfloat16 and round the activations too."""
    torch_model(kind).to(torch.bfloat16).save_pretrained(tmp_path)
    rounded = {k: v.float() for k, v in load_torch(tmp_path / "model.safetensors").items()}
    model = torch_model(kind)
    assert set(model.load_state_dict(rounded, strict=False).missing_keys) <= {"lm_head.weight"}
    exact = torch_scores(model, ragged())
    theirs = distance(torch_scores(model.to(torch.bfloat16), ragged()), exact)
    got = scorer(flax_model(tmp_path, dtype="bfloat16")).score_sequences(ragged())
    assert 1e-4 < distance(got, exact) < 3 * theirs < 0.5  # the first: bfloat16 is what ran


def test_the_most_probable_tokens_are_torchs(originals):
    """A class takes one text a row, so no query is shared."""
    got = scorer(flax_model(originals["gpt2"])).score_sequences(ragged(), top=5)
    model = torch_model("gpt2")
    for one, scores in zip(ragged(), got, strict=True):
        want = torch.log_softmax(torch_logits(model, one).float(), -1).topk(5)
        np.testing.assert_array_equal(scores.top_id, want.indices)
        np.testing.assert_allclose(scores.top_logprob, want.values, atol=1e-4, rtol=0)
        own = scores.top_logprob[scores.greedy, 0]
        assert scores.logprob[scores.greedy].tobytes() == own.tobytes()


def greedy(model, prompt, n_new):
    """The ids that the class writes after a prompt."""
    request = TokenRequest(prompt, n_new, 0.0, 1.0, 0, (), model.checkpoint.eos_ids)
    return model.functions.write(model.params, request)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_torchs(originals, kind):
    """Prompts of one bucket, so that all but the longest are padded on the left."""
    n_new = 10
    theirs = CLASSES[kind][1].from_pretrained(originals[kind], attn_implementation="eager").eval()
    model = flax_model(originals[kind])
    draw = np.random.default_rng(1)
    for length in (1, 2, 9, POSITIONS - n_new - 1, POSITIONS - n_new):
        prompt = draw.integers(0, VOCABULARY, length).astype(np.int32)
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        want = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n_new,
            do_sample=False,
            pad_token_id=0,
        )
        got = greedy(model, prompt, n_new)
        assert got.tolist() == want[0, length:].tolist(), length


@pytest.mark.slow
def test_what_a_config_says_of_generation_and_of_tuples_changes_nothing(originals, checkpoint):
    prompt = np.arange(5, dtype=np.int32)
    plain = flax_model(originals["gpt2"])
    want = greedy(plain, prompt, 6).tolist()
    asked = checkpoint(
        "gpt2",
        suppress_tokens=want,
        num_beams=3,
        no_repeat_ngram_size=1,
        return_dict=False,
        torchscript=True,
    )
    model = flax_model(asked)
    assert greedy(model, prompt, 6).tolist() == want
    assert_agree(
        scorer(model).score_sequences(ragged()), scorer(plain).score_sequences(ragged()), atol=0
    )


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "precision"), [("float32", "HIGHEST"), ("bfloat16", "DEFAULT")])
def test_float32_products_are_not_left_to_the_device(originals, kind, dtype, precision):
    """A GPU's default for them is TF32, a TPU's bfloat16."""
    model = flax_model(originals[kind], dtype=dtype)
    ids = np.zeros((1, 8), np.int32)
    program = str(jax.make_jaxpr(model.functions.hidden_states)(model.params, ids, ids, ids))
    found = re.findall(r"precision=\(?(?:Precision\.)?(\w+)", program)
    assert program.count("dot_general[") == len(found) > 0
    assert set(found) == {precision}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_flax_activations_are_torchs(name):
    """What the guards let through beside the checkpoints above."""
    x = np.linspace(-12, 12, 4001, dtype=np.float32)
    theirs = ACT2FN[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(FLAX_ACT2FN[name](x), theirs, atol=2e-6, rtol=0)


WRONG = [
    ("qwen2", {}, "'qwen2'"),
    ("llama", {"rope_theta": 500000.0}, "rope_theta is 500000.0"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling is"),
    ("llama", {"mlp_bias": True}, "mlp_bias is True"),
    ("llama", {"attention_bias": True}, "attention_bias is True"),
    ("llama", {"head_dim": 16}, "head_dim is 16"),
    ("llama", {"my_scale": 2.0}, "my_scale=2.0"),
    ("llama", {"hidden_act": "mish"}, "hidden_act"),
    ("llama", {"max_position_embeddings": 15}, "max_position_embeddings is 15"),
    ("llama", {"num_attention_heads": 0}, "sizes do not form a valid model"),
    ("llama", {"num_key_value_heads": 3}, "cannot build a model from it"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is False"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"activation_function": "mish"}, "activation_function"),
    ("gpt2", {"n_inner": "abc"}, "n_inner is 'abc', expected null or a value of type int"),
    ("gpt2", {"n_positions": 0}, "n_positions is 0"),
    ("gpt_neo", {"activation_function": "mish"}, "activation_function is 'mish'"),
    ("gpt_neo", {"window_size": 0}, "window_size is 0"),
    (
        "gpt_neo",
        {"attention_types": [[["global", "odd"], 1]], "attention_layers": None},
        "attention_layers is None, expected a value like",
    ),
    ("gpt_neo", {"attention_layers": ["global", "odd"]}, "attention_layers is ['global', 'odd']"),
    ("gpt_neo", {"attention_layers": ["global"]}, "attention_layers is ['global']"),
    ("gpt_neo", {"attention_types": [[["global"], 3]]}, "attention_types"),
    ("gpt_neo", {"num_heads": 0}, "cannot build a model from it"),
    ("gptj", {"activation_function": "mish"}, "activation_function is 'mish'"),
    ("gptj", {"tie_word_embeddings": True}, "tie_word_embeddings is True"),
    ("gptj", {"rotary_dim": 5}, "rotary_dim is 5"),
    ("gptj", {"rotary_dim": 0}, "rotary_dim is 0"),
    ("gptj", {"rotary_dim": None}, "rotary_dim is None"),
    ("gptj", {"rotary_dim": 10}, "rotary_dim is 10"),
    ("gptj", {"n_head": 0}, "sizes do not form a valid model"),
    ("gptj", {"add_cross_attention": True}, "add_cross_attention=True"),
    ("opt", {"activation_function": "mish"}, "activation_function is 'mish'"),
    ("opt", {"enable_bias": False}, "enable_bias is False"),
    ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is False"),
    ("opt", {"num_attention_heads": 5}, "cannot build a model from it"),
    ("bloom", {"slow_but_exact": True, "pretraining_tp": 2}, "slow_but_exact is True"),
    ("bloom", {"n_head": 6}, "n_head is 6"),
    ("bloom", {"n_head": 0}, "n_head is 0"),
    ("bloom", {"n_inner": 40}, "n_inner=40"),
    ("xglm", {"activation_function": "mish"}, "activation_function is 'mish'"),
    ("xglm", {"pad_token_id": 7}, "pad_token_id is 7"),
    ("xglm", {"pad_token_id": -1}, "pad_token_id is -1"),
    ("xglm", {"add_cross_attention": True}, "add_cross_attention is True"),
    ("xglm", {"d_model": 33}, "d_model is 33"),
    ("gemma", {"hidden_act": "mish"}, "hidden_act is 'mish'"),
    ("gemma", {"hidden_act": "gelu"}, "'gelu_pytorch_tanh'; set both to the same value"),
    ("gemma", {"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
    ("gemma", {"rope_theta": 500000.0}, "rope_theta is 500000.0"),
    ("gemma", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling is"),
    ("gemma", {"max_position_embeddings": 15}, "max_position_embeddings is 15"),
    ("gemma", {"num_key_value_heads": 3}, "cannot build a model from it"),
    ("gemma", {"sliding_window": 4}, "sliding_window=4"),
]


def refused(folder, *parts):
    """Loading fails with a message that has all the parts, in order."""
    pattern = ".*".join(re.escape(str(part)) for part in parts)
    with pytest.raises(InputError, match=f"(?s){pattern}") as caught:
        flax_model(folder)
    return str(caught.value)


@pytest.mark.parametrize(("kind", "attributes", "named"), WRONG, ids=str)
def test_what_a_class_gets_wrong(checkpoint, kind, attributes, named):
    if kind not in KINDS:
        kind, attributes = "llama", {"model_type": kind} | attributes
    folder = checkpoint(kind, **attributes)
    refused(folder, folder / "config.json", named)


@pytest.mark.parametrize("attributes", [{"rope_theta": 500000.0}, {"head_dim": 16}], ids=str)
def test_our_decoder_is_named_instead(checkpoint, attributes):
    assert "; use --model-impl native" in refused(checkpoint("llama", **attributes))


def test_our_decoder_takes_every_family_that_a_class_is_trusted_for():
    assert set(GUARDS) <= set(FAMILIES)


# As they stand on the hub, what nothing reads included.
PUBLISHED = {
    "EleutherAI/gpt-neo-125m": {
        "model_type": "gpt_neo",
        "activation_function": "gelu_new",
        "attention_dropout": 0,
        "attention_layers": ["global", "local"] * 6,
        "attention_types": [[["global", "local"], 6]],
        "embed_dropout": 0,
        "gradient_checkpointing": False,
        "hidden_size": 768,
        "intermediate_size": None,
        "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 2048,
        "num_heads": 12,
        "num_layers": 12,
        "resid_dropout": 0,
        "summary_type": "cls_index",
        "vocab_size": 50257,
        "window_size": 256,
    },
    "EleutherAI/gpt-j-6b": {
        "model_type": "gptj",
        "activation_function": "gelu_new",
        "attn_pdrop": 0.0,
        "layer_norm_epsilon": 1e-05,
        "n_embd": 4096,
        "n_head": 16,
        "n_inner": None,
        "n_layer": 28,
        "n_positions": 2048,
        "resid_pdrop": 0.0,
        "rotary": True,
        "rotary_dim": 64,
        "scale_attn_weights": True,
        "summary_use_proj": True,
        "tie_word_embeddings": False,
        "tokenizer_class": "GPT2Tokenizer",
        "vocab_size": 50400,
    },
    "facebook/opt-350m": {
        "model_type": "opt",
        "activation_dropout": 0.0,
        "activation_function": "relu",
        "attention_dropout": 0.0,
        "do_layer_norm_before": False,
        "dropout": 0.1,
        "ffn_dim": 4096,
        "hidden_size": 1024,
        "init_std": 0.02,
        "layerdrop": 0.0,
        "max_position_embeddings": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "pad_token_id": 1,
        "prefix": "</s>",
        "vocab_size": 50272,
        "word_embed_proj_dim": 512,
    },
    "facebook/opt-13b": {
        "model_type": "opt",
        "_remove_final_layer_norm": False,
        "do_layer_norm_before": True,
        "dropout": 0.1,
        "ffn_dim": 20480,
        "hidden_size": 5120,
        "max_position_embeddings": 2048,
        "num_attention_heads": 40,
        "num_hidden_layers": 40,
        "output_projection": True,
        "vocab_size": 50272,
        "word_embed_proj_dim": 5120,
    },
    "bigscience/bloom-560m": {
        "model_type": "bloom",
        "apply_residual_connection_post_layernorm": False,
        "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True,
        "hidden_dropout": 0.0,
        "layer_norm_epsilon": 1e-05,
        "masked_softmax_fusion": True,
        "n_embed": 1024,
        "n_inner": None,
        "n_layer": 24,
        "num_attention_heads": 16,
        "offset_alibi": 100,
        "seq_length": 2048,
        "pad_token_id": 3,
        "pretraining_tp": 1,
        "skip_bias_add": True,
        "skip_bias_add_qkv": False,
        "slow_but_exact": False,
        "unk_token_id": 0,
        "vocab_size": 250880,
    },
    "facebook/xglm-564M": {
        "model_type": "xglm",
        "activation_dropout": 0,
        "activation_function": "gelu",
        "attention_dropout": 0.1,
        "attention_heads": 16,
        "d_model": 1024,
        "decoder_start_token_id": 2,
        "dropout": 0.1,
        "ffn_dim": 4096,
        "init_std": 0.02,
        "layerdrop": 0.0,
        "max_position_embeddings": 2048,
        "num_layers": 24,
        "pad_token_id": 1,
        "scale_embedding": True,
        "vocab_size": 256008,
    },
    "google/gemma-1.1-2b-it": {
        "model_type": "gemma",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "max_position_embeddings": 8192,
        "num_attention_heads": 8,
        "num_hidden_layers": 18,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "vocab_size": 256000,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_taken(name):
    raw = PUBLISHED[name]
    config = guarded(raw, name)
    positions = GUARDS[raw["model_type"]].positions
    assert positions == 131_072 or getattr(config, positions) in (2048, 8192)


def test_a_published_gemma_whose_classes_disagree_is_refused():
    """gemma-2b and gemma-7b say so: PyTorch's class computes the exact GELU, Flax's the other."""
    raw = PUBLISHED["google/gemma-1.1-2b-it"] | {"hidden_act": "gelu", "hidden_activation": None}
    with pytest.raises(InputError, match="hidden_act is 'gelu', which PyTorch's class reads"):
        guarded(raw, "gemma-2b")


@pytest.mark.parametrize("kind", KINDS)
def test_the_guards_name_attributes_that_there_are(kind):
    guard = GUARDS[kind]
    defaults = CONFIG_MAPPING[kind]().to_dict()
    assert not guard.reads & set(guard.only)
    # The config object renames the one, and keeps the other only where it is given.
    assert (guard.reads | set(guard.only)) - set(defaults) <= {"n_embed", "rope_scaling"}
    assert guard.positions in guard.reads or kind == "bloom"


def leaves(model):
    return {jax.tree_util.keystr(path): x for path, x in jax.tree.leaves_with_path(model.params)}


def assert_same(model, other):
    one, two = leaves(model), leaves(other)
    assert one.keys() == two.keys()
    for name, leaf in one.items():
        assert leaf.dtype == two[name].dtype, name
        assert (leaf == two[name]).all(), name


BUFFERS = {
    "gpt2": ("transformer.h.1.attn.bias", "transformer.h.0.attn.masked_bias"),
    "gpt_neo": ("transformer.h.1.attn.attention.bias", "h.0.attn.attention.masked_bias"),
    "gptj": ("transformer.h.1.attn.bias", "transformer.h.0.attn.masked_bias"),
    "xglm": ("model.embed_positions.weights",),
    "llama": ("model.layers.1.self_attn.rotary_emb.inv_freq",),
    "gemma": ("model.layers.1.self_attn.rotary_emb.inv_freq",),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_old_checkpoints_have_buffers_and_no_prefix(originals, checkpoint, kind):
    def old(tensors):
        bare = {name.split(".", 1)[1]: v for name, v in tensors.items() if "lm_head" not in name}
        heads = {name: value for name, value in tensors.items() if "lm_head" in name}
        return bare | heads | {name: np.ones(3, np.uint8) for name in BUFFERS.get(kind, ())}

    folder = retensored(checkpoint(kind), old)
    assert_same(flax_model(folder), flax_model(originals[kind]))


TIED = [kind for kind in KINDS if kind not in ("llama", "gptj")]  # untied unless they say so
EMBEDDING = {
    "bloom": "transformer.word_embeddings.weight",
    "gemma": "model.embed_tokens.weight",
    "gpt2": "transformer.wte.weight",
    "gpt_neo": "transformer.wte.weight",
    "opt": "model.decoder.embed_tokens.weight",
    "xglm": "model.embed_tokens.weight",
}


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("kind", TIED)
def test_a_tied_checkpoint_may_carry_its_unembedding_and_no_other(originals, checkpoint, kind):
    def doubled(tensors):
        return tensors | {"lm_head.weight": tensors[EMBEDDING[kind]].copy()}

    folder = retensored(checkpoint(kind), doubled)
    assert_same(flax_model(folder), flax_model(originals[kind]))
    retensored(folder, lambda tensors: tensors | {"lm_head.weight": tensors["lm_head.weight"] * -3})
    refused(folder, folder, "lm_head.weight is not the embedding")


def test_the_bias_of_an_unembedding_stays_float32(originals):
    bias = load_file(originals["gptj"] / "model.safetensors")["lm_head.bias"]
    model = flax_model(originals["gptj"], dtype="bfloat16")
    head = model.functions.unembedding(model.params)
    assert head.bias.dtype == jnp.float32
    assert (head.bias == bias).all()


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_must_all_be_there_and_all_be_used(checkpoint, kind):
    folder = checkpoint(kind)
    tensors = load_file(folder / "model.safetensors")
    name = "lm_head.bias" if kind == "gptj" else next(name for name in tensors if ".1." in name)
    retensored(folder, lambda tensors: {n: v for n, v in tensors.items() if n != name})
    refused(folder, folder, "missing", name.rsplit(".", 1)[0])
    retensored(folder, lambda _: tensors | {"extra.weight": tensors[name]})
    refused(folder, folder, "not used ['extra.weight']")


@pytest.mark.parametrize("kind", ["gpt2", "gptj"])  # tied, and untied with a bias
def test_an_update_gives_the_scores_of_its_tensors(kind, tmp_path):
    checkpoints.saved(tmp_path, kind, **BASE[kind])
    path = tmp_path / "model.safetensors"
    tensors = {name: 1.5 * value for name, value in load_file(path).items()}
    updated = Scorer(loaded(tmp_path, implementation="transformers"), None)
    sequence = TokenSequence(np.arange(3, 20, dtype=np.int32), 1)
    updated.score_sequences([sequence])
    updated.update(tensors)
    [found] = updated.score_sequences([sequence])
    save_file(tensors, path, metadata={"format": "pt"})
    fresh = Scorer(loaded(tmp_path, implementation="transformers"), None)
    [expected] = fresh.score_sequences([sequence])
    np.testing.assert_array_equal(found.logprob, expected.logprob)
    with pytest.raises(InputError, match="tensors missing"):
        updated.update({"transformer.ln_f.weight": np.ones(32, np.float32)})
