"""The audit of windows without BOS, on a model whose probabilities are known by hand."""

import functools
import math
from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from jaxscore import Scorer, evaluate
from jaxscore.shell.audits import Facts
from jaxscore.systems.perplexity import window_bos
from tests.conftest import CASES

pytestmark = pytest.mark.numeric

V, SCALE = 1280, 6.0


@functools.cache
def loaded(name):
    folder = CASES / "models" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return transformers.AutoTokenizer.from_pretrained(folder), model


def scorer_of(name="tiny-llama3", *, bos_id, gain=SCALE):
    """A model whose logits are 0, except for the token " a": it has `gain` in a text with a BOS.

    The BOS is the first token of the text.
    """
    tokenizer = loaded(name)[0]
    [a] = tokenizer.encode(" a", add_special_tokens=False)
    weight = np.zeros((V, 1), np.float32)
    weight[a] = 1.0
    return Scorer.from_function(
        lambda params, ids: (
            jnp.where(ids[:, :1] == bos_id, gain, 0.0)[..., None] * jnp.ones((*ids.shape, 1))
        ),
        lambda params: params,
        jnp.asarray(weight),
        tokenizer,
        vocab_size=V,
        max_positions=64,
    )


def logprob(gain):
    """Log-probability of " a" with this logit."""
    return gain - math.log(V - 1 + math.exp(gain))


def counts(**sums):
    return {f"window_bos.{name}": value for name, value in sums.items()}


@pytest.fixture
def bos_id():
    return loaded("tiny-llama3")[0].bos_token_id


def test_both_numbers_are_reported(bos_id):
    scorer = scorer_of(bos_id=bos_id)
    report = evaluate("perplexity", scorer, [" a" * 29, " a" * 5, " a" * 8], max_length=8)
    found = report.to_dict()["window_bos"]
    assert (found["n_windows"], found["n_tokens"]) == (3, 21)  # of 8, 8 and 5 tokens
    assert math.exp(-found["sum_logprob"] / 21) == pytest.approx(V, rel=1e-5)
    with_bos = (found["sum_logprob"] + found["sum_gain"]) / 21
    assert with_bos == pytest.approx(logprob(SCALE), rel=1e-5)
    finding = (
        "windows after a document's first one read no BOS: the perplexity per token of a sample of "
        f"3 of them is {V}, and {math.exp(-logprob(SCALE)):.4g} with a BOS in place of their "
        f"oldest token ({logprob(SCALE) - logprob(0):+.3g} nats per token, standard error 0); "
        "--window-bos every puts it in each window"
    )
    assert report.to_dict()["findings"] == report.findings == [finding]
    sentence = f"{finding[0].upper()}{finding[1:]}."
    assert sentence in report.markdown()
    assert "a sample of 3 of them is 1280, and " in report.html()


def test_results_and_counters_are_those_without_the_audit(bos_id, monkeypatch):
    texts = [" a" * 100, " a" * 30]
    scorer = scorer_of(bos_id=bos_id)
    with_audit = evaluate("perplexity", scorer, texts, max_length=8)
    counters = scorer.facts()["counts"]
    monkeypatch.setattr(window_bos.Audit, "counts", lambda self: {})
    other = scorer_of(bos_id=bos_id)
    without = evaluate("perplexity", other, texts, max_length=8)
    assert with_audit.items == without.items
    assert with_audit.summary == without.summary
    assert counters == other.facts()["counts"]


def test_a_sample_of_windows_and_tokens_is_scored_again(bos_id, monkeypatch):
    scorer = scorer_of(bos_id=bos_id)
    runs = []
    genuine = scorer.engine.run

    def counted(chunks, *args, windows=None, **options):
        if windows is not None:  # the run, whose windows are cut from texts
            return genuine(chunks, *args, windows=windows, **options)
        groups = [list(group) for group in chunks]
        runs.append([len(window.input_ids) for group in groups for window in group])
        return genuine(iter(groups), *args, **options)

    monkeypatch.setattr(scorer.engine, "run", counted)
    report = evaluate("perplexity", scorer, [" a" * 400], max_length=8)
    assert report.items[0]["n_windows"] == 50
    assert report.to_dict()["window_bos"]["n_windows"] == window_bos.SAMPLED
    assert max(runs[0]) <= 8
    for most in (24, 1):
        monkeypatch.setattr(window_bos, "SAMPLED_TOKENS", most)
        evaluate("perplexity", scorer, [" a" * 400], max_length=8)
    assert list(map(len, runs)) == [window_bos.SAMPLED, 3, 1]


