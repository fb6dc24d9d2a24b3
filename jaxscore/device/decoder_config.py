"""`DecoderConfig`: the differences between decoders, as data."""

import dataclasses
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from jaxscore.device.attention.score_rule import Alibi
from jaxscore.device.dots import Form

NormKind = Literal["rms", "layer"]
# Of each half; "residual": after the sum, "mixed": before in recurrent layers, after in the others,
# "streams": of the streams of `HyperConnections`
NormPlace = Literal["before", "after", "both", "residual", "mixed", "streams"]
Parallel = Literal["no", "own", "shared"]
QkNormKind = Literal["", "head", "heads", "flat"]
Activation = Literal["gelu", "gelu_tanh", "relu", "relu_squared", "silu", "xielu"]
Quantized = Literal["", "float32", "bfloat16"]
RouterScores = Literal["softmax", "sigmoid", "sparsemixer"]

RECURRENT, NO_MIXER = -1, -2  # kinds of layers without attention
NORMS_BEFORE = ("before", "both")
NORMS_AFTER = ("after", "both")


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotation of the first channels of queries and keys by position (RoPE, arXiv 2104.09864).

    Attributes:
        frequencies: radians per position for each pair of channels; zeros are no rotation.
        factor: multiplies cosine and sine (YaRN's attention factor).
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0


class Latent(NamedTuple):
    """Attention whose keys and values are projections of one short vector per token (MLA,
    arXiv 2405.04434, section 2.1).

    Attributes:
        rank: channels of that vector.
        query_rank: of a vector that all heads' queries are projections of; 0 is none.
        rope_width: rotary channels of each query and of the one rotary key of all heads.
        nope_width: non-rotary channels of a head's query and key.
        value: channels of a head's value.
        norm_eps: of the norms of both vectors.
        query_factor, factor: on the queries, and on that vector after its norm.
        gated: queries are products of their vector after and before its norm, and so are gates,
            whose sigmoids multiply the mixed values.
    """

    rank: int
    query_rank: int
    rope_width: int
    nope_width: int
    value: int
    norm_eps: float
    query_factor: float = 1.0
    factor: float = 1.0
    gated: bool = False


class QueryGrowth(NamedTuple):
    """Queries are multiplied by `1 + share * ln(1 + floor((position + ahead) / length))`, as
    attention over longer texts is made sharper (arXiv 2501.19399).

    Attributes:
        shares: for each layer; 0 is no growth.
    """

    shares: tuple[float, ...]
    length: float
    ahead: int


class Clamped(NamedTuple):
    """A gate instead of `act(gate) * up`: `(up + 1) * gate * sigmoid(slope * gate)`, where `gate`
    is at most `limit` and `up` within `limit` of zero (the gpt-oss release, arXiv 2508.10925)."""

    limit: float
    slope: float


class AltUp(NamedTuple):
    """Several residual streams, see `device.streams`.

    Attributes:
        n_streams: how many; at least 2.
        active: index of the one that layers compute.
        scaled: what per-layer embeddings gate has a scale.
    """

    n_streams: int
    active: int
    scaled: bool


class HyperConnections(NamedTuple):
    """Several residual streams, each half of a layer reads a mix of, see `device.streams`.

    Attributes:
        n_streams: how many; at least 2.
        rank: of the products that make the weights of the mix.
    """

    n_streams: int
    rank: int


class NgramTable(NamedTuple):
    """Rows of hashed n-grams of one layer, see `device.ngrams`.

    Attributes:
        multipliers: of a token and its ancestors, below 2^63 over the vocabulary.
        primes: rows of each part of the table, equally many parts of each order from 2 on.
        rows: of the table, at least as many as all its parts have.
    """

    multipliers: tuple[int, ...]
    primes: tuple[int, ...]
    rows: int


class Ngrams(NamedTuple):
    """Layers that begin with embeddings of hashed n-grams, see `device.ngrams`.

    Attributes:
        layers: their indices.
        tables: of each; all have as many multipliers and primes.
        width: channels of the embeddings of all parts of a table.
        taps: of the convolution.
        separator: id of the token that n-grams do not reach across.
    """

    layers: tuple[int, ...]
    tables: tuple[NgramTable, ...]
    width: int
    taps: int
    separator: int

    @property
    def reach(self) -> int:
        """Number of ancestors that n-grams and convolutions read."""
        size = len(self.tables[0].multipliers)
        return max(size - 1, (self.taps - 1) * size)


class OtherMlp(NamedTuple):
    """Layers whose MLP differs from the others': a plain one of this inner width."""

    layers: tuple[int, ...]
    width: int


class OtherHeads(NamedTuple):
    """Layers whose attention has other sizes than the others'.

    Attributes:
        n_kv_heads, head_width: as of `DecoderConfig`.
        values_are_keys: values are the products that keys are before norm and rotation.
        sinks: they have sinks if the others do.
    """

    layers: tuple[int, ...]
    n_kv_heads: int
    head_width: int
    values_are_keys: bool = False
    sinks: bool = True


class ShortConvolution(NamedTuple):
    """A gated convolution along paths: `out(c * conv(b * x))` (LFM2).

    Attributes:
        taps: tokens that it reads, the current one included.
        bias: products and convolution add a bias.
    """

    taps: int
    bias: bool


class GatedDelta(NamedTuple):
    """A gated delta rule with short convolutions before it (arXiv 2412.06464), see
    `recurrence.rules`.

    Attributes:
        n_key_heads, n_value_heads: each key head serves as many neighbouring value heads.
        key_width, value_width: channels of a head.
        taps: of the convolutions of queries, keys and values.
        activation: after the convolutions.
        largest_rate: bound of β; above 1, states may change their sign.
        norm_eps: of the norm of outputs.
        channel_decay: each channel of a key decays on its own (Kimi delta attention, arXiv
            2510.26692).
        sigmoid_gate: the outputs' gate is a sigmoid in place of SiLU.
        rank: of the products that decays and gates are made by with `channel_decay`; 0 is whole.
        least_decay: bound of log decay, which is this times a sigmoid; None is no bound.
    """

    n_key_heads: int
    n_value_heads: int
    key_width: int
    value_width: int
    taps: int
    activation: Activation
    largest_rate: float
    norm_eps: float
    channel_decay: bool = False
    sigmoid_gate: bool = False
    rank: int = 0
    least_decay: float | None = None


class GatedUnit(NamedTuple):
    """The RG-LRU of Griffin (arXiv 2402.19427, section 2.4) behind a convolution, with a gate
    beside both; see `recurrence.rules`.

    Attributes:
        inner: channels.
        n_blocks: of the products inside the unit, which are block-diagonal.
        taps: of the convolution.
        activation: of the gate.
    """

    inner: int
    n_blocks: int
    taps: int
    activation: Activation


class Lightning(NamedTuple):
    """Lightning attention (arXiv 2401.04658): linear attention with a decay of each head, as
    `recurrence.rules.state_space` without step sizes.

    The output is normed over all heads, then multiplied by the sigmoid of a further product.

    Attributes:
        n_heads, head_width: heads, and channels of their queries, keys and values.
        activation: of these.
        norm_eps: of the norm of outputs.
    """

    n_heads: int
    head_width: int
    activation: Activation
    norm_eps: float

    @property
    def taps(self) -> int:
        """Tokens that it reads beside the state."""
        return 1


class StateSpace(NamedTuple):
    """The state-space layer of Mamba-2 (arXiv 2405.21060), see `recurrence.rules`.

    Attributes:
        n_heads, head_width: heads, and channels of one.
        n_groups, state_width: groups of heads that share B and C, and their channels.
        taps, conv_bias: of the convolutions of x, B and C.
        bias, out_bias: of the products inward and outward.
        activation: after the convolutions.
        least_step, most_step: bounds of a token's step size.
        norm: the output is normed within each group after its gate ("gated"), or before it
            ("first"), or not at all ("").
        norm_eps: of this norm; None is the decoder's.
        factors: on the gate, x, B, C and step size as they leave their products.
    """

    n_heads: int
    head_width: int
    n_groups: int
    state_width: int
    taps: int
    conv_bias: bool
    bias: bool
    activation: Activation
    least_step: float
    most_step: float
    norm: Literal["", "gated", "first"] = "gated"
    out_bias: bool = False
    factors: tuple[float, float, float, float, float] = (1.0,) * 5
    norm_eps: float | None = None


class SelectiveScan(NamedTuple):
    """The layer of Mamba-1 (arXiv 2312.00752, section 3), see `recurrence.rules`.

    Attributes:
        inner, state_width: channels, and numbers in the state of each.
        rank: of the product that makes step sizes.
        taps, conv_bias: of the convolution before the scan.
        bias: of the products inward and outward.
        activation: after the convolution.
        norm: step sizes before their last product, B and C have RMS norms, with a "scale" or
            "plain"; "" is none.
        norm_eps: of these.
        n_heads: heads of neighbouring channels, each with products of its own that make step sizes,
            B and C (arXiv 2405.16712); 0 is none.
    """

    inner: int
    state_width: int
    rank: int
    taps: int
    conv_bias: bool
    bias: bool
    activation: Activation
    norm: Literal["", "plain", "scale"] = ""
    norm_eps: float = 0.0
    n_heads: int = 0


class Beside(NamedTuple):
    """Factors on what attention and a recurrence beside it read and add (Falcon-H1)."""

    attention_in: float
    attention_out: float
    mixer_in: float
    mixer_out: float


class Recurrent(NamedTuple):
    """Layers with a recurrence in place of attention.

    Attributes:
        layers: their indices.
        mixer: the recurrence.
        beside: attention and recurrence read the same normed input and add their outputs, in all
            layers; None if the recurrence replaces attention.
    """

    layers: tuple[int, ...]
    mixer: ShortConvolution | GatedDelta | GatedUnit | Lightning | SelectiveScan | StateSpace
    beside: Beside | None = None

    @property
    def has_state(self) -> bool:
        """Whether layers carry a state, so that tokens are computed in chunks."""
        return not isinstance(self.mixer, ShortConvolution)


class SharedBlocks(NamedTuple):
    """Blocks of attention and MLP that recurrent layers share (arXiv 2405.16712, section 2).

    A block reads the residual stream beside the embedding, and its MLP reads what its attention
    gives. Its output, times a matrix of the layer, is added to what the recurrence reads.

    Attributes:
        layers: that use a block; the n-th of them uses block n % n_blocks.
        n_blocks: number of blocks.
    """

    layers: tuple[int, ...]
    n_blocks: int


G = TypeVar("G", bound="Group")


class Group:
    """Base of configs that have groups of fields.

    `of` and `replace` take the fields of all groups in one call, each with the prefix of its group:
    `mlp_width=64` is the field `width` of the group `Mlp`.
    """

    prefix: ClassVar[str] = ""

    @classmethod
    def of(cls: type[G], **fields: Any) -> G:
        """Return a config of these fields, and of defaults for the others.

        Raises:
            TypeError: a field that does not exist, or one that is missing.
        """
        config = cls._take(fields)
        if fields:
            raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(fields))}")
        return config

    @classmethod
    def _take(cls: type[G], fields: dict[str, Any]) -> G:
        """Return a config of the fields of this group, which are removed."""
        values: dict[str, Any] = {}
        for name, kind in _groups(cls).items():
            if kind is not None and name not in fields:
                values[name] = kind._take(fields)
            elif cls.prefix + name in fields:
                values[name] = fields.pop(cls.prefix + name)
        return cls(**values)

    def replace(self: G, **fields: Any) -> G:
        """Return a copy with other values of some fields.

        Raises:
            TypeError: a field that does not exist.
        """
        config = self._replace_some(fields)
        if fields:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(fields))}")
        return config

    def _replace_some(self: G, fields: dict[str, Any]) -> G:
        """Return a copy with other values of the fields of this group, which are removed."""
        values: dict[str, Any] = {}
        for name, kind in _groups(type(self)).items():
            if self.prefix + name in fields:
                values[name] = fields.pop(self.prefix + name)
            elif kind is not None:
                values[name] = getattr(self, name)._replace_some(fields)
        return dataclasses.replace(self, **values)  # type: ignore[type-var]


