"""Where a stop string ends a text, against decoding everything after each token."""

import numpy as np
import pytest

from jaxscore.text.decoder import PIECE, StopSearch, TokenBytes
from jaxscore.text.tokenizer_files import load_tokenizer
from tests.conftest import CASES

pytestmark = pytest.mark.lines

# A folder of each kind: byte-level, SentencePiece with bytes for unknown characters, and others.
FOLDERS = {
    "byte_level": "tokenizers/byte_level",
    "metaspace": "tokenizers/metaspace",
    "unigram": "tokenizers/unigram",
    "word_piece": "tokenizers/word_piece",
    "gpt2": "models/tiny-gpt2",
    "qwen2": "models/tiny-qwen2",
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """`tokenizers(name)`: each as its newest settings have it."""

    def get(name):
        source = CASES / FOLDERS[name]
        if (source / "saved_by_5").exists():
            folder = tmp_path_factory.mktemp(name)
            for file in [source / "tokenizer.json", *(source / "saved_by_5").iterdir()]:
                (folder / file.name).write_bytes(file.read_bytes())
            source = folder
        return load_tokenizer(source)

    return get


def slow(ids, stops, decode):
    """How many ids the text has that ends with the first token that completes a stop string."""
    for n in range(1, len(ids) + 1):
        text = decode(ids[:n])
        if any(stop in text for stop in stops):
            return n
    return None


def fast(ids, stops, token_bytes):
    search = StopSearch(stops, token_bytes.raw)
    return next((n for n, id in enumerate(ids, 1) if search.ends_with(id)), None)


def random_ids(draw, tokenizer, n):
    """Any ids, in stretches of a few ones, so that pieces of characters and blanks meet."""
    size, out = len(tokenizer), []
    while len(out) < n:
        some = draw.integers(0, size, int(draw.integers(1, 6)))
        if draw.random() < 0.3:  # a text of characters that take several tokens
            word = "".join(draw.choice(list("aé你🙂 'st.\n"), 6))
            some = np.array(tokenizer.encode(word, add_special_tokens=False), int)
        out += draw.choice(some, int(draw.integers(1, 12))).tolist() if len(some) else []
        out += some.tolist()
    return out[:n]


def stops_of(draw, text):
    """Strings that come in a text, in parts of any place and length, and some that do not."""
    out = ["never there"]
    for _ in range(int(draw.integers(1, 4))):
        at, n = int(draw.integers(0, max(1, len(text)))), int(draw.integers(1, 12))
        out.append(text[at : at + n])
    return [stop for stop in out if stop and PIECE not in stop]


@pytest.mark.parametrize("name", FOLDERS)
def test_it_is_what_decoding_everything_after_each_token_finds(tokenizers, name):
    tokenizer = tokenizers(name)
    token_bytes, draw = TokenBytes(tokenizer), np.random.default_rng(7)
    decode = token_bytes.join_all
    found = []
    for k in range(40):
        ids = random_ids(draw, tokenizer, int(draw.integers(1, 160)))
        # From the end of the text, so that most of it has no stop string.
        text = decode(ids)
        stops = stops_of(draw, (text, text[-40:], "")[k % 3])
        want = slow(ids, stops, decode)
        assert fast(ids, stops, token_bytes) == want, (ids, stops)
        found.append(want)
    # Texts that no stop string ends are among them, and ends far behind the first window.
    assert None in found
    assert max(n for n in found if n) > 60


@pytest.mark.parametrize("name", ["byte_level", "metaspace"])
def test_a_character_in_pieces_is_seen_when_it_is_whole(tokenizers, name):
    tokenizer = tokenizers(name)
    token_bytes = TokenBytes(tokenizer)
    decode = token_bytes.join_all
    ids = tokenizer.encode("ab" * 40 + "🙂你cd", add_special_tokens=False)
    for stop in ("🙂", "你", "🙂你c"):
        n = fast(ids, [stop], token_bytes)
        assert n == slow(ids, [stop], decode)
        assert stop in decode(ids[:n])
        assert stop not in decode(ids[: n - 1])
    assert n < len(ids)


def test_a_text_is_cut_where_its_stop_string_begins(tokenizers):
    """Character by character: those of special tokens are in no text, but a stop string may be."""
    tokenizer = tokenizers("qwen2")
    token_bytes, draw = TokenBytes(tokenizer), np.random.default_rng(3)
    words = tokenizer.encode("The cat sat on the mat, and ran.", add_special_tokens=False)
    special = tokenizer.encode("<|im_start|><|im_end|>", add_special_tokens=False)
    for k in range(200):
        ids = draw.choice([*words, *special * 4], int(draw.integers(2, 14))).tolist()
        shown = [(token_bytes.join_all([id]), id in special) for id in ids]
        of_special = [inside for text, inside in shown for _ in text]
        whole = "".join(text for text, _ in shown)
        assert whole == token_bytes.join_all(ids)
        start, n = int(draw.integers(0, len(whole))), int(draw.integers(1, 14))
        stop = whole[start : start + n] if k % 8 else "never there"
        at = whole.find(stop) if k % 8 else len(whole)
        want = "".join(c for c, out in zip(whole[:at], of_special, strict=False) if not out)
        assert token_bytes.text_before(ids, ["nor this", stop]) == want, (ids, stop)


def test_special_tokens_are_seen_by_name(tokenizers):
    tokenizer = tokenizers("qwen2")
    [end] = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    ids = [*tokenizer.encode("The cat", add_special_tokens=False), end]
    token_bytes = TokenBytes(tokenizer)
    assert fast([*ids, 5], ["<|im_end|>", "never"], token_bytes) == len(ids)
    for stop in (["<|im_end|>"], ["cat<|im", "|>"], ["im_end"]):
        assert token_bytes.text_before(ids, stop) == "The cat"[: 4 if "cat<|im" in stop else None]


def test_of_two_stop_strings_the_one_that_is_complete_first_decides(tokenizers):
    tokenizer = tokenizers("gpt2")
    token_bytes = TokenBytes(tokenizer)
    ids = [tokenizer.convert_tokens_to_ids(one) for one in "A n s w e r :".split()]
    assert fast(ids, ["Answer:", "w"], token_bytes) == 4
    assert token_bytes.text_before(ids[:4], ["Answer:", "w"]) == "Ans"
    # By one token two are complete: the one that begins first cuts.
    assert token_bytes.text_before(ids[:5], ["e", "swe"]) == "An"


def test_a_stop_string_that_begins_in_a_special_token_leaves_an_incomplete_character(tokenizers):
    tokenizer = tokenizers("qwen2")
    token_bytes = TokenBytes(tokenizer)
    part = tokenizer.encode("aé", add_special_tokens=False)[:-1]
    [end] = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    assert token_bytes.join_all([*part, end]) == "a\ufffd<|im_end|>"
    assert token_bytes.text_before([*part, end], ["im_end"]) == "a\ufffd"


def test_the_search_keeps_no_more_than_the_longest_stop_string(tokenizers):
    tokenizer = tokenizers("gpt2")
    search = StopSearch(["Question:", "no"], TokenBytes(tokenizer).raw)
    draw = np.random.default_rng(1)
    words = " ".join(draw.choice(["cat", "sat", "où", "你好", "\n\n"], 900))
    ids = tokenizer.encode(words, add_special_tokens=False)
    assert len(ids) > 2000
    for id in ids:
        assert not search.ends_with(id)
        assert len(search._tail) <= len("Question:") - 1


@pytest.mark.parametrize("name", FOLDERS)
def test_the_text_of_two_parts_is_that_of_both(tokenizers, name):
    tokenizer = tokenizers(name)
    token_bytes, draw = TokenBytes(tokenizer), np.random.default_rng(5)
    n_spaces = n_compared = 0
    for _ in range(200):
        ids = random_ids(draw, tokenizer, 7)
        whole = token_bytes.join_all(ids)
        for k in range(len(ids) + 1):
            parts = token_bytes.join_all(ids[:k]), token_bytes.join_all(ids[k:])
            if PIECE not in parts[0] + parts[1]:
                n_compared += 1
                assert parts[0] + parts[1] == whole
                n_spaces += parts[1][:2].strip() != parts[1][:2]
    assert n_compared > 100
    assert n_spaces or name == "word_piece"
