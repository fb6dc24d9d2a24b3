"""The noise floor, against the same requests scored by hand in each layout."""

import dataclasses
import json
import math
import random
import subprocess
import sys
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore import Request, Scorer
from jaxscore.shell.records import Records
from jaxscore.shell.report import marked
from jaxscore.shell.rounding_audit import Draw, Noise, OtherLayouts, Spread
from jaxscore.systems import choose
from jaxscore.types.requests import LabelRequest
from jaxscore.types.results import failed
from tests.conftest import CASES, ROOT, with_devices
from tests.engine.test_reproducible import WORDS, moved_by_layout
from tests.releases import flax_classes

pytestmark = [pytest.mark.numeric, pytest.mark.lines]

WAYS = (
    ("tiny-llama3", {"moved": True}),
    ("tiny-llama3", {}),
    pytest.param("tiny-gpt2", {"implementation": "transformers"}, marks=flax_classes),
    ("demo", {"dtype": "bfloat16"}),
    ("tiny-qwen2", {"quantize": "int8"}),
)
PROMPTS = [
    LabelRequest(k, f"Is the cat {WORDS[k]} here? Yes or No:", (7, 20, 31)) for k in range(9)
]


def texts(n: int) -> list[Request]:
    """Two in three share their context; the others' rows are of another length alone."""
    draw = random.Random(1)
    return [
        Request(
            k,
            "the cat sat" if k % 3 else " ".join(draw.choices(WORDS, k=30)),
            " " + " ".join(draw.choices(WORDS, k=draw.randrange(1, 7))),
        )
        for k in range(n)
    ]


def drawing(draw: Draw, ask, requests, **options) -> list:
    """The results of requests, from which a sample is drawn."""
    results = list(ask(requests, **options))
    for request, result in zip(requests, results, strict=True):
        draw.add(request, result)
    return results


def loaded_as(name: str, moved: bool = False, **options) -> Scorer:
    folder = name if name == "demo" else str(CASES / "models" / name)
    options = {"dtype": "float32", "batch_tokens": 256} | options
    scorer = Scorer.from_pretrained(folder, **options)
    if not moved:
        return scorer
    return Scorer(moved_by_layout(scorer.model), scorer.encoder, batch_tokens=256)


def by_hand(scorer: Scorer, ask) -> list[list]:
    """For each layout the results, of scorers made here; the run's own is not among them."""
    functions = scorer.model.functions._replace(cached=None)
    apart = dataclasses.replace(scorer.model, shares_text=False, functions=functions)
    alone = Scorer(scorer.model, scorer.encoder, reproducible=True)
    half = Scorer(scorer.model, scorer.encoder, batch_tokens=scorer.batch_tokens // 2)
    rows = Scorer(apart, scorer.encoder, batch_tokens=scorer.batch_tokens)
    return [ask(alone, one_by_one=True), ask(half), ask(rows)]


def spread_of(columns) -> float:
    """Of one request's number or numbers, one list a layout: the largest, entry by entry."""
    largest = 0.0
    for entry in zip(*columns, strict=True):
        largest = max(largest, max(map(float, entry)) - min(map(float, entry)))
    return largest


def reported(noise: Noise, name: str, by_request: list[float]) -> None:
    found = noise.spread[name]
    assert found.largest == max(by_request)
    assert found.mean == pytest.approx(sum(by_request) / len(by_request), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), WAYS, ids=lambda value: str(value))
