"""Invented names from syllables; an eighth of all possible names is kept from training.

Every name is made of the same syllables, so a held-out name is new as a whole and known in
its pieces: a model can copy it, and cannot have memorised it.
"""

import random
import zlib


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ONSETS = _words(
    "Al Ar Bel Bor Bran Cal Cor Dal Dor Dun El Fen Fal Gar Gal Har Hel Il Jor Kal Kel Kor Lan "
    "Lor Mal Mer Mor Nal Nor Ol Or Pel Per Quin Ral Ros Sal Sel Sor Tal Tel Tor Ul Ur Val Vel "
    "Vor Wal Wen Yar Zel Zor Él Ör Gré Söl"
)
MIDDLES = _words("a ba da de di ga ka la le li lo ma mi na ne no ra ri ro sa ta ti va vi zo né lö")
ENDS = {
    "person": _words("nan vek ric mund sina lene dra thea wyn jo bert ñes"),
    "city": _words("burg holm mere ford stad minster gate haven port wick"),
    "river": _words("wash lau bach stream tave ness lode rhin"),
    "company": _words("tec lux mar gen dyne sol nova trade"),
}
COMPANY_FORMS = ("{}", "{}", "{} Works", "{} Mills", "{} Lines")
CITY_FORMS = ("{}", "{}", "{}", "{}", "Port {}")
FORMS = {"company": COMPANY_FORMS, "city": CITY_FORMS}
PROFESSIONS = _words(
    "baker painter doctor teacher sailor weaver lawyer farmer printer miller singer clerk"
)
HELD_OUT_ONE_IN = 8


def is_held_out(root: str) -> bool:
    """Return True if a name's invented word is excluded from training, decided by its bytes."""
    return zlib.crc32(root.encode("utf-8")) % HELD_OUT_ONE_IN == 0


def invented_word(name: str) -> str:
    """The word of a name that was made of syllables: `Port Valmere` gives `Valmere`."""
    other_words = {"Port", *(form.partition(" ")[2] for form in COMPANY_FORMS)}
    return next(word for word in name.split() if word not in other_words)


def _onset(name: str) -> str:
    word = invented_word(name)
    return max((onset for onset in ONSETS if word.startswith(onset)), key=len)


class Names:
    """Draws names that differ from all it drew before.

    Args:
        rng: the source of chance.
        held_out: draw only names kept from training, or only names that are not.
    """

    def __init__(self, rng: random.Random, held_out: bool) -> None:
        self._rng = rng
        self._held_out = held_out
        self._drawn: set[str] = set()

    def draw(self, name_type: str, like: str | None = None) -> str:
        """Draw a new name: of a person, city, river or company, or a profession (a plain noun).

        Args:
            like: a name whose first syllable the new one has too.
        """
        if name_type == "profession":
            return self._rng.choice(PROFESSIONS)
        while True:
            middle = self._rng.choice(MIDDLES) if self._rng.random() < 0.5 else ""
            onset = self._rng.choice(ONSETS) if like is None else _onset(like)
            root = onset + middle + self._rng.choice(ENDS[name_type])
            if root not in self._drawn and is_held_out(root) == self._held_out:
                break
        self._drawn.add(root)
        return self._rng.choice(FORMS.get(name_type, ("{}",))).format(root)
