"""A `quantization_config`, of which every setting is read, decides nothing here, or is refused."""

import dataclasses
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError

NAME = "quantization_config"
ADVICE = "give the unquantized checkpoint"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings by name, as `config.json` has them.

    Attributes:
        values: of `quantization_config`, or of an object in it.
        where: the file, and what the object is called in it; named in errors.
    """

    values: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, raw: Mapping[str, Any], folder: Path) -> "Settings":
        """Those of a `config.json`.

        Raises:
            InputError: they are no object.
        """
        values, where = raw.get(NAME), folder / "config.json"
        if not isinstance(values, dict):
            raise InputError(f"{where}: {NAME} is {values!r}, expected an object; {ADVICE}")
        return cls(values, f"{where}: {NAME}")

    def below(self, values: Any, name: str) -> "Settings":
        """An object inside these settings.

        Raises:
            InputError: it is none.
        """
        where = f"{self.where}: {name}"
        if not isinstance(values, dict):
            raise InputError(f"{where} is {values!r}, expected an object; {ADVICE}")
        return Settings(values, where)

    def refuse_others(self, read: Set[str], inert: Set[str]) -> None:
        """Refuse what is neither read nor known to decide nothing, unless it says that it is off.

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
        """The value of a setting, which has to be one of those handled.

        Raises:
            InputError: it is another one, or there is none.
        """
        value = self.values.get(name, default)
        # `in` takes 1 for True
        if not any(type(value) is type(one) and value == one for one in handled):
            raise self.refusal(name, value, f"handled are {', '.join(map(repr, handled))}")
        return value

    def size(self, name: str, default: Any = None) -> int:
        """A whole number above 0, or -1 for as many as there are.

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
            InputError: they are no pair of whole numbers above 0.
        """
        value = self.values.get(name, default)
        pair = isinstance(value, list | tuple) and len(value) == 2
        if not pair or not all(type(n) is int and n > 0 for n in value):
            raise self.refusal(name, value, "expected two whole numbers above 0")
        return value[0], value[1]

    def refusal(self, name: str, value: Any, expected: str) -> InputError:
        """For a value that is not handled."""
        return InputError(f"{self.where}: {name} is {value!r}, {expected}; {ADVICE}")
