"""Rules that depend on the length of a text, at exactly the lengths where they change.

What counts is the number of tokens that the model reads: the last token of a text is only scored.
"""

import numpy as np
import pytest
import torch

from jaxscore import Scorer
from jaxscore.plan.requests import TextWindows, TokenSequence, WindowedText
from tests.models.case_parts import (
    DYNAMIC,
    FULL,
    LLAMA3,
    LONGROPE,
    POSITIONS,
    SLIDING,
    SLOW_YARN,
    VOCABULARY,
    scaled,
)
from tests.models.checkpoints import (
    FIFTH,
    assert_agree,
    distance,
    loaded,
    saved,
    scorer,
    torch_logits,
    torch_scores,
)
from tests.models.llamalike_families import MSCALED

pytestmark = [pytest.mark.numeric, pytest.mark.lines]

ORIGINAL = 16
SHORT_AND_LONG = {"original_max_position_embeddings": ORIGINAL, **scaled(LONGROPE)}
# Families with other rotary frequencies beyond the original length, and their configs
LONGROPES = {
    "phi3": SHORT_AND_LONG,
    "phi4_multimodal": SHORT_AND_LONG,
    "minicpm3": scaled(
        LONGROPE,
        short_factor=[1.0, 2.0],
        long_factor=[1.5, 8.0],
        original_max_position_embeddings=ORIGINAL,
    ),
}
if not FIFTH:  # the class of 5 takes the frequencies of short texts alone
    LONGROPES["phimoe"] = scaled(MSCALED)
# Of other rules: family, config, and the number of tokens read at which something changes
OTHERS = [
    ("llama", scaled(DYNAMIC), POSITIONS),
    ("llama", scaled(LLAMA3), 16),
    ("llama", scaled(SLOW_YARN), 16),
    ("mistral", {"sliding_window": 16}, 16),
    ("phi3", {"sliding_window": 16}, 16),
    ("gemma3_text", {"sliding_window": 16, "layer_types": [SLIDING, FULL]}, 16),
    ("llama4_text", {"attention_chunk_size": 16, "floor_scale": 16, "attn_scale": 0.5}, 16),
    ("ministral3", {}, 16),
    ("gpt_oss", {"sliding_window": 16}, 16),
    ("deepseek_v32", {"index_topk": 16}, 16),
    ("minimax_m3_vl_text", {"index_block_size": 4, "index_topk_blocks": 4}, 16),
    ("qwen4_exp_text", {"indexer_budget": 8}, 11),  # 2 blocks of 4 keys, and 3 that fill none
    ("bloom", {}, POSITIONS),
    ("mpt", {"max_seq_len": 16}, 16),
    ("gpt2", {"n_positions": 16}, 16),
    ("opt", {"max_position_embeddings": 16}, 16),
    ("gptj", {"n_positions": 16}, 16),
]


def beginnings(boundary: int) -> list[TokenSequence]:
    """One text cut to boundary - 1, boundary, boundary + 1 and boundary + 2 tokens.

    The model reads one token less of each, so the last one alone is beyond the boundary.
    """
    ids = np.random.default_rng(6).integers(0, VOCABULARY, boundary + 2).astype(np.int32)
    return [TokenSequence(ids[:n], 0) for n in range(boundary - 1, boundary + 3)]


@pytest.mark.parametrize("kind", LONGROPES)
@pytest.mark.parametrize("reproducible", [False, True])
def test_longrope_changes_frequencies_beyond_the_original_length_that_is_read(
    tmp_path, kind, reproducible
):
    model = saved(tmp_path, kind, **LONGROPES[kind])
    texts = beginnings(ORIGINAL)
    want = torch_scores(model, texts)
    *_, short, long = want
    assert np.abs(short.logprob - long.logprob[:-1]).max() > 0.1  # of the same tokens
    own = Scorer(loaded(tmp_path), None, batch_tokens=64, reproducible=reproducible)
    assert_agree(own.score_sequences(texts), want)
    assert_agree([own.score_sequences([text])[0] for text in texts], want)


@pytest.mark.parametrize("kind", LONGROPES)
def test_longrope_of_choices_counts_the_whole_prompt(tmp_path, kind):
    model = saved(tmp_path, kind, **LONGROPES[kind])
    choices = np.arange(0, VOCABULARY, 30, dtype=np.int32)
    asked = [TokenSequence(text.ids, len(text.ids), choices) for text in beginnings(ORIGINAL)]
    # Beside texts that read as many tokens and one less
    found = scorer(loaded(tmp_path)).score_sequences([*asked, *beginnings(ORIGINAL)])
    for sequence, scores in zip(asked, found, strict=False):
        logp = torch.log_softmax(torch_logits(model, sequence)[-1].float(), -1).numpy()
        np.testing.assert_allclose(scores.logprob, logp[choices], atol=1e-4, rtol=0)
    assert_agree(found[len(asked) :], torch_scores(model, beginnings(ORIGINAL)))


def test_a_window_of_the_original_length_takes_the_short_frequencies(tmp_path):
    """As `perplexity --max-length 4096` cuts texts for Phi-3-128k."""
    model = saved(tmp_path, "phi3", **SHORT_AND_LONG)
    ids = np.random.default_rng(8).integers(0, VOCABULARY, 45).astype(np.int32)
    windows = list(WindowedText(ids, 1, TextWindows(ORIGINAL, ORIGINAL)))
    assert {len(window.input_ids) for window in windows} == {ORIGINAL}
    found = scorer(loaded(tmp_path)).score_sequences(windows)
    for window, scores in zip(windows, found, strict=True):
        logp = torch.log_softmax(torch_logits(model, window).float(), -1).numpy()
        logp = logp[window.first_scored - 1 :]
        want = np.take_along_axis(logp, window.targets[:, None].astype(int), axis=1)[:, 0]
        np.testing.assert_allclose(scores.logprob, want, atol=1e-4, rtol=0)


@pytest.mark.slow_after(4)
@pytest.mark.parametrize(("kind", "config", "boundary"), OTHERS, ids=str)
def test_other_rules_count_the_tokens_that_are_read(tmp_path, kind, config, boundary):
    model, own = saved(tmp_path, kind, **config), scorer(loaded(tmp_path))
    texts = beginnings(boundary)
    if own.model.max_positions == boundary:
        *texts, too_long = texts
        limit = f"{boundary + 2} tokens .* the model takes {boundary} positions"
        with pytest.raises(ValueError, match=limit):
            own.score_sequences([too_long])
    want = torch_scores(model, texts)
    assert_agree(own.score_sequences(texts), want)
    assert distance(own.score_sequences(texts[-1:]), want[-1:]) < 1e-4
