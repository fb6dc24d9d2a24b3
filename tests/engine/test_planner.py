"""Plans by facts of a model alone: its variants, shared prefixes where they pay, one row each."""

import dataclasses

import numpy as np
import pytest

from jaxscore.engine import planner
from jaxscore.engine.planner import ModelFacts, Planner
from jaxscore.engine.progress import RunStatistics
from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.row_batches import OnePerRow

FACTS = ModelFacts(
    width=64, max_positions=1024, n_parameters=10**9, shares_text=True, takes_prefixes=True
)


def split_scored(n_prompt=400, count=60):
    draw = np.random.default_rng(0)
    prompt = draw.integers(1, 99, n_prompt)
    ids = [np.r_[prompt, draw.integers(1, 99, 20)].astype(np.int32) for _ in range(count)]
    return [TokenSequence(one, n_prompt) for one in ids]


def made(sequences, *, reproducible=False, **changes):
    facts = dataclasses.replace(FACTS, **changes)
    return Planner(facts, batch_tokens=512, reproducible=reproducible).window(sequences)


def test_a_prefix_is_shared_where_it_saves_more_than_its_program(monkeypatch):
    asked = split_scored()
    [work] = made(asked).forests
    assert max(len(part.prefix) for part, _ in work.plans) == 399
    [plain] = made(asked, takes_prefixes=False).forests
    [small] = made(asked, n_parameters=10**4).forests  # a program takes longer than all of the work
    for one in (plain, small):
        assert [len(part.prefix) for part, _ in one.plans] == [0]
    assert work.n_tokens < plain.n_tokens
    monkeypatch.setattr(planner, "LEAST_SHARE", 1.0)
    assert [len(part.prefix) for part, _ in made(asked).forests[0].plans] == [0]


def test_long_requests_are_another_variants():
    asked = [*split_scored(30, 3), *split_scored(400, 2), *split_scored(30, 1)]
    works = made(asked, longer_from=100).forests
    assert [(one.variant, list(one.index)) for one in works] == [(0, [0, 1, 2, 5]), (1, [3, 4])]
    assert [one.variant for one in made(asked).forests] == [0]
    # The choices after a prompt are no part of its length.
    edge = TokenSequence(np.ones(100, np.int32), 100, np.array([1, 2, 3]))
    assert [one.variant for one in made([edge], longer_from=100).forests] == [0]
    # The last token of a text is scored and not read.
    texts = [TokenSequence(np.ones(n, np.int32), 0) for n in (100, 101, 102)]
    works = made(texts, longer_from=100).forests
    assert [(one.variant, list(one.index)) for one in works] == [(0, [0, 1]), (1, [2])]


def test_reproducible_plans_each_sequence_alone():
    asked = split_scored(30, 4)
    [work] = made(asked, reproducible=True).forests
    [(_, rows)] = work.plans
    assert isinstance(rows, OnePerRow)
    assert work.n_tokens == sum(len(one.ids) - 1 for one in asked)


def test_a_budget_below_one_row_is_refused():
    with pytest.raises(ValueError, match="batch_tokens 63 is below 64"):
        Planner(FACTS, batch_tokens=63, reproducible=False)


def test_statistics_of_each_output():
    window, statistics = made(split_scored(30, 4)), RunStatistics()
    statistics.count_window(window)
    first = statistics.facts()
    assert first["counts"]["texts"] == 4
    assert first["counts"]["tokens_given"] == 4 * 50
    assert first["counts"]["tokens_scored"] == 4 * 20
    assert first["counts"]["tokens_unique"] == 30 + 4 * 19 == statistics.tokens_unique
    statistics.begin_output()
    assert set(statistics.facts()["counts"].values()) == {0}
    statistics.count_texts(3, 2)
    assert (statistics.sequences, statistics.sequences_restored) == (7, 2)
    assert statistics.facts()["counts"]["texts"] == 3
    statistics.count_window(window)
    statistics.begin_output()
    statistics.count_window(window)
    assert statistics.plan_hash == first["plan"]


def test_a_prompt_with_choices_is_given_once():
    prompt = np.arange(1, 41, dtype=np.int32)
    asked = TokenSequence(prompt, 40, np.array([7, 8, 9, 10, 11]))
    statistics = RunStatistics()
    statistics.count_window(made([asked]))
    assert (statistics.tokens_given, statistics.tokens_unique) == (45, 40)
    assert (statistics.sequences, statistics.tokens_scored) == (1, 5)
