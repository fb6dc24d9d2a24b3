"""Settings of systems, each of which is also a flag."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from jaxscore.errors import InputError, near
from jaxscore.shell.flags import Flag, flag, flags_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings: checks each field by its declaration.

    Attributes:
        fixed: settings, and facts of the report, that decide what is counted: `compare` refuses
            runs in which they differ.
    """

    fixed: ClassVar[tuple[str, ...]] = ("boundary", "answer_separator")

    def __post_init__(self) -> None:
        """Check all values, and make lists tuples.

        Raises:
            InputError: names the setting, its value and what is expected.
        """
        declared: type = type(self)
        for each in flags_of(declared):
            value = getattr(self, each.field)
            _check(each, value)
            if each.type.is_list and value is not None:
                object.__setattr__(self, each.field, tuple(value))

    def record(self) -> dict[str, Any]:
        """The settings as a report has them, without those that do not affect the result."""
        values = dataclasses.asdict(self)
        values.pop("audit_noise", None)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    def omitted_fields(self) -> frozenset[str]:
        """Declared fields that no record of a run with these settings has."""
        return frozenset()

    @property
    def further_fields(self) -> tuple[str, ...]:
        """Names of fields of the input that `complete` reads."""
        return ()

    def complete(self, item: Any, others: Mapping[str, Any]) -> Any:
        """Return an item with what the settings need of the input's other fields.

        Args:
            others: other fields of the item's object.
        """
        return item

    def policies(self) -> dict[str, str]:
        """Boundary -> policy of the encoder, the run's own first; empty without a boundary."""
        return {}

    def variants(self) -> dict[str, dict[str, Self]]:
        """Other ways to score a sample, by kind and name; see `ScoringSettings.variants`."""
        return {}

    @property
    def list_fields(self) -> tuple[str, ...]:
        """Fields of the input that hold lists, beside those of the item's type."""
        return ()


MODEL_GROUP = "model and device"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringSettings(Settings):
    """Settings of every system that scores text.

    Attributes:
        boundaries: value of the setting `boundary`, if there is one -> policy of the encoder.
        advice: which of them to believe, by name first, and what the others are for.
    """

    boundaries: ClassVar[Mapping[str, str]] = {"joint": "joint", "separate": "separate"}
    advice: ClassVar[str] = (
        "joint, the text as the model reads it; take separate to compare with programs that "
        "encode context and continuation apart"
    )
    truncate: Literal["left"] | None = flag(
        None,
        help="drop the oldest context tokens of a request that is longer than the model's "
        "positions; without it that request fails and the others are kept",
        group=MODEL_GROUP,
    )
    seed: int = flag(
        0,
        help="of all that a command draws at random: samples, orders, bootstrap intervals "
        "(default 0)",
        group=MODEL_GROUP,
    )
    audit_noise: int = flag(
        0,
        least=0,
        metavar="N",
        help="score N of the requests, drawn by --seed, again in other layouts (alone, in "
        "other batches, one per row), tell how far their numbers move, and mark decisions that "
        "lie within that (default 0: no audit)",
        group=MODEL_GROUP,
        is_advanced=True,
    )

    def policies(self) -> dict[str, str]:
        """See `Settings.policies`; `boundaries` has the names."""
        own = getattr(self, "boundary", None)
        names = () if own is None else (own, *(name for name in self.boundaries if name != own))
        return {name: self.boundaries[name] for name in names}

    def variants(self) -> dict[str, dict[str, Self]]:
        """Other ways to score a sample, by kind and name: with each other boundary.

        Another kind is "blank", with a space before each answer.
        """
        others = list(self.policies())[1:]
        if not others:
            return {}
        return {
            "boundary": {
                name: dataclasses.replace(self, **{"boundary": name})  # type: ignore[arg-type]
                for name in others
            }
        }

    def options(self) -> dict[str, Any]:
        """Arguments of `LM.score` and `LM.stream`."""
        policy = next(iter(self.policies().values()), "joint")
        return {"boundary": policy, "truncate": self.truncate}


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntervalSettings(ScoringSettings):
    """`ScoringSettings` of a system whose means have bootstrap intervals."""

    n_bootstrap: int = flag(
        1000,
        least=1,
        metavar="N",
        help="draws for the 95% intervals (default 1000)",
        is_advanced=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSettings(ScoringSettings):
    """`ScoringSettings` of a system whose items are contexts with a continuation, in streams."""

    boundary: Literal["joint", "separate"] = flag(
        "joint",
        help="joint: encode context and continuation as one text (default); separate: encode each "
        "and join the ids",
    )
    summary_only: bool = flag(False, help="leave the arrays out of the output")


def settings_from(declared: type, arguments: Mapping[str, Any]) -> Any:
    """A system's settings from keyword arguments.

    Raises:
        InputError: the system has no such setting, with the most similar one it has; or a value
            is not allowed.
    """
    names = [field.name for field in dataclasses.fields(declared)]
    for name in arguments:
        if name not in names:
            similar = near(name, names)
            hint = f"is it {similar}?" if similar else f"expected one of {', '.join(names)}"
            raise InputError(f"no setting {name!r}; {hint}")
    for each in flags_of(declared):
        if each.is_required and each.field not in arguments:
            _check(each, None)
    return declared(**arguments)


def _check(setting: Flag, value: object) -> None:
    """Check the value of a setting.

    Raises:
        InputError: names the setting, the value and what is expected.
    """
    try:
        setting.type.check(value)
    except ValueError as problem:
        raise InputError(f"setting {setting.field} is {problem}") from None
