"""`score`, `paths` and `probsem` through a server give the numbers of the same model here."""

import json
import re
from pathlib import Path

import pytest

from jaxscore.cli import model_flags
from jaxscore.report.html.strips import MISSING
from jaxscore.shell.audits import NO_SHARING
from tests.cli.conftest import strict
from tests.conftest import CASES
from tests.endpoints.model_server import ModelServer
from tests.endpoints.server import Answer, Server
from tests.report.html.made import block

MODEL = "tiny-llama3"
LOCAL = CASES / "models" / MODEL
TEXTS = (
    {"id": "a", "context": "The capital of Norway is", "continuation": " Oslo", "gold": 1},
    {"continuation": "The cat ran"},
    {"id": "short", "context": "The cat", "continuation": "s"},
    {"id": "é", "context": "ANSWER: ", "continuation": "À São Tomé"},
)
UNKNOWN = ["token_ids", "entropy", "self_certainty", "mean_entropy", "mean_self_certainty"]
ITEMS = (
    {"id": "q", "question": "Where was Ada born?", "paths": [["Ada", "born in", "Oslo"], []]},
    {"question": "Who ran?", "paths": [["the cat", "ran"], ["a", "b", "the dog"]]},
)


class Tiny(ModelServer):
    """Fails the texts that say so."""

    def __call__(self, path, body, attempt):
        if body["model"] != "served":
            return Answer({"error": {"message": "no such model"}}, 404)
        if "unlucky" in body["prompt"]:
            return Answer({"error": {"message": "bad luck"}}, 400)
        return super().__call__(path, body, attempt)


