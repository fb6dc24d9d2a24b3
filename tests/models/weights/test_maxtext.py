"""MaxText's parameters: its tree, made of a checkpoint by the rules of its layers, and back."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from transformers import AutoConfig

from jaxscore import Scorer
from jaxscore.cli.main import main
from jaxscore.errors import InputError
from jaxscore.models.weights.checkpoint import read_config
from jaxscore.models.weights.maxtext import tensors_of_maxtext
from jaxscore.models.weights.tensor_files import open_tensors
from tests.conftest import CASES

LLAMA = CASES / "models/tiny-llama3"


def einsum_weights(tensors, config, i, interleaved):
    """A layer's parameters by MaxText's path: what its einsums over [D, heads, channels] take."""
    kind, prefix = config["model_type"], f"model.layers.{i}."
    heads = config["num_attention_heads"]
    counts = {"q": heads, "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    D, out = config["hidden_size"], {}
    names = {"q": "query", "k": "key", "v": "value"}
    for letter, n in counts.items():
        weight = tensors[f"{prefix}self_attn.{letter}_proj.weight"]
        kernel = np.stack([head.T for head in np.split(weight, n)], axis=1)  # [D, n, h]
        assert kernel.shape[:2] == (D, n)
        h = kernel.shape[2]
        order = [c for k in range(h // 2) for c in (k, k + h // 2)]  # pairs become neighbours
        if interleaved and letter in "qk":
            kernel = kernel[..., order]
        if letter == "q" and kind in ("llama", "gemma"):
            kernel = kernel / math.sqrt(h)
        out["self_attention", names[letter], "kernel"] = kernel
        if kind == "qwen2":
            bias = tensors[f"{prefix}self_attn.{letter}_proj.bias"].reshape(n, h)
            bias = bias[:, order] if interleaved and letter in "qk" else bias
            out["self_attention", names[letter], "bias"] = bias
        if kind == "qwen3" and letter in "qk":
            norm = tensors[f"{prefix}self_attn.{letter}_norm.weight"]
            out["self_attention", f"{names[letter]}_norm", "scale"] = norm
    weight = tensors[f"{prefix}self_attn.o_proj.weight"]
    out["self_attention", "out", "kernel"] = weight.T.reshape(heads, -1, D)
    for theirs, ours in (("wi_0", "gate"), ("wi_1", "up"), ("wo", "down")):
        out["mlp", theirs, "kernel"] = tensors[f"{prefix}mlp.{ours}_proj.weight"].T
    first, second = (
        tensors[f"{prefix}input_layernorm.weight"],
        tensors[f"{prefix}post_attention_layernorm.weight"],
    )
    if kind == "gemma":
        out["pre_self_attention_norm", "scale"], out["pre_ffw_norm", "scale"] = (
            first + 1,
            second + 1,
        )
    else:
        out["pre_self_attention_layer_norm", "scale"] = first
        out["post_self_attention_layer_norm", "scale"] = second
    return out


def maxtext_of(tensors, config, *, scanned, interleaved=False):
    """MaxText's tree, its vocabulary padded by three rows."""
    layers = [
        einsum_weights(tensors, config, i, interleaved) for i in range(config["num_hidden_layers"])
    ]
    token, norm = tensors["model.embed_tokens.weight"], tensors["model.norm.weight"]
    if config["model_type"] == "gemma":
        token, norm = token * math.sqrt(config["hidden_size"]), norm + 1
    tree = {"token_embedder": {"embedding": np.pad(token, ((0, 3), (0, 0)))}}
    tree["decoder"] = {"decoder_norm": {"scale": norm}}
    if "lm_head.weight" in tensors:
        head = np.pad(tensors["lm_head.weight"].T, ((0, 0), (0, 3)))
        tree["decoder"]["logits_dense"] = {"kernel": head}
    for i, layer in enumerate(layers):
        for path, value in layer.items():
            values = np.stack([own[path] for own in layers], axis=1) if scanned else value
            place = tree["decoder"].setdefault("layers" if scanned else f"layers_{i}", {})
            for key in path[:-1]:
                place = place.setdefault(key, {})
            place[path[-1]] = values
    return {"params": {"params": tree}, "step": 3}


@pytest.mark.slow_after(1, of_each="kind")
@pytest.mark.parametrize("scanned", [True, False], ids=["scanned", "layers"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma"])
def test_the_tensors_are_those_that_the_tree_was_made_of(kind, scanned, originals):
    folder = originals[kind]
    config, stored = read_config(folder), dict(open_tensors(folder).arrays)
    for interleaved in (False, True):
        tree = maxtext_of(stored, config, scanned=scanned, interleaved=interleaved)
        for convert in (np.asarray, jnp.asarray):
            given = jax.tree.map(convert, tree["params"])
            found = tensors_of_maxtext(given, config, interleaved=interleaved)
            assert set(found) == set(stored)
            for name, value in found.items():
                np.testing.assert_allclose(value, stored[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_a_tree_of_the_wrong_model_is_refused_by_path():
    config, stored = read_config(LLAMA), dict(open_tensors(LLAMA).arrays)
    tree = maxtext_of(stored, config, scanned=True)["params"]["params"]
    assert len(tensors_of_maxtext(tree, AutoConfig.from_pretrained(LLAMA))) == len(stored)
    with pytest.raises(InputError, match="of 'gpt2': supported are llama"):
        tensors_of_maxtext(tree, {"model_type": "gpt2"})
    with pytest.raises(InputError, match="1 are left over: decoder/extra"):
        tensors_of_maxtext(tree | {"decoder": tree["decoder"] | {"extra": np.ones(1)}}, config)
    without = {name: value for name, value in tree["decoder"].items() if name != "decoder_norm"}
    with pytest.raises(InputError, match="decoder/decoder_norm/scale is missing"):
        tensors_of_maxtext(tree | {"decoder": without}, config)
    more = config | {"num_hidden_layers": config["num_hidden_layers"] + 1}
    with pytest.raises(InputError, match="layers along axis 1"):
        tensors_of_maxtext(tree, more)


def test_convert_takes_an_orbax_checkpoint(tmp_path, scorers, capsys):
    """With `rope_type: llama3.1`, since the config has llama 3's rotary parameters."""
    config, stored = read_config(LLAMA), dict(open_tensors(LLAMA).arrays)
    interleaved = (config.get("rope_scaling") or {}).get("rope_type") == "llama3"
    tree = maxtext_of(stored, config, scanned=True, interleaved=interleaved)
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "items", tree)
    made = str(tmp_path / "converted")
    flags = ["--model", str(LLAMA), "--maxtext", str(tmp_path / "items"), "--output", made]
    assert main(["convert", *flags]) == 0
    written = json.loads((tmp_path / "converted/jaxscore.json").read_text(encoding="utf-8"))
    assert str(tmp_path / "items") in written["source"]
    texts = ["The cat sat down."]
    [found], [own] = Scorer.from_pretrained(made).score(texts), scorers(LLAMA.name).score(texts)
    np.testing.assert_allclose(found.logprob, own.logprob, atol=1e-5)
    capsys.readouterr()
    flags[3] = str(tmp_path / "nothing")
    assert main(["convert", *flags[:-1], str(tmp_path / "other")]) == 2
    assert "not an Orbax checkpoint of parameters" in capsys.readouterr().err
