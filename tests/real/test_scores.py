"""Log-probabilities of pretrained models on real text, against PyTorch.

The reference is PyTorch's own code in float64. On the texts here PyTorch's float32 is up to 8.4e-5
from it and ours up to 7.1e-5, so the two are up to 1.2e-4 apart where they round in opposite
directions; on most tokens they are 5e-6 apart.
"""

import copy
import json

import numpy as np
import pytest
import torch

from jaxscore import Request
from tests.conftest import CASES, ROOT
from tests.real.conftest import NAMES

pytestmark = [pytest.mark.real, pytest.mark.slow]

CHARACTERS = 800  # of a text
PAGES = ("LICENSE", "jaxscore/README.md", "jaxscore/plan/tries.py", "jaxscore/analysis/README.md")


@pytest.fixture(scope="module")
def requests():
    """A licence, manuals, Python and passages in 22 languages: over 5,000 tokens."""
    tokens = json.loads((CASES / "real/tokens.json").read_text(encoding="utf-8"))
    texts = [tokens["texts"][place] for place in tokens["prose"]]
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")[: 6 * CHARACTERS]
        texts += [text[start : start + CHARACTERS] for start in range(0, len(text), CHARACTERS)]
    return [Request(str(place), "", text) for place, text in enumerate(texts)]


@pytest.mark.parametrize("name", NAMES)
def test_float32_scores_are_within_1e_4_of_float64(name, requests, scorer_of, torch_model_of):
    scorer, n_tokens = scorer_of(name), 0
    results = scorer.score(requests)
    model = copy.deepcopy(torch_model_of(name)).double()
    for request, result in zip(requests, results, strict=True):
        found = result.logprob[result.scored]
        ids = scorer.encoder.tokenizer.encode(request.continuation)
        expected = logprobs(model, ids)[-len(found) :]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4, err_msg=request.continuation)
        n_tokens += len(found)
    assert n_tokens > 5000


@torch.inference_mode()
def logprobs(model, ids):
    """Log-probability of each token but the first, nats."""
    tokens = torch.tensor(ids)[None]
    logits = model(tokens, use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0].numpy()
