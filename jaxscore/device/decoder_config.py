"""What differs between decoders, as data: `DecoderConfig`."""

import dataclasses
from typing import Literal, NamedTuple, get_args, get_origin, get_type_hints

from jaxscore.device.attention.score_rule import Alibi
from jaxscore.device.dots import Form

NormKind = Literal["rms", "layer"]
# Of each half; "residual": after the sum, "mixed": before in recurrent layers, after in the others,
# "streams": of the streams of `HyperConnections`
NormPlace = Literal["before", "after", "both", "residual", "mixed", "streams"]
Parallel = Literal["no", "own", "shared"]
QkNorm = Literal["", "head", "heads", "flat"]
Activation = Literal["gelu", "gelu_tanh", "relu", "relu_squared", "silu", "xielu"]
Quantized = Literal["", "float32", "bfloat16"]
RouterScores = Literal["softmax", "sigmoid", "sparsemixer"]

RECURRENT, NO_MIXER = -1, -2  # kinds of layers without attention
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


class Latent(NamedTuple):
    """Attention whose keys and values are projections of one short vector per token (MLA,
    arXiv 2405.04434, section 2.1).

    Attributes:
        rank: channels of that vector.
        query_rank: of a vector that all heads' queries are projections of; 0 is none.
        turned: rotary channels of each query and of the one rotary key of all heads.
        unturned: the other channels of a head's query and key.
        value: channels of a head's value.
        norm_eps: of the norms of both vectors.
        query_factor, factor: on the queries, and on that vector after its norm.
        gated: queries are products of their vector after and before its norm, and so are gates,
            whose sigmoids multiply the mixed values.
    """

    rank: int
    query_rank: int
    turned: int
    unturned: int
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


