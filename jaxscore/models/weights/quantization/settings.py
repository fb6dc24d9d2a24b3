"""Settings of a `quantization_config`: each is read, known to change nothing, or refused."""

import dataclasses
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError

KEY = "quantization_config"
ADVICE = "give the unquantized checkpoint"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings by name, as `config.json` has them.

    Attributes:
        values: of `quantization_config`, or of an object inside it.
        where: the file and the path of the object in it, for errors.
    """

    values: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, raw: Mapping[str, Any], folder: Path) -> "Settings":
        """Settings of a raw `config.json`.

        Raises:
            InputError: they are not an object.
        """
        values, where = raw.get(KEY), folder / "config.json"
        if not isinstance(values, dict):
            raise InputError(f"{where}: {KEY} is {values!r}, expected an object; {ADVICE}")
        return cls(values, f"{where}: {KEY}")

    def below(self, values: Any, name: str) -> "Settings":
        """An object inside these settings.

        Raises:
            InputError: it is not an object.
        """
        where = f"{self.where}: {name}"
        if not isinstance(values, dict):
            raise InputError(f"{where} is {values!r}, expected an object; {ADVICE}")
        return Settings(values, where)

    def refuse_others(self, read: Set[str], inert: Set[str]) -> None:
        """Refuse settings that are neither read nor inert, unless their value says "off".

        Raises:
            InputError: naming the settings.
        """
        strange = {
            name: value
            for name, value in self.values.items()
            if name not in read | inert
            and not (value is None or value is False or value in ({}, [], ""))
        }
        if strange:
            listed = ", ".join(f"{name}={value!r}" for name, value in sorted(strange.items()))
            raise InputError(f"{self.where}: settings that are not handled: {listed}; {ADVICE}")

    def one_of(self, name: str, handled: tuple[Any, ...], default: Any = None) -> Any:
        """Value of a setting that must be one of `handled`.

        Raises:
            InputError: it has another value, or is missing without a default.
        """
        value = self.values.get(name, default)
        # `in` takes 1 for True
        if not any(type(value) is type(known) and value == known for known in handled):
            raise self.refusal(name, value, f"handled are {', '.join(map(repr, handled))}")
        return value

    def size(self, name: str, default: Any = None) -> int:
        """A whole number above 0, or -1 for "all".

        Raises:
            InputError: anything else.
        """
        value = self.values.get(name, default)
        if type(value) is not int or (value < 1 and value != -1):
            raise self.refusal(name, value, "expected a whole number above 0, or -1")
        return value

    def blocks(self, name: str, default: Any = None) -> tuple[int, int]:
        """Rows and columns of a block.

        Raises:
            InputError: not a pair of whole numbers above 0.
        """
        value = self.values.get(name, default)
        pair = isinstance(value, list | tuple) and len(value) == 2
        if not pair or not all(type(n) is int and n > 0 for n in value):
            raise self.refusal(name, value, "expected two whole numbers above 0")
        return value[0], value[1]

    def refusal(self, name: str, value: Any, expected: str) -> InputError:
        """Error for a value that is not handled."""
        return InputError(f"{self.where}: {name} is {value!r}, {expected}; {ADVICE}")
