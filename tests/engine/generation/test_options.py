"""How a request chooses its tokens and where its text ends, against transformers' `generate`."""

import dataclasses
import re

import numpy as np
import pytest

from jaxscore import GenerationRequest, LabelRequest, Scorer
from jaxscore.engine.generation import Generator, slots
from jaxscore.engine.generation.state import TextState
from jaxscore.plan.requests import GeneratedTokens, TokenRequest
from jaxscore.text.decoder import TokenBytes
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer_files import load_tokenizer
from tests.conftest import CASES
from tests.engine.generation.test_generator import requests
from tests.models.checkpoints import loaded, saved
from tests.releases import flax_classes
from tests.text.test_decoder import fast, slow

pytestmark = [pytest.mark.numeric, pytest.mark.lines]

PROMPTS = ["The cat", "Question: how many days did Marek travel?\n", "word " * 40 + "then"]


def asked(prompt, n=24, id=0, **options):
    return GenerationRequest(id, prompt, n, **options)


def torch_written(folder, ids, n, **options):
    """What PyTorch writes, an EOS included."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = torch.from_numpy(np.asarray(ids, np.int64))[None]
    out = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n, do_sample=False,
        pad_token_id=0, **options,
    )  # fmt: skip
    return out[0, len(ids) :].tolist()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-qwen2"])
def test_a_penalty_of_text_is_torchs(scorers, name):
    writer = Generator(scorers(name))
    plain = writer.generate(requests(PROMPTS))
    got = writer.generate(requests(PROMPTS, repetition_penalty=1.3))
    for prompt, one in zip(PROMPTS, got, strict=True):
        [ids] = writer.encoder.prompt_ids([prompt])
        want = torch_written(CASES / "models" / name, ids, 24, repetition_penalty=1.3)
        assert [*one.token_ids.tolist(), *([] if one.eos_id is None else [one.eos_id])] == want
    assert [one.token_ids.tolist() for one in got] != [one.token_ids.tolist() for one in plain]
    # One with a penalty among others changes none of them.
    mixed = writer.generate([*requests(PROMPTS), asked(PROMPTS[0], repetition_penalty=1.3)])
    assert [one.token_ids.tolist() for one in mixed] == [
        one.token_ids.tolist() for one in [*plain, got[0]]
    ]


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory):
    """A random llama with a tokenizer like SentencePiece's; its folder and its scorer."""
    folder = tmp_path_factory.mktemp("metaspace")
    source = CASES / "tokenizers/metaspace"
    for file in [source / "tokenizer.json", source / "saved_by_5/tokenizer_config.json"]:
        (folder / file.name).write_bytes(file.read_bytes())
    tokenizer = load_tokenizer(folder)
    saved(folder, "llama", vocab_size=len(tokenizer))
    return folder, Scorer(loaded(folder), TextEncoder(tokenizer))


@pytest.mark.slow
def test_a_sentencepiece_tokenizer(metaspace):
    folder, scorer = metaspace
    writer = Generator(scorer)
    for options in ({}, {"repetition_penalty": 1.4}):
        for prompt in ("The cat", "où ça"):
            [one] = writer.generate([asked(prompt, 12, **options)])
            [ids] = scorer.encoder.prompt_ids([prompt])
            assert one.token_ids.tolist() == torch_written(folder, ids, 12, **options)
            assert one.text == text_of_bytes(scorer.encoder.tokenizer, one.token_ids)


def text_of_bytes(tokenizer, ids):
    """Return the bytes of SentencePiece's tokens as text, by their names in the vocabulary."""
    raw = b""
    for name in tokenizer.convert_ids_to_tokens(ids.tolist()):
        if re.fullmatch("<0x[0-9A-F]{2}>", name):
            raw += bytes.fromhex(name[3:5])
        elif name not in tokenizer.all_special_tokens:
            raw += name.replace("\u2581", " ").encode()
    return raw.decode("utf-8", "replace")


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda ids: np.array(ids, np.uint16)])
def test_ids_are_used_as_they_are(metaspace, kind):
    """Without the BOS that the tokenizer writes, also where no text encodes to them."""
    _, scorer = metaspace
    writer = Generator(scorer)
    [ids] = scorer.encoder.prompt_ids(["The cat"])
    assert scorer.encoder.prefix == [ids[0]]
    for some in (ids.tolist(), ids[1:].tolist(), [5, 5, 0, 1, 1]):
        [one] = writer.generate([asked(kind(some), 5)])
        assert one.error is None
        assert one.token_ids.tolist() == torch_written(metaspace[0], some, 5)
    [text] = writer.generate([asked("The cat", 5)])
    assert text.token_ids.tolist() == torch_written(metaspace[0], ids, 5)


