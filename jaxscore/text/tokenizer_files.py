"""A tokenizer from its files, alike under every release of transformers.

    tokenizer.json             the truth: vocabulary, merges, how a text is cut, its BOS
    tokenizer_config.json      special tokens by role, more added tokens, the class and its options
    special_tokens_map.json    special tokens by role, where the former lists no added tokens
    chat_template.jinja        the chat template; older checkpoints have it in tokenizer_config.json

transformers 5 makes some classes' tokenizers from the vocabulary alone, replaces post-processors
and gives added tokens other flags; 4.57 resets a ByteLevel's prefix blank. So the `tokenizers`
library reads tokenizer.json here, and transformers holds names and templates.
"""

import json
import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from jaxscore.errors import InputError
from jaxscore.io.json_input import check_regular, read_json, read_text
from jaxscore.text import checkpoint_process, tokenizer_limits
from jaxscore.text.tokenizer_classes import BOS, CLASSES, EOS, OF_MODEL_TYPE, PLAIN, SPECIAL

TRUTH, SETTINGS = "tokenizer.json", "tokenizer_config.json"
MOST_BYTES = 1 << 29  # of a tokenizer.json; those of 260,000 tokens have 35 MB
MOST_GROWTH = 64  # one character in Unicode's compatibility form has up to 18
PATTERN = re.compile(rb'"Regex"\s*:\s*"((?:[^"\\]|\\.)*)"')
# A BPE model with such a prefix and a merge that it does not fit ends the process.
PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
ESCAPED = re.compile(rb"\\u00(?:[46][1-9a-fA-F]|[57][0-9aA])")  # a letter, as no writer has it
FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder that has a tokenizer.json.

    Returns:
        A `transformers.PreTrainedTokenizerFast` that knows the special tokens by role and the chat
        template, and whose `backend_tokenizer` is the one of tokenizer.json.

    Raises:
        InputError: files that contradict each other, or whose meaning depends on the release of
            transformers.
        Exception: what `tokenizers` raises for a tokenizer.json that is none.
    """
    from transformers import PreTrainedTokenizerFast

    settings = read_settings(folder)
    check_tokenizer_file(folder / TRUTH)
    backend = Tokenizer.from_file(str(folder / TRUTH))
    _check_growth(folder / TRUTH, backend)
    backend.no_padding()  # to a length that the file names
    known = CLASSES.get(class_name(folder, settings), PLAIN)
    roles = _roles(folder, settings)
    for role, name in known.special.items():
        if role not in roles and backend.token_to_id(name) is not None:
            roles[role] = name
    roles = {role: token for role, token in roles.items() if token is not None}
    _add_tokens(folder, backend, settings, list(roles.values()))
    splits_special = bool(settings.get("split_special_tokens"))
    backend.encode_special_tokens = splits_special
    names = {role: str(_token(token)) for role, token in roles.items()}
    if "backend" not in settings:  # transformers 5 writes it, and all else into tokenizer.json
        if known.prefix_space:
            _set_prefix_space(folder, backend, settings)
        if known.lowercases:
            _set_case(folder, backend, settings)
        if known.adds is not None:
            _set_template(folder, backend, settings, known.adds, names)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"": 0}, unk_token="")),
        name_or_path=str(folder),
        chat_template=_chat_template(folder, settings),
        split_special_tokens=splits_special,  # each call sets the backend's by it
        clean_up_tokenization_spaces=bool(settings.get("clean_up_tokenization_spaces")),
        # transformers 5 asks for this beside the former; 4.57 knows the former alone
        clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output=True,
        **names,
    )
    # Each release changes a tokenizer that it is given, so it gets this one after that.
    tokenizer._tokenizer = backend
    return tokenizer


def check_tokenizer_file(path: Path) -> None:
    """Read a tokenizer.json in another process first if that may take all memory or for ever.

    That is so where a pattern is not a known one, or where the library can end the process.

    Raises:
        InputError: it takes too much time or memory, or ends the process.
    """
    check_regular(path)
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path}: found more than {MOST_BYTES >> 20} MB, expected a tokenizer")
    raw = path.read_bytes()
    found = {json.loads(b'"%b"' % one) for one in PATTERN.findall(raw)}
    prefixed = b'"BPE"' in raw and PREFIX.search(raw)
    if prefixed or not found <= tokenizer_limits.KNOWN_PATTERNS or ESCAPED.search(raw):
        checkpoint_process.check_tokenizer(path)


def _check_growth(path: Path, backend: Tokenizer) -> None:
    """Refuse a tokenizer whose replacements multiply text.

    Raises:
        InputError: naming the part and the factor.
    """
    for name in ("normalizer", "decoder"):
        times = tokenizer_limits.growth(getattr(backend, name))
        if times > MOST_GROWTH:
            shown = times if times < 10**9 else "more than a billion"
            raise InputError(
                f"{path}: its {name} can make a text {shown} times longer, expected at most "
                f"{MOST_GROWTH} times; its Replace, Prepend or Precompiled parts multiply text"
            )


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, empty where there is none.

    Raises:
        InputError: it is no JSON object.
    """
    return _object(folder / SETTINGS)


