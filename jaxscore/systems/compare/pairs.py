"""Pairs of the units of two runs: by id, and by the requested text."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxscore.errors import InputError, one_line
from jaxscore.io.json_output import Lazy
from jaxscore.systems.compare.columns import Run
from jaxscore.systems.compare.open_run import OpenRun, have_same_input

SAME_TEXT, SAME_INPUT, SAME_TOKENS, SAME_ID = "text", "input", "tokens", "id"  # rules of pairs


@dataclasses.dataclass(frozen=True)
class Matched:
    """Pairs of units, and the units without a pair.

    Attributes:
        a, b: the indices of the units of each pair, in A's order; both have numbers.
        only_a, only_b: the names of units whose id is missing, or less frequent, in the other run.
        other_text: the names of units whose id has another text in the other run.
        n_failed_pairs: the number of pairs with a unit that was not scored.
        n_repeated: the number of A's units with the id and text of an earlier one, paired in order.
    """

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    only_a: list[str]
    only_b: list[str]
    other_text: list[str]
    n_failed_pairs: int
    n_repeated: int


@dataclasses.dataclass(frozen=True)
class Pairing:
    """Two loaded runs and their pairs.

    Attributes:
        opened: the files of A and B.
        matched_by: the rule that pairs units, see `columns`.
    """

    opened: tuple[OpenRun, OpenRun]
    a: Run
    b: Run
    matched: Matched
    matched_by: str

    @property
    def title(self) -> str:
        return self.opened[0].reader.title


def check_system(a: OpenRun, b: OpenRun) -> None:
    """Refuse runs of systems that have no number and no decision in common.

    Raises:
        InputError: names both systems.
    """
    titles_a, titles_b = (
        {
            (name, described.title)
            for columns in (run.reader.metrics, run.reader.decisions)
            for name, (_, described) in columns.items()
        }
        for run in (a, b)
    )
    names = [run.reader.system.name for run in (a, b)]
    if not titles_a & titles_b:
        raise InputError(
            f"{a.label} is of {names[0]} and {b.label} of {names[1]}; expected runs of one system"
        )


def pair_runs(a: OpenRun, b: OpenRun, *, by_id: bool, limit: int | None) -> Pairing:
    """Read all records and pair them.

    Raises:
        InputError: nothing can be paired, or the texts are unknown.
    """
    rule, (run_a, run_b) = _loaded(a, b, by_id=by_id)
    lacks_text = run_a.n_without_text or run_b.n_without_text
    if rule == SAME_TEXT and lacks_text and have_same_input(a, b):
        rule = SAME_INPUT
    title, by_text = a.reader.title, rule in (SAME_TEXT, SAME_TOKENS)
    for opened, run in ((a, run_a), (b, run_b)):
        if by_text and (n := run.n_without_text):
            raise InputError(
                f"the {title} cannot be paired by text: {_lost_input(a)}{_lost_input(b)}"
                f"{n} of {run.n} in {opened.label} have no {rule}; pair them by id alone with "
                "--by-id"
            )
    matched = match(run_a, run_b, by_text=by_text)
    if not len(matched.a):
        why, n_other = "", len(matched.other_text)
        if n_other:
            other = "other scored tokens" if rule == SAME_TOKENS else "another text"
            why = f"{n_other} have the same id and {other}, --by-id pairs them; "
        first = ", ".join(repr(run.names[0]) for run in (run_a, run_b) if run.n)
        raise InputError(
            f"no pair of {title}: of {run_a.n} in {a.label} and {run_b.n} in {b.label} none is in "
            f"both without a failure; {why}the first are {first}; expected runs on the same items"
        )
    matched = dataclasses.replace(matched, a=matched.a[:limit], b=matched.b[:limit])
    return Pairing((a, b), run_a, run_b, matched, rule)


def _loaded(a: OpenRun, b: OpenRun, *, by_id: bool) -> tuple[str, tuple[Run, Run]]:
    """Return the rule of pairs, and both runs with the texts that it needs."""
    has_texts = [run.reader.has_texts for run in (a, b)]
    if by_id:
        return SAME_ID, (a.load(), b.load())
    if not all(has_texts) and have_same_input(a, b):
        return SAME_INPUT, (a.load(), b.load())
    asked = [None if has else run.asked() for has, run in zip(has_texts, (a, b), strict=True)]
    if all(has or rows is not None for has, rows in zip(has_texts, asked, strict=True)):
        return SAME_TEXT, (a.load(asked[0]), b.load(asked[1]))
    return SAME_TOKENS, (a.load(by_tokens=True), b.load(by_tokens=True))


def _lost_input(opened: OpenRun) -> str:
    """Return the reason why a run's input does not give its texts; empty if it does."""
    if opened.reader.has_texts or opened.input is not None:
        return ""
    source = opened.facts.get("input_path") or opened.facts.get("input")
    if source is None:
        return f"no manifest names the input of {opened.label}, and "
    return f"the input of {opened.label}, {one_line(str(source))}, is missing or has changed, and "


