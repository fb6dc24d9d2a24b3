"""Windows of many texts: every text once, and none parted from those that begin as it does."""

import itertools

import numpy as np
import pytest

from jaxscore.text import tokenize_requests
from jaxscore.text.tokenize_requests import MOST_SHARED
from jaxscore.types.requests import Request, Unusable


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(tokenize_requests, "FIRST", 1000)
    monkeypatch.setattr(tokenize_requests, "LARGEST", 4000)
    monkeypatch.setattr(tokenize_requests, "GROWTH", 2.0)
    monkeypatch.setattr(tokenize_requests, "SEARCHED", 8)


def texts(n, seed=0, length=60):
    draw = np.random.default_rng(seed)
    return ["".join(draw.choice(list("abcdefgh "), length)) for _ in range(n)]


def in_windows(requests):
    """The windows' texts, checked to hold every request once."""
    order, sizes = tokenize_requests.order_by_prefix(requests)
    assert sorted(order) == list(range(len(requests)))
    assert sum(sizes) == len(requests)
    assert min(sizes, default=1) > 0
    ends = np.cumsum(sizes)
    return [
        [requests[k] for k in order[end - size : end]]
        for size, end in zip(sizes, ends, strict=True)
    ]


def whole(request):
    return request.context + request.continuation


def assert_apart(found):
    """No two windows have texts with a long common beginning."""
    heads = [{whole(one)[: MOST_SHARED + 1] for one in window} for window in found]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(heads, 2))


def test_little_text_keeps_its_order_and_is_one_window():
    requests = [Request(k, "", text) for k, text in enumerate(texts(30))]
    assert tokenize_requests.order_by_prefix(requests) == (list(range(30)), [30])
    assert tokenize_requests.order_by_prefix([]) == ([], [])


def test_windows_grow_and_begin_differently():
    requests = [Request(k, text[:20], text[20:]) for k, text in enumerate(texts(400))]
    found = in_windows(requests)
    sizes = [sum(len(whole(one)) for one in window) for window in found]
    grown = [1000, 2000, *[4000] * 20]
    for k, size in enumerate(sizes[:-1]):
        left = sum(sizes[k:])
        wanted = min(grown[k], max(1000, left / 2))
        assert wanted <= size < wanted + 8 * 60  # the cut is among eight texts
    assert sizes[-1] >= 1000
    assert max(sizes) > 4000 > 3000 > sizes[-2]
    assert_apart(found)
    for before, after in itertools.pairwise(found):
        # Of eight neighbours the two that share the least: fewer than three characters.
        assert whole(before[-1])[:3] != whole(after[0])[:3]


@pytest.mark.parametrize("n", range(40, 80))
def test_no_window_is_small(n):
    found = in_windows([Request(k, "", text) for k, text in enumerate(texts(n))])
    assert all(sum(len(whole(one)) for one in window) >= 1000 for window in found)


def test_texts_with_a_shared_prefix_stay_in_one_window():
    """Whatever is shared by them is computed once; the last window holds what could not be cut."""
    prompts = texts(3, length=200)
    requests = [
        Request((k, j), prompt, text)
        for j, text in enumerate(texts(50, 1))
        for k, prompt in enumerate(prompts)
    ]
    found = in_windows(requests)
    assert len(found) == 3
    for window in found:
        assert len({one.context for one in window}) == 1
        assert len(window) == 50


def test_where_a_context_ends_parts_no_texts():
    """A prompt alone, and as the context of an answer."""
    prompts = texts(200)
    requests = [Request((k, 0), "", prompt) for k, prompt in enumerate(prompts)]
    requests += [Request((k, 1), prompt, " Yes") for k, prompt in enumerate(prompts)]
    requests += [
        Request((k, 2), prompt[:7], prompt[7:] + " No") for k, prompt in enumerate(prompts)
    ]
    found = in_windows(requests)
    assert len(found) > 4
    assert_apart(found)


def test_one_prompt_for_all_is_one_window():
    [prompt] = texts(1, length=200)
    requests = [Request(k, prompt, text) for k, text in enumerate(texts(100, 1))]
    assert len(in_windows(requests)) == 1


def test_equal_short_texts_are_not_parted():
    requests = [Request(k, "", "word" if k % 2 else "other words") for k in range(2000)]
    found = in_windows(requests)
    assert [{whole(one) for one in window} for window in found] == [{"other words"}, {"word"}]


def test_what_is_no_request_is_in_some_window():
    requests = [Request(k, "", text) for k, text in enumerate(texts(100))]
    requests[7] = Unusable(7, "why")
    assert Unusable(7, "why") in in_windows(requests)[0]


@pytest.mark.parametrize("shared", [MOST_SHARED, MOST_SHARED + 1])
def test_so_many_characters_may_be_shared_and_no_more(shared):
    requests = [Request(k, "", "x" * shared + text) for k, text in enumerate(texts(200))]
    assert (len(in_windows(requests)) > 1) == (shared == MOST_SHARED)