def _groups(kind: type[Group]) -> dict[str, type[Group] | None]:
    """Return the fields of a config class, each with its type if it is a group of fields."""
    out: dict[str, type[Group] | None] = {}
    for name, hint in get_type_hints(kind).items():
        if name != "prefix":
            is_group = isinstance(hint, type) and issubclass(hint, Group)
            out[name] = hint if is_group else None
    return out


@dataclasses.dataclass(frozen=True)
class Router(Group):
    """The choice of experts, and their weights.

    Attributes:
        renormalised: the weights of the chosen experts are scaled to sum to one.
        scores: function of the router's outputs: "softmax", "sigmoid", or "sparsemixer", which
            chooses and weighs one expert after the other (arXiv 2409.12136).
        bias: the router's product adds a bias.
        norm: the router reads the residual stream, normed and scaled by a vector of its own over
            the root of the width.
        corrected: a learned bias is added to the scores for the choice alone (arXiv 2408.15664).
        corrects_logits: it is added to the router's outputs instead.
        groups, groups_per_token: experts are chosen within the best groups of neighbours.
        group_rank: number of scores of a group whose sum ranks the groups.
        dropped_score: of experts in other groups; None if they are never chosen.
        least_sum: lower bound of the divisor of weights, if they are renormalised.
        added_sum: added to the divisor of weights, if they are renormalised.
        scale: factor on the weights.
        jitter: half the relative distance below the best within which "sparsemixer" weighs.
        expert_scale: each expert's weight has a learned factor.
    """

    prefix: ClassVar[str] = "router_"
    renormalised: bool
    scores: RouterScores = "softmax"
    bias: bool = False
    norm: bool = False
    corrected: bool = False
    corrects_logits: bool = False
    groups: int = 1
    groups_per_token: int = 1
    group_rank: int = 1
    dropped_score: float | None = None
    least_sum: float = 0.0
    added_sum: float = 0.0
    scale: float = 1.0
    jitter: float = 0.0
    expert_scale: bool = False


