"""A BERT sequence classifier: transformers' Flax class with a checkpoint's weights, all of them
accounted for."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxscore.device import jax_settings
from jaxscore.device.backends import deterministic_options
from jaxscore.errors import InputError
from jaxscore.models.transformers_flax import (
    check_class_attributes,
    require_flax_classes,
    transformers_config,
)
from jaxscore.models.weights import tensor_files
from jaxscore.models.weights.checkpoint import read_config
from jaxscore.text.tokenizer import errors_only

READS = frozenset(
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
    "max_position_embeddings type_vocab_size layer_norm_eps position_embedding_type".split()
)
INERT_HERE = ("attention_probs_dropout_prob", "hidden_dropout_prob")
ACTIVATIONS = ("gelu", "gelu_new", "relu")
BUFFERS = r"bert\.embeddings\.(position_ids|token_type_ids)"  # constants in old files
BATCH_TOKENS = 8192
SHORTEST = 32  # tokens in the shortest bucket


class BertClassifier:
    """Class probabilities of token sequences.

    Attributes:
        max_positions: the number of tokens of the longest sequence.
        n_classes, n_types: the numbers of classes and of token types.
        n_compiled: the number of programs compiled so far, one for each length bucket in use.
    """

    @jax_settings.isolated()
    def __init__(self, folder: Path, *, dtype: str = "auto", reproducible: bool = False) -> None:
        """Load a checkpoint.

        Args:
            folder: a folder with config.json and model.safetensors under PyTorch's names.
            dtype: the dtype of weights and computation; "auto" is float32.
            reproducible: if True, each sequence is computed alone, so that its bits do not depend
                on other sequences.

        Raises:
            InputError: a transformers without Flax classes, another model type, an attribute
                that is not handled, or tensors that are missing or left over.
        """
        require_flax_classes(f"{folder}: the BERT classifier of judge --bem")
        raw = read_config(folder)
        config = _config(raw, str(folder / "config.json"))
        from transformers.models.bert.modeling_flax_bert import FlaxBertForSequenceClassification

        weight_dtype = jnp.dtype("float32" if dtype == "auto" else dtype)
        with errors_only():  # the class warns that it is deprecated
            model = FlaxBertForSequenceClassification(
                config, input_shape=(1, 1), dtype=weight_dtype, _do_init=False
            )
        self.max_positions = int(config.max_position_embeddings)
        self.n_classes, self.n_types = int(config.num_labels), int(config.type_vocab_size)
        self.n_compiled = 0
        self._params = _params(folder, model, weight_dtype)

        def classify(params: Any, ids: jax.Array, types: jax.Array, mask: jax.Array) -> jax.Array:
            self.n_compiled += 1  # runs only while tracing
            out = model(ids, attention_mask=mask, token_type_ids=types, params=params)
            return jax.nn.softmax(out.logits.astype(jnp.float32), axis=-1)

        self._classify = jax.jit(
            classify, compiler_options=deterministic_options() if reproducible else None
        )
        self._reproducible = reproducible

    @jax_settings.isolated()
    def probabilities(self, sequences: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return the softmax over the classes.

        Args:
            sequences: pairs (ids, token types), int32, of at most `max_positions` tokens.

        Returns:
            Probabilities, float32 [sequences, classes], in the order of `sequences`.
        """
        out = np.zeros((len(sequences), self.n_classes), np.float32)
        by_length: dict[int, list[int]] = {}
        for k, (ids, _) in enumerate(sequences):
            # Lengths are padded to powers of two, so that a run compiles few programs.
            length = min(max(SHORTEST, 1 << (len(ids) - 1).bit_length()), self.max_positions)
            by_length.setdefault(length, []).append(k)
        for length, members in sorted(by_length.items()):
            rows = 1 if self._reproducible else max(1, BATCH_TOKENS // length)
            for start in range(0, len(members), rows):
                batch = members[start : start + rows]
                # Padding rows have one token, so that no mask is empty.
                ids, types, mask = (np.zeros((rows, length), np.int32) for _ in range(3))
                mask[:, 0] = 1
                for row, k in enumerate(batch):
                    n = len(sequences[k][0])
                    ids[row, :n], types[row, :n] = sequences[k]
                    mask[row, :n] = 1
                out[batch] = np.asarray(self._classify(self._params, ids, types, mask))[
                    : len(batch)
                ]
        return out


def _config(raw: dict[str, Any], where: str) -> Any:
    if raw["model_type"] != "bert":
        raise InputError(
            f"{where}: model_type is {raw['model_type']!r}, expected 'bert': a sequence "
            "classifier such as kortukov/answer-equivalence-bem"
        )
    config = transformers_config(raw, where)
    values = {name: value for name, value in raw.items() if name not in INERT_HERE}
    check_class_attributes(values, config, READS, where)
    if config.hidden_act not in ACTIVATIONS:
        raise InputError(
            f"{where}: hidden_act is {config.hidden_act!r}, handled are {', '.join(ACTIVATIONS)}"
        )
    if config.position_embedding_type != "absolute":
        raise InputError(
            f"{where}: position_embedding_type is {config.position_embedding_type!r}, which "
            "transformers' Flax class does not read; expected 'absolute'"
        )
    return config


def _params(folder: Path, model: Any, dtype: Any) -> dict[str, Any]:
    """Return PyTorch-named tensors as the class's tree; none may be missing or unused."""
    from transformers.modeling_flax_pytorch_utils import rename_key_and_reshape_tensor

    expected = {name: leaf.shape for name, leaf in flatten_dict(model.params_shape_tree).items()}
    flat: dict[tuple[str, ...], jax.Array] = {}
    unused = []
    for name, array in tensor_files.open_tensors(folder).arrays.items():
        if re.fullmatch(BUFFERS, name):
            continue
        tensor_files.check_float(folder, name, array)
        pytorch_name = name.replace(".gamma", ".weight").replace(
            ".beta", ".bias"
        )  # names in the first BERTs
        key, value = rename_key_and_reshape_tensor(
            tuple(pytorch_name.split(".")), array, expected, "bert"
        )
        if key not in expected:
            unused.append(name)
        elif value.shape != expected[key]:
            raise InputError(
                f"{folder}: tensor {name} has shape {list(value.shape)}, "
                f"expected {list(expected[key])}"
            )
        else:
            flat[key] = jnp.asarray(np.asarray(value), dtype)
    missing = sorted(".".join(name) for name in set(expected) - set(flat))
    if missing or unused:
        raise InputError(
            f"{folder}: tensors missing {missing[:5]}, not used {unused[:5]}; expected a BERT "
            "with a classifier on top, as save_pretrained writes it"
        )
    return unflatten_dict(flat)