def test_what_cannot_be_written_is_named(scorers):
    wrong = {
        "no tokens": {"prompt": []},
        "-1 is negative": {"prompt": [3, -1]},
        "beyond the model's vocabulary": {"prompt": np.array([2**40])},
        "token ids are [[1, 2]]": {"prompt": [[1, 2]]},
        "token ids are [1.0]": {"prompt": [1.0]},
        "token ids are ['1']": {"prompt": ["1"]},
        "expected a flat list of integers": {"prompt": [1, [2]]},
        "token ids are [100000": {"prompt": [10**40]},
        "expected a string or token ids": {"prompt": {1: 2}},
        "shorten it": {"prompt": [1] * 9999},
        "top_k -1": {"top_k": -1},
        "top_k is of type float": {"top_k": 1.0},
        "repetition_penalty 0": {"repetition_penalty": 0},
        "repetition_penalty nan": {"repetition_penalty": float("nan")},
        "repetition_penalty inf": {"repetition_penalty": float("inf")},
        "repetition_penalty is of type str": {"repetition_penalty": "1"},
        "eos_ids is of type int": {"eos_ids": 3},
        "eos_ids have -2": {"eos_ids": (1, -2)},
        "eos_ids have True": {"eos_ids": (True,)},
        "eos_ids have 99999": {"eos_ids": [99999]},
        "U+FFFD": {"stop": ("a\ufffd",)},
    }
    base = asked("The cat", 2, "good")
    got = Generator(scorers("tiny-gpt2")).generate(
        [*(dataclasses.replace(base, id=k, **change) for k, change in wrong.items()), base]
    )
    for one in got[:-1]:
        assert one.id in (one.error or ""), one
        assert (one.text, len(one.token_ids), one.finish, one.eos_id) == ("", 0, None, None)
    assert got[-1].error is None


@flax_classes
def test_what_transformers_classes_do_not_compute_is_named(scorers):
    writer = Generator(scorers("tiny-gpt2", implementation="transformers"))
    *refused, good = writer.generate(
        [asked("a", 2, top_k=3), asked("a", 2, repetition_penalty=1.1), asked("a", 2)]
    )
    for one in refused:
        assert "--model-impl native" in one.error
    assert good.error is None


@pytest.mark.slow
def test_top_k_draws_from_so_many(scorers):
    """The first tokens of many seeds are the most probable ones, and all of them are drawn."""
    scorer = scorers("tiny-gpt2")
    [scores] = scorer.label([LabelRequest(0, "The cat", tuple(range(scorer.model.vocab_size)))])
    best = np.argsort(-scores.logprob, kind="stable")
    got = scorer.generate(
        [asked("The cat", 1, k, temperature=5.0, top_k=4, seed=k) for k in range(200)]
    )
    drawn = {int(one.token_ids[0]) if len(one.token_ids) else one.eos_id for one in got}
    assert drawn == {*best[:4].tolist()}
    [one] = scorer.generate("The cat", max_new_tokens=6, temperature=3.0, top_k=1)
    [greedy] = scorer.generate("The cat", max_new_tokens=6)
    assert one.token_ids.tolist() == greedy.token_ids.tolist()
    [all_of_them] = scorer.generate("The cat", max_new_tokens=6, temperature=3.0, top_k=10**30)
    [plain] = scorer.generate("The cat", max_new_tokens=6, temperature=3.0)
    assert all_of_them.token_ids.tolist() == plain.token_ids.tolist()


