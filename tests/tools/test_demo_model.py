"""The shipped demo model, and the training that made it."""

import dataclasses
import functools
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from jaxscore.device import decoder
from jaxscore.scorer import Scorer
from jaxscore.types.requests import Request
from tools import train_demo_model
from tools.demo_world import evaluation, fast, held_out, inputs, model, prompts
from tools.demo_world.rows import step_rows
from tools.demo_world.tokenizer import train_tokenizer
from tools.demo_world.training import Plan, first_state, train

MODEL = train_demo_model.DEMO / "model"
INPUTS = train_demo_model.DEMO / "inputs"
LARGEST = 6_000_000  # bytes of the shipped folder
LARGEST_INPUT = 150_000  # bytes; 96 questions with eight samples each are the largest
ITEMS = 48
LABELS = ("named", "choice", "letter", "truth", "judge")  # the kinds of documents that have them

TINY = model.raw_config(640, width=32, mlp_width=48, n_layers=2, n_heads=4, n_kv_heads=2)
PLAN = Plan(steps=3, rows=2, row_length=256, save_every=1, report_every=1)


@pytest.fixture(scope="module")
def demo() -> Scorer:
    return evaluation.scorer_of(MODEL)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(640, PLAN.seed)


@pytest.fixture(scope="module")
def config() -> decoder.DecoderConfig:
    return model.decoder_config(TINY)[1]


def test_the_folder_is_small_and_complete() -> None:
    sizes = {path.name: path.stat().st_size for path in MODEL.iterdir()}
    assert sum(sizes.values()) <= LARGEST
    assert set(sizes) == {
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_our_log_probabilities_are_those_of_torch(demo: Scorer) -> None:
    items = held_out.path_items(evaluation.SEED, 6)
    pairs = [(item.prompt(supported), item.chain.answer) for item in items for supported in (0, 1)]
    item = held_out.judge_items(evaluation.SEED, 2)[0]
    pairs.append((item.prompt, item.labels[0]))
    scored = demo.score((Request(0, *pair) for pair in pairs), boundary="separate")
    encode = demo.encoder.tokenizer.encode
    reference = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    for (prompt, answer), ours in zip(pairs, scored, strict=True):
        ids, targets = encode(prompt), encode(answer, add_special_tokens=False)
        with torch.no_grad():
            logits = reference(torch.tensor([ids + targets[:-1]])).logits[0, len(ids) - 1 :]
        logprob = torch.log_softmax(logits.double(), -1).numpy()
        theirs = logprob[np.arange(len(targets)), targets]
        np.testing.assert_allclose(ours.logprob, theirs, rtol=0, atol=1e-4)


def test_transformers_reads_the_tokenizer() -> None:
    ours = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(MODEL)
    text = "Where was Élgahaven?\nSöl -> lives in"
    encoded = theirs(text)
    assert set(encoded) == {"input_ids", "attention_mask"}
    ids = encoded["input_ids"]
    assert ids == ours.encode(text).ids
    assert theirs.decode(ids, skip_special_tokens=True) == text
    assert ids[0] == theirs.bos_token_id
    rendered = theirs.apply_chat_template([{"role": "user", "content": "Hm?"}], tokenize=False)
    assert rendered == prompts.BOS + prompts.turn("user", "Hm?")


def test_it_answers_from_its_context_about_held_out_names(demo: Scorer) -> None:
    figures = evaluation.path_figures(demo, ITEMS)
    assert figures.path_raises >= 0.95
    assert figures.logprob_with_path > figures.logprob_without_path + 1.0
    assert figures.right_beats_wrong >= 0.80


def test_it_chooses_letters_above_chance(demo: Scorer) -> None:
    assert evaluation.label_accuracy(demo, held_out.choice_items(evaluation.SEED, ITEMS, 1)) >= 0.8
    assert evaluation.label_accuracy(demo, held_out.choice_items(evaluation.SEED, ITEMS, 2)) >= 0.5


@pytest.mark.parametrize("swapped", [False, True])
def test_it_tells_true_from_false(demo: Scorer, swapped: bool) -> None:
    items = held_out.truth_items(evaluation.SEED, ITEMS, swapped)
    assert evaluation.label_accuracy(demo, items) >= 0.7


def test_it_judges_right_responses_above_wrong_ones(demo: Scorer) -> None:
    right, wrong = evaluation.judge_scores(demo, ITEMS)
    assert right > wrong + 0.5
    assert evaluation.label_accuracy(demo, held_out.judge_items(evaluation.SEED, ITEMS)) >= 0.85


@pytest.mark.slow
def test_self_certainty_chooses_right_answers_among_the_shipped_samples(demo: Scorer) -> None:
    items = json.loads((INPUTS / "self_certainty.json").read_text(encoding="utf-8"))
    figures = evaluation.chosen_right(demo, items)
    assert figures.voted > figures.most_certain > max(figures.first, figures.mean)


def test_the_shipped_inputs_are_what_the_tool_writes(tmp_path: Path) -> None:
    for path in inputs.write(tmp_path, seed=0):
        assert (INPUTS / path.relative_to(tmp_path)).read_bytes() == path.read_bytes()


def test_the_shipped_samples_answer_the_questions_the_tool_asks() -> None:
    path = INPUTS / "self_certainty.json"
    items = json.loads(path.read_text(encoding="utf-8"))
    asked = held_out.reasoned_items(0, evaluation.QUESTIONS)
    assert [item["model_input"] for item in items] == [item.prompt for item in asked]
    assert [item["answer"] for item in items] == [item.answer for item in asked]
    assert {len(item["output"]) for item in items} == {evaluation.SAMPLES}


def test_each_system_has_few_kilobytes_of_inputs() -> None:
    for entry in INPUTS.iterdir():
        files = [entry] if entry.is_file() else [f for f in entry.rglob("*") if f.is_file()]
        assert 0 < sum(file.stat().st_size for file in files) <= LARGEST_INPUT, entry.name


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_parameters(
    tmp_path: Path, tokenizer: Tokenizer, config: decoder.DecoderConfig
) -> None:
    said: list[str] = []
    whole = train(config, tokenizer, PLAN, tmp_path / "whole", say=said.append)
    train(config, tokenizer, PLAN, tmp_path / "parts", say=said.append, stop_after=2)
    resumed = train(config, tokenizer, PLAN, tmp_path / "parts", say=said.append)
    assert sum("resumed after step 2" in line for line in said) == 1
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
    untrained = first_state(config, PLAN).params
    assert not np.array_equal(whole["embed"]["token"], untrained["embed"]["token"])


@pytest.mark.slow
def test_the_training_path_is_the_decoder(
    tokenizer: Tokenizer, config: decoder.DecoderConfig
) -> None:
    """Within bfloat16 rounding of the products, in value and in gradient."""
    params = first_state(config, PLAN).params
    rows = jax.tree.map(jnp.asarray, step_rows(tokenizer, 0, 0, 0.9, 2, 256))

    @functools.partial(jax.jit, static_argnums=0)
    @functools.partial(jax.value_and_grad, argnums=1)
    def loss(hidden_states, params):
        hidden = hidden_states(params, config, rows.ids, rows.position, rows.subtree_end)
        logits = hidden @ params["embed"]["token"].T
        each = optax.softmax_cross_entropy_with_integer_labels(logits, rows.target)
        return jnp.sum(each * rows.weight)

    value, gradient = loss(decoder.hidden_states, params)
    ours, our_gradient = loss(fast.hidden_states, params)
    np.testing.assert_allclose(ours, value, rtol=1e-3)
    for mine, theirs in zip(jax.tree.leaves(our_gradient), jax.tree.leaves(gradient), strict=True):
        assert optax.tree.norm(mine - theirs) < 0.03 * optax.tree.norm(theirs)


@pytest.mark.slow
def test_a_written_folder_holds_the_parameters(
    tmp_path: Path, tokenizer: Tokenizer, config: decoder.DecoderConfig
) -> None:
    params = first_state(config, PLAN).params
    model.write_folder(tmp_path, TINY, params, tokenizer)
    loaded, read = model.read_folder(tmp_path, TINY)
    assert read.to_str() == tokenizer.to_str()
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params)
    jax.tree.map(np.testing.assert_array_equal, loaded, rounded)
    assert json.loads((tmp_path / "config.json").read_text()) == TINY
    with pytest.raises(ValueError, match=r"another config \(head_dim, hidden_size"):
        model.read_folder(tmp_path, model.raw_config(640, n_layers=2, n_heads=4, n_kv_heads=2))


