"""Self-certainty after an input that is cut, by hand."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from jaxscore.evaluate import evaluate
from tests.conftest import CASES


def test_truncation_keeps_no_wrong_first_token(scorers):
    """No special token is added, so none may be kept: the oldest tokens go, and nothing else."""
    scorer = scorers("tiny-llama3")
    assert scorer.encoder.prefix  # the BOS that other systems keep
    context, output = "Who ran? " * 700, " the cat"
    item = {"model_input": context, "output": [output]}
    [record] = evaluate("self-certainty", scorer, [item], truncate="left").items
    assert record["confidence_settings"]["truncate"] == "left"

    tokenizer = scorer.encoder.tokenizer
    a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (context, output))
    ids = [*a, *b][-scorer.model.max_positions - 1 :]
    assert len(ids) < len(a)
    model = AutoModelForCausalLM.from_pretrained(CASES / "models/tiny-llama3", dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0, -len(b) :].double()
    logp = torch.log_softmax(logits, -1)
    want = -(logp + math.log(logp.shape[1])).mean().item()
    assert record["confidence_list"] == [pytest.approx(want, abs=1e-5)]
