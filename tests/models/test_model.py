"""Two models at once, against torch's full logits in float64 and against each model by itself."""

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from jaxscore.device.lm_head.divergence import MEASURES
from jaxscore.errors import InputError
from jaxscore.models.load import load
from jaxscore.models.model import CheckpointFacts, paired
from tests.conftest import ROOT, with_devices
from tests.models.case_parts import LONGROPE, VOCABULARY
from tests.models.checkpoints import loaded, ragged, saved, scorer, torch_logits, torch_model

pytestmark = [pytest.mark.numeric, pytest.mark.lines]

# gemma2 has a soft cap and qwen2 biases; either side of phi3's first length is a variant.
CONFIGS = {
    "gemma2": {},
    "gpt2": {},
    "llama": {},
    "qwen2": {},
    "phi3": {"rope_scaling": LONGROPE, "original_max_position_embeddings": 16},
}


def torch_logprobs(model, sequence):
    """ln p of every token at each scored place, float64 [n_scored, V]."""
    return torch.log_softmax(torch_logits(model, sequence).double(), -1).numpy()


def full(model, sequences):
    """The same of one of our own models, by way of its most probable tokens, all of them."""
    out = []
    for one in scorer(model).score_sequences(sequences, top=model.vocab_size):
        logprob = np.empty(one.top_id.shape, np.float64)
        np.put_along_axis(logprob, one.top_id.astype(int), one.top_logprob.astype(float), axis=1)
        out.append(logprob)
    return out


def kl(a, b):
    return (np.exp(a) * (a - b)).sum(axis=1)


def wanted(a, b, targets):
    """All measures of distributions whose logarithms are [n, V], from the definitions."""
    m = np.logaddexp(a, b) - np.log(2)
    every = {
        "kl": kl(a, b),
        "reverse_kl": kl(b, a),
        "js": (kl(a, m) + kl(b, m)) / 2,
        "reference_entropy": -(np.exp(b) * b).sum(axis=1),
        "reference_logprob": b[np.arange(len(b)), targets],
        "same_argmax": a.argmax(axis=1) == b.argmax(axis=1),
    }
    return {name: every[name] for name in MEASURES}


def measured(p, q, sequences):
    return scorer(paired(p, q)).score_sequences(sequences, measures=MEASURES)


def nudged(model, size):
    """The same model with each matrix moved a little."""
    other = copy.deepcopy(model)
    torch.manual_seed(11)
    with torch.no_grad():
        for value in other.parameters():
            value += size * value.std().nan_to_num(0) * torch.randn_like(value)
    return other


def pair_of_folders(tmp_path, kind, other):
    """A saved model and `other` of it, also saved."""
    p = saved(tmp_path / "p", kind, **CONFIGS[kind])
    q = other(p)
    q.save_pretrained(tmp_path / "q")
    return p, q


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_token_is_torchs(tmp_path, kind):
    p, q = pair_of_folders(
        tmp_path, kind, lambda _: torch_model(kind, torch_seed=8, **CONFIGS[kind])
    )
    got = measured(loaded(tmp_path / "p"), loaded(tmp_path / "q"), ragged())
    for sequence, one in zip(ragged(), got, strict=True):
        a, b = torch_logprobs(p, sequence), torch_logprobs(q, sequence)
        for name, value in wanted(a, b, sequence.targets).items():
            np.testing.assert_allclose(one.measures[name], value, atol=1e-4, rtol=0, err_msg=name)
        np.testing.assert_allclose(one.logprob, a[np.arange(len(a)), sequence.targets], atol=1e-4)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["gemma2", "qwen2", "gpt2", "llama"])
def test_a_model_that_is_nearly_the_same(tmp_path, kind):
    """Divergences of about 1e-4 nats to 1 in 1,000 of the texts' means; a difference of sums of
    float32 would be good to about 1e-6 nats."""
    p, q = pair_of_folders(tmp_path, kind, lambda model: nudged(model, 2e-3))
    got = measured(loaded(tmp_path / "p"), loaded(tmp_path / "q"), ragged())
    for sequence, one in zip(ragged(), got, strict=True):
        want = wanted(torch_logprobs(p, sequence), torch_logprobs(q, sequence), sequence.targets)
        assert want["kl"].max() < 1e-2
        for name in ("kl", "reverse_kl", "js"):
            np.testing.assert_allclose(
                one.measures[name].mean(), want[name].mean(), rtol=1e-3, err_msg=name
            )


