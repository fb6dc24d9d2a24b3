"""Lexical metrics as one call: records in, a value per metric and record out."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from jaxscore.analysis.bootstrap import Estimate, estimate, proportion
from jaxscore.errors import InputError
from jaxscore.systems.evaluation import Evaluation, Failure, check_found, refuse_source
from jaxscore.systems.rag import lexical_columns, records
from jaxscore.systems.settings import check_list, check_whole_number

HITS = ("M", "EM")  # 0 or 1 per record, so that their means are shares


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `metrics`.

    Attributes:
        names: of `lexical_columns.METRICS`.
        seed: of the bootstrap intervals.
        n_bootstrap: draws for 95% intervals.
    """

    names: tuple[str, ...] = lexical_columns.METRICS
    seed: int = 0
    n_bootstrap: int = 1000

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            InputError: naming the setting, what it is and what is expected.
        """
        names, expected = check_list("names", self.names), ", ".join(lexical_columns.METRICS)
        if not names:
            raise InputError(f"setting names is empty, expected some of {expected}")
        if unknown := [one for one in names if one not in lexical_columns.METRICS]:
            raise InputError(f"setting names has {unknown[0]!r}, expected some of {expected}")
        object.__setattr__(self, "names", names)
        check_whole_number("seed", self.seed)
        check_whole_number("n_bootstrap", self.n_bootstrap, 1)

    def record(self) -> dict[str, Any]:
        """The settings as a report has them."""
        return {"names": list(self.names), "seed": self.seed, "n_bootstrap": self.n_bootstrap}


def evaluate(source: None, items: Iterable[Any], settings: Settings) -> Evaluation:
    """Compare each response with its references, without a model.

    Args:
        source: None: nothing is computed on a device.
        items: `Records`, or objects as `eval_<split>_out.json` has them; `question` may be
            absent.

    Raises:
        InputError: there are no records, or a model is given.
    """
    refuse_source("metrics", source)
    given = records.read(items, question=False)
    check_found(len(given.rows), "records")
    values = lexical_columns.evaluate(given.records)
    columns = {name: values[name] for name in settings.names}
    means = lexical_columns.summarise(columns)
    summary = {
        name: dataclasses.replace(_interval(name, list(one.values()), settings), mean=means[name])
        if one
        else Estimate(0, None, None, None)
        for name, one in columns.items()
    }
    rows = [
        {"index": one.index, "q_id": one.q_id, **{k: v[one.index] for k, v in columns.items()}}
        for one in given.records
    ]
    n = len(given.records)
    told = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
    return Evaluation(
        summary=summary,
        items=rows,
        n_items=len(given.rows),
        rows=rows,
        details={"summary": summary},
        long={"records": rows},
        headline=f"{told} over {n} records" if n else "no record is left to evaluate",
        failures=[Failure(*one) for one in given.failures],
    )


def _interval(name: str, values: list[float], settings: Settings) -> Estimate:
    if name in HITS:
        return proportion([value == 1.0 for value in values])
    return estimate(values, settings.n_bootstrap, settings.seed)
