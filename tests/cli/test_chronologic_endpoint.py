"""`chronologic` through a server gives what the same model gives here."""

import threading
from pathlib import Path

import pytest

from jaxscore.cli import model_flags
from jaxscore.engine.generation import Generator
from jaxscore.shell.audits import NO_SHARING
from jaxscore.types.requests import GenerationRequest, LabelRequest, Request
from tests.cli.conftest import strict
from tests.conftest import CASES
from tests.endpoints.server import Answer, Server

MODEL = "tiny-llama3"
QUESTIONS = CASES / "chronologic/questions.jsonl"


class Completions:
    """The `/completions` of a server that has one of the cases' models, as vLLM answers."""

    def __init__(self, scorer):
        self.scorer, self.generator = scorer, Generator(scorer)
        self.lock = threading.Lock()

    def __call__(self, path, body, attempt):
        if path != "/v1/completions" or body["model"] != "served/tiny:1":
            return Answer({"error": {"message": "no such model"}}, 404)
        with self.lock:
            if body.get("echo"):
                return Answer(self.echo(body["prompt"]))
            if body.get("logprobs"):
                return Answer(self.listed(body["prompt"]))
            return Answer(self.written(body["prompt"], body["max_tokens"]))

    def echo(self, text):
        tokenizer = self.scorer.encoder.tokenizer
        [scored] = self.scorer.score([Request("", "", text)])
        bos = tokenizer.decode(self.scorer.encoder.prefix)
        tokens = [bos, *(tokenizer.decode([id]) for id in scored.token_ids)]
        values = [None, *(float(value) for value in scored.logprob)]
        top = [None, *({token: value} for token, value in zip(tokens[1:], values[1:], strict=True))]
        choice = {
            "text": text,
            "logprobs": {"tokens": tokens, "token_logprobs": values, "top_logprobs": top},
        }
        return {"choices": [choice], "usage": {"prompt_tokens": len(tokens)}}

    def listed(self, prompt):
        """All tokens, which is more than was asked for, so that the letters can be compared."""
        ids = tuple(range(len(self.scorer.encoder.tokenizer)))
        [scores] = self.scorer.label([LabelRequest("", prompt, ids)])
        decode = self.scorer.encoder.tokenizer.decode
        top = {decode([k]): float(value) for k, value in enumerate(scores.logprob)}
        return {"choices": [{"text": "", "logprobs": {"top_logprobs": [top]}}]}

    def written(self, prompt, n):
        [written] = self.generator.generate([GenerationRequest("", prompt, n)])
        return {"choices": [{"text": written.text, "finish_reason": "length"}]}


