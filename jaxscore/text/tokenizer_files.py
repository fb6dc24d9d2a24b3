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
FILES = (  # that decide how a text becomes ids, and where a generated one ends
    "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab*.json", "vocab*.txt",
    "merges.txt", "*.model", "*.tiktoken", "tokenization*.py", "chat_template*",
    "additional_chat_templates/*.jinja", "generation_config.json",
)  # fmt: skip
MOST_GROWTH = 64  # one character in Unicode's compatibility form has up to 18
PATTERN = re.compile(rb'"Regex"\s*:\s*"((?:[^"\\]|\\.)*)"')
# A BPE model with such a prefix and a merge that it does not fit ends the process.
PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
ESCAPED = re.compile(rb"\\u00(?:[46][1-9a-fA-F]|[57][0-9aA])")  # a letter, as no writer has it
FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")
BOS, EOS = "bos_token", "eos_token"
# `fix_mistral_regex` of tokenizer_config.json: transformers replaces the pattern of these models'
# tokenizers above this number of tokens, unless a release from 5 has written config.json.
FIX_MISTRAL = "fix_mistral_regex"
MISTRAL_TYPES = frozenset({"mistral", "mistral3", "voxtral", "ministral", "pixtral"})
MOST_UNFIXED = 100_000
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


def load_tokenizer(
    folder: Path, *, trust_remote_code: bool = False, add_bos: bool | None = None
) -> Any:
    """Load the checkpoint's fast tokenizer.

    Args:
        add_bos: value of `add_bos_token` in place of the one in tokenizer_config.json. If True, the
            BOS precedes each text, whatever the class, unless tokenizer.json puts a token there.

    Raises:
        InputError: the folder has no tokenizer, or only a slow one, which has no offsets; the
            tokenizer brings code and `trust_remote_code` is False; its files contradict each
            other; or `add_bos` is given for a GGUF file.
    """
    if gguf_file.is_gguf(folder):
        if add_bos is not None:
            raise InputError(f"{folder}: add_bos_token: a GGUF file has a value of its own")
        with panics_as_errors(f"{folder}: no usable tokenizer", "", InputError):
            return read_gguf(folder)
    advice = "; expected tokenizer.json beside the model"
    with panics_as_errors(f"{folder}: no usable tokenizer", advice, InputError):
        _side_files(folder)
        settings, config = read_settings(folder), _read_object(folder / "config.json")
        given = {} if add_bos is None else {f"add_{BOS}": add_bos}
        has_code = brings_code(settings) or brings_code(config)
        if has_code and not trust_remote_code:
            raise InputError(
                f"{folder}: its tokenizer brings code of its own (auto_map); read it, then give "
                "--trust-remote-code to run it"
            )
        name = class_name(settings, config)
        if (folder / TRUTH).exists() and not has_code:
            return read_tokenizer(folder, settings | given, config, name, begins=bool(add_bos))
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
                str(folder), use_fast=True, trust_remote_code=has_code, **given
            )
        if not tokenizer.is_fast:
            raise InputError(
                f"{folder}: {type(tokenizer).__name__} is a slow tokenizer, which gives no "
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
        settings, config: contents of tokenizer_config.json and config.json.
        name: see `class_name`.
        begins: if True, a text begins with the BOS if the tokenizer puts no token there.

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
    if begins:
        files.begin_with_bos(names)
    remarks = files.fix_mistral_pattern(config)
    return _wrapped(folder, files.backend, names, files.chat_template(), remarks)


def read_gguf(path: Path) -> CheckpointTokenizer:
    """Read the tokenizer of a GGUF file, as `read_tokenizer` does.

    Raises:
        InputError: the file has none, or one of a kind that is not read.
    """
    from jaxscore.text.gguf_tokenizer import read_gguf_tokenizer  # deferred: other files need none

    return _wrapped(path, *read_gguf_tokenizer(gguf_file.read_gguf(path)))


def _wrapped(
    path: Path,
    backend: Tokenizer,
    names: dict[str, str],
    template: Any,
    remarks: Sequence[str] = (),
) -> CheckpointTokenizer:
    settings = {"chat_template": template, **names}
    return CheckpointTokenizer(backend, str(path), settings, remarks)


def check_tokenizer_file(path: Path) -> None:
    """Read a tokenizer.json in another process first if it may take all memory, or never end.

    It may if a pattern is not a known one, or if the library can end the process.

    Raises:
        InputError: it takes too much time or memory, or ends the process.
    """
    check_side_file(path, path.parent)
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
    found = []
    for path in _side_files(folder):
        try:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as problem:
            raise InputError(f"{path}: {problem.strerror}; expected a readable file") from None
        found.append([path.relative_to(folder).as_posix(), content])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest() if found else None


def _side_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that its tokenizer may read, by name.

    Raises:
        InputError: see `check_side_file`.
    """
    paths = sorted({path for pattern in FILES for path in folder.glob(pattern)})
    for path in paths:
        check_side_file(path, folder)
    return [path for path in paths if path.is_file()]


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
    check_side_file(path, path.parent)
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

    def begin_with_bos(self, names: dict[str, str]) -> None:
        """Put the BOS before a text if the tokenizer has one and puts no token there.

        What tokenizer.json does after a text, and to offsets, stays.

        Args:
            names: special tokens by role.
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
        """Replace Mistral's first published pattern by the right one if `fix_mistral_regex` is set.

        The conditions are those of transformers 4.57.6 and 5.x.

        Args:
            config: content of config.json, empty without the file.

        Returns:
            A warning if the key is missing and the two patterns can give different ids.

        Raises:
            InputError: the key is set, and one of the two releases leaves the pattern as it is.
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
                f"some words get other tokens than in training; write {FIX_MISTRAL} true into "
                f"{SETTINGS} for the right pattern, or false to keep this one"
            ]
        if not fix or not (in_4 or in_5):
            return []
        if in_4 != in_5:
            release, other = ("4.57", "5") if in_4 else ("5", "4.57")
            raise InputError(
                f"{self.folder / SETTINGS}: {FIX_MISTRAL} is true, and for this config.json "
                f"transformers {release} replaces the pattern of {TRUTH} and {other} does not "
                f"(model_type {config.get('model_type')!r}, transformers_version "
                f"{config.get('transformers_version')!r}); write {FIX_MISTRAL} false to keep "
                "the pattern"
            )
        if is_sequence:
            splitter[0] = fixed
            return []
        if isinstance(splitter, pre_tokenizers.Metaspace):  # as transformers 5 does; 4.57 fails
            splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.backend.pre_tokenizer = pre_tokenizers.Sequence([fixed, splitter])
        return []

    def _replaces_pattern(self, config: dict[str, Any]) -> tuple[bool, bool]:
        """Return whether transformers 4.57.6 and 5.x may replace the pattern."""
        if not config:
            return False, False
        version = _release(config.get("transformers_version"), self.folder / "config.json")
        is_mistral = config.get("model_type") in {None, *MISTRAL_TYPES}
        is_old = version is None or version < (5, 0, 0, True)
        # 4.57.6 looks at the model type up to 4.57.2 only.
        in_4 = is_old and (is_mistral or version is None or version > (4, 57, 2, True))
        n_tokens = [self.backend.get_vocab_size(with_added_tokens=added) for added in (False, True)]
        return (
            in_4 and n_tokens[0] > MOST_UNFIXED,
            is_old and is_mistral and n_tokens[1] > MOST_UNFIXED,
        )

    def chat_template(self) -> Any:
        """The template, or several by name; files override tokenizer_config.json."""
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
    """Read a version as (major, minor, micro, is final), or None if there is none.

    Raises:
        InputError: it is not a version.
    """
    if not version:
        return None
    match = re.match(r"(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?(.*)", str(version))
    if match is None:
        raise InputError(
            f"{path}: transformers_version is {version!r}, expected a version as 5.0.0"
        )
    numbers = [int(number or 0) for number in match.groups()[:3]]
    is_early = re.match(r"[-_.]?(?:dev|a|b|c|rc|alpha|beta|pre|preview)", match[4].lower())
    return numbers[0], numbers[1], numbers[2], is_early is None


def _special_token(written: Any) -> AddedToken:
    """A special token from its name, or from an object with its flags."""
    if isinstance(written, str):
        return AddedToken(written, special=True, normalized=False)
    flags = {name: written[name] for name in FLAGS if name in written}
    return AddedToken(written["content"], **{**flags, "special": True})
