"""A tokenizer from its files, read identically by every release of transformers.

    tokenizer.json             the truth: vocabulary, merges, how a text is split, its BOS
    tokenizer_config.json      special tokens by role, further added tokens, the class, its options
    special_tokens_map.json    special tokens by role, if the former lists no added tokens
    chat_template.jinja        the chat template; older checkpoints have it in tokenizer_config.json

transformers 5 makes some classes' tokenizers from the vocabulary alone, replaces post-processors
and gives added tokens other flags; 4.57 resets a ByteLevel's prefix blank. So the `tokenizers`
library reads tokenizer.json here, and transformers holds names and templates. What each class of
transformers 4.57.6 adds to a tokenizer.json stands in `CLASSES`.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, processors

from jaxscore.errors import InputError
from jaxscore.io import gguf_file
from jaxscore.io.json_input import check_regular, read_json, read_text
from jaxscore.text import checkpoint_process, tokenizer_limits
from jaxscore.text.bounded_tokenizer import panics_as_errors
from jaxscore.text.tokenizer import CheckpointTokenizer, errors_only

TRUTH, SETTINGS = "tokenizer.json", "tokenizer_config.json"
FILES = (  # that decide how a text becomes ids, and where a generated one ends
    "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab*.json", "vocab*.txt",
    "merges.txt", "*.model", "*.tiktoken", "tokenization*.py", "chat_template*",
    "additional_chat_templates/*.jinja", "generation_config.json",
)  # fmt: skip
MOST_BYTES = 1 << 29  # of a tokenizer.json; those of 260,000 tokens have 35 MB
MOST_GROWTH = 64  # one character in Unicode's compatibility form has up to 18
PATTERN = re.compile(rb'"Regex"\s*:\s*"((?:[^"\\]|\\.)*)"')
# A BPE model with such a prefix and a merge that it does not fit ends the process.
PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
ESCAPED = re.compile(rb"\\u00(?:[46][1-9a-fA-F]|[57][0-9aA])")  # a letter, as no writer has it
FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")
BOS, EOS = "bos_token", "eos_token"
SPECIAL = (BOS, EOS, "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Classes whose tokenizer transformers 4.57 and 5.x build identically from a vocabulary; old
# checkpoints have no tokenizer.json.
FROM_VOCABULARY = {"BertTokenizer": ("vocab.txt",), "GPT2Tokenizer": ("vocab.json", "merges.txt")}


@dataclasses.dataclass(frozen=True)
class TokenizerClass:
    """What a class does if `tokenizer_config.json` says nothing else.

    Attributes:
        model_types: models that have this class if their files name none, separated by blanks.
        special: special tokens by their role.
        adds: whether a BOS precedes a text and an EOS follows it; None is what tokenizer.json says.
        prefix_space: whether the class sets the blank before a text of a plain ByteLevel.
        lowercases: whether the class sets the letters' case and accents of a BertNormalizer.
    """

    model_types: str = ""
    special: Mapping[str, str] = dataclasses.field(default_factory=dict)
    adds: tuple[bool, bool] | None = None
    prefix_space: bool = True
    lowercases: bool = False


def _special(**tokens: str) -> dict[str, str]:
    return {f"{role}_token": token for role, token in tokens.items()}


# A llama's class that is given a prefix space builds itself from a SentencePiece file instead.
_LLAMA = TokenizerClass(
    "arcee deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe jamba llama llama4 llama4_text "
    "ministral mistral mistral3 mixtral persimmon phi3 phimoe zamba zamba2",
    _special(bos="<s>", eos="</s>", unk="<unk>"),
    adds=(True, False),
    prefix_space=False,
)
_END = dict.fromkeys((BOS, EOS, "unk_token"), "<|endoftext|>")
CLASSES = {
    "BertTokenizer": TokenizerClass(
        "bert",
        _special(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]"),
        lowercases=True,
    ),
    "BloomTokenizer": TokenizerClass(
        "bloom", _special(bos="<s>", eos="</s>", unk="<unk>", pad="<pad>")
    ),
    "CodeGenTokenizer": TokenizerClass("codegen phi", _END),
    "CodeLlamaTokenizer": dataclasses.replace(_LLAMA, model_types=""),
    "CohereTokenizer": TokenizerClass(
        "cohere cohere2",
        _special(bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>", unk="<UNK>"),
        adds=(True, False),
    ),
    "GPT2Tokenizer": TokenizerClass(
        "dbrx exaone4 flex_olmo gpt2 gpt_bigcode gpt_neo gptj minimax olmo3 opt starcoder2", _END
    ),
    "GPTNeoXTokenizer": TokenizerClass(
        "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmo2 olmoe stablelm",
        _END,
        adds=(False, False),
    ),
    "GemmaTokenizer": TokenizerClass(
        "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma",
        _special(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>"),
        adds=(True, False),
    ),
    "LlamaTokenizer": _LLAMA,
    "Qwen2Tokenizer": TokenizerClass(
        "qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe",
        _special(eos="<|endoftext|>", unk="<|endoftext|>", pad="<|endoftext|>"),
    ),
    "XGLMTokenizer": TokenizerClass(
        "xglm", _special(bos="<s>", eos="</s>", sep="</s>", cls="<s>", unk="<unk>", pad="<pad>")
    ),
}
OF_MODEL_TYPE = {
    kind: name for name, known in CLASSES.items() for kind in known.model_types.split()
}


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Load the checkpoint's fast tokenizer.

    Raises:
        InputError: the folder has no tokenizer, or only a slow one, which has no offsets; the
            tokenizer brings code and `trust_remote_code` is False; or its files contradict each
            other.
    """
    if gguf_file.is_gguf(folder):
        with panics_as_errors(f"{folder}: no usable tokenizer", "", InputError):
            return read_gguf(folder)
    advice = "; expected tokenizer.json beside the model"
    with panics_as_errors(f"{folder}: no usable tokenizer", advice, InputError):
        settings, config = read_settings(folder), _read_object(folder / "config.json")
        has_code = brings_code(settings) or brings_code(config)
        if has_code and not trust_remote_code:
            raise InputError(
                f"{folder}: its tokenizer brings code of its own (auto_map); read it, then give "
                "--trust-remote-code to run it"
            )
        name = class_name(settings, config)
        if (folder / TRUTH).exists() and not has_code:
            return read_tokenizer(folder, settings, name)
        files = FROM_VOCABULARY.get(name, (TRUTH,))
        missing = [file for file in files if not (folder / file).is_file()]
        if missing and not has_code:
            raise InputError(
                f"{folder}: no usable tokenizer ({', '.join(missing)} missing, "
                f"{name or 'no class'} named); expected tokenizer.json beside the "
                "model, which save_pretrained of transformers' AutoTokenizer writes where the "
                "class has a fast tokenizer"
            )
        from transformers import AutoTokenizer

        with errors_only():
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder), use_fast=True, trust_remote_code=has_code
            )
        if not tokenizer.is_fast:
            raise InputError(
                f"{folder}: {type(tokenizer).__name__} is a slow tokenizer, which gives no "
                "offsets; save it with a tokenizer.json (convert_slow_tokenizer)"
            )
        return tokenizer


