"""Weights in memory: `Scorer.from_tensors` and `Scorer.update`."""

import json
import subprocess
import sys
from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxscore import DivergenceScorer, GenerationRequest, InputError, Scorer
from jaxscore.engine import planner
from jaxscore.journal import Journal
from jaxscore.models.weights.checkpoint import read_config
from jaxscore.models.weights.tensor_files import open_tensors
from tests.conftest import CASES, ROOT, with_devices

TEXTS = ["The cat sat down.", "The cat ran away", "A dog"]
QWEN2 = CASES / "models/tiny-qwen2"  # tied, with biases
GPT2 = CASES / "models/tiny-gpt2"  # transposed and fused matrices, no prefix
LLAMA3 = CASES / "models/tiny-llama3"
NORM = "model.norm.weight"


def tensors_of(folder, kind=np.asarray, factor=1.0):
    """A checkpoint's tensors, scaled."""
    return {name: kind(value * factor) for name, value in open_tensors(folder).arrays.items()}


def in_memory(folder, tensors, **options):
    options = {"dtype": "float32"} | options
    return Scorer.from_tensors(str(folder), tensors, str(folder), **options)


def logprobs(scorer, texts=TEXTS):
    found = scorer.score(texts)
    assert all(scored.error is None for scored in found)
    return np.concatenate([scored.logprob for scored in found])


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("folder", [GPT2, QWEN2, LLAMA3], ids=lambda folder: folder.name)
def test_tensors_in_memory_score_as_their_checkpoint(folder, kind, scorers):
    expected = logprobs(scorers(folder.name))
    np.testing.assert_array_equal(logprobs(in_memory(folder, tensors_of(folder, kind))), expected)


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_bfloat16_is_rounded_as_in_a_checkpoint(kind):
    expected = logprobs(Scorer.from_pretrained(str(LLAMA3), dtype="bfloat16"))
    scorer = in_memory(LLAMA3, tensors_of(LLAMA3, kind), dtype="bfloat16")
    np.testing.assert_array_equal(logprobs(scorer), expected)


def test_ten_updates_and_ten_scores_take_one_compilation():
    scorer = in_memory(QWEN2, tensors_of(QWEN2, jnp.asarray))
    logprobs(scorer)
    assert len(scorer.engine.programs.compiled) == 1
    names, values = [], set()
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: names.append(name))
    try:
        for k in range(10):
            tensors = tensors_of(QWEN2, jnp.asarray, 1 + k / 16)
            scorer.update(tensors)
            values.add(logprobs(scorer).tobytes())
    finally:
        jax.monitoring.clear_event_listeners()
    assert "/jax/core/compile/backend_compile_duration" not in names
    assert len(scorer.engine.programs.compiled) == 1
    assert len(values) == 10
    expected = logprobs(in_memory(QWEN2, tensors_of(QWEN2, factor=1 + 9 / 16)))
    np.testing.assert_array_equal(logprobs(scorer), expected)


def test_an_update_of_a_checkpoint_by_tensors_and_by_parameters():
    scorer = Scorer.from_pretrained(str(GPT2), dtype="float32")
    before, tree = logprobs(scorer), scorer.model.params
    expected = logprobs(in_memory(GPT2, tensors_of(GPT2, factor=1.5)))
    scorer.update(tensors_of(GPT2, factor=1.5))
    np.testing.assert_array_equal(logprobs(scorer), expected)
    scorer.update(tree)
    np.testing.assert_array_equal(logprobs(scorer), before)
    assert scorer.describe()["weights"] == scorer.about["model"]


def test_weights_may_be_donated_after_the_call():
    tensors = tensors_of(GPT2, jnp.asarray)
    scorer = in_memory(GPT2, tensors)
    before = logprobs(scorer)
    tree = jax.tree.map(jnp.copy, scorer.model.params)
    scorer.update(tree)
    for array in (*tensors.values(), *jax.tree.leaves(tree)):
        array.delete()
    np.testing.assert_array_equal(logprobs(scorer), before)


