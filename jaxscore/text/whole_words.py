"""Phrases that are whole words of a text, also in scripts without spaces between words."""

import functools
import re

# Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana, Han.
NO_SPACES = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
UNSPACED = NO_SPACES + "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"  # with Hangul's particles
_LETTER = rf"[^\W{UNSPACED}]"  # a letter or digit next to which a word goes on
_IS_LETTER = re.compile(_LETTER)
_BEFORE = rf"(?<!{_LETTER})(?<!{_LETTER}[-'\u2019])"  # "no-one" and "No's" have no word "no"
_AFTER = rf"(?!{_LETTER})(?![-'\u2019]{_LETTER})"
_BEFORE_DIGIT = r"(?<![0-9][.,])(?<![-\u2212])"  # 1 is not a word of 0.1 or -1
_AFTER_DIGIT = r"(?![.,][0-9])"


@functools.lru_cache(maxsize=4096)
def whole_words(phrase: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """Return the pattern that finds a phrase, of at least one character, as whole words."""
    first, last = phrase[0], phrase[-1]
    before = _BEFORE if _IS_LETTER.match(first) else ""
    after = _AFTER if _IS_LETTER.match(last) else ""
    if first.isdecimal():
        before += _BEFORE_DIGIT
    if last.isdecimal():
        after += _AFTER_DIGIT
    flags = re.IGNORECASE if ignore_case else 0
    return re.compile(before + re.escape(phrase) + after, flags)
