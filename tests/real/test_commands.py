"""Each file of configs/real/ runs on SmolLM2, and what it finds makes sense."""

import contextlib
import copy
import csv
import io
import json
import os
import shlex
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import torch

from jaxscore import Scorer
from jaxscore.cli.main import main
from tests.conftest import ROOT
from tests.real.test_scores import logprobs

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.xdist_group("smollm2")]
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

    def path(self, name):
        return self.folder / OUT / name

    def json(self, name):
        return json.loads(self.path(name).read_text(encoding="utf-8"))

    def lines(self, name):
        return [json.loads(line) for line in self.path(name).read_text("utf-8").splitlines()]


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


def test_schema_has_the_fields_of_choices(commands):
    commands.run("choose")
    record = json.loads(commands.run("schema"))["$defs"]["record"]
    for line in commands.lines("choices.jsonl"):
        assert {*line} <= {*record["properties"]}


def by_kind(records, field):
    return {
        kind: mean(record[field] for record in records if record["kind"] == kind)
        for kind in ("english", "shuffled")
    }


def test_an_instruction_makes_its_answer_more_probable(commands):
    commands.run("score-against")
    records = commands.lines("gains.jsonl")
    ifd = {
        kind: [record["ifd"] for record in records if record["kind"] == kind]
        for kind in ("own", "other")
    }
    assert mean(value < 1 for value in ifd["own"]) > 0.9
    assert mean(value < 1 for value in ifd["other"]) < 0.5


def test_english_is_more_probable_than_shuffled_words(commands):
    commands.run("score")
    found = by_kind(commands.lines("scores.jsonl"), "mean_logprob")
    assert found["english"] > found["shuffled"] + 1
    commands.run("perplexity")
    found = by_kind(commands.lines("perplexity.jsonl"), "bits_per_byte")
    assert 0 < found["english"] < found["shuffled"] - 0.3


def test_noise_floor_holds_for_the_distance_from_pytorch_in_float64(
    commands, scorer_of, torch_model_of
):
    commands.run("score")
    spread = commands.json("scores.jsonl.run.json")["facts"]["noise"]["spread"]
    # The limits of jaxscore/device/README.md
    assert 0 < spread["token_logprob"]["largest"] < 2e-4
    assert 0 < spread["mean_logprob"]["largest"] < 1e-5
    exact, distances = copy.deepcopy(torch_model_of("smollm2")).double(), []
    for record in commands.lines("scores.jsonl"):
        expected = logprobs(exact, record["token_ids"])
        distances.append(np.abs(np.array(record["logprob"][1:], np.float64) - expected))
    assert max(map(np.max, distances)) < 2e-4
    # A decision is within the noise up to twice the spread.
    assert mean(map(np.mean, distances)) < 2 * spread["token_logprob"]["largest"]


def test_journal_holds_each_text_under_one_model(commands):
    table = commands.run("journal")
    row = next(line.split() for line in table.splitlines() if line.split()[:1] == ["1"])
    assert int(row[1]) >= len(commands.lines("scores.jsonl"))
    assert "1 model" in table
    assert "dtype=float32" in table


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


