"""Which model types jaxscore covers, and how."""

from collections.abc import Iterator
from typing import NamedTuple

from jaxscore.models.families import FAMILIES
from jaxscore.models.transformers_flax.guards import GUARDS
from jaxscore.models.wrappers import FAMILY_OF, WRAPPERS, around

SINCE = "0.1.0"  # what is here came with the first release
LINES = ("4.57", "5")  # of transformers
# Model types without a PyTorch class in transformers 4.57: compared under 5 alone
WITHOUT_4 = frozenset("gemma4 gemma4_text minimax_m2 ministral3 nanochat".split())


class Covered(NamedTuple):
    """One model type.

    Attributes:
        model_type: of a `config.json`.
        implementations: that take it, the one of `--model-impl auto` first.
        texts: families of the text models that it may hold, where it is a wrapper.
        since: version of jaxscore that first covers it.
        lines: of transformers with a PyTorch class for it, which it is compared with.
    """

    model_type: str
    implementations: tuple[str, ...]
    texts: tuple[str, ...]
    since: str
    lines: tuple[str, ...]


def covered() -> Iterator[Covered]:
    """Every model type that loads, by name."""
    wrappers = set(around(FAMILIES))
    for kind in sorted({*FAMILIES, *GUARDS, *wrappers}):
        native = ("native",) if kind in FAMILIES or kind in wrappers else ()
        flax = ("transformers",) if kind in GUARDS else ()
        inside = WRAPPERS[kind].texts if kind in wrappers else ()
        texts = (FAMILY_OF.get(one, one) for one in inside)
        lines = LINES[1:] if kind in WITHOUT_4 else LINES
        yield Covered(
            kind, native + flax, tuple(one for one in texts if one in FAMILIES), SINCE, lines
        )
