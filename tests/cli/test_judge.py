"""`judge`: files, names and reports of every mode, and folders that go wrong."""

import json
import os
import shutil

import numpy as np
import pytest

from jaxscore.cli import model_flags
from jaxscore.engine import generation as generator_module
from jaxscore.report.markdown import NOTHING
from jaxscore.systems.rag.evaluator_file import find
from jaxscore.types.results import Generated
from tests.cli.conftest import QWEN, strict
from tests.conftest import CASES
from tests.endpoints.server import Answer, Server
from tests.models.transformers_flax.test_bert_classifier import torch_model
from tests.releases import flax_classes
from tests.systems.rag.test_bem import WORDS

GPT2 = str(CASES / "models/tiny-gpt2")
SIDES = ("ours", "theirs")
REPORT = "eval_dev_judge_LLMeval_j_logits"


@pytest.fixture
def experiments(tmp_path):
    """The shared cases in a fresh folder."""
    return shutil.copytree(CASES / "judge", tmp_path / "experiments")


@pytest.fixture
def says(monkeypatch):
    """`says(texts...)`: what the local judge writes, in turn, and again from the start."""
    prompts = []

    def use(*texts):
        class Scripted:
            def __init__(self, scorer):
                pass

            def generate(self, requests):
                prompts.extend(request.prompt for request in requests)
                return [
                    Generated(r.id, texts[k % len(texts)], np.zeros(0, np.int32), "eos")
                    for k, r in enumerate(requests)
                ]

        monkeypatch.setattr(generator_module, "Generator", Scripted)
        return prompts

    return use


@pytest.fixture
def no_model(monkeypatch):
    monkeypatch.setattr(model_flags, "load_scorer", None)


def read(path):
    return strict(path.read_text(encoding="utf-8"))


def reported(out):
    """What a run says of its folders, before the closing block."""
    return out[: out.index("done     ")]


def rows_of(folder, name="eval_dev_out.json"):
    return read(folder / name)


def metrics_of(folder):
    return read(folder / "eval_dev_metrics.json")


def put(folder, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "eval_dev_out.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder


def record(q_id, response="Oslo", label=("Oslo",), question="where was Ada born"):
    return {"q_id": q_id, "response": response, "label": list(label), "question": question}


def own_evaluator(folder, *changes, name="own.yaml"):
    text = find("default_qa").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


TEXT_MODE = ("use_logits: true", "use_logits: false")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["default_qa", "default_multi_qa"])
def test_the_shared_cases(run, experiments, tmp_path, monkeypatch, name):
    """From another folder, where there is no configs/."""
    monkeypatch.chdir(tmp_path)
    before = {side: rows_of(experiments / side) for side in SIDES}
    words = ("judge", "--experiments_folder", experiments, "--llm", GPT2, "j", "--llm_prompt", name)
    code, out, err = run(*words)
    assert code == 0
    assert "of its probability on average" in err  # the outside mass is reported
    want = json.loads((CASES / "expected/tiny-gpt2/judge.json").read_text(encoding="utf-8"))
    assert "LLMeval_j_logits: means from " in out
    for side, line in zip(SIDES, reported(out).splitlines(), strict=True):
        expected = want[f"{name} {side}"]
        assert line.startswith(f"{experiments / side}: LLMeval_j_logits {expected['mean']:.5f} [")
        assert line.endswith(f" of the probability outside the labels; report {REPORT}.md")
        assert metrics_of(experiments / side) == {
            "LLMeval_j_logits": pytest.approx(expected["mean"], abs=1e-5)
        }
        rows = rows_of(experiments / side)
        assert {r["q_id"]: r["LLMeval_j_logits"] for r in rows} == pytest.approx(
            expected["scores"], abs=1e-5
        )
        for row, old in zip(rows, before[side], strict=True):
            assert list(row.items())[:-1] == list(old.items())
        assert sorted(path.name for path in (experiments / side).iterdir()) == [
            f"{REPORT}.html", f"{REPORT}.json", f"{REPORT}.md", f"{REPORT}.md.run.json",
            "eval_dev_metrics.json", "eval_dev_out.json",
        ]  # fmt: skip
        for path in (experiments / side).iterdir():
            assert str(path) in out


