"""Flags of commands: dataclass fields, from which parsing, help pages and `--config` follow.

@dataclasses.dataclass(kw_only=True)
class Flags:
    output: Path = flag(metavar="FILE", help="the results")
    limit: int | None = flag(None, "--max-samples", least=1, metavar="N", help="only the first N")
"""

import dataclasses
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxscore.errors import InputError
from jaxscore.io import remote, streams
from jaxscore.io.local_path import ADDRESS, check_local, local_path
from jaxscore.shell.settings import SettingField, fields_of

FLAG = "flag"  # key of a field's metadata
SWITCH, ONE, MAYBE, ANY, SOME = "0", "1", "?", "*", "+"  # how many words follow a flag
OUTPUTS = ("output", "output_dir", "html")  # flags whose path may be a stream


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """A flag of a command.

    Attributes:
        names: all spellings; none of what is given by its place alone.
        dest: the field that gets the value.
        help: one or two lines.
        metavar: the placeholder of the value in the help; one for each word.
        group: the title of its section in the help.
        is_advanced: only `--help-all` shows it.
        words: the number of words after it, such as `SOME`.
        kind: the type of one value.
        choices: the allowed values, of a `Literal`.
        read: converts a word; None to convert it by its type.
        least: the smallest allowed whole number.
        is_list: words of repeated flags add up.
        default: the value without the flag.
        bare: the value without a word, of a flag that may have one.
        is_required: it has to be given.
        is_positional: it may be given by its place.
        takes_address: addresses of stores and standard input are allowed.
        excludes: key of flags of which only one may be given.
    """

    names: tuple[str, ...] = ()
    dest: str
    help: str = ""
    metavar: str | tuple[str, ...] | None = None
    group: str = "options"
    is_advanced: bool = False
    words: str = ONE
    kind: type = str
    choices: tuple[Any, ...] = ()
    read: Callable[[str], Any] | None = None
    least: int | None = None
    is_list: bool = False
    default: Any = None
    bare: Any = None
    is_required: bool = False
    is_positional: bool = False
    takes_address: bool = False
    excludes: str | None = None

    @property
    def title(self) -> str:
        """The name in messages."""
        return "/".join(self.names) or str(self.metavar)

    def value(self, words: Sequence[str]) -> Any:
        """Convert the words after a flag, of all its repetitions if they add up.

        Raises:
            ValueError: a word cannot be used; the message says why.
        """
        if self.words == SWITCH:
            return True
        if self.words == MAYBE and not words:
            return self.bare
        values = [self._value(word) for word in words]
        if values and isinstance(values[0], tuple) and self.is_list:  # NAME,NAME
            return [part for value in values for part in value]
        return values if self.is_list else values[-1]

    def _value(self, word: str) -> Any:
        if self.read is not None:
            return self.read(word)
        if self.choices:
            if word not in self.choices:
                listed = ", ".join(map(repr, self.choices))
                raise ValueError(f"invalid choice: {word!r} (choose from {listed})")
            return word
        if self.kind is int:
            return whole_number(word, self.least)
        if self.kind is float:
            try:
                return float(word)
            except ValueError:
                raise ValueError(f"invalid float value: {word!r}") from None
        if self.kind is Path:
            return path(word, takes_address=self.takes_address)
        return word

    def check_place(self, value: Any) -> None:
        """Refuse standard input, where a flag does not read it.

        Raises:
            InputError: naming the flag.
        """
        if self.kind is not Path or self.takes_address or self.dest in OUTPUTS:
            return
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Path) and (str(each) == "-" or streams.descriptor(each) == 0):
                raise InputError(
                    f"{self.dest} is {each}: standard input is not read; write it to a file and "
                    "give that"
                )


def flag(default: Any = dataclasses.MISSING, *names: str, **described: Any) -> Any:
    """Declare a field with a flag.

    Args:
        default: without it the flag is required.
        names: further spellings; the first one is the field's name, with hyphens.
        described: attributes of `Option` that do not follow from name, type and default.
    """
    metadata = {FLAG: {"names": names, **described}}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def limit_flag(what: str, *names: str) -> Any:
    """Declare --limit and its published spellings; `what` is the items, in the plural."""
    return flag(None, *names, least=1, metavar="N", help=f"only the first N {what}")


