"""Perplexity of documents against PyTorch, a forward pass for each token."""

import functools
import hashlib
import json
import math
import re

import numpy as np
import pytest
import torch
import transformers

from jaxscore import InputError, evaluate
from jaxscore.io.json_output import to_json_value
from jaxscore.systems import perplexity
from jaxscore.text import tokenize_requests
from jaxscore.text.decoder import TokenBytes
from tests.conftest import CASES

pytestmark = pytest.mark.numeric

WORDS = "The cat sat, été 🙂 7.\n"
DOCUMENTS = [WORDS * 3, "One two", {"id": "b", "text": f" {WORDS}", "topic": "x"}]


@functools.cache
def loaded(name):
    folder = CASES / "models" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return transformers.AutoTokenizer.from_pretrained(folder), model


def by_torch(name, text, max_length, stride, prefix=()):
    """(sum of ln p in float64, tokens with a probability), each token after its own context.

    The first `max_length` scored tokens see all that is before them. The others come in runs of
    `stride`; the end of its run says how far back a token sees.
    """
    tokenizer, model = loaded(name)
    ids = [*prefix, *tokenizer(text, add_special_tokens=not prefix)["input_ids"]]
    total, n = 0.0, len(ids)
    with torch.no_grad():
        for place in range(1, n):
            begin = 0
            if place > max_length:
                run = (place - max_length - 1) // stride
                end = min(n, max_length + 1 + (run + 1) * stride)
                begin = end - 1 - max_length
            logits = model(torch.tensor([ids[begin:place]])).logits[0, -1].double()
            total += float(torch.log_softmax(logits, -1)[ids[place]])
    return total, n - 1


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("name", "max_length", "stride", "prefix"),
    [
        ("tiny-llama3", 16, None, None),
        ("tiny-llama3", 16, 5, None),
        ("tiny-qwen2", 12, 1, None),
        ("tiny-gpt2", 20, 7, 0),
    ],
)
def test_every_token_by_hand(scorers, monkeypatch, name, max_length, stride, prefix):
    scorer = scorers(name)
    if prefix is not None:
        monkeypatch.setattr(scorer.encoder, "prefix", [prefix])
    report = evaluate("perplexity", scorer, DOCUMENTS, max_length=max_length, stride=stride)
    bos = name == "tiny-llama3"
    sums = []
    for given, got in zip(DOCUMENTS, report.items, strict=True):
        text = given if isinstance(given, str) else given["text"]
        before = () if prefix is None else (prefix,)
        total, n = by_torch(name, text, max_length, stride or max_length, before)
        sums.append((total, n, len(text.encode()), len(re.split(r"\s+", text))))
        assert got["n_scored"] == n
        assert got["n_tokens"] == n + (not bos and prefix is None)
        assert got["sum_logprob"] == pytest.approx(total, abs=1e-3)
        assert got["mean_logprob"] == pytest.approx(total / n, abs=1e-4)
        assert got["perplexity"] == pytest.approx(math.exp(-total / n), rel=1e-4)
        assert got["bits_per_byte"] == pytest.approx(-total / math.log(2) / sums[-1][2], rel=1e-4)
        assert got["bits_per_word"] == pytest.approx(-total / math.log(2) / sums[-1][3], rel=1e-4)
        assert got["text_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    total, *counts = np.sum(sums, axis=0)
    for unit, count in zip(("token", "byte", "word"), counts, strict=True):
        want = -total / count
        estimate = report.summary[f"bits_per_{unit}"]
        assert estimate.mean == pytest.approx(want / math.log(2), rel=1e-4)
        exponent = report.summary["perplexity" if unit == "token" else f"{unit}_perplexity"]
        assert exponent.mean == pytest.approx(math.exp(want), rel=1e-3)
        assert exponent.low == pytest.approx(2**estimate.low)
        assert exponent.high == pytest.approx(2**estimate.high)
        assert estimate.n == exponent.n == 3
    left_out = 0 if bos or prefix is not None else 3
    assert report.summary["n_left_out"] == left_out
    assert "each window after the first begins with no BOS" in "".join(report.remarks)
    assert len(report.remarks) == 1 + bool(left_out)
    assert report.items[2]["topic"] == "x"


def test_a_document_that_begins_with_the_prefix_gets_no_second_one(scorers):
    scorer = scorers("tiny-llama3")
    [bos] = scorer.encoder.prefix
    text = scorer.encoder.tokenizer.convert_ids_to_tokens(bos) + WORDS
    given, plain = (evaluate("perplexity", scorer, [one]).items[0] for one in (text, WORDS))
    assert given["sum_logprob"] == pytest.approx(plain["sum_logprob"], abs=1e-4)
    assert given["n_scored"] == plain["n_scored"] == given["n_tokens"] - 1


def test_few_windows_at_a_time_have_the_numbers_of_all(scorers, monkeypatch):
    """Groups that begin and end within documents, and documents without a window."""
    texts = [WORDS * 2, "", "One", WORDS]
    want = evaluate("perplexity", scorers("tiny-llama3"), texts, max_length=8)
    monkeypatch.setattr(tokenize_requests, "GROUP", 3)
    monkeypatch.setattr(tokenize_requests, "GROUP_TOKENS", 20)
    got = evaluate("perplexity", scorers("tiny-llama3"), texts, max_length=8)
    assert got.failures == want.failures == [("2", "none of its tokens has a probability")]
    for found, wanted in zip(got.items, want.items, strict=True):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert found[name] == (
                pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
            )
    assert want.summary["n_documents"] == 3


def test_half_of_each_whole_window_is_scored(scorers):
    """Of bytes and words, those of the scored tokens count."""
    scorer = scorers("tiny-llama3")
    report = evaluate("perplexity", scorer, [WORDS * 3, "One"], max_length=8, score_from="half")
    document, short = report.items
    ids = scorer.encoder.tokenizer(WORDS * 3)["input_ids"]
    n_chunks = len(ids) // 8
    assert (document["n_windows"], document["n_scored"]) == (n_chunks, 3 * n_chunks)
    scored = [id for k, id in enumerate(ids[: 8 * n_chunks]) if k % 8 > 4]
    assert document["n_bytes"] == len(
        b"".join(map(TokenBytes(scorer.encoder.tokenizer).raw, scored))
    )
    assert "shorter than a window of 8 tokens" in short["error"]
    assert not any("has nothing before it" in remark for remark in report.remarks)
    assert "scores its second half" in report.markdown()


def test_one_document_has_no_interval(scorers):
    report = evaluate("perplexity", scorers("tiny-llama3"), ["One two three"])
    assert report.summary["bits_per_byte"].low is None
    assert (report.settings["max_length"], report.settings["stride"]) == (1024, 1024)
    assert "interval" not in report.headline
    failed = evaluate("perplexity", scorers("tiny-llama3"), [""])
    assert failed.headline == "no document was scored"
    assert failed.summary["perplexity"].mean is None
    assert "## Failed: 1 document" in failed.markdown()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 0}, "setting max_length is 0, expected a whole number of at least 1"),
        ({"stride": 2.0}, "setting stride is 2.0, expected a whole number of at least 1"),
        ({"truncate": "left"}, "truncate: texts are read in windows"),
        ({"audit_noise": 3}, "audit_noise: perplexity decides nothing"),
        ({"max_length": 2000}, "max_length is 2000, and the model takes 1024 positions"),
        ({"max_length": 8, "stride": 9}, "stride is 9, and a window reads 8 tokens, so that some"),
    ],
)
def test_settings(scorers, settings, message):
    with pytest.raises(InputError) as caught:
        evaluate("perplexity", scorers("tiny-llama3"), DOCUMENTS, **settings)
    assert message in str(caught.value)


