"""Guarantees of a tokenizer's components: its splits of a text, and its effect on text length.

Rules exist only for known components. Unknown components are not guaranteed anything.
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
# Letters in all versions of Unicode that regex libraries use
_LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff\u0391-\u03a1\u03b1-\u03c9\u0410-\u044f"
    "\u05d0-\u05ea\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
)
_SEPARATORS = " \n,.\u3001\u3002\uff0c"
AFTER_LETTER = re.compile(f"(?<=[{_LETTERS}])(?=[{_SEPARATORS}])")
BEFORE_SPACE = re.compile(f"(?<=[{_LETTERS}])(?= )")
_INSIDE = re.compile(f"(?s)(?<=.)[{_SEPARATORS}]")  # matches wherever the other patterns match
# ASCII without letters, digits, spaces and separators: cuts are never next to these characters.
_APART = re.compile(f"[^\\w\\s{_SEPARATORS}\u0080-\U0010ffff]*")
BETWEEN_WORDS = re.compile(f"(?<=[{_LETTERS}])(?= [{_LETTERS}])")
_MOST_LEFT_OUT = 64  # first bytes; published models lack only a few
MARK = "\u2581"  # SentencePiece's replacement for a space
_SPLIT_AT_SPACES = {  # no effect: the normalizer has replaced all spaces
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# Mistral's pattern for Tekken, which `fix_mistral_regex` sets
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Patterns of published tokenizers (GPT-2, Llama 3, Qwen 2, GPT-4o, Tekken). Their matches end after
# a letter that is followed by a space, a newline, a comma or a full stop, and look ahead only
# within trailing whitespace.
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
KNOWN_PATTERNS = SPLITS | DIGITS | {" {2,}", r"\s+", "\n", " "}  # all of them fast

# Normalizers that change each character independently, or together with its combining marks
_LOCAL = frozenset("NFC NFD NFKC NFKD Lowercase StripAccents BertNormalizer".split())
_DROP_WHITESPACE = ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")  # drop all whitespace
_COMPOSED = 4  # maximum number of characters that NFC composes into one


class CharacterLimit(NamedTuple):
    """The maximum number of characters per token.

    Attributes:
        characters: the maximum number of characters of a text in one token.
        counted: a pattern for characters that are certainly in a token; None if all are.
    """

    characters: int
    counted: re.Pattern[str] | None

    def exceeds(self, text: str, n_tokens: int) -> bool:
        """Return True if a text certainly has more than `n_tokens` tokens."""
        limit = n_tokens * self.characters
        if self.counted is None or len(text) <= limit:
            return len(text) > limit
        return next(itertools.islice(self.counted.finditer(text), limit, None), None) is not None


def character_limit(backend: Tokenizer) -> CharacterLimit | None:
    """Return the limit of characters per token, or None if it is unknown."""
    factor, composes, drops = 1, False, False
    for component in parts(backend.normalizer):
        component_type = component["type"]
        if component_type in ("NFC", "NFKC"):
            factor, composes = factor * _COMPOSED, True
        elif component_type in ("Strip", "StripAccents", "BertNormalizer", "Nmt"):
            drops = True
        elif (
            component_type == "Replace" and (old := component["pattern"].get("String")) is not None
        ):
            n = len(component["content"])
            if not n and {*old} & {*ALPHANUMERIC}:
                return None
            drops |= not n
            factor *= math.ceil(len(old) / n) if n and old else 1
        elif component_type not in ("NFD", "NFKD", "Lowercase", "Prepend"):
            return None
    for component in parts(backend.pre_tokenizer):
        component_type = component["type"]
        if component_type in _DROP_WHITESPACE:
            drops = True
        elif component_type not in ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"):
            return None
        if component.get("behavior") == "Removed":
            return None
    model, vocabulary = backend.model, backend.get_vocab()
    if type(model).__name__ not in ("BPE", "Unigram"):
        return None  # a word of any length may be one unknown token
    if any(getattr(model, f, None) for f in ("continuing_subword_prefix", "end_of_word_suffix")):
        return None
    added = backend.get_added_tokens_decoder().values()
    drops |= any(token.lstrip or token.rstrip for token in added)
    lengths = [len(token) for token in vocabulary]
    if backend.normalizer is not None:  # added tokens are matched in the normalized text
        lengths += [len(backend.normalizer.normalize_str(token.content)) for token in added]
    longest = max(lengths, default=1) * factor
    if not drops:
        left_out = _left_out(backend, vocabulary)
        # Two characters may compose to one that is left out.
        if left_out is not None and not (composes and any(0xC2 <= b <= 0xF0 for b in left_out)):
            return CharacterLimit(longest, _without(left_out))
    in_vocabulary = "".join(c for c in ALPHANUMERIC if {c, c.lower()} <= vocabulary.keys())
    if not in_vocabulary:
        return None
    # The lookahead excludes characters that compose with the following combining mark.
    pattern = f"[{in_vocabulary}](?=[{in_vocabulary} ])"
    return CharacterLimit(longest, re.compile(pattern))


def _left_out(backend: Tokenizer, vocabulary: Mapping[str, int]) -> list[int] | None:
    """Return the first UTF-8 bytes of characters that a byte-level model may leave out.

    Such bytes are missing in the vocabulary. Returns None if the model may leave out any character,
    or very many.
    """
    if any(component["type"] == "ByteLevel" for component in parts(backend.pre_tokenizer)):
        names = {byte: name for name, byte in byte_of().items()}
    elif getattr(backend.model, "byte_fallback", False):
        names = {byte: f"<0x{byte:02X}>" for byte in range(256)}
    else:
        return None
    first = [*range(0x80), *range(0xC2, 0xF5)]
    missing = [byte for byte in first if names[byte] not in vocabulary]
    return missing if len(missing) <= _MOST_LEFT_OUT else None


def _without(left_out: Sequence[int]) -> re.Pattern[str] | None:
    """Return a pattern for characters with other first bytes, or None if it is every character."""
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
    """Positions at which a text can be cut without changing its ids.

    Attributes:
        pattern: a pattern whose matches start at the beginning of a piece.
        drops_space: if True, the space at the cut must be dropped, since the tokenizer adds one
            before each text.
    """

    pattern: re.Pattern[str]
    drops_space: bool = False


def cuts(backend: Tokenizer) -> Cuts | None:
    """Return the cuts of a tokenizer, or None if no cut is certain."""
    return _cuts_of_sentencepiece(backend) or _cuts_of_words(backend)


def _cuts_of_sentencepiece(backend: Tokenizer) -> Cuts | None:
    """Return the cuts for a BPE model without pre-tokenizer that reads a space as `MARK`.

    No merge crosses the position before a mark if no token has a mark after another character.
    """
    normalizer, splits = list(parts(backend.normalizer)), list(parts(backend.pre_tokenizer))
    prepends = normalizer[:1] == [{"type": "Prepend", "prepend": MARK}]
    if normalizer[prepends:] != [
        {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    ] or splits not in ([], [_SPLIT_AT_SPACES]):
        return None
    model, vocabulary = backend.model, backend.get_vocab()
    if type(model).__name__ != "BPE" or model.dropout or model.ignore_merges:
        return None
    crossing = re.compile(f"[^{MARK}]{MARK}")
    if MARK not in vocabulary or any(map(crossing.search, vocabulary)):
        return None
    for token in backend.get_added_tokens_decoder().values():
        # The token may match across the cut, directly after it, or before it with a lookahead.
        looks_ahead = token.rstrip or token.single_word
        touching = f"[{_LETTERS}] |^[{_LETTERS} ]"
        if re.search(touching + f"|^{MARK}|[{_LETTERS}]$" * looks_ahead, token.content):
            return None
    return Cuts(BETWEEN_WORDS, prepends)


def _cuts_of_words(backend: Tokenizer) -> Cuts | None:
    """Return the cuts for a tokenizer whose pre-tokenizers split a text at words."""
    splits, pattern, ended, inside = False, AFTER_LETTER, False, None
    pretokenizers = list(parts(backend.pre_tokenizer))
    for component in parts(backend.normalizer):
        if component["type"] not in _LOCAL:
            return None
        if component["type"] in ("NFD", "NFKD"):
            # A combining mark between letter and comma is in one piece with the comma.
            pattern, inside = BEFORE_SPACE, _INSIDE
        if component.get("handle_chinese_chars"):  # adds spaces, which may follow others
            inside = _INSIDE
            if not pretokenizers or pretokenizers[0]["type"] not in _DROP_WHITESPACE:
                return None
    for component in pretokenizers:
        component_type, behavior = component["type"], component.get("behavior", "")
        if ended:  # the pieces are bytes, which the next component would read as other characters
            return None
        if component_type == "ByteLevel":
            splits, ended = splits or component["use_regex"], True
            if component["add_prefix_space"]:
                pattern = BEFORE_SPACE
        elif component_type == "Metaspace":
            splits, ended, pattern = splits or component.get("split", True), True, BEFORE_SPACE
        elif component_type in ("Whitespace", "BertPreTokenizer"):
            splits = True
        elif component_type == "WhitespaceSplit":
            splits, pattern = True, BEFORE_SPACE
        elif component_type == "Split" and behavior == "Isolated" and not component["invert"]:
            regex = component["pattern"].get("Regex")
            if regex not in SPLITS | DIGITS:
                return None
            splits = splits or regex in SPLITS
        elif component_type not in ("Digits", "Punctuation") or behavior.startswith("Merged"):
            return None
    if not splits:
        return None
    for token in backend.get_added_tokens_decoder().values():
        contents = [token.content]
        if backend.normalizer is not None:
            contents.append(backend.normalizer.normalize_str(token.content))
        for content in contents:
            # A token must not match or look across a cut.
            ends = content[:1] + content[-1:]
            looks_around = token.lstrip or token.rstrip or token.single_word
            if (inside or pattern).search(content) or (looks_around and not _APART.fullmatch(ends)):
                return None
    return Cuts(pattern)


def growth(component: Any) -> int:
    """Return the maximum factor by which a normalizer's or decoder's replacements lengthen text."""
    return math.prod(map(_growth, parts(component)))


def _growth(component: Mapping[str, Any]) -> int:
    if component["type"] == "Replace":
        n = len(component["content"])
        old = component["pattern"].get("String")
        if old is None and component["pattern"]["Regex"] in KNOWN_PATTERNS:
            return max(1, n)
        # A pattern that matches the empty string may match between any two characters.
        return max(1, math.ceil(n / len(old))) if old else 1 + n
    if component["type"] == "Prepend":
        return max(1, len(component["prepend"]))
    if component["type"] == "Precompiled":
        raw = base64.b64decode(component["precompiled_charsmap"] or "")
        if len(raw) < 4:
            return 1
        replacements = raw[4 + struct.unpack("<I", raw[:4])[0] :].decode("utf-8", "replace")
        return max(1, *map(len, replacements.split("\0")))
    return 1


def parts(component: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the components of a normalizer, pre-tokenizer or decoder as JSON, in order."""
    if component is not None:
        yield from _flat(json.loads(component.__getstate__()))


def _flat(component: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if component["type"] != "Sequence":
        yield component
        return
    for name in ("normalizers", "pretokenizers", "decoders"):
        for inner in component.get(name, ()):
            yield from _flat(inner)
