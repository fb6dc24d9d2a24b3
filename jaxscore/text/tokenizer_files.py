"""Loading of a tokenizer from its files, with the same result under every release of transformers.

    tokenizer.json             the reference: vocabulary, merges, splits of a text, BOS
    tokenizer_config.json      special tokens by role, additional tokens, the class and its options
    special_tokens_map.json    special tokens by role, if the former does not list added tokens
    chat_template.jinja        the chat template; older checkpoints have it in tokenizer_config.json

Releases of transformers read these files differently. transformers 5 builds the tokenizers of some
classes from the vocabulary alone, replaces post-processors and changes the flags of added tokens;
4.57 resets `add_prefix_space` of ByteLevel. So this module reads tokenizer.json by the `tokenizers`
library, and uses transformers only for names and templates. `CLASSES` lists the additions of each
class of transformers 4.57.6 to a tokenizer.json.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors

from jaxscore.errors import InputError
from jaxscore.io import gguf_file
from jaxscore.io.json_input import check_side_file, read_json, read_text
from jaxscore.text import checkpoint_process, tokenizer_limits
from jaxscore.text.bounded_tokenizer import panics_as_errors, special_tokens_around
from jaxscore.text.tokenizer import CheckpointTokenizer, errors_only

TRUTH, SETTINGS = "tokenizer.json", "tokenizer_config.json"
FILES = (  # files that affect the ids of a text, or the end of a generated text
    "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab*.json", "vocab*.txt",
    "merges.txt", "*.model", "*.tiktoken", "tokenization*.py", "chat_template*",
    "additional_chat_templates/*.jinja", "generation_config.json",
)  # fmt: skip
MOST_GROWTH = 64  # Unicode's compatibility forms have up to 18 characters for one
PATTERN = re.compile(rb'"Regex"\s*:\s*"((?:[^"\\]|\\.)*)"')
# The library aborts the process if a merge of a BPE model does not fit this prefix.
PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
# An escaped ASCII letter, which could hide a key from these patterns; JSON writers never escape it.
ESCAPED = re.compile(rb"\\u00(?:[46][1-9a-fA-F]|[57][0-9aA])")
FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")
BOS, EOS = "bos_token", "eos_token"
# With `fix_mistral_regex` in tokenizer_config.json, transformers replaces the pattern of these
# model types above this number of tokens, unless config.json was written by release 5 or later.
FIX_MISTRAL = "fix_mistral_regex"
MISTRAL_TYPES = frozenset({"mistral", "mistral3", "voxtral", "ministral", "pixtral"})
MOST_UNFIXED = 100_000
SPECIAL = (BOS, EOS, "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Classes whose tokenizer transformers 4.57 and 5.x build identically from a vocabulary, since old
# checkpoints lack a tokenizer.json
FROM_VOCABULARY = {"BertTokenizer": ("vocab.txt",), "GPT2Tokenizer": ("vocab.json", "merges.txt")}


@dataclasses.dataclass(frozen=True)
class TokenizerClass:
    """Defaults of a tokenizer class for options that `tokenizer_config.json` does not set.

    Attributes:
        model_types: the model types that use this class if their files do not name one, separated
            by spaces.
        special: the special tokens by role.
        adds: the defaults of add_bos_token and add_eos_token; None keeps tokenizer.json's tokens.
        prefix_space: if True, the class sets `add_prefix_space` of plain ByteLevel.
        lowercases: if True, the class sets the case and accent options of BertNormalizer.
    """

    model_types: str = ""
    special: Mapping[str, str] = dataclasses.field(default_factory=dict)
    adds: tuple[bool, bool] | None = None
    prefix_space: bool = True
    lowercases: bool = False


def _special(**tokens: str) -> dict[str, str]:
    return {f"{role}_token": token for role, token in tokens.items()}


# With a prefix space, Llama's class is built from a SentencePiece file instead.
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
    model_type: name
    for name, tokenizer_class in CLASSES.items()
    for model_type in tokenizer_class.model_types.split()
}


def load_tokenizer(
    folder: Path, *, trust_remote_code: bool = False, add_bos: bool | None = None
) -> Any:
    """Load the checkpoint's fast tokenizer.

    Args:
        add_bos: a value of `add_bos_token` that overrides the one in tokenizer_config.json. If
            True, the BOS precedes each text for any class, unless tokenizer.json puts another token
            there.

    Raises:
        InputError: a tokenizer is missing, or is a slow one without offsets; the tokenizer has
            custom code and `trust_remote_code` is False; its files contradict each other; or
            `add_bos` is set for a GGUF file.
    """
    if gguf_file.is_gguf(folder):
        if add_bos is not None:
            raise InputError(
                f"{folder}: add_bos_token cannot be set for a GGUF file, which has its own value"
            )
        with panics_as_errors(f"{folder}: no usable tokenizer", "", InputError):
            return read_gguf(folder)
    advice = "; expected tokenizer.json next to the model"
    with panics_as_errors(f"{folder}: no usable tokenizer", advice, InputError):
        _side_files(folder)
        settings, config = read_settings(folder), _read_object(folder / "config.json")
        overrides = {} if add_bos is None else {f"add_{BOS}": add_bos}
        has_code = brings_code(settings) or brings_code(config)
        if has_code and not trust_remote_code:
            raise InputError(
                f"{folder}: its tokenizer has custom code (auto_map); read the code, then use "
                "--trust-remote-code to run it"
            )
        name = class_name(settings, config)
        if (folder / TRUTH).exists() and not has_code:
            return read_tokenizer(folder, settings | overrides, config, name, begins=bool(add_bos))
        files = FROM_VOCABULARY.get(name, (TRUTH,))
        missing = [file for file in files if not (folder / file).is_file()]
        if missing and not has_code:
            raise InputError(
                f"{folder}: no usable tokenizer ({', '.join(missing)} missing, "
                f"tokenizer class: {name or 'none'}); expected tokenizer.json next to the model, "
                "which save_pretrained of transformers' AutoTokenizer writes if the class has a "
                "fast tokenizer"
            )
        from transformers import AutoTokenizer

        with errors_only():
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder), use_fast=True, trust_remote_code=has_code, **overrides
            )
        if not tokenizer.is_fast:
            raise InputError(
                f"{folder}: {type(tokenizer).__name__} is a slow tokenizer, which does not return "
                "offsets; save it with a tokenizer.json (convert_slow_tokenizer)"
            )
        return tokenizer


def read_tokenizer(
    folder: Path,
    settings: dict[str, Any],
    config: dict[str, Any],
    name: str,
    *,
    begins: bool = False,
) -> CheckpointTokenizer:
    """Read the tokenizer of a folder that has a tokenizer.json.

    Args:
        settings, config: the contents of tokenizer_config.json and config.json.
        name: the tokenizer class; see `class_name`.
        begins: if True, a text starts with the BOS unless the tokenizer puts a token there.

    Returns:
        A tokenizer with the special tokens by role and the chat template, and with the
        `backend_tokenizer` of tokenizer.json.

    Raises:
        InputError: files contradict each other, or releases of transformers read them differently.
        Exception: tokenizer.json is invalid; an exception of the library `tokenizers`.
    """
    check_tokenizer_file(folder / TRUTH)
    files = _Files(folder, settings, CLASSES.get(name, TokenizerClass()))
    names = files.add_tokens()
    files.apply_options(names)
    if begins:
        files.begin_with_bos(names)
    warnings = files.fix_mistral_pattern(config)
    return _wrap(folder, files.backend, names, files.chat_template(), warnings)


def read_gguf(path: Path) -> CheckpointTokenizer:
    """Read the tokenizer of a GGUF file, as `read_tokenizer` does.

    Raises:
        InputError: the tokenizer is missing or of an unsupported type.
    """
    from jaxscore.text.gguf_tokenizer import read_gguf_tokenizer  # deferred: only for GGUF files

    return _wrap(path, *read_gguf_tokenizer(gguf_file.read_gguf(path)))


def _wrap(
    path: Path,
    backend: Tokenizer,
    names: dict[str, str],
    template: Any,
    warnings: Sequence[str] = (),
) -> CheckpointTokenizer:
    settings = {"chat_template": template, **names}
    return CheckpointTokenizer(backend, str(path), settings, warnings)


def check_tokenizer_file(path: Path) -> None:
    """Read a tokenizer.json in a child process first if it may exhaust memory, hang or abort.

    This is possible with unknown patterns and with prefixes on which the library aborts.

    Raises:
        InputError: reading takes too much time or memory, or aborts the process.
    """
    check_side_file(path, path.parent)
    raw = path.read_bytes()
    patterns = {json.loads(b'"%b"' % pattern) for pattern in PATTERN.findall(raw)}
    has_prefix = b'"BPE"' in raw and PREFIX.search(raw)
    if has_prefix or not patterns <= tokenizer_limits.KNOWN_PATTERNS or ESCAPED.search(raw):
        checkpoint_process.check_tokenizer(path)


def digest(folder: Path) -> str | None:
    """Return the SHA-256 of the names and contents of a checkpoint's tokenizer files.

    Returns:
        Hexadecimal digits, or None without such files, for example for a GGUF file.

    Raises:
        InputError: a file cannot be read.
    """
    checksums = []
    for path in _side_files(folder):
        try:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as problem:
            raise InputError(f"{path}: {problem.strerror}; expected a readable file") from None
        checksums.append([path.relative_to(folder).as_posix(), content])
    return hashlib.sha256(json.dumps(checksums).encode()).hexdigest() if checksums else None


def _side_files(folder: Path) -> list[Path]:
    """List the files of a checkpoint that its tokenizer may read, sorted.

    Raises:
        InputError: see `check_side_file`.
    """
    paths = sorted({path for pattern in FILES for path in folder.glob(pattern)})
    for path in paths:
        check_side_file(path, folder)
    return [path for path in paths if path.is_file()]


def read_settings(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json; return an empty dict if the file is missing.

    Raises:
        InputError: the file is not a JSON object.
    """
    return _read_object(folder / SETTINGS)


