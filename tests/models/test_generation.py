"""Greedy text is torch's, token for token: keys and values are kept rightly."""

import numpy as np
import pytest
import torch

from jaxscore import Scorer
from jaxscore.engine.generation import Generator
from jaxscore.plan.requests import TokenSequence
from jaxscore.types.requests import GenerationRequest
from tests.engine.generation.test_generator import OfIds
from tests.models.case_parts import LONGROPE, VOCABULARY
from tests.models.checkpoints import loaded, saved
from tests.models.families import STRUCTURES
from tests.models.mixture_families import SHARED_KEYS_OF_EQUAL_SIZE

# What of a family bears on keys and values, beside its base
CONFIGS = {
    "cohere": {"use_qk_norm": True},
    "falcon": {
        "hidden_size": 48,
        "num_attention_heads": 6,
        "multi_query": False,
        "alibi": True,
    },
    "mixtral": {"sliding_window": 5},
    "phi3": {"sliding_window": 5},
}
NEW = 8


def prompts(*lengths):
    """Token ids; the first two begin alike."""
    draw = np.random.default_rng(5)
    shared = draw.integers(0, VOCABULARY, 40)
    is_identical = [shared[:n] for n in lengths[:2]]
    own = [draw.integers(0, VOCABULARY, n) for n in lengths[2:]]
    return [ids.astype(np.int32) for ids in is_identical + own]


def written(folder, some, **options):
    """What our decoder writes after each prompt."""
    writer = Generator(Scorer(loaded(folder), OfIds(some), batch_tokens=64))
    return writer.generate(
        [GenerationRequest(k, ids, NEW, **options) for k, ids in enumerate(some)]
    )


@torch.no_grad()
def torch_greedy(model, ids, **options):
    prompt = torch.from_numpy(ids.astype(np.int64))[None]
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    return out[0, len(ids) :].tolist()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", STRUCTURES)
def test_greedy_is_torchs_token_for_token(tmp_path, kind):
    model = saved(tmp_path, kind, **CONFIGS.get(kind, {}))
    some = prompts(4, 30, 1, 17)
    for ids, one in zip(some, written(tmp_path, some), strict=True):
        assert one.error is None
        assert one.token_ids.tolist() == torch_greedy(model, ids)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("config", [SHARED_KEYS_OF_EQUAL_SIZE, {"num_kv_shared_layers": 2}])
def test_greedy_with_shared_keys_is_torchs(tmp_path, config):
    model = saved(tmp_path, "gemma4_text", **config)
    some = prompts(4, 30, 17)
    for ids, one in zip(some, written(tmp_path, some), strict=True):
        assert one.error is None
        assert one.token_ids.tolist() == torch_greedy(model, ids)


# A plain one, logits that are capped, logits that are scaled, and a mixture.
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma2", "llama", "cohere", "gpt2", "mixtral"])
def test_greedy_with_a_penalty_is_torchs(tmp_path, kind):
    model = saved(tmp_path, kind, **CONFIGS.get(kind, {}))
    some, moved = prompts(4, 30, 1, 17), 0
    for penalty in (1.5, 0.8):
        got = written(tmp_path, some, repetition_penalty=penalty)
        for ids, one in zip(some, got, strict=True):
            assert one.error is None
            assert one.token_ids.tolist() == torch_greedy(model, ids, repetition_penalty=penalty)
            moved += one.token_ids.tolist() != torch_greedy(model, ids)
    assert moved >= 4


@pytest.mark.slow
def test_longrope_on_either_side_of_its_original_length(tmp_path):
    model = saved(tmp_path, "phi3", rope_scaling=LONGROPE, original_max_position_embeddings=16)
    some = prompts(9, 17, 10, 16)  # 9 and the 7 new tokens that are fed are 16
    *either_side, crossing, at_the_end = written(tmp_path, some)
    scorer = Scorer(loaded(tmp_path), None, batch_tokens=64)
    for ids, one in zip(some, either_side, strict=False):
        assert one.error is None
        assert one.token_ids.tolist() == torch_greedy(model, ids)
        text = TokenSequence(np.r_[ids, one.token_ids].astype(np.int32), len(ids))
        [scores] = scorer.score_sequences([text])
        assert scores.greedy.all()  # scored as it was generated
    for one, n_tokens, most in ((crossing, 10, 7), (at_the_end, 16, 1)):
        assert f"prompt of {n_tokens} tokens and 8 new ones exceed 16," in one.error
        assert f"at most {most} new tokens" in one.error
        assert not len(one.token_ids)
