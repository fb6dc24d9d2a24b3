"""A tokenizer from the metadata of a GGUF file, such that its ids are llama.cpp's.

`tokenizer.ggml.model` "gpt2" is BPE over bytes, whose text is split by the regular expressions that
`tokenizer.ggml.pre` names; "llama" is SentencePiece's BPE with byte fallback, which has scores in
place of merges.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import GgufFile

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
# `tokenizer.ggml.token_type`
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
NO_BLANKS_AFTER = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3's added tokens
MOST_CHARACTERS = 1024  # of a token: its merges take the square of them
BLANK = "▁"  # in place of a blank in SentencePiece's tokens

# Splits of a text as llama.cpp's llama-vocab.cpp has them, one after another
_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_LETTERS = rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LLAMA3 = rf"{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_BLANKS}"
_QWEN2 = rf"{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_BLANKS}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_START = r"[^\r\n\p{L}\p{N}]?"


def _cased(ending: str) -> str:
    """Words that are split before a capital letter."""
    return f"{_START}[{_UPPER}]*[{_LOWER}]+{ending}|{_START}[{_UPPER}]+[{_LOWER}]*{ending}"


class Split(NamedTuple):
    """How a text becomes words, and what a word is.

    Attributes:
        patterns: regular expressions, applied one after another.
        whole_words: a word that is a token is that token, whatever merges say.
        adds_bos: whether a BOS precedes a text if the file does not say it.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


_DIGITS = Split((r"\p{N}", _GPT2))
_PLAIN = Split((_GPT2,))
_LLAMA_BPE = Split((_LLAMA3,), whole_words=True, adds_bos=True)
_GPT4O = Split((rf"{_cased(f'(?i:{_CONTRACTIONS})?')}|\p{{N}}{{1,3}}|{_PATHS}|{_BLANKS}",))
# llama.cpp does not take the tilde for a symbol.
_SYMBOL = r"[\p{S}&&[^~]]"
_DEEPSEEK_V3 = Split(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
        rf"|[^\r\n\p{{L}}\p{{P}}{_SYMBOL}]?[\p{{L}}\p{{M}}]+"
        rf"| ?[\p{{P}}{_SYMBOL}]+[\r\n]*|{_BLANKS}",
    )
)
SPLITS = {
    "codeshell": _DIGITS,
    "command-r": _DIGITS,
    "dbrx": Split((_LLAMA3,)),
    "deepseek-r1-qwen": Split((_QWEN2,)),
    "deepseek-v3": _DEEPSEEK_V3,
    "exaone4": _PLAIN,
    "falcon": Split((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "falcon3": _LLAMA_BPE,
    "glm4": Split((_LLAMA3,)),
    "gpt-2": _PLAIN,
    "gpt-4o": _GPT4O,
    "hunyuan-dense": _DEEPSEEK_V3,
    "llama-bpe": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama4": _GPT4O,
    "minimax-m2": _GPT4O,
    "mpt": _PLAIN,
    "olmo": _PLAIN,
    "phi-2": _PLAIN,
    "pixtral": _LLAMA_BPE,
    "qwen2": Split((_QWEN2,)),
    "refact": _DIGITS,
    "seed-coder": Split((rf"{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}",)),
    "smaug-bpe": Split((_LLAMA3,)),
    "smollm": _DIGITS,
    "stablelm2": Split((_QWEN2,)),
    "starcoder": _DIGITS,
    "tekken": Split(
        (rf"{_cased('')}|\p{{N}}|{_PATHS}|{_BLANKS}",), whole_words=True, adds_bos=True
    ),
}
ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}  # key in the file


class GgufTokenizer(NamedTuple):
    """A tokenizer, its special tokens by role (`bos_token`), and the chat template or None."""

    backend: Tokenizer
    names: dict[str, str]
    chat_template: str | None


def read_gguf_tokenizer(file: GgufFile) -> GgufTokenizer:
    """Build the tokenizer of a GGUF file.

    Raises:
        InputError: it has none, or one of a kind that is not read.
    """
    vocabulary = _Vocabulary(file)
    kind = vocabulary.value("model")
    if not isinstance(kind, str):
        kind = None
    if kind == "gpt2":
        parts, adds_bos = vocabulary.byte_bpe()
    elif kind == "llama":
        parts, adds_bos = vocabulary.sentencepiece()
    else:
        raise InputError(
            f"{file.path}: {PREFIX}model is {kind!r}, which is not read; known: gpt2, llama"
        )
    if vocabulary.value("add_eos_token", False):
        raise InputError(
            f"{file.path}: {PREFIX}add_eos_token is true, which would end every text with an EOS"
        )
    names = vocabulary.names()
    if vocabulary.value("add_bos_token", adds_bos):
        if "bos_token" not in names:
            raise InputError(f"{file.path}: adds a BOS, and {PREFIX}bos_token_id is missing")
        parts["post_processor"] = _bos_processor(
            names["bos_token"], vocabulary.value("bos_token_id")
        )
    written = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        "post_processor": None,
        **parts,
    }
    template = file.metadata.get(TEMPLATE)
    backend = Tokenizer.from_str(json.dumps(written))
    return GgufTokenizer(backend, names, template if isinstance(template, str) else None)


