"""The native decoder for a checkpoint: its config, its parameters and the functions over them."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxscore.device import decoder
from jaxscore.device.attention_kinds import cache_head_shape, cached_layers
from jaxscore.device.backends import (
    BACKENDS,
    Backend,
    Build,
    current_backend,
    current_platform,
    replaced_kernels,
)
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.dots import storage_dtype
from jaxscore.device.sharding import DeviceMesh, array_specs, as_shards, keys_of
from jaxscore.errors import InputError
from jaxscore.models import costs, model_types, wrappers
from jaxscore.models.config import read
from jaxscore.models.config.check import check_attributes
from jaxscore.models.families import FAMILIES, Family
from jaxscore.models.model import (
    Cached,
    CheckpointFacts,
    Devices,
    MeshChoice,
    Model,
    ModelFunctions,
)
from jaxscore.models.model_types import Dtype, Quantize
from jaxscore.models.weights.array_tensors import (
    MEMORY,
    Load,
    abstract_array,
    array_tensors,
    copied_tree,
    tensor_loader,
)
from jaxscore.models.weights.folder import config_path
from jaxscore.models.weights.generation_config import read_generation_config
from jaxscore.models.weights.params import (
    ExpectedForm,
    Placement,
    load_params,
    on_one_device,
    shapes_of,
    stored_forms,
    stored_share,
)
from jaxscore.models.weights.tensor_files import Tensors
from jaxscore.plan.chunks import PathNeeds

NUMPY_DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

CHUNK = 64  # tokens that start from one recurrent state; 32 was measured to leave more slots empty


def build(
    folder: Path,
    raw: dict[str, Any],
    tensors: Tensors | None,
    dtype: Dtype,
    quantize: Quantize | None = None,
    mesh_choice: MeshChoice | None = None,
    before_weights: Callable[[Model], object] | None = None,
) -> Model:
    """Load the parameters and build the functions over them.

    Args:
        folder: the checkpoint's folder, or `array_tensors.MEMORY`.
        tensors: the checkpoint's tensors; None for a folder that `converted.save` wrote.
        before_weights: function that is called with a model that has shapes instead of parameters,
            before these are read.

    Raises:
        InputError: a family or attribute that is not handled, or tensors that do not fit.
    """
    if tensors is None:
        from jaxscore.models.weights import converted
    text, left_out = wrappers.text_of(raw, str(config_path(folder))), None
    tied = None
    if text.wrapper is not None and tensors is not None:
        tensors, left_out = wrappers.text_tensors(folder, tensors, text.wrapper)
        tied = wrappers.HEAD not in tensors.stored
    elif text.wrapper is not None:
        tied = not converted.has_unembedding(folder)
    family, config = translate(folder, raw, tied=tied)
    if tensors is not None and family.unread_part:
        left_out = describe_unread(family, config, tensors, left_out)
    config = with_storage(folder, family, config, tensors, dtype, quantize)
    numpy_dtype = NUMPY_DTYPES[dtype]
    mesh = None if mesh_choice is None else mesh_choice(config, shapes_of(config, numpy_dtype))
    placement = _placement(config, mesh)
    integers = BACKENDS[current_platform()].integers
    if before_weights is not None:
        abstract = abstract_params(config, dtype, placement, integers=integers)
        before_weights(from_params(config, abstract, dtype, raw["model_type"], mesh=mesh))
    load = tensor_loader(family, config, numpy_dtype, placement, integers=integers)
    if tensors is None:
        params = converted.restore(folder, config, numpy_dtype, placement, integers=integers)
    elif folder == MEMORY:
        params = load(tensors)
    else:
        params = load_params(
            folder, family, config, tensors, numpy_dtype, placement, integers=integers
        )
    eos_ids, generation_defaults = read_generation_config(folder, text.raw)
    checkpoint = CheckpointFacts(
        eos_ids=eos_ids,
        placeholders=text.placeholders,
        left_out=left_out,
        limit_reason=_limit_reason(family, config, text.raw, folder),
        stored_share=stored_share(params) if config.stored else None,
    )
    return dataclasses.replace(
        from_params(config, params, dtype, raw["model_type"], mesh),
        checkpoint=checkpoint,
        generation_defaults=generation_defaults,
        replace_params=functools.partial(
            _new_params, load, config, text.wrapper, jax.tree.map(abstract_array, params)
        ),
    )


def _limit_reason(family: Family, config: DecoderConfig, raw: dict[str, Any], folder: Path) -> str:
    """Return the family's reason if the decoder takes fewer positions than the config has."""
    if not family.limit_reason:
        return ""
    max_positions = read(raw, str(config_path(folder))).config.max_position_embeddings
    return family.limit_reason if config.max_positions < max_positions else ""


