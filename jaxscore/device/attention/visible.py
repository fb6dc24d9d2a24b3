"""The interval mask, written out for arrays that broadcast with each other."""


def visible(i, j, subtree_end_j, position_i, position_j, window):
    """Whether token i sees token j; `window` as of `attention`."""
    seen = (j <= i) & (i < subtree_end_j)
    if window is None:
        return seen
    return seen & ((window == 0) | (position_i - position_j < window))
