"""What the host sends to the device for one batch, and what comes back."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int, Num

from jaxscore.device.forms import FORMS, Forms


class Rows(NamedTuple):
    """A batch of packed tries. `plan.row_batches.RowBatch` is its host side.

    `position` is a token's depth in its trie. Token i of a row sees token j of the same row
    if and only if `j <= i < subtree_end[j]`. `query` indexes the flattened [R * L] tokens;
    only the first `n_queries` are computed. `target` names the tokens whose log-probability
    after the query is wanted; padding slots hold 0 and are never read.
    """

    ids: Int[Array, "R L"]
    position: Int[Array, "R L"]
    subtree_end: Int[Array, "R L"]
    query: Int[Array, " Q"]
    target: Int[Array, "Q T"]
    n_queries: Int[Array, ""]


class Scores(NamedTuple):
    """Vocabulary terms of every query, float32 nats. Slots past `n_queries` mean nothing."""

    logprob: Float[Array, "Q T"]
    greedy: Bool[Array, "Q T"]
    entropy: Float[Array, " Q"]
    self_certainty: Float[Array, " Q"]
    greedy_id: Int[Array, " Q"]


class Unembedding(NamedTuple):
    """From a hidden state to logits: `softcap * tanh(scale * (h @ weight.T + bias) / softcap)`.

    With `split`, the name of a mesh axis, each shard has some of the rows, in order. `forms` is
    the platform's.
    """

    weight: Num[Array, "V D"]  # as stored, see `dots.as_integers`
    bias: Float[Array, " V"] | None
    scale: float
    softcap: float | None
    split: str | None = None
    forms: Forms = FORMS["cpu"]