@dataclasses.dataclass(frozen=True)
class SharedExpert(Group):
    """An MLP that every token runs, next to the chosen experts.

    Attributes:
        width: inner width; 0 is no such MLP.
        gated: its output is multiplied by the sigmoid of a further product.
        scale: factor on its output.
    """

    prefix: ClassVar[str] = "shared_"
    width: int = 0
    gated: bool = True
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Experts(Group):
    """An MLP in many copies, of which each token runs a few (arXiv 2401.04088).

    Attributes:
        count, per_token: number of experts, and of those that a token runs.
        bias: the experts' products add a bias.
        weighs_input: the weight multiplies what an expert reads instead of its output.
        separate_norms: experts and the shared MLP have separate norms: one before the experts,
            which read the residual stream, and one after each of the two.
        identities: further experts, whose output is their input (arXiv 2509.01322).
        late: the routed experts' output is added at the end of the next layer, and the shared
            MLP's output in the same layer (arXiv 2509.01322); the last layer has none.
        latent_width: channels of a projection that experts read and return; 0 is none.
        normed: the sum of experts and shared MLP has a norm.
    """

    count: int
    per_token: int
    router: Router
    shared: SharedExpert = SharedExpert()
    bias: bool = False
    weighs_input: bool = False
    separate_norms: bool = False
    identities: int = 0
    late: bool = False
    latent_width: int = 0
    normed: bool = False


