"""Choices against PyTorch's whole logits, by three rules, and what is said of them together."""

import functools
import json
import math

import numpy as np
import pytest
import torch
import transformers
from sklearn.metrics import brier_score_loss

from jaxscore import InputError, evaluate
from jaxscore.systems.choose import SYSTEM
from tests.conftest import CASES
from tests.hostile.inputs import TEXTS

pytestmark = pytest.mark.numeric

ITEMS = [
    {"id": "a", "context": "The cat", "options": [" sat on the mat", " ran", " été 🙂"], "gold": 2},
    {"context": "Oslo is in", "options": [" Norway", " Sweden and Denmark"], "gold": " Norway"},
    {"context": "One two", "options": [" three", " four", " five"], "gold": 0, "category": "n"},
    {"context": "Red or", "options": ["  blue", " blue"], "topic": "no gold"},
]


@functools.cache
def loaded(name):
    folder = CASES / "models" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return transformers.AutoTokenizer.from_pretrained(folder), model


def by_torch(name, context, option):
    """ln p(option | context) in float64, BOS first where the tokenizer writes one."""
    tokenizer, model = loaded(name)
    before, ids = (tokenizer(text)["input_ids"] for text in (context, context + option))
    assert ids[: len(before)] == before
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0].double()
    rows = torch.log_softmax(logits, -1)
    picked = rows[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return float(picked[len(before) - 1 :].sum())


def test_every_number_by_hand(scorers):
    report = evaluate("choose", scorers("tiny-llama3"), ITEMS, pmi_context="So")
    for item, got in zip(ITEMS, report.items, strict=True):
        sums = [by_torch("tiny-llama3", item["context"], o) for o in item["options"]]
        alone = [by_torch("tiny-llama3", "So", o) for o in item["options"]]
        n = [len(option.strip().encode()) for option in item["options"]]
        pmi = np.subtract(sums, alone)
        np.testing.assert_allclose(got["sum_logprob"], sums, atol=1e-3)
        np.testing.assert_allclose(got["pmi"], pmi, atol=1e-3)
        assert got["n_bytes"] == n
        assert got["choice"] == int(np.argmax(sums))
        assert got["choice_norm"] == int(np.argmax(np.divide(sums, n)))
        assert got["choice_pmi"] == int(np.argmax(pmi))
        p = np.exp(sums) / np.exp(sums).sum()
        np.testing.assert_allclose(got["probability"], p, atol=1e-4)
        if "gold" not in item:
            assert got["topic"] == "no gold"
            assert not {"acc", "brier", "gold"} & set(got)
            continue
        gold = got["gold"]
        assert item["options"][gold] == " Norway" or gold == item["gold"]
        for rule in ("", "_norm", "_pmi"):
            right = got[f"choice{rule}"] == gold
            assert got[f"acc{rule}"] is right
            chance = 1 / len(n)
            assert got[f"skill{rule}"] == pytest.approx((right - chance) / (1 - chance))
        truth = np.arange(len(n)) == gold
        assert got["brier"] == pytest.approx(brier_score_loss(truth, p), abs=1e-4)
    overall = report.summary["overall"]
    judged = report.items[:3]
    assert overall["acc"].mean == pytest.approx(np.mean([one["acc"] for one in judged]))
    assert overall["chance"].mean == pytest.approx((1 / 3 + 1 / 2 + 1 / 3) / 3)
    assert overall["brier"].mean == pytest.approx(np.mean([one["brier"] for one in judged]))
    assert [report.summary[name] for name in ("n_scored", "n_with_gold")] == [4, 3]
    assert {k: v["acc"].n for k, v in report.summary["by_category"].items()} == {
        "(none)": 2,
        "n": 1,
    }
    bins = report.to_dict()["calibration"]["bins"]
    assert sum(one["n"] for one in bins) == 8
    assert report.remarks == (["1 of 4 scored items say no gold option; they are in no accuracy"])


def test_an_option_with_the_text_of_the_gold_one_is_right(scorers):
    """Whichever of them is gold, the numbers are the same."""
    options = [" cat", " dog", " cat"]
    items = [{"context": "The", "options": options, "gold": gold} for gold in (0, 2)]
    only = [{"context": "The", "options": [" cat", " cat"], "gold": 1}]
    [one, other] = evaluate("choose", scorers("tiny-qwen2"), items, audit_noise=4).items
    assert {**one, "gold": 2, "id": 2} == other
    assert one["acc"] == (one["choice"] == 0)
    assert one["chance"] == 2 / 3
    assert one["skill"] == (1 if one["acc"] else -2)
    cat, dog, _ = one["probability"]
    assert one["brier"] == pytest.approx((2 * (cat - 0.5) ** 2 + dog**2) / 3)
    [certain] = evaluate("choose", scorers("tiny-qwen2"), only).items
    assert (certain["acc"], certain["chance"], certain["skill"]) == (True, 1.0, 1.0)
    assert certain["brier"] == pytest.approx(0)
    report = evaluate("choose", scorers("tiny-qwen2"), only)
    [filled] = [one for one in report.to_dict()["calibration"]["bins"] if one["n"]]
    assert filled["frequency"] == filled["mean_probability"] == 0.5


def test_ties_go_to_the_first_and_are_counted(scorers):
    items = [
        {"context": "The", "options": [" cat", " cat"], "gold": 1},
        {"context": "The", "options": [" dog", " cat", " dog"], "gold": 0},
    ]
    report = evaluate("choose", scorers("tiny-qwen2"), items)
    first, second = report.items
    assert (first["choice"], first["choice_norm"], first["choice_pmi"]) == (0, 0, 0)
    assert first["acc"] is True
    tied = second["choice"] == 0
    assert report.summary["ties"]["choice"] == 1 + tied
    assert "2 of 2 scored items have the same option more than once" in report.remarks[0]


def test_a_model_without_bos(scorers):
    """Nothing stands before the first token of an empty context or premise."""
    items = [{"context": "The", "options": [" a", " b"], "gold": 0}, {**ITEMS[0], "context": ""}]
    report = evaluate("choose", scorers("tiny-qwen2"), items, pmi_context="")
    first, second = report.items
    assert first["pmi"] is first["choice_pmi"] is first["acc_pmi"] is None
    assert isinstance(first["acc"], bool)
    assert "option 1: its first token has nothing before it" in second["error"]
    assert [name for name, _ in report.failures] == ["a"]
    assert report.summary["overall"]["acc_pmi"].mean is None
    assert "acc_pmi" not in report.headline
    assert "1 of 1 scored items have an option without a probability" in "".join(report.remarks)
    with_bos = evaluate("choose", scorers("tiny-llama3"), items, pmi_context="")
    assert all(one["pmi"] is not None for one in with_bos.items)


def test_bad_items_keep_their_place(scorers):
    long = {"id": "long", "context": " and" * 2000, "options": [" a", " b"], "gold": 0}
    report = evaluate("choose", scorers("tiny-qwen2"), [7, ITEMS[0], long, {"id": "x"}])
    assert [one["id"] for one in report.items] == [1, "a", "long", "x"]
    assert [bool(one.get("error")) for one in report.items] == [True, False, True, True]
    assert len(report.failures) == 3
    assert report.summary["overall"]["acc"].n == 1
    assert report.summary["overall"]["acc"].low is None


@pytest.mark.slow
def test_a_context_that_is_cut_says_so(scorers):
    long = {"id": "long", "context": " and" * 2000, "options": [" a", " b"], "gold": 0}
    [cut] = evaluate("choose", scorers("tiny-qwen2"), [long], truncate="left").items
    assert cut["truncated"][0] > 0
    assert "error" not in cut


def test_no_item_has_a_gold_option(scorers):
    report = evaluate("choose", scorers("tiny-qwen2"), [ITEMS[3]])
    assert report.headline == "1 item scored, none with a gold option"
    assert report.summary["overall"]["acc"].mean is None
    assert "1 item scored, none with a gold option." in report.markdown()


def test_rounding(scorers):
    report = evaluate("choose", scorers("tiny-qwen2"), ITEMS, audit_noise=4)
    spread = report.to_dict()["noise"]["spread"]["sum_logprob"]["largest"]
    for one in report.items:
        best, second = sorted(one["sum_logprob"], reverse=True)[:2]
        assert one["within_noise"] is (best - second <= 2 * spread)
        assert ("acc_within_noise" in one) is ("gold" in one)
    assert [one.n for one in report.decisions] == [4, 3]


def test_records_of_json_say_what_the_run_says(scorers):
    report = evaluate("choose", scorers("tiny-qwen2"), [*ITEMS, {"id": "x"}], audit_noise=4)
    records = json.loads(json.dumps(report.items))
    assert SYSTEM.summarize(records, report.chosen) == report.found
    assert report.found.failures == [("x", records[4]["error"])]


def test_two_runs_together_are_one(scorers):
    scorer = scorers("tiny-qwen2", reproducible=True)
    items = [{"id": k, **item} for k, item in enumerate(ITEMS)]
    whole = evaluate("choose", scorer, items)
    parts = [evaluate("choose", scorer, half) for half in (items[:1], items[1:])]
    together = [*parts[0].items, *parts[1].items]
    assert together == whole.items
    assert SYSTEM.summarize(together, whole.chosen) == whole.found
    assert (parts[0].facts + parts[1].facts).boundaries == whole.facts.boundaries


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"boundary": "upstream"}, "setting boundary is 'upstream', expected one of 'joint', 's"),
        ({"pmi_context": None}, "setting pmi_context is None, expected a text"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(InputError) as caught:
        evaluate("choose", None, ITEMS, **settings)
    assert message in str(caught.value)
    with pytest.raises(InputError, match="choose needs a Scorer"):
        evaluate("choose", None, ITEMS)


@pytest.mark.slow
def test_hostile_texts_in_a_report(scorers):
    texts = [one for one in TEXTS if one.strip() and len(one) < 200]
    items = [
        {
            "id": text,
            "context": text,
            "options": [text, f" {text}x"],
            "gold": k % 2,
            "category": text,
        }
        for k, text in enumerate(texts)
    ]
    report = evaluate("choose", scorers("tiny-llama3"), items, pmi_context=texts[2])
    page = report.markdown()
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert json.loads(report.json())["summary"]["n_scored"] == len(report.items)
    assert all(math.isfinite(value) for one in report.items for value in one["sum_logprob"])


def test_gold_counted_from_one_is_reported(scorers):
    """The model prefers the option before the one that is marked."""
    scorer = scorers("tiny-gpt2")
    plain = {"context": "The", "options": [" cat", " dog", " a b c d", " e f g h"]}
    [record] = evaluate("choose", scorer, [plain]).items
    best = record["choice"]
    options = [
        plain["options"][best],
        *(o for o in plain["options"] if o != plain["options"][best]),
    ]
    items = [{"context": "The", "options": options, "gold": gold} for gold in (1,) * 12]
    assert any("subtract 1" in text for text in evaluate("choose", scorer, items).remarks)
    right = [{**item, "gold": 0} for item in items]
    assert not any("subtract 1" in text for text in evaluate("choose", scorer, right).remarks)
    options = options[1:2] + options[:1] + options[2:]  # the best one is the second
    items = [{**item, "options": options} for item in items]
    assert not any("subtract 1" in text for text in evaluate("choose", scorer, items).remarks)


def test_an_index_beyond_the_options_says_that_gold_counts_from_one(scorers):
    items = [{"context": "Oslo is in", "options": [" a", " b"], "gold": gold} for gold in (1, 2)]
    report = evaluate("choose", scorers("tiny-qwen2"), items)
    assert [why.partition("; ")[2] for _, why in report.failures] == ["is it counted from 1?"]
    assert any("subtract 1" in text for text in report.remarks)
    report = evaluate("choose", scorers("tiny-qwen2"), [*items, {**items[0], "gold": 0}])
    assert not any("subtract 1" in text for text in report.remarks)
