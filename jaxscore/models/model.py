"""What the scorer needs to know of a model, whichever implementation it has."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

import numpy as np

from jaxscore.device.backends import Platform
from jaxscore.device.decoder import KeysValues
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.generate import Extend
from jaxscore.device.lm_head.sums import MEASURES
from jaxscore.device.score import HiddenStates, PairStates
from jaxscore.device.sharding import DeviceMesh
from jaxscore.errors import check_choice
from jaxscore.models.choices import Dtype, Implementation
from jaxscore.models.weights.generation_config import GenerationDefaults
from jaxscore.plan.requests import TokenRequest

# (params, request) -> new ids, an EOS included, and `generate.NONFINITE` where the logits were not
# finite; of requests without top_k and repetition penalty
Write = Callable[[Any, TokenRequest], np.ndarray]

# (config of our decoder, shapes of its parameters), None for both where the model is another, to
# the devices that hold it; None is the first one
MeshChoice = Callable[[DecoderConfig | None, Any], DeviceMesh | None]


class Cached(NamedTuple):
    """What a model with keys and values of its own can do besides `hidden_states`.

    `extend` is `decoder.extend`; `empty_cache(rows, slots)` makes empty keys and values of all
    layers [layers, rows, K, slots, H], as stored.
    """

    extend: Extend
    empty_cache: Callable[[int, int], KeysValues]


@dataclasses.dataclass(frozen=True)
class Model:
    """Two pure functions over parameters, and the facts that planning needs.

    Attributes:
        hidden_states, unembedding: see `device.score`; the second gives an `Unembedding`, or a
            `Pair` where the first is of two models.
        cached: generation and shared prefixes; None for transformers' classes.
        write: their own generation; None for ours.
        params: a tree of device arrays.
        max_positions: longest path that the model takes.
        width: of the hidden states; decides which row lengths pay.
        shares_text: rows may hold tries. False for transformers' classes, whose mask is
            two-dimensional: they take one request a row.
        implementation: "native" or "transformers".
        dtype: "float32" or "bfloat16".
        model_type: the config's.
        eos_ids: tokens that end a generated text.
        longer: for requests of more tokens than this, another model over the same parameters.
        quantized: the layers' weights are int8.
        stored_as: what people should know of a checkpoint whose weights are stored quantized;
            None of a plain one.
        platform: that the functions are made for.
        mesh: the devices that hold the parameters; the functions are then one shard's.
            None is one device.
        placeholders: ids of tokens that stand for an image or a sound, which the model is not
            shown -> the config's attribute that says so.
        left_out: what of a checkpoint with more than a text model is not read, for people.
        generation_defaults: how the checkpoint wants its text to be chosen, which nothing here
            follows by itself.
        accepted: keys of the config that are not handled and that the user vouches for, with
            their values.
        measures: names of what its scores may hold beside the terms that they always have.

    Raises:
        ValueError: an implementation or dtype that does not exist.
    """

    hidden_states: HiddenStates | PairStates
    unembedding: Callable[[Any], Any]
    cached: Cached | None
    write: Write | None
    params: Any
    vocab_size: int
    max_positions: int
    width: int
    shares_text: bool
    implementation: Implementation
    dtype: Dtype
    model_type: str
    eos_ids: tuple[int, ...]
    platform: Platform
    longer: tuple[int, "Model"] | None = None
    quantized: bool = False
    stored_as: str | None = None
    mesh: DeviceMesh | None = None
    placeholders: Mapping[int, str] = dataclasses.field(default_factory=dict)
    left_out: str | None = None
    generation_defaults: GenerationDefaults = dataclasses.field(default_factory=GenerationDefaults)
    accepted: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    measures: tuple[str, ...] = MEASURES

    def __post_init__(self) -> None:
        check_choice("implementation", self.implementation, get_args(Implementation))
        check_choice("dtype", self.dtype, get_args(Dtype))
