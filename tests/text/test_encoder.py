"""Boundary policies on three byte-level tokenizers, by hand and by an independent rule.

tiny-gpt2: no BOS, the GPT-2 pattern. tiny-llama3: a BOS. tiny-qwen2: no BOS, NFC.
"""

import functools
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from jaxscore import Request
from jaxscore.text.bounded_tokenizer import BoundedTokenizer
from jaxscore.text.encoder import BOUNDARIES, TextEncoder, audit_boundaries
from jaxscore.text.tokenizer_files import load_tokenizer
from tests.conftest import CASES, MODELS

pytestmark = pytest.mark.lines

LLAMA_BOS = "<|begin_of_text|>"
BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
ENCODERS = {name: TextEncoder(load_tokenizer(CASES / "models" / name)) for name in MODELS}


def pieces(name, context, continuation, boundary="joint"):
    """For each sequence the tokens before the continuation and those of it, without the BOS."""
    encoder = ENCODERS[name]
    [encoded] = encoder.encode([Request(0, context, continuation)], boundary)
    out = []
    for sequence in encoded:
        tokens = encoder.tokens(sequence.ids)
        if name == "tiny-llama3":
            assert tokens[0] == LLAMA_BOS
            assert LLAMA_BOS not in tokens[1:]
        first = len(encoder.prefix)
        out.append((tokens[first : sequence.start], tokens[max(first, sequence.start) :]))
    return out


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("boundary", "expected"),
    [
        ("joint", [("ANSWER :", "ĠO s lo")]),
        ("exact", [("ANSWER :", "ĠO s lo")]),
        ("separate", [("ANSWER : Ġ", "O s lo")]),
        # What the script loses: ĠO, since the context alone has a token for its blank.
        ("skip_context", [("ANSWER : ĠO", "s lo")]),
        ("reencoded", [("ANSWER : Ġ", "O"), ("ANSWER : ĠO", "s"), ("ANSWER : ĠO s", "lo")]),
    ],
)
def test_a_context_that_ends_in_a_blank(name, boundary, expected):
    got = pieces(name, "ANSWER: ", "Oslo", boundary)
    assert got == [(before.split(), own.split()) for before, own in expected]


def test_last_query_keeps_as_many_tokens_as_the_query_alone():
    got = {name: pieces(name, "Towns: ", "Oslo", "last_query")[0] for name in MODELS}
    # GPT-2 with a leading blank: ĠO s lo. llama counts its BOS, one token too many.
    assert got["tiny-gpt2"][1] == ["ĠO", "s", "lo"]
    assert got["tiny-gpt2"][0][0].startswith("ĠT")
    assert got["tiny-llama3"][1] == [":", "ĠO", "s", "lo"]
    assert got["tiny-qwen2"][1] == ["ĠO", "s", "lo"]


@pytest.mark.parametrize("name", MODELS)
def test_all_policies_agree_where_nothing_straddles(name):
    want = pieces(name, "The cat", " ran")
    assert [(decoded(before), decoded(own)) for before, own in want] == [(b"The cat", b" ran")]
    for boundary in sorted({*BOUNDARIES} - {"last_query", "reencoded", "after"}):
        assert pieces(name, "The cat", " ran", boundary) == want
    [(before, own)] = want
    assert pieces(name, "The cat", " ran", "reencoded") == [
        (before + own[:k], [own[k]]) for k in range(len(own))
    ]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("blanks", [" ", "   ", " \n", " \t \n", "\u3000"])
def test_trailing_blanks_belong_to_the_continuation(name, blanks):
    [(before, own)] = pieces(name, "A:" + blanks, "x", "joint")
    assert decoded(before) == b"A:"
    assert decoded(own) == (blanks + "x").encode()
    # A straddling token goes to the continuation, so exact gives the context no more than that.
    [(before, own)] = pieces(name, "A:" + blanks, "x", "exact")
    assert decoded(before)[:2] == b"A:"
    assert ("A:" + blanks).encode().startswith(decoded(before))
    assert decoded(before + own) == ("A:" + blanks + "x").encode()