def _new_params(
    load: Load,
    config: DecoderConfig,
    wrapper: wrappers.Wrapper | None,
    current: Any,
    values: Mapping[str, Any],
) -> decoder.Params:
    """Implement `Model.replace_params`; `current` has the parameters' shapes and placement."""
    is_mapping = isinstance(values, Mapping)
    if is_mapping and any(isinstance(value, Mapping) for value in values.values()):
        return copied_tree(values, current)
    if config.stored:
        raise InputError(
            f"{MEMORY}: the model's weights are in the blocks of their file; load it without "
            "quantize to give it other tensors"
        )
    tensors = array_tensors(values)
    if wrapper is not None:
        tensors, _ = wrappers.text_tensors(MEMORY, tensors, wrapper)
    return load(tensors)


def describe_unread(
    family: Family, config: DecoderConfig, tensors: Tensors, left_out: str | None
) -> str | None:
    """Return a description of the tensors left out, including those of `family.unread`."""
    bare = (name.removeprefix(family.prefix) for name in tensors.stored)
    patterns = family.unread(config)
    n = sum(any(re.fullmatch(pattern, name) for pattern in patterns) for name in bare)
    unread_parts = [f"{n} tensors of {family.unread_part}"] if n else []
    return ", ".join(([left_out] if left_out else []) + unread_parts) or None


def with_storage(
    folder: Path,
    family: Family,
    config: DecoderConfig,
    tensors: Tensors | None,
    dtype: Dtype,
    quantize: Quantize | None,
    expected_form: ExpectedForm | None = None,
) -> DecoderConfig:
    """Return the decoder with the weight storage of `--quantize`, for products in `dtype`.

    Args:
        tensors, expected_form: see `stored_forms`; one of them is required for "stored".

    Raises:
        InputError: "stored" is requested, and no weights can stay in their blocks.
    """
    if quantize == "int8":
        return dataclasses.replace(config, quantized=dtype)
    if quantize == "stored":
        forms = stored_forms(folder, family, config, tensors, expected_form)
        return dataclasses.replace(config, stored=forms)
    return config


def _placement(config: DecoderConfig, mesh: DeviceMesh | None) -> Placement:
    if mesh is None:
        return on_one_device
    try:
        return mesh.placement(config)
    except ValueError as problem:
        raise InputError(str(problem)) from None


