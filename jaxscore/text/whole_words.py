"""Words of texts, also in scripts without spaces between words."""

import functools
import re

# Han, kana, Hangul (whose particles follow a noun without a space), Thai, Lao, Khmer, Burmese.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3130-\u318f\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
# Those that write no space between words at all; Korean does.
NEVER_SPACED = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3041-\u3096\u309d-\u309f\u30a1-\u30fa"
    "\u30fd-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
# Bytes of a mean word: more than in any language with spaces, and than in Chinese with spaces
LONGEST_WORD, LONGEST_UNSPACED = 60, 12
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


def lacks_spaces(beginning: str, n_bytes: int, n_words: int) -> bool:
    """Return True if a text does not separate its words, so that numbers per word are void.

    Args:
        beginning: the first characters, which show its script.
        n_bytes, n_words: size of the whole text; words are what spaces separate.
    """
    word = n_bytes / n_words
    is_unspaced = 2 * len(NEVER_SPACED.findall(beginning)) > sum(map(str.isalpha, beginning))
    is_long = word > LONGEST_UNSPACED or n_words == 1
    return word > LONGEST_WORD or (is_unspaced and is_long)
