"""How tokens are chosen, against the definition in NumPy and transformers' processors in torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device.sampling import (
    Sampling,
    _allowed_tokens,
    apply_repetition_penalty,
    gumbel_noise,
)
from jaxscore.device.sampling import sample_tokens as drawn_by

pytestmark = pytest.mark.numeric

V = 23


def sampling(n, temperature, top_p, seeds=None, top_k=0):
    seeds = range(n) if seeds is None else seeds
    return Sampling(
        jnp.full(n, temperature),
        jnp.full(n, top_p),
        jnp.full(n, top_k),
        jnp.ones(n),
        jnp.array(list(seeds), jnp.uint32),
    )


def sample_tokens(logits, sampling, drawn):
    """With the cut, and where no request has one, the same tokens without it."""
    out = jax.jit(drawn_by, static_argnames="cut")(logits, sampling, drawn, cut=True)
    if not sampling.top_k.any() and (sampling.top_p >= 1).all():
        without = jax.jit(drawn_by, static_argnames="cut")(logits, sampling, drawn, cut=False)
        assert without.tolist() == out.tolist()
    return out


def nucleus(logits, temperature, top_p, top_k=0):
    """Ids of the smallest set of most probable ones that holds top_p, and their shares.

    Before that only the first k remain. Of equally probable ones the lowest id comes first.
    """
    z = logits.astype(np.float64) / temperature
    if top_k:
        z[np.argsort(-z, kind="stable")[top_k:]] = -np.inf
    p = np.exp(z - z.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    count = 1
    while p[order[:count]].sum() < top_p and count < len(p):
        count += 1
    kept = order[:count]
    return kept, p[kept] / p[kept].sum()


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [
        (1.0, 1.0, 0),
        (0.7, 0.8, 0),
        (2.0, 0.5, 0),
        (1.0, 0.01, 0),
        (1.0, 1.0, 5),
        (2.0, 1.0, 1),
        (1.5, 0.7, 6),
        (1.0, 1.0, V + 9),
    ],
)
def test_draws_have_the_shares_of_the_nucleus(temperature, top_p, top_k):
    n = 20000
    logits = np.random.default_rng(3).normal(size=V).astype(np.float32) * 1.5
    logits[7] = logits[11] = np.sort(logits)[-5]  # equal ones at the fifth place
    kept, shares = nucleus(logits, temperature, top_p, top_k)
    drawn = sample_tokens(
        jnp.tile(logits, (n, 1)),
        sampling(n, temperature, top_p, top_k=top_k),
        jnp.zeros(n, jnp.int32),
    )
    counts = np.bincount(np.asarray(drawn), minlength=V)
    assert set(np.flatnonzero(counts)) <= set(kept.tolist())
    # Five standard deviations of a binomial, for each token.
    error = 5 * np.sqrt(shares * (1 - shares) / n) + 1e-12
    assert (np.abs(counts[kept] / n - shares) <= error).all()


def test_a_penalty_is_transformers(torch_processors):
    """Each id that was seen once, whatever its sign, however often it was seen."""
    random = np.random.default_rng(9)
    logits = random.normal(size=(4, V)).astype(np.float32) * 3
    logits[0, :3] = 0, -np.inf, 1e-30
    ids = random.integers(0, V, (4, 12))
    seen = np.zeros((4, V), bool)
    np.put_along_axis(seen, ids, True, axis=1)
    assert (seen.sum(axis=1) < 12).all()  # ids that come twice
    for penalty in (1.3, 0.7, 1.0, 3.0):
        got = apply_repetition_penalty(jnp.asarray(logits), jnp.asarray(seen), jnp.full(4, penalty))
        want = torch_processors(ids, logits, repetition_penalty=penalty)
        np.testing.assert_allclose(got, want, rtol=1e-6)
        slow = logits.copy()
        for row, of_row in zip(slow, ids, strict=True):
            for id in {*of_row.tolist()}:
                row[id] = row[id] * penalty if row[id] < 0 else row[id] / penalty
        np.testing.assert_allclose(got, slow, rtol=1e-6)


def test_the_order_of_operations_is_transformers(torch_processors):
    """Penalty, temperature, top_k, top_p: which tokens may be drawn, and how often."""
    n, random = 20000, np.random.default_rng(2)
    logits, ids = random.normal(size=V).astype(np.float32), random.integers(0, V, 6)
    options = {"repetition_penalty": 1.4, "temperature": 0.8, "top_k": 7, "top_p": 0.8}
    [z] = torch_processors(ids[None], logits[None], **options).astype(np.float64)
    shares = np.exp(z - z.max())
    shares /= shares.sum()
    seen = jnp.zeros((n, V), bool).at[:, ids].set(True)
    after = apply_repetition_penalty(jnp.tile(logits, (n, 1)), seen, jnp.full(n, 1.4))
    drawn = sample_tokens(after, sampling(n, 0.8, 0.8, top_k=7), jnp.zeros(n, jnp.int32))
    counts = np.bincount(np.asarray(drawn), minlength=V)
    assert (counts[shares == 0] == 0).all()
    # Of all tokens the nucleus would be larger than 7, of those 7 it is smaller.
    assert len(nucleus(np.asarray(after[0]), 0.8, 0.8)[0]) > 7 > (shares > 0).sum() > 2
    error = 5 * np.sqrt(shares * (1 - shares) / n) + 1e-12
    assert (np.abs(counts / n - shares) <= error).all()


@pytest.fixture
def torch_processors():
    """`torch_processors(ids, logits, **options)`: logits as PyTorch's `generate` changes them."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from transformers import LogitsProcessorList
    from transformers.generation import logits_process

    made = {
        "repetition_penalty": logits_process.RepetitionPenaltyLogitsProcessor,
        "temperature": logits_process.TemperatureLogitsWarper,
        "top_k": logits_process.TopKLogitsWarper,
        "top_p": logits_process.TopPLogitsWarper,
    }

    def run(ids, logits, **options):
        steps = LogitsProcessorList(
            kind(options[name]) for name, kind in made.items() if name in options
        )
        return steps(torch.from_numpy(ids), torch.from_numpy(logits.copy())).numpy()

    return run