@dataclasses.dataclass(frozen=True)
class QkNorm(Group):
    """Norms of queries and keys.

    Attributes:
        kind: one scale for each "head", scales for each of the "heads", or one norm over all heads,
            "flat"; "" is no norm.
        scale, bias: if the norms have them.
        after_rotary: the norms come after the rotary embedding.
        layers: for each layer, if it has these norms; empty if all do.
    """

    prefix: ClassVar[str] = "qk_norm_"
    kind: QkNormKind = ""
    scale: bool = True
    bias: bool = False
    after_rotary: bool = False
    layers: tuple[bool, ...] = ()


@dataclasses.dataclass(frozen=True)
class Values(Group):
    """The values of attention.

    Attributes:
        width: channels of a head's value, at most `head_width`; 0 is `head_width`.
        factor: on values.
        norm: the values of each head are normed without scale.
        are_keys: values are the products that keys are before norm and rotary embedding.
    """

    prefix: ClassVar[str] = "value_"
    width: int = 0
    factor: float = 1.0
    norm: bool = False
    are_keys: bool = False


@dataclasses.dataclass(frozen=True)
class Scores(Group):
    """The scores of attention: their scale, and which tokens have one.

    Attributes:
        windows: for each layer how far along the path a token sees; 0 is everything.
        score_scale, score_softcap, alibi: see `ScoreRule`.
        chunked: a window is a stretch of positions: a token sees those of its own stretch, which
            begin at multiples of the window.
        sinks: a learned score for each query head, next to those of the tokens that it sees,
            without a value (arXiv 2309.17453).
        query_growth: see `QueryGrowth`.
    """

    windows: tuple[int, ...]
    score_scale: float
    score_softcap: float | None = None
    alibi: Alibi | None = None
    chunked: bool = False
    sinks: bool = False
    query_growth: QueryGrowth | None = None


