"""What differs between decoders, as data: `DecoderConfig`."""

import dataclasses

from jaxscore.device.attention.score_rule import Alibi

MODEL = "model"  # mesh axis
NORM_PLACES = ("before", "after", "both", "residual")  # of each half; "residual": after the sum
NORMS_BEFORE = ("before", "both")
NORMS_AFTER = ("after", "both")


@dataclasses.dataclass(frozen=True)
class Rotary:
    """How positions turn the first channels of queries and keys (RoPE, arXiv 2104.09864).

    Attributes:
        frequencies: radians a position for each pair of channels; zeros turn nothing.
        factor: multiplies cosine and sine (YaRN's attention factor).
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class Experts:
    """An MLP of which each token runs a few of many copies (arXiv 2401.04088).

    Attributes:
        count, per_token: how many there are, and how many a token runs.
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
        norm_place: in NORM_PLACES.
        parallel: "no", or attention and MLP both read what the layer was given, through norms of
            their "own" or one "shared".
        qk_norm: queries and keys are normed: in each "head" by one scale, by scales for each of
            the "heads", or over all heads together, "flat"; "" is not.
        gated: the MLP is `down(act(gate(x)) * up(x))`, else `down(act(up(x)))`.
        rotary: tables, as long as each other; empty where nothing turns.
        rotary_of: for each layer the index of its table.
        long_rotary: tables instead of `rotary` for requests of more than `long_from` tokens; empty
            where there are none.
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
        shards: over how many devices heads, inner widths, experts and vocabulary are split; the
            sizes above are the whole model's. Functions of such a config run inside
            `jax.shard_map` over the axis MODEL, on parameters as `device.sharding` places them.
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
    norm: str
    norm_eps: float
    activation: str
    gated: bool
    attention_scale: float
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    tied: bool
    norm_bias: bool = False
    norm_place: str = "before"
    parallel: str = "no"
    qk_norm: str = ""
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
    quantized: str = ""
    shards: int = 1

    @property
    def split(self) -> str | None:
        """The mesh axis to sum over, None on one device."""
        return MODEL if self.shards > 1 else None

    @property
    def split_vocabulary(self) -> str | None:
        """The same for embedding and unembedding, which are whole where they do not divide."""
        return MODEL if self.shards > 1 and not self.vocab_size % self.shards else None

    @property
    def whole_kv(self) -> bool:
        """Whether each shard computes all key heads and keeps the one that its queries use."""
        return self.n_kv_heads % self.shards != 0