class _Vocabulary:
    """Tokens of a file, with their types, and the models that use them."""

    def __init__(self, file: GgufFile) -> None:
        self._path, self._metadata = file.path, file.metadata
        tokens = self.value("tokens")
        if (
            not isinstance(tokens, list)
            or not tokens
            or not all(isinstance(token, str) for token in tokens)
        ):
            raise InputError(f"{file.path}: {PREFIX}tokens is missing or no list of texts")
        self.tokens: list[str] = tokens
        self.types = self._per_token("token_type", [NORMAL] * len(tokens))
        self.ids: dict[str, int] = {}
        last = {token: id for id, token in enumerate(tokens)}  # of equal tokens llama.cpp's
        for id, token in enumerate(tokens):
            self.ids[token if token and last[token] == id else f"[UNUSED_{id}]"] = id

    def value(self, key: str, default: Any = None) -> Any:
        """A value of the metadata under `tokenizer.ggml.`."""
        return self._metadata.get(PREFIX + key, default)

    def _per_token(self, key: str, default: Any = None) -> list[Any]:
        found = self.value(key, default)
        is_list = isinstance(found, list | np.ndarray)
        if not is_list or len(found) != len(self.tokens):
            n = f"{len(found):,}" if is_list else "none"
            raise InputError(
                f"{self._path}: {PREFIX}{key} has {n} entries, expected one for each of "
                f"{len(self.tokens):,} tokens"
            )
        return list(found)

    def names(self) -> dict[str, str]:
        """Special tokens by role.

        Raises:
            InputError: an id that is none.
        """
        names = {}
        for role, key in ROLES.items():
            id = self.value(f"{key}_token_id")
            if id is None:
                continue
            if not isinstance(id, int) or not 0 <= id < len(self.tokens):
                raise InputError(
                    f"{self._path}: {PREFIX}{key}_token_id is {id!r}, expected the id of one of "
                    f"{len(self.tokens):,} tokens"
                )
            names[f"{role}_token"] = self.tokens[id]
        return names

    def added_tokens(self) -> list[dict[str, Any]]:
        """Tokens that are found in a text before it is split, as tokenizer.json has them."""
        # llama.cpp knows these models by their names.
        name = str(self._metadata.get("general.name", "")).lower()
        takes_blanks = "phi-3" in name or "phi3" in name
        return [
            {
                "id": id,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": takes_blanks and token not in NO_BLANKS_AFTER,
                "normalized": False,
                "special": self.types[id] in (CONTROL, UNKNOWN),
            }
            for token, id in self.ids.items()
            if self.types[id] in (CONTROL, USER_DEFINED, UNKNOWN)
        ]

    def byte_bpe(self) -> tuple[dict[str, Any], bool]:
        """Parts of tokenizer.json for BPE over bytes, and whether a BOS is added by default."""
        name = self.value("pre")
        if not isinstance(name, str) or name not in SPLITS:
            raise InputError(
                f"{self._path}: {PREFIX}pre is {name!r}, which is not read; known: "
                f"{', '.join(SPLITS)}"
            )
        merges = self.value("merges")
        if not isinstance(merges, list) or not all(
            isinstance(merge, str) and " " in merge[1:] for merge in merges
        ):
            raise InputError(
                f"{self._path}: {PREFIX}merges is missing or no list of two tokens each"
            )
        split = SPLITS[name]
        splits = [
            {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
            for one in split.patterns
        ]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        parts = {
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [*splits, byte_level | {"use_regex": False}],
            },
            "decoder": byte_level | {"use_regex": True},
            "model": self._bpe(
                [merge.split(" ", 1) for merge in merges], ignore_merges=split.whole_words
            ),
        }
        return parts, split.adds_bos

    def sentencepiece(self) -> tuple[dict[str, Any], bool]:
        """The same for SentencePiece's BPE.

        llama.cpp joins the two neighbours whose joint token has the best score, so the merges are
        all pairs of tokens that make a token, the best first.
        """
        scores = self._per_token("scores")
        usable = {token: id for token, id in self.ids.items() if self.types[id] in (NORMAL, UNUSED)}
        if longest := [token for token in usable if len(token) > MOST_CHARACTERS]:
            raise InputError(
                f"{self._path}: a token has {len(longest[0]):,} characters, expected at most "
                f"{MOST_CHARACTERS:,}"
            )
        merges: list[tuple[str, str]] = []
        for token in sorted(usable, key=lambda token: -scores[usable[token]]):
            pairs = [
                (token[:k], token[k:])
                for k in range(1, len(token))
                if token[:k] in usable and token[k:] in usable
            ]
            merges += sorted(pairs, key=lambda pair: (usable[pair[0]], usable[pair[1]]))
        unknown = self.names().get("unk_token", self.tokens[0])
        has_prefix = bool(self.value("add_space_prefix", True))
        blanks = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
        prepend = {"type": "Prepend", "prepend": BLANK}
        decoders = [
            {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if has_prefix:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        parts = {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [prepend, blanks] if has_prefix else [blanks],
            },
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": self._bpe(merges)
            | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True},
        }
        return parts, True

    def _bpe(self, merges: list[Any], *, ignore_merges: bool = False) -> dict[str, Any]:
        return {
            "type": "BPE",
            "vocab": self.ids,
            "merges": merges,
            "dropout": None,
            "unk_token": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
        }


def _bos_processor(token: str, id: int) -> Mapping[str, Any]:
    def piece(kind: str, name: str) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [piece("SpecialToken", token), piece("Sequence", "A")],
        "pair": [piece("SpecialToken", token), piece("Sequence", "A"), piece("Sequence", "B")],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    }
