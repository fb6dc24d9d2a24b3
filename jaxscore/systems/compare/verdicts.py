"""What two runs' difference shows, in one line."""

from jaxscore.systems.compare.statistics import LEVEL, Difference


def verdict(one: Difference, n_tests: int) -> str:
    """A line that claims no more than the interval and the corrected p say.

    Args:
        n_tests: over which p is corrected.
    """
    what = f"n = {one.n} pairs"
    if one.n_groups is not None:
        what = f"n = {one.n} values in {one.n_groups} groups"
    if one.difference is None or one.difference.mean is None or one.p_holm is None:
        return f"{one.title}: too few to compare, {what}"
    found = one.difference.mean
    span = "95% interval -"
    if one.difference.low is not None and one.difference.high is not None:
        span = f"95% interval {one.difference.low:.4g} to {one.difference.high:.4g}"
    if one.mean_a == one.mean_b and one.p == 1.0 and not found:
        return f"{one.title}: no difference shown, the means are equal ({span}), {what}"
    corrected = f" after Holm over {n_tests} tests" if n_tests > 1 else ""
    sure = f"{span}, p = {one.p_holm:.2g}{corrected}"
    if one.p_holm >= LEVEL:
        few = ""
        if one.smallest_p is not None and one.smallest_p >= LEVEL:
            few = f"; so few could give no p below {one.smallest_p:.2g}"
        return f"{one.title}: no difference shown, B - A = {found:.4g} ({sure}), {what}{few}"
    side = "higher" if found > 0 else "lower"
    return f"{one.title}: B is {side} by {abs(found):.4g} ({sure}), {what}"
