"""A model pair: two models as one, which scores the same tokens with both.

Its parameters are {"p": ..., "q": ...}, so the code that plans, sends and places the batches of
one model does so for two.
"""

import dataclasses
from typing import Any

from jaxscore.device.lm_head import divergence
from jaxscore.errors import InputError
from jaxscore.models.model import Model


def paired(p: Model, q: Model) -> Model:
    """Model with the scores of `p` and measures of both.

    Its other facts are those of `p` unless both decide. It has no KV cache, so it has no prefix
    cache and generates no text.

    Raises:
        InputError: the two cannot be compared.
    """
    if p.vocab_size != q.vocab_size:
        raise InputError(
            f"--reference has {q.vocab_size} columns of logits and --model {p.vocab_size}; a "
            "divergence compares probabilities of the same tokens, so give two models with as many"
        )
    if p.mesh is not None and p.mesh.shape.model > 1 and p.implementation != q.implementation:
        raise InputError(
            f"--mesh {p.mesh.shape} splits the vocabulary of our decoder and not that of "
            "transformers' class; give both models the same --model-impl, or model=1"
        )
    return dataclasses.replace(_together(p, q), longer=_longer(p, q))


def _together(p: Model, q: Model) -> Model:
    """The pair without its model for long requests."""

    def hidden_states(params: Any, *rows: Any, **paths: Any) -> Any:
        return tuple(
            model.hidden_states(params[name], *rows, **(paths if model.paths else {}))
            for name, model in (("p", p), ("q", q))
        )

    def unembedding(params: Any) -> divergence.Pair:
        return divergence.Pair(p.unembedding(params["p"]), q.unembedding(params["q"]))

    shorter = min(p, q, key=lambda model: model.max_positions)
    return dataclasses.replace(
        p,
        hidden_states=hidden_states,
        unembedding=unembedding,
        cached=None,
        write=None,
        params={"p": p.params, "q": q.params},
        replace_params=None,
        max_positions=shorter.max_positions,
        limit_reason=shorter.limit_reason,
        width=max(p.width, q.width),
        shares_text=p.shares_text and q.shares_text,
        longer=None,
        placeholders={**q.placeholders, **p.placeholders},
        measures=divergence.MEASURES,
        paths=max((needs for needs in (p.paths, q.paths) if needs is not None), default=None),
    )


def _longer(p: Model, q: Model) -> tuple[int, Model] | None:
    """The model for long requests, which have other rotary frequencies.

    Raises:
        InputError: both have one, beyond different lengths.
    """
    lengths = {model.longer[0] for model in (p, q) if model.longer is not None}
    if not lengths:
        return None
    if len(lengths) > 1:
        first, second = sorted(lengths)
        raise InputError(
            f"the rotary frequencies of the two models change after {first} and after {second} "
            "tokens; a divergence takes models that change at one length"
        )
    long_p, long_q = (model if model.longer is None else model.longer[1] for model in (p, q))
    return lengths.pop(), _together(long_p, long_q)
