"""`choose` and `perplexity` give the metrics of lm-evaluation-harness' own `hf` model."""

import numpy as np
import pytest

from jaxscore import evaluate
from tests.adapters.lm_eval.evaluated import by_hf, responses
from tests.adapters.lm_eval.folders import case
from tests.adapters.lm_eval.tasks import TASKS, metrics, task

pytestmark = pytest.mark.filterwarnings("ignore")  # those of its libraries

CHOICES = task(
    "chosen", "multiple_choice", doc_to_choice="{{a}}", doc_to_target="g", num_fewshot=2,
    metric_list=metrics("acc", "acc_norm", "acc_bytes", "acc_mutual_info"),
)  # fmt: skip


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["tiny-llama3", "tiny-gpt2"])
def test_choices(name, scorers, monkeypatch):
    monkeypatch.setitem(TASKS, "chosen", CHOICES)
    theirs = by_hf(case(name), {}, "chosen")
    samples = sorted(theirs["samples"]["chosen"], key=lambda one: one["doc_id"])
    items = [
        {
            "context": sample["arguments"][0][0],
            "options": [f" {text}" for text in sample["doc"]["a"]],
            "gold": sample["doc"]["g"],
        }
        for sample in samples
    ]
    # With a BOS their unconditional answer is ours after an empty premise.
    bos = name == "tiny-llama3"
    report = evaluate("choose", scorers(name), items, pmi_context="" if bos else "Answer:")
    want = [float(answer[0][0]) for answer in responses(theirs, "chosen")]
    got = [total for one in report.items for total in one["sum_logprob"] + alone(one) * bos]
    if not bos:
        want = [total for k, total in enumerate(want) if k % 8 < 4]
    assert got == pytest.approx(want, abs=1e-3, rel=1e-6)
    means, metric = report.summary["overall"], theirs["results"]["chosen"]
    assert {"acc_norm,none", "acc_mutual_info,none"} <= set(metric)
    rules = {"": "acc,none", "_norm": "acc_bytes,none"}
    for rule, name_of in (rules | ({"_pmi": "acc_mutual_info,none"} if bos else {})).items():
        chosen = [(one, one[f"choice{rule}"]) for one in report.items]
        assert np.mean([k == one["gold"] for one, k in chosen]) == metric[name_of]
        # Theirs knows the index of the right option alone, ours its text.
        right = [one["options"][k] == one["options"][one["gold"]] for one, k in chosen]
        assert means[f"acc{rule}"].mean == np.mean(right)


def alone(one):
    """Log-probabilities after the premise."""
    return [total - pmi for total, pmi in zip(one["sum_logprob"], one["pmi"] or [], strict=False)]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("name", "prefix"), [("tiny-llama3", None), ("tiny-gpt2", 0)])
def test_documents(name, prefix, scorers, monkeypatch):
    """Without the tokenizer's own BOS, which they would score after the one before a text."""
    args = {"max_length": 24, "add_bos_token": False}
    theirs = by_hf(case(name), args, "rolling")
    samples = sorted(theirs["samples"]["rolling"], key=lambda one: one["doc_id"])
    texts = [sample["doc"]["t"] for sample in samples]
    scorer = scorers(name)
    if prefix is not None:
        monkeypatch.setattr(scorer.encoder, "prefix", [prefix])
    report = evaluate("perplexity", scorer, texts, max_length=24)
    want = [float(answer[0]) for answer in responses(theirs, "rolling")]
    got = [one["sum_logprob"] for one in report.items]
    assert got == pytest.approx(want, abs=1e-3, rel=1e-6)
    assert any(one["n_windows"] > 1 for one in report.items)
    metric = theirs["results"]["rolling"]
    for name in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
        assert report.summary[name].mean == pytest.approx(metric[f"{name},none"], rel=1e-3)