@pytest.fixture
def both(run, scorers, monkeypatch):
    """`both(words)`: what a command does with the server, and then with the model here."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    scorer = scorers(MODEL)

    def call(local, served):
        monkeypatch.setattr(model_flags, "load_scorer", None)
        with Server(Tiny(scorer)) as server:
            one = run(*served, "--model", "served", "--api-base", server.url, "--quiet")
        monkeypatch.setattr(model_flags, "load_scorer", lambda *_, **__: scorer)
        other = run(*local, "--model", LOCAL, "--quiet")
        return one, other

    return call


def lines(path):
    return [strict(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_score_keeps_the_others_of_answers_that_are_no_log_probabilities(run, place, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    given = {"digits": 10**4000, "above": 5.0, "nan": float("nan"), "fine": -1.0}

    def behave(path, body, attempt):
        if body["prompt"] == "a long":
            return Answer(b" " * 4096, endless="chunked")
        values = [None, given[body["prompt"].removeprefix("a ")]]
        shown = {"tokens": ["a", body["prompt"][1:]], "token_logprobs": values}
        return Answer({"choices": [{"text": "", "logprobs": shown}]})

    names = [*given, "long"]
    folder = place(*({"id": name, "context": "a", "continuation": f" {name}"} for name in names))
    with Server(behave) as server:
        words = ("--model", "m", "--api-base", server.url, "--quiet")
        out = folder / "out.jsonl"
        done = run("score", "--input", folder / "in.jsonl", "--output", out, *words)
    assert done.code == 1
    assert done.err.splitlines()[-1] == "4 failed, the others are kept"
    found = {line["id"]: line for line in lines(out)}
    assert [found[name].get("sum_logprob") for name in names] == [None, None, None, -1.0, None]
    assert ["no log-prob" in found[name].get("error", "") for name in names[:3]] == [True] * 3
    assert "bytes, expected less for this request" in found["long"]["error"]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_score(both, place, ending):
    folder = place(*TEXTS, {"id": "u", "context": "unlucky", "continuation": " x", "tag": 2})
    words = ("score", "--input", folder / "in.jsonl", "--output")
    paths = [folder / f"{name}{ending}" for name in ("local", "served")]
    served, local = both((*words, paths[0]), (*words, paths[1]))
    assert served.code == 1
    assert served.err.splitlines() == [
        f"failed: {folder / 'in.jsonl'}:5 (id u): "
        + served.err.partition("u): ")[2].partition("\n")[0],
        "1 failed, the others are kept",
    ]
    assert "bad luck" in served.err
    assert served.out.startswith("done     5 requests, 1 failed\n")
    assert local.code == 0
    if ending == ".parquet":
        from pyarrow import parquet

        here, there = (parquet.read_table(path).to_pylist() for path in paths)
        assert there.pop()["error"]
    else:
        here, there = map(lines, paths)
        assert there.pop().keys() == {"id", "error", "tag"}
        assert [list(one) for one in there] == [list(one) for one in here[:-1]]
    for one, other in zip(there, here[:-1], strict=True):
        for name, value in other.items():
            if name in UNKNOWN:
                assert one[name] is None
            elif name == "tokens":
                assert len(one["tokens"]) == len(value)
            elif name == "perplexity" and value is not None:
                assert one[name] == pytest.approx(value, rel=1e-4)
            else:
                assert one[name] == pytest.approx(value, abs=1e-4), name
    manifest = strict((folder / f"served{ending}.run.json").read_text(encoding="utf-8"))
    assert (manifest["failed"], manifest["flags"]["model"]) == (1, "served")
    assert "machine" not in manifest
    pages = [folder / f"{name}{ending}.report.html" for name in ("local", "served")]
    (ours, known), (theirs, arrays) = (block(path.read_text(encoding="utf-8")) for path in pages)
    left_out = {"Entropy", "Self-certainty"}
    heads = [[one["title"] for one in header["columns"]] for header in (ours, theirs)]
    assert heads[1] == [title for title in heads[0] if title not in left_out]
    assert not {"entropy", "self_certainty"} & arrays.keys()
    assert {"entropy", "self_certainty"} <= known.keys()
    assert set(theirs["strips"]["ids"]) <= {*range(-1000, 0)}  # no token has an id
    assert len(arrays["token"]) == len(arrays["logprob"])


def test_score_after_examples(both, place):
    folder = place(*TEXTS[:1])
    (folder / "shots.jsonl").write_text(json.dumps(TEXTS[3]), encoding="utf-8")
    words = ("score", "--input", folder / "in.jsonl", "--system", "S.", "--fewshot")
    words = (*words, folder / "shots.jsonl", "--output")
    served, local = both((*words, folder / "l.jsonl"), (*words, folder / "s.jsonl"))
    assert served.code == local.code == 0
    [one], [other] = (lines(folder / f"{name}.jsonl") for name in "sl")
    assert one["sum_logprob"] == pytest.approx(other["sum_logprob"], abs=1e-4)


def test_score_of_a_server_that_lists_nothing(run, place, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    shown = {"tokens": ["a", " b"], "token_logprobs": [None, -1.0], "top_logprobs": None}
    answer = Answer({"choices": [{"text": "a b", "logprobs": shown}]})
    folder = place({"continuation": "a b"}, {"context": "a", "continuation": " b"})
    with Server(lambda path, body, attempt: answer) as server:
        words = ("--input", folder / "in.jsonl", "--output", folder / "out.jsonl", "--quiet")
        assert run("score", "--model", "m", "--api-base", server.url, *words).code == 0
    assert [one["greedy"] for one in lines(folder / "out.jsonl")] == [[None, None], [None]]
    assert [one["logprob"] for one in lines(folder / "out.jsonl")] == [[None, -1.0], [-1.0]]
    _, arrays = block((folder / "out.jsonl.report.html").read_text(encoding="utf-8"))
    assert arrays["logprob"].tolist() == [MISSING, -1000, -1000]
    assert arrays["unsure"].tolist() == [0b110]  # that no token stands before the first is known


@pytest.mark.parametrize("more", [(), ("--answer-separator", " ")])
def test_paths(both, place, more):
    folder = place(*ITEMS)
    words = ("paths", "--input", folder / "in.jsonl", "--boundary", "joint", *more, "--output")
    served, local = both((*words, folder / "l.json"), (*words, folder / "s.json"))
    assert served.code == local.code == 0
    here, there = (strict((folder / f"{k}.json").read_text(encoding="utf-8")) for k in "ls")
    for one, other in zip(there, here, strict=True):
        assert one["id"] == other["id"]
        for a, b in zip(one["path_evaluations"], other["path_evaluations"], strict=True):
            assert a["retrieved_prob"] == pytest.approx(b["retrieved_prob"], rel=1e-3)
            assert a["baseline_prob"] == pytest.approx(b["baseline_prob"], rel=1e-3)
    report = strict((folder / "s_report.json").read_text(encoding="utf-8"))
    assert report["settings"]["endpoint"].startswith("http://127.0.0.1")
    assert report["boundary_audit"] is None
    assert "answer_blank" not in report
    assert report["remarks"] == ([] if more else [NO_SHARING])
    assert report["settings"]["answer_separator"] == (more[1] if more else None)


def test_probsem(both, place):
    folder = place("")
    (folder / "p.txt").write_text("A prompt.\n", encoding="utf-8")
    suite = {
        "pretext": "True or False?",
        "context": [{"text": "It rains.", "expected": 0}, {"text": "unlucky", "expected": 1}],
        "queries": ["True", "False"],
    }
    (folder / "p_t.json").write_text(json.dumps(suite), encoding="utf-8")
    words = ("probsem", "--prompt", "p", "--test", "t", "--input-dir", folder, "--output-dir")
    served, local = both((*words, folder / "l"), (*words, folder / "s"))
    assert (served.code, local.code) == (1, 0)
    assert "bad luck" in served.err
    [data] = (folder / "s").glob("p_t_served_endpoint_results.json")
    [other] = (folder / "l").glob("*_results.json")
    record = strict(data.read_text(encoding="utf-8"))
    assert record["remarks"] == [NO_SHARING]
    one, failed = record["contexts"]
    want = strict(other.read_text(encoding="utf-8"))["contexts"][0]
    assert one["logp"] == pytest.approx(want["logp"], abs=1e-3)
    assert one["n_tokens"] == want["n_tokens"]
    assert "error" in failed


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("score", ("--boundary", "separate"), "boundary separate: an endpoint.*give joint, or"),
        ("paths", (), "boundary separate: an endpoint encodes.*give joint, or take a local"),
        ("paths", ("--boundary", "upstream"), "boundary upstream: an endpoint"),
        ("score", ("--truncate", "left"), "truncate: an endpoint takes texts as they are"),
        ("score", ("--audit-noise", 2), "audit_noise: an endpoint's layouts are its own"),
        ("score", ("--lora", "x"), "--lora and --quantize: an endpoint has its own weights"),
        ("score", ("--quantize", "int8"), "--lora and --quantize: an endpoint"),
        ("paths", ("--boundary", "joint", "--reproducible"), "--reproducible: an endpoint does"),
        ("score", ("--api-base", "ftp://x"), "is not the URL of a server"),
        ("score", ("--api-base", ""), "is not the URL of a server"),
    ],
)
def test_what_an_endpoint_cannot_do(run, place, command, words, message):
    folder = place(*(ITEMS if command == "paths" else TEXTS))
    flags = ("--input", folder / "in.jsonl", "--output", folder / "out.json", "--model", "m")
    code, out, err = run(command, *flags, "--api-base", "http://127.0.0.1:9/v1", *words)
    assert (code, out) == (2, "")
    assert re.search(message, err)
    assert [one.name for one in folder.iterdir()] == ["in.jsonl"]


def test_what_an_endpoint_cannot_do_is_refused_before_the_input_is_read(run, place):
    flags = ("--input", place() / "none.jsonl", "--output", place() / "out.jsonl", "--model", "m")
    code, _, err = run("score", *flags, "--api-base", "http://127.0.0.1:9/v1", "--reproducible")
    assert code == 2
    assert "--reproducible: an endpoint does" in err


def test_flags_of_a_local_model_are_told_and_a_wrong_model_ends_the_run(run, place, scorers):
    folder = place(*TEXTS)
    with Server(Tiny(scorers(MODEL))) as server:
        words = ("--input", folder / "in.jsonl", "--output", folder / "out.jsonl")
        words = (*words, "--api-base", server.url, "--dtype", "bfloat16", "--journal", "off")
        code, out, err = run("score", "--model", "other", *words)
    assert (code, out) == (2, "")
    assert "--dtype, --journal: no effect, the endpoint computes" in err
    assert "no such model" in err
    assert [one.name for one in Path(folder).iterdir()] == ["in.jsonl"]