@dataclasses.dataclass(frozen=True)
class Attention(Group):
    """Sizes and products of attention.

    Attributes:
        qkv_bias, out_bias: if the products of queries, keys and values, and the output's, add a
            bias.
        qkv_rank: a product of this rank is added to those of queries, keys and values; 0 is none.
            In shared blocks each layer has its own (arXiv 2411.15242, section 2.1).
        qkv_limit: queries, keys and values are clipped to this distance from zero.
        query_gate: the output is multiplied by the sigmoid of a further product, of the size of the
            queries, or with one number for each head if `gate_per_head`.
        keys_of: for each layer the one whose keys and values it uses, itself or an earlier one of
            the same sizes; empty if each has its own.
        latent: see `Latent`. With it `n_kv_heads` is 1 and `head_width` is `rank + rope_width`.
        other_heads: see `OtherHeads`.
    """

    scores: Scores
    n_heads: int
    n_kv_heads: int
    head_width: int
    qkv_bias: bool = False
    out_bias: bool = False
    qkv_rank: int = 0
    qkv_limit: float | None = None
    query_gate: bool = False
    gate_per_head: bool = False
    keys_of: tuple[int, ...] = ()
    qk_norm: QkNorm = QkNorm()
    values: Values = Values()
    latent: Latent | None = None
    other_heads: OtherHeads | None = None