def test_the_report(run, experiments):
    folder = experiments / "ours"
    assert run("judge", "--folder", folder, "--llm", GPT2, "j", "--quiet").code == 0
    found = read(folder / f"{REPORT}.json")
    scores = [row["LLMeval_j_logits"] for row in rows_of(folder)]
    assert [one["score"] for one in found["records"]] == scores
    assert found["summary"]["mean"] == pytest.approx(sum(scores) / 7)
    low, high = found["summary"]["interval"]
    assert min(scores) <= low < found["summary"]["mean"] < high <= max(scores)
    assert found["summary"]["outside"] == pytest.approx(
        sum(one["outside"] for one in found["records"]) / 7
    )
    labels = found["summary"]["labels"]
    assert [labels["Yes"]["n"], labels["No"]["n"]] == [0, 7]
    assert labels["Yes"]["probability"] == pytest.approx(found["summary"]["mean"])
    settings = found["settings"]
    assert (settings["model"], settings["read_as"], settings["seed"]) == (GPT2, "logits", 0)
    assert settings["evaluator"].endswith("default_qa.yaml")
    assert {"jaxscore", "jax", "transformers", "date", "device"} <= set(settings)
    page = (folder / f"{REPORT}.md").read_text(encoding="utf-8")
    assert page.index("| Mean |") < page.index("## Labels") < page.index("## Warnings")
    assert page.index("## Records: worst first") < page.index("## Settings and versions")
    worst = sorted(zip(scores, rows_of(folder), strict=True), key=lambda x: x[0])
    assert [line for line in page.splitlines() if line.startswith("### ")] == [
        f"### {one['question']}" for _, one in worst
    ]
    assert [
        line.partition("; Outside")[0] for line in page.splitlines() if "; Score: " in line
    ] == [
        f"q\\_id: {one['q_id']}; " + "Response: ; " * (not one["response"]) + f"Score: {score:.4f}"
        for score, one in worst
    ]


def test_what_is_there_is_kept_unless_forced(run, experiments, monkeypatch):
    folder = experiments / "ours"
    (folder / "eval_dev_metrics.json").write_text('{"EM": 0.5, "LLMeval_j_logits": 0.25}')
    words = ("judge", "--folder", folder, "--llm", GPT2, "j")
    with monkeypatch.context() as patch:
        patch.setattr(model_flags, "load_scorer", None)  # not even loaded
        code, out, err = run(*words)
        assert (code, reported(out)) == (0, "")
        assert "0 records in 0 folders, 1 skipped: the metric exists, 0 failed" in out
        assert "LLMeval_j_logits exists, made with settings that are unknown; --force" in err
    assert run(*words, "--force").code == 0
    assert metrics_of(folder)["EM"] == 0.5
    assert metrics_of(folder)["LLMeval_j_logits"] != 0.25


def test_a_mean_that_is_null_is_not_there(run, experiments):
    folder = experiments / "ours"
    (folder / "eval_dev_metrics.json").write_text('{"LLMeval_j_logits": null}')
    assert run("judge", "--folder", folder, "--llm", GPT2, "j", "--quiet").code == 0
    assert 0 < metrics_of(folder)["LLMeval_j_logits"] < 1


@pytest.mark.slow
def test_a_sample_is_the_first_records_and_has_a_file_of_its_own(run, experiments):
    folder = experiments / "ours"
    words = ("judge", "--folder", folder, "--llm", GPT2, "--quiet")
    assert run(*words, "--sample", 2).code == 0
    assert list(metrics_of(folder)) == ["LLMeval_tiny-gpt2_logits_2"]  # the short name's default
    rows = rows_of(folder, "eval_dev_out_2.json")
    assert [row["q_id"] for row in rows] == ["q0", "q1"]
    assert metrics_of(folder)["LLMeval_tiny-gpt2_logits_2"] == pytest.approx(
        sum(row["LLMeval_tiny-gpt2_logits_2"] for row in rows) / 2
    )
    assert "LLMeval_tiny-gpt2_logits_2" not in rows_of(folder)[0]
    assert run(*words, "--sample", -1).code == 0  # all, as the published script has it
    assert "LLMeval_tiny-gpt2_logits" in metrics_of(folder)


