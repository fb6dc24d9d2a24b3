"""Loading of checkpoints: model, tokenizer, and the facts that determine the numbers."""

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
from jaxscore.models.model import CheckpointFacts, Model
from jaxscore.models.model_types import DtypeOption, ImplementationOption, Quantize
from jaxscore.models.weights import fingerprint
from jaxscore.models.weights.checkpoint import raw_config
from jaxscore.models.weights.folder import resolve
from jaxscore.text import chat_template
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer_files import load_tokenizer
from jaxscore.version import NUMBERS

IN_MEMORY = "memory "  # prefix of the identity of weights that are not from a file


class Loaded(NamedTuple):
    """A loaded checkpoint.

    Attributes:
        about: JSON object of everything that determines the numbers, except the requests; journal
            entries belong to it.
    """

    model: Model
    encoder: TextEncoder
    about: dict[str, Any]

    def customize(
        self, prefix_token_id: int | None, chat_template_args: Mapping[str, Any] | None
    ) -> None:
        """Change what is written around texts; see `Scorer.from_pretrained`.

        Raises:
            InputError: the model has no such token, or the template no such variable.
        """
        if prefix_token_id is not None:
            n_ids = self.model.vocab_size
            if not 0 <= prefix_token_id < n_ids:
                raise InputError(
                    f"prefix_token_id is {prefix_token_id}, expected an id from 0 to {n_ids - 1}"
                )
            self.encoder.prefix = [prefix_token_id]
        if chat_template_args:
            chat_template.set_variables(self.encoder.tokenizer, chat_template_args)


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
    """Load a checkpoint; see `Scorer.from_pretrained` for the remaining arguments.

    Args:
        n_models: number of models that share the devices' memory.
        before_weights: see `models.native.build`.
        generates: see `devices.mesh_choice`.

    Raises:
        InputError: the model cannot be used, or the processes of a run have different weights.
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
    outline = f"{digests().outline} {model.devices.shape}"
    processes.verify_same("weights or mesh", outline.encode())
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
    """Build a model from tensors in memory; see `Scorer.from_tensors` for the arguments.

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
    """Build a model from functions; see `Scorer.from_function` for the remaining arguments.

    Args:
        described: attributes of `Functions`.

    Raises:
        InputError: see `Scorer.from_function`.
    """
    from jaxscore.models import functions  # deferred: not needed for checkpoints

    processes.check_not_forked()
    use_compilation_cache()
    semantics = jax_settings.current_semantics()  # JAX settings of the caller
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
    eos_id = encoder.tokenizer.eos_token_id
    if eos_id is not None and eos_id < vocab_size:
        model = dataclasses.replace(model, checkpoint=CheckpointFacts(eos_ids=(eos_id,)))
    about = facts_of_numbers(model, new_identity(), None, reproducible)
    return Loaded(model, encoder, about)


def encoder_of(tokenizer: Any) -> TextEncoder:
    """Create the encoder of a fast transformers tokenizer, or of a checkpoint's tokenizer by name.

    Raises:
        InputError: `tokenizer` is slow, or not a tokenizer.
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
    """Create a unique name for weights in memory, the same in every process."""
    name = processes.broadcast_from_first(uuid.uuid4().hex.encode()).decode()
    return f"{IN_MEMORY}{name}"


def facts_of_numbers(
    model: Model, weights: str, quantize: Quantize | None, reproducible: bool
) -> dict[str, Any]:
    """Collect `Loaded.about` for a model.

    Args:
        weights: the identity of the parameters.
    """
    about = {
        "model": weights,
        "model_type": model.model_type,
        "dtype": model.dtype,
        "quantize": quantize,
        "implementation": model.implementation,
        "platform": jax.default_backend(),
        "device_kind": jax.devices()[0].device_kind,
        "reproducible": reproducible,
        "shards": model.devices.shape.model,
        "jax": jax.__version__,
        "numbers": NUMBERS,
    }
    if model.checkpoint.accepted:
        about["accepted_config"] = dict(model.checkpoint.accepted)
    if model.implementation == "transformers":
        about["transformers"] = importlib.metadata.version("transformers")
    return about
