"""What a page of `score` keeps of its requests, against a list of all of them."""

import importlib
import math

import numpy as np
import pytest

from jaxscore.systems.score.report import WorstRequests, report
from tests.report.html.made import score_source
from tools.benchmarks.pages import record

module = importlib.import_module("jaxscore.systems.score.report")  # `report` is its function


def taken(n=200, failed=(), lengths=(1, 30), digits=None):
    """The items and their records, whose means have so many digits: few have ties."""
    rng = np.random.default_rng(n)
    every = [record(k, int(rng.integers(*lengths)), rng) for k in range(n)]
    if digits is not None:
        every = [one | {"mean_logprob": round(one["mean_logprob"], digits)} for one in every]
    for k in failed:
        every[k] = {"id": f"item-{k}", "error": "too long"}
    items = WorstRequests()
    for k, one in enumerate(every):
        items.add(one, f"before {k}")
    return items, [(k, one) for k, one in enumerate(every) if "error" not in one]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "TOGETHER", 7)
    monkeypatch.setattr(module, "HELD", 20)
    monkeypatch.setattr(module, "HELD_TOKENS", 100)
    monkeypatch.setattr(module, "HELD_CONTEXTS", 70)


def test_all_of_few_are_held_worst_first():
    items, every = taken(failed=[3, 9])
    retained = items.retained()
    order = sorted(every, key=lambda pair: pair[1]["mean_logprob"])
    assert items.n_all == 200
    assert retained.ids == [one["id"] for _, one in order]
    assert retained.contexts == [f"before {k}" for k, _ in order]
    assert retained.n_scored.tolist() == [one["n_scored"] for _, one in order]
    for name in module.SUMS:
        assert retained.sums[name].tolist() == [one[name] for _, one in order]
    wanted = np.concatenate([one["token_ids"] for _, one in order])
    assert retained.tokens.ids.tolist() == wanted.tolist()
    logprob = np.concatenate([one["logprob"] for _, one in order]).astype(float)
    assert retained.tokens.numbers["logprob"].tolist() == np.rint(logprob * 1000).tolist()


@pytest.mark.parametrize("digits", [None, 1, 0])
def test_only_the_worst_requests_are_retained(small, digits):
    items, every = taken(digits=digits)
    assert sum(len(part.ids) for part in items._retained) <= 2 * module.HELD
    retained = items.retained()
    order = sorted(every, key=lambda pair: pair[1]["mean_logprob"])[: module.HELD]
    assert retained.ids == [one["id"] for _, one in order]
    total, n_with_tokens = 0, 0
    for _, one in order:
        total += one["n_tokens"]
        n_with_tokens += total <= module.HELD_TOKENS
    assert 0 < n_with_tokens < module.HELD
    lengths = [one["n_tokens"] for _, one in order]
    assert retained.tokens.length.tolist() == lengths[:n_with_tokens] + [0] * (20 - n_with_tokens)
    assert retained.tokens.left_out.tolist() == [0] * n_with_tokens + lengths[n_with_tokens:]
    wanted = np.concatenate([one["token_ids"] for _, one in order[:n_with_tokens]])
    assert retained.tokens.ids.tolist() == wanted.tolist()
    assert sum(map(len, retained.contexts)) <= 70
    assert retained.contexts[0] == f"before {order[0][0]}"
    assert retained.contexts[-1] == ""


def test_counts_are_of_all_requests(small):
    items, every = taken()
    surprisal, entropy = items.histograms()
    for found, values in (
        (surprisal, [-one["mean_logprob"] for _, one in every]),
        (entropy, [one["mean_entropy"] for _, one in every]),
    ):
        assert sum(found.n) == len(every)
        edges = np.array(found.edges)
        width = edges[1] - edges[0]
        assert len(found.n) <= 36
        wanted = np.histogram(np.floor(np.array(values) / 0.02) * 0.02 + 0.01, edges)[0]
        assert found.n == wanted.tolist()
        assert width >= 0.02
    points = {(one["n_scored"], math.exp(-one["mean_logprob"])) for _, one in every}
    shown = [point for point, _ in items.lengths().items()]
    np.testing.assert_allclose(sorted(shown), sorted(points), rtol=1e-5)


