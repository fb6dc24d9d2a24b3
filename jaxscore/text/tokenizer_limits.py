"""Guarantees of a tokenizer's parts: where it splits a text, and how it changes its length.

Each rule holds for known parts alone. A part that is not known gives no guarantee.
"""

import base64
import itertools
import json
import math
import re
import string
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from jaxscore.types.token_texts import byte_of

ALPHANUMERIC = string.ascii_letters + string.digits
# Letters in every version of Unicode that a regex library may have.
_LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff\u0391-\u03a1\u03b1-\u03c9\u0410-\u044f"
    "\u05d0-\u05ea\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
)
_SEPARATORS = " \n,.\u3001\u3002\uff0c"
AFTER_LETTER = re.compile(f"(?<=[{_LETTERS}])(?=[{_SEPARATORS}])")
BEFORE_BLANK = re.compile(f"(?<=[{_LETTERS}])(?= )")
_INSIDE = re.compile(f"(?s)(?<=.)[{_SEPARATORS}]")  # a place of any of these, and more
# ASCII without letters, digits, blanks and separators: at the end of a token no place is beside it.
_APART = re.compile(f"[^\\w\\s{_SEPARATORS}\u0080-\U0010ffff]*")
BETWEEN_WORDS = re.compile(f"(?<=[{_LETTERS}])(?= [{_LETTERS}])")
_MOST_LEFT_OUT = 64  # first bytes; a published model lacks a few at most
MARK = "\u2581"  # SentencePiece's blank
_SPLIT_AT_BLANKS = {  # after the normalizer there are none
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# Mistral's pattern for Tekken, which `fix_mistral_regex` asks for.
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Patterns of published tokenizers (GPT-2, Llama 3, Qwen 2, GPT-4o, Tekken) whose matches end after
# a letter where a space, a newline, a comma or a full stop follows, and look no further than the
# whitespace that they end in.
SPLITS = frozenset(
    {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        _CONTRACTION + _WORDS + r"\p{N}{1,3}" + _REST,
        _CONTRACTION + _WORDS + r"\p{N}" + _REST,
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        TEKKEN,
    }
)
DIGITS = frozenset({r"\p{N}{1,3}", r"\p{N}", r"[0-9]", r"\d", r"[0-9][0-9][0-9]"})
KNOWN_PATTERNS = SPLITS | DIGITS | {" {2,}", r"\s+", "\n", " "}  # none takes long

# Normalizers that change each character by itself, or with the marks that follow it.
_LOCAL = frozenset("NFC NFD NFKC NFKD Lowercase StripAccents BertNormalizer".split())
_WITHOUT_BLANKS = ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")  # drop all blanks first
_COMPOSED = 4  # characters that NFC makes one of, at most


class CharacterLimit(NamedTuple):
    """How many characters a token has at most.

    Attributes:
        characters: of a text in one token.
        counted: finds the characters that are in some token for certain; None is every one.
    """

    characters: int
    counted: re.Pattern[str] | None

    def exceeds(self, text: str, n_tokens: int) -> bool:
        """Whether a text certainly has more tokens."""
        most = n_tokens * self.characters
        if self.counted is None or len(text) <= most:
            return len(text) > most
        return next(itertools.islice(self.counted.finditer(text), most, None), None) is not None


def character_limit(backend: Tokenizer) -> CharacterLimit | None:
    """How many characters of a text a token has at most; None if that is not certain."""
    factor, composes, drops = 1, False, False
    for part in parts(backend.normalizer):
        kind = part["type"]
        if kind in ("NFC", "NFKC"):
            factor, composes = factor * _COMPOSED, True
        elif kind in ("Strip", "StripAccents", "BertNormalizer", "Nmt"):
            drops = True
        elif kind == "Replace" and (found := part["pattern"].get("String")) is not None:
            n = len(part["content"])
            if not n and {*found} & {*ALPHANUMERIC}:
                return None
            drops |= not n
            factor *= math.ceil(len(found) / n) if n and found else 1
        elif kind not in ("NFD", "NFKD", "Lowercase", "Prepend"):
            return None
    for part in parts(backend.pre_tokenizer):
        kind = part["type"]
        if kind in _WITHOUT_BLANKS:
            drops = True
        elif kind not in ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"):
            return None
        if part.get("behavior") == "Removed":
            return None
    model, vocabulary = backend.model, backend.get_vocab()
    if type(model).__name__ not in ("BPE", "Unigram"):
        return None  # a word of any length may be one unknown token
    if any(getattr(model, f, None) for f in ("continuing_subword_prefix", "end_of_word_suffix")):
        return None
    added = backend.get_added_tokens_decoder().values()
    drops |= any(token.lstrip or token.rstrip for token in added)
    lengths = [len(token) for token in vocabulary]
    if backend.normalizer is not None:  # added tokens are found in the normalized text
        lengths += [len(backend.normalizer.normalize_str(token.content)) for token in added]
    longest = max(lengths, default=1) * factor
    if not drops:
        left_out = _left_out(backend, vocabulary)
        # Two characters may become one that is left out.
        if left_out is not None and not (composes and any(0xC2 <= b <= 0xF0 for b in left_out)):
            return CharacterLimit(longest, _without(left_out))
    known = "".join(c for c in ALPHANUMERIC if {c, c.lower()} <= vocabulary.keys())
    if not known:
        return None
    # What follows is no mark that makes another character of it.
    return CharacterLimit(longest, re.compile(f"[{known}](?=[{known} ])"))


def _left_out(backend: Tokenizer, vocabulary: Mapping[str, int]) -> list[int] | None:
    """First bytes in UTF-8 of characters that a model of bytes may leave out, since it has no token
    for them; None if the model may leave out any character, or very many."""
    if any(part["type"] == "ByteLevel" for part in parts(backend.pre_tokenizer)):
        names = {byte: name for name, byte in byte_of().items()}
    elif getattr(backend.model, "byte_fallback", False):
        names = {byte: f"<0x{byte:02X}>" for byte in range(256)}
    else:
        return None
    first = [*range(0x80), *range(0xC2, 0xF5)]
    found = [byte for byte in first if names[byte] not in vocabulary]
    return found if len(found) <= _MOST_LEFT_OUT else None


def _without(left_out: Sequence[int]) -> re.Pattern[str] | None:
    """Finds the characters with other first bytes; None is every character."""
    ranges = []
    for byte in left_out:
        if byte < 0x80:
            first = last = byte
        elif byte < 0xE0:
            first = (byte & 0x1F) << 6
            last = first + 0x3F
        elif byte < 0xF0:
            first = max(0x800, (byte & 0xF) << 12)
            last = ((byte & 0xF) << 12) + 0xFFF
        else:
            first = max(0x10000, (byte & 7) << 18)
            last = min(0x10FFFF, ((byte & 7) << 18) + 0x3FFFF)
        ranges.append(f"\\U{first:08x}-\\U{last:08x}")
    return re.compile(f"[^{''.join(ranges)}]") if ranges else None


class Cuts(NamedTuple):
    """Where a text can be cut without another id.

    Attributes:
        pattern: finds the places, each at the beginning of a piece.
        leaves_blank_out: whether the blank there must be left out, since the tokenizer puts one
            before each text.
    """

    pattern: re.Pattern[str]
    leaves_blank_out: bool = False


def cuts(backend: Tokenizer) -> Cuts | None:
    """Where a text can be cut; None if no place is certain."""
    return _cuts_of_sentencepiece(backend) or _cuts_of_words(backend)


def _cuts_of_sentencepiece(backend: Tokenizer) -> Cuts | None:
    """Cuts for a BPE model that reads a text without splitting it, with blanks as `MARK`.

    No merge crosses the place before a mark if no token has one behind another character.
    """
    normalizer, cut = list(parts(backend.normalizer)), list(parts(backend.pre_tokenizer))
    prepends = normalizer[:1] == [{"type": "Prepend", "prepend": MARK}]
    if normalizer[prepends:] != [
        {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    ] or cut not in ([], [_SPLIT_AT_BLANKS]):
        return None
    model, vocabulary = backend.model, backend.get_vocab()
    if type(model).__name__ != "BPE" or model.dropout or model.ignore_merges:
        return None
    crossing = re.compile(f"[^{MARK}]{MARK}")
    if MARK not in vocabulary or any(map(crossing.search, vocabulary)):
        return None
    for token in backend.get_added_tokens_decoder().values():
        # It may stand across the place, right behind it, or before it and look across it.
        looks = token.rstrip or token.single_word
        beside = f"[{_LETTERS}] |^[{_LETTERS} ]"
        if re.search(beside + f"|^{MARK}|[{_LETTERS}]$" * looks, token.content):
            return None
    return Cuts(BETWEEN_WORDS, prepends)


def _cuts_of_words(backend: Tokenizer) -> Cuts | None:
    """Cuts for a tokenizer whose pre-tokenizers split a text at words."""
    splits, pattern, ended, inside = False, AFTER_LETTER, False, None
    pretokenizers = list(parts(backend.pre_tokenizer))
    for part in parts(backend.normalizer):
        if part["type"] not in _LOCAL:
            return None
        if part["type"] in ("NFD", "NFKD"):
            # A mark then stands between letter and comma, and is in one piece with the comma.
            pattern, inside = BEFORE_BLANK, _INSIDE
        if part.get("handle_chinese_chars"):  # has blanks around them, next to those of the text
            inside = _INSIDE
            if not pretokenizers or pretokenizers[0]["type"] not in _WITHOUT_BLANKS:
                return None
    for part in pretokenizers:
        kind = part["type"]
        if ended:  # its pieces are bytes, of which the next part would see other characters
            return None
        if kind == "ByteLevel":
            splits, ended = splits or part["use_regex"], True
            if part["add_prefix_space"]:
                pattern = BEFORE_BLANK
        elif kind == "Metaspace":
            splits, ended, pattern = splits or part.get("split", True), True, BEFORE_BLANK
        elif kind in ("Whitespace", "BertPreTokenizer"):
            splits = True
        elif kind == "WhitespaceSplit":
            splits, pattern = True, BEFORE_BLANK
        elif kind == "Split" and part["behavior"] == "Isolated" and not part["invert"]:
            found = part["pattern"].get("Regex")
            if found not in SPLITS | DIGITS:
                return None
            splits = splits or found in SPLITS
        elif kind not in ("Digits", "Punctuation") or part.get("behavior", "").startswith("Merged"):
            return None
    if not splits:
        return None
    for token in backend.get_added_tokens_decoder().values():
        found = [token.content]
        if backend.normalizer is not None:
            found.append(backend.normalizer.normalize_str(token.content))
        for content in found:
            # The beginning of a cut is none where a token is found across it, or looks across it.
            ends = content[:1] + content[-1:]
            looks = token.lstrip or token.rstrip or token.single_word
            if (inside or pattern).search(content) or (looks and not _APART.fullmatch(ends)):
                return None
    return Cuts(pattern)


def growth(component: Any) -> int:
    """How many times longer the parts of a normalizer or decoder that replace text can make it."""
    return math.prod(map(_growth, parts(component)))


def _growth(part: Mapping[str, Any]) -> int:
    if part["type"] == "Replace":
        n = len(part["content"])
        found = part["pattern"].get("String")
        if found is None and part["pattern"]["Regex"] in KNOWN_PATTERNS:
            return max(1, n)
        # What may match nothing does so between two characters.
        return max(1, math.ceil(n / len(found))) if found else 1 + n
    if part["type"] == "Prepend":
        return max(1, len(part["prepend"]))
    if part["type"] == "Precompiled":
        raw = base64.b64decode(part["precompiled_charsmap"] or "")
        if len(raw) < 4:
            return 1
        replacements = raw[4 + struct.unpack("<I", raw[:4])[0] :].decode("utf-8", "replace")
        return max(1, *map(len, replacements.split("\0")))
    return 1


def parts(component: Any) -> Iterator[Mapping[str, Any]]:
    """Parts of a normalizer, pre-tokenizer or decoder, as JSON, in order."""
    if component is not None:
        yield from _flat(json.loads(component.__getstate__()))


def _flat(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if part["type"] != "Sequence":
        yield part
        return
    for name in ("normalizers", "pretokenizers", "decoders"):
        for inner in part.get(name, ()):
            yield from _flat(inner)
