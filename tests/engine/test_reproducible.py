"""With `reproducible` the bits of a request depend on that request; without, on the requests.

Bits are compared, no tolerance anywhere.
"""

import dataclasses
import random

import numpy as np
import pytest

from jaxscore import Request, Scorer
from jaxscore.models.model import Model
from jaxscore.types.requests import LabelRequest
from tests.conftest import CASES, MODELS
from tests.test_scorer import COLUMNS

pytestmark = pytest.mark.numeric

WORDS = "the cat sat down and ran to a small house where nobody had ever been before".split()


def texts(seed: int, n: int) -> list[Request]:
    """Contexts that some share, and texts of 2 to 120 words."""
    draw = random.Random(seed)
    begin = [" ".join(draw.choices(WORDS, k=draw.randrange(1, 60))) for _ in range(4)]
    return [
        Request(
            f"{seed}-{k}",
            draw.choice(begin) + " " + " ".join(draw.choices(WORDS, k=draw.randrange(1, 40))),
            " " + " ".join(draw.choices(WORDS, k=draw.randrange(1, 20))),
        )
        for k in range(n)
    ]


def bits(scored):
    """By id, every number as it is stored."""
    return {
        one.id: (*(getattr(one, name).tobytes() for name in COLUMNS), one.greedy.tobytes())
        for one in scored
    }


def scorer_like(loaded: Scorer, **options) -> Scorer:
    return Scorer(loaded.model, loaded.encoder, **{"reproducible": True, **options})


def moved_by_layout(model: Model) -> Model:
    """The same with hidden states that depend on their batch's rows and their length.

    So what stands beside a request moves its numbers on every processor; by rounding it need not.
    """

    functions = model.functions

    def hidden_states(params, ids, *others):
        n_rows, length = ids.shape
        return functions.hidden_states(params, ids, *others) * (1 + 1e-3 * n_rows + 1e-4 * length)

    return dataclasses.replace(model, functions=functions._replace(hidden_states=hidden_states))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", MODELS)
def test_neighbours_order_and_batch_size_change_no_bit(scorers, name):
    loaded = scorers(name)
    requests, others = texts(1, 24), texts(2, 40)
    want = bits(scorer_like(loaded).score(requests))
    assert len({column for one in want.values() for column in one}) > len(want)

    shuffled = [*requests, *others]
    random.Random(3).shuffle(shuffled)
    got = bits(scorer_like(loaded, batch_tokens=256).score(shuffled))
    assert {id: got[id] for id in want} == want

    alone = scorer_like(loaded, batch_tokens=64)
    assert {id: one for r in requests for id, one in bits(alone.score([r])).items()} == want

    windows = scorer_like(loaded).stream(reversed(requests), window=5)
    assert bits(windows) == want


@pytest.mark.slow
@pytest.mark.parametrize("reproducible", [False, True])
def test_only_a_reproducible_run_is_not_moved_by_its_layout(scorers, reproducible):
    loaded = scorers("tiny-llama3")
    requests = texts(1, 8)
    moved = Scorer(moved_by_layout(loaded.model), loaded.encoder, reproducible=reproducible)
    want = bits(moved.score(requests))
    beside = bits(moved.score([*requests, *texts(2, 20)]))
    alone = {id: one for r in requests for id, one in bits(moved.score([r])).items()}
    assert (alone == want) is reproducible
    assert ({id: beside[id] for id in want} == want) is reproducible


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_by_default_the_order_changes_no_bit(scorers, name):
    loaded = scorers(name)
    requests = texts(1, 60)
    first, again = Scorer(loaded.model, loaded.encoder), Scorer(loaded.model, loaded.encoder)
    want = bits(first.score(requests))
    assert bits(again.score(requests[::-1])) == want
    assert first.statistics.plan_hash == again.statistics.plan_hash


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_are_those_of_the_forest(scorers, name):
    loaded = scorers(name)
    requests = texts(4, 30)
    for a, b in zip(
        scorer_like(loaded).score(requests),
        Scorer(loaded.model, loaded.encoder).score(requests),
        strict=True,
    ):
        for column in COLUMNS:
            np.testing.assert_allclose(getattr(a, column), getattr(b, column), atol=1e-5, rtol=0)
        np.testing.assert_array_equal(a.greedy, b.greedy)


def test_labels_depend_on_their_prompt_and_not_on_each_other(scorers):
    scorer = scorer_like(scorers("tiny-qwen2"))
    prompt = "Is the cat in the house?"
    many = tuple(range(20, 31))  # more than a query slot takes
    [together] = scorer.label([LabelRequest("a", prompt, many)])
    beside = scorer.label(
        [LabelRequest("b", prompt, many[:3]), LabelRequest("c", "The cat", many[2:9])]
    )
    assert beside[0].logprob.tobytes() == together.logprob[:3].tobytes()
    [one] = scorer.label([LabelRequest("d", prompt, many[-1:])])
    assert one.logprob.tobytes() == together.logprob[-1:].tobytes()


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits(scorers, tmp_path):
    folder, path = str(CASES / "models/tiny-llama3"), tmp_path / "journal"
    requests = texts(5, 20)
    want = bits(scorer_like(scorers("tiny-llama3")).score(requests))
    options = {"dtype": "float32", "reproducible": True, "journal": path}
    first = Scorer.from_pretrained(folder, **options)
    first.score(requests[::2])
    first.close()
    second = Scorer.from_pretrained(folder, **options)
    got = bits(second.score([*texts(6, 5), *requests]))
    second.close()
    assert second.statistics.sequences_restored == 10
    assert {id: got[id] for id in want} == want


def test_a_journal_keeps_the_two_ways_apart(tmp_path):
    folder, path = str(CASES / "models/tiny-gpt2"), tmp_path / "journal"
    requests = texts(5, 4)
    for reproducible in (False, True):
        scorer = Scorer.from_pretrained(
            folder, dtype="float32", journal=path, reproducible=reproducible
        )
        scorer.score(requests)
        scorer.close()
        assert scorer.statistics.sequences_restored == 0


@pytest.mark.slow
def test_a_text_that_comes_again_in_a_later_window_keeps_its_row(tmp_path):
    """By default, where a second computing beside others would have other bits."""
    folder, path = str(CASES / "models/tiny-llama3"), tmp_path / "journal"
    requests = texts(5, 24)
    again = [*requests, *texts(6, 12), *requests[:12]]
    found = []
    for _ in range(2):
        scorer = Scorer.from_pretrained(folder, dtype="float32", journal=path, batch_tokens=256)
        scored = list(scorer.stream(again, window=24))
        scorer.close()
        found.append([bits([one]) for one in scored])
    assert scorer.statistics.sequences_restored == len(again)
    assert found[0] == found[1]
    assert found[0][:12] == found[0][-12:]
