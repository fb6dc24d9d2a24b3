"""Random token sequences that share prefixes, for the property tests of planning."""

import numpy as np
from hypothesis import strategies as st

from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.tries import Forest


@st.composite
def sequence_lists(draw, *, longest: int = 12, alphabet: int = 3, most: int = 12):
    """Sequences over ids from 1, so that the 0 of padding is never one of them.

    A small alphabet shares by chance; some sequences also begin with an earlier one's prefix,
    some are an earlier one again, some ask for choices after their last token, and some for tokens
    with gaps between them.
    """
    out: list[TokenSequence] = []
    for _ in range(draw(st.integers(0, most))):
        own = draw(st.lists(st.integers(1, alphabet), max_size=longest))
        if out and draw(st.booleans()):
            earlier = draw(st.sampled_from(out)).ids.tolist()
            own = (earlier[: draw(st.integers(0, len(earlier)))] + own)[:longest]
        if own and draw(st.booleans()):
            choices = draw(st.lists(st.integers(1, alphabet + 1), min_size=1, unique=True))
            out.append(TokenSequence(np.array(own, np.int32), len(own), np.array(choices)))
        elif own and draw(st.booleans()):
            scored = draw(st.sets(st.integers(0, len(own) - 1), min_size=1))
            out.append(TokenSequence.at(np.array(own, np.int32), np.array(sorted(scored))))
        else:
            out.append(sequence(own, draw(st.integers(0, len(own)))))
    return out


def sequence(ids: list[int], start: int = 0) -> TokenSequence:
    return TokenSequence(np.array(ids, np.int32), start)


def laid_out(sequences: list[TokenSequence]) -> list[tuple[int, ...]]:
    """What of each sequence becomes nodes: all before what is scored last, if anything is."""
    return [
        tuple(s.ids[: len(s.ids) if len(s.choices) else -1].tolist())
        for s in sequences
        if s.n_scored
    ]


def asked_for(sequences: list[TokenSequence]) -> list[tuple[tuple[int, ...], int]]:
    """(prefix, target) of each scored token, one sequence after the other."""
    out = []
    for s in sequences:
        ids, choices = tuple(s.ids.tolist()), s.choices.tolist()
        if choices:
            out += [(ids, choice) for choice in choices]
        else:
            scored = range(s.start, len(ids)) if s.positions is None else s.positions.tolist()
            out += [(ids[:k], ids[k]) for k in scored if k]
    return out


def paths(forest: Forest) -> list[tuple[int, ...]]:
    """Of each node the ids that it sees by the rule, itself last."""
    ids, ends = forest.ids.tolist(), forest.subtree_end.tolist()
    return [tuple(ids[j] for j in range(i + 1) if i < ends[j]) for i in range(len(ids))]
