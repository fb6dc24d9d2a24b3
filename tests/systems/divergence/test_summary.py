"""Means, percentiles and the worst tokens of texts, against NumPy on all tokens together."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.analysis.bootstrap import Estimate, estimate
from jaxscore.io.json_output import json_text
from jaxscore.systems.divergence import merge_lists
from jaxscore.systems.divergence.summary import PER_TOKEN, Totals, Worst, means_of, values_of
from jaxscore.types.results import ScoredRequest


def scored(id, n, seed, *, first=False):
    """A result of n tokens with random numbers; `first` has nothing before its first token."""
    draw = np.random.default_rng(seed)

    def column(scale=1.0):
        out = (scale * draw.exponential(size=n)).astype(np.float32)
        out[: int(first)] = np.nan
        return out

    measures = {name: column(0.1) for name in ("kl", "reverse_kl", "js", "reference_entropy")}
    measures["reference_logprob"] = -column()
    measures["same_argmax"] = np.where(np.isnan(measures["kl"]), np.nan, draw.integers(0, 2, n))
    ids = np.arange(n, dtype=np.int32)
    greedy = np.zeros(n, bool)
    return ScoredRequest(
        id, ids, [f"t{k}" for k in ids], -column(), column(), column(), greedy, measures=measures
    )


def totals(results):
    out = Totals(lambda ids: "".join(f"<{id}>" for id in ids))
    for one in results:
        values = values_of(one)
        out.add("ctx ", one, values, means_of(values, one.n_tokens))
    return out


def test_worst_tokens_of_two_runs_are_those_of_one():
    results = [scored(k, n, k) for k, n in enumerate((3, 40, 60, 5, 90))]
    results[3].measures["kl"][1:3] = np.inf
    parts = [totals(results[:3]), totals(results[3:])]
    reports = [json.loads(json_text({"worst_tokens": part.worst_tokens()})) for part in parts]
    assert merge_lists(reports)["worst_tokens"] == totals(results).worst_tokens()


def test_the_summary_is_that_of_all_tokens():
    results = [scored(k, n, k, first=k == 2) for k, n in enumerate((3, 40, 1, 0, 900, 7))]
    made = totals(results)
    summary = made.summary(200, 5)
    known = [one.scored for one in results]
    every = {
        name: np.concatenate([one.measures[name][k] for one, k in zip(results, known, strict=True)])
        for name in results[0].measures
    }
    groups = np.repeat(np.arange(len(results)), [k.sum() for k in known]).tolist()
    for name in ("kl", "js", "reference_logprob", "same_argmax"):
        want = estimate(every[name].astype(float).tolist(), 200, 5, groups)
        got = summary[name]
        assert got.n == want.n == len(every[name])
        for end in ("mean", "low", "high"):
            assert getattr(got, end) == pytest.approx(getattr(want, end), rel=1e-12)
    low, high = summary["reference_logprob"].low, summary["reference_logprob"].high
    assert summary["reference_perplexity"].low == pytest.approx(np.exp(-high))
    assert summary["reference_perplexity"].high == pytest.approx(np.exp(-low))
    entropy = np.concatenate([one.entropy[k] for one, k in zip(results, known, strict=True)])
    cross = (entropy.astype(float) + every["kl"]).mean()
    assert summary["cross_entropy"].mean == pytest.approx(cross, rel=1e-6)
    found = summary["kl_percentiles"]
    assert found["n"] == len(every["kl"]) == 950
    assert found["p50"] == pytest.approx(np.percentile(every["kl"], 50))
    assert found["p99"] == pytest.approx(np.percentile(every["kl"], 99))
    assert found["p99_9"] is None  # of 950 tokens less than one lies above it
    assert found["max"] == every["kl"].max()
    worst = made.worst_tokens()
    assert [one["kl"] for one in worst] == sorted(every["kl"].tolist(), reverse=True)[:50]
    for one in worst:
        result = results[one["id"]]
        assert result.measures["kl"][one["place"]] == np.float32(one["kl"])
        assert one["token"] == f"t{one['place']}"
        assert one["before"].endswith(f"<{one['place'] - 1}>" if one["place"] else "ctx")
        assert len(one["before"]) <= 60
    texts = made.worst_texts()
    means = {one.id: one.measures["kl"][k].mean() for one, k in zip(results, known, strict=True)
             if k.any()}  # fmt: skip
    assert [one["id"] for one in texts] == sorted(means, key=means.__getitem__, reverse=True)


@pytest.mark.parametrize("sizes", [(), (0,), (1,)])
def test_too_few_tokens_have_no_percentiles_and_no_interval(sizes):
    summary = totals([scored(k, n, k) for k, n in enumerate(sizes)]).summary(50, 0)
    n = sum(sizes)
    assert summary["kl_percentiles"] == {
        "n": n, "p50": None, "p90": None, "p99": None, "p99_9": None, "max": None,
    }  # fmt: skip
    assert (summary["kl"].n, summary["kl"].low, summary["kl"].high) == (n, None, None)
    assert (summary["kl"].mean is None) == (n == 0)
    if not n:
        assert summary["perplexity"] == summary["binoculars"] == Estimate(0, None, None, None)


def test_percentiles_are_told_from_the_first_count_that_has_them():
    for n, name in ((10, "p90"), (100, "p99"), (1000, "p99_9")):
        assert totals([scored(0, n, 1)]).summary(1, 0)["kl_percentiles"][name] is not None
        assert totals([scored(0, n - 1, 1)]).summary(1, 0)["kl_percentiles"][name] is None


@given(st.lists(st.integers(0, 6)), st.integers(1, 5))
def test_the_worst_are_the_largest_and_the_first_of_equal_ones(values, kept):
    worst = Worst(kept)
    for k, value in enumerate(values):
        if worst.takes(value):
            worst.add(value, k)
    above = [k for k, value in enumerate(values) if value > 0]
    assert worst.largest_first() == sorted(above, key=lambda k: (-values[k], k))[:kept]


def test_a_text_of_certain_models_has_no_ratio():
    """Both models are certain of every token: 0 / 0."""
    zero = np.zeros(3, np.float32)
    values = dict.fromkeys(PER_TOKEN, zero)
    found = means_of(values, 3)
    assert found["binoculars"] is found["binoculars_upstream"] is None
    assert found["perplexity"] == found["reference_perplexity"] == 1.0
