"""Settings of systems: declared once, checked, and turned into flags by `cli.settings_flags`."""

import dataclasses
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

from jaxscore.errors import InputError, check_choice, is_valid_unicode, near

HALF_PAIR = "contains a lone surrogate (invalid Unicode)"
_FLAG = "flag"  # key of a field's metadata


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFlag:
    """A flag that names a file with the value of a setting, or with further values of a list.

    Attributes:
        name: the flag without its hyphens in front.
        read: path -> value.
        help, advanced: see `Flag`.
    """

    name: str
    read: Callable[[Path], Any]
    help: str
    advanced: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """The description of a setting, and its checks, on the command line and in Python.

    Attributes:
        help: one or two lines for `--help`.
        name: the flag without its hyphens in front, if it is not the field's.
        file: a flag that names a file with the value. If it is the only flag of the setting,
            report and manifest have the file's name and digest.
        least: smallest whole number allowed.
        metavar: placeholder of the value in the help.
        aliases: further spellings, such as those of the published script.
        advanced: shown by `--help-all` alone.
        group: title of the help's section; None for the main one.
        separator: text between the values of a list, as in A,B; None if they are words.
        is_flag: on the command line; False for a setting that Python alone can give.
        expected: description of a valid text, which is then not empty, such as "the name of a
            field".
        choice_flags: value -> (flag without its hyphens in front, help), in place of one flag
            that takes the value; without any of them it is the default.
    """

    help: str = ""
    name: str | None = None
    file: FileFlag | None = None
    least: int | None = None
    metavar: str | None = None
    aliases: tuple[str, ...] = ()
    advanced: bool = False
    group: str | None = None
    separator: str | None = None
    is_flag: bool = True
    expected: str | None = None
    choice_flags: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)


def setting(default: Any = dataclasses.MISSING, **described: Any) -> Any:
    """Declare a field of `Settings`: its default, and the attributes of its `Flag`.

    A setting without a default has to be given.
    """
    return dataclasses.field(default=default, metadata={_FLAG: Flag(**described)})


class SettingField(NamedTuple):
    """One declared setting.

    Attributes:
        name: the field's name; with hyphens the flag's.
        default: `dataclasses.MISSING` if the setting has to be given.
        kind: type of one value, without None and the list around it.
        choices: the allowed values if the type is a `Literal`.
        is_optional: None is allowed.
        is_list: takes several values.
    """

    name: str
    kind: type
    choices: tuple[Any, ...]
    is_optional: bool
    is_list: bool
    default: Any
    flag: Flag

    @property
    def is_required(self) -> bool:
        """True if it has to be given."""
        return self.default is dataclasses.MISSING

    def check(self, value: object) -> None:
        """Check a value that Python or the command line gives.

        Raises:
            InputError: names the setting, the value and what is expected.
        """
        if (value is None and self.is_optional) or (self.kind is Any and not self.is_list):
            return
        if self.choices:
            check_setting(self.name, value, (None,) * self.is_optional + self.choices)
        elif self.is_list:
            values = check_list(self.name, value, "strings" if self.kind is str else "examples")
            if self.kind is str and not all(isinstance(text, str) for text in values):
                raise InputError(f"setting {self.name} is {value!r}, expected a list of strings")
        elif self.kind is int:
            check_whole_number(self.name, value, self.flag.least)
        elif (
            not isinstance(value, (int, float) if self.kind is float else self.kind)
            or (isinstance(value, bool) and self.kind is not bool)
            or (isinstance(value, float) and not math.isfinite(value))
            or (self.flag.expected and not value)
        ):
            expected = {str: "a text", float: "a finite number", bool: "True or False"}
            kind = getattr(self.kind, "__name__", str(self.kind))  # a union does not have a name
            wanted = self.flag.expected or expected.get(self.kind, kind)
            raise InputError(f"setting {self.name} is {value!r}, expected {wanted}")
        elif self.kind is str and not is_valid_unicode(typing.cast(str, value)):
            raise InputError(f"setting {self.name} {HALF_PAIR}")