def test_llm_alone_is_the_published_default(run, experiments, monkeypatch):
    asked = []

    def load(args, name, *places):
        asked.append(name)
        return real(args, GPT2, *places)

    real = model_flags.load_scorer
    monkeypatch.setattr(model_flags, "load_scorer", load)
    assert run("judge", "--folder", experiments / "ours", "--llm", "--quiet").code == 0
    assert asked == ["upstage/SOLAR-10.7B-Instruct-v1.0"]
    assert list(metrics_of(experiments / "ours")) == ["LLMeval_logits"]


def test_text_mode(run, experiments, tmp_path, says):
    prompts = says("Yes", "No, it is not", "?", "Yes or No", "Yes.", "", "Yes")
    folder = experiments / "ours"
    evaluator = own_evaluator(tmp_path, TEXT_MODE)
    words = ("judge", "--folder", folder, "--llm", GPT2, "j", "--llm-prompt", evaluator)
    code, out, err = run(*words)
    assert code == 0
    assert metrics_of(folder) == {"LLMeval_j": 0.75}
    assert [row["LLMeval_j"] for row in rows_of(folder)] == [1, 0, -100, -100, 1, -100, 1]
    assert out.startswith(f"{folder}: LLMeval_j 0.75000 [")
    assert "over 4 records; report" in out
    assert "2 answers name no label and 1 name several; these 3 are outside the mean" in err
    want = json.loads((CASES / "expected/tiny-gpt2/judge.json").read_text(encoding="utf-8"))
    assert prompts[0] == want["default_qa ours"]["first_prompt"]
    page = (folder / "eval_dev_judge_LLMeval_j.md").read_text(encoding="utf-8")
    assert "| Mean | 0.75 | 0.300642 to 0.954413 | 4 records |" in page  # Wilson's, of 3 of 4
    assert "| No label | 2 | - | outside the mean |" in page
    assert "| Several labels | 1 | - | outside the mean |" in page
    assert f"| Yes | 1 | 3 | {NOTHING} |" in page
    assert page.count("\nq\\_id: ") == 7
    assert page.count("; Score: ") == 4
    assert "The judge wrote: Yes or No" in page


def test_text_mode_where_no_answer_is_of_use(run, experiments, tmp_path, says):
    says("neither")
    folder = experiments / "ours"
    evaluator = own_evaluator(tmp_path, TEXT_MODE)
    code, out, err = run("judge", "--folder", folder, "--llm", GPT2, "j", "--llm-prompt", evaluator)
    assert code == 1
    assert metrics_of(folder) == {"LLMeval_j": None}
    assert [row["LLMeval_j"] for row in rows_of(folder)] == [-100] * 7
    assert "LLMeval_j no record was judged" in out
    assert "outside the mean, which is null: no record is in it" in err
    assert f"failed: {folder}: no answer names exactly one label" in err
    assert read(folder / "eval_dev_judge_LLMeval_j.json")["summary"]["mean"] is None
    page = (folder / "eval_dev_judge_LLMeval_j.md").read_text(encoding="utf-8")
    assert f"| Mean | {NOTHING} | {NOTHING} | 0 records |" in page
    assert f"| No label | 7 | {NOTHING} | outside the mean |" in page
    assert run("results", "--experiments-folder", experiments, "--output-dir", tmp_path).code == 0
    [line] = (tmp_path / f"{str(experiments).replace('/', '_')}.csv").read_text().splitlines()[1:]
    assert line == "ours,7,0"  # no column is there that n_unread would belong to


def pairwise(folder, other, *more):
    return (
        "judge", "--folder", folder, "--opponent-folder", other, "--opponent-name", "them",
        "--llm", GPT2, "j", *more,
    )  # fmt: skip


