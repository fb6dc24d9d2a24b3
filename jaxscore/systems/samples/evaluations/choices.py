"""What the systems that sample and score responses share: checks of settings."""

import dataclasses
import math
from typing import Any, cast

from jaxscore.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a system that computes nothing with a model: none."""

    def record(self) -> dict[str, Any]:
        """The settings as a report has them."""
        return dataclasses.asdict(self)


def check_gold(value: object) -> None:
    """Refuse a setting `gold` that is no name of a field.

    Raises:
        InputError: naming its value.
    """
    if value is not None and (not isinstance(value, str) or not value):
        raise InputError(f"setting gold is {value!r}, expected the name of a field")


def check_number(name: str, value: object) -> None:
    """Refuse a setting that is no finite number.

    Raises:
        InputError: naming the setting and its value.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(cast(float, value)):
        raise InputError(f"setting {name} is {value!r}, expected a finite number")


def check_drawing(temperature: object, top_p: object) -> None:
    """Refuse a temperature or a top-p that no token can be drawn with.

    Raises:
        InputError: naming the setting and its value.
    """
    check_number("temperature", temperature)
    check_number("top_p", top_p)
    if cast(float, temperature) < 0:
        raise InputError(f"setting temperature is {temperature}, expected 0 or more")
    if not 0 < cast(float, top_p) <= 1:
        raise InputError(f"setting top_p is {top_p}, expected above 0 up to 1")
