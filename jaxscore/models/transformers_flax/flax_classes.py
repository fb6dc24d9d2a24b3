"""Models that run transformers' Flax classes, for configs that `GUARDS` admits."""

import dataclasses
import functools
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxscore.device.backends import BACKENDS, current_platform, deterministic_options
from jaxscore.device.dots import from_storage, to_storage
from jaxscore.device.generate import NONFINITE
from jaxscore.device.lm_head import lm_head_terms
from jaxscore.device.rows import Unembedding
from jaxscore.errors import InputError
from jaxscore.models import functions
from jaxscore.models.model import CheckpointFacts, MeshChoice, Model, Write
from jaxscore.models.model_types import Dtype
from jaxscore.models.transformers_flax import GUARDS, guarded
from jaxscore.models.weights.array_tensors import array_tensors
from jaxscore.models.weights.generation_config import read_generation_config
from jaxscore.models.weights.tensor_files import Tensors, check_float, check_tied
from jaxscore.plan.requests import TokenRequest
from jaxscore.plan.row_batches import row_lengths
from jaxscore.text.tokenizer import errors_only

# Paths of an untied unembedding [D, V] and its bias in every class
HEAD, HEAD_BIAS = ("lm_head", "kernel"), ("lm_head", "bias")


def build(
    folder: Path,
    raw: dict[str, Any],
    tensors: Tensors,
    dtype: Dtype,
    mesh_choice: MeshChoice | None = None,
) -> Model:
    """Return transformers' Flax model with this checkpoint's weights, replicated on every device.

    Raises:
        InputError: no class, a class that is wrong for this config, or tensors that do not fit.
    """
    where = str(folder / "config.json")
    config = guarded(raw, where)
    guard = GUARDS[raw["model_type"]]
    positions = guard.positions
    max_positions = positions if isinstance(positions, int) else getattr(config, positions)
    if max_positions < 1:
        raise InputError(f"{where}: {positions} is {max_positions}, expected at least 1")
    model = _flax_model(config, dtype, where)
    tied, has_head = config.tie_word_embeddings, "lm_head" in model.params_shape_tree

    def read(values: Tensors) -> Any:
        return _tree(_params(folder, values, model, jnp.dtype(dtype)), tied)

    def head(params: Any) -> tuple[Any, Any]:
        weight = params["unembed"]
        if tied:
            weight = functools.reduce(operator.getitem, guard.embedding, params["model"])
        return weight, params["unembed_bias"]

    class_params, states = _functions(model, head if has_head else None)
    built = functions.build(
        functions.Functions(
            hidden_states=lambda params, ids: states(params, ids, jnp.ones_like(ids)),
            unembed=head,
        ),
        read(tensors),
        vocab_size=config.vocab_size,
        max_positions=max_positions,
        name=raw["model_type"],
        mesh_choice=mesh_choice,
        implementation="transformers",
        is_owned=True,
    )
    assert built.replace_params is not None
    copied = built.replace_params
    head_of = built.functions.unembedding
    eos_ids, generation_defaults = read_generation_config(folder, raw)
    return dataclasses.replace(
        built,
        functions=built.functions._replace(
            cached=None,
            write=_writer(model, class_params, states, head_of, max_positions, dtype),
        ),
        checkpoint=CheckpointFacts(eos_ids=eos_ids),
        generation_defaults=generation_defaults,
        replace_params=lambda values: copied(read(array_tensors(values))),
    )


def _tree(flat: dict[tuple[str, ...], jax.Array], tied: bool) -> dict[str, Any]:
    """Return the class's parameters, and its LM head as [V, D], or None if it is tied."""
    bias, weight = flat.pop(HEAD_BIAS, None), None
    if not tied:
        integers = BACKENDS[current_platform()].integers
        weight = to_storage(jnp.asarray(flat.pop(HEAD).T), integers)
    return {"model": unflatten_dict(flat), "unembed": weight, "unembed_bias": bias}


def _flax_model(config: Any, dtype: Dtype, where: str) -> Any:
    """Return an instance of transformers' Flax class, without parameters.

    Raises:
        InputError: the class refuses the config.
    """
    from transformers.models.auto.modeling_flax_auto import FLAX_MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        with errors_only():  # the classes warn that they are deprecated
            return FLAX_MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](
                config, input_shape=(1, 1), dtype=jnp.dtype(dtype), _do_init=False
            )
    except Exception as problem:  # each class fails in its own way
        reason = (str(problem).strip().splitlines() or ["no reason given"])[0]
        raise InputError(
            f"{where}: transformers' Flax class cannot build a model from it ({reason})"
        ) from None


def _functions(
    model: Any, head_of: Callable[[Any], tuple[Any, Any]] | None
) -> tuple[Callable[[Any], Any], Callable[[Any, Any, Any], jax.Array]]:
    """Return two pure functions of the tree that `_tree` returns.

    The first returns the tree that the class takes. The second returns normed states [R, L, D] of
    ids [R, L] with a mask [R, L] that is 0 for padding.

    Args:
        head_of: function that returns weight [V, D] and bias of the LM head; None for a class whose
            tree does not contain them.
    """
    takes_positions = GUARDS[model.config.model_type].takes_positions

    def class_params(params: Any) -> Any:
        if head_of is None:
            return params["model"]
        weight, bias = head_of(params)
        head = {"kernel": from_storage(weight).T} | ({} if bias is None else {"bias": bias})
        return params["model"] | {"lm_head": head}

    def states(params: Any, ids: Any, mask: Any) -> jax.Array:
        # The logits are unused, so the compiler removes them.
        at = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
        out = model(
            ids,
            attention_mask=mask,
            params=class_params(params),
            output_hidden_states=True,
            **({"position_ids": at} if takes_positions else {}),
        )
        return out.hidden_states[-1].astype(jnp.float32)

    return class_params, states


