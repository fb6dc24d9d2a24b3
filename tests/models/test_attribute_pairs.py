"""Pairs of attributes: every token of every config of the covering arrays agrees with torch."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.lm_head.column_blocks import all_logits
from jaxscore.models.families import FAMILIES
from jaxscore.models.model import Model
from tests.conftest import optimised_code
from tests.device.tries import device_paths
from tests.models import attribute_pairs as pairs
from tests.models.case_parts import VOCABULARY
from tests.models.checkpoints import loaded, saved
from tests.models.families import CASES

pytestmark = [pytest.mark.numeric, pytest.mark.lines]

TOLERANCE = 1e-4
PREFIX, BRANCHES = 12, (18, 9)


@pytest.mark.slow
def test_every_pair_is_covered_or_refused_by_name():
    for kind in FAMILIES:
        found = pairs.cover(kind)
        held = set()
        cases = [case.config for case in CASES if case.kind == kind]
        for config in [*found.configs, {}, *cases]:
            levels = [
                (name, pairs.level(name, known, config))
                for name, known in pairs.values(kind).items()
            ]
            held |= set(map(frozenset, itertools.combinations(levels, 2)))
        assert held == found.covered
        assert held | set(found.refused) == pairs.all_pairs(kind)
        assert not held & set(found.refused)
        for pair, said in found.refused.items():
            named = {"rotary channels of a head", *(name for name, _ in pair)}
            named |= {str(pairs.values(kind)[name][level]) for name, level in pair}
            assert any(re.search(rf"\b{word}\b", said) for word in named), (kind, pair, said)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", FAMILIES)
def test_every_pair_of_attributes_agrees_with_torch(tmp_path, kind):
    draw = np.random.default_rng(3)
    prefix = draw.integers(0, VOCABULARY, PREFIX)
    branches = [draw.integers(0, VOCABULARY, n) for n in BRANCHES]

    def compared(config, seed):
        """Largest difference in nats."""
        torch_model = saved(tmp_path, kind, torch_seed=seed, **config)
        want, model = torch_logprobs(torch_model, prefix, branches), loaded(tmp_path)

        def apart(want):
            found = numbers(own_logprobs(model, prefix, branches), prefix, branches)
            return np.abs(found - numbers(want, prefix, branches)).max()

        found = apart(want)
        if found < TOLERANCE:
            return found
        # Of a few models the code that is quick to make rounds ten times as much as torch.
        with optimised_code():
            found = apart(want)
            if found < TOLERANCE:
                return found
            # On some processors torch's float32 is further from its float64 than ours.
            return apart(torch_logprobs(torch_model.double(), prefix, branches))

    failures = []
    for config in pairs.cover(kind).configs:
        # Some draws amplify any rounding: of one of olmo_hybrid's, a change of the weights by 2^-24
        # moves a token of float64 by 1.6e-4. A defect shows in another draw, too.
        found = compared(config, seed=7)
        if not found < TOLERANCE:  # nor NaN
            found = compared(config, seed=8)
        if not found < TOLERANCE:
            failures.append(f"{found:.2g} nats apart: {config}")
    assert not failures, "\n".join(failures)


def numbers(logp: np.ndarray, prefix: np.ndarray, branches: list[np.ndarray]) -> np.ndarray:
    """Of each row the next token's log-probability, entropy and self-certainty, nats."""
    targets = np.concatenate(
        [prefix[1:], branches[0][:1], *(np.r_[one[1:], 0] for one in branches)]
    )
    picked = np.take_along_axis(logp, targets[:, None], axis=1)[:, 0]
    return np.stack([picked, -(np.exp(logp) * logp).sum(axis=1), -logp.mean(axis=1)])


@torch.no_grad()
def torch_logprobs(model: torch.nn.Module, prefix: np.ndarray, branches: list[np.ndarray]):
    """Of all tokens, float64 [tokens of the prefix and of all branches, V]."""
    rows = []
    for branch in branches:
        ids = torch.from_numpy(np.r_[prefix, branch])
        rows.append(model(ids[None]).logits[0])
    logits = torch.cat([rows[0][:PREFIX], *(row[PREFIX:] for row in rows)])
    return torch.log_softmax(logits.double(), -1).numpy()


def own_logprobs(model: Model, prefix: np.ndarray, branches: list[np.ndarray]) -> np.ndarray:
    """The same, the branches as tries of one row behind a prefix cache.

    One program, which takes most of the time to make: the prefix is the beginning of the first trie
    of such a row, behind an empty cache. Recurrent layers take chunks of 8 tokens.
    """
    functions = model.functions
    if model.longer is not None and PREFIX + max(map(len, branches)) > model.longer[0]:
        functions = model.longer[1]
    lengths = [len(branch) for branch in branches]
    position = np.concatenate([np.arange(n) for n in lengths])[None]
    end = np.repeat(np.cumsum(lengths), lengths)[None]
    paths = None
    if functions.paths is not None:
        paths = device_paths(end, 8 if functions.paths.size else 0, 2)

    @jax.jit
    def run(params, ids, cache):
        at, last = position + cache.length, jnp.array([PREFIX - 1])
        rows = ids[None], at, jnp.array(end)
        hidden, made = functions.cached.extend(params, *rows, (cache,), paths, last)
        more = KVCache(made.key, made.value, jnp.int32(0), last + 1, made.states)
        return all_logits(hidden[0], functions.unembedding(params)), more

    empty = jax.eval_shape(functools.partial(functions.cached.empty_cache, 1, end.size))
    key, value, states = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), empty)
    cache = KVCache(key, value, np.int32(0), np.zeros(1, np.int32), states)
    ids = np.concatenate(branches).astype(np.int32)
    first, cache = run(model.params, np.r_[prefix, ids[PREFIX:]].astype(np.int32), cache)
    more, _ = run(model.params, ids, jax.tree.map(np.asarray, cache))  # as before: one program
    logits = np.concatenate([first[:PREFIX], more]).astype(np.float64)
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
