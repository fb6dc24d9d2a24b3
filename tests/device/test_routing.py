"""Which experts a token runs, token by token in NumPy and by the rule."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device.decoder_config import Experts
from jaxscore.device.experts import route_tokens

COUNT, K = 8, 3


def one_token(z, correction, e):
    """Experts and weights of a token, written out."""
    if e.router.scores == "sigmoid":
        scores = 1 / (1 + np.exp(-z))
    else:
        scores = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    ranked = list(scores + correction)
    size = COUNT // e.router.groups
    groups = [range(g * size, (g + 1) * size) for g in range(e.router.groups)]
    best = sorted(
        range(e.router.groups),
        key=lambda g: (
            -sum(sorted((ranked[j] for j in groups[g]), reverse=True)[: e.router.group_rank])
        ),
    )
    allowed = [j for g in best[: e.router.groups_per_token] for j in groups[g]]
    chosen = sorted(allowed, key=lambda j: -ranked[j])[: e.per_token]
    share = np.array([scores[j] for j in chosen])
    if e.router.renormalised:
        share = share / max(share.sum(), e.router.least_sum)
    return dict(zip(chosen, share * e.router.scale, strict=True))


def sparsemixer(z, e):
    left, out = set(range(COUNT)), {}
    for _ in range(e.per_token):
        best = max(left, key=lambda j: z[j])
        near = [
            j for j in left if (z[best] - z[j]) / max(abs(z[j]), z[best]) <= 2 * e.router.jitter
        ]
        out[best] = np.exp(z[best]) / sum(np.exp(z[j]) for j in near)
        left.remove(best)
    return out


RULES = {
    "softmax": Experts.of(count=COUNT, per_token=K, router_renormalised=False),
    "renormalised": Experts.of(count=COUNT, per_token=K, router_renormalised=True),
    "sigmoid": Experts.of(
        count=COUNT,
        per_token=K,
        router_renormalised=True,
        router_scores="sigmoid",
        router_corrected=True,
        router_scale=2.5,
    ),
    "groups by two": Experts.of(
        count=COUNT,
        per_token=K,
        router_renormalised=False,
        router_scores="sigmoid",
        router_corrected=True,
        router_groups=4,
        router_groups_per_token=2,
        router_group_rank=2,
    ),
    "groups by the best": Experts.of(
        count=COUNT,
        per_token=K,
        router_renormalised=False,
        router_groups=4,
        router_groups_per_token=2,
        router_scale=16.0,
    ),
    "a floor": Experts.of(
        count=COUNT,
        per_token=K,
        router_renormalised=True,
        router_corrected=True,
        router_least_sum=0.7,
    ),
    "sparsemixer": Experts.of(
        count=COUNT,
        per_token=2,
        router_renormalised=False,
        router_scores="sparsemixer",
        router_jitter=0.2,
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_every_token_runs_its_experts(name):
    rule, draw = RULES[name], np.random.default_rng(2)
    logits = draw.normal(size=(2, 30, COUNT)).astype(np.float32) * 2
    correction = (
        draw.normal(size=COUNT).astype(np.float32) if rule.router.corrected else np.zeros(COUNT)
    )
    added = jnp.asarray(correction) if rule.router.corrected else None
    share, chosen = route_tokens(jnp.asarray(logits), added, rule)
    assert share.shape == chosen.shape == (2, 30, rule.per_token)
    plain = 0
    for r in range(2):
        for t in range(30):
            z = logits[r, t].astype(np.float64)
            got = dict(zip(np.asarray(chosen[r, t]), np.asarray(share[r, t]), strict=True))
            if rule.router.scores == "sparsemixer":
                want = sparsemixer(z, rule)
            else:
                want = one_token(z, correction, rule)
            assert got == pytest.approx(want, abs=1e-5)
            plain += set(want) == set(np.argsort(-z)[: rule.per_token])
    if rule.router.corrected or rule.router.groups > 1:
        assert plain < 60  # the rule chooses others than the largest logits


def test_a_masked_expert_never_wins_over_a_negative_score():
    """Groups out of the running are below every number, as DeepSeek's own code has them."""
    rule = Experts.of(
        count=4,
        per_token=2,
        router_renormalised=False,
        router_scores="sigmoid",
        router_corrected=True,
        router_groups=2,
        router_groups_per_token=1,
    )
    _, chosen = route_tokens(jnp.zeros((1, 1, 4)), jnp.asarray([-5.0, -6.0, -7.0, -8.0]), rule)
    assert sorted(np.asarray(chosen).ravel()) == [0, 1]
