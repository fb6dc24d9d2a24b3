"""tokenizer.json is the truth, whichever release of transformers wrote the files or reads them.

What the settings beside it change is what transformers 4.57.6 makes of them; where that release is
installed, its own `AutoTokenizer` is asked as well.
"""

import functools
import inspect
import json
import re
import shutil
from pathlib import Path

import pytest
import transformers
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from jaxscore import Request
from jaxscore.errors import InputError
from jaxscore.models.families import FAMILIES
from jaxscore.text import chat_template, tokenizer_limits
from jaxscore.text.bounded_tokenizer import decode_ids
from jaxscore.text.encoder import BOUNDARIES, TextEncoder
from jaxscore.text.tokenizer_files import CLASSES, OF_MODEL_TYPE, SPECIAL, load_tokenizer
from tests.conftest import CASES
from tests.releases import TRANSFORMERS_4, of_4

pytestmark = pytest.mark.lines

KEPT = CASES / "tokenizers"
KINDS = ("byte_level", "metaspace", "unigram", "word_piece")
EXPECTED = json.loads((KEPT / "expected.json").read_text(encoding="utf-8"))
BOS, EOS = "<|begin_of_text|>", "<|eot_id|>"
ADDED = {  # as tokenizer_config.json has it
    "lstrip": False,
    "normalized": False,
    "rstrip": False,
    "single_word": False,
    "special": False,
}


def kept(kind: str, release: int, folder: Path) -> Path:
    """The folder as that release of transformers saves it."""
    shutil.copytree(KEPT / kind / f"saved_by_{release}", folder, dirs_exist_ok=True)
    shutil.copy(KEPT / kind / "tokenizer.json", folder)
    return folder


@pytest.fixture
def written(tmp_path):
    """`written(tokenizer, **settings)`: a folder with a llama's config; another's by `model`."""

    def write(tokenizer=None, model=None, **settings) -> Path:
        if tokenizer is None:
            shutil.copy(CASES / "models/tiny-llama3/tokenizer.json", tmp_path)
        else:
            tokenizer.save(str(tmp_path / "tokenizer.json"))
        for name, content in (
            ("config.json", {"model_type": "llama"} | (model or {})),
            ("tokenizer_config.json", settings),
        ):
            (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return write


def same_as_transformers(folder: Path, text: str) -> None:
    """Ids and offsets are those of 4.57's `AutoTokenizer`."""
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    ours = load_tokenizer(folder)
    for special in (True, False):
        want = theirs.backend_tokenizer.encode(text, add_special_tokens=special)
        got = ours.backend_tokenizer.encode(text, add_special_tokens=special)
        assert (got.ids, got.offsets) == (want.ids, want.offsets)
    assert ours.special_tokens_map.get("eos_token") == theirs.special_tokens_map.get("eos_token")
    assert ours.decode(want.ids) == theirs.decode(want.ids)


@pytest.mark.parametrize("release", [4, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_both_spellings_give_what_tokenizer_json_says(kind, release, tmp_path):
    tokenizer = load_tokenizer(kept(kind, release, tmp_path))
    encoder = TextEncoder(tokenizer)
    assert encoder.prefix == EXPECTED[kind]["prefix"]
    for case in EXPECTED[kind]["texts"]:
        text, offsets = case["text"], [tuple(pair) for pair in case["offsets"]]
        bare = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        assert (bare.ids, bare.offsets) == (case["ids"], offsets)
        assert tokenizer(text)["input_ids"] == case["with_special"]
        assert tokenizer.decode(case["with_special"], skip_special_tokens=True) == case["decoded"]
    kept_file = Tokenizer.from_file(str(KEPT / kind / "tokenizer.json"))
    assert tokenizer.get_vocab() == kept_file.get_vocab()


@of_4
@pytest.mark.parametrize("kind", KINDS)
def test_both_are_what_transformers_reads(kind, tmp_path):
    for case in EXPECTED[kind]["texts"]:
        same_as_transformers(kept(kind, 4, tmp_path), case["text"])


@pytest.mark.parametrize("release", [4, 5])
@pytest.mark.parametrize(("kind", "bos", "eos"), [
    ("byte_level", "<|bos|>", "<|end|>"), ("metaspace", "<s>", "</s>"), ("word_piece", "", "")
])  # fmt: skip
def test_both_spellings_give_the_template_its_names(kind, bos, eos, release, tmp_path):
    tokenizer = load_tokenizer(kept(kind, release, tmp_path))
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    want = f"{bos}<user>a{eos}{bos}<assistant>b{eos}"
    assert chat_template.render(tokenizer, messages) == want
    assert (tokenizer.eos_token or "") == eos
    if kind == "word_piece":
        assert (tokenizer.cls_token_id, tokenizer.sep_token_id) == (2, 3)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama3", "tiny-qwen2", "demo"])
def test_the_checkpoints_here_are_read_as_they_are(name):
    folder = CASES / "models" / name
    if name == "demo":
        folder = CASES.parents[1] / "jaxscore/demo/model"
    truth = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert load_tokenizer(folder).backend_tokenizer.to_str() == truth.to_str()


TEXT = "The cat, and 東京 "


@pytest.mark.parametrize(
    ("settings", "before", "after"),
    [
        ({"tokenizer_class": "LlamaTokenizer"}, [BOS], []),
        ({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False}, [], []),
        ({"tokenizer_class": "CodeLlamaTokenizer", "add_eos_token": True}, [BOS], [EOS]),
        ({"tokenizer_class": "GemmaTokenizer", "add_bos_token": None}, [], []),
        ({"tokenizer_class": "CohereTokenizerFast", "add_prefix_space": False}, [BOS], []),
        ({"tokenizer_class": "GPTNeoXTokenizer"}, [], []),
        ({"tokenizer_class": "GPTNeoXTokenizer", "add_bos_token": True}, [BOS], []),
        # These read tokenizer.json alone, which begins a text with the BOS.
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False}, [BOS], []),
        ({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": False}, [BOS], []),
        ({"tokenizer_class": "Qwen2Tokenizer", "add_eos_token": True}, [BOS], []),
        ({}, [BOS], []),  # a llama's class, which the model type names
    ],
)
def test_the_classes_that_decide_what_stands_around_a_text(
    written, settings, before, after, request
):
    folder = written(bos_token=BOS, eos_token=EOS, **settings)
    tokenizer = load_tokenizer(folder)
    ids = tokenizer(TEXT)["input_ids"]
    bare = tokenizer.backend_tokenizer.encode(TEXT, add_special_tokens=False).ids
    names = tokenizer.convert_tokens_to_ids
    assert ids == [*names(before), *bare, *names(after)]
    if TRANSFORMERS_4:
        same_as_transformers(folder, TEXT)


@pytest.mark.parametrize("name", ["TokenizersBackend", "LlamaTokenizer"])
def test_what_transformers_5_saved_has_all_of_it_in_tokenizer_json(written, name):
    truth = Tokenizer.from_file(str(CASES / "models/tiny-llama3/tokenizer.json"))
    truth.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    truth.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, truth.token_to_id(EOS))]
    )
    folder = written(
        truth, tokenizer_class=name, backend="tokenizers", bos_token=BOS, eos_token=EOS
    )
    assert load_tokenizer(folder).backend_tokenizer.to_str() == truth.to_str()


