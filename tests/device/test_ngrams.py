"""Hashes of n-grams in numbers of 32 bits against Python's integers."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device.decoder_config import NgramTable
from jaxscore.device.ngrams import hashed_rows, product, remainder

MOST = 2**63 - 1


@pytest.mark.parametrize("vocabulary", [211, 248_320, 1 << 22])
def test_products_have_64_bits(vocabulary):
    draw = np.random.default_rng(0)
    ids = np.r_[0, 1, vocabulary - 1, draw.integers(0, vocabulary, 50)]
    for multiplier in (1, 2**32 - 1, MOST // vocabulary, *draw.integers(0, MOST // vocabulary, 9)):
        high, low = product(jnp.asarray(ids, jnp.uint32), int(multiplier))
        found = [(int(h) << 32) + int(b) for h, b in zip(high, low, strict=True)]
        assert found == [int(one) * int(multiplier) for one in ids]


@pytest.mark.parametrize("primes", [(2, 3), (53, 59), (20_000_003,), (2**31 - 1, 7)])
def test_remainders_of_64_bits(primes):
    draw = np.random.default_rng(1)
    numbers = [0, 1, MOST, 2**32 - 1, 2**32, *map(int, draw.integers(0, MOST, 50))]
    high, low = (
        jnp.asarray([one >> shift & 0xFFFFFFFF for one in numbers], jnp.uint32)[:, None]
        for shift in (32, 0)
    )
    want = [[one % prime for prime in primes] for one in numbers]
    np.testing.assert_array_equal(remainder(high, low, primes), want)


def test_rows_of_all_orders():
    table = NgramTable((2**55 + 3, 2**54 + 9, 2**40 + 1), (53, 59, 61, 67), 240)
    tokens = [[5, 9], [8, 0], [2, 120]]
    want = []
    for k in range(2):
        hashed = tokens[0][k] * table.multipliers[0] ^ tokens[1][k] * table.multipliers[1]
        longer = hashed ^ tokens[2][k] * table.multipliers[2]
        want.append([hashed % 53, 53 + hashed % 59, 112 + longer % 61, 173 + longer % 67])
    found = hashed_rows([jnp.asarray(one, jnp.int32) for one in tokens], table)
    np.testing.assert_array_equal(found, want)
