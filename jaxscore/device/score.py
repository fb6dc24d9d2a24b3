"""The one function that is compiled: rows in, scores out."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float, Int

from jaxscore.device.rows import Rows, Scores, Unembedding
from jaxscore.device.unembed import score_queries

HiddenStates = Callable[
    [Any, Int[Array, "R L"], Int[Array, "R L"], Int[Array, "R L"]], Float[Array, "R L D"]
]


def score_rows(
    hidden_states: HiddenStates,
    unembedding: Callable[[Any], Unembedding],
    params: Any,
    rows: Rows,
) -> Scores:
    """Scores of a batch's queries under the model that the two functions describe."""
    hidden = hidden_states(params, rows.ids, rows.position, rows.subtree_end)
    flat = hidden.reshape(-1, hidden.shape[-1])
    return score_queries(flat, rows.query, rows.target, rows.n_queries, unembedding(params))
