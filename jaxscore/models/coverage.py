"""Which model types jaxscore covers, and how."""

from collections.abc import Iterator
from typing import NamedTuple

from jaxscore.models.families import FAMILIES
from jaxscore.models.transformers_flax.guards import GUARDS
from jaxscore.models.wrappers import FAMILY_OF, WRAPPERS, around

SINCE = "0.1.0"  # what is here came with the first release
LINES = ("4.57", "5")  # of transformers
# Families compared under transformers 5 alone: 4.57 has no PyTorch class for these
WITHOUT_4 = frozenset("gemma4_text minimax_m2 ministral3 nanochat".split())
# and a class that computes something else, or fails, for these
NOT_BY_4 = frozenset("deepseek_v2 ernie4_5_moe gpt_oss llama4_text".split())


class Covered(NamedTuple):
    """One model type.

    Attributes:
        model_type: of a `config.json`.
        implementations: that take it, the one of `--model-impl auto` first.
        texts: families of the text models that it may hold, where it is a wrapper.
        since: version of jaxscore that first covers it.
        lines: of transformers whose PyTorch class it is compared with; for a wrapper, those of
            any of its texts.
    """

    model_type: str
    implementations: tuple[str, ...]
    texts: tuple[str, ...]
    since: str
    lines: tuple[str, ...]


def covered() -> Iterator[Covered]:
    """Every model type that loads, by name."""
    wrappers = set(around(FAMILIES))
    for kind in sorted({*FAMILIES, *wrappers}):
        flax = ("transformers",) if kind in GUARDS else ()
        inside = WRAPPERS[kind].texts if kind in wrappers else ()
        families = (FAMILY_OF.get(one, one) for one in inside)
        texts = tuple(one for one in families if one in FAMILIES)
        yield Covered(kind, ("native", *flax), texts, SINCE, _lines(texts or (kind,)))


def _lines(families: tuple[str, ...]) -> tuple[str, ...]:
    by_5_alone = WITHOUT_4 | NOT_BY_4
    return LINES[1:] if by_5_alone.issuperset(families) else LINES
