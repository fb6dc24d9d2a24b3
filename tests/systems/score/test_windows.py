"""Texts that are longer than a model's context, in windows: values of PyTorch, token by token."""

import functools
import json
import pickle

import numpy as np
import pytest
import torch
import transformers

from jaxscore import InputError, evaluate
from jaxscore.model_pair import DivergenceScorer
from jaxscore.plan.requests import TextWindows, WindowedText
from jaxscore.types.requests import Request
from tests.conftest import CASES

pytestmark = pytest.mark.numeric

WORDS = "The cat sat, été 🙂 7.\n"
N = 16


@functools.cache
def loaded(name):
    folder = CASES / "models" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return transformers.AutoTokenizer.from_pretrained(folder), model


def by_torch(name, context, continuation, stride, rule):
    """float32 [n], ln p of each token of the continuation, each after what its window reads."""
    tokenizer, model = loaded(name)
    ids = tokenizer(context + continuation)["input_ids"]
    n_before = len(tokenizer(context)["input_ids"]) if context else 0
    bos = ids[0] if name == "tiny-llama3" else None
    start = n_before or int(bos is not None)
    logprobs = []
    with torch.no_grad():
        for place in range(start, len(ids)):
            if not place:
                logprobs.append(np.nan)
                continue
            begin = 0
            if place > N:
                run = (place - N - 1) // stride
                begin = min(len(ids), N + 1 + (run + 1) * stride) - 1 - N
            if rule == "half":
                begin = place // N * N
                is_whole = begin + N <= len(ids)
                if not is_whole or place - begin <= N // 2:
                    logprobs.append(np.nan)
                    continue
            read = ids[begin:place]
            if begin and bos is not None and rule != "first":
                read = [bos, *read[1:]]
            logits = model(torch.tensor([read])).logits[0, -1].double()
            logprobs.append(float(torch.log_softmax(logits, -1)[ids[place]]))
    return np.array(logprobs, np.float32)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", ["tiny-llama3", "tiny-qwen2"])
@pytest.mark.parametrize(
    ("stride", "rule"), [(N, "every"), (5, "every"), (N, "first"), (7, "first"), (N, "half")]
)
def test_each_token_by_hand(scorers, name, stride, rule):
    texts = [("", WORDS * 4), ("", "One two"), (f"{WORDS}{WORDS}x", f" {WORDS}{WORDS}")]
    settings = {"window_bos": rule, "stride": stride}
    if rule == "half":
        settings = {"score_from": "half"}
    items = [{"context": context, "continuation": text} for context, text in texts]
    report = evaluate("score", scorers(name), items, max_length=N, measures=["rank"], **settings)
    assert report.failures == []
    for (context, text), record in zip(texts, report.items, strict=True):
        want = by_torch(name, context, text, stride, rule)
        got = np.array(record["logprob"], np.float64)  # None is NaN
        np.testing.assert_allclose(got, want, atol=1e-4)
        assert record["n_scored"] == np.isfinite(want).sum()
        assert len(record["tokens"]) == len(record["rank"]) == record["n_tokens"]
    assert [record["n_windows"] > 1 for record in report.items] == [True, False, True]
    after = "the BOS" if name == "tiny-llama3" and rule != "first" else "no BOS"
    assert f"each window after the first begins with {after}" in "".join(report.remarks)
    assert report.settings["max_length"] == N


@pytest.mark.parametrize("name", ["tiny-llama3", "tiny-qwen2"])
@pytest.mark.parametrize(
    "settings",
    [
        {"stride": N, "window_bos": "first"},
        {"stride": 5, "window_bos": "every"},
        {"score_from": "half", "window_bos": "every"},
    ],
)
def test_sums_are_those_of_perplexity_to_the_last_digit(scorers, name, settings):
    texts = [WORDS * 5, WORDS, "One two"]
    settings = {"max_length": N, **settings}
    items = [{"continuation": text} for text in texts]
    records = evaluate("score", scorers(name), items, **settings).items
    documents = evaluate("perplexity", scorers(name), texts, **settings).items
    for record, document in zip(records, documents, strict=True):
        if record["sum_logprob"] is None:  # half of a text without a whole window
            assert "shorter than a window" in document["error"]
            continue
        for field in ("n_windows", "n_tokens", "n_scored", "sum_logprob", "perplexity"):
            assert record[field] == document[field], field