def test_scores_against_each_layout_by_hand(name, options):
    loaded = loaded_as(name, **options)
    draw = Draw(7, seed=3)
    how = {"boundary": "separate", "special_tokens": False}
    run = drawing(draw, loaded.score, texts(24), **how)
    counts = loaded.facts()["counts"]
    noise = OtherLayouts(loaded).scores(draw.pairs, **how)
    assert loaded.facts()["counts"] == counts
    requests = [request for request, _ in draw.pairs]
    of = {one.id: one for one in run}

    def ask(scorer, one_by_one=False):
        if one_by_one:
            return [scorer.score([request], **how)[0] for request in requests]
        return scorer.score(requests, **how)

    every = [[of[request.id] for request in requests], *by_hand(loaded, ask)]
    assert noise.n_requests == 7
    assert noise.layouts == (
        "as in the run", "alone", "batches of 128 tokens", "one request a row",
    )  # fmt: skip
    by_request = list(zip(*every, strict=True))
    for column in ("logprob", "entropy", "self_certainty"):
        want = [spread_of([getattr(one, column)[one.scored] for one in own]) for own in by_request]
        reported(noise, f"token_{column}", want)
    for column in ("sum_logprob", "mean_logprob", "mean_self_certainty"):
        reported(
            noise, column, [spread_of([[getattr(o, column)] for o in own]) for own in by_request]
        )
    tokens = [
        {bool(one.greedy[k]) for one in own} for own in by_request for k in range(own[0].n_tokens)
        if own[0].scored[k]
    ]  # fmt: skip
    assert noise.n_tokens == len(tokens)
    assert noise.n_greedy_differs == sum(len(found) == 2 for found in tokens)
    if "moved" in options:
        assert all(one.largest > 0 for one in noise.spread.values())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), WAYS[:4], ids=lambda value: str(value))
def test_labels_against_each_layout_by_hand(name, options):
    loaded = loaded_as(name, **options)
    draw = Draw(5, seed=0)
    run = drawing(draw, loaded.label, PROMPTS)
    noise = OtherLayouts(loaded).labels(draw.pairs)
    requests = [request for request, _ in draw.pairs]

    def ask(scorer, one_by_one=False):
        if one_by_one:
            return [scorer.label([request])[0] for request in requests]
        return scorer.label(requests)

    every = [[run[request.id] for request in requests], *by_hand(loaded, ask)]
    by_request = list(zip(*every, strict=True))
    assert set(noise.spread) == {"label_logprob", "label_probability"}
    for column in ("logprob", "probability"):
        want = [spread_of([getattr(one, column) for one in own]) for own in by_request]
        reported(noise, f"label_{column}", want)
    assert (noise.n_requests, noise.n_tokens, noise.n_greedy_differs) == (5, None, None)


def test_the_layouts_are_what_they_are_called(scorers):
    base = scorers("tiny-qwen2")
    scorer = Scorer(base.model, base.encoder, batch_tokens=64)
    requests = [Request(k, "the cat sat and the cat", f" ran {k} times") for k in range(5)]
    sizes = [len(base.encoder.encode([one])[0][0].ids) - 1 for one in requests]
    others = OtherLayouts(scorer)._others
    assert list(others) == ["alone", "batches of 128 tokens", "one request a row"]
    for other in others.values():
        other.score(requests)
        assert other.journal is None
    shared, apart = others["batches of 128 tokens"], others["one request a row"]
    assert shared.batch_tokens == 128  # 32 would be below the shortest row
    assert shared.statistics.tokens_laid_out < sum(sizes)
    assert (
        apart.statistics.tokens_laid_out == others["alone"].statistics.tokens_laid_out == sum(sizes)
    )
    assert others["alone"].reproducible
    assert len({other.statistics.plan_hash for other in others.values()}) == 3


@pytest.mark.slow
def test_reproducible_runs_have_a_layout_less(scorers):
    base = scorers("tiny-qwen2")
    scorer = Scorer(moved_by_layout(base.model), base.encoder, reproducible=True)
    draw = Draw(3, 0)
    drawing(draw, scorer.score, texts(6))
    noise = OtherLayouts(scorer).scores(draw.pairs)
    assert noise.layouts == ("alone", "batches of 2048 tokens", "one request a row")
    assert all(one.largest > 0 for one in noise.spread.values())


def test_no_spread_where_one_layout_is_possible(scorers):
    """One request in one row, whichever the batch."""
    base = scorers("tiny-qwen2")
    scorer = Scorer(base.model, base.encoder, batch_tokens=64)
    draw = Draw(9, 0)
    drawing(draw, scorer.score, [Request(0, "the cat", " sat down")])
    noise = OtherLayouts(scorer).scores(draw.pairs)
    assert (noise.n_requests, noise.n_tokens, noise.n_greedy_differs) == (1, 5, 0)
    assert set(noise.spread.values()) == {Spread(0.0, 0.0)}
    draw = Draw(9, 0)
    drawing(draw, scorer.label, PROMPTS[1:2])
    assert set(OtherLayouts(scorer).labels(draw.pairs).spread.values()) == {Spread(0.0, 0.0)}