def abstract_params(
    config: DecoderConfig, dtype: Dtype, placement: Placement, *, integers: bool
) -> decoder.Params:
    """Return the shapes of the parameters as stored on the devices; see `Backend.integers`."""

    def abstract_leaf(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        stored_dtype, sharding = (
            storage_dtype(leaf.dtype, integers),
            placement(keys_of(path), leaf.shape),
        )
        return jax.ShapeDtypeStruct(leaf.shape, stored_dtype, sharding=sharding)

    shapes: decoder.Params = shapes_of(config, NUMPY_DTYPES[dtype])
    return jax.tree_util.tree_map_with_path(abstract_leaf, shapes)


def from_params(
    config: DecoderConfig,
    params: decoder.Params,
    dtype: Dtype,
    model_type: str,
    mesh: DeviceMesh | None = None,
    device: jax.Device | None = None,
    backend: Backend | None = None,
) -> Model:
    """Return the native decoder with these parameters, with matrices in `dtype`.

    Args:
        device: the device to compile programs for, which need not be attached; None for JAX's
            default device.
        backend: the backend to use; None for the device's.
    """
    replaced = None
    if backend is None:
        backend, replaced = current_backend(device), _replaced_kernels(config, dtype, device)
    build = Build(backend, 1 if mesh is None else mesh.shape.model)
    gathered_bytes = 0 if mesh is None else costs.gathered_bytes(params, config, mesh.shape)[1]
    placed = array_specs(params) if mesh is not None and mesh.shape.fsdp else None
    longer = None
    if tables := config.positions.long_rotary:
        long_config = config.replace(rotary=tables, long_rotary=(), long_from=0)
        longer = config.positions.long_from, _functions(long_config, build, dtype, placed)
    return Model(
        functions=_functions(config, build, dtype, placed),
        params=params,
        vocab_size=config.vocab_size,
        max_positions=config.max_positions,
        width=config.width,
        shares_text=True,
        implementation="native",
        dtype=dtype,
        model_type=model_type,
        longer=longer,
        quantized="int8" if config.quantized else "stored" if config.stored else None,
        devices=Devices(current_platform(device), mesh, gathered_bytes, replaced),
    )


def _functions(config: DecoderConfig, build: Build, dtype: Dtype, placed: Any) -> ModelFunctions:
    """Return the decoder's functions.

    Args:
        placed: partition specs of parameters that a mesh shards with `fsdp`, otherwise None.
    """

    def shards(p: Any) -> Any:
        return p if placed is None else as_shards(p, placed)

    def hidden_states(
        p: Any, ids: Any, at: Any, end: Any, caches: Any = (), paths: Any = None
    ) -> jax.Array:
        return decoder.hidden_states(shards(p), config, ids, at, end, caches, build, paths)

    def extend(
        p: Any, ids: Any, at: Any, end: Any, caches: Any, paths: Any = None, kept: Any = None
    ) -> Any:
        return decoder.extend(shards(p), config, ids, at, end, caches, build, paths, kept)

    needs = None
    if config.recurrent is not None:
        size = CHUNK if config.recurrent.has_state else 0
        needs = PathNeeds(size, build.backend.exits_per_step)
    return ModelFunctions(
        hidden_states,
        lambda p: decoder.unembedding(shards(p), config, build),
        Cached(extend, functools.partial(_empty_cache, config, build, dtype)),
        paths=needs,
    )


def _replaced_kernels(config: DecoderConfig, dtype: Dtype, device: jax.Device | None) -> str | None:
    """Return `Devices.replaced_kernels`. Attention in float32 never uses a GPU kernel."""
    uses = {
        "attention": dtype != "float32" and any(map(config.has_attention, range(config.n_layers))),
        "experts": config.experts is not None,
    }
    replaced = {field: kernel for field, kernel in replaced_kernels(device).items() if uses[field]}
    why = "; ".join(dict.fromkeys(kernel.why for kernel in replaced.values()))
    names = ", ".join(f"{field} by {kernel.instead!r}" for field, kernel in replaced.items())
    return f"{names} ({why})" if replaced else None


def _empty_cache(
    config: DecoderConfig, build: Build, dtype: Dtype, rows: int, slots: int
) -> decoder.KeysValues:
    """Return an empty cache, see `Cached`."""
    heads, width = cache_head_shape(config, build)
    shape = len(cached_layers(config)), rows, heads, slots, width
    cache_dtype = storage_dtype(NUMPY_DTYPES[dtype], build.backend.integers)
    states = decoder.empty_states(config, rows, build)
    return decoder.KeysValues(jnp.zeros(shape, cache_dtype), jnp.zeros(shape, cache_dtype), states)


def translate(
    folder: Path, raw: dict[str, Any], *, tied: bool | None = None
) -> tuple[Family, DecoderConfig]:
    """Return the family of a config, and its decoder.

    Args:
        tied: see `wrappers.text_of`; without a wrapper the config alone decides.

    Raises:
        InputError: a family or attribute that is not handled, or sizes that do not form a valid
            model.
    """
    where = str(config_path(folder))
    model_types.check(raw, where)
    text = wrappers.text_of(raw, where, tied=tied)
    if text.family not in FAMILIES:
        raise InputError(
            f"{where}: model_type {text.raw['model_type']!r} is not covered by the native decoder; "
            "`python -m jaxscore families` lists covered models, and transformers or "
            "lm-evaluation-harness (`lm_eval --model hf`) scores others"
        )
    family = FAMILIES[text.family]
    config, from_file, defaults = read(text.raw, where)
    check_attributes(from_file, defaults.values, family.reads, where, config.model_type)
    try:
        translated = family.translate(config)
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from None
    except (ArithmeticError, TypeError, ValueError) as problem:
        raise InputError(f"{where}: sizes do not form a valid model ({problem})") from None
    for field, size in sizes_of(translated).items():
        if type(size) is not int or size < 1:
            raise InputError(f"{where}: {field} comes out as {size!r}, expected at least 1")
    return family, translated


def sizes_of(config: DecoderConfig) -> dict[str, Any]:
    """Return the sizes that a broken config makes zero, negative or not a number."""
    attention, latent = config.attention, config.attention.latent
    sizes = {
        "vocab_size": config.vocab_size,
        "width": config.width,
        "n_layers": config.n_layers,
        "n_heads": attention.n_heads,
        "n_kv_heads": attention.n_kv_heads,
        "head_width": attention.head_width,
        "mlp_width": config.mlp.width,
        "max_positions": config.max_positions,
    }
    if latent is None:
        return sizes
    latent_sizes = {"rank": latent.rank, "nope_width": latent.nope_width, "value": latent.value}
    return sizes | {f"latent {name}": size for name, size in latent_sizes.items()}