def fields_of(settings: type) -> list[SettingField]:
    """The settings that a class declares with `setting`, its own before the inherited ones."""
    hints = typing.get_type_hints(settings)
    declared = [field for field in dataclasses.fields(settings) if _FLAG in field.metadata]
    declared.sort(key=lambda field: field.name not in settings.__annotations__)
    return [_setting_field(field, hints[field.name]) for field in declared]


def _setting_field(field: dataclasses.Field[Any], hint: Any) -> SettingField:
    parts = typing.get_args(hint) if typing.get_origin(hint) is not Literal else ()
    is_optional = type(None) in parts
    if is_optional:
        [hint] = [part for part in parts if part is not type(None)]
    choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    is_list = typing.get_origin(hint) in (tuple, list, Sequence)
    kind = typing.get_args(hint)[0] if is_list else type(choices[0]) if choices else hint
    return SettingField(
        field.name, kind, choices, is_optional, is_list, field.default, field.metadata[_FLAG]
    )


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
        for field in fields_of(type(self)):
            value = getattr(self, field.name)
            field.check(value)
            if field.is_list and value is not None:
                object.__setattr__(self, field.name, tuple(value))

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
    truncate: Literal["left"] | None = setting(
        None,
        help="drop the oldest context tokens of a request that is longer than the model's "
        "positions; without it that request fails and the others are kept",
        group=MODEL_GROUP,
    )
    seed: int = setting(
        0,
        help="of all that a command draws at random: samples, orders, bootstrap intervals "
        "(default 0)",
        group=MODEL_GROUP,
    )
    audit_noise: int = setting(
        0,
        least=0,
        metavar="N",
        help="score N of the requests, drawn by --seed, again in other layouts (alone, in "
        "other batches, one per row), tell how far their numbers move, and mark decisions that "
        "lie within that (default 0: no audit)",
        group=MODEL_GROUP,
        advanced=True,
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

    n_bootstrap: int = setting(
        1000,
        least=1,
        metavar="N",
        help="draws for the 95% intervals (default 1000)",
        advanced=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSettings(ScoringSettings):
    """`ScoringSettings` of a system whose items are contexts with a continuation, in streams."""

    boundary: Literal["joint", "separate"] = setting(
        "joint",
        help="joint: encode context and continuation as one text (default); separate: encode each "
        "and join the ids",
    )
    summary_only: bool = setting(False, help="leave the arrays out of the output")


def settings_from(kind: type[Any], arguments: Mapping[str, Any]) -> Any:
    """A system's settings from keyword arguments.

    Raises:
        InputError: the system has no such setting, with the most similar one it has; or a value
            is not allowed.
    """
    known = [field.name for field in dataclasses.fields(kind)]
    for name in arguments:
        if name not in known:
            similar = near(name, known)
            hint = f"is it {similar}?" if similar else f"expected one of {', '.join(known)}"
            raise InputError(f"no setting {name!r}; {hint}")
    for field in fields_of(kind):
        if field.is_required and field.name not in arguments:
            field.check(None)
    return kind(**arguments)


def check_setting(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse a setting that is none of its choices.

    Raises:
        InputError: names the setting, its value and the choices.
    """
    try:
        check_choice(f"setting {name}", value, choices)
    except ValueError as error:
        raise InputError(str(error)) from None


def check_whole_number(name: str, value: object, least: int | None = None) -> None:
    """Refuse a setting that is not a whole number, or below `least`.

    Raises:
        InputError: names the setting and its value.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or (least is not None and value < least):  # type: ignore[operator]
        bound = "" if least is None else f" of at least {least}"
        raise InputError(f"setting {name} is {value!r}, expected a whole number{bound}")


def check_list(name: str, value: object, what: str = "strings") -> tuple[Any, ...]:
    """A setting that is a list, as a tuple.

    Raises:
        InputError: it is a string, a mapping or otherwise not a list; names the setting.
    """
    if isinstance(value, str):
        raise InputError(f"setting {name} is a string, expected a list of {what}")
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        found = "None" if value is None else f"of type {type(value).__name__}"
        raise InputError(f"setting {name} is {found}, expected a list of {what}")
    return tuple(value)
