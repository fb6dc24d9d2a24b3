"""Windows that take a tenth of a second, on devices whose times are formulas."""

import pytest

from jaxscore.server.window_size import TARGET, WindowSize

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