@torch.inference_mode()
def share_of_yes(model, tokenizer, item):
    """PyTorch's P(Yes) / (P(Yes) + P(No)) as the next token of the prompt of `default_qa`.

    The answers stand in it as Python prints a list, as in BERGEN's.
    """
    text = (
        "<|im_start|>system\nYou are an evaluation tool. Answer with one of Yes, No.<|im_end|>\n"
        "<|im_start|>user\nHere is a question, a golden answer and an AI-generated answer. Can you "
        "judge whether the AI-generated answer is correct according to the question and golden "
        f"answer, simply answer with one of Yes, No.\n Question: {item['question']}. \n"
        f"Golden answer: {item['label']} \n Generated answer: {item['response']}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = torch.tensor([tokenizer.encode(text)])
    labels = [tokenizer.encode(label)[0] for label in ("Yes", "No")]
    return float(model(ids).logits[0, -1, labels].double().softmax(-1)[0])


@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_judge_reads_pytorch_probabilities_of_labels(kind, commands, scorer_of, torch_model_of):
    commands.run("judge")
    model, tokenizer = torch_model_of("smollm2"), scorer_of("smollm2").encoder.tokenizer
    [path] = (commands.folder / OUT / "judge" / kind).glob("eval_dev_judge_*_logits.json")
    records = json.loads(path.read_text(encoding="utf-8"))["records"]
    expected = [share_of_yes(model, tokenizer, record) for record in records]
    assert max(expected) - min(expected) > 0.1
    found = [record["score"] for record in records]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    metrics = commands.json(f"judge/{kind}/eval_dev_metrics.json")
    [published] = [value for name, value in metrics.items() if "LLMeval" in name]
    assert published == pytest.approx(mean(expected), abs=1e-4)


def test_lexical_metrics_stand_beside_the_judge(commands):
    commands.run("metrics")
    commands.run("results")
    with commands.path("outputs_real_judge.csv").open(encoding="utf-8") as table:
        right, wrong = csv.DictReader(table)
    assert (float(right["EM"]), float(wrong["EM"])) == (1, 0)
    assert float(right["F1"]) > float(wrong["F1"])
    assert 0 < float(right["LLMeval_smollm2_logits"]) < 1


def test_sampled_responses_hold_right_answers(commands):
    commands.run("sample")
    samples = commands.json("samples.json")
    assert [len(item["output"]) for item in samples] == [2] * 4
    assert any(text.endswith(item["answer"]) for item in samples for text in item["output"])


def test_families_says_that_the_file_would_load(commands):
    assert "it would load" in commands.run("families")


def test_plan_counts_the_published_parameters(commands):
    assert "134,515,008 parameters" in commands.run("plan")
    found = commands.json("plan.json")
    assert found["dtype"] == "float32"  # as commands load it on this CPU
    assert found["bytes_a_device"] < found["programs"][0]["peak_bytes_a_device"] < 700e6


@torch.inference_mode()
def self_certainty(model, tokenizer, prompt, response):
    """KL divergence from the uniform distribution to PyTorch's, nats, mean over the response."""
    ids, start = tokenizer.encode(prompt + response), len(tokenizer.encode(prompt))
    logits = model(torch.tensor([ids[:-1]])).logits[0, start - 1 :].double()
    by_token = logits.logsumexp(-1) - logits.mean(-1) - np.log(logits.shape[-1])
    return float(by_token.mean())


def test_self_certainty_is_that_of_pytorch(commands, scorer_of, torch_model_of):
    commands.run("self-certainty")
    model, tokenizer = torch_model_of("smollm2"), scorer_of("smollm2").encoder.tokenizer
    for item in commands.json("confidences.json"):
        expected = [
            self_certainty(model, tokenizer, item["model_input"], response)
            for response in item["output"]
        ]
        np.testing.assert_allclose(item["confidence_list"], expected, rtol=0, atol=1e-4)


def test_most_certain_response_is_selected(commands):
    commands.run("self-certainty")
    commands.run("select")
    confident, selected = commands.json("confidences.json"), commands.json("selected.json")
    for item, chosen in zip(confident, selected, strict=True):
        confidences = item["confidence_list"]
        assert 0 < min(confidences) < max(confidences)
        assert chosen["output"] == [item["output"][confidences.index(max(confidences))]]


def test_vote_takes_the_answer_of_most_responses(commands):
    commands.run("vote")
    voted = commands.json("voted.json")
    assert [item["right"] for item in voted] == [True, True, False]
    boxes = [item["output"][0].partition("boxed{")[2].partition("}")[0] for item in voted]
    assert boxes == ["5", "7", "6"]


def test_reply_of_universal_self_consistency_is_pytorch_greedy_text(
    commands, scorer_of, torch_model_of
):
    commands.run("usc-generate")
    commands.run("usc-select")
    model, tokenizer = torch_model_of("smollm2"), scorer_of("smollm2").encoder.tokenizer
    replies, chosen = commands.json("consistency.json"), commands.json("consistent.json")
    for reply, item in zip(replies, chosen, strict=True):
        assert reply["output"] == [greedy(model, tokenizer, reply["model_input"], 16)]
        # The model repeats the form of the reply and names no response.
        assert item["fallback"] == "none_named"
        assert item["output"] == reply["responses"][:1]
    assert [item["right"] for item in chosen] == [True, True, False]


@torch.inference_mode()
def greedy(model, tokenizer, prompt, n_tokens):
    """PyTorch's most probable tokens after a prompt, up to the end of the turn."""
    ids = torch.tensor([tokenizer.encode(prompt)])
    [end] = tokenizer.encode("<|im_end|>")
    whole = model.generate(ids, do_sample=False, max_new_tokens=n_tokens, eos_token_id=end)
    new = whole[0, ids.shape[1] :].tolist()
    return tokenizer.decode(new[: new.index(end)] if end in new else new)


def test_more_certain_code_is_in_its_order(commands):
    commands.run("livecode-parse")
    commands.run("livecode-select")
    shuffled, chosen = commands.json("code-parsed.json"), commands.json("code-selected.json")
    assert [item["code_list"][0].startswith("def ") for item in shuffled] == [False, False]
    for item in chosen:
        compile(item["code_list"][0], item["question_id"], "exec")


def test_lm_eval_finds_the_accuracy_of_choose(commands):
    commands.run("choose")
    commands.run("lm-eval")
    [path] = commands.path("lm-eval").glob("*/results_*.json")
    [[_, found]] = json.loads(path.read_text(encoding="utf-8"))["results"].items()
    assert found["acc,none"] == mean(item["acc"] for item in commands.lines("choices.jsonl"))


def test_converted_folder_gives_the_same_scores(commands, scorer_of):
    commands.run("convert")
    pair = ("The capital of France is", " Paris.")
    [expected] = scorer_of("smollm2").score([pair])
    with Scorer.from_pretrained(str(commands.folder / OUT / "converted"), dtype="float32") as own:
        [found] = own.score([pair])
    np.testing.assert_array_equal(found.logprob, expected.logprob)


def test_serve_completes_the_capital_of_france(commands):
    words = ["-m", "jaxscore", "--config", "configs/real/serve.yaml", "--port", "0"]
    child = subprocess.Popen(
        [sys.executable, *words],
        cwd=commands.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        port = int(child.stdout.readline().rpartition(":")[2])
        body = {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert json.load(answer)["choices"][0]["text"] == " Paris"
    finally:
        child.terminate()
        child.communicate(timeout=60)
