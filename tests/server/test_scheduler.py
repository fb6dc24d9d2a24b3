"""Windows and groups of waiting jobs: fair turns, sizes, and limits."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.server import ApiError
from jaxscore.server import scheduler as scheduler_module
from jaxscore.server.scheduler import (
    TARGET,
    GenerationJob,
    Group,
    Scheduler,
    ScoringJob,
    TrieSize,
    Window,
    WindowSize,
    every_token,
    next_token,
)
from jaxscore.types.requests import GenerationRequest


def job(*texts):
    """A job of texts whose ids are letters."""
    return ScoringJob([(next_token(np.array([*text.encode()], np.int32)),) for text in texts])


def text(taken):
    one, place = taken
    return bytes(one.pieces[place][0].ids.astype(np.uint8)).decode()


def backlog(*jobs, window=10, most=10**6, gather=0.0):
    out = Scheduler(WindowSize(window, window), 3, most, gather)
    for one in jobs:
        out.add(one)
    return out


def windows(some):
    """The texts of each window until nothing waits."""
    out = []
    while some._scoring:
        out.append(list(map(text, some.take().pieces)))
    return out


def test_jobs_take_turns():
    some = backlog(job("aaaa", "bbbb", "cccc", "dddd"), job("xx"), job("yyy"), window=9)
    assert windows(some) == [["aaaa", "xx", "yyy"], ["bbbb", "cccc"], ["dddd"]]


def test_the_turns_go_on_where_the_last_window_ended():
    """A job of many pieces that came first does not go first each time."""
    some = backlog(job("aaaa", "bbbb"), job("cccc", "dddd"), job("eeee", "ffff"), window=5)
    found = [one for [one] in windows(some)]
    assert found == ["aaaa", "cccc", "eeee", "bbbb", "dddd", "ffff"]


def test_within_a_job_neighbours_share_text():
    some = backlog(job("ba", "ab", "bb", "aa"), window=3)
    assert windows(some) == [["aa", "ab"], ["ba", "bb"]]


def test_shared_text_counts_once():
    """Of all jobs together: ten prompts of one prefix are as few tokens as they take."""
    prefix = "prefix"
    jobs = [job(f"{prefix}{k}") for k in range(10)]
    assert len(windows(backlog(*jobs, window=len(prefix) + 10))) == 1
    assert [one.n_computed for one in jobs] == [len(prefix) + 1] + [1] * 9


def test_a_window_goes_on_where_the_next_one_would_repeat_a_long_prefix():
    """Until the prefix is an eighth of it, or `most` is reached."""
    prefix, size = "prefix", WindowSize(10, 100)
    some = Scheduler(size, 3, 10**6, 0.0)
    some.add(job(*(f"{prefix}{k:03}" for k in range(100))))
    taken = some.take()
    assert len(set(map(text, taken.pieces))) > 10
    assert 8 * len(prefix) - 4 < taken.n_tokens <= 8 * (len(prefix) + 2)


def sharing(n_prefix, n, first=1):
    """A job of `n` pieces of a shared prefix and 50 other tokens."""
    prompts = [[first] * n_prefix + [100 + k] * 50 for k in range(n)]
    return ScoringJob([(next_token(np.array(ids, np.int32)),) for ids in prompts])


def test_small_requests_do_not_end_the_prefix_sharing_of_a_large_one():
    some = Scheduler(WindowSize(512, 32_768), 3, 10**9, 0.0)
    large, taken = sharing(1000, 80), []
    some.add(large)
    while large.pending:
        small = job("small" * 4)
        some.add(small)
        taken.append(some.take())
        assert not small.pending
    assert sum(one.n_tokens for one in taken) <= 1000 + 80 * 50 + 1000 + 20 * len(taken)


def test_small_requests_do_not_stretch_a_window_without_end():
    some = Scheduler(WindowSize(512, 32_768), 3, 10**9, 0.0)
    some.add(sharing(1000, 1))
    for k in range(100):
        some.add(job(f"{k:03}" * 6))
    assert some.take().n_tokens <= 1050 + 512 // 8


def test_two_large_requests_with_prefixes_of_their_own_have_windows_in_turn():
    some = Scheduler(WindowSize(512, 32_768), 3, 10**9, 0.0)
    jobs = [sharing(1000, 80, first) for first in (1, 2)]
    for one in jobs:
        some.add(one)
    assert some.take().n_tokens > 2000
    assert some.take().n_tokens > 2000
    assert {len(one.pending) < 80 for one in jobs} == {True}


def test_a_job_that_did_not_fit_starts_the_next_window():
    some = backlog(job("aaaaaa"), job("bbbbbb"), job("cc", "dddd"), window=9)
    assert windows(some) == [["aaaaaa", "cc"], ["bbbbbb"], ["dddd"]]


def test_only_so_many_jobs_are_tried_in_vain(monkeypatch):
    monkeypatch.setattr(scheduler_module, "MAX_SKIPPED", 2)
    some = backlog(job("aaaa"), job("bbbbbb"), job("cccccc"), job("dd"), window=7)
    assert windows(some) == [["aaaa"], ["bbbbbb"], ["cccccc"], ["dd"]]


def test_where_nothing_is_shared_all_tokens_count():
    some = Scheduler(WindowSize(10, 100), 3, 10**6, 0.0, shares_prefixes=False)
    one = job(*["aaaa"] * 5)
    some.add(one)
    assert windows(some) == [["aaaa", "aaaa"], ["aaaa", "aaaa"], ["aaaa"]]
    assert one.n_computed == 20


def test_a_text_beyond_a_window_has_one_of_its_own():
    assert windows(backlog(job("a" * 50, "bb"), window=10)) == [["a" * 50], ["bb"]]


def test_a_window_has_at_most_so_many_pieces(monkeypatch):
    """Pieces of one text are no more tokens, and each takes its time."""
    monkeypatch.setattr(scheduler_module, "WINDOW", 3)
    assert windows(backlog(job(*["a"] * 7))) == [["a"] * 3, ["a"] * 3, ["a"]]


def test_sequences_of_one_prompt_stay_together():
    ids = np.array([5, 6, 7], np.int32)
    one = ScoringJob([(every_token(ids), next_token(ids))])
    assert one.n_tokens == 3
    [(taken, place)] = backlog(one).take().pieces
    taken.set_result(place, ["first", "second"])
    assert one.answer.result(0) == [["first", "second"]]


def test_a_job_that_nobody_waits_for_is_dropped():
    first, second = job("aa", "bb"), job("cc")
    some = backlog(first, second)
    assert (some.n_prompts, some.n_tokens) == (3, 6)
    first.answer.cancel()
    assert (some.n_prompts, some.n_tokens) == (1, 2)
    assert windows(some) == [["cc"]]
    second.fail(RuntimeError("planned"))
    assert (some.n_prompts, some.n_tokens) == (0, 0)


def test_a_job_without_work_is_answered_at_once():
    empty = ScoringJob([])
    backlog(empty)
    assert empty.answer.result(0) == []


def test_too_much_is_refused_and_a_large_job_alone_is_not():
    some = backlog(job("a" * 30), most=10)
    with pytest.raises(ApiError) as caught:
        some.add(job("b"))
    assert (caught.value.status, caught.value.code) == (429, "queue_full")
    assert int(caught.value.headers["Retry-After"]) > 0
    assert some.n_tokens == 30


def test_too_many_prompts_are_refused_however_short(monkeypatch):
    monkeypatch.setattr(scheduler_module, "MAX_WAITING", 3)
    some = backlog(job("a", "b"))
    with pytest.raises(ApiError, match="2 prompts wait") as caught:
        some.add(job("c", "d"))
    assert caught.value.status == 429
    some.add(job("c"))


def writing(n):
    return GenerationJob([GenerationRequest(k, [1, 2], 5) for k in range(n)])


def test_windows_and_groups_take_turns():
    some = backlog(job("a" * 8, "b" * 8), writing(2), job("c" * 8), window=8)
    kinds = []
    for _ in range(4):
        if len(kinds) == 2:
            some.add(writing(1))
        kinds.append(type(some.take()))
    assert kinds == [Window, Group, Window, Group]


def test_texts_of_jobs_take_turns_too():
    jobs = [writing(4), writing(1), writing(2)]
    some = backlog(*jobs)
    found = []
    while some._generation:
        found.append([(jobs.index(job), place) for job, place in some.take().texts])
    assert found == [[(0, 0), (1, 0), (2, 0)], [(0, 1), (2, 1), (0, 2)], [(0, 3)]]
    assert some.n_tokens == 14


def test_the_first_job_of_an_idle_worker_waits_for_others():
    some = backlog(gather=0.5, window=100)
    threading.Timer(0.1, some.add, [job("aa")]).start()
    threading.Timer(0.2, some.add, [job("bb")]).start()
    assert sorted(map(text, some.take().pieces)) == ["aa", "bb"]


def test_a_full_window_does_not_wait():
    some = backlog(job("a" * 20), gather=60.0, window=10)
    started = time.monotonic()
    some.take()
    assert time.monotonic() - started < 30


def test_a_busy_worker_does_not_wait():
    some = backlog(job("aaaa"), job("bbbb"), gather=0.0, window=4)
    some.take()
    some._gather = 60.0  # something waits when it comes back, so that it was busy
    started = time.monotonic()
    some.take()
    assert time.monotonic() - started < 30


def test_closing_ends_a_wait_and_takes_nothing_more():
    some = backlog()
    threading.Timer(0.1, some.close).start()
    assert some.take() is None
    with pytest.raises(ApiError, match="shutting down"):
        some.add(job("a"))


@given(st.lists(st.lists(st.sampled_from([0, 1, 255, 256, 2**31 - 1]), max_size=6), max_size=12))
def test_it_counts_distinct_prefixes(sequences):
    size, prefixes = TrieSize(), set()
    for ids in sequences:
        new = {tuple(ids[:n]) for n in range(1, len(ids) + 1)} - prefixes
        prefixes |= new
        array = np.array(ids, np.int32)
        n_shared, n_tokens = len(ids) - len(new), len(prefixes)
        assert size.add(array, lambda n, most=n_tokens - 1, want=n_shared: most + n - want) is None
        assert size.add(array, lambda n, most=n_tokens, want=n_shared: most + n - want) == len(new)
        assert size.n_tokens == len(prefixes)


LEAST, MOST = 512, 32_768


def learned(seconds, n_windows=20):
    """The size after windows as large as allowed that take `seconds(n_tokens)`."""
    size = WindowSize(LEAST, MOST)
    for _ in range(n_windows):
        size.observe(size.n_tokens, seconds(size.n_tokens))
    return size


def test_the_first_window_is_the_smallest():
    assert WindowSize(LEAST, MOST).n_tokens == LEAST
    assert WindowSize(LEAST, 100).n_tokens == 100


@pytest.mark.parametrize("fixed", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("rate", [1e5, 2e4])
def test_a_window_is_predicted_to_take_a_tenth_of_a_second(fixed, rate):
    size = learned(lambda n: fixed + n / rate)
    assert fixed + size.n_tokens / rate == pytest.approx(TARGET, rel=0.05)


def test_the_size_is_learned_in_a_few_windows():
    assert learned(lambda n: n / 1e5, n_windows=1).n_tokens == pytest.approx(1e5 * TARGET, rel=0.01)


@pytest.mark.parametrize(("rate", "size"), [(10.0, LEAST), (1e9, MOST)])
def test_the_size_has_limits(rate, size):
    """A device that is too slow for the smallest batch pads no more of it."""
    assert learned(lambda n: n / rate).n_tokens == size


def test_a_device_that_becomes_slower_has_smaller_windows():
    size = learned(lambda n: n / 1e5)
    for _ in range(5):
        size.observe(size.n_tokens, size.n_tokens / 2e4)
    assert size.n_tokens == pytest.approx(2e4 * TARGET, rel=0.01)


def test_two_windows_that_something_delayed_change_nothing():
    size = learned(lambda n: n / 1e5)
    before = size.n_tokens
    for _ in range(2):
        size.observe(size.n_tokens, 20.0)
        assert size.n_tokens == before


def test_small_windows_tell_nothing_of_large_ones():
    """Their time is that of starting them."""
    size = learned(lambda n: 0.01 + n / 1e5)
    before = size.n_tokens
    for _ in range(50):
        size.observe(20, 0.01)
    size.observe(0, 0.2)
    assert size.n_tokens == before


def test_a_window_goes_on_while_it_shares_a_long_prefix():
    size = learned(lambda n: n / 1e5)
    assert [size.limit(n) for n in (0, 100, 3000, 10_000)] == [10_000, 10_000, 24_000, MOST]


def test_a_window_with_a_long_prefix_ends_at_a_multiple_of_its_time_beyond_it():
    size = learned(lambda n: n / 5120)
    assert size.n_tokens == LEAST
    assert [size.limit(n) for n in (500, 4000, 20_000)] == [
        4000,
        4000 + 8 * LEAST,
        20_000 + 8 * LEAST,
    ]
    assert learned(lambda n: n / 5120).limit(10**6) == MOST
