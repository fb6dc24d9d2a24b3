"""Bytes of tokens, against the texts that they are tokens of."""

import pytest

from jaxscore.text.token_bytes import TokenBytes
from jaxscore.text.tokenizer import load_tokenizer
from tests.conftest import CASES

TEXTS = ["Hello wörld, it's €5 😀!", " a  b\n\tc", "Oslo", "", " "]
EXACT = ["models/tiny-gpt2", "models/tiny-llama3", "models/tiny-qwen2", "tokenizers/byte_level"]
EXACT += ["tokenizers/metaspace"]


def load(folder):
    tokenizer = load_tokenizer(CASES / folder)
    return tokenizer, TokenBytes(tokenizer)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("folder", EXACT)
def test_joined_bytes_are_the_text(folder, text):
    tokenizer, token_bytes = load(folder)
    ids = tokenizer(text)["input_ids"]
    found, starts = token_bytes.placed(ids, first=True)
    assert found == text == tokenizer.decode(ids, skip_special_tokens=True)
    assert starts == sorted(starts)
    assert len(starts) == len(ids)
    raw = text.encode()
    if not token_bytes.strips_first:
        own = [b"" if token_bytes.is_special(id) else token_bytes.of(id) for id in ids]
        assert b"".join(own) == raw
        sums = [sum(map(len, own[:k])) for k in range(len(own))]
        whole = [len(raw[:n].decode("utf-8", "ignore")) for n in sums]
        assert starts == whole


@pytest.mark.parametrize("folder", ["tokenizers/unigram", "tokenizers/word_piece"])
def test_tokenizers_that_lose_characters_are_read_as_they_decode(folder):
    tokenizer, token_bytes = load(folder)
    ids = tokenizer("wörld it")["input_ids"]
    found, starts = token_bytes.placed(ids, first=True)
    assert found == tokenizer.decode(ids, skip_special_tokens=True)
    assert starts == sorted(starts)


def test_a_token_alone_keeps_its_blank():
    for folder in ("models/tiny-llama3", "tokenizers/metaspace"):
        tokenizer, token_bytes = load(folder)
        ids = tokenizer("a it", add_special_tokens=False)["input_ids"]
        assert "".join(map(token_bytes.text, ids)).lstrip() == "a it"
        assert any(token_bytes.text(id).startswith(" ") for id in ids[1:])


def test_special_tokens_by_name_and_not_in_texts():
    tokenizer, token_bytes = load("models/tiny-llama3")
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert token_bytes.text(bos) == tokenizer.bos_token
    assert token_bytes.is_special(eos)
    assert token_bytes.joined([bos, eos]) == ""


def test_an_id_without_a_token_is_no_text():
    _, token_bytes = load("models/tiny-llama3")
    assert token_bytes.of(1207) == b""
    assert token_bytes.placed([1207], first=True) == ("", [0])


def test_parts_of_a_character():
    tokenizer, token_bytes = load("models/tiny-gpt2")
    ids = tokenizer("€", add_special_tokens=False)["input_ids"]
    assert len(ids) == 3
    assert [token_bytes.text(id) for id in ids] == ["\ufffd"] * 3
    assert token_bytes.placed(ids, first=True) == ("€", [0, 0, 0])
    assert token_bytes.placed(ids[:2], first=True) == ("\ufffd", [0, 0])