def test_a_comparison(run, experiments, says):
    prompts = says("1")
    folder, other = (experiments / side for side in SIDES)
    code, out, _ = run(*pairwise(folder, other))
    assert code == 0
    metrics = metrics_of(folder)
    assert list(metrics) == [f"LLMeval_j_VS_them_{name}" for name in ("win", "tie", "lose")]
    assert sum(metrics.values()) == pytest.approx(100)
    assert 0 < metrics["LLMeval_j_VS_them_win"] < 100  # "1" throughout: the drawn order decides
    found = read(folder / "eval_dev_judge_LLMeval_j_VS_them.json")
    opponents = {row["q_id"]: row["response"] for row in rows_of(other)}
    for one, prompt, row in zip(found["records"], prompts, rows_of(folder), strict=True):
        [switched] = one["switched"]
        assert row["LLMeval_j_VS_them"] == one["score"] == (0.0 if switched else 1.0)
        assert one["opponent"] == opponents[row["q_id"]]
        first, second = row["response"], one["opponent"]
        if switched:
            first, second = second, first
        assert f"Answer 1: {first}\n\nAnswer 2: {second}\n\n" in prompt
    assert "win " in out
    assert "over 7 records" in out
    again = run(*pairwise(folder, other))
    assert (again.code, reported(again.out)) == (0, "")
    rates = found["summary"]["rates"].values()
    assert all(0 <= one["interval"][0] < one["interval"][1] <= 100 for one in rates)
    assert sorted(path.name for path in other.iterdir()) == ["eval_dev_out.json"]


def test_both_orders(run, experiments, says):
    says("1")
    folder, other = (experiments / side for side in SIDES)
    assert run(*pairwise(folder, other, "--both-orders", "--sample", 3, "--quiet")).code == 0
    assert metrics_of(folder) == {
        "LLMeval_j_VS_them_3_win": 0.0,
        "LLMeval_j_VS_them_3_tie": 100.0,
        "LLMeval_j_VS_them_3_lose": 0.0,
    }
    page = (folder / "eval_dev_judge_LLMeval_j_VS_them_3.md").read_text(encoding="utf-8")
    assert "| First preferred | 100.0 % |" in page
    assert "| Both orders agree | 0.0 % |" in page


@pytest.mark.slow
def test_a_comparison_that_the_model_itself_writes(run, experiments):
    folder, other = (experiments / side for side in SIDES)
    assert run(*pairwise(folder, other, "--sample", 2, "--quiet")).code == 0
    rates = metrics_of(folder)
    assert list(rates) == [f"LLMeval_j_VS_them_2_{name}" for name in ("win", "tie", "lose")]
    found = read(folder / "eval_dev_judge_LLMeval_j_VS_them_2.json")
    assert len(found["records"]) == 2
    assert all(len(one["texts"]) == 1 for one in found["records"])


def test_an_opponent_without_our_questions(run, experiments, no_model):
    folder, other = (experiments / side for side in SIDES)
    put(other, rows_of(other)[2:])
    code, out, err = run(*pairwise(folder, other))
    assert (code, out) == (2, "")
    assert "2 of the 7 q_ids" in err
    assert sorted(path.name for path in folder.iterdir()) == ["eval_dev_out.json"]


@pytest.mark.slow
def test_records_that_cannot_be_used(run, tmp_path):
    rows = [
        record("none", label=()),
        record("null", response=None),
        record("long", response="Oslo " * 40_000),
        record("rtl", response="אוסלו ‮abc‬ e\u0301", label=["\u0645\u0631\u062d\u0628\u0627"]),
        record("good"),
        record("good"),
        {"q_id": "bare", "response": "x", "label": ["y"]},
        "no object",
    ]
    folder = put(tmp_path / "one", rows)
    code, out, err = run("judge", "--folder", folder, "--llm", GPT2, "j")
    assert code == 1
    assert "over 3 records" in out
    for part in (
        'record 1 (q_id \'none\'): field "label" is empty',
        "record 2 (q_id 'null'): field \"response\" is null",
        "record 3 (q_id 'long')", "positions",
        "record 7 (q_id 'bare'): no field \"question\"",
        "record 8: found a string",
        "5 failed, the others are kept",
    ):  # fmt: skip
        assert part in err
    got = [row["LLMeval_j_logits"] for row in rows_of(folder)[:7]]
    assert [value is None for value in got] == [True, True, True, False, False, False, True]
    assert got[4] == got[5]
    found = read(folder / f"{REPORT}.json")
    assert found["summary"]["n_failed"] == len(found["failures"]) == 5
    assert "⟨202E⟩abc⟨202C⟩" in (folder / f"{REPORT}.md").read_text(encoding="utf-8")
    words = ("judge", "--folder", folder, "--llm", GPT2, "j", "--force", "--truncate", "left")
    code, _, err = run(*words)
    assert "4 failed" in err
    assert "'long'" not in err
    assert rows_of(folder)[2]["LLMeval_j_logits"] is not None
    cut = {one["q_id"]: one["truncated"] for one in read(folder / f"{REPORT}.json")["records"]}
    assert cut.pop("long") > 0
    assert not any(cut.values())


