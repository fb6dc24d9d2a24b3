"""The most probable tokens: torch's, and the bits of the token's own number."""

import numpy as np
import pytest
import torch

from jaxscore.plan.requests import TokenSequence
from tests.models.case_parts import LONGROPE
from tests.models.checkpoints import loaded, ragged, saved, scorer, torch_logits
from tests.models.families import STRUCTURES

pytestmark = [pytest.mark.numeric, pytest.mark.lines]

TOP = 5
# Either side of phi3's original length is a variant of its own.
CONFIGS = {"phi3": {"rope_scaling": LONGROPE, "original_max_position_embeddings": 16}}


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("kind", STRUCTURES)
def test_they_are_torchs(tmp_path, kind):
    model = saved(tmp_path, kind, **CONFIGS.get(kind, {}))
    for one, scores in zip(
        ragged(), scorer(loaded(tmp_path)).score_sequences(ragged(), top=TOP), strict=True
    ):
        every = torch.log_softmax(torch_logits(model, one).float(), -1).numpy()
        of_ids = np.take_along_axis(every, scores.top_id.astype(int), axis=1)
        np.testing.assert_allclose(scores.top_logprob, of_ids, atol=1e-4, rtol=0)
        largest = -np.sort(-every, axis=1)[:, :TOP]
        np.testing.assert_allclose(scores.top_logprob, largest, atol=1e-4, rtol=0)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("top", [1, TOP])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_the_best_one_has_its_own_numbers_bits(originals, kind, top):
    own = scorer(loaded(originals[kind]))
    ids = ragged()[-1].ids
    [along] = own.score_sequences([TokenSequence(ids, 0)], top=top)
    best = [
        TokenSequence(np.append(ids[: k + 1], along.top_id[k, 0]).astype(np.int32), k + 1)
        for k in range(len(ids) - 1)
    ]
    for scores, id in zip(own.score_sequences(best, top=top), along.top_id[:, 0], strict=True):
        assert scores.greedy.all()
        assert scores.top_id[0, 0] == id
        assert scores.logprob.tobytes() == scores.top_logprob[:, 0].tobytes()