def brings_code(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the checkpoint names Python code of its own for its tokenizer."""
    for written in (settings, _object(folder / "config.json")):
        named = written.get("auto_map")
        if isinstance(named, list) or (isinstance(named, dict) and named.get("AutoTokenizer")):
            return True
    return False


def class_name(folder: Path, settings: dict[str, Any]) -> str:
    """The tokenizer's class without "Fast": named by its settings or the model's, or its kind's."""
    model = _object(folder / "config.json")
    name = (
        settings.get("tokenizer_class")
        or model.get("tokenizer_class")
        or OF_MODEL_TYPE.get(str(model.get("model_type")), "")
    )
    return str(name).removesuffix("Fast")


def _object(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    check_regular(path)
    found = read_json(path, "a JSON object")
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected an object, found {type(found).__name__}")
    return found


def _roles(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Special tokens by role as the files write them: a name, an object, or null for none."""
    written = {role: settings[role] for role in SPECIAL if role in settings}
    if "added_tokens_decoder" not in settings:
        older = _object(folder / "special_tokens_map.json")
        written |= {role: older[role] for role in SPECIAL if role in older}
    return written


def _token(written: Any) -> AddedToken:
    """A special token as files write it: its name, or an object with its flags."""
    if isinstance(written, str):
        return AddedToken(written, special=True, normalized=False)
    flags = {name: written[name] for name in FLAGS if name in written}
    return AddedToken(written["content"], **{**flags, "special": True})


def _add_tokens(
    folder: Path, backend: Tokenizer, settings: dict[str, Any], special: list[Any]
) -> None:
    """Add the tokens that tokenizer_config.json has more, or with other flags.

    Raises:
        InputError: a token that has another id in tokenizer.json.
    """
    declared = {
        int(id): AddedToken(token["content"], **{f: token[f] for f in FLAGS if f in token})
        for id, token in (settings.get("added_tokens_decoder") or {}).items()
    }
    here = [repr(token) for token in backend.get_added_tokens_decoder().values()]
    backend.add_tokens([t for _, t in sorted(declared.items()) if repr(t) not in here])
    more = settings.get("additional_special_tokens") or settings.get("extra_special_tokens")
    for written in [*special, *(more if isinstance(more, list) else [])]:
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        token = _token(written)
        if token.content not in added:
            backend.add_tokens([token])
    for id, token in declared.items():
        found = backend.token_to_id(token.content)
        if found != id:
            raise InputError(
                f"{folder / SETTINGS}: token {token.content!r} has id {id}, and in {TRUTH} it has "
                f"{found}; give the tokenizer files that belong together"
            )


def _setting(folder: Path, settings: dict[str, Any], name: str, default: Any, stored: Any) -> Any:
    """An option that both tokenizer_config.json and tokenizer.json hold; the former decides.

    Raises:
        InputError: it is silent, and the class's default is not what tokenizer.json has, which
            4.57 and 5.x read otherwise.
    """
    if name in settings:
        return settings[name]
    if stored != default:
        raise InputError(
            f"{folder / SETTINGS}: has no {name}, of which {TRUTH} says {stored} and the "
            f"tokenizer's class {default}; write {name} into it as the model was trained"
        )
    return stored


def _set_prefix_space(folder: Path, backend: Tokenizer, settings: dict[str, Any]) -> None:
    """Whether a plain ByteLevel reads a text as if a blank stood before it."""
    cut = backend.pre_tokenizer
    if isinstance(cut, pre_tokenizers.ByteLevel):
        stored = cut.add_prefix_space
        cut.add_prefix_space = bool(_setting(folder, settings, "add_prefix_space", False, stored))


def _set_case(folder: Path, backend: Tokenizer, settings: dict[str, Any]) -> None:
    """What a BertNormalizer does to letters."""
    normalizer = backend.normalizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        for name, attribute, default in (
            ("do_lower_case", "lowercase", True),
            ("strip_accents", "strip_accents", None),
            ("tokenize_chinese_chars", "handle_chinese_chars", True),
        ):
            stored = getattr(normalizer, attribute)
            setattr(normalizer, attribute, _setting(folder, settings, name, default, stored))


def _set_template(
    folder: Path,
    backend: Tokenizer,
    settings: dict[str, Any],
    adds: tuple[bool, bool],
    names: dict[str, str],
) -> None:
    """The BOS before a text and the EOS after it, by add_bos_token and add_eos_token."""
    pieces, special = ["$A:0"], []
    for role, default in zip((BOS, EOS), adds, strict=True):
        if not settings.get(f"add_{role}", default):
            continue
        if role not in names:
            verb = "begins" if role == BOS else "ends"
            raise InputError(
                f"{folder / SETTINGS}: the tokenizer's class {verb} a text with its {role}, and "
                f"none is in {TRUTH} and named; name it, or write add_{role} false"
            )
        pieces.insert(0 if role == BOS else len(pieces), f"{names[role]}:0")
        special.append((names[role], backend.token_to_id(names[role])))
    backend.post_processor = processors.TemplateProcessing(
        single=pieces, special_tokens=list(dict(special).items())
    )


def _chat_template(folder: Path, settings: dict[str, Any]) -> Any:
    """The template, or several by name; files come before what tokenizer_config.json holds."""
    files = {path.stem: path for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    if (folder / "chat_template.jinja").exists():
        files["default"] = folder / "chat_template.jinja"
    templates = {}
    for name, path in files.items():
        check_regular(path)
        templates[name] = read_text(path)
    if list(templates) == ["default"]:
        return templates["default"]
    return templates or settings.get("chat_template")
