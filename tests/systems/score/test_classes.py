"""Masses of classes of tokens and corrected words, as PyTorch and minicons compute them."""

import json
import math
import re

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from jaxscore import InputError, Scorer, evaluate
from jaxscore.analysis.text_measures import corrected_words
from jaxscore.systems.score import Settings
from jaxscore.systems.score.measures import NO_END
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.token_classes import word_border_ids
from tests.conftest import CASES

pytestmark = pytest.mark.numeric

CASE = json.loads((CASES / "classes.json").read_text("utf-8"))
ITEMS, EXPECTED = CASE["items"], CASE["expected"]
TEXTS = [(item["context"], item["continuation"]) for item in ITEMS]


def known(values):
    return np.array([math.nan if value is None else value for value in values])


@pytest.mark.parametrize("model", EXPECTED)
def test_masses_agree_with_torch(scorers, model):
    expected = EXPECTED[model]
    classes = expected["classes"] | {"words": "words", "eos": "eos"}
    report = evaluate("score", scorers(model), ITEMS, classes=classes)
    for record in report.items:
        mass = expected["texts"][record["id"]]["mass"]
        for name in classes:
            want = known(mass[name])
            np.testing.assert_allclose(known(record[f"mass_{name}"]), want, atol=1e-4)
            assert record[f"mean_mass_{name}"] == pytest.approx(np.nanmean(want), abs=1e-4)
    n = sum(record["n_scored"] for record in report.items)
    total = sum(record["mean_mass_words"] * record["n_scored"] for record in report.items)
    assert report.summary["mean_mass_words"] == pytest.approx(total / n)
    assert f"class eos {report.summary['mean_mass_eos']:.4f}" in report.headline


@pytest.mark.parametrize("model", EXPECTED)
@pytest.mark.parametrize("border", ["any", "space"])
def test_corrected_words_agree_with_torch_and_minicons(scorers, model, border):
    plain = evaluate("score", scorers(model), ITEMS, unit="word")
    report = evaluate("score", scorers(model), ITEMS, unit="word", word_correction=border)
    for record, before in zip(report.items, plain.items, strict=True):
        want = EXPECTED[model]["texts"][record["id"]]
        corrected = record.pop("word_logprob_corrected")
        assert record["words"] == want["words"]
        np.testing.assert_allclose(known(corrected), known(want[border]), atol=1e-4)
        np.testing.assert_allclose(known(record["logprob"]), known(before["logprob"]), atol=1e-5)
        assert record["tokens"] == before["tokens"]
        if border == "space" and "minicons" in want:
            # A word next to a newline has no border for minicons.
            is_inside = np.abs(known(want["space"]) - known(want["minicons"])) < 1e-3
            assert is_inside.mean() > 0.7
            np.testing.assert_allclose(
                known(corrected)[is_inside], known(want["minicons"])[is_inside], atol=1e-4
            )


def test_border_ids_are_those_of_the_cases(scorers):
    for model, expected in EXPECTED.items():
        scorer = scorers(model)
        ids = word_border_ids(scorer.encoder, scorer.model.vocab_size)
        assert sorted([*ids, *expected["classes"]["eos"]]) == expected["classes"]["words"]


def test_a_word_is_the_sum_of_its_tokens_with_the_borders_around_it():
    logprob, mass = np.array([np.nan, -1, -2, -3]), np.array([np.nan, -0.5, -0.25, -4, -8])
    words = [(0,), (1, 2), (3,)]
    assert corrected_words(logprob, mass, words, starts_text=True) == [None, -6.5, -7.0]
    logprob[0] = -7
    assert corrected_words(logprob, mass, words, starts_text=True)[0] == -7.5
    mass[0] = -0.125
    assert corrected_words(logprob, mass, words, starts_text=False)[0] == -7.375
    assert corrected_words(logprob[:0], mass[:1], [], starts_text=True) == []


def test_last_word_of_a_text_that_fills_the_positions_has_no_correction(scorers):
    scorer = scorers("tiny-gpt2")
    most = scorer.model.max_positions
    texts = [f"The{' was' * most}", "The cat"]
    assert scorer.score(texts)[0].n_tokens == most + 1
    report = evaluate("score", scorer, texts, unit="word", word_correction="any")
    full, short = (record["word_logprob_corrected"] for record in report.items)
    assert full[-1] is None
    assert None not in (full[-2], short[-1])
    assert NO_END.format(n=1) in report.remarks


