"""Loads a checkpoint by name: model, tokenizer, and the facts that identify its numbers."""

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxscore.engine.devices import mesh_choice, use_compilation_cache
from jaxscore.io import processes
from jaxscore.models.choices import DtypeOption, ImplementationOption, Quantize
from jaxscore.models.load import load
from jaxscore.models.model import Model
from jaxscore.models.weights import checkpoint, fingerprint
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer import load_tokenizer

NUMBERS = 4  # raised with every change that moves a score, so that no journal mixes versions


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
) -> Loaded:
    """Load a checkpoint; arguments as in `Scorer.from_pretrained`.

    Args:
        n_models: number of models that share the devices' memory.

    Raises:
        InputError: the model cannot be used, or processes of one run have different weights.
    """
    use_compilation_cache()
    folder = checkpoint.resolve(name, revision, with_code=trust_remote_code, cache_dir=cache_dir)
    with fingerprint.computed_beside(folder, lora) as weights:
        model = load(
            folder,
            dtype=dtype,
            implementation=implementation,
            adapter=lora,
            quantize=quantize,
            mesh_choice=mesh_choice(mesh, n_models),
            accept_config=accept_config,
        )
        encoder = TextEncoder(load_tokenizer(folder, trust_remote_code=trust_remote_code))
    shape = None if model.mesh is None else model.mesh.shape
    processes.verify_same("weights or mesh", f"{weights()} {shape}".encode())
    about = {
        "model": weights(),
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
    return Loaded(model, encoder, about)