def column_flag(fields: Sequence[str]) -> Any:
    """Declare --column for the fields that the command reads."""
    names = ", ".join(fields)
    return flag([], metavar="FIELD=NAME", help=f"names of the input for the fields {names}")


def path(word: str, *, takes_address: bool) -> Path:
    """Convert a word to a path; addresses become local paths, see `remote.stage`."""
    if takes_address and ADDRESS.match(word):
        return remote.stage(word)
    check_local(word)
    return local_path(word)


def whole_number(text: str, least: int | None = None) -> int:
    """Read a whole number of at least `least`.

    Raises:
        ValueError: saying why not.
    """
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    if least is not None and value < least:
        bound = "not above 0" if least == 1 else f"below {least}"
        raise ValueError(f"{value} is {bound}")
    return value


def options_of(declared: type, omitted: Collection[str] = ()) -> list[Option]:
    """The flags of a dataclass, its own before the inherited ones."""
    hints = typing.get_type_hints(declared)
    fields = [field for field in dataclasses.fields(declared) if FLAG in field.metadata]
    fields.sort(key=lambda field: field.name not in declared.__annotations__)
    return [
        _option(field, hints[field.name], field.metadata[FLAG])
        for field in fields
        if field.name not in omitted
    ]


def _option(field: dataclasses.Field[Any], hint: Any, described: Mapping[str, Any]) -> Option:
    is_required = field.default is field.default_factory is dataclasses.MISSING
    default = None if is_required else field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    if type(None) in typing.get_args(hint):  # the others may be several, which `read` gives
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    is_list = typing.get_origin(hint) is list
    if is_list:
        (hint,) = typing.get_args(hint)
    choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    facts = {
        "dest": field.name,
        "words": SWITCH if hint is bool else SOME if is_list else ONE,
        "kind": type(choices[0]) if choices else hint,
        "choices": choices,
        "is_list": is_list,
        "default": default,
        "is_required": is_required,
        **described,
    }
    if not (facts.get("is_positional") or "dest" in described):
        facts["names"] = (f"--{field.name.replace('_', '-')}", *described["names"])
    return Option(**facts)


def options_of_settings(settings: type, omitted: Collection[str] = ()) -> list[Option]:
    """The flags of a system's settings, with those of files that have a setting's value."""
    out: list[Option] = []
    for field in fields_of(settings):
        if field.name in omitted:
            continue
        group = field.flag.group or "options"
        for name, help in field.flag.choice_flags.values():
            dest = name.replace("-", "_")
            one_of = field.name
            out.append(_switch((f"--{name}",), dest, help, group=group, excludes=one_of))
        if field.flag.is_flag and not field.flag.choice_flags:
            out.append(_of_setting(field, group))
        if (file := field.flag.file) is not None:
            out.append(
                Option(
                    names=(f"--{file.name}",),
                    dest=file.name.replace("-", "_"),
                    kind=Path,
                    metavar="FILE",
                    words=ONE,
                    help=file.help,
                    group=group,
                    is_advanced=file.advanced,
                )
            )
    return out


def _switch(names: tuple[str, ...], dest: str, help: str, **described: Any) -> Option:
    return Option(
        names=names, dest=dest, help=help, default=False, words=SWITCH, kind=bool, **described
    )


def flag_name(field: SettingField) -> str:
    """The flag of a setting: `--no-shuffle` for one that is on by default."""
    name = field.flag.name or field.name.replace("_", "-")
    return f"no-{name}" if field.default is True else name


def _of_setting(field: SettingField, group: str) -> Option:
    name, about = flag_name(field), field.flag
    names = (f"{'-' if len(name) == 1 else '--'}{name}", *about.aliases)
    dest = name.replace("-", "_")
    if field.kind is bool:
        return _switch(names, dest, about.help, group=group, is_advanced=about.advanced)
    separator = about.separator

    def split(text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(separator) if part.strip())

    return Option(
        names=names,
        dest=dest,
        help=about.help,
        metavar=about.metavar,
        group=group,
        is_advanced=about.advanced,
        words=SOME if field.is_list and separator is None else ONE,
        read=split if separator is not None else None,
        least=about.least,
        default=[] if field.is_list else None if field.is_required else field.default,
        choices=field.choices,
        is_required=field.is_required,
        is_list=field.is_list,
        kind=field.kind,
    )