def read_tokenizer(folder: Path, settings: dict[str, Any], name: str) -> CheckpointTokenizer:
    """Read the tokenizer of a folder that has a tokenizer.json.

    Args:
        settings: content of tokenizer_config.json.
        name: as of `class_name`.

    Returns:
        A tokenizer that knows the special tokens by role and the chat template, and whose
        `backend_tokenizer` is the one of tokenizer.json.

    Raises:
        InputError: files contradict each other, or mean different things to different releases of
            transformers.
        Exception: what `tokenizers` raises for an invalid tokenizer.json.
    """
    check_tokenizer_file(folder / TRUTH)
    files = _Files(folder, settings, CLASSES.get(name, TokenizerClass()))
    names = files.add_tokens()
    files.apply_options(names)
    clean_up = bool(settings.get("clean_up_tokenization_spaces"))
    return _wrapped(folder, files.backend, names, files.chat_template(), clean_up)


def read_gguf(path: Path) -> CheckpointTokenizer:
    """Read the tokenizer of a GGUF file, as `read_tokenizer` does.

    Raises:
        InputError: the file has none, or one of a kind that is not read.
    """
    from jaxscore.text.gguf_tokenizer import read_gguf_tokenizer  # deferred: other files need none

    return _wrapped(path, *read_gguf_tokenizer(gguf_file.read_gguf(path)))


def _wrapped(
    path: Path, backend: Tokenizer, names: dict[str, str], template: Any, clean_up: bool = False
) -> CheckpointTokenizer:
    settings = {"chat_template": template, "clean_up_tokenization_spaces": clean_up, **names}
    return CheckpointTokenizer(backend, str(path), settings)


