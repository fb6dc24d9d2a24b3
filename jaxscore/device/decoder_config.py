"""What differs between decoders, as data: `DecoderConfig`."""

import dataclasses
from typing import Literal, get_args, get_origin, get_type_hints

from jaxscore.device.attention.score_rule import Alibi

NormKind = Literal["rms", "layer"]
NormPlace = Literal["before", "after", "both", "residual"]  # of each half; the last: after the sum
Parallel = Literal["no", "own", "shared"]
QkNorm = Literal["", "head", "heads", "flat"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Quantized = Literal["", "float32", "bfloat16"]

NORMS_BEFORE = ("before", "both")
NORMS_AFTER = ("after", "both")


@dataclasses.dataclass(frozen=True)
class Rotary:
    """How positions turn the first channels of queries and keys (RoPE, arXiv 2104.09864).

    Attributes:
        frequencies: radians per position for each pair of channels; zeros turn nothing.
        factor: multiplies cosine and sine (YaRN's attention factor).
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class Experts:
    """An MLP of which each token runs a few of many copies (arXiv 2401.04088).

    Attributes:
        count, per_token: how many experts, and how many of them a token runs.
        renormalised: the weights of those are scaled to sum to one.
        shared_width: of an MLP that every token runs beside them, weighed by a sigmoid of its
            own; 0 is none.
    """

    count: int
    per_token: int
    renormalised: bool
    shared_width: int = 0


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Everything that decides the function, hashable, so that it can be a static argument.

    Attributes:
        vocab_size: columns of the unembedding, padded ids included.
        mlp_width: inner width of the MLP, or of one expert.
        max_positions: longest path from a root that the model was made for.
        windows: for each layer how far along the path a token sees; 0 is everything.
        norm: "rms" or "layer", with a bias where `norm_bias`; `norm_eps` is added to the mean
            square or the variance.
        norm_place: where each half has its norms.
        parallel: "no", or attention and MLP both read what the layer was given, through norms of
            their "own" or one "shared".
        qk_norm: queries and keys are normed: in each "head" by one scale, by scales for each of
            the "heads", or over all heads together, "flat"; "" is not.
        gated: the MLP is `down(act(gate(x)) * up(x))`, else `down(act(up(x)))`.
        rotary: tables, as long as each other; empty where nothing turns.
        rotary_of: for each layer the index of its table.
        long_rotary: tables instead of `rotary` for requests of more than `long_from` tokens; empty
            where those have the same.
        interleaved: rotary pairs are channels 2c and 2c + 1, else c and c + half of them.
        learned_positions: a table of `max_positions` is added to the embeddings.
        attention_scale, attention_softcap, alibi: see `ScoreRule`.
        qkv_bias, out_bias, mlp_bias, head_bias: which products add a bias.
        tied: the unembedding is the embedding.
        embedding_width: of the embedding where it is not `width`; products without bias lead
            from one to the other, and back before the unembedding. 0 is `width`.
        embedding_scale, residual_scale: factors on embeddings, and on what a layer's halves add.
        embedding_norm, final_norm: norms after the embedding and before the unembedding.
        logit_scale, logit_softcap: see `Unembedding`.
        quantized: the type of the layers' products where their weights are int8 with a scale for
            each output channel; "" where they are as stored. Embedding, unembedding and the
            choice of experts never are.

    Raises:
        ValueError: a choice that does not exist, naming the field and the choices.
    """

    vocab_size: int
    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_width: int
    mlp_width: int
    max_positions: int
    windows: tuple[int, ...]
    norm: NormKind
    norm_eps: float
    activation: Activation
    gated: bool
    attention_scale: float
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    tied: bool
    norm_bias: bool = False
    norm_place: NormPlace = "before"
    parallel: Parallel = "no"
    qk_norm: QkNorm = ""
    qk_norm_bias: bool = False
    rotary: tuple[Rotary, ...] = ()
    rotary_of: tuple[int, ...] = ()
    long_rotary: tuple[Rotary, ...] = ()
    long_from: int = 0
    interleaved: bool = False
    learned_positions: bool = False
    attention_softcap: float | None = None
    alibi: Alibi | None = None
    experts: Experts | None = None
    head_bias: bool = False
    embedding_width: int = 0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    embedding_norm: bool = False
    final_norm: bool = True
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    quantized: Quantized = ""

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                listed = ", ".join(map(repr, choices))
                raise ValueError(f"{name} is {value!r}, expected one of {listed}")


CHOICES = {
    name: get_args(kind)
    for name, kind in get_type_hints(DecoderConfig).items()
    if get_origin(kind) is Literal
}