def test_a_token_of_the_contexts_end_and_its_blanks_straddles():
    # The patterns of llama and qwen take line ends together with a sign before them.
    for name in ("tiny-llama3", "tiny-qwen2"):
        assert pieces(name, "A:\n\n", "x", "joint") == [(["A"], [":ĊĊ", "x"])]
        assert pieces(name, "A:\n\n", "x", "exact") == [(["A", ":ĊĊ"], ["x"])]
        assert pieces(name, "A:\n", "\nx", "exact") == [(["A"], [":ĊĊ", "x"])]
    assert pieces("tiny-gpt2", "A:\n\n", "x", "joint") == [(["A", ":"], ["Ċ", "Ċ", "x"])]


@pytest.mark.parametrize("name", MODELS)
def test_blanks_only(name):
    assert pieces(name, "", "") == [([], [])]
    [(before, own)] = pieces(name, "   ", "x")
    assert (before, decoded(own)) == ([], b"   x")
    [(before, own)] = pieces(name, "   ", "   ")
    assert (before, decoded(own)) == ([], b"      ")
    assert pieces(name, "   ", "   ", "separate") == [(["ĠĠĠ"], ["ĠĠĠ"])]
    [(before, own)] = pieces(name, "a", "   ")
    assert (decoded(before), decoded(own)) == (b"a", b"   ")
    # An empty continuation has no tokens, whatever blanks come before it.
    for boundary in ("joint", "exact"):
        assert pieces(name, "a   ", "", boundary) == [(["a", "ĠĠĠ"], [])]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("boundary", ["joint", "exact", "separate"])
@pytest.mark.parametrize(
    ("context", "continuation"),
    [
        ("x", "🙂"),
        ("🙂", "a"),
        ("🙂", "🙃"),  # the two share their first three bytes
        ("👨", "\u200d👩"),  # parts of one visible family
        ("שלום", " עולם"),
        ("مرحبا", " بالعالم"),
        ("日本", "語"),
    ],
)
def test_characters_of_many_bytes(name, boundary, context, continuation):
    [(before, own)] = pieces(name, context, continuation, boundary)
    assert (decoded(before), decoded(own)) == (context.encode(), continuation.encode())


@pytest.mark.parametrize("boundary", ["joint", "exact"])
@pytest.mark.parametrize(
    ("context", "mark", "before", "own"),
    [
        ("e", "\u0301", "", "é"),
        ("caf", "e\u0301", "caf", "é"),
        ("cafe", "\u0301 noir", "caf", "é noir"),
        ("ᄀ", "ᅡ", "", "가"),
        ("xe\u0301", "y", "xé", "y"),
        ("e\u0301", " e\u0301", "é", " é"),
    ],
)
def test_what_a_normalizer_composes_across_the_boundary_straddles_it(
    boundary, context, mark, before, own
):
    [parts] = pieces("tiny-qwen2", context, mark, boundary)
    assert [decoded(part).decode() for part in parts] == [before, own]
    # The other two do not compose, so that nothing straddles.
    for name in ("tiny-gpt2", "tiny-llama3"):
        [parts] = pieces(name, context, mark, boundary)
        assert [decoded(part).decode() for part in parts] == [context, mark]


def decoded(tokens):
    """The bytes that byte-level tokens stand for."""
    return bytes(BYTES[character] for token in tokens for character in token)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("boundary", ["joint", "exact"])
