"""A prefix never changes a score of a family whose scores are more than products of q and k."""

import numpy as np
import pytest
import torch

from jaxscore import Scorer
from jaxscore.engine import planner
from jaxscore.plan.requests import TokenSequence
from tests.models.case_parts import VOCABULARY
from tests.models.checkpoints import loaded, saved, torch_logits
from tests.models.mixture_families import SHARED_KEYS_OF_EQUAL_SIZE

pytestmark = pytest.mark.slow

PREFIX = 290  # beyond 256, where Falcon's positions are rounded


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("bloom", {}),
        ("falcon", {"alibi": True, "max_position_embeddings": 512}),
        # Of the prefix a question sees the last tokens in one layer, and all in the other.
        ("gemma2", {"sliding_window": 20, "max_position_embeddings": 512}),
        # Sinks; latent keys; stretches that begin within the prefix; heads of two sizes, shared.
        ("gpt_oss", {"sliding_window": 20, "max_position_embeddings": 512}),
        ("deepseek_v3", {"max_position_embeddings": 512}),
        ("llama4_text", {"attention_chunk_size": 48, "max_position_embeddings": 512}),
        (
            "gemma4_text",
            {"sliding_window": 20, "num_kv_shared_layers": 2, "max_position_embeddings": 512},
        ),
        (
            "gemma4_text",
            SHARED_KEYS_OF_EQUAL_SIZE | {"sliding_window": 20, "max_position_embeddings": 512},
        ),
        # States and inputs of convolutions at the prefix's last token.
        ("lfm2", {"max_position_embeddings": 512}),
        ("qwen3_5_text", {"max_position_embeddings": 512}),
        ("bamba", {"max_position_embeddings": 512}),
        # States alone
        ("mamba2", {}),
        ("falcon_mamba", {}),
        ("recurrent_gemma", {}),
    ],
)
@pytest.mark.usefixtures("optimised")
def test_a_prefix_never_changes_a_score(monkeypatch, tmp_path, kind, config):
    original = saved(tmp_path, kind, **config)
    model = loaded(tmp_path)
    draw = np.random.default_rng(7)
    prefix = draw.integers(0, VOCABULARY, PREFIX)
    asked = []
    for _ in range(40):
        ids = np.r_[prefix, draw.integers(0, VOCABULARY, int(draw.integers(2, 30)))]
        asked.append(TokenSequence(ids.astype(np.int32), PREFIX - int(draw.integers(0, 2))))
    found = []
    for least, kinds in ((0, {"prefix", "score"}), (1e30, {"score"})):
        monkeypatch.setattr(planner, "LEAST_SAVED_CPU", least)
        own = Scorer(model, None, batch_tokens=512)
        found.append(own.score_sequences(asked))
        assert {program.name[0] for program in own.engine.programs.compiled} == kinds
    exact = [float64_logprobs(original.double(), one) for one in asked]
    with_prefix, without = (
        max(np.abs(one.logprob - own).max() for one, own in zip(scores, exact, strict=True))
        for scores in found
    )
    # After 290 tokens some of these models round by 3e-5 in float32, however their texts are laid
    # out. A prefix rounds no more than that.
    assert without < 1e-4
    assert with_prefix < max(2 * without, 1e-5)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.greedy, other.greedy)
        np.testing.assert_allclose(one.entropy, other.entropy, rtol=0, atol=1e-4)
        np.testing.assert_allclose(one.self_certainty, other.self_certainty, rtol=0, atol=1e-4)


def float64_logprobs(model, one):
    """Of the tokens that are scored."""
    logp = torch.log_softmax(torch_logits(model, one).double(), -1).numpy()[one.first_scored - 1 :]
    return np.take_along_axis(logp, one.targets[:, None].astype(int), axis=1)[:, 0]