@dataclasses.dataclass(frozen=True)
class Experts:
    """An MLP in many copies, of which each token runs a few (arXiv 2401.04088).

    Attributes:
        count, per_token: how many experts, and how many of them a token runs.
        renormalised: the weights of those are scaled to sum to one.
        shared_width: of an MLP that every token runs beside them; 0 is none.
        shared_gated: it is weighed by a sigmoid of its own.
        shared_scale: factor on it.
        scores: what the router's outputs become: "softmax", "sigmoid", or "sparsemixer", which
            chooses and weighs one expert after the other (arXiv 2409.12136).
        corrected: a learned bias is added to the scores for the choice alone (arXiv 2408.15664).
        corrects_logits: it is added to the router's outputs instead.
        groups, groups_per_token: experts are chosen within the best groups of neighbours.
        group_rank: scores of a group, summed, by which groups are ranked.
        dropped_score: of experts in other groups; None if they are never chosen.
        least_sum: by which weights are divided at least, where they are renormalised.
        added_sum: added to what weights are divided by, where they are renormalised.
        scale: factor on the weights.
        weighs_input: the weight multiplies what an expert reads instead of what it gives.
        router_bias, bias: the router's and the experts' products add a bias.
        jitter: half the relative distance below the best within which "sparsemixer" weighs.
        beside: experts stand beside the shared MLP with norms of their own: one before the experts,
            which read the residual stream, and one after each of the two.
        router_norm: the router reads the residual stream, normed and scaled by a vector of its
            own over the root of the width.
        expert_scale: each expert's weight has a learned factor.
        identities: further experts, which give what they read (arXiv 2509.01322).
        late: what the routed experts give is added at the end of the next layer, and the shared
            MLP's output in their own (arXiv 2509.01322); the last layer has none.
        latent_width: experts read and give a projection of so many channels; 0 is none.
        normed: the sum of experts and shared MLP has a norm.
    """

    count: int
    per_token: int
    renormalised: bool
    shared_width: int = 0
    shared_gated: bool = True
    shared_scale: float = 1.0
    scores: RouterScores = "softmax"
    corrected: bool = False
    corrects_logits: bool = False
    groups: int = 1
    groups_per_token: int = 1
    group_rank: int = 1
    dropped_score: float | None = None
    least_sum: float = 0.0
    added_sum: float = 0.0
    scale: float = 1.0
    weighs_input: bool = False
    router_bias: bool = False
    bias: bool = False
    jitter: float = 0.0
    beside: bool = False
    router_norm: bool = False
    expert_scale: bool = False
    identities: int = 0
    late: bool = False
    latent_width: int = 0
    normed: bool = False


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Everything that decides the function, hashable, so that it can be a static argument.

    Attributes:
        vocab_size: columns of the unembedding, padded ids included.
        mlp_width: inner width of the MLP, or of one expert.
        max_positions: longest path from a root that the model was made for.
        windows: for each layer how far along the path a token sees; 0 is everything.
        chunked: a window is a stretch of positions instead: a token sees those of its own
            stretch, which begin at multiples of the window.
        norm: "rms" or "layer", with a scale where `norm_scale` and a bias where `norm_bias`;
            `norm_eps` is added to the mean square or the variance.
        norm_place: where each half has its norms.
        norm_gate_rank: what the norms before attention and before experts give is gated, see
            `LowRankGate`; 0 is not.
        parallel: "no", or attention and MLP both read what the layer was given, through norms of
            their "own" or one "shared".
        qk_norm: queries and keys are normed: in each "head" by one scale, by scales for each of
            the "heads", or over all heads together, "flat"; "" is not. Without a scale where
            `qk_norm_scale` is false; after they are turned where `qk_norm_turned`; in some layers
            alone where `qk_norm_of` has an entry for each.
        value_norm: the values of each head are normed without scale.
        value_width, value_scale: channels of a head's value, 0 is `head_width`, of which it is at
            most; and a factor on values.
        other_heads, values_are_keys: see `OtherHeads`; the second is of all layers.
        recurrent: see `Recurrent`; None if all layers have attention.
        shared_blocks: see `SharedBlocks`; sizes of attention and MLP describe the blocks.
        qkv_rank, mlp_rank: products of this rank are added to those of queries, keys and values,
            and to those inward of an MLP; 0 is none. In shared blocks each layer has its own
            (arXiv 2411.15242, section 2.1).
        query_gate: attention's output is multiplied by the sigmoid of a further product, of the
            size of the queries, or with one number for each head where `gate_per_head`.
        keys_of: for each layer the one whose keys and values it uses, itself or an earlier one of
            the same sizes; empty where each has its own.
        qkv_limit: queries, keys and values are at most so far from zero.
        query_growth, latent: see `QueryGrowth` and `Latent`. With the second `n_kv_heads` is 1 and
            `head_width` what its products have: `rank + turned`.
        sinks: a learned score for each query head stands beside those of the tokens that it
            sees, and has no value (arXiv 2309.17453).
        gated: the MLP is `down(act(gate(x)) * up(x))`, else `down(act(up(x)))`; another gate where
            `clamped`, see there.
        mlp_factors: on the gate before its activation, and on what the MLP adds.
        mlp_cutoffs: for each layer the number of standard deviations above the mean of a token's
            gates, below which they are zero, and from which they are counted (arXiv 2506.06644);
            None is no cutoff. Empty if no layer has one.
        other_mlp: see `OtherMlp`.
        mlp_layers: layers that are an MLP alone, where each layer has one half and one norm: the
            others are attention or a recurrence alone. None if all layers have both halves. Sizes
            of halves that no layer has are 1.
        rotary: tables, as long as each other; empty where nothing turns.
        rotary_of: for each layer the index of its table.
        long_rotary: tables instead of `rotary` for requests of which more than `long_from` tokens
            are read; empty where those have the same.
        interleaved: rotary pairs are channels 2c and 2c + 1, else c and c + half of them.
        learned_positions: a table of `max_positions` is added to the embeddings.
        sinusoidal_from: what is added to them instead is the sines, then the cosines of a position
            (arXiv 1706.03762), which are counted from here; None is nothing.
        attention_scale, attention_softcap, alibi: see `ScoreRule`.
        qkv_bias, out_bias, mlp_bias, head_bias: which products add a bias.
        tied: the unembedding is the embedding.
        embedding_width: of the embedding where it is not `width`; products without bias lead
            from one to the other, and back before the unembedding. 0 is `width`.
        per_layer_width: a second embedding has so many channels for each layer, joined with a
            projection of the first one; they gate what a third part of each layer adds. 0 is none.
        per_layer_rows: ids of the second embedding, 0 is `vocab_size`; others have its first row.
        streams: see `AltUp` and `HyperConnections`; of the first, per-layer embeddings are added
            to all streams but one.
        ngrams: see `Ngrams`; with `HyperConnections` and recurrent layers alone.
        laurel_rank: attention adds its normed input, and the norm of a product of it of this rank
            (LAuReL, arXiv 2411.07501); 0 is none.
        layer_scale: each layer's output has a learned factor.
        embedding_scale, residual_scale: factors on embeddings, and on what a layer's halves add.
        sum_factors: for each layer what the stream and attention's output, then the stream and the
            MLP's output are multiplied by where they are added; empty is `residual_scale` alone.
        embedding_norm, final_norm: norms after the embedding and before the unembedding.
        logit_scale, logit_softcap: see `Unembedding`.
        quantized: the type of the layers' products where their weights are int8 with a scale for
            each output channel; "" where they are as stored. Embedding, unembedding and the
            choice of experts never are.
        stored: weights that are held in blocks, by the path in the tree, its keys joined by `/`.

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
    norm_gate_rank: int = 0
    parallel: Parallel = "no"
    qk_norm: QkNorm = ""
    norm_scale: bool = True
    qk_norm_bias: bool = False
    qk_norm_scale: bool = True
    qk_norm_turned: bool = False
    qk_norm_of: tuple[bool, ...] = ()
    value_norm: bool = False
    value_width: int = 0
    value_scale: float = 1.0
    values_are_keys: bool = False
    other_heads: OtherHeads | None = None
    recurrent: Recurrent | None = None
    shared_blocks: SharedBlocks | None = None
    qkv_rank: int = 0
    mlp_rank: int = 0
    query_gate: bool = False
    gate_per_head: bool = False
    keys_of: tuple[int, ...] = ()
    qkv_limit: float | None = None
    query_growth: QueryGrowth | None = None
    latent: Latent | None = None
    sinks: bool = False
    chunked: bool = False
    clamped: Clamped | None = None
    mlp_factors: tuple[float, float] = (1.0, 1.0)
    mlp_cutoffs: tuple[float | None, ...] = ()
    other_mlp: OtherMlp | None = None
    mlp_layers: tuple[int, ...] | None = None
    rotary: tuple[Rotary, ...] = ()
    rotary_of: tuple[int, ...] = ()
    long_rotary: tuple[Rotary, ...] = ()
    long_from: int = 0
    interleaved: bool = False
    learned_positions: bool = False
    sinusoidal_from: int | None = None
    attention_softcap: float | None = None
    alibi: Alibi | None = None
    experts: Experts | None = None
    head_bias: bool = False
    embedding_width: int = 0
    per_layer_width: int = 0
    per_layer_rows: int = 0
    streams: AltUp | HyperConnections | None = None
    ngrams: Ngrams | None = None
    laurel_rank: int = 0
    layer_scale: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    sum_factors: tuple[tuple[float, float, float, float], ...] = ()
    embedding_norm: bool = False
    final_norm: bool = True
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    quantized: Quantized = ""
    stored: tuple[tuple[str, Form], ...] = ()

    def kinds(self) -> tuple["DecoderConfig", ...]:
        """Configs of the attention of some layers: the main one, and the one of `other_heads`."""
        if (other := self.other_heads) is None:
            return (self,)
        main = dataclasses.replace(self, other_heads=None)
        return main, dataclasses.replace(
            main,
            n_kv_heads=other.n_kv_heads,
            head_width=other.head_width,
            values_are_keys=other.values_are_keys,
            sinks=main.sinks and other.sinks,
        )

    def kind_of(self, layer: int) -> int:
        """Index of the kind of a layer in `kinds`; RECURRENT or NO_MIXER if it has no attention."""
        recurrent = self.recurrent
        if self.shared_blocks is not None and layer in self.shared_blocks.layers:
            return 0
        if self.mlp_layers is not None and layer in self.mlp_layers:
            return NO_MIXER
        if recurrent is not None and not recurrent.beside and layer in recurrent.layers:
            return RECURRENT
        return int(self.other_heads is not None and layer in self.other_heads.layers)

    def has_attention(self, layer: int) -> bool:
        """Whether a layer has attention, and with it keys and values."""
        return self.kind_of(layer) >= 0

    def mlp_kinds(self) -> dict[str, tuple[int, ...]]:
        """Layers whose MLP is the config's own, "main", and of `other_mlp`, "other"."""
        layers = range(self.n_layers) if self.mlp_layers is None else self.mlp_layers
        other = () if self.other_mlp is None else self.other_mlp.layers
        return {"main": tuple(n for n in layers if n not in other), "other": other}

    @property
    def mlps_by_kind(self) -> bool:
        """Whether the parameters of MLPs are stacked per kind, outside `layers`."""
        return self.other_mlp is not None or self.mlp_layers is not None

    def only(self, layer: int) -> "DecoderConfig":
        """A decoder of this one layer, with keys and values of its own."""
        kind = self.kind_of(layer)
        here = self.kinds()[max(kind, 0)]
        if self.recurrent is not None:
            is_recurrent = layer in self.recurrent.layers
            recurrent = self.recurrent._replace(layers=(0,)) if is_recurrent else None
            here = dataclasses.replace(here, recurrent=recurrent)
            if self.norm_place == "mixed":
                place: NormPlace = "before" if kind == RECURRENT else "after"
                here = dataclasses.replace(here, norm_place=place)
        if self.shared_blocks is not None:
            uses = None if kind == RECURRENT else SharedBlocks((0,), 1)
            here = dataclasses.replace(here, shared_blocks=uses)
        if self.other_heads is not None:  # whose tables are filled up to the widest heads'
            pairs = here.head_width // 2
            tables = (Rotary(one.frequencies[:pairs], one.factor) for one in self.rotary)
            here = dataclasses.replace(here, rotary=tuple(tables))
        if (other := self.other_mlp) is not None and layer in other.layers:
            here = dataclasses.replace(here, experts=None, mlp_width=other.width)
        elif here.experts is not None and here.experts.late:  # there is no next layer
            experts = dataclasses.replace(here.experts, late=False)
            here = dataclasses.replace(here, experts=experts)
        if (ngrams := self.ngrams) is not None:
            table_of = dict(zip(ngrams.layers, ngrams.tables, strict=True))
            mine = (table_of[layer],) if layer in table_of else ()
            only = ngrams._replace(layers=(0,), tables=mine) if mine else None
            here = dataclasses.replace(here, ngrams=only)
        if self.mlp_layers is not None:
            here = dataclasses.replace(here, mlp_layers=(0,) if kind == NO_MIXER else ())
        if (growth := self.query_growth) is not None:
            growth = growth._replace(shares=growth.shares[layer : layer + 1])
        return dataclasses.replace(
            here,
            n_layers=1,
            windows=self.windows[layer : layer + 1],
            rotary_of=self.rotary_of[layer : layer + 1],
            qk_norm_of=self.qk_norm_of[layer : layer + 1],
            sum_factors=self.sum_factors[layer : layer + 1],
            mlp_cutoffs=self.mlp_cutoffs[layer : layer + 1],
            query_growth=growth,
            keys_of=(),
            other_mlp=None,
        )

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                listed = ", ".join(map(repr, choices))
                raise ValueError(f"{name} is {value!r}, expected one of {listed}")
        if self.mlp_layers is not None and self.norm_place != "before":
            raise ValueError(f"norm_place is {self.norm_place!r}, expected 'before'")
        if (self.norm_place == "streams") != isinstance(self.streams, HyperConnections):
            raise ValueError(f"norm_place is {self.norm_place!r} and streams {self.streams}")
        if self.norm_place == "streams":
            self._check_hyper_connections()
        if self.ngrams is not None and (self.recurrent is None or self.norm_place != "streams"):
            raise ValueError("ngrams need recurrent layers and hyper-connections")

    def _check_hyper_connections(self) -> None:
        """Refuse what is done to the sums of a single residual stream."""
        of_sums = {
            "layer_scale": self.layer_scale,
            "late experts": self.experts is not None and self.experts.late,
            "parallel": self.parallel != "no",
            "per_layer_width": self.per_layer_width,
            "residual_scale": self.residual_scale != 1.0,
            "sum_factors": self.sum_factors,
        }
        if given := [name for name, value in of_sums.items() if value]:
            raise ValueError(f"hyper-connections do not go with {', '.join(given)}")


CHOICES = {
    name: get_args(kind)
    for name, kind in get_type_hints(DecoderConfig).items()
    if get_origin(kind) is Literal
}
