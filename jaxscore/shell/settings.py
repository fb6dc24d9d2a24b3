"""Settings of systems, each of which is also a flag."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from jaxscore.errors import InputError, near
from jaxscore.plan.requests import TextWindows
from jaxscore.shell.flags import ONE, Flag, flag, flags_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings: checks each field by its declaration.

    Attributes:
        fixed: settings, and facts of the report, that decide what is counted: `compare` refuses
            runs in which they differ.
        named_fields: first part of a record's field -> its type, for each of `field_names`.
    """

    fixed: ClassVar[tuple[str, ...]] = ("boundary", "answer_separator")
    named_fields: ClassVar[Mapping[str, Any]] = {}

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
    def field_names(self) -> tuple[str, ...]:
        """Names that complete those of `named_fields`."""
        return ()

    def record_fields(self, record: type) -> dict[str, Any]:
        """Return name -> type of the fields that records of a run with these settings can have.

        Args:
            record: the declared type.
        """
        omitted = self.omitted_fields()
        hints = typing.get_type_hints(record, include_extras=True)
        named = {
            prefix + name: hint
            for name in self.field_names
            for prefix, hint in self.named_fields.items()
        }
        return {name: hint for name, hint in hints.items() if name not in omitted} | named

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

    def row_columns(self) -> dict[str, str]:
        """Return column -> Arrow type if the output is a table of rows; otherwise empty.

        Its records are then in another file, next to it.
        """
        return {}

    def adapted(self, item: Any) -> Self:
        """Return the settings with the defaults that an item of the input needs."""
        return self

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
WINDOW_GROUP = "long texts"
READ_IN_WINDOWS = "texts of several windows: {n}; each window after the first begins with {after}"

WITHOUT_WINDOW = "texts of which nothing is scored, since they are shorter than a window: {n}"


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
        chosen = getattr(self, "boundary", None)
        names = (
            ()
            if chosen is None
            else (chosen, *(name for name in self.boundaries if name != chosen))
        )
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


BY = "the name of a field of the items"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceSettings(IntervalSettings):
    """`IntervalSettings` of a system whose record has a `Mean`."""

    by: tuple[str, ...] | None = flag(
        None,
        words=ONE,
        expected=BY,
        metavar="FIELD",
        help="add a table of the means for each value of this field of the items, such as a topic "
        "or a condition; may be repeated. `report OUT --by FIELD` adds one to a finished output",
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowSettings(Settings):
    """Settings of a system that reads long texts: in windows, and from plain text."""

    fixed = (*Settings.fixed, "window_bos", "score_from")

    max_length: int | None = flag(
        None,
        least=1,
        metavar="N",
        help="read texts in windows of N tokens (default with --stride: the model's positions; "
        "without both, longer texts fail)",
        group=WINDOW_GROUP,
    )
    stride: int | None = flag(
        None,
        least=1,
        metavar="S",
        help="tokens that a window scores after the first one; each then has at least N - S tokens "
        "before it (default: N)",
        group=WINDOW_GROUP,
    )
    window_bos: Literal["every", "first"] = flag(
        "every",
        group=WINDOW_GROUP,
        is_advanced=True,
        help="every: the tokenizer's BOS in place of the first token that each window reads "
        "(default); first: in the first window alone, as in lm-evaluation-harness",
    )
    score_from: Literal["start", "half"] = flag(
        "start",
        group=WINDOW_GROUP,
        is_advanced=True,
        help="half: score the second half of each whole window of N tokens alone, as llama.cpp's "
        "llama-perplexity does",
    )
    lines: bool = flag(
        False,
        group=WINDOW_GROUP,
        help="each line of a .txt file is a text; empty ones are left out",
    )

    def __post_init__(self) -> None:
        """Check all values; see `Settings`."""
        super().__post_init__()
        length, stride = self.max_length, self.stride
        if length is not None and stride is not None:
            TextWindows(length, stride)  # refuses a stride that is longer than a window
        if self.reads_windows and getattr(self, "truncate", None) is not None:
            raise InputError(
                "truncate: texts are read in windows, so that none is too long; leave it out"
            )
        if not self.reads_windows and self.window_bos != type(self).window_bos:
            raise InputError(
                f"setting window_bos is {self.window_bos!r}, which only matters in windows; add "
                "--stride or --max-length, or leave out --window-bos"
            )
        if self.score_from == "half" and stride not in (None, length):
            raise InputError(
                f"stride is {stride} and score_from half, whose windows do not overlap; leave one "
                "of the two out"
            )

    def record(self) -> dict[str, Any]:
        """The settings as a report has them; `text_windows` notes the resolved windows."""
        omitted = ("truncate", "max_length", "stride") if self.reads_windows else ()
        return {name: value for name, value in super().record().items() if name not in omitted}

    def omitted_fields(self) -> frozenset[str]:
        """See `Settings.omitted_fields`; texts have one window without these settings."""
        omitted = super().omitted_fields()
        return omitted if self.reads_windows else omitted | {"n_windows"}

    @property
    def reads_windows(self) -> bool:
        """True if texts are read in windows."""
        return self.max_length is not None or self.stride is not None or self.score_from == "half"

    def text_windows(self, lm: Any) -> dict[str, TextWindows]:
        """Return the argument of `LM.stream` that cuts long texts; empty if they fail.

        Raises:
            InputError: the model has fewer positions, or is an endpoint.
        """
        if not self.reads_windows:
            return {}
        max_positions = lm.capabilities.max_positions
        if not lm.capabilities.is_local or max_positions is None:
            raise InputError(
                "max_length, stride and score_from: windows are cut from token ids, which an "
                "endpoint does not take; take a local model"
            )
        length = self.max_length or max_positions
        if length > max_positions:
            raise InputError(
                f"max_length is {length}, and the model takes {max_positions} positions; give at "
                "most that, or leave it out"
            )
        stride = length if self.stride is None else self.stride
        bos = tuple(lm.encoder.prefix) if self.window_bos == "every" else ()
        windows = TextWindows(length, stride, bos, half=self.score_from == "half")
        lm.about.update(max_length=length, stride=stride)
        return {"text_windows": windows}

    def note_windows(self, lm: Any, n_windows: int) -> None:
        """Count a text of several windows in an audited model, or of none."""
        if n_windows > 1:
            after = "the BOS" if self.window_bos == "every" and lm.encoder.prefix else "no BOS"
            lm.warnings[READ_IN_WINDOWS.format(n="{n}", after=after)] += 1
        if not n_windows and self.score_from == "half":
            lm.warnings[WITHOUT_WINDOW] += 1


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