def brings_code(content: dict[str, Any]) -> bool:
    """Return True if the content of a checkpoint's file names custom code for the tokenizer."""
    auto_map = content.get("auto_map")
    return isinstance(auto_map, list) or (
        isinstance(auto_map, dict) and bool(auto_map.get("AutoTokenizer"))
    )


def class_name(settings: dict[str, Any], config: dict[str, Any]) -> str:
    """Return the tokenizer's class without "Fast".

    Uses the tokenizer's settings, then the model's config, then the model type.
    """
    name = (
        settings.get("tokenizer_class")
        or config.get("tokenizer_class")
        or OF_MODEL_TYPE.get(str(config.get("model_type")), "")
    )
    return str(name).removesuffix("Fast")


def _read_object(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    check_side_file(path, path.parent)
    content = read_json(path, "a JSON object")
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected an object, found {type(content).__name__}")
    return content


class _Files:
    """The tokenizer.json of a folder, with methods that apply the other files.

    Attributes:
        settings: the content of tokenizer_config.json.
        backend: the tokenizer.

    Raises:
        InputError: the tokenizer's replacements multiply text.
    """

    def __init__(
        self, folder: Path, settings: dict[str, Any], tokenizer_class: TokenizerClass
    ) -> None:
        self.folder, self.settings, self._class = folder, settings, tokenizer_class
        self.backend = Tokenizer.from_file(str(folder / TRUTH))
        for name in ("normalizer", "decoder"):
            growth = tokenizer_limits.growth(getattr(self.backend, name))
            if growth > MOST_GROWTH:
                factor = growth if growth < 10**9 else "more than a billion"
                raise InputError(
                    f"{self.folder / TRUTH}: its {name} can make a text {factor} times longer, "
                    f"expected at most {MOST_GROWTH} times; its Replace, Prepend or Precompiled "
                    "components multiply text"
                )
        self.backend.no_padding()  # the file may set a padded length
        self.backend.encode_special_tokens = bool(self.settings.get("split_special_tokens"))

    def add_tokens(self) -> dict[str, str]:
        """Add the settings' tokens that are missing in tokenizer.json or have other flags there.

        Returns:
            The special tokens by role.

        Raises:
            InputError: a token has a different id in tokenizer.json.
        """
        settings, backend = self.settings, self.backend
        special = self._special_tokens()
        declared = {
            int(id): AddedToken(token["content"], **{f: token[f] for f in FLAGS if f in token})
            for id, token in (settings.get("added_tokens_decoder") or {}).items()
        }
        present = [repr(token) for token in backend.get_added_tokens_decoder().values()]
        backend.add_tokens([t for _, t in sorted(declared.items()) if repr(t) not in present])
        additional = settings.get("additional_special_tokens") or settings.get(
            "extra_special_tokens"
        )
        for written in [*special.values(), *(additional if isinstance(additional, list) else [])]:
            added = {token.content for token in backend.get_added_tokens_decoder().values()}
            token = _special_token(written)
            if token.content not in added:
                backend.add_tokens([token])
        for id, token in declared.items():
            stored_id = backend.token_to_id(token.content)
            if stored_id != id:
                raise InputError(
                    f"{self.folder / SETTINGS}: token {token.content!r} has id {id}, but "
                    f"{stored_id} in {TRUTH}; use tokenizer files that belong together"
                )
        return {role: str(_special_token(written)) for role, written in special.items()}

    def _special_tokens(self) -> dict[str, Any]:
        """Return the special tokens by role, each a name or an object as in the files."""
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
        if "backend" in self.settings:  # transformers 5: tokenizer.json has all options
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
        """Return the value of an option in tokenizer_config.json, or else in tokenizer.json.

        Raises:
            InputError: only tokenizer.json has the option, and its value is not the class's
                default; transformers 4.57 and 5.x then differ.
        """
        if name in self.settings:
            return self.settings[name]
        if stored != default:
            raise InputError(
                f"{self.folder / SETTINGS}: {name} is missing; it is {stored} in {TRUTH} but "
                f"{default} by default for the tokenizer's class; add {name} with the value that "
                "the model was trained with"
            )
        return stored

    def _set_post_processor(self, adds: tuple[bool, bool], names: dict[str, str]) -> None:
        """Set the BOS before a text and the EOS after it, by add_bos_token and add_eos_token."""
        pieces, special = ["$A:0"], {}
        for role, default in zip((BOS, EOS), adds, strict=True):
            if not self.settings.get(f"add_{role}", default):
                continue
            if role not in names:
                side = "before" if role == BOS else "after"
                raise InputError(
                    f"{self.folder / SETTINGS}: the tokenizer's class puts its {role} {side} a "
                    f"text, but no {role} is named that is in {TRUTH}; name it, or set add_{role} "
                    "to false"
                )
            pieces.insert(0 if role == BOS else len(pieces), f"{names[role]}:0")
            special[names[role]] = self.backend.token_to_id(names[role])
        self.backend.post_processor = processors.TemplateProcessing(
            single=pieces, special_tokens=list(special.items())
        )

    def begin_with_bos(self, names: dict[str, str]) -> None:
        """Put the BOS before a text if the tokenizer has one and does not put a token there.

        Keeps tokenizer.json's tokens after a text and its processing of offsets.

        Args:
            names: the special tokens by role.
        """
        around = special_tokens_around(
            lambda text, special: self.backend.encode(text, add_special_tokens=special).ids
        )
        if BOS not in names or (around is not None and around[0]):
            return
        bos = names[BOS]
        begin = processors.TemplateProcessing(
            single=f"{bos}:0 $A:0", special_tokens=[(bos, self.backend.token_to_id(bos))]
        )
        before = self.backend.post_processor
        self.backend.post_processor = (
            begin if before is None else processors.Sequence([before, begin])
        )

    def fix_mistral_pattern(self, config: dict[str, Any]) -> list[str]:
        """Replace Mistral's first published pattern by the corrected one for `fix_mistral_regex`.

        The conditions are those of transformers 4.57.6 and 5.x.

        Args:
            config: the content of config.json, empty without the file.

        Returns:
            A warning if the key is missing and the two patterns can result in different ids.

        Raises:
            InputError: the key is true, and only one of the two releases replaces the pattern.
        """
        splitter = self.backend.pre_tokenizer
        fixed = pre_tokenizers.Split(Regex(tokenizer_limits.TEKKEN), "isolated")
        is_sequence = isinstance(splitter, pre_tokenizers.Sequence)
        if splitter is None or (is_sequence and splitter[0].__getstate__() == fixed.__getstate__()):
            return []
        in_4, in_5 = self._replaces_pattern(config)
        fix = self.settings.get(FIX_MISTRAL)
        if fix is None and in_4 and in_5:
            return [
                f"{self.folder / TRUTH}: splits texts by a pattern that Mistral has replaced, so "
                f"some words get other tokens than in training; set {FIX_MISTRAL} to true in "
                f"{SETTINGS} for the corrected pattern, or to false to keep this one"
            ]
        if not fix or not (in_4 or in_5):
            return []
        if in_4 != in_5:
            release, other = ("4.57", "5") if in_4 else ("5", "4.57")
            raise InputError(
                f"{self.folder / SETTINGS}: {FIX_MISTRAL} is true, but for this config.json "
                f"transformers {release} replaces the pattern of {TRUTH} and {other} does not "
                f"(model_type {config.get('model_type')!r}, transformers_version "
                f"{config.get('transformers_version')!r}); set {FIX_MISTRAL} to false to keep "
                "the pattern"
            )
        if is_sequence:
            splitter[0] = fixed
            return []
        if isinstance(splitter, pre_tokenizers.Metaspace):  # like transformers 5; 4.57 fails
            splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.backend.pre_tokenizer = pre_tokenizers.Sequence([fixed, splitter])
        return []

    def _replaces_pattern(self, config: dict[str, Any]) -> tuple[bool, bool]:
        """Return for transformers 4.57.6 and for 5.x: True if it may replace the pattern."""
        if not config:
            return False, False
        version = _release(config.get("transformers_version"), self.folder / "config.json")
        is_mistral = config.get("model_type") in {None, *MISTRAL_TYPES}
        is_old = version is None or version < (5, 0, 0, True)
        # 4.57.6 checks the model type only up to version 4.57.2.
        in_4 = is_old and (is_mistral or version is None or version > (4, 57, 2, True))
        n_tokens = [self.backend.get_vocab_size(with_added_tokens=added) for added in (False, True)]
        return (
            in_4 and n_tokens[0] > MOST_UNFIXED,
            is_old and is_mistral and n_tokens[1] > MOST_UNFIXED,
        )

    def chat_template(self) -> Any:
        """Return the template, or several by name; files override tokenizer_config.json."""
        paths = sorted(self.folder.glob("additional_chat_templates/*.jinja"))
        files = {path.stem: path for path in paths}
        if (path := self.folder / "chat_template.jinja").exists():
            files["default"] = path
        templates = {}
        for name, path in files.items():
            check_side_file(path, self.folder)
            templates[name] = read_text(path)
        if list(templates) == ["default"]:
            return templates["default"]
        return templates or self.settings.get("chat_template")


def _release(version: Any, path: Path) -> tuple[int, int, int, bool] | None:
    """Parse a version as (major, minor, micro, is final); return None for an empty version.

    Raises:
        InputError: the value is not a version.
    """
    if not version:
        return None
    match = re.match(r"(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?(.*)", str(version))
    if match is None:
        raise InputError(
            f"{path}: transformers_version is {version!r}, expected a version such as 5.0.0"
        )
    numbers = [int(number or 0) for number in match.groups()[:3]]
    is_early = re.match(r"[-_.]?(?:dev|a|b|c|rc|alpha|beta|pre|preview)", match[4].lower())
    return numbers[0], numbers[1], numbers[2], is_early is None


def _special_token(token: Any) -> AddedToken:
    """Build a special token from its name, or from an object with its flags."""
    if isinstance(token, str):
        return AddedToken(token, special=True, normalized=False)
    flags = {name: token[name] for name in FLAGS if name in token}
    return AddedToken(token["content"], **{**flags, "special": True})