def test_a_class_that_adds_a_token_without_a_name(written):
    folder = written(tokenizer_class="GPTNeoXTokenizer", add_bos_token=True)
    with pytest.raises(InputError, match="puts its bos_token before a text, but no bos_token is"):
        load_tokenizer(folder)


@of_4
def test_the_names_that_a_class_has_without_being_told():
    for name, known in CLASSES.items():
        of_class = inspect.signature(getattr(transformers, f"{name}Fast").__init__).parameters
        has = {role: of_class[role].default for role in SPECIAL if role in of_class}
        assert known.special == {role: token for role, token in has.items() if token is not None}
        adds = [
            of_class[one].default for one in ("add_bos_token", "add_eos_token") if one in of_class
        ]
        assert tuple(adds) == (known.adds or ())


@of_4
@pytest.mark.parametrize("kind", [*sorted(FAMILIES), "bert"])
def test_the_class_of_a_model_whose_files_name_none(kind):
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    fast = (TOKENIZER_MAPPING_NAMES.get(kind) or (None, None))[1]
    plain = fast in (None, "PreTrainedTokenizerFast")
    assert OF_MODEL_TYPE.get(kind) == (None if plain else fast.removesuffix("Fast"))


def test_names_that_no_file_gives(written):
    truth = Tokenizer.from_file(str(CASES / "models/tiny-gpt2/tokenizer.json"))
    assert load_tokenizer(written(truth, {"model_type": "gpt2"})).eos_token == "<|endoftext|>"
    # of a class whose names the vocabulary does not have
    bare = load_tokenizer(written(truth, tokenizer_class="BertTokenizer"))
    assert bare.special_tokens_map == {}
    assert load_tokenizer(
        written(truth, {"tokenizer_class": "GPT2TokenizerFast"})
    ).bos_token_id == truth.token_to_id("<|endoftext|>")


