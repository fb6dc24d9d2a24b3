"""Models with recurrent layers: long tries in many chunks, and what is refused by name."""

import dataclasses

import numpy as np
import pytest
import torch

from jaxscore import Scorer
from jaxscore.engine.generation.generator import Generator
from jaxscore.errors import InputError
from jaxscore.models.load import load
from jaxscore.models.model_pair import paired
from jaxscore.plan.chunks import PathNeeds
from jaxscore.plan.requests import TokenSequence
from jaxscore.types.requests import GenerationRequest
from tests.engine.generation.test_generator import OfIds
from tests.models.case_parts import VOCABULARY
from tests.models.checkpoints import (
    assert_agree,
    distance,
    loaded,
    saved,
    torch_model,
    torch_scores,
)

pytestmark = [pytest.mark.numeric, pytest.mark.lines]

KINDS = ["lfm2", "qwen3_5_text", "bamba", "falcon_h1"]
LONG = {"max_position_embeddings": 512}


def shared():
    """A prompt with five answers, nested branches, and short texts."""
    draw = np.random.default_rng(0)

    def text(n):
        return draw.integers(0, VOCABULARY, n)

    prompt, other, rest = text(100), text(37), text(50)
    texts = [np.r_[prompt, text(5)] for _ in range(5)]
    texts += [np.r_[other, text(n)] for n in (3, 90, 17)]
    texts += [np.r_[other, rest, text(n)] for n in (2, 9, 70)]
    texts += [text(n) for n in (2, 3, 11, 66)]
    return [TokenSequence(one.astype(np.int32), 0) for one in texts]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", KINDS)
def test_tries_in_chunks_of_any_size_agree_with_each_text_alone(tmp_path, kind):
    model = torch_model(kind, **LONG)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(0.5 if value.ndim == 2 else 1)  # wider ones amplify torch's own rounding
    model.save_pretrained(tmp_path)
    want = torch_scores(model, shared())
    own = loaded(tmp_path)
    alone = Scorer(own, None, reproducible=True)
    assert_agree(alone.score_sequences(shared()), want)
    sizes = [own.paths] if not own.paths.size else [PathNeeds(8, 3), PathNeeds(64, 1)]
    for needs in sizes:
        scorer = Scorer(dataclasses.replace(own, paths=needs), None, batch_tokens=512)
        got = scorer.score_sequences(shared())
        assert scorer.statistics.tokens_laid_out < 0.6 * sum(len(s.ids) for s in shared())
        assert distance(got, alone.score_sequences(shared())) < 2e-5


def test_bits_of_a_text_alone_do_not_depend_on_others(tmp_path):
    saved(tmp_path, "qwen3_5_text", **LONG)
    scorer = Scorer(loaded(tmp_path), None, reproducible=True)
    one = scorer.score_sequences(shared()[:1])[0]
    again = scorer.score_sequences(shared()[::-1])[-1]
    assert one.logprob.tobytes() == again.logprob.tobytes()


@pytest.mark.slow
def test_a_pair_with_a_model_of_attention_alone(tmp_path):
    saved(tmp_path / "p", "qwen3_5_text")
    saved(tmp_path / "q", "llama")
    p, q = loaded(tmp_path / "p"), loaded(tmp_path / "q")
    sequences = [TokenSequence(s.ids[:40], 0) for s in shared()]
    want = Scorer(p, None, batch_tokens=64).score_sequences(sequences)
    for pair in (paired(p, q), paired(q, p)):
        got = Scorer(pair, None, batch_tokens=64).score_sequences(sequences)
        if pair.model_type == "qwen3_5_text":
            assert distance(got, want) < 2e-5
        assert all(np.isfinite(one.logprob).all() for one in got)


def test_what_is_refused(tmp_path):
    saved(tmp_path, "lfm2")
    with pytest.raises(InputError, match="--quantize is not compared for recurrent layers"):
        load(tmp_path, quantize="int8")
    scorer = Scorer(loaded(tmp_path), OfIds([np.array([1, 2], np.int32)]), batch_tokens=64)
    assert not scorer.capabilities.generates
    [refused] = Generator(scorer).generate([GenerationRequest("0", "0", 2)])
    assert "the model has recurrent layers, whose states are not kept" in refused.error