def test_no_finite_number_in_another_layout_is_infinite_noise(scorers):
    base = scorers("tiny-qwen2")
    nan = jax.tree.map(lambda x: jnp.full_like(x, np.nan), base.model.params)
    broken = Scorer(dataclasses.replace(base.model, params=nan), base.encoder)
    for ask, asked, again in (
        (base.score, texts(2), "scores"),
        (base.label, PROMPTS[:2], "labels"),
    ):
        draw = Draw(2, 0)
        drawing(draw, ask, asked)
        layouts = OtherLayouts(base)
        layouts.__dict__["_others"] = {"broken": broken}
        noise = getattr(layouts, again)(draw.pairs)
        assert {one.largest for one in noise.spread.values()} == {math.inf}


def test_nothing_drawn_is_no_noise(scorers):
    layouts = OtherLayouts(scorers("tiny-qwen2"))
    assert layouts.scores([]) is None
    assert layouts.labels([]) is None


def test_the_same_seed_draws_the_same_of_those_with_numbers(scorers):
    scorer = scorers("tiny-qwen2")
    asked = [*texts(20), Request("no tokens", "a", ""), Request("long", "word " * 2000, " b")]

    def drawn(n, seed):
        draw = Draw(n, seed)
        drawing(draw, scorer.stream, asked, window=3)
        assert all(request.id == result.id for request, result in draw.pairs)
        return [request.id for request, _ in draw.pairs]

    assert drawn(0, 0) == []
    assert drawn(5, 1) == drawn(5, 1) != drawn(5, 2)
    assert len(set(drawn(5, 1))) == 5
    assert drawn(50, 1) == [one.id for one in asked[:20]]


def test_each_request_is_as_likely_to_be_drawn():
    """3 of 10, a thousand times: 300 each, with a standard deviation of 14.5."""
    asked = [Request(k, "a", "b") for k in range(11)]
    bad = failed("", "no")
    good = dataclasses.replace(bad, logprob=np.zeros(1, np.float32), error=None)
    counts = dict.fromkeys(range(10), 0)
    for seed in range(1000):
        draw = Draw(3, seed)
        drawing(draw, lambda _: [*[good] * 10, bad], asked)
        for one, _ in draw.pairs:
            counts[one.id] += 1
    assert all(250 < count < 350 for count in counts.values())


MESH = """
import dataclasses, json
from jaxscore.systems import choose
from jaxscore.shell.rounding_audit import Draw, OtherLayouts
from tests.shell.test_rounding_audit import PROMPTS, drawing, loaded_as, texts
for moved in (False, True):
    scorer = loaded_as("tiny-gpt2", moved, mesh="data=2,model=1")
    draw, labels = Draw(3, 0), Draw(3, 0)
    drawing(draw, scorer.score, texts(12))
    drawing(labels, scorer.label, PROMPTS[:4])
    layouts = OtherLayouts(scorer)
    found = layouts.scores(draw.pairs), layouts.labels(labels.pairs)
    print(json.dumps([str(scorer.model.devices.shape), *map(dataclasses.asdict, found)]))
"""


@pytest.mark.slow
def test_a_mesh():
    ran = subprocess.run(
        [sys.executable, "-c", MESH],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=with_devices(2),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    rounded, moved = map(json.loads, ran.stdout.splitlines())
    for shape, *audits in (rounded, moved):
        assert shape == "data=2,model=1"
        assert [len(found["layouts"]) for found in audits] == [4, 4]
        assert [found["n_requests"] for found in audits] == [3, 3]

    def spreads(audits):
        return [one for found in audits for one in found["spread"].values()]

    assert all(0 <= one["mean"] <= one["largest"] < 1e-5 for one in spreads(rounded[1:]))
    assert all(0 < one["mean"] <= one["largest"] for one in spreads(moved[1:]))


def test_records_are_marked_one_by_one_without_reading_types_again(monkeypatch):
    noise = Noise(1, ("alone",), {"sum_logprob": Spread(1e-6, 1e-6)}, 1, 0)
    records = Records.temporary()
    records.extend([{"sum_logprob": [-1.0, -2.0], "choice": 0}] * 3)
    records = marked(choose.SYSTEM, choose.Settings(), records, noise)
    monkeypatch.setattr(typing, "get_type_hints", pytest.fail)
    assert [record["within_noise"] for record in records] == [False] * 3