def test_older_files_name_special_tokens_in_a_map_of_their_own(written):
    folder = written(eos_token=BOS, tokenizer_class="PreTrainedTokenizerFast")
    names = json.dumps({"eos_token": {"content": EOS, "special": True}, "bos_token": BOS})
    (folder / "special_tokens_map.json").write_text(names, encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (BOS, EOS)
    if TRANSFORMERS_4:
        same_as_transformers(folder, TEXT)


def test_tokens_that_only_the_settings_add(written):
    n = Tokenizer.from_file(str(CASES / "models/tiny-llama3/tokenizer.json")).get_vocab_size()
    folder = written(
        tokenizer_class="PreTrainedTokenizerFast",
        added_tokens_decoder={str(n): ADDED | {"content": "<more>"}},
        pad_token="<pad>",
    )
    tokenizer = load_tokenizer(folder)
    ids = tokenizer("a<more><pad>b", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["a", "<more>", "<pad>", "b"]
    assert ids[1:3] == [n, n + 1]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<more>b"
    if TRANSFORMERS_4:
        same_as_transformers(folder, "a<more><pad>b")


def test_a_token_with_two_ids_is_refused(written):
    folder = written(added_tokens_decoder={"7": ADDED | {"content": EOS}})
    with pytest.raises(InputError, match=r"'<\|eot_id\|>' has id 7, but 4 in tokenizer\.json"):
        load_tokenizer(folder)


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "GPT2Tokenizer"])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("said", [False, True])
def test_the_blank_before_a_text_is_as_the_settings_say(written, name, stored, said):
    truth = Tokenizer.from_file(str(CASES / "models/tiny-gpt2/tokenizer.json"))
    truth.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=stored)
    folder = written(truth, tokenizer_class=name, add_prefix_space=said)
    assert load_tokenizer(folder).tokenize("cat")[0].startswith("Ġ") is said
    if TRANSFORMERS_4:
        same_as_transformers(folder, TEXT)


def test_options_that_the_releases_read_otherwise_are_refused(written):
    """Where the settings are silent and the class's default is not what tokenizer.json has."""
    truth = Tokenizer.from_file(str(CASES / "models/tiny-gpt2/tokenizer.json"))
    truth.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    folder = written(truth, tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(
        InputError, match=r"add_prefix_space is missing; it is True .* but False by"
    ):
        load_tokenizer(folder)
    bert = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    bert.normalizer = normalizers.BertNormalizer(lowercase=False)
    with pytest.raises(InputError, match=r"do_lower_case is missing; it is False .* but True by"):
        load_tokenizer(written(bert, tokenizer_class="BertTokenizer"))


@pytest.mark.parametrize(
    "settings",
    [
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": True, "tokenize_chinese_chars": False},
    ],
)
def test_the_case_of_a_berts_letters(tmp_path, settings):
    folder = kept("word_piece", 4, tmp_path)
    path = folder / "tokenizer_config.json"
    old = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(old | settings), encoding="utf-8")
    normalizer = load_tokenizer(folder).backend_tokenizer.normalizer
    assert normalizer.lowercase is settings["do_lower_case"]
    assert normalizer.strip_accents is settings.get("strip_accents")
    assert normalizer.handle_chinese_chars is settings.get("tokenize_chinese_chars", True)
    if TRANSFORMERS_4:
        for text in ("Größe naïve", "東京 Oslo"):
            same_as_transformers(folder, text)


