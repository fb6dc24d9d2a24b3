"""Settings of `compare`."""

import dataclasses
from typing import Any

from jaxscore.systems.settings import check_setting, check_whole_number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `compare`.

    Attributes:
        n_bootstrap: draws of a 95% interval.
        n_resamples: patterns of signs that are drawn for a test, where they are too many to
            enumerate.
        seed: of both.
        limit: only the first so many pairs are compared; None for all.
        force: compare runs that differ in a setting which decides what is counted.
    """

    n_bootstrap: int = 1000
    n_resamples: int = 9999
    seed: int = 0
    limit: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InputError: naming the setting, what it is and what is expected.
        """
        check_whole_number("n_bootstrap", self.n_bootstrap, 1)
        check_whole_number("n_resamples", self.n_resamples, 1)
        check_whole_number("seed", self.seed)
        if self.limit is not None:
            check_whole_number("limit", self.limit, 1)
        check_setting("force", self.force, (True, False))

    def record(self) -> dict[str, Any]:
        """The settings as a report has them."""
        return dataclasses.asdict(self)