def test_wide_windows_on_a_cpu_are_said_to_be_slow(scorers, monkeypatch):
    monkeypatch.setattr(perplexity, "WIDE", 16)
    texts = [WORDS, WORDS * 3]
    scorer = scorers("tiny-llama3")
    [remark] = evaluate("perplexity", scorer, texts).remarks
    n_tokens = len(scorer.encoder.tokenizer(WORDS * 3)["input_ids"]) - 1
    assert f"windows read up to {n_tokens} tokens" in remark
    assert "--max-length 512" in remark
    [remark] = evaluate("perplexity", scorer, texts, max_length=20).remarks
    assert "faster" not in remark
    assert evaluate("perplexity", scorer, ["The cat"]).remarks == []


def test_stride_longer_than_given_windows_is_refused_without_a_model():
    with pytest.raises(InputError, match="stride is 9, and a window reads 8 tokens"):
        perplexity.Settings(max_length=8, stride=9)


def test_what_is_no_source_and_no_document(scorers):
    with pytest.raises(InputError, match="perplexity needs a Scorer"):
        evaluate("perplexity", None, DOCUMENTS)
    with pytest.raises(InputError, match="found no documents, expected at least one"):
        evaluate("perplexity", scorers("tiny-llama3"), [])


def test_the_summary_of_stored_and_merged_records_is_that_of_one_run(scorers):
    settings = perplexity.Settings(max_length=16, n_bootstrap=20)
    texts = [*DOCUMENTS, "", {"id": "unusable"}]
    runs = [
        evaluate("perplexity", scorers("tiny-gpt2"), part, max_length=16, n_bootstrap=20)
        for part in (texts[:2], texts[2:], texts)
    ]
    *parts, whole = [json.loads(json.dumps(run.items)) for run in runs]
    assert perplexity.SYSTEM.summarize(whole, settings) == runs[2].found
    merged = perplexity.SYSTEM.summarize(parts[0] + parts[1], settings)
    for name, number in to_json_value(runs[2].summary).items():
        assert to_json_value(merged.numbers[name]) == pytest.approx(number, rel=1e-5), name
    assert merged.warnings == runs[2].found.warnings
    assert [why for _, why in merged.failures] == [why for _, why in runs[2].failures]
