"""Construction of a tokenizer from the metadata of a GGUF file, with the same ids as llama.cpp.

`tokenizer.ggml.model` "gpt2" is byte-level BPE; `tokenizer.ggml.pre` names the regular expressions
that split the text. "llama" is SentencePiece's BPE with byte fallback, which has scores instead of
merges.
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
NOT_STRIPPED = ("<unk>", "<s>", "<|endoftext|>")  # Phi-3's added tokens that keep the space after
MOST_CHARACTERS = 1024  # characters of a token: the time for its merges is quadratic
SPACE = "▁"  # SentencePiece's replacement for a space

# Split patterns from llama.cpp's llama-vocab.cpp, applied one after another
_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_START = r"[^\r\n\p{L}\p{N}]?"
_WORD = rf"{_START}\p{{L}}+"
_LETTERS = rf"(?i:{_CONTRACTIONS})|{_WORD}"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LLAMA3 = rf"{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(ending: str, but: str = "") -> str:
    """Return a pattern of words, split before capital letters, without letters in class `but`."""
    upper, lower = (f"{letters}&&[^{but}]" if but else letters for letters in (_UPPER, _LOWER))
    return f"{_START}[{upper}]*[{lower}]+{ending}|{_START}[{upper}]+[{lower}]*{ending}"


class Split(NamedTuple):
    """Rules for splitting a text into words.

    Attributes:
        patterns: the regular expressions, applied one after another.
        whole_words: if True, merges are ignored for a word that is a token.
        adds_bos: the default of `add_bos_token`, for files without it.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