@dataclasses.dataclass(frozen=True)
class Positions(Group):
    """How a token's position enters.

    Attributes:
        rotary: tables of equal length; empty without rotary embeddings.
        rotary_of: for each layer the index of its table.
        long_rotary: tables instead of `rotary` for requests of which the model reads more than
            `long_from` tokens; empty if those have the same.
        interleaved: rotary pairs are channels 2c and 2c + 1, else c and c + half of them.
        learned_positions: a table of `max_positions` is added to the embeddings.
        sinusoidal_from: the sines, then the cosines of a position (arXiv 1706.03762) are added,
            counted from here; None adds nothing.
    """

    rotary: tuple[Rotary, ...] = ()
    rotary_of: tuple[int, ...] = ()
    long_rotary: tuple[Rotary, ...] = ()
    long_from: int = 0
    interleaved: bool = False
    learned_positions: bool = False
    sinusoidal_from: int | None = None


@dataclasses.dataclass(frozen=True)
class Mlp(Group):
    """The MLP: `down(act(gate(x)) * up(x))` if `gated`, else `down(act(up(x)))`.

    Attributes:
        width: inner width, of one expert if there are experts.
        bias: if the products add a bias.
        rank: a product of this rank is added to those inward; 0 is none. In shared blocks each
            layer has its own (arXiv 2411.15242, section 2.1).
        clamped: another gate, see `Clamped`.
        factors: on the gate before its activation, and on the output.
        cutoffs: for each layer the number of standard deviations above the mean of a token's
            gates, below which they are zero, and from which they are counted (arXiv 2506.06644);
            None is no cutoff. Empty if no layer has one.
        other: see `OtherMlp`.
        layers: layers that are an MLP alone, where each layer has one half and one norm: the
            others are attention or a recurrence alone. None if all layers have both halves. Sizes
            of halves that no layer has are 1.
    """

    prefix: ClassVar[str] = "mlp_"
    width: int
    activation: Activation
    gated: bool = True
    bias: bool = False
    rank: int = 0
    clamped: Clamped | None = None
    factors: tuple[float, float] = (1.0, 1.0)
    cutoffs: tuple[float | None, ...] = ()
    other: OtherMlp | None = None
    layers: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Norm(Group):
    """The norms of a layer's halves.

    Attributes:
        kind: "rms" or "layer".
        eps: added to the mean square or the variance.
        place: where each half has its norms.
        scale, bias: if the norms have them.
        gate_rank: the norms before attention and before experts have a gate, see `LowRankGate`;
            0 is no gate.
    """

    prefix: ClassVar[str] = "norm_"
    kind: NormKind
    eps: float
    place: NormPlace = "before"
    scale: bool = True
    bias: bool = False
    gate_rank: int = 0


@dataclasses.dataclass(frozen=True)
class Residual(Group):
    """The residual stream, and how the halves of a layer add to it.

    Attributes:
        parallel: "no", or attention and MLP both read the layer's input, through norms of their
            "own" or one "shared".
        streams: see `AltUp` and `HyperConnections`; per-layer embeddings are added to all streams
            of the first but one.
        branch_scale: factor on what a half adds.
        sum_factors: for each layer the factors on the stream and attention's output, then on the
            stream and the MLP's output where they are added; empty is `branch_scale` alone.
        laurel_rank: attention adds its normed input, and the norm of a product of it of this rank
            (LAuReL, arXiv 2411.07501); 0 is none.
        layer_scale: each layer's output has a learned factor.
    """

    parallel: Parallel = "no"
    streams: AltUp | HyperConnections | None = None
    branch_scale: float = 1.0
    sum_factors: tuple[tuple[float, float, float, float], ...] = ()
    laurel_rank: int = 0
    layer_scale: bool = False


@dataclasses.dataclass(frozen=True)
class Embedding(Group):
    """The embeddings.

    Attributes:
        scale: factor.
        norm: a norm follows.
        width: of the embedding if it is not that of the decoder; products without bias lead from
            one to the other, and back before the unembedding. 0 is the decoder's.
        per_layer_width: a second embedding has so many channels for each layer, joined with a
            projection of the first one; they gate what a third part of each layer adds. 0 is none.
        per_layer_rows: ids of the second embedding, 0 is `vocab_size`; others have its first row.
    """

    prefix: ClassVar[str] = "embedding_"
    scale: float = 1.0
    norm: bool = False
    width: int = 0
    per_layer_width: int = 0
    per_layer_rows: int = 0


