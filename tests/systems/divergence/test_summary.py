"""Means, percentiles and the worst tokens of texts, against NumPy on all tokens together."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.analysis.bootstrap import Estimate, estimate
from jaxscore.shell.records import Records
from jaxscore.shell.system import PAGE
from jaxscore.systems.divergence import SYSTEM, Item, Settings
from jaxscore.systems.divergence.summary import PER_TOKEN, means_of, summarise
from jaxscore.systems.divergence.worst import Worst, strip_of, worst_texts, worst_tokens
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
        id, ids, [f"<{k}>" for k in ids], -column(), column(), column(), greedy, measures=measures
    )


class Pair:
    """A pair of models that gives known results."""

    def __init__(self, results):
        self._results = results

    def stream(self, requests, **_):
        for result, request in zip(self._results, requests, strict=True):
            assert request.context == "ctx "
            yield result


def records_of(results, **settings):
    """The records of a run, as they are stored."""
    out = Records.temporary()
    items = [Item(context="ctx ", continuation="x")] * len(results)
    found = SYSTEM.score(Pair(results), items, Settings(**settings))
    for result, record in zip(results, found, strict=True):
        page = record.pop(PAGE, {})
        out.append({"id": result.id, **record}, page)
    return out


def test_the_report_of_shards_is_that_of_one_run():
    results = [scored(k, n, k) for k, n in enumerate((3, 40, 60, 5, 90))]
    whole, merged = records_of(results), Records.temporary()
    for part in (results[:3], results[3:]):
        merged.extend(json.loads(json.dumps([*records_of(part)])))
    assert SYSTEM.summarize(merged, Settings()) == SYSTEM.summarize(whole, Settings())
    assert SYSTEM.summarize([*merged], Settings()) == SYSTEM.summarize(whole, Settings())
    for worst in (worst_tokens, worst_texts):
        assert [one["id"] for one in worst(merged)] == [one["id"] for one in worst(whole)]
    for text in worst_texts(merged):
        strip = strip_of(text)
        assert (strip.context, strip.scored.tokens) == ("", text["tokens"])
        assert np.isnan(strip.scored.self_certainty).all()
        np.testing.assert_array_equal(strip.scored.logprob, results[text["id"]].logprob)
    for ours, one in zip(worst_tokens(merged), worst_tokens(whole), strict=True):
        assert one.pop("before").endswith(ours.pop("before"))  # which may begin in the context
        assert ours == one


def test_a_run_with_summary_only_has_the_report_of_all_values_and_its_file_the_means():
    results = [scored(k, n, k) for k, n in enumerate((3, 40, 60, 0))]
    whole, short = records_of(results), records_of(results, summary_only=True)
    assert "kl" not in short[1]
    assert SYSTEM.summarize(short, Settings()) == SYSTEM.summarize(whole, Settings())
    assert worst_tokens(short) == worst_tokens(whole)
    stored = Records.temporary()
    stored.extend(short)
    numbers = SYSTEM.summarize(stored, Settings()).numbers
    assert numbers.pop("kl_percentiles") == {
        "n": 103, "p50": None, "p90": None, "p99": None, "p99_9": None, "max": None,
    }  # fmt: skip
    assert numbers.items() <= SYSTEM.summarize(whole, Settings()).numbers.items()
    assert worst_tokens(stored) == []


def test_the_summary_is_that_of_all_tokens():
    results = [scored(k, n, k, first=k == 2) for k, n in enumerate((3, 40, 1, 0, 900, 7))]
    records = records_of(results)
    summary = summarise(records, 200, 5)
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
    worst = worst_tokens(records)
    kl = np.sort(every["kl"])[::-1][:50]
    np.testing.assert_array_equal(np.array([one["kl"] for one in worst], np.float32), kl)
    for one in worst:
        result = results[one["id"]]
        assert result.measures["kl"][one["place"]] == np.float32(one["kl"])
        assert one["token"] == f"<{one['place']}>"
        assert one["before"].endswith(f"<{one['place'] - 1}>" if one["place"] else "ctx")
        assert len(one["before"]) <= 60
    texts = worst_texts(records)
    means = {one.id: one.measures["kl"][k].mean() for one, k in zip(results, known, strict=True)
             if k.any()}  # fmt: skip
    assert [one["id"] for one in texts] == sorted(means, key=means.__getitem__, reverse=True)


def test_tokens_that_cut_a_character_are_shown_as_the_character():
    """The two bytes of an ö, and three of the character 巴, in a text without a space."""
    tokens = ["Ã", "¶", "å", "·", "\u00b4"]
    record = {
        "id": 0, "tokens": tokens, "n_scored": 5, "mean_kl": 1.0,
        **{name: [0.1, 0.2, 0.3, 0.4, 0.5] for name in PER_TOKEN},
    }  # fmt: skip
    records = Records.temporary()
    records.append(record)
    worst = worst_tokens(records)
    assert [(one["before"], one["token"]) for one in worst] == [
        *[("ö", "巴")] * 3,
        *[("", "ö")] * 2,
    ]


@pytest.mark.parametrize("sizes", [(), (0,), (1,)])
def test_too_few_tokens_have_no_percentiles_and_no_interval(sizes):
    summary = summarise(records_of([scored(k, n, k) for k, n in enumerate(sizes)]), 50, 0)
    n = sum(sizes)
    assert summary["kl_percentiles"] == {
        "n": n, "p50": None, "p90": None, "p99": None, "p99_9": None, "max": None,
    }  # fmt: skip
    assert (summary["kl"].n, summary["kl"].low, summary["kl"].high) == (n, None, None)
    assert (summary["kl"].mean is None) == (n == 0)
    if not n:
        assert summary["perplexity"] == summary["binoculars"] == Estimate(0, None, None, None)


def percentiles(n):
    return summarise(records_of([scored(0, n, 1)]), 1, 0)["kl_percentiles"]


def test_percentiles_are_told_from_the_first_count_that_has_them():
    for n, name in ((10, "p90"), (100, "p99"), (1000, "p99_9")):
        assert percentiles(n)[name] is not None
        assert percentiles(n - 1)[name] is None


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