@pytest.mark.parametrize("setting", [False, True])
def test_spaces_before_punctuation_stay_whatever_the_settings_say(written, setting):
    folder = written(
        tokenizer_class="PreTrainedTokenizerFast", clean_up_tokenization_spaces=setting
    )
    tokenizer = load_tokenizer(folder)
    ids = tokenizer("a , b .", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == decode_ids(tokenizer, ids) == "a , b ."
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert decode_ids(theirs, ids) == "a , b ."
    assert theirs.decode(ids) == ("a, b." if setting and TRANSFORMERS_4 else "a , b .")


def tekken(n_tokens=100_001, splitter=None) -> Tokenizer:
    """A tokenizer of bytes and one merge across the border of two matches of the right pattern."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "tT"]
    names += [f"<{k}>" for k in range(len(names), n_tokens)]
    vocabulary = {name: k for k, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "T")]))
    [old] = [one for one in tokenizer_limits.SPLITS if r"\p{N}{1,3}" in one and "Lu" not in one]
    tokenizer.pre_tokenizer = splitter or pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(old), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def names_of(tokenizer, text="catThe 12"):
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).tokens


FIRST, RIGHT = [*"ca", "tT", *"heĠ12"], [*"catTheĠ12"]
MISTRAL = {"model_type": "mistral", "transformers_version": "4.50.0"}
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
FIX = {"fix_mistral_regex": True}


@pytest.mark.parametrize(("model", "n_tokens", "settings", "names", "warns"), [
    (MISTRAL, 100_001, FIX, RIGHT, False),
    (MISTRAL, 100_001, {"fix_mistral_regex": "yes"}, RIGHT, False),
    (MISTRAL, 100_001, FIX | {"tokenizer_class": "LlamaTokenizerFast"}, RIGHT, False),
    (MISTRAL, 100_001, {}, FIRST, True),
    (MISTRAL, 100_001, {"fix_mistral_regex": None}, FIRST, True),
    (MISTRAL, 100_001, {"fix_mistral_regex": False}, FIRST, False),
    (MISTRAL, 100_000, FIX, FIRST, False),
    (MISTRAL, 100_000, {}, FIRST, False),
    ({"model_type": "mistral3"}, 100_001, FIX, RIGHT, False),
    (MISTRAL | {"model_type": None}, 100_001, FIX, RIGHT, False),
    (MISTRAL | {"model_type": "llama"}, 100_001, FIX, FIRST, False),
    (MISTRAL | {"model_type": "llama"}, 100_001, {}, FIRST, False),
    (MISTRAL | {"transformers_version": "4.57.3"}, 100_001, FIX, RIGHT, False),
    (MISTRAL | {"transformers_version": "5.0.0rc1"}, 100_001, FIX, RIGHT, False),
    (MISTRAL | {"transformers_version": "5.0.0"}, 100_001, FIX, FIRST, False),
    (MISTRAL | {"transformers_version": "5.0.0"}, 100_001, {}, FIRST, False),
    ({"model_type": "llama", "transformers_version": "4.57.3"}, 100_001, {}, FIRST, False),
])  # fmt: skip
def test_mistral_pattern_is_replaced_where_both_releases_do(
    written, model, n_tokens, settings, names, warns
):
    settings = {**PLAIN, "add_bos_token": False, **settings}
    folder = written(tekken(n_tokens), model, **settings)
    tokenizer = load_tokenizer(folder)
    assert names_of(tokenizer) == names
    warnings = TextEncoder(tokenizer).warnings
    assert ["set fix_mistral_regex to true in" in line for line in warnings] == [True] * warns
    if settings["tokenizer_class"] == PLAIN["tokenizer_class"]:  # 5 rebuilds a llama's
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        assert names_of(theirs) == names


@pytest.mark.parametrize(
    "model", [{"transformers_version": "4.57.3"}, {"transformers_version": None}], ids=str
)
def test_a_pattern_that_one_release_replaces_is_refused(written, model):
    folder = written(tekken(), {"model_type": "llama", **model}, **PLAIN, **FIX)
    with pytest.raises(InputError, match=r"transformers 4\.57 replaces the pattern of tokenizer"):
        load_tokenizer(folder)


def test_mistral_pattern_in_other_places(written):
    splits = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert names_of(load_tokenizer(written(tekken(), MISTRAL, **PLAIN))) == FIRST
    assert (
        names_of(load_tokenizer(written(tekken(splitter=splits), MISTRAL, **PLAIN, **FIX))) == RIGHT
    )
    folder = written(tekken(splitter=pre_tokenizers.Metaspace()), MISTRAL, **PLAIN, **FIX)
    tokenizer = load_tokenizer(folder)
    assert names_of(tokenizer) == RIGHT
    if not TRANSFORMERS_4:  # which ends with a TypeError
        assert names_of(transformers.AutoTokenizer.from_pretrained(str(folder))) == RIGHT
    folder = written(tokenizer.backend_tokenizer, MISTRAL, **PLAIN)  # saved after the replacement
    assert TextEncoder(load_tokenizer(folder)).warnings == ()
    folder = written(tekken(), MISTRAL | {"transformers_version": "new"}, **PLAIN, **FIX)
    with pytest.raises(InputError, match="transformers_version is 'new', expected a version"):
        load_tokenizer(folder)


def test_special_tokens_in_a_text_that_are_read_as_letters(written):
    folder = written(tokenizer_class="PreTrainedTokenizerFast", split_special_tokens=True)
    tokenizer = load_tokenizer(folder)
    want = tokenizer.backend_tokenizer.encode(f"a{EOS}", add_special_tokens=False).ids
    assert len(want) > 2
    encoder = TextEncoder(tokenizer)  # which calls the tokenizer
    assert tokenizer(f"a{EOS}", add_special_tokens=False)["input_ids"] == want
    for boundary in BOUNDARIES:
        *_, last = encoder.encode([Request(0, "a", EOS)], boundary, special_tokens=False)[0]
        assert last.ids[: len(want)].tolist() == want, boundary
    assert encoder.prompt_ids([f"a{EOS}"])[0].tolist() == [*encoder.prefix, *want]


def test_where_a_chat_template_stands(written):
    render = functools.partial(chat_template.render, messages=[{"role": "user", "content": "a"}])
    plain = functools.partial(written, tokenizer_class="PreTrainedTokenizerFast")
    folder = plain(chat_template="old {{ messages[0].content }}")
    assert render(load_tokenizer(folder)) == "old a"
    default = {"name": "default", "template": "d {{ messages[0].content }}"}
    several = [default, {"name": "rag", "template": "r"}]
    assert render(load_tokenizer(plain(chat_template=several))) == "d a"
    (folder / "chat_template.jinja").write_text("new {{ messages[0].content }}", encoding="utf-8")
    assert render(load_tokenizer(folder)) == "new a"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/rag.jinja").write_text("r", encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    assert sorted(tokenizer.chat_template) == ["default", "rag"]
    assert render(tokenizer) == "new a"


@pytest.mark.parametrize(("bos", "expected"), [(False, []), (True, [0])])
def test_a_gpt2_of_vocabulary_and_merges(tmp_path, bos, expected):
    """Old checkpoints have no tokenizer.json."""
    for name in ("vocab.json", "merges.txt", "config.json"):
        shutil.copy(CASES / "models/tiny-gpt2" / name, tmp_path)
    settings = json.dumps({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": bos})
    (tmp_path / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    encoder = TextEncoder(load_tokenizer(tmp_path))
    assert encoder.prefix == expected
    truth = Tokenizer.from_file(str(CASES / "models/tiny-gpt2/tokenizer.json"))
    truth.post_processor = processors.ByteLevel(trim_offsets=False)
    for text in ("Hello  world<|endoftext|> the\n cat's", "é東 x ", ""):
        want = truth.encode(text, add_special_tokens=False)
        got = encoder.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        assert (got.ids, got.offsets) == (want.ids, want.offsets)


def test_a_bert_of_a_vocabulary(tmp_path):
    truth = Tokenizer.from_file(str(KEPT / "word_piece/tokenizer.json"))
    names = sorted(truth.get_vocab(), key=truth.token_to_id)
    (tmp_path / "vocab.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    settings = json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": False})
    (tmp_path / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    for case in EXPECTED["word_piece"]["texts"]:
        assert tokenizer(case["text"])["input_ids"] == case["with_special"]
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id) == (2, 3)


CODE = """
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast


class Fast(PreTrainedTokenizerFast):
    def convert_ids_to_tokens(self, ids, skip_special_tokens=False):
        return "mine"


class Slow(PreTrainedTokenizer):
    def __init__(self, **settings):
        super().__init__(**settings)

    vocab_size = 1

    def get_vocab(self):
        return {"a": 0}
"""


@pytest.mark.parametrize("slow", [False, True])
def test_code_of_the_checkpoints_own(written, monkeypatch, slow):
    named = ["code_here.Slow", None] if slow else [None, "code_here.Fast"]
    folder = written(auto_map={"AutoTokenizer": named}, tokenizer_class="Slow" if slow else "Fast")
    (folder / "code_here.py").write_text(CODE, encoding="utf-8")
    modules = folder / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(modules))
    monkeypatch.syspath_prepend(str(modules))
    with pytest.raises(InputError, match=r"custom code.*--trust-remote-code"):
        load_tokenizer(folder)
    assert not modules.exists()
    if slow:
        with pytest.raises(InputError, match=r"Slow is a slow tokenizer.*tokenizer\.json"):
            load_tokenizer(folder, trust_remote_code=True)
    else:
        tokenizer = load_tokenizer(folder, trust_remote_code=True)
        assert tokenizer.convert_ids_to_tokens(0) == "mine"


@pytest.mark.parametrize(
    "settings",
    [
        b"[]",
        b"{",
        b'{"bos_token": 3}',
        b'{"bos_token": {}}',
        b'{"added_tokens_decoder": {"x": {"content": "a"}}}',
        b'{"added_tokens_decoder": [1]}',
        b'{"extra_special_tokens": [3]}',
    ],
)
def test_settings_that_are_damaged(written, settings):
    folder = written()
    (folder / "tokenizer_config.json").write_bytes(settings)
    with pytest.raises(InputError, match=re.escape(str(folder))):
        load_tokenizer(folder)