def check_tokenizer_file(path: Path) -> None:
    """Read a tokenizer.json in another process first if it may take all memory, or never end.

    It may if a pattern is not a known one, or if the library can end the process.

    Raises:
        InputError: it takes too much time or memory, or ends the process.
    """
    check_regular(path)
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path}: found more than {MOST_BYTES >> 20} MB, expected a tokenizer")
    raw = path.read_bytes()
    found = {json.loads(b'"%b"' % pattern) for pattern in PATTERN.findall(raw)}
    has_prefix = b'"BPE"' in raw and PREFIX.search(raw)
    if has_prefix or not found <= tokenizer_limits.KNOWN_PATTERNS or ESCAPED.search(raw):
        checkpoint_process.check_tokenizer(path)


def digest(folder: Path) -> str | None:
    """SHA-256 of the names and contents of a checkpoint's tokenizer files.

    Returns:
        Hexadecimal digits; None without such files, as beside a GGUF file, which has all of it.

    Raises:
        InputError: a file cannot be read.
    """
    paths = sorted({path for pattern in FILES for path in folder.glob(pattern) if path.is_file()})
    found = []
    for path in paths:
        try:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as problem:
            raise InputError(f"{path}: {problem.strerror}; expected a readable file") from None
        found.append([path.relative_to(folder).as_posix(), content])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest() if found else None


def read_settings(folder: Path) -> dict[str, Any]:
    """Content of tokenizer_config.json, empty if there is no such file.

    Raises:
        InputError: it is no JSON object.
    """
    return _read_object(folder / SETTINGS)


def brings_code(declared: dict[str, Any]) -> bool:
    """Whether a file of the checkpoint names Python code of its own for the tokenizer."""
    named = declared.get("auto_map")
    return isinstance(named, list) or (isinstance(named, dict) and bool(named.get("AutoTokenizer")))


def class_name(settings: dict[str, Any], config: dict[str, Any]) -> str:
    """Class of the tokenizer without "Fast": by its settings, the model's, or the model type."""
    name = (
        settings.get("tokenizer_class")
        or config.get("tokenizer_class")
        or OF_MODEL_TYPE.get(str(config.get("model_type")), "")
    )
    return str(name).removesuffix("Fast")


