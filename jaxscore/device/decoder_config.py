"""`DecoderConfig`: the differences between decoders, as data."""

import dataclasses
from collections.abc import Mapping
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
# Position of the norm of each half. "residual": after the residual sum; "mixed": before recurrences
# and after attention; "streams": on the streams of `HyperConnections`
NormPlace = Literal["before", "after", "both", "residual", "mixed", "streams"]
Parallel = Literal["no", "own", "shared"]
QkNormKind = Literal["", "head", "heads", "flat"]
Activation = Literal["gelu", "gelu_tanh", "relu", "relu_squared", "silu", "xielu"]
Quantized = Literal["", "float32", "bfloat16"]
RouterScores = Literal["softmax", "sigmoid", "sparsemixer"]

RECURRENT, NO_MIXER = -1, -2  # types of layers without attention
NORMS_BEFORE = ("before", "both")
NORMS_AFTER = ("after", "both")


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotation of the first channels of queries and keys by position (RoPE, arXiv 2104.09864).

    Attributes:
        frequencies: radians per position for each pair of channels; 0 does not rotate.
        factor: factor on cosine and sine (YaRN's attention factor).
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0


class Latent(NamedTuple):
    """Multi-head latent attention: keys and values are projections of one latent vector per token
    (MLA, arXiv 2405.04434, section 2.1).

    Attributes:
        rank: channels of the latent (`kv_lora_rank`).
        query_rank: channels of the queries' latent (`q_lora_rank`); 0 if there is none.
        rope_width: rotary channels of each query and of the rotary key that all heads share.
        nope_width: non-rotary channels of a head's query and key.
        value: channels of a head's value.
        norm_eps: the epsilon of the norms of both latents.
        query_factor, factor: factors on the normed input of the queries, and on the normed latent.
        gated: if True, queries are projections of their latent after and before its norm, and so
            are gates, whose sigmoids multiply attention's output per channel.
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
    """Position-dependent query scale, which sharpens attention over long texts (arXiv 2501.19399):
    `1 + share * ln(1 + floor((position + ahead) / length))`.

    Attributes:
        shares: the share of each layer; 0 leaves queries unchanged.
    """

    shares: tuple[float, ...]
    length: float
    ahead: int


class Clamped(NamedTuple):
    """Clamped SwiGLU in place of `act(gate) * up`: `(up + 1) * gate * sigmoid(slope * gate)`, with
    `gate` clipped to at most `limit` and `up` to [-limit, limit] (gpt-oss, arXiv 2508.10925)."""

    limit: float
    slope: float


class AltUp(NamedTuple):
    """Alternating updates of several residual streams, see `device.streams`.

    Attributes:
        n_streams: number of streams, at least 2.
        active: index of the stream that layers compute.
        scaled: if True, the stream that gates per-layer embeddings has a learned scale.
    """

    n_streams: int
    active: int
    scaled: bool


class HyperConnections(NamedTuple):
    """Hyper-connections of several residual streams, see `device.streams`.

    Attributes:
        n_streams: number of streams, at least 2.
        rank: rank of the projections that give the weights of the mix.
    """

    n_streams: int
    rank: int


class NgramTable(NamedTuple):
    """Embedding table of hashed n-grams of one layer, see `device.ngrams`.

    Attributes:
        multipliers: hash multipliers of a token and its ancestors, below 2^63 / vocabulary size.
        primes: number of rows of each sub-table; each order from 2 on has equally many.
        rows: number of rows of the table, at least the sum of `primes`.
    """

    multipliers: tuple[int, ...]
    primes: tuple[int, ...]
    rows: int


class Ngrams(NamedTuple):
    """Layers that begin with embeddings of hashed n-grams, see `device.ngrams`.

    Attributes:
        layers: the indices of the layers.
        tables: one table per layer, with equal numbers of multipliers and primes.
        width: channels of a token's concatenated embeddings.
        taps: kernel size of the convolution.
        separator: id of the token that n-grams do not cross.
    """

    layers: tuple[int, ...]
    tables: tuple[NgramTable, ...]
    width: int
    taps: int
    separator: int

    @property
    def reach(self) -> int:
        """The number of ancestors that n-grams and convolutions read."""
        size = len(self.tables[0].multipliers)
        return max(size - 1, (self.taps - 1) * size)


class OtherMlp(NamedTuple):
    """Layers with a dense MLP of this inner width, where the other layers have another MLP."""

    layers: tuple[int, ...]
    width: int


class OtherHeads(NamedTuple):
    """Layers whose attention has sizes that differ from the main ones.

    Attributes:
        n_kv_heads, head_width: see `Attention`.
        values_are_keys: see `Values.are_keys`.
        sinks: if True, these layers have sinks if the main ones do.
    """

    layers: tuple[int, ...]
    n_kv_heads: int
    head_width: int
    values_are_keys: bool = False
    sinks: bool = True


class ShortConvolution(NamedTuple):
    """A gated short convolution along paths: `out(c * conv(b * x))` (LFM2).

    Attributes:
        taps: kernel size, the current token included.
        bias: True if projections and convolution have a bias.
    """

    taps: int
    bias: bool


class GatedDelta(NamedTuple):
    """Gated DeltaNet: short convolutions, then the gated delta rule (arXiv 2412.06464), see
    `recurrence.rules`.

    Attributes:
        n_key_heads, n_value_heads: numbers of heads; consecutive value heads share a key head.
        key_width, value_width: channels of a head.
        taps: kernel size of the convolutions of queries, keys and values.
        activation: activation after the convolutions.
        largest_rate: upper bound of β; above 1, states may change their sign.
        norm_eps: epsilon of the output norm.
        channel_decay: if True, each channel of a key has its own decay (Kimi delta attention, arXiv
            2510.26692).
        sigmoid_gate: if True, the output gate is a sigmoid instead of SiLU.
        rank: rank of the projections of decays and gates with `channel_decay`; 0 is full rank.
        least_decay: lower bound of log decay, which is this times a sigmoid; None is unbounded.
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
    """Griffin's recurrent block (arXiv 2402.19427, section 2): convolution, then RG-LRU, and a
    gate; see `recurrence.rules`.

    Attributes:
        inner: number of channels.
        n_blocks: number of blocks of the RG-LRU's block-diagonal projections.
        taps: kernel size of the convolution.
        activation: activation of the gate.
    """

    inner: int
    n_blocks: int
    taps: int
    activation: Activation


class Lightning(NamedTuple):
    """Lightning attention (arXiv 2401.04658): linear attention with a decay per head, computed by
    `recurrence.rules.state_space` without step sizes.

    The output is normed over all heads, then multiplied by the sigmoid of a gate projection.

    Attributes:
        n_heads, head_width: number of heads, and channels of their queries, keys and values.
        activation: activation of queries, keys and values.
        norm_eps: epsilon of the output norm.
    """

    n_heads: int
    head_width: int
    activation: Activation
    norm_eps: float

    @property
    def taps(self) -> int:
        """The number of tokens that a step reads in addition to the state."""
        return 1


class StateSpace(NamedTuple):
    """The state-space layer of Mamba-2 (arXiv 2405.21060), see `recurrence.rules`.

    Attributes:
        n_heads, head_width: number of heads, and channels of a head.
        n_groups, state_width: number of head groups that share B and C, and channels of B and C.
        taps, conv_bias: kernel size of the convolutions of x, B and C; True if they have a bias.
        bias, out_bias: True if the input and output projections have a bias.
        activation: activation after the convolutions.
        least_step, most_step: bounds of a token's step size.
        norm: position of the output norm of each group: after the gate ("gated"), before the gate
            ("first"), or "" without norm.
        norm_eps: epsilon of this norm; None is the decoder's.
        factors: factors on the projected gate, x, B, C and step size.
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
        inner, state_width: number of channels, and size of each channel's state.
        rank: rank of the projection of step sizes.
        taps, conv_bias: kernel size of the convolution, and True if it has a bias.
        bias: True if the input and output projections have a bias.
        activation: activation after the convolution.
        norm: RMS norms of B, C and the low-rank step sizes, with a "scale" or "plain"; "" if there
            are none.
        norm_eps: epsilon of these norms.
        n_heads: number of heads of consecutive channels, each with its own projections of step
            sizes, B and C (arXiv 2405.16712); 0 if channels are not grouped.
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
    """Factors on the inputs and outputs of attention and a parallel recurrence (Falcon-H1)."""

    attention_in: float
    attention_out: float
    mixer_in: float
    mixer_out: float


class Recurrent(NamedTuple):
    """Layers with a recurrence, in place of attention or in parallel to it.

    Attributes:
        layers: the indices of the layers.
        mixer: the recurrence.
        beside: factors of attention and recurrence in parallel: in all layers both read the same
            normed input, and their outputs are added. None if the recurrence replaces attention.
    """

    layers: tuple[int, ...]
    mixer: ShortConvolution | GatedDelta | GatedUnit | Lightning | SelectiveScan | StateSpace
    beside: Beside | None = None

    @property
    def has_state(self) -> bool:
        """True if layers carry a state, so that tokens are computed in chunks."""
        return not isinstance(self.mixer, ShortConvolution)


class SharedBlocks(NamedTuple):
    """Blocks of attention and MLP that recurrent layers share (arXiv 2405.16712, section 2).

    A block reads the residual stream concatenated with the embedding; its MLP reads the output of
    its attention. A projection of the layer maps its output to the width of the residual stream,
    and it is added to the input of the recurrence.

    Attributes:
        layers: the layers that use a block; the n-th of them uses block n % n_blocks.
        n_blocks: number of blocks.
    """

    layers: tuple[int, ...]
    n_blocks: int


G = TypeVar("G", bound="Group")


class Group:
    """Base class of configs with nested groups of fields.

    `of` and `replace` take the fields of all groups as flat keyword arguments, each with the prefix
    of its group: `mlp_width=64` is the field `width` of the group `Mlp`.
    """

    prefix: ClassVar[str] = ""

    @classmethod
    def of(cls: type[G], **fields: Any) -> G:
        """Return a config with these fields, and defaults for the others.

        Raises:
            TypeError: a field does not exist, or a required field is missing.
        """
        return _build(cls, {}, fields)

    def replace(self: G, **fields: Any) -> G:
        """Return a copy with some fields replaced.

        Raises:
            TypeError: a field does not exist.
        """
        return _build(type(self), vars(self), fields)


def _build(config_type: type[G], values: Mapping[str, Any], fields: dict[str, Any]) -> G:
    """Build a config of these values; flat `fields` take precedence over them."""
    config = _take(config_type, values, fields)
    if fields:
        raise TypeError(f"{config_type.__name__}: no such field: {', '.join(sorted(fields))}")
    return config


def _take(config_type: type[G], values: Mapping[str, Any], fields: dict[str, Any]) -> G:
    """Remove the fields of a group from `fields`, and build the group with them."""
    values = dict(values)
    for name, hint in get_type_hints(config_type).items():
        if config_type.prefix + name in fields:
            values[name] = fields.pop(config_type.prefix + name)
        elif isinstance(hint, type) and issubclass(hint, Group):
            values[name] = _take(hint, vars(values[name]) if name in values else {}, fields)
    return config_type(**values)


@dataclasses.dataclass(frozen=True)
class Router(Group):
    """The choice of experts, and their weights.

    Attributes:
        renormalised: if True, the weights of the chosen experts are scaled to sum to one.
        scores: function of the router's logits: "softmax", "sigmoid", or "sparsemixer", which
            chooses and weighs experts one by one (arXiv 2409.12136).
        bias: True if the router has a bias.
        norm: if True, the router reads the normed residual stream, times a learned vector divided
            by the square root of the width.
        corrected: if True, a learned bias is added to the scores for the choice of experts only
            (arXiv 2408.15664).
        corrects_logits: if True, this bias is added to the logits instead.
        groups, groups_per_token: number of groups of consecutive experts, and of the best groups,
            within which experts are chosen.
        group_rank: number of best scores whose sum ranks a group.
        dropped_score: score of experts outside the best groups; None if they are never chosen.
        least_sum: lower bound of the divisor of renormalised weights.
        added_sum: number added to the divisor of renormalised weights.
        scale: factor on the weights.
        jitter: half the relative distance to the best logit within which "sparsemixer" includes
            experts in its softmax.
        expert_scale: True if the weight of each expert has a learned factor.
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
    """An MLP that runs for every token, in addition to the chosen experts.

    Attributes:
        width: inner width; 0 without shared expert.
        gated: if True, the output is multiplied by the sigmoid of a gate projection.
        scale: factor on the output.
    """

    prefix: ClassVar[str] = "shared_"
    width: int = 0
    gated: bool = True
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Experts(Group):
    """A mixture of experts: many MLPs, of which each token runs a few (arXiv 2401.04088).

    Attributes:
        count, per_token: number of experts, and of experts per token.
        bias: True if the experts' projections have a bias.
        weighs_input: if True, the weight multiplies the input of an expert instead of its output.
        separate_norms: if True, experts read the residual stream through their own norm, and the
            outputs of the experts and of the shared expert each have a norm.
        identities: number of additional identity experts (arXiv 2509.01322).
        late: if True, the output of routed experts is added at the end of the next layer, and the
            output of the shared expert in the same layer (arXiv 2509.01322); routed experts of the
            last layer are not added.
        latent_width: channels of the projection that experts read and return; 0 without.
        normed: True if the sum of experts and shared expert has a norm.
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
        kind: "head" (norm per head, all heads share one scale), "heads" (norm and scale per head),
            "flat" (one norm over all heads), or "" without norms.
        scale, bias: True if the norms have a scale, a bias.
        after_rotary: if True, norms are applied after the rotary embedding.
        layers: for each layer, True if it has these norms; empty if all layers do.
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
        factor: factor on values.
        norm: if True, the values of each head are normed, without scale.
        are_keys: if True, values are the projected keys before norm and rotary embedding.
    """

    prefix: ClassVar[str] = "value_"
    width: int = 0
    factor: float = 1.0
    norm: bool = False
    are_keys: bool = False


@dataclasses.dataclass(frozen=True)
class Scores(Group):
    """Scale and mask of attention scores.

    Attributes:
        windows: the sliding window of each layer, in tokens along the path; 0 is unlimited.
        score_scale, score_softcap, alibi: see `ScoreRule`.
        chunked: if True, positions are divided into chunks of `window`, and a token attends only
            within its chunk (chunked attention).
        sinks: if True, the softmax of each query head has an additional learned score, without a
            value (arXiv 2309.17453).
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
    """Sizes and projections of attention.

    Attributes:
        qkv_bias, out_bias: True if the projections of queries, keys and values, and of the output,
            have a bias.
        qkv_rank: rank of LoRA terms added to the projections of queries, keys and values, or 0. In
            shared blocks each layer has its own (arXiv 2411.15242, section 2.1).
        qkv_limit: queries, keys and values are clipped to [-qkv_limit, qkv_limit]; None without.
        query_gate: if True, the output is multiplied by the sigmoid of a gate projection.
        gate_per_head: if True, this gate has one value per head; otherwise one per channel.
        keys_of: for each layer the index of the layer whose keys and values it uses: itself, or an
            earlier layer of the same sizes; empty if no layers share.
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
    """Position embeddings.

    Attributes:
        rotary: rotary tables of equal length; empty without rotary embeddings.
        rotary_of: the index of each layer's table.
        long_rotary: tables that replace `rotary` for requests of more than `long_from` tokens;
            empty if `rotary` is used for all.
        interleaved: if True, rotary pairs are channels 2c and 2c + 1, otherwise c and c + half of
            them.
        learned_positions: if True, a table of `max_positions` rows is added to the embeddings.
        sinusoidal_from: offset of the positions whose sinusoidal embeddings (arXiv 1706.03762) are
            added; None without.
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
        bias: True if the projections have a bias.
        rank: rank of LoRA terms added to the input projections; 0 without. In shared blocks each
            layer has its own (arXiv 2411.15242, section 2.1).
        clamped: see `Clamped`; None without.
        factors: factors on the gate before its activation, and on the output.
        cutoffs: the statistical top-k cutoff of each layer (arXiv 2506.06644): gates become their
            excess over the mean of the token's gates plus this many standard deviations, and zero
            below it. None for a layer without cutoff; empty if no layer has one.
        other: see `OtherMlp`.
        layers: the layers that consist of an MLP only, if each layer has one half and one norm; the
            other layers consist of attention or a recurrence. None if all layers have both halves.
            Sizes of halves that no layer has are 1.
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
        eps: number added to the mean square or the variance.
        place: position of the norms of each half, see `NormPlace`.
        scale, bias: True if the norms have a scale, a bias.
        gate_rank: rank of the gates after the norms of attention and of experts, see `LowRankGate`;
            0 without gates.
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
    """The residual stream, and the sums of a layer's halves.

    Attributes:
        parallel: "no" if the MLP reads the output of attention; otherwise both halves read the
            layer's input, through their "own" norms or one "shared" norm.
        streams: see `AltUp` and `HyperConnections`; None for a single stream. With `AltUp`,
            per-layer embeddings are added to all streams but the first.
        branch_scale: factor on the output of each half.
        sum_factors: for each layer, factors on the stream and on attention's output in their sum,
            then on the stream and on the MLP's output; empty if only `branch_scale` applies.
        laurel_rank: rank of LAuReL (arXiv 2411.07501): attention adds its normed input, and the
            norm of a low-rank projection of it; 0 without.
        layer_scale: True if the output of each layer has a learned factor.
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
        scale: factor on embeddings.
        norm: True if embeddings are normed.
        width: channels of the embedding, if they differ from the decoder's: projections without
            bias convert between the two, after the embedding and before the unembedding. 0 is the
            decoder's width.
        per_layer_width: channels per layer of per-layer embeddings, see `device.feed_forward`; 0
            without.
        per_layer_rows: number of ids that have per-layer embeddings; 0 is `vocab_size`. Larger ids
            use row 0.
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
        tied: True if the unembedding is the embedding.
        bias: True if the unembedding has a bias.
        norm: True if the final hidden state is normed.
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
    """The complete definition of a decoder; hashable, for use as a static argument.

    Attributes:
        vocab_size: columns of the unembedding, padding ids included.
        width: channels of the residual stream.
        max_positions: maximum length of a path from a root.
        experts: see `Experts`; None without experts.
        recurrent: see `Recurrent`; None if all layers have attention.
        shared_blocks: see `SharedBlocks`; sizes of attention and MLP describe the blocks.
        ngrams: see `Ngrams`; requires `HyperConnections` and recurrent layers.
        quantized: the dtype of the layers' products if their weights are int8 with a scale per
            output channel; "" if weights are not quantized this way. Embedding, unembedding and
            routers are never int8.
        stored: the block-quantized weights: (path in the parameter tree, joined by `/`; form).

    Raises:
        ValueError: the value of a field is not one of its choices; the message lists them.
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
        """Return a config per attention size: the main one, then that of `other_heads` if any."""
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
        """Return the type of a layer: an index of `attention_configs`, RECURRENT or NO_MIXER."""
        recurrent, other = self.recurrent, self.attention.other_heads
        if self.shared_blocks is not None and layer in self.shared_blocks.layers:
            return 0
        if self.mlp.layers is not None and layer in self.mlp.layers:
            return NO_MIXER
        if recurrent is not None and not recurrent.beside and layer in recurrent.layers:
            return RECURRENT
        return int(other is not None and layer in other.layers)

    def has_attention(self, layer: int) -> bool:
        """Return True if a layer has attention, and so keys and values."""
        return self.kind_of(layer) >= 0

    def mlp_kinds(self) -> dict[str, tuple[int, ...]]:
        """Return the layers with the config's MLP, "main", and those of `mlp.other`, "other"."""
        layers = range(self.n_layers) if self.mlp.layers is None else self.mlp.layers
        other = () if self.mlp.other is None else self.mlp.other.layers
        return {"main": tuple(n for n in layers if n not in other), "other": other}

    @property
    def mlps_by_kind(self) -> bool:
        """True if the parameters of MLPs are stacked per type, outside `layers`."""
        return self.mlp.other is not None or self.mlp.layers is not None

    def only(self, layer: int) -> "DecoderConfig":
        """Return the config of a decoder with only this layer, which shares no keys and values."""
        layer_type = self.kind_of(layer)
        config = self.attention_configs()[max(layer_type, 0)]
        if self.recurrent is not None:
            is_recurrent = layer in self.recurrent.layers
            config = config.replace(
                recurrent=self.recurrent._replace(layers=(0,)) if is_recurrent else None
            )
            if self.norm.place == "mixed":
                config = config.replace(norm_place="before" if layer_type == RECURRENT else "after")
        if self.shared_blocks is not None:
            blocks = None if layer_type == RECURRENT else SharedBlocks((0,), 1)
            config = config.replace(shared_blocks=blocks)
        if self.attention.other_heads is not None:
            # Rotary tables are padded to the largest head width.
            pairs = config.attention.head_width // 2
            tables = (Rotary(t.frequencies[:pairs], t.factor) for t in self.positions.rotary)
            config = config.replace(rotary=tuple(tables))
        if (other := self.mlp.other) is not None and layer in other.layers:
            config = config.replace(experts=None, mlp_width=other.width)
        elif config.experts is not None and config.experts.late:
            # A late mixture needs a next layer.
            config = config.replace(experts=config.experts.replace(late=False))
        if (ngrams := self.ngrams) is not None:
            table_of = dict(zip(ngrams.layers, ngrams.tables, strict=True))
            tables_here = (table_of[layer],) if layer in table_of else ()
            config = config.replace(
                ngrams=ngrams._replace(layers=(0,), tables=tables_here) if tables_here else None
            )
        if self.mlp.layers is not None:
            config = config.replace(mlp_layers=(0,) if layer_type == NO_MIXER else ())
        if (growth := self.attention.scores.query_growth) is not None:
            growth = growth._replace(shares=growth.shares[layer : layer + 1])
        return config.replace(
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
        norm_place, streams = self.norm.place, self.residual.streams
        if self.mlp.layers is not None and norm_place != "before":
            raise ValueError(f"norm_place is {norm_place!r}, expected 'before'")
        if (norm_place == "streams") != isinstance(streams, HyperConnections):
            raise ValueError(f"norm_place is {norm_place!r} and streams {streams}")
        if norm_place == "streams":
            self._check_hyper_connections()
        if self.ngrams is not None and (self.recurrent is None or norm_place != "streams"):
            raise ValueError("ngrams require recurrent layers and hyper-connections")

    def _check_hyper_connections(self) -> None:
        """Refuse features that apply to the sums of a single residual stream."""
        unsupported = {
            "layer_scale": self.residual.layer_scale,
            "late experts": self.experts is not None and self.experts.late,
            "parallel": self.residual.parallel != "no",
            "per_layer_width": self.embedding.per_layer_width,
            "branch_scale": self.residual.branch_scale != 1.0,
            "sum_factors": self.residual.sum_factors,
        }
        if names := [name for name, value in unsupported.items() if value]:
            raise ValueError(f"hyper-connections cannot be combined with {', '.join(names)}")


def _check_choices(group: Group) -> None:
    """Check that the fields of all groups have one of their choices as value.

    Raises:
        ValueError: a value is not one of the choices; the message lists them.
    """
    for name, hint in get_type_hints(type(group)).items():
        value = getattr(group, name)
        if isinstance(value, Group):
            _check_choices(value)
        elif get_origin(hint) is Literal and value not in get_args(hint):
            listed = ", ".join(map(repr, get_args(hint)))
            raise ValueError(f"{group.prefix}{name} is {value!r}, expected one of {listed}")
