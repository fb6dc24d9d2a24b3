"""What a tokenizer puts around a text, those that cannot be used, and what transformers logs."""

import copy
import json
import shutil
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from jaxscore import Request
from jaxscore.errors import InputError
from jaxscore.models.load import load
from jaxscore.text.encoder import BOUNDARIES, TextEncoder
from jaxscore.text.tokenizer import errors_only
from jaxscore.text.tokenizer_files import load_tokenizer
from tests.conftest import CASES, ROOT
from tests.releases import flax_classes

pytestmark = pytest.mark.lines

BOS = "<|begin_of_text|>"
EOS = "<|eot_id|>"


def encoder_with(template: str | None) -> TextEncoder:
    """tiny-llama3's tokenizer, whose template for a text is another."""
    tokenizer = load_tokenizer(CASES / "models/tiny-llama3")
    if template is not None:
        special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in (BOS, EOS)]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=special
        )
    return TextEncoder(tokenizer)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_call_of_the_tokenizer_that_cuts_and_pads_changes_nothing(boundary):
    """It sets this on the backend for everybody."""
    encoder = encoder_with(None)
    before = encoded(encoder, "The cat", " ran after the other cat", boundary)
    own = encoder.tokenizer
    own.pad_token = EOS
    cut = own(["The cat ran", "A"], truncation=True, padding="max_length", max_length=2)
    assert [len(ids) for ids in cut["input_ids"]] == [2, 2]
    assert own.backend_tokenizer.truncation["max_length"] == 2
    assert encoded(encoder, "The cat", " ran after the other cat", boundary) == before
    assert own.backend_tokenizer.truncation["max_length"] == 2  # and nobody else is changed


def encoded(encoder, context, continuation, boundary="joint"):
    sequences = encoder.encode([Request(0, context, continuation)], boundary)[0]
    return [
        (encoder.tokens(one.ids[: one.start]), encoder.tokens(one.ids[one.start :]))
        for one in sequences
    ]


@pytest.mark.parametrize("boundary", sorted({*BOUNDARIES} - {"last_query"}))
@pytest.mark.parametrize("written", ["", BOS])
def test_the_bos_is_there_once(boundary, written):
    encoder = encoder_with(None)
    assert encoder.tokenizer.convert_ids_to_tokens(encoder.prefix) == [BOS]
    for before, _ in encoded(encoder, f"{written}The cat", " ran", boundary):
        assert before[:4] == [BOS, "The", "Ġc", "at"]
        assert BOS not in before[1:]


@pytest.mark.parametrize("boundary", ["joint", "exact", "separate"])
def test_a_bos_in_the_continuation_after_nothing_is_the_only_one(boundary):
    got = encoded(encoder_with(None), "", f"{BOS}The cat", boundary)
    assert got == [([], [BOS, "The", "Ġc", "at"])]


def test_a_bos_in_the_continuation_after_nothing_reencoded():
    got = encoded(encoder_with(None), "", f"{BOS}The cat", "reencoded")
    assert got == [
        ([], [BOS]),
        ([BOS], ["The"]),
        ([BOS, "The"], ["Ġc"]),
        ([BOS, "The", "Ġc"], ["at"]),
    ]


def test_an_eos_that_the_tokenizer_appends_never_stands_in_the_middle():
    encoder = encoder_with(f"{BOS} $A {EOS}")
    ids = encoder.tokenizer("The cat")["input_ids"]
    assert encoder.tokenizer.convert_ids_to_tokens(ids)[-1] == EOS
    for boundary in BOUNDARIES:
        for before, own in encoded(encoder, "The cat", " ran", boundary):
            assert EOS not in before + own
            assert before[:1] == [BOS]
    [(before, own)] = encoded(encoder, "The cat", " ran", "separate")
    assert (before[0], "".join(own)) == (BOS, "Ġran")


def test_a_tokenizer_that_only_appends_an_eos_gives_no_prefix():
    encoder = encoder_with(f"$A {EOS}")
    assert encoder.prefix == []
    [(before, own)] = encoded(encoder, "The cat", " ran")
    assert (before[0], "".join(own)) == ("The", "Ġran")


def letters(**parts) -> TextEncoder:
    """A tokenizer of single letters, of which only a blank and `c` join."""
    names = ["<unk>", "▁", "Ġ", "h", "e", "c", "▁c"]
    model = models.BPE({name: k for k, name in enumerate(names)}, [("▁", "c")], unk_token="<unk>")
    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    # transformers would otherwise turn a ByteLevel's prefix blank off.
    return TextEncoder(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, unk_token="<unk>", add_prefix_space=True
        )
    )


@pytest.mark.parametrize(
    ("context", "continuation", "before", "own"),
    [
        ("", "he", "", "▁ h e"),  # the blank before a text is part of it
        ("h", "e", "▁ h", "e"),
        ("he", " c", "▁ h e", "▁c"),
        ("he ", "c", "▁ h e", "▁c"),
        ("he ", "he", "▁ h e", "▁ h e"),
        ("", "", "", ""),
    ],
)
def test_a_tokenizer_that_writes_a_blank_before_a_text(context, continuation, before, own):
    want = [(before.split(), own.split())]
    sentencepiece = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    for encoder in (
        letters(normalizer=sentencepiece),
        letters(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="always")),
    ):
        assert encoded(encoder, context, continuation) == want