@dataclasses.dataclass(frozen=True)
class Head(Group):
    """The final norm and the unembedding.

    Attributes:
        tied: the unembedding is the embedding.
        bias: if the unembedding adds a bias.
        norm: a norm precedes.
        scale, softcap: see `Unembedding`.
    """

    prefix: ClassVar[str] = "head_"
    tied: bool
    bias: bool = False
    norm: bool = True
    scale: float = 1.0
    softcap: float | None = None


@dataclasses.dataclass(frozen=True)
class DecoderConfig(Group):
    """Everything that decides the function, hashable, so that it can be a static argument.

    Attributes:
        vocab_size: columns of the unembedding, padded ids included.
        width: of the residual stream.
        max_positions: longest path from a root that the model was made for.
        experts: see `Experts`; None without experts.
        recurrent: see `Recurrent`; None if all layers have attention.
        shared_blocks: see `SharedBlocks`; sizes of attention and MLP describe the blocks.
        ngrams: see `Ngrams`; with `HyperConnections` and recurrent layers alone.
        quantized: the type of the layers' products if their weights are int8 with a scale for
            each output channel; "" if they are as stored. Embedding, unembedding and the choice of
            experts never are.
        stored: weights that are held in blocks, by the path in the tree, its keys joined by `/`.

    Raises:
        ValueError: a choice that does not exist, naming the field and the choices.
    """

    vocab_size: int
    width: int
    n_layers: int
    max_positions: int
    attention: Attention
    positions: Positions
    mlp: Mlp
    norm: Norm
    residual: Residual
    embedding: Embedding
    head: Head
    experts: Experts | None = None
    recurrent: Recurrent | None = None
    shared_blocks: SharedBlocks | None = None
    ngrams: Ngrams | None = None
    quantized: Quantized = ""
    stored: tuple[tuple[str, Form], ...] = ()

    def attention_configs(self) -> tuple["DecoderConfig", ...]:
        """Return a config for each kind of attention: the main one, and that of `other_heads`."""
        if (other := self.attention.other_heads) is None:
            return (self,)
        main = self.replace(other_heads=None)
        return main, main.replace(
            n_kv_heads=other.n_kv_heads,
            head_width=other.head_width,
            value_are_keys=other.values_are_keys,
            sinks=main.attention.scores.sinks and other.sinks,
        )

    def kind_of(self, layer: int) -> int:
        """Return the index of a layer's attention in `attention_configs`, RECURRENT or NO_MIXER."""
        recurrent, other = self.recurrent, self.attention.other_heads
        if self.shared_blocks is not None and layer in self.shared_blocks.layers:
            return 0
        if self.mlp.layers is not None and layer in self.mlp.layers:
            return NO_MIXER
        if recurrent is not None and not recurrent.beside and layer in recurrent.layers:
            return RECURRENT
        return int(other is not None and layer in other.layers)

    def has_attention(self, layer: int) -> bool:
        """Return True if a layer has attention, and with it keys and values."""
        return self.kind_of(layer) >= 0

    def mlp_kinds(self) -> dict[str, tuple[int, ...]]:
        """Return the layers with the config's MLP, "main", and those of `mlp.other`, "other"."""
        layers = range(self.n_layers) if self.mlp.layers is None else self.mlp.layers
        other = () if self.mlp.other is None else self.mlp.other.layers
        return {"main": tuple(n for n in layers if n not in other), "other": other}

    @property
    def mlps_by_kind(self) -> bool:
        """If True, the parameters of MLPs are stacked per kind, outside `layers`."""
        return self.mlp.other is not None or self.mlp.layers is not None

    def only(self, layer: int) -> "DecoderConfig":
        """Return a decoder of this one layer, with keys and values of its own."""
        kind = self.kind_of(layer)
        here = self.attention_configs()[max(kind, 0)]
        if self.recurrent is not None:
            is_recurrent = layer in self.recurrent.layers
            here = here.replace(
                recurrent=self.recurrent._replace(layers=(0,)) if is_recurrent else None
            )
            if self.norm.place == "mixed":
                here = here.replace(norm_place="before" if kind == RECURRENT else "after")
        if self.shared_blocks is not None:
            uses = None if kind == RECURRENT else SharedBlocks((0,), 1)
            here = here.replace(shared_blocks=uses)
        if (
            self.attention.other_heads is not None
        ):  # whose tables are filled up to the widest heads'
            pairs = here.attention.head_width // 2
            tables = (Rotary(t.frequencies[:pairs], t.factor) for t in self.positions.rotary)
            here = here.replace(rotary=tuple(tables))
        if (other := self.mlp.other) is not None and layer in other.layers:
            here = here.replace(experts=None, mlp_width=other.width)
        elif here.experts is not None and here.experts.late:  # there is no next layer
            here = here.replace(experts=here.experts.replace(late=False))
        if (ngrams := self.ngrams) is not None:
            table_of = dict(zip(ngrams.layers, ngrams.tables, strict=True))
            tables_here = (table_of[layer],) if layer in table_of else ()
            here = here.replace(
                ngrams=ngrams._replace(layers=(0,), tables=tables_here) if tables_here else None
            )
        if self.mlp.layers is not None:
            here = here.replace(mlp_layers=(0,) if kind == NO_MIXER else ())
        if (growth := self.attention.scores.query_growth) is not None:
            growth = growth._replace(shares=growth.shares[layer : layer + 1])
        return here.replace(
            n_layers=1,
            windows=self.attention.scores.windows[layer : layer + 1],
            rotary_of=self.positions.rotary_of[layer : layer + 1],
            qk_norm_layers=self.attention.qk_norm.layers[layer : layer + 1],
            sum_factors=self.residual.sum_factors[layer : layer + 1],
            mlp_cutoffs=self.mlp.cutoffs[layer : layer + 1],
            query_growth=growth,
            keys_of=(),
            mlp_other=None,
        )

    def __post_init__(self) -> None:
        _check_choices(self)
        place, streams = self.norm.place, self.residual.streams
        if self.mlp.layers is not None and place != "before":
            raise ValueError(f"norm_place is {place!r}, expected 'before'")
        if (place == "streams") != isinstance(streams, HyperConnections):
            raise ValueError(f"norm_place is {place!r} and streams {streams}")
        if place == "streams":
            self._check_hyper_connections()
        if self.ngrams is not None and (self.recurrent is None or place != "streams"):
            raise ValueError("ngrams need recurrent layers and hyper-connections")

    def _check_hyper_connections(self) -> None:
        """Refuse what is done to the sums of a single residual stream."""
        of_sums = {
            "layer_scale": self.residual.layer_scale,
            "late experts": self.experts is not None and self.experts.late,
            "parallel": self.residual.parallel != "no",
            "per_layer_width": self.embedding.per_layer_width,
            "branch_scale": self.residual.branch_scale != 1.0,
            "sum_factors": self.residual.sum_factors,
        }
        if contradicting := [name for name, value in of_sums.items() if value]:
            raise ValueError(f"hyper-connections do not go with {', '.join(contradicting)}")


def _check_choices(group: Group) -> None:
    """Refuse a value that is not among the choices of its field, in all groups.

    Raises:
        ValueError: names the field and the choices.
    """
    for name, hint in get_type_hints(type(group)).items():
        value = getattr(group, name)
        if isinstance(value, Group):
            _check_choices(value)
        elif get_origin(hint) is Literal and value not in get_args(hint):
            listed = ", ".join(map(repr, get_args(hint)))
            raise ValueError(f"{group.prefix}{name} is {value!r}, expected one of {listed}")