@pytest.mark.parametrize("gain", [-SCALE, 0.005])
def test_the_remedy_is_named_if_the_bos_raises_probabilities(bos_id, gain):
    scorer = scorer_of(bos_id=bos_id, gain=gain)
    [finding] = evaluate("perplexity", scorer, [" a" * 30], max_length=8).findings
    assert f"({logprob(gain) - logprob(0):+.3g} nats per token" in finding
    assert ("--window-bos every" in finding) == (gain > 0)


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        ({}, [" a" * 8, " a" * 5]),  # a window each
        ({"window_bos": "every"}, [" a" * 30]),
    ],
)
def test_without_windows_that_lack_the_bos_nothing_is_scored_again(bos_id, settings, texts):
    report = evaluate("perplexity", scorer_of(bos_id=bos_id), texts, max_length=8, **settings)
    assert report.findings == []
    assert "window_bos" not in report.to_dict()


def test_every_window_reads_the_bos(bos_id):
    scorer = scorer_of(bos_id=bos_id)
    report = evaluate("perplexity", scorer, [" a" * 30], max_length=8, window_bos="every")
    assert report.items[0]["mean_logprob"] == pytest.approx(logprob(SCALE), rel=1e-5)
    assert "each window after the first begins with the BOS" in "".join(report.remarks)


def test_gains_within_the_noise_of_tokens_have_no_remedy():
    """Gains of 4 and -3.6 nats have a mean of 0.2 and a standard error of 0.38 in 100 tokens."""
    sums = {"n_windows": 5, "n_tokens": 100, "sum_logprob": -500.0, "sum_gain": 20.0}
    noisy, certain = (
        window_bos.findings(counts(**sums, sum_squared_gain=squares))[0]
        for squares in (50 * (4**2 + 3.6**2), 100 * 0.2**2)
    )
    assert "is 148.4, and 121.5 with a BOS in place of their oldest token" in noisy
    assert noisy.endswith("(+0.2 nats per token, standard error 0.38)")
    assert certain.endswith("--window-bos every puts it in each window")


def test_tokenizers_without_a_bos(bos_id):
    """One that adds none has windows without it, unless a flag writes it."""
    end = loaded("tiny-gpt2")[0].bos_token_id
    scorer = scorer_of("tiny-gpt2", bos_id=end)
    for prefix in ([], [end]):
        scorer.encoder.prefix = prefix
        report = evaluate("perplexity", scorer, [" a" * 30], max_length=8)
        assert ("window_bos" in report.to_dict()) == bool(prefix)
        assert len(report.findings) == len(prefix)


def test_windows_with_more_context_lose_their_oldest_token(scorers):
    """Of a model with attention, against PyTorch."""
    name = "tiny-llama3"
    tokenizer, model = loaded(name)
    text = "The cat sat, été 🙂 7.\n" * 3
    report = evaluate("perplexity", scorers(name), [text], max_length=12, stride=5)
    found = report.to_dict()["window_bos"]
    ids = tokenizer(text)["input_ids"]
    own, gains, at = [], [], 13  # the first window scores 12 tokens
    while at < len(ids):
        end = min(len(ids), at + 5)
        begin = max(0, end - 1 - 12)
        window = ids[begin:end]
        with torch.no_grad():
            before, after = (
                torch.log_softmax(model(torch.tensor([read[:-1]])).logits[0].double(), -1)
                for read in (window, [ids[0], *window[1:]])
            )
        for k in range(at - begin, len(window)):
            own.append(float(before[k - 1, window[k]]))
            gains.append(float(after[k - 1, window[k]]) - own[-1])
        at = end
    assert found["n_tokens"] == len(own)
    assert found["sum_logprob"] == pytest.approx(sum(own), rel=1e-5)
    assert found["sum_gain"] == pytest.approx(sum(gains), abs=1e-3)
    assert found["sum_squared_gain"] == pytest.approx(sum(gain**2 for gain in gains), abs=1e-3)


def test_samples_of_shards_are_one():
    parts = [
        Facts(counts=Counter(counts(
            n_windows=n, n_tokens=10 * n, sum_logprob=-50.0 * n, sum_gain=30.0 * n,
            sum_squared_gain=90.0 * n,
        )))
        for n in (1, 2)
    ]  # fmt: skip
    [finding] = window_bos.findings((parts[0] + parts[1]).counts)
    assert "a sample of 3 of them is 148.4, and 7.389 with a BOS" in finding
