"""The demo model as a Hugging Face folder: its config, its weights and its tokenizer."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from safetensors.flax import save_file
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from jaxscore.device import decoder
from jaxscore.models.families import Family
from jaxscore.models.native import build, translate
from jaxscore.models.weights.checkpoint import read_config
from jaxscore.models.weights.tensor_files import open_tensors
from tools.demo_world import prompts

MAX_POSITIONS = 1024


def raw_config(
    vocab_size: int,
    *,
    width: int = 192,
    mlp_width: int = 512,
    n_layers: int = 5,
    n_heads: int = 6,
    n_kv_heads: int = 3,
) -> dict[str, Any]:
    """`config.json` of a llama with these sizes; generation ends at either end token."""
    token = prompts.SPECIAL_TOKENS.index
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": token(prompts.BOS),
        "dtype": "bfloat16",
        "eos_token_id": [token(prompts.TURN_END), token(prompts.EOS)],
        "head_dim": width // n_heads,
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": mlp_width,
        "max_position_embeddings": MAX_POSITIONS,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": n_heads,
        "num_hidden_layers": n_layers,
        "num_key_value_heads": n_kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": vocab_size,
    }


def decoder_config(raw: dict[str, Any]) -> tuple[Family, decoder.DecoderConfig]:
    """The family of a raw config, and the decoder that the loader will make of it."""
    return translate(Path("demo"), raw)


def named_tensors(
    params: decoder.Params, family: Family, config: decoder.DecoderConfig
) -> dict[str, jax.Array]:
    """Tensors under the checkpoint's names: the family's table, read backwards.

    Raises:
        ValueError: a parameter that is only a part of a tensor.
    """
    table = family.sources(config)
    tensors: dict[str, jax.Array] = {}
    for path, value in jax.tree_util.tree_leaves_with_path(params):
        keys = tuple(entry.key for entry in path)
        source = table[keys]
        if source.part is not None:
            raise ValueError(f"{'.'.join(keys)} is a part of {source.name}; parts are not written")
        each = value if keys[0] == "layers" else value[None]
        for i, array in enumerate(each):
            name = family.prefix + source.name.format(i=i)
            tensors[name] = array.T if source.transposed else array
    return tensors


def read_folder(folder: Path, raw: dict[str, Any]) -> tuple[decoder.Params, Tokenizer]:
    """Read the files of `write_folder`: the parameters in float32, and the tokenizer.

    Raises:
        ValueError: the folder's model has another config.
    """
    config = read_config(folder)
    if config != raw:
        differ = sorted(
            key for key in config.keys() | raw.keys() if config.get(key) != raw.get(key)
        )
        raise ValueError(f"{folder} has another config ({', '.join(differ)}); train from nothing")
    params = build(folder, config, open_tensors(folder), "float32").params
    return params, Tokenizer.from_file(str(folder / "tokenizer.json"))


def write_folder(
    folder: Path, raw: dict[str, Any], params: decoder.Params, tokenizer: Tokenizer
) -> None:
    """Write the folder, weights in bfloat16; files of the same names are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: array.astype(jnp.bfloat16)
        for name, array in named_tensors(params, *decoder_config(raw)).items()
    }
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # it is written readable for its owner alone
    text = json.dumps(raw, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=prompts.BOS,
        eos_token=prompts.TURN_END,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        # transformers' `generate` refuses the token types that are made by default.
        model_input_names=["input_ids", "attention_mask"],
    )
    fast.chat_template = prompts.CHAT_TEMPLATE
    fast.save_pretrained(folder)