def test_eos_ids_of_a_request(scorers):
    """Each text ends at its own, side by side; the checkpoint's are then none."""
    writer = Generator(scorers("tiny-gpt2"))
    [plain] = writer.generate([asked("Question: how many", 24)])
    ids = plain.token_ids.tolist()
    at = next(k for k in range(1, len(ids)) if ids[k] not in ids[:k])
    never = [id for id in range(900) if id not in ids][:4]
    cut, both, on = writer.generate(
        [
            asked("Question: how many", 24, eos_ids=(ids[at],)),
            asked("Question: how many", 24, eos_ids=(*never, ids[at])),
            asked("Question: how many", 24, eos_ids=()),
        ]
    )
    for one in (cut, both):
        assert (one.token_ids.tolist(), one.finish, one.eos_id) == (ids[:at], "eos", ids[at])
    assert (on.token_ids.tolist()[: len(ids)], on.eos_id) == (ids, None)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("steps", [3, 1, 32])
def test_the_first_stop_that_is_complete_ends_the_text(monkeypatch, scorers, steps):
    """Wherever the looks at the device's tokens fall."""
    monkeypatch.setattr(slots, "STEPS", steps)
    writer = Generator(Scorer(scorers("tiny-gpt2").model, scorers("tiny-gpt2").encoder))
    token_bytes = TokenBytes(writer.encoder.tokenizer)
    [plain] = writer.generate([asked("The cat", 40)])
    ids, text = plain.token_ids.tolist(), plain.text
    draw, pairs = np.random.default_rng(4), []
    for _ in range(6):
        at, n = int(draw.integers(0, len(text) - 12)), int(draw.integers(6, 12))
        pairs.append((text[at : at + n], text[at + 3 : at + 5]))
    got = writer.generate([asked("The cat", 40, k, stop=pair) for k, pair in enumerate(pairs)])
    for one, pair in zip(got, pairs, strict=True):
        n = slow(ids, pair, token_bytes.join_all)
        assert (one.token_ids.tolist(), one.finish) == (ids[:n], "stop")
        cut = min(k for stop in pair if (k := token_bytes.join(ids[:n]).find(stop)) >= 0)
        assert one.text == text[:cut]


def test_a_special_token_can_end_a_text(scorers):
    """It is in no text, and the stop search sees it; as `eos_ids` it is no part of the ids."""
    encoder = scorers("tiny-qwen2").encoder
    token_bytes = TokenBytes(encoder.tokenizer)
    [end] = encoder.tokenizer.encode("<|im_end|>", add_special_tokens=False)
    [word] = encoder.tokenizer.encode("a", add_special_tokens=False)
    ids = np.array([word, word, end, word])
    one = TextState(TokenRequest(np.array([word]), 9, 0.0, 1.0, 0, ("<|im_end|>",), ()))
    one.append(ids, token_bytes)
    assert (one.token_ids, one.text, one.finish_reason) == ([word, word, end], "aa", "stop")
    again = TextState(one.request)
    again.restore(GeneratedTokens(np.array(one.token_ids, np.int32), "stop"), token_bytes)
    assert (again.token_ids, again.text, again.finish_reason) == (
        one.token_ids,
        one.text,
        one.finish_reason,
    )
    longer = TextState(one.request)
    longer.restore(GeneratedTokens(ids, "stop"), token_bytes)  # the text had ended before
    assert longer.finish_reason is None


@pytest.mark.slow
def test_what_was_drawn_at_random_ends_where_everything_decoded_says(scorers):
    """Samples at a high temperature: pieces of characters, special tokens, blanks."""
    writer = Generator(scorers("tiny-llama3"))
    token_bytes, stop = TokenBytes(writer.encoder.tokenizer), ("<|eot", "ea", "\n ", "é")
    options = {"temperature": 8.0, "eos_ids": ()}
    plain = writer.generate([asked("The", 40, k, seed=k, **options) for k in range(24)])
    got = writer.generate([asked("The", 40, k, seed=k, stop=stop, **options) for k in range(24)])
    for one, whole in zip(got, plain, strict=True):
        ids = whole.token_ids.tolist()
        n = slow(ids, stop, token_bytes.join_all)
        assert one.token_ids.tolist() == ids[:n]
        assert one.finish == ("length" if n is None else "stop")
        assert fast(ids, stop, token_bytes) == n
    assert {one.finish for one in got} == {"stop", "length"}
