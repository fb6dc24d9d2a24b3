"""What is legal between two runs and still worth telling."""

from collections.abc import Sequence
from typing import Any

from jaxscore.io.printable import one_line
from jaxscore.systems.compare.matching import Matched
from jaxscore.systems.compare.reading import Opened
from jaxscore.systems.compare.run import UNKNOWN, Run
from jaxscore.systems.compare.unit import System

SHOWN = 5  # names of items in a remark


def counted_otherwise(system: System, differences: Sequence[dict[str, Any]]) -> str | None:
    """The settings that decide what is counted and differ between the runs; None without any."""
    told = [
        f"{one['setting']} ({one['a']} and {one['b']})"
        for one in differences
        if one["setting"] in system.fixed
    ]
    if not told:
        return None
    return f"the runs differ in {', '.join(told)}, so their numbers do not count the same"


def remarks(
    system: System,
    opened: tuple[Opened, Opened],
    runs: tuple[Run, Run],
    matched: Matched,
    by: str,
) -> list[str]:
    """Remarks on runs A and B.

    Args:
        by: what matches their units, as in the report: "text", "input" or "id".
    """
    a, b = runs
    out = [
        f"no manifest lies beside {name}, so its settings are not known"
        for name, one in zip("AB", opened, strict=True)
        if not one.facts
    ]
    if by == "id":
        out.append(
            f"the {system.what} are matched by id alone: their texts are neither in the results "
            "nor in input files that the manifests name and that are unchanged"
        )
    out += [
        f"{what} {_counted(names, system.what)}; they are left out"
        for what, names in (
            ("A alone has", matched.only_a),
            ("B alone has", matched.only_b),
            ("the runs have the same ids and other texts of", matched.other_text),
        )
        if names
    ]
    if matched.n_repeated:
        out.append(
            f"{matched.n_repeated} {system.what} of A have the id and text of an earlier one; "
            "these are paired in order"
        )
    one, other = a.n_tokens[matched.a], b.n_tokens[matched.b]
    if n := int(((one != other) & (one != UNKNOWN) & (other != UNKNOWN)).sum()):
        out.append(
            f"the runs score different numbers of tokens in {n} of {len(one)} pairs, as with two "
            "tokenizers: their means per token are not over the same tokens"
        )
    pairs = zip(matched.a.tolist(), matched.b.tolist(), strict=True)
    if n := sum(a.answers[i] != b.answers[j] for i, j in pairs):
        out.append(f"the responses differ in {n} of {len(one)} pairs")
    for name, mine, others in (("A", a, b), ("B", b, a)):
        known = {*others.numbers, *others.choices}
        alone = [one_line(one) for one in (*mine.numbers, *mine.choices) if one not in known]
        if alone:
            out.append(f"{name} alone has the numbers or decisions {', '.join(alone)}")
    return out


def _counted(names: Sequence[str], what: str) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:SHOWN])}{more}"
