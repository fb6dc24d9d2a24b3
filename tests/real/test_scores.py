"""Log-probabilities of pretrained models on real text, against PyTorch.

On most tokens PyTorch's float32 and ours are 5e-6 apart. Where they round in opposite directions
they can be 1.2e-4 apart, so a token that is far from PyTorch's float32 is compared with float64.
"""

import copy
import json

import numpy as np
import pytest
import torch

from jaxscore import Request
from tests.conftest import CASES, ROOT
from tests.real.conftest import OF_EACH_MODEL

pytestmark = [pytest.mark.real, pytest.mark.slow]

MOST = 1e-4  # nats per token
NEAR = MOST / 2  # of PyTorch's float32, which is as far from float64 itself
PAGES = ("LICENSE", "jaxscore/README.md", "jaxscore/plan/tries.py", "jaxscore/analysis/README.md")
CHARACTERS, PER_TEXT, PASSAGES = 4600, 1150, 7


@pytest.fixture(scope="module")
def requests():
    """A licence, manuals, Python and passages in 22 languages: over 5,000 tokens."""
    tokens = json.loads((CASES / "real/tokens.json").read_text(encoding="utf-8"))
    prose = [tokens["texts"][place] for place in tokens["prose"]]
    texts = ["\n\n".join(prose[at : at + PASSAGES]) for at in range(0, len(prose), PASSAGES)]
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")[:CHARACTERS]
        texts += [text[at : at + PER_TEXT] for at in range(0, len(text), PER_TEXT)]
    return [Request(str(place), "", text) for place, text in enumerate(texts)]


@OF_EACH_MODEL
def test_float32_scores_are_within_1e_4_of_pytorch(name, requests, scorer_of, torch_model_of):
    scorer, model, n_tokens, far = scorer_of(name), torch_model_of(name), 0, []
    for request, result in zip(requests, scorer.score(requests), strict=True):
        found = result.logprob[result.scored]
        ids = scorer.encoder.tokenizer.encode(request.continuation)[-len(found) - 1 :]
        is_far = np.abs(found - logprobs(model, ids)) > NEAR
        if is_far.any():  # later tokens do not change these
            end = np.flatnonzero(is_far)[-1] + 1
            far.append((ids[: end + 1], found[:end], is_far[:end]))
        n_tokens += len(found)
    assert n_tokens > 5000
    assert sum(is_far.sum() for _, _, is_far in far) < n_tokens / 100
    exact = copy.deepcopy(model).double()
    for ids, found, is_far in far:
        expected = logprobs(exact, ids)[is_far]
        np.testing.assert_allclose(found[is_far], expected, rtol=0, atol=MOST)


@torch.inference_mode()
def logprobs(model, ids, per_chunk=128):
    """Log-probability of each token but the first, nats; the LM head runs on chunks of tokens."""
    tokens = torch.tensor(ids)
    states = model.model(tokens[None, :-1], use_cache=False).last_hidden_state[0]
    pairs = zip(states.split(per_chunk), tokens[1:].split(per_chunk), strict=True)
    logits = ((model.lm_head(part), targets) for part, targets in pairs)
    return np.concatenate(
        [(z.gather(1, t[:, None])[:, 0] - z.logsumexp(-1)).numpy() for z, t in logits]
    )
