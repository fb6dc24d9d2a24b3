"""Two checkpoints by name: what is refused, what is reported, and texts through both."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxscore import DivergenceScorer, InputError, evaluate
from jaxscore.plan.requests import SequenceScores
from jaxscore.systems.divergence.worst import worst_texts, worst_tokens
from jaxscore.text.result_assembly import DIVERGENCE_INFINITE, NOT_FINITE, assemble_scores
from jaxscore.text.tokenize_requests import TokenizedRequest
from jaxscore.text.tokenizer import tokenizer_difference
from jaxscore.text.tokenizer_files import load_tokenizer
from jaxscore.types.requests import Request
from tests.cli import adapters
from tests.cli.conftest import QWEN
from tests.conftest import CASES

MODELS = CASES / "models"


def changed_tokenizer(tmp_path, change, name="changed"):
    """A copy of the tiny qwen2 whose tokenizer.json `change` has altered."""
    folder = tmp_path / name
    shutil.copytree(QWEN, folder)
    held = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    change(held)
    (folder / "tokenizer.json").write_text(json.dumps(held), encoding="utf-8")
    return folder


def tokenizer(folder):
    return load_tokenizer(Path(folder))


def swapped(held):
    vocabulary = held["model"]["vocab"]
    first, second = list(vocabulary)[20:22]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def more_added(held):
    held["added_tokens"].append(held["added_tokens"][-1] | {"id": 5000, "content": "<other>"})


def without_a_normalizer(held):
    held["normalizer"] = None if held["normalizer"] else {"type": "NFKC"}


def with_a_bos(held):
    token = held["added_tokens"][0]
    held["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": token["content"], "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            token["content"]: {
                "id": token["content"], "ids": [token["id"]], "tokens": [token["content"]],
            }
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (swapped, "2 tokens of their vocabularies differ, the first one is id"),
        (more_added, "1 of their added tokens differ, the first one with id "),
        (without_a_normalizer, "their normalizer differs"),
        (with_a_bos, r"one puts the ids \[\] before a text and the other \[\d+\]"),
    ],
)
def test_other_tokenizers_are_refused_by_name(tmp_path, change, what):
    folder = changed_tokenizer(tmp_path, change)
    with pytest.raises(InputError, match=f"--reference {folder} have different tokenizers: {what}"):
        DivergenceScorer.from_pretrained(QWEN, str(folder))


def test_special_tokens_that_one_reads_as_letters_are_a_difference(tmp_path):
    folder = changed_tokenizer(tmp_path, lambda held: None)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"split_special_tokens": True}
    path.write_text(json.dumps(settings), encoding="utf-8")
    assert "split_special_tokens" in tokenizer_difference(tokenizer(QWEN), tokenizer(folder))


def test_what_moves_no_id_is_no_difference(tmp_path):
    def named(held):
        held["decoder"] = None
        held["added_tokens"][0]["special"] = not held["added_tokens"][0]["special"]

    folder = changed_tokenizer(tmp_path, named)
    assert tokenizer_difference(tokenizer(QWEN), tokenizer(folder)) is None
    one, other = tokenizer(MODELS / "tiny-gpt2"), tokenizer(MODELS / "tiny-llama3")
    assert tokenizer_difference(one, other) is not None
    assert tokenizer_difference(other, one) is not None


@pytest.mark.parametrize(
    "options",
    [{}, {"reference_dtype": "float32"}, {"dtype": "float32", "reference_dtype": "float32"}],
    ids=str,
)
def test_the_same_model_twice_is_refused(options):
    """Also where the settings are spelled in two ways: "auto" is float32 on a CPU."""
    with pytest.raises(InputError, match="the same model with the same settings"):
        DivergenceScorer.from_pretrained(QWEN, str(MODELS / "../models/tiny-qwen2"), **options)


@pytest.mark.slow
def test_a_copy_in_another_folder_is_compared_and_told(tmp_path):
    shutil.copytree(QWEN, tmp_path / "copy")
    source = DivergenceScorer.from_pretrained(QWEN, str(tmp_path / "copy"), batch_tokens=128)
    report = evaluate("divergence", source, TEXTS)
    assert report.summary["kl"].mean == report.summary["kl_percentiles"]["max"] == 0
    assert worst_tokens(report.records) == worst_texts(report.records) == []
    assert "the same weights and settings" in report.markdown()


def test_only_a_pair_is_compared(scorers):
    with pytest.raises(InputError, match="source that is Scorer, but divergence needs a Divergenc"):
        evaluate("divergence", scorers("tiny-qwen2"), ["a"])


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """The tiny qwen2 against itself with an adapter."""
    folder = adapters.written(tmp_path_factory.mktemp("lora") / "adapter")
    return DivergenceScorer.from_pretrained(QWEN, QWEN, reference_lora=folder, batch_tokens=128)


TEXTS = [("The cat", " sat down."), ("The cat", " ran away"), "The cat", ("a", "")]


def full(scorer):
    """ln p of every column at each scored token of each text, float64, of one model."""
    out = []
    for one in scorer.score(TEXTS, top=scorer.model.vocab_size):
        if one.top is None:
            out.append(np.zeros((0, scorer.model.vocab_size)))
            continue
        known = one.scored
        logprob = np.empty((known.sum(), scorer.model.vocab_size))
        values = one.top.logprob[known].astype(float)
        np.put_along_axis(logprob, one.top.id[known].astype(int), values, axis=1)
        out.append(logprob)
    return out


@pytest.mark.slow
def test_an_adapter_against_its_base(adapted, scorers):
    own = full(scorers("tiny-qwen2"))
    lora = adapted._origin_of_reference[3]
    other = full(scorers("tiny-qwen2", lora=str(lora)))
    report = evaluate("divergence", adapted, TEXTS)
    for item, a, b in zip(report.items, own, other, strict=True):
        if "error" in item:
            assert not len(a)
            continue
        p = np.exp(a)
        kl, cross = (p * (a - b)).sum(axis=1), -(p * b).sum(axis=1)
        got = [value for value in item["kl"] if value is not None]
        np.testing.assert_allclose(got, kl, atol=1e-4)
        assert len(item["kl"]) == item["n_tokens"] == len(item["tokens"])
        if len(kl):
            assert item["mean_kl"] == pytest.approx(kl.mean(), abs=1e-4)
            assert item["mean_cross_entropy"] == pytest.approx(cross.mean(), abs=1e-4)
            of_p, of_q = -item["mean_logprob"], -item["mean_reference_logprob"]
            assert item["binoculars"] == pytest.approx(of_p / cross.mean(), rel=1e-4)
            assert item["binoculars_upstream"] == pytest.approx(of_q / cross.mean(), rel=1e-4)
            same = (a.argmax(axis=1) == b.argmax(axis=1)).mean()
            assert item["same_argmax_share"] == pytest.approx(same)
        else:
            assert item["mean_kl"] is item["binoculars"] is item["perplexity"] is None
    assert report.items[2]["kl"][0] is None  # nothing stands before the first token
    described = adapted.describe()
    assert described["reference_lora"] == str(lora)
    assert "lora" not in described
    assert adapted.about["reference_model"] != adapted.about["model"]


@pytest.mark.slow
def test_results_of_one_model_are_its_own(adapted, scorers):
    for one, own in zip(adapted.score(TEXTS), scorers("tiny-qwen2").score(TEXTS), strict=True):
        np.testing.assert_allclose(one.logprob, own.logprob, atol=1e-5)
        assert list(own.measures) == []
    [few] = adapted.score(TEXTS[:1], measures=["kl"])
    assert list(few.measures) == ["kl"]


def test_it_writes_no_text(adapted):
    with pytest.raises(InputError, match="generates no text"):
        adapted.generate("The cat")


@pytest.mark.parametrize(
    ("value", "why"), [(np.inf, DIVERGENCE_INFINITE), (np.nan, NOT_FINITE), (0.5, None)]
)
def test_an_infinite_divergence_fails_its_text_alone(scorers, value, why):
    """Self-certainty is infinite where both models rule a token out, which is no fault here."""
    source = scorers("tiny-qwen2").encoder
    window, scores = [], []
    for k, (context, text) in enumerate(TEXTS[:2]):
        request = Request(k, context, text)
        [sequences] = source.encode([request])
        window.append((request, TokenizedRequest(sequences, 0, None)))
        n = sequences[0].n_scored
        one = np.full(n, 0.5, np.float32)
        kl = np.full(n, value if k else 0.5, np.float32)
        scores.append(SequenceScores(-one, one, one + np.inf, one > 1, measures={"kl": kl}))
    good, bad = assemble_scores(window, scores, source)
    assert good.error is None
    assert bad.error == why