@pytest.mark.slow
def test_a_long_response_in_text_mode_fails_alone(run, tmp_path):
    folder = put(tmp_path / "one", [record("long", response="Oslo " * 40_000), record("good")])
    evaluator = own_evaluator(tmp_path, TEXT_MODE)
    words = ("judge", "--folder", folder, "--llm", GPT2, "j", "--llm-prompt", evaluator)
    code, _, err = run(*words)
    assert code == 1
    assert "record 1 (q_id 'long')" in err
    assert "no answer names exactly one label" in err
    assert "2 failed" in err
    assert [row["LLMeval_j"] for row in rows_of(folder)] == [None, -100]


def test_a_folder_that_cannot_be_read_leaves_the_others(run, experiments):
    (experiments / "theirs/eval_dev_out.json").write_text('{"q_id": 1}\n{"q_id": 2}\n')
    put(experiments / "tmp_running", [record("x")])
    text = (experiments / "ours/eval_dev_out.json").read_text(encoding="utf-8")
    (experiments / "ours/eval_dev_out.json").write_bytes(
        b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    )
    code, out, err = run("judge", "--experiments-folder", experiments, "--llm", GPT2, "j")
    assert code == 1
    assert len(reported(out).splitlines()) == 1
    assert "theirs/eval_dev_out.json:2: found more than one JSON value (JSONL?)" in err
    assert "LLMeval_j_logits" in metrics_of(experiments / "ours")
    assert not (experiments / "tmp_running/eval_dev_metrics.json").exists()


def test_a_metrics_file_that_cannot_be_read_leaves_the_others(run, experiments):
    (experiments / "ours/eval_dev_metrics.json").write_text("[]")
    code, out, err = run("judge", "--experiments-folder", experiments, "--llm", GPT2, "j")
    assert code == 1
    assert len(reported(out).splitlines()) == 1
    assert "ours/eval_dev_metrics.json: found a list" in err
    assert rows_of(experiments / "ours") == rows_of(CASES / "judge/ours")
    assert "LLMeval_j_logits" in metrics_of(experiments / "theirs")


def test_a_folder_that_changes_meanwhile_leaves_the_others(run, experiments, tmp_path, monkeypatch):
    class Meddler:
        def __init__(self, scorer):
            pass

        def generate(self, requests):
            put(experiments / "ours", [record("other")])
            return [Generated(r.id, "Yes", np.zeros(0, np.int32), "eos") for r in requests]

    monkeypatch.setattr(generator_module, "Generator", Meddler)
    evaluator = own_evaluator(tmp_path, TEXT_MODE)
    words = ("judge", "--llm", GPT2, "j", "--llm-prompt", evaluator)
    code, out, err = run(*words, "--experiments-folder", experiments)
    assert code == 1
    assert out.startswith(f"{experiments / 'theirs'}: LLMeval_j 1.00000")
    assert "ours/eval_dev_out.json: its records have changed since the run began" in err
    assert metrics_of(experiments / "theirs") == {"LLMeval_j": 1.0}
    assert rows_of(experiments / "ours") == [record("other")]
    assert [path.name for path in (experiments / "ours").iterdir()] == ["eval_dev_out.json"]
    put(experiments / "ours", [record("another")])
    code, out, err = run(*words, "--folder", experiments / "ours")
    assert (code, out) == (2, "")
    assert "its records have changed since the run began" in err


