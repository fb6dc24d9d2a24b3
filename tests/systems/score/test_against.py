"""A continuation after two contexts: each side is a request of its own, the numbers follow."""

import json
import math

import numpy as np
import pytest

from jaxscore import InputError, Request, Scorer, Scoring, evaluate
from jaxscore.report.html.strips import MISSING
from jaxscore.systems.score import Settings
from jaxscore.systems.score.against import NO_GAIN, OTHER_TOKENS, gain_fields
from jaxscore.types.results import ScoredRequest, failed
from tests.conftest import CASES, MODELS

pytestmark = pytest.mark.numeric

CASE = json.loads((CASES / "against.json").read_text("utf-8"))  # of PyTorch
ITEMS = CASE["items"]
SUMS = ["sum_gain", "gain_bits", "ifd", "ifd_ppl", "long_ppl", "n_long", "n_both"]
THRESHOLDS = {"default": {}, "0.5 -5": {"long_gain": 0.5, "long_logprob": -5.0}}


def rows_of(model, boundary):
    """The expected values: those of `separate` are listed where they are others."""
    expected = CASE["expected"][model]
    return expected["joint"] | expected[boundary]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("boundary", ["joint", "separate"])
def test_every_number_agrees_with_torch(scorers, model, boundary):
    rows = rows_of(model, boundary)
    for name, settings in THRESHOLDS.items():
        report = evaluate(
            "score", scorers(model), ITEMS, against_field="other", boundary=boundary, **settings
        )
        for record in report.items:
            row = rows[record["id"]]
            logprob, before = (np.array(row[key], float) for key in ("logprob", "against_logprob"))
            for key, want in (
                ("logprob", logprob), ("against_logprob", before), ("gain", logprob - before),
            ):  # fmt: skip
                np.testing.assert_allclose(np.array(record[key], float), want, atol=1e-4)
            n = row["n_both"]
            assert record["n_both"] == n
            assert record["sum_gain"] == pytest.approx(row["sum_gain"], abs=1e-4 * n)
            assert record["gain_bits"] == pytest.approx(row["gain_bits"], abs=2e-4 * n)
            assert record["ifd"] == pytest.approx(row["ifd"], rel=1e-4)
            assert record["ifd_ppl"] == pytest.approx(row["ifd_ppl"], rel=1e-4)
            n_long, long_ppl = row["long_ppl"][name]
            assert record["n_long"] == n_long
            assert record["long_ppl"] == (long_ppl and pytest.approx(long_ppl, rel=1e-4))
            assert record["other"] == next(i["other"] for i in ITEMS if i["id"] == record["id"])


def test_a_gain_is_the_difference_of_two_calls(scorers):
    scorer = scorers("tiny-llama3")
    texts = [("The cat", " sat on the mat"), ("", "The cat ran"), ("A b\n", "c")]
    report = evaluate("score", scorer, texts, against="A dog")
    first = scorer.score(texts)
    second = scorer.score([("A dog", continuation) for _, continuation in texts])
    for record, one, other in zip(report.items, first, second, strict=True):
        if one.tokens != other.tokens:
            assert record["error"] == OTHER_TOKENS
            continue
        assert record["sum_logprob"] == pytest.approx(one.sum_logprob, abs=1e-4)
        gain = one.sum_logprob - other.sum_logprob
        assert record["sum_gain"] == pytest.approx(gain, abs=1e-4)
        assert record["gain_bits"] == pytest.approx(gain / math.log(2), abs=1e-4)
        assert record["ifd"] == pytest.approx(one.sum_logprob / other.sum_logprob, rel=1e-4)
        assert record["ifd_ppl"] == pytest.approx(one.perplexity / other.perplexity, rel=1e-4)
    summary = report.summary
    good = [record for record in report.items if "error" not in record]
    total, n = (sum(record[name] for record in good) for name in ("sum_gain", "n_both"))
    assert (summary["n_both"], summary["n_ifd"]) == (n, len(good))
    assert summary["mean_gain"] == pytest.approx(total / n)
    assert summary["mean_ifd"] == pytest.approx(np.mean([record["ifd"] for record in good]))
    assert summary["ifd_below_1"] == np.mean([record["ifd"] < 1 for record in good])
    assert f"gain by the context {total / n:.4f} nats per token" in report.headline