@pytest.fixture
def url(scorers, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(model_flags, "load_scorer", None)  # no local model is loaded
    with Server(Completions(scorers(MODEL))) as server:
        yield server.url


def results(folder, kind):
    [report] = folder.glob(f"eval_report_{kind}*.md")
    [data] = folder.glob(f"eval_results_{kind}*.json")
    assert report.name.startswith(f"eval_report_{kind}served_tiny_1_")
    return report.read_text(encoding="utf-8"), strict(data.read_text(encoding="utf-8"))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("boundary", ["joint", "upstream"])
def test_full_eval(run, url, tmp_path, boundary):
    """Questions beyond ASCII are left to the tests of the endpoint itself."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    want = strict((CASES / "expected" / MODEL / "chronologic.json").read_text(encoding="utf-8"))
    chosen = [k for k, line in enumerate(lines) if line.isascii()]
    assert len(chosen) >= 5
    plain = tmp_path / "plain.jsonl"
    plain.write_text("\n".join(lines[k] for k in chosen), encoding="utf-8")
    words = ("--full-eval", "--api-base", url, "--boundary", boundary)
    code, out, err = run("chronologic", "served/tiny:1", plain, *words)
    assert code == 0
    assert err.count(NO_SHARING) == (boundary == "upstream")  # joint reads the space already
    assert "result   overall Brier 0." in out
    assert out.startswith(f"done     {len(chosen)} questions, 0 failed\n")
    report, record = results(tmp_path, "full_")
    for question, k in zip(record["questions"], chosen, strict=True):
        assert question["scores"] == pytest.approx(want["questions"][k][boundary], abs=1e-4)
        assert question["n_tokens"] == want["questions"][k][f"n_{boundary}"]
    assert record["boundary_audit"] is None
    assert record["settings"]["endpoint"] == url
    assert "| endpoint | " in report
    assert "dtype" not in record["settings"]
    [manifest] = tmp_path.glob("*.run.json")
    facts = strict(manifest.read_text(encoding="utf-8"))
    assert (facts["failed"], facts["flags"]["api_base"]) == (0, url)
    assert "machine" not in facts


def test_a_sample_of_questions(run, url, place):
    folder = place(*({"main_question": f"Who {k}?", "answer_strings": ["a", "b"],
                      "answer_probabilities": [1, 0]} for k in range(9)))  # fmt: skip
    words = ("--api_base", url, "--samples", 3, "--quiet")
    code, out, _ = run("chronologic", "served/tiny:1", folder / "in.jsonl", *words)
    assert code == 0
    assert ", 3 questions " in out


@pytest.mark.slow
def test_mcq(run, url, scorers, tmp_path, monkeypatch):
    words = ("--mcq", "--seed", 3, "--api-base", url, "--output-dir", tmp_path / "served")
    code, _, _ = run("chronologic", "served/tiny:1", QUESTIONS, *words, "--quiet")
    assert code == 0
    report, served = results(tmp_path / "served", "mcq_")
    monkeypatch.setattr(
        model_flags, "load_scorer", lambda args, model, *_, **__: scorers(Path(model).name)
    )
    words = ("--mcq", "--seed", 3, "--output-dir", tmp_path / "local", "--quiet")
    assert run("chronologic", CASES / "models" / MODEL, QUESTIONS, *words).code == 0
    [path] = (tmp_path / "local").glob("eval_results_*.json")
    local = strict(path.read_text(encoding="utf-8"))
    for one, other in zip(served["questions"], local["questions"], strict=True):
        for name in ("prompt", "choices", "response", "chosen", "skill"):
            assert one[name] == other[name]
        assert one["letter_probabilities"] == pytest.approx(other["letter_probabilities"])
        assert one["letter_outside"] == pytest.approx(other["letter_outside"])
    assert served["summary"]["by_category"].keys() == local["summary"]["by_category"].keys()
    assert "| endpoint | " in report


def test_a_model_that_is_not_served(run, url, tmp_path):
    words = ("--api-base", url, "--output-dir", tmp_path)
    code, out, err = run("chronologic", "another", QUESTIONS, *words)
    assert (code, out) == (2, "")
    assert "no such model" in err
    assert list(tmp_path.iterdir()) == []


def test_vllm_asks_the_server_of_the_published_script(run, monkeypatch, tmp_path):
    from jaxscore.endpoints import completions

    asked = []

    class Endpoint(completions.CompletionsEndpoint):
        def __init__(self, model, url, *, progress):
            asked.append((model, url, progress))
            raise KeyboardInterrupt

    monkeypatch.setattr(completions, "CompletionsEndpoint", Endpoint)
    words = ("--vllm", "--full-eval", "--output-dir", tmp_path, "--quiet")
    assert run("chronologic", "served", QUESTIONS, *words).code == 130
    assert asked == [("served", "http://localhost:9011/v1", False)]


def test_flags_of_a_local_model_are_told(run, url, place):
    folder = place({"main_question": "Who?", "answer_strings": ["a", "b"],
                    "answer_probabilities": [1, 0]})  # fmt: skip
    words = ("--api-base", url, "--revision", "main", "--dtype", "bfloat16")
    code, _, err = run("chronologic", "served/tiny:1", folder / "in.jsonl", *words)
    assert code == 0
    assert "--dtype: no effect, the endpoint computes" in err
    assert "--revision: no effect, the endpoint computes" in err
