"""A text that is longer than a model reads, in windows that score each of its tokens once.

    max_length 4, stride 2        index   0 1 2 3 4 5 6 7 8
    window 1 reads and scores             r s s s s           r is read, s is scored; the last
    window 2                                  r r r s s       token of a window is scored and
    window 3                                      r r r s s   not read

With a stride of max_length the windows are disjoint but for one token, and the last one reads as
much as it can: the windows of lm-evaluation-harness' `loglikelihood_rolling`. A smaller stride
gives every token more context and costs as many times more.
"""

import numpy as np

from jaxscore.plan.token_requests import TokenSequence


def windows(ids: np.ndarray, first: int, max_length: int, stride: int) -> list[TokenSequence]:
    """The windows of one text, in order.

    Args:
        ids: int32 [n], what stands before the text included.
        first: index of the first token that is scored, at least 1.
        max_length: tokens that a window reads at most.
        stride: tokens that a window scores at most, from 1 to `max_length`. The first window
            scores up to `max_length`.
    """
    out = []
    at, n_scored = first, max_length - first + 1
    while at < len(ids):
        end = min(len(ids), at + n_scored)
        begin = max(0, end - 1 - max_length)
        out.append(TokenSequence(ids[begin:end], at - begin))
        at, n_scored = end, stride
    return out