def test_other_tokens_after_the_other_context_fail_by_name(scorers):
    """A space at the end of a context joins the first word of the continuation."""
    items = [{"context": "The cat ", "continuation": "sat"}, ("The cat", " sat")]
    report = evaluate("score", scorers("tiny-llama3"), items, against="")
    assert [record.get("error") for record in report.items] == [OTHER_TOKENS, None]
    assert "--boundary separate" in OTHER_TOKENS
    alone = evaluate("score", scorers("tiny-llama3"), items, against="", boundary="separate")
    assert not alone.failures


def test_a_first_token_without_a_context_has_no_gain(scorers):
    items = [("The cat", " sat down"), ("The cat", " s"), ("", "The cat")]
    scorer = scorers("tiny-qwen2")  # without a BOS
    report = evaluate("score", scorer, items, against="", boundary="separate")
    first, single, _ = report.items
    assert first["gain"][0] is first["against_logprob"][0] is None
    assert first["n_both"] == first["n_scored"] - 1 > 0
    assert [single[name] for name in SUMS] == [None] * 5 + [0, 0]
    assert single["n_scored"] == 1
    assert NO_GAIN.format(n=2, total=3) in report.remarks
    end = scorer.encoder.tokenizer.eos_token_id
    path = str(CASES / "models/tiny-qwen2")
    with Scorer.from_pretrained(path, dtype="float32", prefix_token_id=end) as scorer:
        report = evaluate("score", scorer, items, against="")
    assert [record["n_both"] for record in report.items] == [
        len(record["tokens"]) for record in report.items
    ]
    assert report.items[2]["sum_gain"] == pytest.approx(0, abs=1e-5)
    assert report.remarks == []


def test_both_contexts_share_their_beginning(scorers):
    scorer = scorers("tiny-qwen2")
    question = "Question: where was Sana born? " * 5
    items = [(question + f"Fact {k}. Answer:", " Merrow") for k in range(3)]
    before = scorer.engine.statistics.facts()["counts"]
    report = evaluate("score", scorer, items, against=question + "Answer:", audit_boundary=False)
    counts = {
        name: n - before[name] for name, n in scorer.engine.statistics.facts()["counts"].items()
    }
    assert not report.failures
    assert counts["texts"] == 6
    encode = scorer.encoder.tokenizer.encode
    paths = {
        tuple(ids[:n])
        for context, continuation in items
        for text in (context + continuation, question + "Answer:" + continuation)
        for ids in [encode(text)]
        for n in range(1, len(ids))  # the last token is not read
    }
    assert counts["tokens_unique"] == len(paths)
    assert counts["tokens_given"] > 4 * len(paths)


def test_audits_count_an_item_once(scorers):
    items = [("The cat ", "sat"), ("The cat", " sat down")]
    alone = evaluate("score", scorers("tiny-llama3"), items)
    report = evaluate("score", scorers("tiny-llama3"), items, against="A dog ")
    assert report.facts.boundaries == alone.facts.boundaries
    assert report.facts.counts["joints.n_requests"] == 2
    both = evaluate(
        "score", scorers("tiny-llama3"), items, against="", boundary="separate", audit_noise=9
    )
    assert both.facts.noise.n_requests == 2


def test_prompts_hold_both_contexts(scorers):
    scorer = scorers("tiny-qwen2")
    items = [{"context": "Where is Oslo?", "continuation": "Norway", "other": "Who?"}]
    shots = [{"context": "Where is Rome?", "continuation": " Italy"}]
    for settings in (
        {"apply_chat_template": True},
        {"system_prompt": "Be brief.", "fewshot": shots},
        {"answer_separator": " "},
    ):
        [record] = evaluate("score", scorer, items, against_field="other", **settings).items
        [other] = evaluate(
            "score", scorer, [items[0] | {"context": items[0]["other"]}], **settings
        ).items
        np.testing.assert_allclose(record["against_logprob"], other["logprob"], atol=1e-4)
    [record] = evaluate("score", scorer, items, against="", answer_separator=" ").items
    assert record["tokens"][0].startswith("\u0120")  # the same text after no context
    [record] = evaluate("score", scorer, items, against=" ", system_prompt="S.").items
    assert "its context is blank" in record["error"]


