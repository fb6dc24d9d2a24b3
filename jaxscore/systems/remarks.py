"""Remarks of an evaluation: texts, and texts with counts that add up over shards."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST_REMARKS = 100  # of a run; `merge` holds the remarks of all shards in memory
MORE = "and {n} more remarks"


class Remark(str):
    """A remark that `merge` does not take from each shard as it is.

    Attributes:
        template: its text with the counts' names in braces.
        counts: name -> count, which add up over shards.
        if_all: whether it holds for a run only if it holds for all shards.
        of_shard: whether it speaks of the shard's own items, so that `merge` names the shard.
    """

    template: str
    counts: Mapping[str, int | float]
    if_all: bool
    of_shard: bool

    def __new__(
        cls, template: str, *, if_all: bool = False, of_shard: bool = False, **counts: int | float
    ) -> "Remark":
        text = template
        for name, n in counts.items():
            text = text.replace(f"{{{name}}}", f"{n:.6g}" if isinstance(n, float) else str(n))
        remark = super().__new__(cls, text)
        remark.template, remark.counts = template, counts
        remark.if_all, remark.of_shard = if_all, of_shard
        return remark


def remark_records(remarks: Iterable[str]) -> list[Any]:
    """Remarks as a manifest has them: texts, and fields of each `Remark`."""
    return [
        {
            "text": remark.template,
            "if_all": remark.if_all,
            "of_shard": remark.of_shard,
            "counts": dict(remark.counts),
        }
        if isinstance(remark, Remark)
        else remark
        for remark in remarks
    ]


def remark_from(value: Any) -> str:
    """A remark from a manifest's JSON: as of `remark_records`."""
    if isinstance(value, Mapping):
        fields = {name: value[name] for name in ("if_all", "of_shard")}
        return Remark(value["text"], **fields, **value["counts"])
    return str(value)


def first_remarks(remarks: Iterable[str], most: int) -> list[str]:
    """The first remarks and those with counts; another one says how many are left out."""
    selected, n_plain, n_left = [], 0, 0
    for remark in remarks:
        if not isinstance(remark, Remark) or remark.of_shard:
            n_plain += 1
            if n_plain > most:
                n_left += 1
                continue
        elif remark.template == MORE:
            n_left += int(remark.counts["n"])
            continue
        selected.append(remark)
    return [*selected, Remark(MORE, n=n_left)] if n_left else selected


def united_remarks(runs: Sequence[Sequence[str]], own: Sequence[str] = ()) -> list[str]:
    """The remarks of one run over all items of several: equal ones once, counts added up.

    Args:
        own: remarks on all items; they replace the runs' remarks of the same template.
    """
    found = {_key(remark): remark for remark in own}
    is_own = set(found)
    n_runs: Counter[str] = Counter()
    for remarks in runs:
        for remark in remarks:
            key = _key(remark)
            if key in is_own:
                continue
            n_runs[key] += 1
            before = found.setdefault(key, remark)
            if before is not remark and isinstance(before, Remark) and isinstance(remark, Remark):
                counts = {name: before.counts[name] + n for name, n in remark.counts.items()}
                of_shard = remark.of_shard
                found[key] = Remark(key, if_all=remark.if_all, of_shard=of_shard, **counts)
    selected = (
        remark
        for key, remark in found.items()
        if key in is_own
        or not (isinstance(remark, Remark) and remark.if_all)
        or n_runs[key] == len(runs)
    )
    return first_remarks(selected, MOST_REMARKS)


def _key(remark: str) -> str:
    return remark.template if isinstance(remark, Remark) else remark