@pytest.mark.slow
def test_a_model_against_its_int8_weights(originals):
    p = load(originals["qwen2"], dtype="float32")
    q = load(originals["qwen2"], dtype="float32", quantize="int8")
    assert_as_each_alone(p, q)


@pytest.mark.slow
def test_float32_against_bfloat16(originals):
    p, q = loaded(originals["llama"]), loaded(originals["llama"], dtype="bfloat16")
    got = assert_as_each_alone(p, q, atol=2e-3)
    assert 0 < np.concatenate([one.measures["kl"] for one in got]).max() < 0.1


@pytest.mark.slow
def test_two_families(originals):
    """Other widths, other layers, one vocabulary; p is the wider one, and then q."""
    p, q = loaded(originals["llama"]), loaded(originals["gpt2"])
    there, back = assert_as_each_alone(p, q), assert_as_each_alone(q, p)
    for one, other in zip(there, back, strict=True):
        np.testing.assert_allclose(one.measures["kl"], other.measures["reverse_kl"], rtol=1e-5)
        np.testing.assert_allclose(one.measures["js"], other.measures["js"], rtol=1e-5)


def assert_as_each_alone(p, q, atol=1e-4):
    """The scores of p are its own, and the measures those of both models' distributions."""
    got = measured(p, q, ragged())
    alone = scorer(p).score_sequences(ragged())
    for sequence, one, own, a, b in zip(
        ragged(), got, alone, full(p, ragged()), full(q, ragged()), strict=True
    ):
        np.testing.assert_allclose(one.logprob, own.logprob, atol=atol / 10)
        np.testing.assert_allclose(one.entropy, own.entropy, atol=atol / 10)
        for name, value in wanted(a, b, sequence.targets).items():
            np.testing.assert_allclose(one.measures[name], value, atol=atol, err_msg=name)
    return got


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["gemma2", "llama"])
def test_a_copy_differs_by_nothing(originals, kind):
    got = measured(loaded(originals[kind]), loaded(originals[kind]), ragged())
    for one in got:
        for name in ("kl", "reverse_kl", "js"):
            assert (one.measures[name] == 0).all(), name
        assert (one.measures["same_argmax"] == 1).all()
        assert (one.measures["reference_logprob"] == one.logprob).all()


@pytest.mark.slow
def test_a_split_model(originals, tmp_path):
    """Two devices along `fsdp` and two along `model`, on which the vocabulary is whole (it does
    not divide) and split."""
    saved(tmp_path / "even", "llama", vocab_size=VOCABULARY + 1)
    pairs = [(str(originals["llama"]), str(originals["gpt2"])), (str(tmp_path / "even"),) * 2]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.models.model_pair_on_devices", json.dumps(pairs)],
        capture_output=True, text=True, cwd=ROOT, env=with_devices(4), check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert [one["shape"] for one in report] == ["fsdp=2,model=2"] * 2
    for (p, q), one in zip(pairs, report, strict=True):
        dtype = "bfloat16" if p == q else "float32"
        want = measured(loaded(Path(p)), loaded(Path(q), dtype=dtype), ragged())
        for columns, scores in zip(one["scores"], want, strict=True):
            for name in MEASURES:
                np.testing.assert_allclose(
                    columns[name], scores.measures[name], atol=2e-3 if p == q else 2e-5
                )


def test_what_cannot_be_compared(originals, tmp_path):
    p = loaded(originals["llama"])
    with pytest.raises(InputError, match=f"has 99 columns of logits and --model {p.vocab_size}"):
        paired(p, dataclasses.replace(p, vocab_size=99))
    one, other = (dataclasses.replace(p, longer=(n, p.functions)) for n in (16, 32))
    with pytest.raises(InputError, match="change after 16 and after 32 tokens"):
        paired(one, other)
    assert paired(p, one).longer[0] == paired(one, one).longer[0] == 16
    with pytest.raises(ValueError, match="top is 3, expected 0: a pair of models"):
        scorer(paired(p, p)).score_sequences(ragged(), top=3)


def test_facts_of_a_pair(originals):
    p, q = loaded(originals["llama"]), loaded(originals["gpt2"])
    facts = CheckpointFacts(placeholders={3: "image_token_id"})
    short = dataclasses.replace(q, max_positions=5, checkpoint=facts)
    both = paired(p, short)
    assert both.max_positions == 5
    assert both.checkpoint.placeholders == {3: "image_token_id"}
    assert both.width == max(p.width, q.width)
    assert both.shares_text
    assert not paired(p, dataclasses.replace(q, shares_text=False)).shares_text
