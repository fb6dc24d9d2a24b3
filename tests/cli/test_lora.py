"""`--lora` on every command with a model: it changes the numbers, and every record says so."""

import json
import shutil

import pytest

from jaxscore.cli import app
from tests.cli import adapters
from tests.cli.conftest import QWEN, strict
from tests.conftest import CASES

DEMO = CASES.parents[1] / "jaxscore/demo/inputs"
TOLD = "an adapter of somebody/something"
ITEMS = [{"id": 0, "model_input": "Who ran?", "output": [" the cat", " a dog"]}]
CHATS = [{"id": 0, "chat_history": ["How many days?"], "output": ["3", "4", "3"]}]


@pytest.fixture
def adapter(tmp_path):
    return adapters.written(tmp_path / "adapter")


@pytest.mark.parametrize(
    "command",
    "score paths probsem chronologic judge self-certainty usc-generate convert".split(),
)
def test_every_command_with_a_model_takes_an_adapter(command):
    flags = app.command(command).by_name
    assert flags["--lora"].dest == "lora"


def test_paths(run, tmp_path, adapter):
    given = tmp_path / "paths.jsonl"
    shutil.copy(DEMO / "paths.jsonl", given)
    words = ("--model", QWEN, "--input", given, "--max-samples", 2, "--batch-tokens", 1024)
    reports = []
    for name, more in (("plain", ()), ("adapted", ("--lora", adapter))):
        output = tmp_path / f"{name}.json"
        code, _, err = run("paths", *words, "--output", output, *more)
        assert code == 0, err
        assert (TOLD in err) == bool(more)
        reports.append(strict((tmp_path / f"{name}_report.json").read_text(encoding="utf-8")))
    plain, adapted = reports
    assert "lora" not in plain["settings"]
    assert adapted["settings"]["lora"] == str(adapter)
    assert adapted["summary"] != plain["summary"]


@pytest.mark.slow
def test_probsem_and_chronologic(run, tmp_path, adapter):
    where = ("--input-dir", DEMO / "probsem", "--output-dir", tmp_path / "probsem")
    words = ("--prompt", "demo", "--test", "truth", "--model", QWEN, *where, "--lora", adapter)
    assert run("probsem", *words, "--batch-tokens", 4096).code == 0
    [record] = (tmp_path / "probsem").glob("*_results.json")
    assert strict(record.read_text(encoding="utf-8"))["settings"]["lora"] == str(adapter)
    words = (QWEN, DEMO / "chronologic.jsonl", "--samples", 1, "--output-dir", tmp_path)
    code, _, err = run("chronologic", *words, "--lora", adapter, "--truncate", "left")
    assert code == 0, err
    [record] = tmp_path.glob("eval_results_*.json")
    assert strict(record.read_text(encoding="utf-8"))["settings"]["lora"] == str(adapter)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["self-certainty", "usc-generate"])
def test_results_of_two_adapters_are_not_mixed(run, tmp_path, adapter, command):
    given, output = tmp_path / "in.json", tmp_path / "out.json"
    words = ["--input-file", given, "--output-file", output, "--quiet"]
    if command == "usc-generate":
        given.write_text(json.dumps(CHATS), encoding="utf-8")
        words += ["--model", QWEN, "-n", 2, "--max-new-tokens", 2]
    else:
        given.write_text(json.dumps(ITEMS), encoding="utf-8")
        words += ["--model-name", QWEN, "--batch-tokens", 1024]
    code, _, err = run(command, *words, "--lora", adapter)
    assert code == 0, err
    [record] = strict(output.read_text(encoding="utf-8"))
    settings = record["configs" if command == "usc-generate" else "confidence_settings"]
    assert settings["lora"] == str(adapter)
    assert run(command, *words, "--lora", adapter).code == 0
    other = adapters.written(tmp_path / "other", seed=1)
    for more in ((), ("--lora", other)):
        code, _, err = run(command, *words, *more)
        assert code == 2
        assert f"was computed with lora {adapter}, this run has lora " in err


def test_a_server_takes_no_adapter(run, tmp_path, adapter):
    words = (QWEN, DEMO / "chronologic.jsonl", "--output-dir", tmp_path, "--lora", adapter)
    code, _, err = run("chronologic", *words, "--api-base", "http://127.0.0.1:9")
    assert code == 2
    assert "an endpoint has its own weights" in err
    for judge in (("--gpt", "x"), ("--llm-ollama", "x"), ("--bem",)):
        code, _, err = run("judge", "--experiments-folder", tmp_path, *judge, "--lora", adapter)
        assert code == 2
        assert "--lora and --quantize change a model that runs here; give --llm too" in err