def test_no_result_of_old_weights_survives_an_update(tmp_path, monkeypatch):
    """Journal, prefix cache, a generator and its prefix, and what names the weights."""
    monkeypatch.setattr(planner, "LEAST_SAVED_CPU", 0)
    first, second = tensors_of(LLAMA3), tensors_of(LLAMA3, factor=1.5)
    shared = "The quick brown fox jumps over the lazy dog. " * 8
    texts = [(shared, f" And then number {k} came.") for k in range(120)]
    journal, tokens = str(tmp_path / "journal"), {"batch_tokens": 512}
    scorer = Scorer.from_pretrained(str(LLAMA3), dtype="float32", journal=journal, **tokens)
    fresh = in_memory(LLAMA3, second, **tokens)
    generator, prompts = scorer.generator(), [shared + "A", shared + "The"]
    scorer.score(texts)
    assert "prefix" in {record.name[0] for record in scorer.engine.programs.compiled}
    old, of_old = (scorer.about["model"], scorer.describe()), scorer.journal
    [before, _] = scorer.generate(prompts, max_new_tokens=8)
    scorer.update(second)
    assert scorer.journal is None
    with pytest.raises(InputError, match="it belongs to another model or other options"):
        scorer.journal = of_old
    restored = scorer.statistics.sequences_restored
    np.testing.assert_array_equal(logprobs(scorer, texts), logprobs(fresh, texts))
    assert scorer.statistics.sequences_restored == restored
    expected = [text.text for text in fresh.generate(prompts, max_new_tokens=8)]
    requests = [GenerationRequest(k, text, 8) for k, text in enumerate(prompts)]
    assert [text.text for text in generator.generate(requests)] == expected
    assert before.text != expected[0]
    assert scorer.about["model"] != old[0]
    assert scorer.describe() != old[1]
    scorer.update(first)
    again = Scorer.from_pretrained(str(LLAMA3), dtype="float32", journal=journal, **tokens)
    np.testing.assert_array_equal(logprobs(scorer, texts), logprobs(again, texts))
    assert again.statistics.sequences_restored == len(texts)


def test_a_pause_does_not_bring_a_closed_journal_back(tmp_path):
    journal = str(tmp_path / "journal")
    scorer = Scorer.from_pretrained(str(LLAMA3), dtype="float32", journal=journal)
    before = logprobs(scorer, TEXTS)
    with scorer.uncounted():
        scorer.update(tensors_of(LLAMA3, factor=1.5))
    assert scorer.journal is None
    assert not np.array_equal(logprobs(scorer, TEXTS), before)


def test_a_stream_does_not_open_a_closed_journal_again(tmp_path):
    path = tmp_path / "journal"
    scorer = Scorer.from_pretrained(str(LLAMA3), dtype="float32", journal=str(path))
    texts = [("", f"It was number {k}.") for k in range(200)]
    results = scorer.stream(texts, window=10)
    next(results)
    scorer.close()
    with closing(Journal(path, scorer.about)) as of_another_run:
        of_another_run.write_scores([])
        assert len(list(results)) == 199


def test_an_update_during_a_stream_is_refused(scorers):
    scorer = in_memory(GPT2, tensors_of(GPT2))
    results = scorer.stream(TEXTS * 10, window=2)
    next(results)
    with pytest.raises(InputError, match="1 runs have not ended"):
        scorer.update(tensors_of(GPT2))
    results.close()
    texts = scorer.generator().stream([])
    assert list(texts) == []
    scorer.update(tensors_of(GPT2))
    np.testing.assert_array_equal(logprobs(scorer), logprobs(scorers("tiny-gpt2")))


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_values_that_do_not_fit_are_refused_by_name(kind):
    tensors = tensors_of(QWEN2, kind)
    scorer = in_memory(QWEN2, tensors)
    before = logprobs(scorer)
    norm, head = tensors[NORM], tensors["model.embed_tokens.weight"] * 2
    tree = scorer.model.params
    wrong = {
        r"norm.weight has shape \[3\]": tensors | {NORM: norm[:3]},
        "tensor model.norm.weight is missing": {k: v for k, v in tensors.items() if k != NORM},
        "1 tensors that the model does not use: extra": tensors | {"extra": norm},
        "lm_head.weight is not the embedding": tensors | {"lm_head.weight": head},
        "norm.weight has dtype int8": tensors | {NORM: norm.astype(np.int8)},
        "norm.weight is list, expected a NumPy or JAX array": tensors | {NORM: [1.0]},
        r"\['final_norm'\]\['scale'\] is float32 \[3\]": tree
        | {"final_norm": {"scale": np.ones(3, np.float32)}},
        r"\['final_norm'\]\['scale'\] is missing": tree | {"final_norm": {}},
        r"\['embed'\].* is missing": {k: v for k, v in tree.items() if k != "embed"},
        r"\['final_norm'\]\['bias'\] is left over": tree
        | {"final_norm": {**tree["final_norm"], "bias": norm}},
        "tensors is list, expected arrays by their": [norm],
        "tensors is empty, expected arrays by their": {},
    }
    for message, values in wrong.items():
        with pytest.raises(InputError, match=message):
            scorer.update(values)
    np.testing.assert_array_equal(logprobs(scorer), before)
    same_head = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    scorer.update(same_head)
    np.testing.assert_array_equal(logprobs(scorer), before)


