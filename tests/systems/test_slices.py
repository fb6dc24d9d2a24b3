"""`by`: the means of each value agree with PyTorch, and with a run over the items of the value."""

import json

import pytest

from jaxscore import DivergenceScorer, InputError, evaluate
from jaxscore.analysis.bootstrap import Estimate
from tests.conftest import CASES

pytestmark = pytest.mark.numeric

CASE = json.loads((CASES / "slices.json").read_text("utf-8"))  # of PyTorch
TEXTS = CASE["items"]
REQUESTS = [{**item, "continuation": item["text"]} for item in TEXTS]
NAMES = {  # names of the case -> ours
    "mean_logprob_micro": "mean_logprob",
    "mean_of_items_mean_logprob": "text_mean_logprob",
    "mean_of_items_sum_logprob": "sum_logprob",
    "bits_per_byte": "bits_per_byte",
    "perplexity": "perplexity",
}


def compared(expected, ours):
    """(expected, ours) of each number that ours has."""
    for name, own in NAMES.items():
        if own in ours and name in expected:
            number = ours[own]
            yield expected[name], number.mean if isinstance(number, Estimate) else number


@pytest.mark.parametrize(("system", "items"), [("perplexity", TEXTS), ("score", REQUESTS)])
def test_every_number_agrees_with_torch(scorers, system, items):
    report = evaluate(system, scorers(CASE["model"]), items, by=["topic", "lang"])
    assert list(report.slices) == list(CASE["by"])
    for field, expected in CASE["by"].items():
        table = report.slices[field]
        assert table["values"].keys() == expected["values"].keys()
        for value, numbers in expected["values"].items():
            ours = table["values"][value]
            assert (ours["n_items"], ours["n_scored"]) == (numbers["n_items"], numbers["n_tokens"])
            assert ours.get("n_bytes", numbers["n_bytes"]) == numbers["n_bytes"]
            for want, got in compared(numbers, ours):
                assert got == pytest.approx(want, rel=1e-4)
        pairs = list(compared(expected["macro"], table["macro"]))
        assert len(pairs) == (3 if system == "perplexity" else 4)
        for want, got in pairs:
            assert got == pytest.approx(want, rel=1e-4)
        for want, got in compared(CASE["all"], table["all"]):
            assert got == pytest.approx(want, rel=1e-4)
    [remark] = [line for line in report.remarks if "--by" in line]
    assert remark.startswith("field 'topic' of --by: missing in 1 of 8 ")


def test_a_value_has_the_numbers_of_a_run_over_its_items(scorers):
    scorer = scorers("tiny-llama3")
    for system, items, own in (
        ("perplexity", TEXTS, ("bits_per_byte", "perplexity", "bits_per_word")),
        ("score", REQUESTS, ("mean_logprob",)),
    ):
        values = evaluate(system, scorer, items, by=["topic"]).slices["topic"]["values"]
        sea = evaluate(system, scorer, [i for i in items if i.get("topic") == "sea"])
        for name in own:
            want, got = sea.summary[name], values["sea"][name]
            if isinstance(want, float):
                want, got = Estimate(got.n, want, got.low, got.high), got
            for bound in ("mean", "low", "high"):
                assert getattr(got, bound) == pytest.approx(getattr(want, bound), abs=1e-4)


def test_choose_has_the_numbers_of_its_own_categories(scorers):
    case = json.loads((CASES / "choose.json").read_text("utf-8"))
    items = [{**item, "kind": item["category"]} for item in case["items"]]
    report = evaluate("choose", scorers("tiny-qwen2"), items, by=["kind", "category"])
    categories = report.summary["by_category"]
    assert report.slices["kind"] == report.slices["category"]
    for name, numbers in report.slices["kind"]["values"].items():
        for mean in ("acc", "acc_norm", "acc_pmi", "chance", "gold_bpb", "brier"):
            assert numbers[mean] == categories[name][mean]


@pytest.mark.slow
def test_divergence_has_the_numbers_of_its_summary():
    path = str(CASES / "models/tiny-qwen2")
    with DivergenceScorer.from_pretrained(path, path, reference_dtype="bfloat16") as pair:
        report = evaluate("divergence", pair, REQUESTS, by=["lang"])
    numbers, summary = report.slices["lang"]["all"], report.summary
    for name, own in (
        ("kl", "mean_kl"), ("js", "mean_js"), ("same_argmax", "same_argmax_share"),
        ("perplexity", "perplexity"), ("reference_perplexity", "reference_perplexity"),
    ):  # fmt: skip
        for bound in ("mean", "low", "high"):
            got, want = (getattr(each, bound) for each in (numbers[own], summary[name]))
            assert got == pytest.approx(want)


def test_gains_are_sliced_per_token(scorers):
    items = [{**item, "context": "It is said:"} for item in REQUESTS]
    report = evaluate("score", scorers("tiny-llama3"), items, by=["lang"], against="")
    table = report.slices["lang"]
    assert table["all"]["mean_gain"].mean == pytest.approx(report.summary["mean_gain"])
    assert table["all"]["ifd"].mean == pytest.approx(report.summary["mean_ifd"])


def test_the_json_report_has_the_slices_and_the_records_none(scorers):
    report = evaluate("score", scorers("tiny-llama3"), REQUESTS, by=["topic"])
    data = json.loads(report.json())
    assert data["slices"]["topic"]["values"]["sea"]["n_items"] == 3
    assert data["settings"]["by"] == ["topic"]
    assert "## By topic" in report.markdown()
    plain = evaluate("score", scorers("tiny-llama3"), REQUESTS)
    assert "slices" not in json.loads(plain.json())
    assert plain.items == report.items


@pytest.mark.parametrize(("by", "message"), [(["topc"], "is it topic"), ("topic", "a list of")])
def test_a_wrong_field_is_refused_before_anything_is_scored(by, message):
    with pytest.raises(InputError, match=message):
        evaluate("score", None, REQUESTS, by=by)
