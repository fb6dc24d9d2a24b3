"""Per-token measures, against torch's logits in float64."""

import numpy as np
import pytest

from jaxscore.device.lm_head.sums import MEASURES
from tests.models.checkpoints import loaded, ragged, saved, scorer, torch_logits
from tests.models.families import STRUCTURES
from tests.models.test_top import CONFIGS

pytestmark = [pytest.mark.numeric, pytest.mark.lines]


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("kind", STRUCTURES)
def test_they_are_torchs(tmp_path, kind):
    model = saved(tmp_path, kind, **CONFIGS.get(kind, {}))
    found = scorer(loaded(tmp_path)).score_sequences(ragged(), measures=MEASURES)
    for one, scores in zip(ragged(), found, strict=True):
        z = torch_logits(model, one).double().numpy()[one.first_scored - 1 :]
        logp = z - z.max(axis=1, keepdims=True)
        logp -= np.log(np.exp(logp).sum(axis=1, keepdims=True))
        p = np.exp(logp)
        spread = (p * (logp - (p * logp).sum(axis=1, keepdims=True)) ** 2).sum(axis=1)
        renyi = -np.log((p**2).sum(axis=1))
        got = scores.measures
        np.testing.assert_allclose(got["varentropy"], spread, atol=1e-4, rtol=0)
        np.testing.assert_allclose(got["renyi2"], renyi, atol=1e-4, rtol=0)
        # Two logits nearer than float32 can tell may change places.
        own = np.take_along_axis(z, one.targets[:, None].astype(int), axis=1)
        least, most = (z > own + 1e-4).sum(axis=1), (z > own - 1e-4).sum(axis=1)
        assert (got["rank"] >= 1 + least).all()
        assert (got["rank"] <= np.maximum(most, 1)).all()
