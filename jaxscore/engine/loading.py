"""Loads a checkpoint by name: model, tokenizer, and the facts that identify its numbers."""

import dataclasses
import importlib.metadata
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxscore.device import jax_settings
from jaxscore.engine.devices import mesh_choice, use_compilation_cache
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.models import load
from jaxscore.models.model import Model
from jaxscore.models.model_types import DtypeOption, ImplementationOption, Quantize
from jaxscore.models.weights import fingerprint
from jaxscore.models.weights.checkpoint import raw_config
from jaxscore.models.weights.folder import resolve
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer_files import load_tokenizer
from jaxscore.version import NUMBERS

IN_MEMORY = "memory "  # prefix of the identity of weights that no file has


class Loaded(NamedTuple):
    """A loaded checkpoint.

    Attributes:
        about: facts beside the requests that determine the numbers, for JSON; the identity of
            its journal entries.
    """

    model: Model
    encoder: TextEncoder
    about: dict[str, Any]


def load_checkpoint(
    name: str,
    *,
    dtype: DtypeOption,
    implementation: ImplementationOption,
    revision: str | None,
    trust_remote_code: bool,
    cache_dir: Path | None,
    lora: Path | None,
    quantize: Quantize | None,
    mesh: str | None,
    reproducible: bool,
    accept_config: Sequence[str] = (),
    n_models: int = 1,
    before_weights: Callable[[Model], object] | None = None,
    generates: bool = True,
) -> Loaded:
    """Load a checkpoint; arguments as in `Scorer.from_pretrained`.

    Args:
        n_models: number of models that share the devices' memory.
        before_weights: see `models.native.build`.
        generates: as in `devices.mesh_choice`.

    Raises:
        InputError: the model cannot be used, or processes of one run have different weights.
    """
    processes.check_not_forked()
    use_compilation_cache()
    folder = resolve(name, revision, with_code=trust_remote_code, cache_dir=cache_dir)
    with fingerprint.computed_beside(folder, lora) as digests:
        model = load.load(
            folder,
            dtype=dtype,
            implementation=implementation,
            adapter=lora,
            quantize=quantize,
            mesh_choice=mesh_choice(mesh, n_models, generates=generates),
            accept_config=accept_config,
            before_weights=before_weights,
        )
        encoder = TextEncoder(load_tokenizer(folder, trust_remote_code=trust_remote_code))
    shape = None if model.mesh is None else model.mesh.shape
    processes.verify_same("weights or mesh", f"{digests().outline} {shape}".encode())
    weights = processes.broadcast_from_first(digests().digest.encode()).decode()
    return Loaded(model, encoder, facts_of_numbers(model, weights, quantize, reproducible))


def load_tensors(
    config: Any,
    tensors: Mapping[str, Any],
    tokenizer: Any,
    *,
    dtype: DtypeOption,
    quantize: Quantize | None,
    mesh: str | None,
    reproducible: bool,
) -> Loaded:
    """Build a model from tensors in memory; arguments as in `Scorer.from_tensors`.

    Raises:
        InputError: the config, the tensors or the tokenizer cannot be used.
    """
    processes.check_not_forked()
    use_compilation_cache()
    model = load.load_tensors(
        raw_config(config),
        tensors,
        dtype=dtype,
        quantize=quantize,
        mesh_choice=mesh_choice(mesh),
    )
    encoder = encoder_of(tokenizer)
    about = facts_of_numbers(model, new_identity(), quantize, reproducible)
    return Loaded(model, encoder, about)


def load_functions(
    params: Any,
    tokenizer: Any,
    *,
    vocab_size: int,
    max_positions: int,
    name: str,
    mesh: str | None,
    reproducible: bool,
    **described: Any,
) -> Loaded:
    """Take a model of functions; arguments as in `Scorer.from_function`.

    Args:
        described: attributes of `Functions`.

    Raises:
        InputError: as there.
    """
    from jaxscore.models import functions  # deferred: checkpoints need none

    processes.check_not_forked()
    use_compilation_cache()
    semantics = jax_settings.current_semantics()  # of the caller's functions and parameters
    with jax_settings.isolated(), jax_settings.applied(semantics):
        model = functions.build(
            functions.Functions(**described),
            params,
            vocab_size=vocab_size,
            max_positions=max_positions,
            name=name,
            mesh_choice=mesh_choice(mesh),
        )
    encoder = encoder_of(tokenizer)
    end = encoder.tokenizer.eos_token_id
    if end is not None and end < vocab_size:
        model = dataclasses.replace(model, eos_ids=(end,))
    about = facts_of_numbers(model, new_identity(), None, reproducible)
    return Loaded(model, encoder, about)


def encoder_of(tokenizer: Any) -> TextEncoder:
    """The encoder of a fast tokenizer of transformers, or of a checkpoint's by its name.

    Raises:
        InputError: a slow tokenizer, or none.
    """
    if isinstance(tokenizer, str | Path):
        return TextEncoder(load_tokenizer(resolve(str(tokenizer), None)))
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"tokenizer is {type(tokenizer).__name__}, expected a fast tokenizer of transformers "
            "(PreTrainedTokenizerFast wraps one of tokenizers), or the folder or hub id of a "
            "checkpoint"
        )
    return TextEncoder(tokenizer)


def new_identity() -> str:
    """A name for weights in memory that nothing else has, the same in every process."""
    name = processes.broadcast_from_first(uuid.uuid4().hex.encode()).decode()
    return f"{IN_MEMORY}{name}"


def facts_of_numbers(
    model: Model, weights: str, quantize: Quantize | None, reproducible: bool
) -> dict[str, Any]:
    """`Loaded.about` of a model.

    Args:
        weights: identity of the parameters.
    """
    shape = None if model.mesh is None else model.mesh.shape
    about = {
        "model": weights,
        "model_type": model.model_type,
        "dtype": model.dtype,
        "quantize": quantize,
        "implementation": model.implementation,
        "platform": jax.default_backend(),
        "device_kind": jax.devices()[0].device_kind,
        "reproducible": reproducible,
        "shards": shape.model if shape else 1,
        "jax": jax.__version__,
        "numbers": NUMBERS,
    }
    if model.accepted:
        about["accepted_config"] = dict(model.accepted)
    if model.implementation == "transformers":
        about["transformers"] = importlib.metadata.version("transformers")
    return about