@pytest.mark.slow
def test_draw_depends_only_on_seed_and_count():
    logits = jnp.asarray(np.random.default_rng(4).normal(size=(6, V)), jnp.float32)
    same = jnp.tile(logits[:1], (6, 1))
    step = jnp.zeros(6, jnp.int32)
    seeds = [1, 1, 2, 3, 4, 5]
    first = sample_tokens(same, sampling(6, 1.5, 1.0, seeds), step)
    assert first[0] == first[1]
    assert len(set(first.tolist())) > 1
    alone = [
        sample_tokens(same[k : k + 1], sampling(1, 1.5, 1.0, [s]), step[:1])
        for k, s in enumerate(seeds)
    ]
    assert [int(one[0]) for one in alone] == first.tolist()
    later = sample_tokens(same, sampling(6, 1.5, 1.0, seeds), step + 1)
    assert later.tolist() != first.tolist()


@pytest.mark.slow
def test_temperature_0_is_the_argmax_and_the_lower_id_of_two():
    logits = jnp.zeros((2, V)).at[0, 7].set(1.0).at[1, 9].set(2.0).at[1, 4].set(2.0)
    assert sample_tokens(logits, sampling(2, 0.0, 1.0), jnp.zeros(2, jnp.int32)).tolist() == [7, 4]


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1e-6, 1.0), (1e-38, 1.0), (1e30, 1e-9), (1.0, 1e-30)]
)
def test_what_leaves_one_token_draws_the_most_probable(temperature, top_p):
    # Divided by 1e-38 four of these logits are infinite.
    logits = jnp.tile(jnp.array([10.0, 19.0, -5.0, 20.0, 19.5]), (64, 1))
    drawn = sample_tokens(logits, sampling(64, temperature, top_p), jnp.zeros(64, jnp.int32))
    assert drawn.tolist() == [3] * 64


def test_every_token_may_be_drawn_where_nothing_is_cut():
    """Also those behind the place at which sums of float32 reach 1."""
    logits = jnp.array([[0.0, -40.0, -41.0]])
    assert float(jax.nn.softmax(logits)[0, 0]) == 1
    assert _allowed_tokens(logits, sampling(1, 1.0, 1.0)).tolist() == [[True, True, True]]
    assert _allowed_tokens(logits, sampling(1, 1.0, 0.9)).tolist() == [[True, False, False]]
    assert _allowed_tokens(logits, sampling(1, 1.0, 1.0, top_k=2)).tolist() == [[True, True, False]]


@pytest.mark.parametrize("top_p", [1.0, 0.999, 0.9, 0.5, 0.01, 1e-30])
@pytest.mark.parametrize("top_k", [0, 1, 5, 40, 10**6])
def test_what_may_be_drawn_is_what_a_sort_finds(top_p, top_k):
    """Rows of many and of few tokens, equal ones, and some without any probability."""
    draw = np.random.default_rng(top_k)
    z = draw.normal(0, np.array([[0.1], [3.0], [30.0], [1.0]]), (4, 301)).astype(np.float32)
    z[3] = np.round(z[3])  # a handful of values, several of them the largest
    z[1, 5:9] = -np.inf
    z -= z.max(axis=1, keepdims=True)
    z[2:, ::2] = np.where(z[2:, ::2] == 0, -0.0, z[2:, ::2])  # equal to the other zeros
    kept = np.asarray(_allowed_tokens(jnp.asarray(z), sampling(4, 1.0, top_p, top_k=top_k)))
    for row, own in zip(z, kept, strict=True):
        order = np.argsort(-row, kind="stable")[: top_k or 301]  # the lowest id first
        share = np.exp(row[order].astype(np.float64))
        before = (np.cumsum(share) - share) / share.sum()
        near = np.abs(before - top_p) < 1e-6  # sums of float32 may fall on either side
        near |= share == 0  # which no draw can find
        want = (before < top_p) | (top_p == 1)
        assert (own[order] == want)[~near].all()
        assert own.any()
        assert not np.delete(own, order).any()