@given(text=st.text(max_size=40), data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_continuation_starts_with_the_first_byte_past_the_context(name, boundary, text, data):
    # Composed beforehand, so that the bytes of the tokens are those of the text.
    text = unicodedata.normalize("NFC", text)
    cut = data.draw(st.integers(0, len(text)))
    context, continuation = text[:cut], text[cut:]
    [(before, own)] = pieces(name, context, continuation, boundary)
    whole = boundary == "exact" or not continuation
    kept = (context if whole else context.rstrip()).encode()
    assert decoded(before + own) == text.encode()
    assert len(decoded(before)) <= len(kept)
    assert not own or len(decoded([*before, own[0]])) > len(kept)


@pytest.mark.parametrize("name", MODELS)
@given(text=st.text(max_size=60), data=st.data())
@settings(max_examples=150, deadline=None)
def test_joint_ids_are_the_tokenizers_own(name, text, data):
    cut = data.draw(st.integers(0, len(text)))
    encoder = ENCODERS[name]
    for boundary in ("joint", "exact", "skip_context"):
        [(sequence,)] = encoder.encode([Request(0, text[:cut], text[cut:])], boundary)
        assert sequence.ids.tolist() == encoder.tokenizer(text)["input_ids"]
        assert len(encoder.prefix) <= sequence.start <= len(sequence.ids)


@pytest.mark.parametrize("name", MODELS)
@given(context=st.text(max_size=30), continuation=st.text(max_size=30))
@settings(max_examples=150, deadline=None)
def test_separate_joins_the_two(name, context, continuation):
    encoder = ENCODERS[name]
    [(sequence,)] = encoder.encode([Request(0, context, continuation)], "separate")
    head = encoder.tokenizer(context)["input_ids"]
    tail = encoder.tokenizer(continuation, add_special_tokens=False)["input_ids"]
    assert (sequence.ids.tolist(), sequence.start) == (head + tail, len(head))


def test_the_audit_counts_what_another_policy_would_change():
    requests = [
        Request(0, "ANSWER: ", "Oslo"),  # a blank before the boundary
        Request(1, "ANSWER:", " Oslo"),
        Request(2, "ANSWER:", ""),
        Request(3, "", "Oslo"),
        Request(4, "a   ", "b"),  # the blanks are context or continuation
    ]
    encoder = ENCODERS["tiny-qwen2"]
    found = audit_boundaries(
        encoder, requests, "joint", ["joint", "exact", "separate", "skip_context", "reencoded"]
    )
    # separate ends the context with Ġ and so reads other ids; reencoded is separate's first token.
    assert found == {"joint": 0, "exact": 1, "separate": 2, "skip_context": 2, "reencoded": 2}
    # The other way round, and between the two that give several sequences or one.
    assert audit_boundaries(encoder, requests, "reencoded", ["joint", "reencoded"]) == {
        "joint": 2,
        "reencoded": 0,
    }
    assert audit_boundaries(encoder, [], "joint", ["separate"]) == {"separate": 0}


@pytest.mark.parametrize("name", MODELS)
@given(text=st.text("ab .é€😀\n", max_size=20))
def test_where_the_tokens_of_a_prompt_begin(name, text):
    """The characters between two starts hold the token's; parts of a character share its start."""
    encoder = ENCODERS[name]
    [(ids, starts)] = encoder.prompts([text])
    assert ids.tolist() == encoder.prompt_ids([text])[0].tolist()
    before = len(encoder.prefix)
    assert starts[: before + 1] == [0] * min(len(ids), before + 1)
    whole = unicodedata.normalize("NFC", text) if name == "tiny-qwen2" else text
    raw, n = whole.encode(), 0
    for token, start in zip(encoder.tokens(ids)[before:], starts[before:], strict=True):
        assert start == len(raw[:n].decode("utf-8", "ignore"))
        n += len(token)  # a character for each byte
    assert n == len(raw)


def test_a_prompt_without_the_tokenizers_bos():
    encoder = ENCODERS["tiny-llama3"]
    [(ids, starts)] = encoder.prompts(["a b"])
    [(bare, bare_starts)] = encoder.prompts(["a b"], special_tokens=False)
    assert (ids[1:].tolist(), starts[1:]) == (bare.tolist(), bare_starts)
    [(written, its_starts)] = encoder.prompts([f"{LLAMA_BOS}a b"])
    assert written.tolist() == ids.tolist()
    n = len(LLAMA_BOS)  # it stands in the text, so it has its characters
    assert its_starts == [0, *(n + start for start in bare_starts)]


WRITTEN = st.lists(
    st.sampled_from(["<|begin_of_text|>", "<s>", "[MASK]", " ", "e\u0301", "\u2581"])
)


@pytest.mark.parametrize("kind", ["byte_level", "metaspace", "unigram", "word_piece", *MODELS])
@given(texts=st.lists(st.text(), max_size=3), written=WRITTEN)
def test_ids_without_offsets_are_those_with(kind, texts, written):
    """`encode_batch_fast` of tokenizers, which leaves the offsets out."""
    path = CASES / ("models" if kind in MODELS else "tokenizers") / kind / "tokenizer.json"
    backend = backend_of(path)
    some = [*texts, "".join(written), "".join(map(str.join, written, [texts] * len(written)))]
    want = backend.encode_batch(some, add_special_tokens=False)
    assert BoundedTokenizer(backend).ids(some) == [one.ids for one in want]


@functools.cache
def backend_of(path):
    return Tokenizer.from_file(str(path))