def _read_object(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    check_regular(path)
    found = read_json(path, "a JSON object")
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected an object, found {type(found).__name__}")
    return found


class _Files:
    """The tokenizer.json of a folder, to which its other files are applied.

    Attributes:
        settings: tokenizer_config.json.
        backend: the tokenizer.

    Raises:
        InputError: its replacements multiply text.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], kind: TokenizerClass) -> None:
        self.folder, self.settings, self._class = folder, settings, kind
        self.backend = Tokenizer.from_file(str(folder / TRUTH))
        for name in ("normalizer", "decoder"):
            times = tokenizer_limits.growth(getattr(self.backend, name))
            if times > MOST_GROWTH:
                factor = times if times < 10**9 else "more than a billion"
                raise InputError(
                    f"{self.folder / TRUTH}: its {name} can make a text {factor} times longer, "
                    f"expected at most {MOST_GROWTH} times; its Replace, Prepend or Precompiled "
                    "parts multiply text"
                )
        self.backend.no_padding()  # to a length that the file names
        self.backend.encode_special_tokens = bool(self.settings.get("split_special_tokens"))

    def add_tokens(self) -> dict[str, str]:
        """Add tokens that the settings have beyond tokenizer.json, or with other flags.

        Returns:
            The special tokens by role.

        Raises:
            InputError: a token has another id in tokenizer.json.
        """
        settings, backend = self.settings, self.backend
        special = self._special_tokens()
        declared = {
            int(id): AddedToken(token["content"], **{f: token[f] for f in FLAGS if f in token})
            for id, token in (settings.get("added_tokens_decoder") or {}).items()
        }
        present = [repr(token) for token in backend.get_added_tokens_decoder().values()]
        backend.add_tokens([t for _, t in sorted(declared.items()) if repr(t) not in present])
        more = settings.get("additional_special_tokens") or settings.get("extra_special_tokens")
        for written in [*special.values(), *(more if isinstance(more, list) else [])]:
            added = {token.content for token in backend.get_added_tokens_decoder().values()}
            token = _special_token(written)
            if token.content not in added:
                backend.add_tokens([token])
        for id, token in declared.items():
            found = backend.token_to_id(token.content)
            if found != id:
                raise InputError(
                    f"{self.folder / SETTINGS}: token {token.content!r} has id {id}, and in "
                    f"{TRUTH} it has {found}; give the tokenizer files that belong together"
                )
        return {role: str(_special_token(written)) for role, written in special.items()}

    def _special_tokens(self) -> dict[str, Any]:
        """Special tokens by role as the files write them: a name, or an object."""
        roles = {role: self.settings[role] for role in SPECIAL if role in self.settings}
        if "added_tokens_decoder" not in self.settings:
            older = _read_object(self.folder / "special_tokens_map.json")
            roles |= {role: older[role] for role in SPECIAL if role in older}
        for role, name in self._class.special.items():
            if role not in roles and self.backend.token_to_id(name) is not None:
                roles[role] = name
        return {role: token for role, token in roles.items() if token is not None}

    def apply_options(self, names: dict[str, str]) -> None:
        """Apply the options of the class; `names` are the special tokens by role.

        Raises:
            InputError: an option depends on the release of transformers.
        """
        if "backend" in self.settings:  # transformers 5 writes it, and all else into tokenizer.json
            return
        splitter, normalizer = self.backend.pre_tokenizer, self.backend.normalizer
        if self._class.prefix_space and isinstance(splitter, pre_tokenizers.ByteLevel):
            value = self._option("add_prefix_space", False, splitter.add_prefix_space)
            splitter.add_prefix_space = bool(value)
        if self._class.lowercases and isinstance(normalizer, normalizers.BertNormalizer):
            for name, attribute, default in (
                ("do_lower_case", "lowercase", True),
                ("strip_accents", "strip_accents", None),
                ("tokenize_chinese_chars", "handle_chinese_chars", True),
            ):
                value = self._option(name, default, getattr(normalizer, attribute))
                setattr(normalizer, attribute, value)
        if self._class.adds is not None:
            self._set_post_processor(self._class.adds, names)

    def _option(self, name: str, default: Any, stored: Any) -> Any:
        """An option of both tokenizer_config.json, which decides, and tokenizer.json.

        Raises:
            InputError: the former lacks it, and the class's default is not what the latter has;
                4.57 and 5.x then differ.
        """
        if name in self.settings:
            return self.settings[name]
        if stored != default:
            raise InputError(
                f"{self.folder / SETTINGS}: has no {name}, of which {TRUTH} says {stored} and the "
                f"tokenizer's class {default}; write {name} into it as the model was trained"
            )
        return stored

    def _set_post_processor(self, adds: tuple[bool, bool], names: dict[str, str]) -> None:
        """Set the BOS before a text and the EOS after it, by add_bos_token and add_eos_token."""
        pieces, special = ["$A:0"], {}
        for role, default in zip((BOS, EOS), adds, strict=True):
            if not self.settings.get(f"add_{role}", default):
                continue
            if role not in names:
                verb = "begins" if role == BOS else "ends"
                raise InputError(
                    f"{self.folder / SETTINGS}: the tokenizer's class {verb} a text with its "
                    f"{role}, and none is in {TRUTH} and named; name it, or write add_{role} false"
                )
            pieces.insert(0 if role == BOS else len(pieces), f"{names[role]}:0")
            special[names[role]] = self.backend.token_to_id(names[role])
        self.backend.post_processor = processors.TemplateProcessing(
            single=pieces, special_tokens=list(special.items())
        )

    def chat_template(self) -> Any:
        """The template, or several by name; files override tokenizer_config.json."""
        paths = sorted(self.folder.glob("additional_chat_templates/*.jinja"))
        files = {path.stem: path for path in paths}
        if (path := self.folder / "chat_template.jinja").exists():
            files["default"] = path
        templates = {}
        for name, path in files.items():
            check_regular(path)
            templates[name] = read_text(path)
        if list(templates) == ["default"]:
            return templates["default"]
        return templates or self.settings.get("chat_template")


def _special_token(written: Any) -> AddedToken:
    """A special token from its name, or from an object with its flags."""
    if isinstance(written, str):
        return AddedToken(written, special=True, normalized=False)
    flags = {name: written[name] for name in FLAGS if name in written}
    return AddedToken(written["content"], **{**flags, "special": True})