def match(a: Run, b: Run, *, by_text: bool = True) -> Matched:
    """Pair the units of two runs.

    A unit's partner has the same id and text; of several such units the k-th of one run is the
    partner of the k-th of the other. A unit without an id is paired by its text, and a failed one
    by its id, or else by its name.

    Args:
        by_text: if False, only ids are compared.
    """
    keys_a, keys_b = (_keys(run, by_text) for run in (a, b))
    units_b = {key: k for k, key in keys_b.items()}
    pairs = [(k, units_b.pop(key)) for k, key in keys_a.items() if key in units_b]
    paired_a, paired_b = ({pair[side] for pair in pairs} for side in (0, 1))
    left_a = [k for k in range(a.n) if k not in paired_a]
    left_b = [k for k in range(b.n) if k not in paired_b]
    n_failed, left_a, left_b = _without_failed_pairs(a, b, left_a, left_b)
    ids_a, ids_b = ({run.ids[k] for k in left} for run, left in ((a, left_a), (b, left_b)))
    shared = (ids_a & ids_b) - {None}
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return Matched(
        a=both[:, 0],
        b=both[:, 1],
        only_a=[a.names[k] for k in left_a if a.ids[k] not in shared],
        only_b=[b.names[k] for k in left_b if b.ids[k] not in shared],
        other_text=[a.names[k] for k in left_a if a.ids[k] in shared],
        n_failed_pairs=n_failed,
        n_repeated=sum(key[2] > 0 for key in keys_a.values()),
    )


Key = tuple[str | None, bytes | None, int]


def _keys(run: Run, by_text: bool) -> dict[int, Key]:
    """Return unit -> id, text and the number of earlier units with the same two."""
    seen: collections.Counter[tuple[str | None, bytes | None]] = collections.Counter()
    keys = {}
    for k, (id, text) in enumerate(zip(run.ids, run.texts, strict=True)):
        key = (id, text if by_text or id is None else None)
        if k not in run.errors and key != (None, None):
            keys[k] = (*key, seen[key])
        seen[key] += 1  # failed units count too
    return keys


def _without_failed_pairs(
    a: Run, b: Run, left_a: Sequence[int], left_b: Sequence[int]
) -> tuple[int, list[int], list[int]]:
    """Pair failed units with remaining units of the same id, failed ones first.

    Returns:
        The number of pairs, and the units of A and of B that still remain.
    """
    units: dict[str, tuple[list[int], ...]] = {}  # id -> failed and other units of A, and of B
    for side, (run, left) in enumerate(((a, left_a), (b, left_b))):
        for k in left:
            lists = units.setdefault(run.ids[k] or run.names[k], ([], [], [], []))
            lists[2 * side + (k not in run.errors)].append(k)
    pairs: list[tuple[int, int]] = []
    for failed_a, good_a, failed_b, good_b in units.values():
        n = min(len(failed_a), len(failed_b))
        pairs += zip(failed_a[:n], failed_b[:n], strict=True)
        pairs += zip(failed_a[n:], good_b, strict=False)
        pairs += zip(good_a, failed_b[n:], strict=False)
    gone_a, gone_b = ({pair[side] for pair in pairs} for side in (0, 1))
    still_a = [k for k in left_a if k not in gone_a]
    return len(pairs), still_a, [k for k in left_b if k not in gone_b]


def pair_records(a: Run, b: Run, matched: Matched) -> Lazy[dict[str, Any]]:
    """Return one record per pair, created on access: its name, and all numbers of both runs."""
    numbers = [name for name in a.numbers if name in b.numbers]
    choices = [name for name in a.choices if name in b.choices]

    def record(pair: int) -> dict[str, Any]:
        i, j = int(matched.a[pair]), int(matched.b[pair])
        out: dict[str, Any] = {"name": a.names[i]}
        for name in numbers:
            out[f"{name}_a"] = a.numbers[name].of_unit(i)
            out[f"{name}_b"] = b.numbers[name].of_unit(j)
        for name in choices:
            out[f"{name}_a"] = a.choices[name].values[i]
            out[f"{name}_b"] = b.choices[name].values[j]
        return out

    return Lazy(range(len(matched.a)), record)