def _writer(
    model: Any,
    class_params: Callable[[Any], Any],
    states: Callable[[Any, Any, Any], jax.Array],
    head_of: Callable[[Any], Unembedding],
    max_positions: int,
    dtype: Dtype,
) -> Write:
    """Return a function that runs transformers' `generate` on one prompt, compiled per bucket."""
    precision = "highest" if dtype == "float32" else "default"

    @functools.lru_cache
    def program(length: int, n_new: int, temperature: float, top_p: float, eos: int) -> Any:
        generation = _generation_config(n_new, temperature, top_p, eos)

        # An explicit key, so that a seed draws the same text whatever else a run contains.
        @functools.partial(jax.jit, compiler_options=deterministic_options())
        def run(held: Any, ids: jax.Array, mask: jax.Array, key: jax.Array) -> jax.Array:
            params = held["model"]
            with jax.default_matmul_precision(precision):
                written = model.generate(
                    ids,
                    generation_config=generation,
                    attention_mask=mask,
                    prng_key=key,
                    params=class_params(params),
                ).sequences
                # `generate` takes the argmax of NaN as a token, so the text is scored again.
                mask = jnp.pad(mask, ((0, 0), (0, n_new)), constant_values=1)
                before = states(params, written, mask)[0, length - 1 : -1]
            terms = lm_head_terms(before, head_of(held))
            return jnp.where(jnp.isfinite(terms.entropy), written[0, length:], NONFINITE)

        return run

    def write(params: Any, request: TokenRequest) -> np.ndarray:
        prompt, n_new, ends = request.ids, request.n_new, request.eos_ids
        # Padded on the left to a bucket; the class's mask is no longer than its positions.
        length = next(n for n in row_lengths(max_positions) if n >= len(prompt))
        length = min(length, max_positions - n_new)
        ids = np.zeros((1, length), np.int32)
        ids[0, length - len(prompt) :] = prompt
        mask = (np.arange(length) >= length - len(prompt)).astype(np.int32)[None]
        # The class does not take several EOS ids; with several, the caller truncates at the first.
        eos = ends[0] if len(ends) == 1 else -1
        run = program(length, n_new, request.temperature, request.top_p, eos)
        # `jax.random.PRNGKey` would add the process's `jax_random_seed_offset` to this key.
        key = jnp.array([0, request.seed], jnp.uint32)
        return np.asarray(run(params, ids, mask, key))

    return write


def _generation_config(n_new: int, temperature: float, top_p: float, eos: int) -> Any:
    """Return the settings of `generate`, ignoring beams and repetition penalties of the config."""
    from transformers import GenerationConfig

    options: dict[str, Any] = {
        "max_new_tokens": n_new,
        "eos_token_id": eos,
        "min_length": -1,  # with 0, an EOS id of -1 is refused
        "pad_token_id": 0,
    }
    if temperature > 0:
        # An int is refused, and a smaller divisor makes logits infinite.
        drawing = {"temperature": max(float(temperature), 1e-6), "top_p": top_p, "top_k": 0}
        options |= {"do_sample": True} | drawing
    return GenerationConfig(**options)


def _params(
    folder: Path, tensors: Tensors, model: Any, dtype: Any
) -> dict[tuple[str, ...], jax.Array]:
    """Return PyTorch-named tensors by their path in the class, after checking that none is missing
    or unused.

    The bias of the unembedding stays float32, because the LM head adds it in float32. Tensors are
    converted one by one, because transformers' conversion first initializes a random model, and
    does not take several files.
    """
    from transformers.modeling_flax_pytorch_utils import rename_key_and_reshape_tensor

    guard, tied = GUARDS[model.config.model_type], model.config.tie_word_embeddings
    expected = {
        name: leaf.shape
        for name, leaf in flatten_dict(model.params_shape_tree).items()
        if not (tied and name == HEAD)
    }
    prefix = model.base_model_prefix
    embedding = ".".join(guard.embedding[1:-1]) + ".weight"  # without the prefix
    flat: dict[tuple[str, ...], jax.Array] = {}
    unused = []
    for name, array in tensors.arrays.items():
        bare = name.removeprefix(f"{prefix}.")
        if tied and name == "lm_head.weight":
            for other in {embedding, f"{prefix}.{embedding}"} & set(tensors.arrays):
                check_tied(folder, tensors.arrays[other], array)
            continue
        if any(re.fullmatch(pattern, bare) for pattern in guard.buffers):
            continue
        check_float(tensors.where[name], name, tensors.stored[name])
        key, value = rename_key_and_reshape_tensor(tuple(name.split(".")), array, expected, prefix)
        key = key if key in expected else (prefix, *key)
        if key not in expected:
            unused += [name] if name not in tensors.idle else []
        elif value.shape != expected[key]:
            raise InputError(
                f"{folder}: tensor {name} has shape {list(value.shape)}, "
                f"expected {list(expected[key])}"
            )
        elif key in flat:
            raise InputError(f"{folder}: tensor {bare} is present with and without '{prefix}.'")
        else:
            stored_dtype = jnp.float32 if key == HEAD_BIAS else dtype
            host_value = value if isinstance(value, jax.Array) else np.asarray(value)
            flat[key] = jnp.asarray(host_value, stored_dtype)
    missing = sorted(".".join(name) for name in set(expected) - set(flat))
    if missing or unused:
        raise InputError(f"{folder}: tensors missing {missing[:5]}, not used {unused[:5]}")
    return flat