def test_measures_are_those_of_each_window(scorers):
    scorer = scorers("tiny-llama3")
    text, (bos,) = WORDS * 3, scorer.encoder.prefix
    measures = ["rank", "varentropy", "renyi2"]
    settings = {"max_length": N, "stride": 5, "measures": [*measures, "top_k"]}
    [record] = evaluate("score", scorer, [text], **settings).items
    [sequence], *_ = scorer.encoder.encode([Request("", "", text)])
    windows = WindowedText(sequence.ids, sequence.start, TextWindows(N, 5, (bos,)))
    scored = scorer.score_sequences(windows, measures=measures, top=5)
    for name in measures:
        want = np.concatenate([scores.measures[name] for scores in scored])
        np.testing.assert_allclose(record[name], want, rtol=1e-4, err_msg=name)
    assert record["top_id"] == np.concatenate([scores.top_id for scores in scored]).tolist()
    whole = evaluate("score", scorer, [text], max_length=1024, measures=measures).items[0]
    plain = evaluate("score", scorer, [text], measures=measures).items[0]
    assert whole == {**plain, "n_windows": 1}


def test_texts_without_a_whole_window_have_no_numbers(scorers):
    scorer = scorers("tiny-llama3")
    settings = {"max_length": N, "score_from": "half"}
    measures = {"measures": ["rank", "top_k", "min_k_pp"], "unit": "word"}
    texts = [WORDS * 3, "One two", ""]
    report = evaluate("score", scorer, texts, against="", **settings, **measures)
    long, short, empty = report.items
    assert long["n_windows"] > 1
    nothing = [None] * short["n_tokens"]
    assert (short["n_windows"], short["sum_logprob"], short["min_k_pp"]) == (0, None, None)
    assert short["logprob"] == short["rank"] == short["top_id"] == short["gain"] == nothing
    assert short["word_surprisal"] == [None, None]
    assert "is it empty" in empty["error"]
    assert "shorter than a window: 1" in "".join(report.remarks)
    folder = str(CASES / "models/tiny-llama3")
    with DivergenceScorer.from_pretrained(folder, folder, reference_dtype="bfloat16") as pair:
        report = evaluate("divergence", pair, texts[:2], **settings)
    assert [record["mean_kl"] is None for record in report.items] == [False, True]


def test_names_of_tokens_are_looked_up_when_they_are_read(scorers):
    [scored] = scorers("tiny-llama3").score([WORDS], text_windows=TextWindows(N, N))
    [plain] = scorers("tiny-llama3").score([WORDS])
    assert not isinstance(scored.tokens, list)
    assert scored.tokens == plain.tokens
    assert scored.tokens[2:4] == plain.tokens[2:4]
    copy = pickle.loads(pickle.dumps(scored))
    assert (copy.tokens, copy) == (plain.tokens, scored)
    assert copy.to_dict() == scored.to_dict()
    assert isinstance(scored.to_dict()["tokens"], list)


def test_two_models_in_windows_have_the_log_probabilities_of_each(scorers, tmp_path):
    folder = str(CASES / "models/tiny-llama3")
    items = [{"continuation": WORDS * 3}]
    settings = {"max_length": N, "stride": 5}
    with DivergenceScorer.from_pretrained(folder, folder, reference_dtype="bfloat16") as pair:
        [record] = evaluate("divergence", pair, items, **settings).items
    [alone] = evaluate("score", scorers("tiny-llama3"), items, **settings).items
    np.testing.assert_allclose(record["logprob"], alone["logprob"], atol=1e-5)
    assert record["n_windows"] == alone["n_windows"] > 1
    assert len(record["kl"]) == record["n_tokens"]


def test_without_windows_a_long_text_fails(scorers):
    items = [{"continuation": "a b " * 900}, {"continuation": "a b"}]
    report = evaluate("score", scorers("tiny-qwen2"), items)
    assert [name for name, _ in report.failures] == ["0"]
    assert "n_windows" not in report.items[1]
    assert evaluate("score", scorers("tiny-qwen2"), items, stride=200).failures == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 8, "stride": 9}, "stride is 9, and a window reads 8 tokens, so that some"),
        ({"stride": 5000}, "stride is 5000, and a window reads 1024 tokens"),
        ({"max_length": 5000}, "max_length is 5000, and the model takes 1024 positions"),
        ({"max_length": 8, "stride": 4, "score_from": "half"}, "stride is 4 and score_from half"),
        ({"max_length": 0}, "setting max_length is 0, expected a whole number of at least 1"),
        ({"max_length": 8, "truncate": "left"}, "truncate: texts are read in windows"),
    ],
)
def test_settings(scorers, settings, message):
    with pytest.raises(InputError) as caught:
        evaluate("score", scorers("tiny-llama3"), [{"continuation": "a"}], **settings)
    assert message in str(caught.value)


def test_records_of_a_table_have_the_number_of_windows(scorers, tmp_path):
    from jaxscore.shell.system import table_columns
    from jaxscore.systems.score import SYSTEM, Settings

    assert "n_windows" in table_columns(SYSTEM, Settings(stride=4))
    assert "n_windows" not in table_columns(SYSTEM, Settings())
    json.dumps(evaluate("score", scorers("tiny-qwen2"), [WORDS], stride=4).to_dict())