def test_a_folder_that_cannot_be_written_leaves_the_others(run, experiments, tmp_path, monkeypatch):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "ours" and access(path, mode))
    words = ("judge", "--llm", GPT2, "j", "--quiet")
    code, out, err = run(*words, "--experiments-folder", experiments)
    assert code == 1
    assert len(reported(out).splitlines()) == 1
    assert "ours: cannot be written, and the scores belong there" in err
    assert run(*words, "--folder", experiments / "ours").code == 2


def test_no_record_is_left(run, tmp_path, no_model):
    folder = put(tmp_path / "one", [record("a", response=None)])
    code, out, err = run("judge", "--folder", folder, "--llm", GPT2)
    assert (code, reported(out)) == (1, "")
    assert "no record is left to judge" in err
    assert not (folder / "eval_dev_metrics.json").exists()


def test_labels_that_share_their_first_token(run, experiments, tmp_path):
    evaluator = own_evaluator(tmp_path, ("'No'", "'Yesterday'"))
    words = ("judge", "--experiments-folder", experiments, "--llm", GPT2, "j")
    words = (*words, "--llm-prompt", evaluator, "--quiet")
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert "'Yes' and 'Yesterday' both begin with token" in err
    assert "give --label-score sequence" in err
    assert not (experiments / "ours/eval_dev_metrics.json").exists()
    assert run(*words, "--label-score", "sequence").code == 0
    assert 0 < metrics_of(experiments / "ours")["LLMeval_j_logits"] < 1
    found = read(experiments / "ours" / f"{REPORT}.json")
    assert found["kind"] == "sequence"


def test_a_model_without_a_chat_template(run, experiments, tmp_path):
    model = shutil.copytree(QWEN, tmp_path / "bare")
    (model / "chat_template.jinja").unlink()
    config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    code, out, err = run("judge", "--folder", experiments / "ours", "--llm", model, "--quiet")
    assert (code, out) == (2, "")
    assert "lacks a chat template" in err
    assert sorted(path.name for path in (experiments / "ours").iterdir()) == ["eval_dev_out.json"]


def test_without_a_system_turn(run, experiments, tmp_path, says):
    prompts = says("Yes")
    model = shutil.copytree(QWEN, tmp_path / "bare")
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    )
    evaluator = own_evaluator(tmp_path, TEXT_MODE)
    words = ("judge", "--folder", experiments / "ours", "--llm", model, "j", "--sample", 1)
    assert run(*words, "--llm-prompt", evaluator, "--quiet").code == 0
    assert prompts == [
        "<user>You are an evaluation tool. Just answer by Yes, No. Here is a question, a golden "
        "answer and an AI-generated answer. Judge whether the AI-generated answer is correct "
        "according to the question and golden answer, answer with Yes, No.\n"
        "Question: where was Arlen born.\nGolden answer: ['Merrow', 'Tellany']\n"
        "Generated answer: Merrow"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{question}", "{question.__class__}"), "asks for {question.__class__}"),
        (('system: "You are', "system: f\"{open('x')} You are"), "not usable YAML"),
        (
            ("prompt:\n", "prompt: !!python/object/apply:os.system ['true']\nx:\n"),
            "not usable YAML",
        ),
        (("use_logits", "use_logit"), "unknown key use_logit"),
    ],
)
def test_evaluator_files_that_are_refused(run, experiments, tmp_path, no_model, change, message):
    evaluator = own_evaluator(tmp_path, change)
    code, out, err = run(
        "judge", "--folder", experiments / "ours", "--llm", GPT2, "--llm-prompt", evaluator
    )
    assert (code, out) == (2, "")
    assert message in err


