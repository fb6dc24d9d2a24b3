"""Tokenizers of GGUF files against ids of llama.cpp.

tests/cases/gguf/tokens.json has two small vocabularies, texts, and the ids that llama.cpp 0.5.0
(llama-cpp-python 0.3.36) gives for each `tokenizer.ggml.pre`. Where llama.cpp approximates a
published pattern, the ids are those of the pattern in Python's `regex`. The merges of "gpt2" join
each word of each kind, and each word with the next one, so that another split has other ids.
"""

import json
from pathlib import Path

import pytest

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import GgufFile
from jaxscore.text.gguf_tokenizer import SPLITS, read_gguf_tokenizer
from tests.conftest import ROOT

CASES = json.loads((ROOT / "tests/cases/gguf/tokens.json").read_text(encoding="utf-8"))
IDS = {name: ids for names, ids in CASES["ids"].items() for name in names.split(", ")}
SPECIAL = "<|special|>"


def file(kind="gpt2", **more):
    """A file with the vocabulary of a kind and further keys; None leaves a key out."""
    values = {"model": kind, **CASES[kind], **more}
    if kind == "llama":
        values = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **values}
    metadata = {f"tokenizer.ggml.{key}": one for key, one in values.items() if one is not None}
    return GgufFile(Path("model.gguf"), (Path("model.gguf"),), metadata, {})


def ids(tokenizer):
    return [tokenizer.backend.encode(text).ids for text in CASES["texts"]]


@pytest.mark.parametrize("pre", SPLITS)
def test_byte_bpe_gives_the_ids_of_llama_cpp(pre):
    assert ids(read_gguf_tokenizer(file(pre=pre))) == IDS[pre]


def test_every_split_has_ids_of_its_own():
    """A kind with the split of another one fails the test of its ids."""
    listed = {str(IDS[pre]): split for pre, split in SPLITS.items()}
    assert len(listed) == len(set(SPLITS.values()))
    assert all(listed[str(IDS[pre])] == split for pre, split in SPLITS.items())


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("deepseek-v3", ["+", "Ġ~Ċ", "%"]),
        ("gpt-4o", ["+", "Ġ~Ċ", "%"]),
        ("seed-coder", ["+", "Ġ~", "Ċ", "%"]),
        ("falcon", ["+", "Ġ", "~", "Ċ", "%"]),
    ],
)
def test_symbols_are_split_as_llama_cpp_does(pre, pieces):
    found = read_gguf_tokenizer(file(pre=pre)).backend.pre_tokenizer.pre_tokenize_str("+ ~\n%")
    assert [piece for piece, _ in found] == pieces


@pytest.mark.parametrize(
    ("name", "prefix"), [("llama", True), ("llama", None), ("llama without prefix", False)]
)
def test_sentencepiece_gives_the_ids_of_llama_cpp(name, prefix):
    assert ids(read_gguf_tokenizer(file("llama", add_space_prefix=prefix))) == IDS[name]


def test_equal_scores_are_refused():
    scores = [-1000.0] * len(CASES["llama"]["tokens"])
    with pytest.raises(InputError, match="scores are all equal"):
        read_gguf_tokenizer(file("llama", scores=scores))


def gemma4(**more):
    """A file with the tokens of `llama` and their merges, and a run of three newlines."""
    plain = read_gguf_tokenizer(file("llama", add_space_prefix=False)).backend
    merges = json.loads(plain.to_str())["model"]["merges"]
    merges += [("\n", "\n\n"), ("\n\n", "\n")]
    vocabulary = CASES["llama"]
    return file(
        "llama",
        model="gemma4",
        tokens=[*vocabulary["tokens"], "\n\n\n"],
        token_type=[*vocabulary["token_type"], 1],
        merges=[" ".join(pair) for pair in merges],
        scores=None,
        **more,
    )