def test_a_blank_before_a_text_whose_offsets_are_trimmed_away():
    # The first token lies at (0, 0), and so does not end after an empty context.
    encoder = letters(
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True),
        post_processor=processors.ByteLevel(add_prefix_space=True, trim_offsets=True),
    )
    assert encoded(encoder, "", "he") == [([], ["Ġ", "h", "e"])]
    assert encoded(encoder, "h", " e") == [(["Ġ", "h"], ["Ġ", "e"])]


def test_a_character_that_a_normalizer_drops_takes_no_token_with_it():
    # Nothing stands for the zero-width space, and the h before it is the context's alone.
    encoder = letters(normalizer=normalizers.Replace("\u200b", ""))
    assert encoded(encoder, "h", "\u200be") == [(["h"], ["e"])]
    assert encoded(encoder, "h", "\u200b") == [(["h"], [])]
    assert encoded(encoder, "h\u200b", "e") == [(["h"], ["e"])]


def test_a_class_that_is_not_made_from_a_vocabulary_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "ctrl"}', encoding="utf-8")
    settings = json.dumps({"tokenizer_class": "CTRLTokenizer"})  # has no fast class
    (tmp_path / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    (tmp_path / "vocab.json").write_text('{"<unk>": 0, "a</w>": 1}', encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"tokenizer\.json missing, tokenizer class: CTRLTokenizer"
    ):
        load_tokenizer(tmp_path)


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    shutil.copy(CASES / "models/tiny-gpt2/config.json", tmp_path)
    with pytest.raises(InputError, match=r"no usable tokenizer .*expected tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_damaged_tokenizer_is_refused(tmp_path):
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(CASES / "models/tiny-llama3" / name, tmp_path)
    whole = (CASES / "models/tiny-llama3/tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(whole[:1000], encoding="utf-8")
    with pytest.raises(InputError, match="no usable tokenizer"):
        load_tokenizer(tmp_path)


GPT2 = CASES / "models/tiny-gpt2"


@pytest.fixture(params=[logging.DEBUG, logging.CRITICAL])
def level(request):
    before = logging.get_verbosity()
    logging.set_verbosity(request.param)
    yield request.param
    logging.set_verbosity(before)


def test_only_errors_inside(level):
    with errors_only():
        assert logging.get_verbosity() == logging.ERROR
    assert logging.get_verbosity() == level


def test_a_tokenizer(level):
    load_tokenizer(GPT2)
    assert logging.get_verbosity() == level
    with pytest.raises(InputError):
        load_tokenizer(CASES)
    assert logging.get_verbosity() == level


WITHOUT_TORCH = """
import os, sys
sys.modules["torch"] = None
from pathlib import Path
from jaxscore.text.tokenizer_files import load_tokenizer
len(load_tokenizer(Path(sys.argv[1])))  # needs transformers
print(os.environ.get("TRANSFORMERS_NO_ADVISORY_WARNINGS"))
"""


@pytest.mark.parametrize("reported", [None, "0"])
def test_nothing_is_said_of_a_missing_pytorch(reported, monkeypatch):
    monkeypatch.delenv("TRANSFORMERS_NO_ADVISORY_WARNINGS", raising=False)
    if reported is not None:
        monkeypatch.setenv("TRANSFORMERS_NO_ADVISORY_WARNINGS", reported)
    command = [sys.executable, "-c", WITHOUT_TORCH, GPT2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.stderr, done.stdout.strip()) == ("", str(reported))


WITHOUT_TRANSFORMERS = """
import sys
from pathlib import Path
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer_files import load_tokenizer
from jaxscore.types.requests import Request
tokenizer = load_tokenizer(Path(sys.argv[1]))
encoder = TextEncoder(tokenizer)
[[sequence]] = encoder.encode([Request(0, "The cat", " ran")])
names = encoder.tokens(sequence.ids)
assert "transformers" not in sys.modules
assert tokenizer("The cat ran")["input_ids"] == sequence.ids.tolist()
assert tokenizer.convert_ids_to_tokens(sequence.ids.tolist()) == names
print(type(tokenizer).__name__)
"""


def test_encoding_imports_no_transformers():
    command = [sys.executable, "-c", WITHOUT_TRANSFORMERS, GPT2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.stderr, done.stdout.strip()) == ("", PreTrainedTokenizerFast.__name__)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("used", [False, True])
def test_a_copy_of_a_tokenizer_has_settings_of_its_own(copied, used):
    tokenizer = load_tokenizer(CASES / "models/tiny-llama3")
    if used:
        assert isinstance(tokenizer.bos_token_id, int)
    other = copied(tokenizer)
    other.chat_template = "other"
    assert tokenizer.chat_template != "other"
    assert other.get_chat_template() == "other"
    assert other("The cat")["input_ids"] == tokenizer("The cat")["input_ids"]
    assert isinstance(other, PreTrainedTokenizerFast)


@flax_classes
def test_a_flax_class(level):
    load(GPT2, dtype="float32", implementation="transformers")
    assert logging.get_verbosity() == level