def test_a_published_file_gives_the_same_scores(run, experiments, tmp_path):
    """Our file as an f-string file; `:\\ ` and `\\n` are BERGEN's way to write it."""
    text = find("default_qa").read_text(encoding="utf-8").split("# Which")[0]
    lines = []
    for line in text.splitlines():
        key, quote, rest = line.partition(': "')
        if quote:
            rest = rest.replace("{rubrik_section}", "{self.rubrik_section}").replace(": ", ":\\ ")
            line = f'{key}: f"{rest}'
        lines.append(line)
    (tmp_path / "theirs.yaml").write_text("\n".join(lines), encoding="utf-8")
    assert 'f"You are' in lines[-1]
    words = ("judge", "--folder", experiments / "ours", "--llm", GPT2, "j", "--quiet")
    assert run(*words, "--llm-prompt", tmp_path / "theirs.yaml").code == 0
    want = json.loads((CASES / "expected/tiny-gpt2/judge.json").read_text(encoding="utf-8"))
    assert metrics_of(experiments / "ours")["LLMeval_j_logits"] == pytest.approx(
        want["default_qa ours"]["mean"], abs=1e-5
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "one of the arguments --llm --model --llm-ollama --gpt --bem is required"),
        (("--llm", "a", "--model", "b"), "not allowed with argument --llm"),
        (("--gpt", "x.md.run"), "would replace the manifest of 'x'"),
        (("--llm", "a", "--gpt", "b"), "not allowed with argument --llm"),
        (("--llm", "a", "b", "c"), "expected MODEL and SHORT at most"),
        (("--llm-ollama", "a", "b", "c"), "expected MODEL and SHORT at most"),
        (("--llm", "a", "--opponent-folder", "x"), "belong together"),
        (("--llm", "a", "--opponent-name", "x"), "belong together"),
        (("--llm", "a", "--both-orders"), "give --opponent-folder too"),
        (("--bem", "--opponent-folder", "x", "--opponent-name", "y"), "takes no opponent"),
        (("--gpt", "a", "--truncate", "left"), "truncate (--truncate) is for prompts whose labels"),
        (("--bem", "--truncate", "left"), "leaves out the ends of texts that are too long"),
        (("--gpt", "a", "--label-score", "sequence"), "which needs a model that runs here"),
        (("--bem", "--label-score", "sequence"), "which needs a model that runs here"),
        (("--gpt", ""), "an empty name"),
        (("--bem", ""), "an empty name"),
        (("--llm", "a", " "), "an empty name"),
        (("--gpt", "response"), "named 'response', which is a field"),
        (("--llm", "a", "--llm-prompt", "nope"), "no nope.yaml in configs/evaluator"),
        (("--llm", "a", "--sample", "0"), "0, expected a whole number of at least 1"),
        (("--llm", "a", "--split", "test"), "eval_test_out.json: No such file"),
        (("--llm", "./nowhere"), "no such folder"),
        (("--bem", "./nowhere"), "no such folder"),
        (("--llm", GPT2, "--revision", "main"), "revisions are for hub ids"),
    ],
)
def test_flags_that_do_not_fit(run, experiments, words, message):
    code, out, err = run("judge", "--folder", experiments / "ours", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(path.name for path in (experiments / "ours").iterdir()) == ["eval_dev_out.json"]


def test_an_opponent_needs_one_folder(run, experiments):
    words = ("--opponent-folder", experiments / "theirs", "--opponent-name", "x")
    code, _, err = run("judge", "--experiments-folder", experiments, "--llm", GPT2, *words)
    assert code == 2
    assert "name it with --folder" in err


def test_a_comparison_needs_a_prompt_for_it(run, experiments, tmp_path, no_model):
    text = find("default_qa").read_text(encoding="utf-8").split("# Which")[0]
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    words = pairwise(*(experiments / side for side in SIDES), "--llm-prompt", tmp_path / "own.yaml")
    code, _, err = run(*words)
    assert code == 2
    assert "needs prompt_pairwise" in err


@pytest.fixture
def served(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def behave(path, body, attempt):
        question = body["messages"][-1]["content"]
        if "Tova" in question:
            return Answer({"error": "no"}, status=400)
        if attempt == 1 and "Ines" in question:
            return Answer({"error": "busy"}, status=503, headers={"Retry-After": "0"})
        text = "Yes" if "Merrow" in question else "No"
        message = {"role": "assistant", "content": text}
        if path == "/api/chat":
            return Answer({"message": message, "done": True, "done_reason": "stop"})
        return Answer({"choices": [{"message": message, "finish_reason": "stop"}]})

    with Server(behave) as server:
        yield server


@pytest.mark.parametrize("kind", ["ollama", "gpt"])
def test_endpoints(run, experiments, served, no_model, kind):
    folder = experiments / "ours"
    url = served.url
    words = {
        "ollama": ("--llm_ollama", "phi3:latest", "phi", "--ollama_url", url.removesuffix("/v1")),
        "gpt": ("--gpt", "gpt-x", "--api-base", url),
    }[kind]
    metric = {"ollama": "LLMeval_phi", "gpt": "gpt-x"}[kind]
    code, _, err = run("judge", "--folder", folder, *words, "--llm-batch-size", 2)
    assert code == 1
    assert "record 4 (q_id 'q3')" in err
    assert "1 failed" in err
    assert [row[metric] for row in rows_of(folder)] == [1, 0, 0, None, 1, 0, 0]
    assert metrics_of(folder) == {metric: pytest.approx(2 / 6)}
    assert served.most_in_flight <= 2
    body = served.seen[0].body
    assert body["model"] == {"ollama": "phi3:latest", "gpt": "gpt-x"}[kind]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][0]["content"].endswith("Answer with one of Yes, No.")
    found = read(folder / f"eval_dev_judge_{metric}.json")
    assert found["kind"] == "text"
    assert found["settings"]["endpoint"] in url


def test_an_endpoint_compares(run, experiments, served):
    folder, other = (experiments / side for side in SIDES)
    words = ("--opponent-folder", other, "--opponent-name", "them", "--both-orders", "--quiet")
    code, _, _ = run("judge", "--folder", folder, "--gpt", "g", "--api-base", served.url, *words)
    assert code == 1  # "Yes" and "No" are no labels here, and q3 fails
    assert metrics_of(folder) == dict.fromkeys(f"g_VS_them_{one}" for one in ("win", "tie", "lose"))
    assert [row["g_VS_them"] for row in rows_of(folder)] == [-100] * 3 + [None] + [-100] * 3


def test_a_server_that_draws_its_answers_is_told(run, experiments):
    def behave(path, body, attempt):
        if "temperature" in body:
            error = {"message": "Unsupported parameter", "param": "temperature"}
            return Answer({"error": error}, status=400)
        choice = {"message": {"content": "Yes"}, "finish_reason": "stop"}
        return Answer({"choices": [choice]})

    folder = experiments / "ours"
    with Server(behave) as server:
        words = ("--gpt", "reasoner", "--api-base", server.url, "--sample", 2)
        code, _, err = run("judge", "--folder", folder, *words)
    assert code == 0
    assert "neither a temperature nor a seed" in err
    page = (folder / "eval_dev_judge_reasoner_2.md").read_text(encoding="utf-8")
    assert "neither a temperature nor a seed" in page


def test_a_server_that_is_not_there(run, experiments):
    words = ("--llm-ollama", "phi", "--ollama-url", "http://127.0.0.1:9")
    code, out, err = run("judge", "--folder", experiments / "ours", *words)
    assert (code, out) == (2, "")
    assert "127.0.0.1:9" in err
    assert sorted(path.name for path in (experiments / "ours").iterdir()) == ["eval_dev_out.json"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    from transformers import BertTokenizerFast

    folder = tmp_path_factory.mktemp("bem")
    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch_model().save_pretrained(folder)
    return folder


def test_a_classifier_is_not_checked_as_a_language_model(run, experiments, classifier):
    """Without transformers' Flax classes it is refused for them alone."""
    _, _, err = run("judge", "--folder", experiments / "ours", "--bem", classifier)
    assert "model_type" not in err


@flax_classes
def test_bem(run, experiments, classifier):
    folder = experiments / "ours"
    put(folder, [*rows_of(folder), record("long", "is " * 60_000), record("bad", label=())])
    code, out, err = run("judge", "--folder", folder, "--bem", classifier)
    assert code == 1
    assert "(q_id 'bad')" in err
    assert "1 records are longer than the classifier's positions" in err
    scores = [row["BEM"] for row in rows_of(folder)]
    assert scores[-1] is None
    assert all(0 < score < 1 for score in scores[:-1])
    assert metrics_of(folder) == {"BEM": pytest.approx(sum(scores[:-1]) / 8)}
    assert out.startswith(f"{folder}: BEM 0.")
    page = (folder / "eval_dev_judge_BEM.md").read_text(encoding="utf-8")
    assert "Best reference:" in page
    assert "the best of a record's references" in page
