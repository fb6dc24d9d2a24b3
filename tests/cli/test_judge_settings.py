"""`judge`: a metric that exists stands for the same settings, and flags that have no effect."""

import json
import shutil

import pytest

from jaxscore.cli import model_flags
from jaxscore.systems.rag.evaluator_file import find
from tests.cli.conftest import QWEN
from tests.cli.test_judge import GPT2, REPORT, metrics_of, put, read, reported, rows_of
from tests.conftest import CASES


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A folder with a metric, made once."""
    from jaxscore.cli.main import main

    place = shutil.copytree(CASES / "judge", tmp_path_factory.mktemp("judged") / "experiments")
    words = ["judge", "--folder", place / "ours", "--llm", GPT2, "j", "--quiet", "--journal", "off"]
    assert main([str(word) for word in words]) == 0
    return place


@pytest.fixture
def experiments(judged, tmp_path, monkeypatch):
    """A copy of it; no model can be loaded."""
    monkeypatch.setattr(model_flags, "load_scorer", None)
    return shutil.copytree(judged, tmp_path / "experiments")


def words_of(folder, *more, model=GPT2):
    return "judge", "--folder", folder, "--llm", model, "j", *more


def test_the_same_settings_are_skipped(run, experiments):
    folder = experiments / "ours"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    code, out, err = run(*words_of(folder))
    assert (code, reported(out)) == (0, "")
    assert "done     0 records in 0 folders, 1 skipped: the metric exists, 0 failed" in out
    assert "LLMeval_j_logits exists; --force judges it again" in err
    assert "unknown" not in err
    same = {path: path.read_bytes() for path in folder.iterdir()}
    assert same == before
    link = experiments / "link"
    link.symlink_to(GPT2)  # the same folder by another name
    assert run(*words_of(folder, model=link)).code == 0


@pytest.mark.parametrize(
    ("more", "differs"),
    [
        (("--label-score", "sequence"), "read_as is logits there and sequence here"),
        (("--truncate", "left"), "truncate is none there and left here"),
        (("--llm-prompt", "default_multi_qa"), "the evaluator (--llm-prompt) is "),
        (("--dtype", "bfloat16"), "dtype is float32 there and bfloat16 here"),
        (("--quantize", "int8"), "quantized is none there and int8 here"),
        (("--reproducible",), "reproducible is False there and True here"),
        (("--model-impl", "transformers"), "implementation is native there and transformers here"),
        (("--lora", "adapter"), "lora is none there and adapter here"),
    ],
)
def test_other_settings_are_refused_by_name(run, experiments, more, differs):
    code, out, err = run(*words_of(experiments / "ours", *more))
    assert (code, out) == (2, "")
    assert f"ours: LLMeval_j_logits: {differs}" in err
    assert "--force judges it again" in err
    assert "another short name keeps both" in err


def test_what_transformers_computed_is_not_ours(run, experiments):
    path = experiments / "ours" / f"{REPORT}.json"
    report = read(path)
    report["settings"]["implementation"] = "transformers"
    path.write_text(json.dumps(report), encoding="utf-8")
    code, _, err = run(*words_of(experiments / "ours"))
    assert code == 2
    assert "implementation is transformers there and native here" in err


def test_another_model_and_another_judge_are_refused(run, experiments):
    folder = experiments / "ours"
    code, _, err = run(*words_of(folder, model=QWEN))
    assert (code, "model is " in err) == (2, True)
    name = "LLMeval_j_logits"
    code, _, err = run("judge", "--folder", folder, "--gpt", name, "--api-base", "http://x/v1")
    assert code == 2
    for part in (f"model is {GPT2[:60]}", "endpoint is none there and http://x/v1 here", "read_as"):
        assert part in err


def test_an_evaluator_file_that_was_changed_is_refused(run, experiments, tmp_path):
    text = find("default_qa").read_text(encoding="utf-8")
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    words = words_of(experiments / "ours", "--llm-prompt", tmp_path / "own.yaml")
    assert run(*words).code == 0  # the same bytes
    (tmp_path / "own.yaml").write_text(f"{text}\n# other\n", encoding="utf-8")
    code, _, err = run(*words)
    assert code == 2
    assert f"default_qa.yaml there and {tmp_path / 'own.yaml'} here" in err
    assert "sha256" not in err
    path = experiments / "ours" / f"{REPORT}.json"
    stored = read(path)
    stored["settings"]["evaluator"] = str(tmp_path / "own.yaml")
    path.write_text(json.dumps(stored), encoding="utf-8")
    code, _, err = run(*words)
    assert code == 2
    assert f"the evaluator file {tmp_path / 'own.yaml'} (--llm-prompt) has changed since" in err
    code, _, err = run(*words_of(experiments / "ours", "--llm-prompt", "default_aq"))
    assert (code, "; is it default_qa?" in err) == (2, True)


def test_other_records_are_refused(run, experiments):
    folder = experiments / "ours"
    rows = rows_of(folder)
    rows[2]["response"] += "!"
    put(folder, rows)
    code, _, err = run(*words_of(folder))
    assert code == 2
    assert "the records (questions, references, responses) are not the same" in err


def test_each_folder_that_differs_is_named_and_nothing_is_judged(run, experiments):
    shutil.copytree(experiments / "ours", experiments / "again")
    words = ("judge", "--experiments-folder", experiments, "--llm", GPT2, "j")
    code, _, err = run(*words, "--truncate", "left")
    assert code == 2
    assert f"{experiments / 'ours'}: " in err
    assert f"{experiments / 'again'}: " in err
    assert not (experiments / "theirs/eval_dev_metrics.json").exists()


def test_force_and_another_short_name(run, experiments, monkeypatch, scorers):
    monkeypatch.setattr(model_flags, "load_scorer", lambda *_, **__: scorers("tiny-gpt2"))
    folder = experiments / "ours"
    code, out, _ = run(*words_of(folder, "--truncate", "left", "--force"))
    assert (code, "done     7 records in 1 folder, 0 failed" in out) == (0, True)
    assert read(folder / f"{REPORT}.json")["settings"]["truncate"] == "left"
    assert run("judge", "--folder", folder, "--llm", GPT2, "k").code == 0
    assert {"LLMeval_j_logits", "LLMeval_k_logits"} <= set(metrics_of(folder))


def test_a_report_that_says_nothing_leaves_the_settings_unknown(run, experiments):
    folder = experiments / "ours"
    for text in ("{", "[]", '{"metric": "LLMeval_j_logits"}'):
        (folder / f"{REPORT}.json").write_text(text, encoding="utf-8")
        code, _, err = run(*words_of(folder, "--truncate", "left"))
        assert code == 0
        assert "made with settings that are unknown; --force judges it again" in err


def test_metrics_that_share_a_report_file_stay_apart(run, experiments):
    """A comparison's report is named like a text judge's whose short name is `j_VS_them`."""
    folder = experiments / "ours"
    (folder / "eval_dev_metrics.json").write_text(
        json.dumps({f"LLMeval_j_VS_them_{one}": 0.0 for one in ("win", "tie")}
                   | {"LLMeval_j_VS_them_lose": 100.0}),
        encoding="utf-8",
    )  # fmt: skip
    stored = {"metric": "LLMeval_j_VS_them", "kind": "pairwise", "records": []}
    path = folder / "eval_dev_judge_LLMeval_j_VS_them.json"
    path.write_text(json.dumps({**stored, "settings": {"read_as": "pairwise"}}), encoding="utf-8")
    code, _, err = run("judge", "--folder", folder, "--llm-ollama", "m", "j_VS_them")
    assert code == 2
    assert "read_as is pairwise there and text here" in err


def test_the_order_of_a_comparison_is_compared(run, experiments):
    folder, other = experiments / "ours", experiments / "theirs"
    words = ("--opponent-folder", other, "--opponent-name", "t")
    rows, theirs = rows_of(folder), rows_of(other)
    responses = {row["q_id"]: row["response"] for row in theirs}
    names = ("q_id", "question", "label", "response")
    records = [
        {"index": k, **{name: row[name] for name in names}, "opponent": responses[row["q_id"]]}
        for k, row in enumerate(rows)
    ]
    settings = {
        "read_as": "pairwise", "seed": 0, "both_orders": False, "model": GPT2,
        "label_match": "word",
    }  # fmt: skip
    stored = {"metric": "LLMeval_j_VS_t", "kind": "pairwise", "records": records}
    path = folder / "eval_dev_judge_LLMeval_j_VS_t.json"
    path.write_text(json.dumps({**stored, "settings": settings}), encoding="utf-8")
    rates = {"LLMeval_j_VS_t_win": 50.0, "LLMeval_j_VS_t_tie": 0.0, "LLMeval_j_VS_t_lose": 50.0}
    (folder / "eval_dev_metrics.json").write_text(json.dumps(rates), encoding="utf-8")
    assert run(*words_of(folder, *words)).code == 0
    code, _, err = run(*words_of(folder, *words, "--seed", 1))
    assert (code, "seed is 0 there and 1 here" in err) == (2, True)
    code, _, err = run(*words_of(folder, *words, "--label-match", "substring"))
    assert (code, "label_match is word there and substring here" in err) == (2, True)
    code, _, err = run(*words_of(folder, *words, "--both-orders"))
    assert (code, "both_orders is False there and True here" in err) == (2, True)
    theirs[0]["response"] = "changed"
    put(other, theirs)
    code, _, err = run(*words_of(folder, *words))
    assert (code, "are not the same" in err) == (2, True)


def test_other_spellings(run, experiments, monkeypatch, scorers):
    monkeypatch.setattr(model_flags, "load_scorer", lambda *_, **__: scorers("tiny-gpt2"))
    folder = experiments / "ours"
    code, out, _ = run("judge", "--input", folder, "--model", GPT2, "--limit", 2)
    assert code == 0
    assert "LLMeval_tiny-gpt2_logits_2 " in out
    assert len(rows_of(folder, "eval_dev_out_2.json")) == 2


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("--llm", GPT2, "j", "--llm-batch-size", 2), "--llm-batch-size"),
        (("--llm", GPT2, "j", "--ollama-url", "http://localhost:11434"), "--ollama-url"),
        (("--llm", GPT2, "j", "--api-base", "https://api.openai.com/v1"), "--api-base"),
        (("--gpt", "LLMeval_j", "--label-score", "first"), "--label-score"),
        (("--llm", GPT2, "j", "--label-match", "word"), "--label-match"),
        (("--gpt", "LLMeval_j", "--ollama-url", "http://x"), "--ollama-url"),
        (("--gpt", "LLMeval_j", "--revision", "main"), "--revision"),
        (("--llm-ollama", "m", "j", "--api-base", "http://x"), "--api-base"),
        (("--bem", "m", "--llm-prompt", "default_multi_qa"), "--llm-prompt"),
        (("--bem", "m", "--label-score", "first"), "--label-score"),
    ],
)
def test_flags_of_no_effect_are_told(run, experiments, words, flag):
    folder = experiments / "ours"
    names = ("LLMeval_j_logits", "LLMeval_j", "BEM")
    values = json.dumps(dict.fromkeys(names, 0.5))
    (folder / "eval_dev_metrics.json").write_text(values, encoding="utf-8")
    code, _, err = run("judge", "--folder", folder, *words)
    assert code == 0
    assert f"{flag}: of no effect, it is used " in err
    assert "of no effect" not in run("judge", "--folder", folder, *words[:-2]).err
