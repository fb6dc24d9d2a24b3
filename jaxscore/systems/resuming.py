"""Continues a run whose output file holds the records of an earlier one.

A system that declares a `Work` is resumed from its own output: what each record says of a result
is taken over if it is of the same item and was computed in the same way.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from jaxscore.errors import InputError, NothingUsable
from jaxscore.lm import LM
from jaxscore.systems.entries import Entry
from jaxscore.systems.evaluation import Failure

REMEDY = "give another --output, or delete it to compute everything again"


@dataclasses.dataclass(frozen=True)
class Output:
    """Output of a run, which an earlier run may have begun.

    Attributes:
        path: of the file.
        records: that the file holds, item k's record at place k.
        model: what each record says of the model, see `model_facts`; None if a loaded model says
            it.
        dtype: precision of this run; None if a loaded model says it.
    """

    path: Path = Path("output")
    records: Sequence[Mapping[str, Any]] = ()
    model: Mapping[str, Any] | None = None
    dtype: str | None = None


NO_OUTPUT = Output()


@dataclasses.dataclass
class Known:
    """What is known of one result.

    Attributes:
        made: what it was computed with; None if its record does not say it.
    """

    made: Mapping[str, Any] | None


T = TypeVar("T", bound=Known)


class Work(abc.ABC, Generic[T]):
    """Entries with what is known of their results; an evaluation computes what is missing.

    Attributes:
        entries: all of the input.
        items: objects of the entries.
        settings, output: of the run.
        known: per entry what is known of its result, or None.
        errors: place of an entry -> why it has no result.
        n_changed: number of the output's records that are of other items than this run's.
    """

    def __init__(
        self, entries: Sequence[Entry[Any]], settings: Any, output: Output = NO_OUTPUT
    ) -> None:
        """Read the entries, and take over what the output file has of their results.

        Raises:
            InputError: no entry is usable; the file is of another input, or was computed in
                another way.
        """
        self.entries, self.settings, self.output = entries, settings, output
        self.items: list[dict[str, Any]] = [entry.item or {} for entry in entries]
        self.known: list[T | None] = [None] * len(entries)
        self.errors: dict[int, str] = {}
        self.n_changed = self._n_passed_on = 0
        self.read()
        self.refuse_if_all_failed()
        if output.records:
            self._resume()

    @abc.abstractmethod
    def read(self) -> None:
        """Check the objects of the entries, and note in `errors` those that are unusable."""

    @abc.abstractmethod
    def is_same(self, place: int, record: Mapping[str, Any]) -> bool:
        """Whether a record is of the entry at this place."""

    @abc.abstractmethod
    def recall(self, place: int, record: Mapping[str, Any]) -> T | None:
        """What the record of the entry says of its result, or None if nothing."""

    @abc.abstractmethod
    def made_with(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """What a record of this run says of how it was computed, except the dtype.

        Args:
            model: as of `model_facts`.
        """

    @abc.abstractmethod
    def is_finished(self, place: int) -> bool:
        """Whether the entry at this place has its result, or failed."""

    @abc.abstractmethod
    def record(self, place: int) -> dict[str, Any] | None:
        """The record of the entry at this place, or None while it is not finished."""

    @property
    def is_done(self) -> bool:
        """Whether every entry is finished."""
        return all(map(self.is_finished, range(len(self.entries))))

    def records(self) -> list[dict[str, Any]]:
        """The records of all entries, which are finished."""
        return [
            record
            for place in range(len(self.entries))
            if (record := self.record(place)) is not None
        ]

    def made(self, lm: LM) -> dict[str, Any]:
        """What a record of this run says of how it was computed.

        Raises:
            InputError: the output file has results of another precision.
        """
        dtype = lm.describe()["dtype"]
        self._check({"dtype": dtype})
        model = model_facts(lm) if self.output.model is None else self.output.model
        return {**self.made_with(model), "dtype": dtype}

    def pass_on(self, on_item: Callable[[Mapping[str, Any]], None] | None) -> None:
        """Give the records that are finished to `on_item`, each once and in order."""
        while on_item is not None and self._n_passed_on < len(self.entries):
            if (record := self.record(self._n_passed_on)) is None:
                return
            on_item(record)
            self._n_passed_on += 1

    def remarks(self) -> list[str]:
        """Describe what is taken over from the output file."""
        out = []
        if n := len(self.output.records):
            out.append(f"continuing {self.output.path}, which holds {n} items")
        if self.n_changed:
            out.append(f"{self.n_changed} of them have changed and are computed again")
        return out

    def failures(self) -> list[Failure]:
        """The entries without a result."""
        return [Failure(self.entries[k].name, why) for k, why in sorted(self.errors.items())]

    def refuse_if_all_failed(self) -> None:
        """Check that a result exists or can be computed.

        Raises:
            NothingUsable: every entry has an error.
        """
        if self.errors and len(self.errors) == len(self.entries):
            name, error = self.failures()[0]
            raise NothingUsable(f"no item can be used; {name}: {error}")

    def _resume(self) -> None:
        records = self.output.records
        if len(records) > len(self.entries):
            raise self.refusal(
                f"holds {len(records)} items and the input {len(self.entries)}, so it is not of "
                "this input"
            )
        usable = [place for place in range(len(records)) if place not in self.errors]
        same = [place for place in usable if self.is_same(place, records[place])]
        self.n_changed = len(usable) - len(same)
        if self.n_changed and not same:
            raise self.refusal("none of its items is the one in the same place of this input")
        for place in same:
            self.known[place] = self.recall(place, records[place]) or self.known[place]
        dtype = {} if self.output.dtype is None else {"dtype": self.output.dtype}
        self._check({**self.made_with(self.output.model or {}), **dtype})

    def _check(self, made: Mapping[str, Any]) -> None:
        """Refuse to mix results that were computed in different ways, as far as both say."""
        for entry, known in zip(self.entries, self.known, strict=True):
            if known is None or known.made is None:
                continue
            for name, value in made.items():
                found = known.made.get(name)
                if found != value and (name != "dtype" or found is not None):
                    raise self.refusal(
                        f"{entry.name} was computed with {name} {found}, this run has {name} "
                        f"{value}"
                    )

    def refusal(self, why: str) -> InputError:
        """The error of an output file that this run cannot continue."""
        return InputError(f"{self.output.path}: {why}; {REMEDY}")


def model_facts(lm: LM) -> dict[str, Any]:
    """What a record says of a model; None for what does not apply."""
    found = lm.describe()
    return {
        "model": found["model"],
        "revision": found["revision"],
        "lora": found.get("lora"),
        "quantize": found.get("quantized"),
        "reproducible": found.get("reproducible"),
    }
