"""The interface between the engine and a loaded model of any implementation; pairs of models."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

import numpy as np

from jaxscore.device.backends import Platform
from jaxscore.device.decoder import Extend, KeysValues
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.lm_head import divergence
from jaxscore.device.lm_head.sums import MEASURES
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.score import HiddenStates, PairStates
from jaxscore.device.sharding import DeviceMesh
from jaxscore.errors import InputError, check_choice
from jaxscore.models.model_types import Dtype, Implementation, Quantize
from jaxscore.models.weights.generation_config import GenerationDefaults
from jaxscore.plan.chunks import PathNeeds
from jaxscore.plan.requests import TokenRequest

# (params, request) -> new ids including the EOS, with `generate.NONFINITE` for logits that are not
# finite; for requests without top_k and repetition penalty
Write = Callable[[Any, TokenRequest], np.ndarray]

# (config of our decoder, shapes of its parameters), both None for other models -> the mesh of
# devices, or None for the first device
MeshChoice = Callable[[DecoderConfig | None, Any], DeviceMesh | None]


class Cached(NamedTuple):
    """Functions over the KV cache of a model.

    Attributes:
        extend: `decoder.extend` with config and build bound.
        empty_cache: function of (rows, slots) that returns empty keys and values of all layers
            [layers, rows, K, slots, H] in the storage dtype, and zero states of each row.
        saves_work: if True, computing tokens after a cache costs less than computing them together
            with the cached tokens.
    """

    extend: Extend
    empty_cache: Callable[[int, int], KeysValues]
    saves_work: bool = True


class ModelFunctions(NamedTuple):
    """Pure functions over the parameters of a model.

    Attributes:
        hidden_states, unembedding: see `device.score`; the second returns an `Unembedding`, or a
            `Pair` for a model pair.
        cached: functions for generation and the prefix cache; None for transformers' classes and
            pairs.
        write: generation by transformers' classes; None for other models.
        paths: the inputs about paths that recurrent layers need per batch; None without such
            layers.
        measures: names of further measures that the scores may have.
    """

    hidden_states: HiddenStates | PairStates
    unembedding: Callable[[Any], Any]
    cached: Cached | None = None
    write: Write | None = None
    paths: PathNeeds | None = None
    measures: tuple[str, ...] = MEASURES


class Devices(NamedTuple):
    """Devices that the functions of a model are compiled for, with its parameters.

    Attributes:
        platform: the platform of the devices.
        mesh: the mesh, of which the functions then compute one shard; None for one device.
        gathered_bytes: the peak of gathered bytes on a device, see `costs.gathered_bytes`.
        replaced_kernels: description of the replacements for kernels that the GPU or JAX cannot
            run, with the reason; None if there are none.
    """

    platform: Platform
    mesh: DeviceMesh | None = None
    gathered_bytes: int = 0
    replaced_kernels: str | None = None

    @property
    def shape(self) -> MeshShape:
        """The shape of the mesh; 1 x 1 for one device."""
        return MeshShape() if self.mesh is None else self.mesh.shape


@dataclasses.dataclass(frozen=True)
class CheckpointFacts:
    """Facts from the files of a checkpoint that its functions do not depend on.

    Attributes:
        eos_ids: tokens that end a generated text.
        placeholders: ids of tokens that represent an image or sound, which the model does not
            read -> the config's attribute with the id.
        left_out: description of the parts of a multimodal checkpoint that are not read.
        limit_reason: the reason why `Model.max_positions` is less than the model was trained for;
            empty if it is not.
        accepted: unhandled config keys that the user vouches for, with their values.
        stored_as: description of the quantized weights; None if they are plain.
        stored_share: share of all parameters that stay in the blocks of their file; None if none
            do.
    """

    eos_ids: tuple[int, ...] = ()
    placeholders: Mapping[int, str] = dataclasses.field(default_factory=dict)
    left_out: str | None = None
    limit_reason: str = ""
    accepted: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stored_as: str | None = None
    stored_share: float | None = None


@dataclasses.dataclass(frozen=True)
class Model:
    """The parameters of a model, its functions over them, and the facts that planning needs.

    Attributes:
        params: tree of device arrays.
        max_positions: length of the longest path.
        width: width of the hidden states, which determines the row lengths that are worthwhile.
        shares_text: if True, rows may contain tries. False for models without the interval mask,
            such as transformers' classes, whose mask is two-dimensional: they take one request per
            row.
        implementation: "native", "transformers", or "function" for a user's functions.
        dtype: "float32" or "bfloat16".
        model_type: the config's model type.
        longer: a number of tokens, and the functions for requests of which the model reads more
            tokens; None if the same functions serve all lengths.
        quantized: storage of the layers' weights; None if they are in `dtype`.
        checkpoint: facts from the checkpoint's files; the defaults for other models.
        generation_defaults: the checkpoint's sampling defaults, which are not applied.
        replace_params: function that returns new `params` from new values: tensors like those that
            `params` were read from, or a tree like `params`. The result shares no memory with the
            values. Raises InputError naming what does not fit. None if that is not possible.

    Raises:
        ValueError: an implementation or dtype that does not exist.
    """

    functions: ModelFunctions
    params: Any
    vocab_size: int
    max_positions: int
    width: int
    shares_text: bool
    implementation: Implementation
    dtype: Dtype
    model_type: str
    devices: Devices
    longer: tuple[int, ModelFunctions] | None = None
    quantized: Quantize | None = None
    checkpoint: CheckpointFacts = dataclasses.field(default_factory=CheckpointFacts)
    generation_defaults: GenerationDefaults = dataclasses.field(default_factory=GenerationDefaults)
    replace_params: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        check_choice("implementation", self.implementation, get_args(Implementation))
        check_choice("dtype", self.dtype, get_args(Dtype))


def paired(p: Model, q: Model) -> Model:
    """Combine two models into one whose scores come from `p` and whose measures compare both.

    Its parameters are {"p": ..., "q": ...}, so that code which plans, sends and places the batches
    of one model also works for a pair.

    Other facts come from `p`, unless they depend on both. Without a KV cache, the pair neither uses
    a prefix cache nor generates text.

    Raises:
        InputError: the two cannot be compared.
    """
    if p.vocab_size != q.vocab_size:
        raise InputError(
            f"--reference has {q.vocab_size} columns of logits and --model {p.vocab_size}; a "
            "divergence compares probabilities of the same tokens, so give two models with as many"
        )
    if p.devices.shape.model > 1 and p.implementation != q.implementation:
        raise InputError(
            f"--mesh {p.devices.shape} splits the vocabulary of our decoder and not that of "
            "transformers' class; give both models the same --model-impl, or model=1"
        )
    shorter = min(p, q, key=lambda model: model.max_positions)
    checkpoint = dataclasses.replace(
        p.checkpoint,
        placeholders={**q.checkpoint.placeholders, **p.checkpoint.placeholders},
        limit_reason=shorter.checkpoint.limit_reason,
    )
    return dataclasses.replace(
        p,
        functions=_paired_functions(p.functions, q.functions),
        params={"p": p.params, "q": q.params},
        replace_params=None,
        max_positions=shorter.max_positions,
        width=max(p.width, q.width),
        shares_text=p.shares_text and q.shares_text,
        longer=_longer(p, q),
        checkpoint=checkpoint,
    )


def _paired_functions(p: ModelFunctions, q: ModelFunctions) -> ModelFunctions:
    """Return functions over the parameters of both models."""

    def hidden_states(params: Any, *rows: Any, **paths: Any) -> Any:
        return tuple(
            functions.hidden_states(params[name], *rows, **(paths if functions.paths else {}))
            for name, functions in (("p", p), ("q", q))
        )

    def unembedding(params: Any) -> divergence.Pair:
        return divergence.Pair(p.unembedding(params["p"]), q.unembedding(params["q"]))

    needs = (functions.paths for functions in (p, q) if functions.paths is not None)
    return ModelFunctions(
        hidden_states, unembedding, paths=max(needs, default=None), measures=divergence.MEASURES
    )


def _longer(p: Model, q: Model) -> tuple[int, ModelFunctions] | None:
    """Return the pair's functions for long requests, and their length; see `Model.longer`.

    Raises:
        InputError: both models have such functions, from different lengths on.
    """
    lengths = {model.longer[0] for model in (p, q) if model.longer is not None}
    if not lengths:
        return None
    if len(lengths) > 1:
        first, second = sorted(lengths)
        raise InputError(
            f"the rotary frequencies of the two models change after {first} and after {second} "
            "tokens; a divergence needs models that change at the same length"
        )
    long_p, long_q = (
        model.functions if model.longer is None else model.longer[1] for model in (p, q)
    )
    return lengths.pop(), _paired_functions(long_p, long_q)
