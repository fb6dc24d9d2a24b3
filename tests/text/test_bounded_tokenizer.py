"""Long texts in pieces with the ids of the whole text, bounds by characters, panics as errors."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from jaxscore import Request
from jaxscore.engine.generation import Generator
from jaxscore.text import bounded_tokenizer, tokenizer_limits
from jaxscore.text.bounded_tokenizer import BoundedTokenizer, TextError, encode_each
from jaxscore.text.encoder import BOUNDARIES, TextEncoder
from jaxscore.text.tokenizer import copy_backend
from jaxscore.text.tokenizer_files import load_tokenizer
from jaxscore.types.requests import GenerationRequest, LabelRequest
from jaxscore.types.token_texts import byte_of
from tests.conftest import CASES, MODELS

pytestmark = pytest.mark.lines

PANICS = "a" * 40 + "b"  # on a pattern of exponential time the regex library gives up, and panics


def backend_of(name="tiny-gpt2"):
    return copy_backend(load_tokenizer(CASES / "models" / name))


def panicking_backend():
    backend = backend_of()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("(a|aa)+$"), "isolated"), pre_tokenizers.ByteLevel(False)]
    )
    return backend


def merging(*texts):
    """A byte-level BPE with a token for each text, found wherever one piece has it."""
    names = {byte: name for name, byte in byte_of().items()}
    vocabulary = {name: k for k, name in enumerate(names.values())}
    merges = {}
    for text in texts:
        token, *rest = (names[byte] for byte in text.encode())
        for name in rest:
            merges[token, name] = None
            token += name
            vocabulary.setdefault(token, len(vocabulary))
    return Tokenizer(models.BPE(vocabulary, list(merges)))


def variants():
    out = {name: backend_of(name) for name in MODELS}
    spaced = backend_of()
    spaced.pre_tokenizer.add_prefix_space = True
    digits = backend_of("tiny-gpt2")
    digits.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    for k, pattern in enumerate(sorted(tokenizer_limits.SPLITS)):
        out[f"pattern {k}"] = backend_of()
        out[f"pattern {k}"].pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(False, use_regex=False),
            ]
        )
    forms = {
        "nfd": normalizers.NFD(),
        "nfkd": normalizers.NFKD(),
        "nfkc": normalizers.NFKC(),
        "lowercase": normalizers.Lowercase(),
        "accents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        "bert": normalizers.BertNormalizer(handle_chinese_chars=False, strip_accents=True),
    }
    for name, form in forms.items():
        out[name] = merging("\u0301,", "\u0301\n", "\u3099\u3001", "\u0307,")
        out[name].normalizer = form
        out[name].pre_tokenizer = backend_of("tiny-qwen2").pre_tokenizer
    chinese = backend_of("tiny-gpt2")
    chinese.normalizer = normalizers.BertNormalizer()
    chinese.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    out["chinese"] = chinese
    marked = backend_of("tiny-qwen2")
    marked.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)])
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()]
    )
    pieces = [(c, -float(k)) for k, c in enumerate(["<u>", "\u2581", "a", "b", "\u2581a", "ab"])]
    unigram = Tokenizer(models.Unigram(pieces, unk_id=0))
    unigram.normalizer = normalizers.NFC()
    unigram.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581abitsxyA9,."]
    merges = [("\u2581", "a"), ("a", "b"), ("\u2581", "\u2581"), ("\u2581a", "b"), ("x", "y")]
    names += ["".join(pair) for pair in merges]
    for prepends in (False, True):
        piece = Tokenizer(
            models.BPE(
                {name: k for k, name in enumerate(dict.fromkeys(names))},
                merges,
                unk_token="<unk>",
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        parts = [normalizers.Prepend("\u2581")] * prepends + [normalizers.Replace(" ", "\u2581")]
        piece.normalizer = normalizers.Sequence(parts)
        if not prepends:
            piece.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        piece.add_tokens([AddedToken("<mask>", normalized=False), AddedToken("\n\n")])
        out["llama" if prepends else "gemma"] = piece
    return out | {
        "spaced": spaced,
        "digits": digits,
        "marked": marked,
        "words": words,
        "unigram": unigram,
    }


VARIANTS = variants()
PART = st.sampled_from(
    "<|endoftext|> <|im_start|>".split()
    + "a|b|it's|A|9|12345| |  |\n|\n\n|\t|,|.|...|\u3002|\u4e2d|\u6587|\u00e9|e\u0301|\ufb01|"
    "\u00e9,|\u00e9\n|\u00e9 |\u304c\u3001|\u304c|\u0301|\u3099|\u0130|\u0130,|\u00c9\n|\uff0c|"
    "\uac00|<mask>| <mask> |\U0001f600|'|\u3000|\u00a0|!\n|x y".split("|")
)


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=40, deadline=None)
@example(parts=["\u00e9,a", "\u304c\u3001a", "\u00e9\na", "\u0130, a"], size=1)
@given(parts=st.lists(PART, max_size=60), size=st.integers(1, 12))
def test_pieces_have_the_ids_and_offsets_of_the_whole_text(name, parts, size):
    text, backend = "".join(parts), VARIANTS[name]
    whole = backend.encode(text, add_special_tokens=False)
    bounded = BoundedTokenizer(backend)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_tokenizer, "PIECE", size)
        [ids] = bounded.ids([text])
        pieces = list(bounded.pieces(text))
    assert [*ids] == whole.ids
    assert "".join(piece.text for piece in pieces) == text
    offsets = [(p.start + a, p.start + b) for p in pieces for a, b in p.offsets]
    assert offsets == whole.offsets


def test_long_texts_are_cut_in_every_variant():
    text = "a b, a b. " * 100
    for name, backend in VARIANTS.items():
        starts = BoundedTokenizer(backend)._starts(text * 1000)
        assert len(starts) > 3, name


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_every_boundary_has_the_same_start_in_pieces(monkeypatch, name, boundary):
    encoder = TextEncoder(load_tokenizer(CASES / "models" / name))
    requests = [
        Request(0, "The cat sat. " * k + "It's a dog, " * k, " and it ran, caf\u00e9 \n" * (3 - k))
        for k in range(3)
    ]
    want = encoder.encode(requests, boundary)
    monkeypatch.setattr(bounded_tokenizer, "PIECE", 7)
    got = encoder.encode(requests, boundary)
    for one, other in zip(want, got, strict=True):
        assert [s.start for s in one] == [s.start for s in other]
        for a, b in zip(one, other, strict=True):
            assert (b.ids.dtype, b.ids.tolist()) == (np.int32, a.ids.tolist())
    texts = [one.context for one in requests]
    for (ids, starts), (wanted, known) in zip(
        encoder.prompts(texts), TextEncoder(encoder.tokenizer).prompts(texts), strict=True
    ):
        assert (ids.tolist(), starts) == (wanted.tolist(), known)


@pytest.mark.parametrize(
    "part",
    [
        normalizers.Strip(),
        normalizers.Replace(Regex(" +"), " "),
        normalizers.Prepend("\u2581"),
    ],
)
def test_a_text_is_not_cut_where_a_normalizer_sees_its_ends(part):
    backend = backend_of()
    backend.normalizer = part
    assert tokenizer_limits.cuts(backend) is None


def test_a_text_is_not_cut_beside_blanks_that_a_normalizer_adds():
    backend = backend_of("tiny-gpt2")
    backend.normalizer = normalizers.BertNormalizer()
    assert tokenizer_limits.cuts(backend) is None


@pytest.mark.parametrize(
    ("name", "content", "how"),
    [
        ("tiny-gpt2", "New York", {"normalized": False}),
        ("tiny-gpt2", "hello, world", {}),
        ("tiny-gpt2", "<a\u3002>", {}),
        ("tiny-gpt2", "\u3001", {"single_word": True}),
        ("tiny-gpt2", "\u3002", {"single_word": True}),
        ("tiny-gpt2", "\uff0c", {"single_word": True}),
        ("tiny-gpt2", "<a", {"rstrip": True}),
        ("nfd", "\u0301 y", {}),
        ("nfd", "\u0301", {"rstrip": True}),
        ("gemma", "<a\u2581b", {}),
        ("gemma", "\u2581b>", {"single_word": True}),
    ],
)
def test_a_text_is_not_cut_across_an_added_token(name, content, how):
    backend = Tokenizer.from_str(VARIANTS[name].to_str())
    assert tokenizer_limits.cuts(backend) is not None
    backend.add_tokens([AddedToken(content, **how)])
    assert tokenizer_limits.cuts(backend) is None


def test_an_added_token_across_a_cut_keeps_its_id(monkeypatch):
    backend = backend_of()
    backend.add_tokens(["hello, world"])
    text = "a hello, world, a hello, world"
    monkeypatch.setattr(bounded_tokenizer, "PIECE", 7)
    [ids] = BoundedTokenizer(backend).ids([text])
    assert [*ids] == backend.encode(text, add_special_tokens=False).ids
    assert backend.token_to_id("hello, world") in [*ids]


@pytest.mark.parametrize(("word", "known"), [("0", True), ("b", False)])
def test_special_tokens_stand_around_pieces_where_a_has_no_tokens(monkeypatch, word, known):
    backend = Tokenizer(models.BPE({word: 0, "<s>": 1, "</s>": 2}, []))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    text = f"x{word} " * 9
    monkeypatch.setattr(bounded_tokenizer, "PIECE", 4)
    bounded = BoundedTokenizer(backend)
    if known:
        [ids] = bounded.ids([text], special_tokens=True)
        assert ids.tolist() == backend.encode(text).ids == [1, *[0] * 9, 2]
    else:
        with pytest.raises(TextError, match="the special tokens around a text are unknown"):
            bounded.ids([text], special_tokens=True)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "words"])
@settings(max_examples=40, deadline=None)
@given(parts=st.lists(PART, min_size=1, max_size=12), times=st.integers(1, 40))
def test_a_text_that_fits_is_never_refused_by_its_characters(name, parts, times):
    text, backend = "".join(parts) * times, VARIANTS[name]
    n_tokens = len(backend.encode(text, add_special_tokens=False).ids)
    limit = tokenizer_limits.character_limit(backend)
    assert limit is not None
    assert not limit.exceeds(text, n_tokens)


def test_blanks_that_an_added_token_takes_do_not_count():
    backend = VARIANTS["marked"]
    text = "<mask>" + " " * 100_000
    assert len(backend.encode(text, add_special_tokens=False).ids) == 1
    BoundedTokenizer(backend).ids([text], max_positions=1)
    with pytest.raises(TextError, match="100000 characters, more than the model's 4 positions"):
        BoundedTokenizer(backend_of()).ids([" " * 100_000], max_positions=4)


def test_a_model_without_most_bytes_bounds_known_characters_alone():
    backend = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    limit = tokenizer_limits.character_limit(backend)
    assert limit is not None
    assert len(limit.counted.pattern) < 30
    assert limit.exceeds("a" * 9, 4)
    assert not limit.exceeds("\u00e9" * 9, 4)


def test_a_word_that_is_unknown_has_no_bound():
    assert tokenizer_limits.character_limit(VARIANTS["words"]) is None


def test_a_panic_is_the_error_of_one_text():
    bounded = BoundedTokenizer(panicking_backend())
    texts = ["one", PANICS, "two", "three"]
    found = encode_each(bounded.ids, texts)
    assert [isinstance(one, TextError) for one in found] == [False, True, False, False]
    assert "cannot read the text (Onig: Regex search error" in str(found[1])
    want = backend_of().encode_batch(["one", "two", "three"], add_special_tokens=False)
    assert [one for one in found if isinstance(one, list)] == [one.ids for one in want]


@pytest.mark.parametrize("problem", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_what_is_no_panic_stays_what_it_is(problem):
    with pytest.raises(problem), bounded_tokenizer.panics_as_errors():
        raise problem


@pytest.fixture
def panicking(scorers, monkeypatch):
    scorer = scorers("tiny-gpt2")
    monkeypatch.setattr(scorer.encoder, "bounded", BoundedTokenizer(panicking_backend()))
    return scorer


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_panic_fails_one_request_and_the_others_are_scored(panicking, boundary, monkeypatch):
    monkeypatch.setitem(vars(panicking.encoder), "_spaced", panicking.encoder.bounded)
    bad, good = Request("bad", "a", PANICS[1:]), Request("good", "The cat", " sat")
    failed, scored = panicking.score([bad, good], boundary=boundary)
    if boundary in ("separate", "after"):
        failed, scored = panicking.score([Request("bad", "x", PANICS), good], boundary=boundary)
    assert "cannot read the text" in failed.error
    assert scored.error is None
    assert len(scored.logprob) > 0
    found = list(panicking.stream([good, Request("bad", "", PANICS), good], boundary=boundary))
    assert [one.error is None for one in found] == [True, False, True]


def test_a_panic_fails_one_label_request_and_one_generation(panicking):
    labelled = panicking.label([LabelRequest(0, PANICS, (5, 6)), LabelRequest(1, "x", (5, 6))])
    assert [one.error is None for one in labelled] == [False, True]
    requests = [GenerationRequest(k, text, 2) for k, text in enumerate([PANICS, "The cat"])]
    bad, good = Generator(panicking).generate(requests)
    assert "cannot read the text" in bad.error
    assert good.error is None


LIMITED = """
import resource, sys
from pathlib import Path
from jaxscore.text.bounded_tokenizer import BoundedTokenizer, TextError
from jaxscore.text.tokenizer import copy_backend
from jaxscore.text.tokenizer_files import load_tokenizer

bounded = BoundedTokenizer(copy_backend(load_tokenizer(Path(sys.argv[1]))))
bounded.ids(["a b"] * 64)  # starts the threads
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[2]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""

REFUSED = """
try:
    bounded.ids([{text}], max_positions=1024)
except TextError:
    sys.exit(0)
sys.exit("it is encoded")
"""
BLANKS, WORDS = "' ' * 12_000_000", "'some words, and more ' * 400_000"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("code", "megabytes"),
    [
        (REFUSED.format(text=BLANKS), 128),
        (REFUSED.format(text=WORDS), 128),
        # As a whole it takes 2 GB.
        (f"[ids] = bounded.ids([{WORDS}])", 768),
    ],
)
def test_a_long_text_takes_little_memory(code, megabytes):
    command = [sys.executable, "-c", LIMITED + code, CASES / "models/tiny-gpt2", str(megabytes)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_blanks_without_end_fail_alone_where_nothing_bounds_their_tokens():
    bounded = BoundedTokenizer(VARIANTS["tiny-llama3"])
    found = encode_each(bounded.ids, [" " * 3_000_000, "a b"])
    assert "3000000 characters without a position where" in str(found[0])
    assert isinstance(found[1], list)