@pytest.mark.parametrize(("top_p", "n_kept"), [(0.1, 1), (0.3, 2), (0.5, 2), (0.51, 3), (0.9, 4)])
def test_of_tied_tokens_the_smallest_set_with_the_lowest_ids_stays(top_p, n_kept):
    logits = jnp.full((1, V), -jnp.inf).at[0, jnp.array([4, 9, 12, 20])].set(2.0)
    kept = _allowed_tokens(logits - 2.0, sampling(1, 1.0, top_p))[0]
    assert np.flatnonzero(kept).tolist() == [4, 9, 12, 20][:n_kept]
    kept = _allowed_tokens(logits - 2.0, sampling(1, 1.0, 1.0, top_k=n_kept))[0]
    assert np.flatnonzero(kept).tolist() == [4, 9, 12, 20][:n_kept]
    # Of the first three tokens each has a third.
    kept = _allowed_tokens(logits - 2.0, sampling(1, 1.0, top_p, top_k=3))[0]
    assert np.flatnonzero(kept).tolist() == [4, 9, 12][: -int(-3 * top_p // 1)]


@pytest.mark.slow
def test_a_very_high_temperature_draws_from_all_alike():
    logits = jnp.tile(jnp.array([10.0, 19.0, -5.0, 20.0]), (4000, 1))
    drawn = sample_tokens(logits, sampling(4000, 1e30, 1.0), jnp.zeros(4000, jnp.int32))
    assert (np.abs(np.bincount(drawn, minlength=4) - 1000) < 5 * np.sqrt(750)).all()


def threefry(key, counter):
    """Threefry-2x32 with 20 rounds, by the paper (Salmon et al. 2011, section 3.3), in NumPy."""
    k0, k1 = (np.uint32(word) for word in key)
    schedule = k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA)
    x0, x1 = (np.asarray(word, np.uint32) for word in counter)
    with np.errstate(over="ignore"):
        x0, x1 = x0 + k0, x1 + k1
        for group in range(5):
            for by in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
                x0 = x0 + x1
                x1 = (x1 << np.uint32(by) | x1 >> np.uint32(32 - by)) ^ x0
            x0 = x0 + schedule[(group + 1) % 3]
            x1 = x1 + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def test_noise_of_a_token_is_one_hash_of_seed_count_and_id():
    known = [int(word) for word in threefry((0, 0), (0, 0))]
    assert known == [0x6B200159, 0x99BA4EFE]  # the first known answer of Random123
    seeds, counts = [0, 7, 2**32 - 1], [0, 31, 32]
    noise = gumbel_noise(jnp.array(seeds, jnp.uint32), jnp.array(counts, jnp.int32), V)
    for row, seed, count in zip(np.asarray(noise), seeds, counts, strict=True):
        key = threefry((0, seed), (0, count))
        first, second = threefry(key, (np.zeros(V), np.arange(V)))
        uniform = ((first ^ second) >> 9) / 2**23
        np.testing.assert_allclose(row, -np.log(-np.log(uniform)), rtol=1e-4, atol=1e-5)
        # Texts of earlier versions stay the same.
        key = jax.random.fold_in(jax.random.key(seed), count)
        assert row.tolist() == jax.random.gumbel(key, (V,), jnp.float32).tolist()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_default_prng_impl", "rbg"),
        ("jax_default_prng_impl", "unsafe_rbg"),
        ("jax_threefry_partitionable", False),
        ("jax_random_seed_offset", 5),
        ("jax_high_dynamic_range_gumbel", True),
        ("jax_legacy_prng_key", "error"),
        ("jax_debug_key_reuse", True),
        ("jax_enable_x64", True),
    ],
)
def test_noise_does_not_depend_on_settings_of_the_process_or_on_neighbours(
    name, value, jax_setting
):
    seeds, counts = jnp.array([3, 8, 3], jnp.uint32), jnp.array([0, 5, 9], jnp.int32)
    by_default = gumbel_noise(seeds, counts, V).tolist()
    jax_setting(name, value)
    draw = jax.jit(gumbel_noise, static_argnums=2)  # a function of its own: nothing is cached
    assert draw(seeds, counts, V).tolist() == by_default
    alone = [draw(seeds[k : k + 1], counts[k : k + 1], V).tolist()[0] for k in range(3)]
    assert alone == by_default