_DIGITS = Split((r"\p{N}", _GPT2))
_PLAIN = Split((_GPT2,))
_QWEN = Split((_QWEN2,))
_LLAMA_BPE = Split((_LLAMA3,), whole_words=True, adds_bos=True)
_ENDINGS = f"(?i:{_CONTRACTIONS})?"
_GPT4O = Split((rf"{_cased(_ENDINGS)}|\p{{N}}{{1,3}}|{_PATHS}|{_SPACES}",))
_HAN = r"\p{Han}"
_KIMI = Split((rf"{_HAN}+|{_cased(_ENDINGS, but=_HAN)}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}",))
_HAN_OR_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_WORDS_OR_SYMBOLS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_DEEPSEEK_V3 = Split((r"\p{N}{1,3}", _HAN_OR_KANA, rf"{_WORDS_OR_SYMBOLS}[\r\n]*|{_SPACES}"))
# Combining marks belong to words.
_QWEN35 = Split(
    (
        rf"(?i:{_CONTRACTIONS})|{_START}[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    )
)
_JAIS2 = Split(
    (
        rf"{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|"
        + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
        + r"|\s",
    )
)
# Words of a line are not split at spaces.
_EXAONE_MOE = Split(
    (
        rf"(?i:{_CONTRACTIONS})|{_START}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_NO_PUNCTUATION = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_BLOOM = Split((_NO_PUNCTUATION,))
# Cased letters in DeepSeek's pattern, which lacks newer ones
_CASED_LETTERS = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8f\u2d00-\u2d2d\ua790-\ua7fa"
    r"\uab30-\uab68\x{10570}-\x{105bc}\x{10d50}-\x{10d85}\x{16e40}-\x{1df2a}]]"
)
_HAN_TO_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = Split(
    (
        r"[\r\n]",
        rf"\s?{_CASED_LETTERS}+",
        r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _HAN_TO_HANGUL,
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_TO_HANGUL, r"\p{N}"))
_CHAMELEON = Split(
    (
        "<sentinel:[0-9]+>",
        "IMGIMG[A-I]{1,4}Z",
        r"[\t\n]|    |  ",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2,
    ),
    adds_bos=True,
)
_NAMES = {
    _DIGITS: "codeshell command-r exaone mellum2 minerva-7b refact smollm starcoder",
    _PLAIN: "a.x-4.0 exaone4 gigachat gpt-2 granite-docling jais mellum mpt olmo phi-2 trillion",
    Split(
        (r"\p{N}{1,3}", rf"{_LETTERS}|\p{{N}}+|{_SYMBOLS}|{_SPACES}"), whole_words=True
    ): "minicpm5",
    Split((_LLAMA3,)): "chatglm-bpe dbrx smaug-bpe",
    Split((_LLAMA3,), whole_words=True): "glm4 glm5",
    _LLAMA_BPE: "falcon-h1 falcon3 lfm2 llama-bpe llama-v3 llama3 midm-2.0 pixtral",
    _QWEN: "bailingmoe bailingmoe2 deepseek-r1-qwen f2llmv2 grok-2 hunyuan kormo llada-moe megrez "
    "qwen2 solar-open stablelm2",
    Split((r"\n+", _QWEN2)): "laguna",
    Split((rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}",)): "ufakzeka",
    _QWEN35: "qwen35",
    _GPT4O: "gpt-4o kanana2 llama4 minimax-m2 talkie",
    _DEEPSEEK_V3: "deepseek-v3 hunyuan-dense hy_v4 joyai-llm",
    _KIMI: "kimi-k2",
    # Digits in groups of three from the right
    Split((r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O.patterns)): "cohere2moe tiny_aya",
    Split((r"\p{N}+", r"(?=(\d{3})+(?!\d))")): "superbpe",
    _DEEPSEEK_LLM: "deepseek-llm",
    _DEEPSEEK_CODER: "deepseek-coder",
    _CHAMELEON: "chameleon",
    Split((r"\p{N}", _HAN_OR_KANA, rf"{_WORDS_OR_SYMBOLS}|[\r\n]|\s+(?!\S)|\s+")): "spark2_5",
    _JAIS2: "jais-2",
    _EXAONE_MOE: "exaone-moe",
    _BLOOM: "bloom gpt3-finnish poro-chat",
    Split((_NO_PUNCTUATION, r"\p{N}")): "viking",
    Split((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")): "falcon",
    Split((rf"{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)): "seed-coder",
    Split(
        (rf"{_cased('')}|\p{{N}}|{_PATHS}|{_SPACES}",), whole_words=True, adds_bos=True
    ): "tekken",
}
SPLITS = dict(sorted((name, split) for split, names in _NAMES.items() for name in names.split()))
# Values of `tokenizer.ggml.pre` in llama.cpp that are not supported, and the reason
_REASONS = {
    "afmoe youtu": "llama.cpp approximates its pattern, whose published form is unknown here",
    "default": "not the name of a tokenizer; convert the model with a newer llama.cpp",
    "gemma4 granite-embed-multi-311m sarvam-moe": "not byte-level BPE",
    "granite-embed-multi-97m jina-de jina-es jina-v1-en jina-v2-code jina-v2-de jina-v2-es "
    "jina-v5-nano modern-bert roberta-bpe whitespace": "an encoder's tokenizer",
}
UNREAD = {name: reason for names, reason in _REASONS.items() for name in names.split()}
ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}  # role -> key in the file


class GgufTokenizer(NamedTuple):
    """A tokenizer, its special tokens by role (`bos_token`), and the chat template or None."""

    backend: Tokenizer
    names: dict[str, str]
    chat_template: str | None


def read_gguf_tokenizer(file: GgufFile) -> GgufTokenizer:
    """Build the tokenizer of a GGUF file.

    Raises:
        InputError: the tokenizer is missing or of an unsupported type.
    """
    vocabulary = _Vocabulary(file)
    model = vocabulary.value("model")
    if not isinstance(model, str):
        model = None
    if model == "gpt2":
        components, adds_bos = vocabulary.byte_bpe()
    elif model == "llama":
        components, adds_bos = vocabulary.sentencepiece()
    elif model == "gemma4":
        components = vocabulary.byte_fallback(vocabulary.merges(), has_prefix=False)
        components["pre_tokenizer"] = _split(r"\n+")
        adds_bos = True
    else:
        raise InputError(
            f"{file.path}: {PREFIX}model is {model!r}, which is not supported; expected gpt2, "
            "llama or gemma4"
        )
    if vocabulary.value("add_eos_token", False):
        raise InputError(
            f"{file.path}: {PREFIX}add_eos_token is true, which would append an EOS to every text"
        )
    names = vocabulary.names()
    # llama.cpp always adds gemma4's BOS.
    if model == "gemma4" or vocabulary.value("add_bos_token", adds_bos):
        if "bos_token" not in names:
            raise InputError(f"{file.path}: adds a BOS, but {PREFIX}bos_token_id is missing")
        components["post_processor"] = _bos_processor(
            names["bos_token"], vocabulary.value("bos_token_id")
        )
    tokenizer_json = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        "post_processor": None,
        **components,
    }
    template = file.metadata.get(TEMPLATE)
    backend = Tokenizer.from_str(json.dumps(tokenizer_json))
    return GgufTokenizer(backend, names, template if isinstance(template, str) else None)


class _Vocabulary:
    """The tokens of a file with their types, and the tokenizer models built from them."""

    def __init__(self, file: GgufFile) -> None:
        self._path, self._metadata = file.path, file.metadata
        tokens = self.value("tokens")
        if (
            not isinstance(tokens, list)
            or not tokens
            or not all(isinstance(token, str) for token in tokens)
        ):
            raise InputError(f"{file.path}: {PREFIX}tokens is missing or not a list of strings")
        self.tokens: list[str] = tokens
        self.types = self._per_token("token_type", np.full(len(tokens), NORMAL))
        self.ids: dict[str, int] = {}
        # llama.cpp uses the last of equal tokens.
        last = {token: id for id, token in enumerate(tokens)}
        for id, token in enumerate(tokens):
            self.ids[token if token and last[token] == id else f"[UNUSED_{id}]"] = id

    def value(self, key: str, default: Any = None) -> Any:
        """Return a value of the metadata under `tokenizer.ggml.`."""
        return self._metadata.get(PREFIX + key, default)

    def _per_token(self, key: str, default: np.ndarray | None = None) -> list[Any]:
        """Return the metadata's number for each token.

        Raises:
            InputError: the number of values is not that of tokens, or a value is not finite.
        """
        value = self.value(key, default)
        values = np.asarray(value if isinstance(value, list | np.ndarray) else [])
        if len(values) != len(self.tokens) or values.dtype.kind not in "biuf":
            n = f"{len(values):,}" if len(values) else "none"
            raise InputError(
                f"{self._path}: {PREFIX}{key} has {n} entries, expected one number for each of "
                f"{len(self.tokens):,} tokens"
            )
        if not (finite := np.isfinite(values)).all():
            id = int(np.argmin(finite))
            raise InputError(
                f"{self._path}: {PREFIX}{key} of token {id} is {values[id]}, expected a finite "
                "number; convert the model again"
            )
        return list(values)

    def names(self) -> dict[str, str]:
        """Return the special tokens by role.

        Raises:
            InputError: an id is invalid.
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
        """Return the `added_tokens` of tokenizer.json, which are matched before splitting."""
        # llama.cpp recognises these models by their names.
        name = str(self._metadata.get("general.name", "")).lower()
        is_phi3 = "phi-3" in name or "phi3" in name
        return [
            {
                "id": id,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": is_phi3 and token not in NOT_STRIPPED,
                "normalized": False,
                "special": self.types[id] in (CONTROL, UNKNOWN),
            }
            for token, id in self.ids.items()
            if self.types[id] in (CONTROL, USER_DEFINED, UNKNOWN)
        ]

    def byte_bpe(self) -> tuple[dict[str, Any], bool]:
        """Return tokenizer.json's components for byte-level BPE, and the default of adds_bos."""
        name = self.value("pre")
        if not isinstance(name, str) or name not in SPLITS:
            reason = f" ({UNREAD[name]})" if isinstance(name, str) and name in UNREAD else ""
            raise InputError(
                f"{self._path}: {PREFIX}pre is {name!r}, which is not supported{reason}; expected "
                f"one of {', '.join(SPLITS)}"
            )
        merges = self.merges()
        split = SPLITS[name]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        components = {
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [*map(_split, split.patterns), byte_level | {"use_regex": False}],
            },
            "decoder": byte_level | {"use_regex": True},
            "model": self._bpe(merges, ignore_merges=split.whole_words),
        }
        return components, split.adds_bos

    def merges(self) -> list[tuple[str, str]]:
        """Return the pairs of tokens that BPE merges, in order.

        Raises:
            InputError: the merges are missing, or one of them is not of tokens.
        """
        merges = self.value("merges")
        if not isinstance(merges, list) or not all(
            isinstance(merge, str) and " " in merge[1:] for merge in merges
        ):
            raise InputError(
                f"{self._path}: {PREFIX}merges is missing or not a list of token pairs"
            )
        # Of duplicates, llama.cpp uses the first and `tokenizers` the last.
        merges = list(dict.fromkeys(merges))
        cuts = (merge.index(" ", 1) for merge in merges)
        pairs = [(merge[:cut], merge[cut + 1 :]) for merge, cut in zip(merges, cuts, strict=True)]
        for left, right in pairs:
            if not {left, right, left + right} <= self.ids.keys():
                raise InputError(
                    f"{self._path}: {PREFIX}merges has {left!r} with {right!r}, but one of them or "
                    "their concatenation is not a token"
                )
        return pairs

    def sentencepiece(self) -> tuple[dict[str, Any], bool]:
        """Return the components for SentencePiece's BPE, and the default of adds_bos.

        llama.cpp merges the two neighbours whose joint token has the highest score. So the merges
        are all pairs of tokens whose concatenation is a token, by descending score.
        """
        scores = self._per_token("scores")
        usable = {token: id for token, id in self.ids.items() if self.types[id] in (NORMAL, UNUSED)}
        if longest := [token for token in usable if len(token) > MOST_CHARACTERS]:
            raise InputError(
                f"{self._path}: a token has {len(longest[0]):,} characters, expected at most "
                f"{MOST_CHARACTERS:,}"
            )
        if len({scores[id] for id in usable.values()}) == 1 < len(usable):
            raise InputError(
                f"{self._path}: {PREFIX}scores are all equal, expected scores that order the "
                "merges; convert the model from its tokenizer.model, not from its tokenizer.json"
            )
        merges: list[tuple[str, str]] = []
        for token in sorted(usable, key=lambda token: -scores[usable[token]]):
            pairs = [
                (token[:k], token[k:])
                for k in range(1, len(token))
                if token[:k] in usable and token[k:] in usable
            ]
            merges += sorted(pairs, key=lambda pair: (usable[pair[0]], usable[pair[1]]))
        has_prefix = bool(self.value("add_space_prefix", True))
        return self.byte_fallback(merges, has_prefix=has_prefix), True

    def byte_fallback(self, merges: list[tuple[str, str]], *, has_prefix: bool) -> dict[str, Any]:
        """Return the components of tokenizer.json for BPE over characters with byte fallback.

        Args:
            merges: the pairs of tokens, in order.
            has_prefix: if True, a space is added before each text.
        """
        unknown = self.names().get("unk_token", self.tokens[0])
        replace_spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        prepend = {"type": "Prepend", "prepend": SPACE}
        decoders = [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if has_prefix:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        return {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [prepend, replace_spaces] if has_prefix else [replace_spaces],
            },
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": self._bpe(merges)
            | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True},
        }

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


def _split(pattern: str) -> dict[str, Any]:
    regex = {"Regex": pattern}
    return {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}


def _bos_processor(token: str, id: int) -> Mapping[str, Any]:
    def piece(piece_type: str, name: str) -> dict[str, Any]:
        return {piece_type: {"id": name, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [piece("SpecialToken", token), piece("Sequence", "A")],
        "pair": [piece("SpecialToken", token), piece("Sequence", "A"), piece("Sequence", "B")],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    }
