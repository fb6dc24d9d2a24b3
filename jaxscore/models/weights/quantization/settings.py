"""Settings of a `quantization_config`: each is read, known to be inert, or refused."""

import dataclasses
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError

KEY = "quantization_config"
ADVICE = "give the unquantized checkpoint"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings by name.

    Attributes:
        values: the values of `quantization_config` or of an object inside it.
        where: the file and the path of the object in it, for error messages.
    """

    values: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, raw: Mapping[str, Any], folder: Path) -> "Settings":
        """Return the settings of a raw `config.json`.

        Raises:
            InputError: `quantization_config` is not an object.
        """
        values, where = raw.get(KEY), folder / "config.json"
        if not isinstance(values, dict):
            raise InputError(f"{where}: {KEY} is {values!r}, expected an object; {ADVICE}")
        return cls(values, f"{where}: {KEY}")

    def below(self, values: Any, name: str) -> "Settings":
        """Return the settings of an object inside these settings.

        Raises:
            InputError: the value is not an object.
        """
        where = f"{self.where}: {name}"
        if not isinstance(values, dict):
            raise InputError(f"{where} is {values!r}, expected an object; {ADVICE}")
        return Settings(values, where)

    def refuse_others(self, read: Set[str], inert: Set[str]) -> None:
        """Refuse settings that are neither read nor inert, unless their value means "off".

        Raises:
            InputError: naming the unsupported settings.
        """
        unsupported = {
            name: value
            for name, value in self.values.items()
            if name not in read | inert
            and not (value is None or value is False or value in ({}, [], ""))
        }
        if unsupported:
            listed = ", ".join(f"{name}={value!r}" for name, value in sorted(unsupported.items()))
            raise InputError(f"{self.where}: settings that are not handled: {listed}; {ADVICE}")

    def one_of(self, name: str, handled: tuple[Any, ...], default: Any = None) -> Any:
        """Return a setting that must be one of `handled`.

        Raises:
            InputError: the value is another one, or missing without a default.
        """
        value = self.values.get(name, default)
        # `in` would accept 1 for True
        if not any(type(value) is type(option) and value == option for option in handled):
            raise self.refusal(name, value, f"handled are {', '.join(map(repr, handled))}")
        return value

    def size(self, name: str, default: Any = None) -> int:
        """Return a whole number above 0, or -1 for "all".

        Raises:
            InputError: the value is something else.
        """
        value = self.values.get(name, default)
        if type(value) is not int or (value < 1 and value != -1):
            raise self.refusal(name, value, "expected a whole number above 0, or -1")
        return value

    def blocks(self, name: str, default: Any = None) -> tuple[int, int]:
        """Return the rows and columns of a block.

        Raises:
            InputError: the value is not a pair of whole numbers above 0.
        """
        value = self.values.get(name, default)
        is_pair = isinstance(value, list | tuple) and len(value) == 2
        if not is_pair or not all(type(n) is int and n > 0 for n in value):
            raise self.refusal(name, value, "expected two whole numbers above 0")
        return value[0], value[1]

    def refusal(self, name: str, value: Any, expected: str) -> InputError:
        """Return the error for a value that is not supported."""
        return InputError(f"{self.where}: {name} is {value!r}, {expected}; {ADVICE}")
