"""`convert`: the folder that it writes takes the original's place, and `--lora` with it."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import pytest
from safetensors.numpy import load_file, save_file

from tests.cli import adapters
from tests.cli.conftest import QWEN
from tests.conftest import CASES
from tests.models.weights.quantization.checkpoints import rewritten

LINES = ({"context": "The cat", "continuation": " sat"}, {"continuation": "The cat ran 🙂"})
MODELS = ("tiny-gpt2", "tiny-llama3", "tiny-qwen2")


def facts(folder):
    return json.loads((folder / "jaxscore.json").read_text(encoding="utf-8"))


def scores(run, folder, model, *more):
    words = ("--input", folder / "in.jsonl", "--output", folder / "out.jsonl", "--quiet", "--force")
    code, _, err = run("score", "--model", model, *words, "--batch-tokens", 128, *more)
    assert code == 0, err
    return (folder / "out.jsonl").read_bytes()


def with_weights(folder, change):
    shutil.copytree(QWEN, folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({name: change(name, value) for name, value in tensors.items()}, file)
    return folder


@pytest.fixture
def adapter(tmp_path):
    return adapters.written(tmp_path / "adapter")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_byte_for_byte_the_same(run, place, name):
    folder, model = place(*LINES), CASES / "models" / name
    code, out, err = run("convert", "--model", model, "--output", folder / "converted")
    assert code == 0
    assert err.startswith("read ")
    assert out.startswith("done     1 checkpoint converted, 0 failed in ")
    assert out.endswith(f"files    {folder / 'converted'}\n")
    assert scores(run, folder, folder / "converted") == scores(run, folder, model)


@pytest.mark.slow
def test_a_model_by_name(run, place):
    folder = place(*LINES)
    code, _, err = run("convert", "--model", "demo", "--output", folder / "converted", "--quiet")
    assert (code, err) == (0, "")
    assert scores(run, folder, folder / "converted") == scores(run, folder, "demo")
    assert facts(folder / "converted")["source"] == "demo"


def test_the_dtype_that_loses_nothing(run, tmp_path, adapter):
    narrow = with_weights(tmp_path / "narrow", lambda name, x: x.astype(ml_dtypes.bfloat16))
    mixed = with_weights(
        tmp_path / "mixed", lambda name, x: x.astype(ml_dtypes.bfloat16) if "mlp" in name else x
    )
    cases = (
        (narrow, (), "bfloat16"),
        (narrow, ("--lora", adapter), "float32"),
        (narrow, ("--dtype", "float32"), "float32"),
        (mixed, (), "float32"),
        (mixed, ("--dtype", "bfloat16"), "bfloat16"),
    )
    for k, (model, more, dtype) in enumerate(cases):
        output = tmp_path / f"converted-{k}"
        code, _, err = run("convert", "--model", model, "--output", output, *more)
        assert code == 0, err
        assert facts(output)["dtype"] == dtype
        assert f" in {dtype}, " in err


def test_an_adapter_is_merged_for_good(run, place, adapter):
    folder = place(*LINES)
    with_lora = scores(run, folder, QWEN, "--lora", adapter)
    assert with_lora != scores(run, folder, QWEN)
    output = folder / "converted"
    code, _, err = run("convert", "--model", QWEN, "--lora", adapter, "--output", output)
    assert code == 0
    assert f"--lora {adapter}: an adapter of somebody/something" in err
    assert facts(output)["lora"] == str(adapter)
    assert scores(run, folder, output) == with_lora
    words = ("--input", folder / "in.jsonl", "--output", folder / "out.jsonl")
    code, _, err = run("score", "--model", output, "--lora", adapter, *words)
    assert code == 2
    assert f"{output}: is converted, which takes no LoRA adapter" in err


def test_an_adapter_that_does_not_fit(run, place, adapter):
    folder = place(*LINES)
    words = ("--input", folder / "in.jsonl", "--output", folder / "out.jsonl")
    code, _, err = run("score", "--model", "demo", "--lora", adapter, *words)
    assert code == 2
    assert str(adapter / "adapter_model.safetensors") in err
    code, _, err = run("score", "--model", QWEN, "--lora", folder / "none", *words)
    assert code == 2
    assert f"adapter {folder / 'none'}: no such folder" in err
    assert not (folder / "out.jsonl").exists()


def test_what_cannot_be_converted(run, tmp_path):
    done = tmp_path / "done"
    assert run("convert", "--model", QWEN, "--output", done, "--quiet").code == 0
    unknown = tmp_path / "unknown"
    shutil.copytree(QWEN, unknown)
    config = json.loads((unknown / "config.json").read_text(encoding="utf-8"))
    config["model_type"] = "blenderbot"
    (unknown / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for model, output, part in (
        (done, tmp_path / "again", f"--model {done}: is already converted; give the original"),
        (QWEN, done, f"{done}: exists and is not empty"),
        (unknown, tmp_path / "new", "is not covered by the native decoder"),
        (tmp_path / "nowhere", tmp_path / "new", "no such folder"),
    ):
        code, out, err = run("convert", "--model", model, "--output", output)
        assert (code, out) == (2, "")
        assert part in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done", "unknown"]


def test_weights_that_are_stored_quantized(run, place):
    """They are remarked, written dequantized, and lose nothing by themselves."""
    folder = place(*LINES)
    narrow = Path(shutil.copytree(QWEN, folder / "quantized"))
    rewritten(narrow, "gptq")
    reported = (
        "weights stored as gptq, 4-bit integers, read as the numbers they stand for; held as "
    )
    code, _, err = run("convert", "--model", narrow, "--output", folder / "converted")
    assert code == 0, err
    assert f"{reported}float32\n" in err
    assert facts(folder / "converted")["dtype"] == "float32"
    raw = json.loads((folder / "converted/config.json").read_text(encoding="utf-8"))
    assert "quantization_config" not in raw
    assert scores(run, folder, folder / "converted") == scores(run, folder, narrow)
    manifest = json.loads((folder / "out.jsonl.run.json").read_text(encoding="utf-8"))
    assert manifest["stored_as"] in reported
    words = ("--input", folder / "in.jsonl", "--output", folder / "remarked.jsonl")
    assert f"{reported}float32\n" in run("score", "--model", narrow, *words).err
