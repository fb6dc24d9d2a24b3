"""Each file of configs/real/ runs on SmolLM2, and what it finds makes sense."""

import contextlib
import io
import json
import shlex
import subprocess

import pytest

from jaxscore.cli.main import main
from tests.conftest import ROOT

pytestmark = [pytest.mark.real, pytest.mark.slow]
FILES = sorted(path.stem for path in (ROOT / "configs/real").glob("*.yaml"))
OUT = "outputs/real"


class Commands:
    """Runs shell lines of configuration files in a folder, each part once."""

    def __init__(self, folder):
        self.folder, self._done = folder, {}

    def run(self, name, *words):
        """Run the first line of configs/real/NAME.yaml; stdout of its last command."""
        line = (ROOT / f"configs/real/{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
        *before, last = line.removeprefix("# ").split(" && ")
        for part in (*before, shlex.join([*shlex.split(last), *words])):
            if part not in self._done:
                self._done[part] = self._call(part)
        return self._done[part]

    def _call(self, line):
        first, *words = shlex.split(line)
        if first != "python":
            return subprocess.run([first, *words], cwd=self.folder, check=True)
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = main(words[2:])
        assert code == 0, f"{line}: {code}\n{out.getvalue()}\n{err.getvalue()}"
        return out.getvalue()

    def json(self, name):
        return json.loads((self.folder / OUT / name).read_text(encoding="utf-8"))

    def lines(self, name):
        text = (self.folder / OUT / name).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def commands(models_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "outputs").mkdir()
    (folder / "outputs/real-models").symlink_to(models_folder)
    return Commands(folder)


def mean(values):
    found = list(values)
    return sum(found) / len(found)


def test_every_file_is_run_below():
    text = (ROOT / "tests/real/test_commands.py").read_text(encoding="utf-8")
    assert FILES
    assert [
        name for name in FILES if f'run("{name}"' not in text and f"/{name}.yaml" not in text
    ] == []


def test_choose_finds_paris(commands):
    commands.run("choose")
    choices = commands.lines("choices.jsonl")
    [france] = [item for item in choices if item["id"] == "france"]
    assert france["options"][france["choice"]] == " Paris"
    assert france["probability"][0] > 0.9
    assert mean(item["acc"] for item in choices) > 0.8


def test_bfloat16_changes_no_accuracy(commands):
    commands.run("compare")
    commands.run("choose")
    both = [commands.lines(f"choices{end}.jsonl") for end in ("", "-bfloat16")]
    assert [item["choice"] for item in both[0]] == [item["choice"] for item in both[1]]
    assert "no difference shown" in commands.run("compare")


def by_kind(records, field):
    return {
        kind: mean(record[field] for record in records if record["kind"] == kind)
        for kind in ("english", "shuffled")
    }


def test_english_is_more_probable_than_shuffled_words(commands):
    commands.run("score")
    found = by_kind(commands.lines("scores.jsonl"), "mean_logprob")
    assert found["english"] > found["shuffled"] + 1
    commands.run("perplexity")
    found = by_kind(commands.lines("perplexity.jsonl"), "bits_per_byte")
    assert 0 < found["english"] < found["shuffled"] - 0.3


def test_bfloat16_lies_near_float32(commands):
    commands.run("divergence")
    assert 0 < mean(record["mean_kl"] for record in commands.lines("divergence.jsonl")) < 0.01


def test_paths_raise_the_probability_of_answers(commands):
    commands.run("paths")
    found = [path for item in commands.json("paths.json") for path in item["path_evaluations"]]
    assert len(found) == 8
    assert mean(path["absolute_improvement"] for path in found) > 0.3
    assert all(path["absolute_improvement"] > 0 for path in found)


def test_chronologic_is_better_than_equal_probabilities(commands):
    commands.run("chronologic")
    [path] = (commands.folder / OUT / "chronologic").glob("eval_results*.json")
    questions = json.loads(path.read_text(encoding="utf-8"))["questions"]
    assert mean(one["brier"] for one in questions) < mean(one["uniform_brier"] for one in questions)


def test_probsem_hears_the_feeling_of_reviews(commands):
    out = commands.run("probsem")
    accuracy = float(out.split("TEST SUITE ACCURACY:")[1].split()[0])
    assert accuracy > 0.5


def test_a_small_model_does_not_judge_apart_right_and_wrong_responses(commands):
    commands.run("judge")
    found = {}
    for kind in ("right", "wrong"):
        metrics = commands.json(f"judge/{kind}/eval_dev_metrics.json")
        [found[kind]] = [value for name, value in metrics.items() if "LLMeval" in name]
    assert 0 < found["right"] < 1
    assert abs(found["right"] - found["wrong"]) < 0.05


def test_samples_are_graded_and_have_confidences(commands):
    commands.run("sample")
    assert [len(item["output"]) for item in commands.json("samples.json")] == [4] * 8
    commands.run("self-certainty")
    confident = commands.json("confidences.json")
    assert 0.1 < mean(right for item in confident for right in item["right"]) < 0.9
    assert all(value > 0 for item in confident for value in item["confidence_list"])


def test_families_says_that_the_file_would_load(commands):
    assert "it would load" in commands.run("families")
