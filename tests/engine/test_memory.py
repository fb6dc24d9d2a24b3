"""`--batch-tokens auto` takes what fits by the compiled program's own account."""

import dataclasses

import jax
import pytest
from jax.errors import JaxRuntimeError

from jaxscore.cli.main import parse
from jaxscore.device.lm_head.divergence import MIN_POSITIONS
from jaxscore.engine import footprint, memory
from jaxscore.engine.defaults import BATCH_TOKENS
from jaxscore.engine.memory import (
    LEAST,
    LENGTH,
    MOST_ACCELERATOR,
    MOST_CPU,
    SHARE,
    auto_batch_tokens,
    free_bytes,
)
from jaxscore.model_pair import DivergenceScorer
from tests.conftest import CASES


@pytest.fixture(scope="module")
def working(scorers):
    """Bytes that a batch of so many tokens takes, asked of the compiler at that very size."""
    model = scorers("tiny-llama3").model
    found = {}

    def get(tokens: int) -> int:
        if tokens not in found:
            length = min(LENGTH, model.max_positions)
            rows = max(1, tokens // length)
            found[tokens] = footprint.measure(model, rows, length).working_bytes
        return found[tokens]

    return get


@pytest.mark.slow
def test_with_room_it_is_the_most_that_pays(scorers):
    assert auto_batch_tokens(scorers("tiny-llama3").model, 1 << 40) == MOST_CPU


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1024, 2048])
def test_it_is_the_largest_that_fits(scorers, working, tokens, monkeypatch):
    monkeypatch.setattr(memory, "MEASURED", (2048, 4096))
    between = (working(tokens) + working(2 * tokens)) / 2
    got = auto_batch_tokens(scorers("tiny-llama3").model, int(between / SHARE))
    assert got == tokens


@pytest.mark.slow
def test_without_room_the_least_is_tried(scorers):
    assert auto_batch_tokens(scorers("tiny-llama3").model, 0) == LEAST


@pytest.mark.slow
def test_two_models_take_the_memory_of_both(monkeypatch):
    """The compiler leaves out what nothing is asked of: the second model."""
    asked, measure = [], footprint.measure

    def watched(model, rows, length, **of):
        asked.append((measure(model, rows, length, **of), rows, length))
        return asked[-1][0]

    monkeypatch.setattr(footprint, "measure", watched)
    name = str(CASES / "models/tiny-qwen2")
    scorer = DivergenceScorer.from_pretrained(
        name, name, reference_dtype="bfloat16", batch_tokens="auto"
    )
    for found, rows, length in asked:
        alone = [measure(one, rows, length).temporary_bytes for one in scorer.models]
        held = 2 * 4 * MIN_POSITIONS * scorer.model.vocab_size  # the logits of a block under both
        assert found.temporary_bytes > max(alone) + held / 2


def test_a_batch_that_the_compiler_refuses_is_a_large_one(scorers, monkeypatch):
    """As a TPU's does, which names the parameters with the rest."""
    model = scorers("tiny-llama3").model
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    reported = "RESOURCE_EXHAUSTED: HLO temporaries ({:.6f}G) exceeds available HBM (1.00G)."

    def refuse(model, rows, length, **_):
        raise JaxRuntimeError(reported.format((held + rows * length * 2**20) / 2**30))

    monkeypatch.setattr(footprint, "measure", refuse)
    assert auto_batch_tokens(model, int(1500 * 2**20 / SHARE)) == 1024  # 1 MiB for each token
    reported = "INTERNAL: a bug ({:.6f}G)"
    with pytest.raises(JaxRuntimeError, match="a bug"):
        auto_batch_tokens(model, 1)


def test_without_a_number_the_platform_decides(scorers, monkeypatch):
    here = scorers("tiny-llama3").model
    there = dataclasses.replace(here, platform="tpu")
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 40)

    def chosen(asked, model, reproducible=False):
        return memory.batch_tokens(asked, model, reproducible=reproducible)

    assert [chosen(asked, here) for asked in (None, "auto", 700)] == [BATCH_TOKENS, MOST_CPU, 700]
    assert [chosen(asked, there) for asked in (None, 700)] == [MOST_ACCELERATOR, 700]
    assert [chosen(asked, there, True) for asked in (None, "auto")] == [BATCH_TOKENS] * 2


@pytest.mark.slow
def test_the_flag(tmp_path, capsys):
    from jaxscore.cli.main import main

    given, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text('{"context": "a", "continuation": " b"}\n', encoding="utf-8")
    words = ["score", "--model", str(CASES / "models/tiny-gpt2"), "--input", str(given)]
    assert main([*words, "--output", str(output), "--batch-tokens", "auto"]) == 0
    assert f"--batch-tokens auto: {MOST_CPU}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse([*words, "--output", "o", "--batch-tokens", "automatic"])


def test_what_is_free_is_told():
    assert free_bytes() > 1 << 26