def test_int8_of_host_arrays_and_not_of_device_arrays():
    expected = logprobs(Scorer.from_pretrained(str(GPT2), dtype="float32", quantize="int8"))
    scorer = in_memory(GPT2, tensors_of(GPT2), quantize="int8")
    np.testing.assert_array_equal(logprobs(scorer), expected)
    with pytest.raises(InputError, match="int8 weights are computed from host arrays"):
        scorer.update(tensors_of(GPT2, jnp.asarray))


def test_deleted_arrays_are_refused_by_name():
    tensors = tensors_of(QWEN2, jnp.asarray)
    scorer = in_memory(QWEN2, tensors)
    expected = logprobs(scorer)
    tree = jax.tree.map(jnp.copy, scorer.model.params)
    tensors[NORM].delete()
    tree["final_norm"]["scale"].delete()
    for values, name in ((tensors, "tensor model.norm.weight"), (tree, r"\['final_norm'\]")):
        with pytest.raises(InputError, match=f"{name}.* was deleted"):
            scorer.update(values)
    np.testing.assert_array_equal(logprobs(scorer), expected)


@pytest.fixture
def adapter(tmp_path):
    """A LoRA adapter of one matrix."""
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["o_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    name = "layers.0.self_attn.o_proj"
    n_out, n_in = open_tensors(QWEN2).arrays[f"model.{name}.weight"].shape
    parts = {"A": np.ones((1, n_in), np.float32), "B": np.ones((n_out, 1), np.float32)}
    named = {f"base_model.model.model.{name}.lora_{k}.weight": part for k, part in parts.items()}
    save_file(named, tmp_path / "adapter_model.safetensors")
    return tmp_path


def test_models_that_take_no_other_weights(adapter):
    scorer = Scorer.from_pretrained(str(QWEN2), dtype="float32", lora=adapter)
    before = logprobs(scorer)
    for values in (tensors_of(QWEN2), scorer.model.params):
        with pytest.raises(InputError, match="LoRA adapter"):
            scorer.update(values)
    np.testing.assert_array_equal(logprobs(scorer), before)
    pair = DivergenceScorer.from_pretrained("demo", "demo", reference_dtype="bfloat16")
    with pytest.raises(InputError, match="takes no other weights"):
        pair.update({})
    for make in (DivergenceScorer.from_tensors, DivergenceScorer.from_function):
        with pytest.raises(InputError, match="takes checkpoints"):
            make({}, {}, "demo")


def test_configs_and_tokenizers_in_other_forms(scorers):
    from transformers import AutoConfig

    tensors, tokenizer = tensors_of(QWEN2), scorers("tiny-qwen2").encoder.tokenizer
    expected = logprobs(scorers("tiny-qwen2"))
    for config in (read_config(QWEN2), AutoConfig.from_pretrained(QWEN2)):
        scorer = Scorer.from_tensors(config, tensors, tokenizer, dtype="float32")
        np.testing.assert_array_equal(logprobs(scorer), expected)
    raw = read_config(QWEN2)
    for config, message in {
        3: "config is int, expected the content of config.json",
        "quantized": "dequantize them",
        "nameless": "expected a string `model_type`",
    }.items():
        given = {
            "quantized": raw | {"quantization_config": {"quant_method": "fp8"}},
            "nameless": {"vocab_size": 3},
        }.get(config, config)
        with pytest.raises(InputError, match=message):
            Scorer.from_tensors(given, tensors, tokenizer)
    mesh = jax.make_mesh((1,), ("data",))
    with pytest.raises(InputError, match="mesh is Mesh, expected a string such as 'data=2"):
        Scorer.from_tensors(raw, tensors, tokenizer, mesh=mesh)
    with pytest.raises(InputError, match="expected a fast tokenizer of transformers"):
        Scorer.from_tensors(raw, tensors, object())


def test_tensors_of_a_training_mesh_are_resharded_on_the_devices():
    """Four devices, also to fewer devices and to another order; see the script."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.update_on_four_devices"],
        env=with_devices(4), cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
