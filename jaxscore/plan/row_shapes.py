"""The few shapes of rows and batches, and what a token costs in a row of each length."""

SHORTEST_ROW = 64  # tokens
TAIL = 8  # the last rows of a length go in batches of an eighth
SMALL_BATCH_COST = 1.1  # of a token in such a batch, against one in a whole batch


def row_lengths(max_positions: int) -> list[int]:
    """Powers of two and the lengths half-way between, up to one that holds the longest path.

    Tries of like size, as one question with its answers makes them, pad a row by up to half
    with powers of two alone, and by up to a third so.
    """
    lengths = [SHORTEST_ROW]
    while lengths[-1] < max_positions:
        is_power = len(lengths) % 2
        lengths.append(lengths[-1] * 3 // 2 if is_power else lengths[-1] * 4 // 3)
    return lengths


def batch_rows(n_rows: int, length: int, batch_tokens: int, tail: int = TAIL) -> list[int]:
    """Rows of each batch: whole budgets, then `tail`-ths of one where they pad less.

    Two shapes for each row length, so that a run compiles few programs and a single short request
    does not pay for a whole budget. A tail of 1 makes one shape.
    """
    full = max(1, batch_tokens // length)
    small = max(1, full // tail)
    batches = [full] * (n_rows // full)
    last = [small] * -(-(n_rows % full) // small)
    return batches + (last if sum(last) * SMALL_BATCH_COST <= full else [full])


def attention_cost(n: int, width: int) -> float:
    """What a token costs that attends in a row of n, in tokens of linear work.

    Attention adds about n / (6 width) (`design.md`).
    """
    return 1 + n / (6 * width)