@pytest.mark.parametrize("add_bos", [True, False])
def test_gemma4_gives_the_ids_of_llama_cpp(add_bos):
    assert ids(read_gguf_tokenizer(gemma4(add_bos_token=add_bos))) == IDS["gemma4"]


def test_gemma4_splits_a_text_at_newlines():
    backend = read_gguf_tokenizer(gemma4()).backend
    assert backend.encode("a.\n\n\nb").tokens[1:] == ["a", ".", "\n\n\n", "b"]  # not ".\n"


def test_the_first_of_equal_merges_counts_as_in_llama_cpp():
    made = {"tokens": [*"abc", "ab", "bc"], "token_type": [1] * 5, "bos_token_id": None}
    found = read_gguf_tokenizer(file(pre="gpt-2", merges=["a b", "b c", "a b"], **made)).backend
    assert found.encode("abc").tokens == ["ab", "c"]


@pytest.mark.parametrize(("kind", "pre"), [("gpt2", "qwen2"), ("llama", None)])
def test_ids_become_the_text_again(kind, pre):
    backend = read_gguf_tokenizer(file(kind, pre=pre)).backend
    for text in CASES["texts"]:
        found = backend.decode(backend.encode(text).ids)
        if SPECIAL not in text and text.strip("　 ") == text:
            assert found == text


def test_the_file_decides_whether_a_bos_precedes_a_text():
    bos = CASES["gpt2"]["bos_token_id"]
    for pre, given, expected in (("llama-bpe", None, True), ("llama-bpe", False, False),
                                 ("qwen2", None, False), ("qwen2", True, True)):  # fmt: skip
        found = read_gguf_tokenizer(file(pre=pre, add_bos_token=given)).backend.encode("a").ids
        assert (found[0] == bos) is expected


def test_special_tokens_and_the_template_are_named():
    made = file(pre="qwen2", eos_token_id=3)
    made.metadata["tokenizer.chat_template"] = "{{ messages }}"
    found = read_gguf_tokenizer(made)
    assert found.names == {"bos_token": "<bos>", "eos_token": CASES["gpt2"]["tokens"][3]}
    assert found.chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("gpt2", {"pre": "xyz"}, "pre is 'xyz', which is not supported; expected one of a.x-4.0, "),
        (
            "gpt2",
            {"pre": "afmoe"},
            r"'afmoe', which is not supported \(.* is unknown here\); expected one of a.x",
        ),
        ("gpt2", {"pre": None}, "pre is None"),
        ("gpt2", {"pre": "default"}, "pre is 'default'"),
        ("gpt2", {"pre": "qwen2", "merges": None}, "merges is missing or not a list"),
        ("gpt2", {"pre": "qwen2", "token_type": [1, 1]}, "token_type has 2 entries"),
        ("gpt2", {"pre": "qwen2", "tokens": []}, "tokens is missing"),
        ("gpt2", {"pre": "qwen2", "eos_token_id": 10**6}, "eos_token_id is 1000000"),
        ("gpt2", {"pre": "qwen2", "add_eos_token": True}, "would append an EOS to every text"),
        ("gpt2", {"pre": "llama3", "bos_token_id": None}, "bos_token_id is missing"),
        ("gpt2", {"pre": ["qwen2"]}, "pre is"),
        ("gpt2", {"pre": "qwen2", "merges": ["ab"]}, "not a list of token pairs"),
        (
            "gpt2",
            {"pre": "qwen2", "merges": ["a Ł"]},
            "merges has 'a' with 'Ł', but one of them",
        ),
        ("gpt2", {"pre": "qwen2", "token_type": 5}, "token_type has none entries"),
        ("llama", {"scores": None}, "scores has none entries"),
        (
            "llama",
            {"model": "bert"},
            "model is 'bert', which is not supported; expected gpt2, llama or",
        ),
    ],
)
def test_a_vocabulary_that_is_not_read_is_refused(kind, more, message):
    with pytest.raises(InputError, match=message):
        read_gguf_tokenizer(file(kind, **more))