def test_requests_without_a_score_come_last():
    items = WorstRequests()
    items.add(record(0, 0, np.random.default_rng(0)), "")
    items.add(record(1, 3, np.random.default_rng(0)), "")
    assert items.retained().ids == ["item-1", "item-0"]
    page = report(score_source(items))
    columns = {one.title: one.values for one in page.items.columns}
    assert columns["Mean"][1] == columns["Perplexity"][1] == columns["Worst token"][1] == "-"
    assert columns["Tokens"] == ["3", "0"]


def test_the_worst_token_is_shown_with_its_whole_character():
    one = record(0, 3, np.random.default_rng(0))
    one |= {"tokens": ["å", "·", "\u00b4"], "logprob": np.array([-1.0, -9.0, -2.0], np.float32)}
    items = WorstRequests()
    items.add(one, "")
    columns = {one.title: one.values for one in report(score_source(items)).items.columns}
    assert (columns["Worst token"], columns["Its nats"]) == (["巴"], ["-9.000"])


def test_numbers_are_those_of_the_records():
    items, every = taken(30)
    page = report(score_source(items, n_failed=2))
    columns = {one.title: one.values for one in page.items.columns}
    order = [one for _, one in sorted(every, key=lambda pair: pair[1]["mean_logprob"])]
    assert columns["Sum"][:30] == [f"{one['sum_logprob']:.4f}" for one in order]
    assert columns["Perplexity"][:30] == [f"{one['perplexity']:.4g}" for one in order]
    worst = [int(np.argmin(one["logprob"])) for one in order]
    names = [one["tokens"][k].replace("Ġ", " ") for one, k in zip(order, worst, strict=True)]
    assert columns["Worst token"][:30] == names
    least = [f"{one['logprob'][k]:.3f}" for one, k in zip(order, worst, strict=True)]
    assert columns["Its nats"][:30] == least
    assert columns["Id"][30:] == ["bad 0", "bad 1"]
    assert page.items.errors == {30: "too long", 31: "too long"}
    assert page.items.strips.first[-1] == 30


def test_without_arrays_there_are_no_strips():
    items, rng = WorstRequests(), np.random.default_rng(1)
    for k in range(3):
        one = record(k, 4, rng)
        items.add({name: v for name, v in one.items() if not isinstance(v, np.ndarray | list)}, "")
    page = report(score_source(items, n_failed=1))
    assert page.items.strips is None
    assert page.items.columns[-1].title == "Tokens"
    assert page.items.n == 4


def test_ranks_where_they_were_asked_for():
    rng, ranks = np.random.default_rng(1), np.array([1, 7, 300])
    items, unasked = WorstRequests(["rank"]), WorstRequests()
    items.add({**record(0, 3, rng), "rank": ranks}, "")
    items.add({**record(1, 3, rng), "rank": [None, 2, 3]}, "")
    assert sorted(items.retained().tokens.rank.tolist()) == [0, 1, 2, 3, 7, 300]
    unasked.add({**record(1, 3, rng), "rank": "a field of the user's own"}, "")
    assert unasked.retained().tokens.rank.tolist() == [0, 0, 0]


@pytest.mark.parametrize("n", [0, 1])
def test_few(n):
    items, _ = taken(n)
    page = report(score_source(items))
    assert page.items.n == n
    assert items.histograms() == (None, None)  # nothing is drawn below two
    assert page.charts == []
    assert len(items.lengths().n) == n


def test_extremes():
    """An infinite perplexity, and surprisals beyond the last bin."""
    items, rng = WorstRequests(), np.random.default_rng(1)
    for k in range(3):
        one = record(k, 4, rng)
        items.add({**one, "mean_logprob": -800.0, "perplexity": math.inf}, "x" * 5000)
    found, _ = items.histograms()
    assert sum(found.n) == 3
    assert found.edges[-1] > module.LONGEST
    retained = items.retained()
    assert retained.contexts[0].startswith("(4000 characters before) … x")
    columns = {one.title: one.values for one in report(score_source(items)).items.columns}
    assert columns["Perplexity"] == ["inf"] * 3