@pytest.mark.slow
def test_a_run_starts_from_given_parameters(
    tmp_path: Path, tokenizer: Tokenizer, config: decoder.DecoderConfig
) -> None:
    start = first_state(config, dataclasses.replace(PLAN, seed=7)).params
    plan = dataclasses.replace(PLAN, begin=0.5, learning_rate=0.0)
    trained = train(config, tokenizer, plan, tmp_path, start=start, say=lambda _: None)
    jax.tree.map(np.testing.assert_array_equal, trained, start)


def test_a_run_that_starts_later_has_the_later_documents() -> None:
    plan = Plan(steps=10, begin=0.4)
    assert [plan.progress(step) for step in (0, 5)] == pytest.approx([0.4, 0.7])
    assert plan.progress(9) < 1


@pytest.mark.slow
def test_the_progress_names_the_loss_of_each_kind_of_label(
    tmp_path: Path, tokenizer: Tokenizer, config: decoder.DecoderConfig
) -> None:
    said: list[str] = []
    plan = dataclasses.replace(PLAN, begin=0.9, rows=8, steps=1)
    train(config, tokenizer, plan, tmp_path, say=said.append)
    [line] = [line for line in said if "label loss" in line]
    named = set(re.findall(r"(\w+) \d+\.\d{3}", line))
    assert {"choice", "truth", "judge"} <= named <= {*LABELS}


def test_runs_of_other_plans_have_other_checkpoints() -> None:
    names = {
        train_demo_model.run_name(PLAN, TINY),
        train_demo_model.run_name(dataclasses.replace(PLAN, seed=1), TINY),
        train_demo_model.run_name(PLAN, model.raw_config(640)),
        train_demo_model.run_name(PLAN, TINY, {"norm": np.ones(2)}),
        train_demo_model.run_name(PLAN, TINY, {"norm": np.zeros(2)}),
    }
    assert len(names) == 5


def test_help_tells_how_to_resume(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train_demo_model.parse(["--help"])
    assert "goes on from its newest checkpoint" in capsys.readouterr().out