@pytest.mark.parametrize("settings", [{"stride": 16, "max_length": 32}, {"truncate": "left"}])
def test_windows_and_truncation_leave_masses_and_corrections(scorers, settings):
    scorer = scorers("tiny-llama3")
    options = {"unit": "word", "word_correction": "any", "classes": {"eos": "eos"}}
    text = {"context": "A b", "continuation": " The cat sat on the mat." * 12}
    whole = evaluate("score", scorer, [text], **options).items[0]
    got = evaluate("score", scorer, [text], **options, **settings).items[0]
    assert len(got["word_logprob_corrected"]) == len(got["words"]) == 72
    assert None not in got["word_logprob_corrected"]
    if "truncate" in settings:  # which nothing needs here
        assert got == whole


def test_text_that_no_window_scores_has_nulls(scorers):
    options = {"classes": {"x": [1]}, "measures": ["rank", "top_k"], "score_from": "half"}
    texts = ["A b", " The cat sat on the mat." * 12]
    short, long = evaluate("score", scorers("tiny-llama3"), texts, max_length=16, **options).items
    nulls = [None] * short["n_tokens"]
    assert short["mass_x"] == short["rank"] == short["top_id"] == short["top_token"] == nulls
    assert short["mean_mass_x"] is None
    assert long["mean_mass_x"] < 0


def test_masses_after_another_context_are_left_out(scorers):
    options = {"classes": {"eos": "eos"}, "boundary": "separate"}
    records = evaluate("score", scorers("tiny-llama3"), ITEMS, against="A dog", **options).items
    plain = evaluate("score", scorers("tiny-llama3"), ITEMS, **options).items
    for record, other in zip(records, plain, strict=True):
        np.testing.assert_allclose(record["mass_eos"], other["mass_eos"], atol=1e-5)
        assert "gain" in record


def test_summary_only_keeps_the_means(scorers):
    [record] = evaluate(
        "score", scorers("tiny-llama3"), ["a b c"], classes={"x": [1, 2]}, summary_only=True
    ).items
    assert "mass_x" not in record
    assert record["mean_mass_x"] < 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": {"x": []}}, "class x: contains no ids, expected at least one"),
        ({"classes": {"x y": [1]}}, "'x y=1', expected NAME=IDS"),
        ({"classes": ["x=1", "x=2"]}, "--class: x, x, expected each name once"),
        ({"classes": "x=1"}, "setting classes is a string, expected a list of strings"),
        ({"word_correction": "any"}, "only matters with --unit word"),
        ({"word_correction": "all", "unit": "word"}, "'all', expected one of"),
        (
            {"word_correction": "any", "unit": "word", "leading_blank": "skip"},
            "leave out --leading-blank or --word-correction",
        ),
        (
            {"word_correction": "any", "unit": "word", "score_from": "half"},
            "leave out --score-from or --word-correction",
        ),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Settings(**settings)


def test_ids_beyond_the_vocabulary_are_refused_with_its_size(scorers):
    with pytest.raises(InputError, match=r"class x has id 1208, expected 0 to 1207: .* of 1208"):
        evaluate("score", scorers("tiny-llama3"), ["a"], classes={"x": [3, 1208]})


def words_as_tokens(texts, decoder):
    vocabulary = {text: k for k, text in enumerate(texts)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=texts[0]))
    backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend, name_or_path="letters")


@pytest.mark.parametrize(
    "tokenizer",
    [
        words_as_tokens([*"abcdefghijklmnopqrstuvwxyz .,\n"], decoders.Fuse()),
        words_as_tokens(["the▁", "cat▁", "sat▁", "▁", "a"], decoders.Replace("▁", " ")),
    ],
    ids=["letters", "spaces after words"],
)
def test_tokenizer_whose_tokens_do_not_begin_words_is_refused(tokenizer):
    with pytest.raises(InputError, match=r"tokenizer of letters has 0 tokens of \d+ that b"):
        word_border_ids(TextEncoder(tokenizer), len(tokenizer))


def test_classes_by_python_are_the_measures_of_a_result(scorers):
    scorer: Scorer = scorers("tiny-llama3")
    [scored] = scorer.score([("The cat", " sat")], classes={"all": range(1208)}, ends=True)
    np.testing.assert_allclose(scored.measures["mass_all"], 0, atol=1e-5)
    assert scored.end == {"mass_all": pytest.approx(0, abs=1e-5)}
    assert scored.n_tokens == len(scored.measures["mass_all"])
    [plain] = scorer.score([("The cat", " sat")], classes={"all": range(1208)})
    assert plain.end == {}