def test_an_item_without_the_field_fails_alone(scorers):
    items = [
        {"continuation": "The cat", "other": "x"},
        {"continuation": "The cat", "others": "x"},
        {"continuation": "The cat", "other": 3},
        Request("r", "", "The cat"),
    ]
    report = evaluate("score", scorers("tiny-llama3"), items, against_field="other")
    assert [record.get("error") for record in report.items] == [
        None,
        "against_field: no field \"other\", expected a string; there are 'others'",
        'against_field: field "other" is a whole number, expected a string',
        'against_field: no field "other", expected a string; there are none',
    ]
    with pytest.raises(InputError, match="no field \"othr\", expected a string; there are 'other'"):
        evaluate("score", scorers("tiny-llama3"), items[:1], against_field="othr")


def test_settings_that_exclude_each_other_are_refused():
    with pytest.raises(InputError, match="against and against_field: both give the other context"):
        Settings(against="", against_field="x")
    with pytest.raises(InputError, match="against_field is '', expected the name of a field"):
        Settings(against_field="")
    with pytest.raises(InputError, match=r"long_gain is 1\.0, which only matters with --against"):
        Settings(long_gain=1.0)


def scored(logprob, **more):
    values = np.array(logprob, np.float32)
    n = len(values)
    fields = {"token_ids": np.arange(n, dtype=np.int32), "tokens": list("abcdef"[:n])}
    blank = {"id": "", "entropy": values, "self_certainty": values, "greedy": np.zeros(n, bool)}
    return ScoredRequest(logprob=values, **fields, **blank, **more)


def test_fields_of_extreme_texts():
    settings = Settings(against="")
    certain = gain_fields(scored([-1.0]), scored([0.0]), settings)
    assert (certain["ifd"], certain["sum_gain"]) == (None, -1.0)
    needed = gain_fields(scored([-1.0, -3.0, -1.0]), scored([-4.0, -9.0, -2.0]), settings)
    assert (needed["n_long"], needed["long_ppl"]) == (1, pytest.approx(math.e))
    never = gain_fields(scored([-1.0, -np.inf]), scored([-np.inf, -np.inf]), settings)
    assert math.isnan(never["sum_gain"])
    cut = gain_fields(scored([-1.0]), scored([-2.0], truncated=3), settings)
    assert cut["against_truncated"] == 3
    assert gain_fields(scored([-1.0]), failed("", "too long"), settings) == {
        "error": "after the other context: too long"
    }


def test_the_page_has_the_gain_of_tokens_and_texts(scorers):
    report = evaluate("score", scorers("tiny-gpt2"), ITEMS, against_field="other")
    document = report.document
    assert [card.title for card in document.cards][-2:] == ["Gain by the context", "IFD below 1"]
    assert "Gain of a request by its context" in [chart.title for chart in document.charts]
    titles = [column.title for column in document.items.columns]
    assert {"Gain, bits", "IFD", "LongPPL"} < {*titles}
    strips = document.items.strips
    assert strips.metrics[0].key == "gain"
    gains = [gain for record in report.items for gain in record["gain"]]
    assert len(strips.tokens.more["gain"]) == len(gains)
    assert np.isnan(strips.tokens.more["gain"]).sum() == gains.count(None) == 2
    assert strips.tokens.numbers["logprob"].tolist().count(MISSING) == 1
    assert "Gain by the context" in report.html()
    short = evaluate("score", scorers("tiny-gpt2"), ITEMS, against_field="other", summary_only=True)
    assert not {"gain", "against_logprob"} & {*short.items[0]}
    for record, whole in zip(short.items, report.items, strict=True):
        assert [record[name] for name in SUMS] == [whole[name] for name in SUMS]
    assert "IFD below 1" in short.html()


def test_columns_of_a_table():
    scoring = Scoring("demo", "score", against_field="other", summary_only=True)
    columns = {name: [item[name] for item in ITEMS] for name in ("context", "continuation")}
    columns["other"] = [item["other"] for item in ITEMS]
    out = scoring(columns)
    assert len(out["ifd"]) == len(out["sum_gain"]) == len(ITEMS)
    assert "gain" not in out
