"""`probsem`: the expected values, the files, what is printed and what goes wrong."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from jaxscore.cli import app, model_flags
from jaxscore.cli import probsem as command
from jaxscore.shell import evaluate
from jaxscore.shell.audits import Effect
from tests.cli.conftest import QWEN, strict
from tests.conftest import CASES, MODELS

INPUTS = CASES / "probsem"
COLUMNS = {"joint": "exact", "upstream": "upstream"}


@pytest.fixture
def models(monkeypatch, scorers):
    """The command takes the session's scorers instead of loading a model for each run."""
    monkeypatch.setattr(
        model_flags, "load_scorer", lambda args, model, *_, **__: scorers(Path(model).name)
    )


@pytest.fixture
def suite(tmp_path):
    """`suite(**change)`: a folder with a prompt and the suite A of the cases, changed."""

    def write(**change):
        given = strict((INPUTS / "towns_A.json").read_text(encoding="utf-8"))
        shutil.copy(INPUTS / "towns.txt", tmp_path / "towns.txt")
        (tmp_path / "towns_A.json").write_text(json.dumps({**given, **change}), encoding="utf-8")
        return tmp_path

    return write


def flags(inputs, outputs, *more, test="A", model=QWEN):
    return (
        "probsem", "--prompt", "towns", "--test", test, "--model", model, "--input-dir", inputs,
        "--output-dir", outputs, *more,
    )  # fmt: skip


def table(folder):
    [path] = folder.glob("*_results.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def other_files(folder):
    [data], [page] = folder.glob("*_results.json"), folder.glob("*_report.md")
    return strict(data.read_text(encoding="utf-8")), page.read_text(encoding="utf-8")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("boundary", COLUMNS)
def test_the_shared_cases(run, models, tmp_path, name, boundary):
    path = CASES / "expected" / name / "probsem.json"
    for k, (key, want) in enumerate(strict(path.read_text(encoding="utf-8")).items()):
        test, normalize, temperature = key.split()
        words = ["--temp", temperature.split("=")[1], "--boundary", boundary, "--quiet"]
        words += ["--norm"] * normalize.endswith("True")
        out = tmp_path / str(k)
        ran = run(*flags(INPUTS, out, *words, test=test, model=CASES / "models" / name))
        assert (ran.code, ran.err) == (0, "")
        rows = table(out)
        for column, field in (("score", "scores"), ("logp", "logp")):
            values = [value for context in want[COLUMNS[boundary]] for value in context[field]]
            assert [float(row[column]) for row in rows] == pytest.approx(values, abs=1e-4)


def test_the_table(run, models, tmp_path):
    assert run(*flags(INPUTS, tmp_path, "--quiet")).code == 0
    rows = table(tmp_path)
    assert list(rows[0]) == ["text", "query", "logp", "score"]
    assert [row["query"] for row in rows] == ["True", "False"] * 4
    assert rows[0]["text"] == "Answer True or False.\nTova lived in Merrow.\nThe correct answer is:"
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        assert float(one["score"]) + float(other["score"]) == pytest.approx(1.0)
    name = re.sub("/", "-", QWEN)
    assert (tmp_path / f"towns_A_{name}_results.csv").exists()


def test_what_is_printed(run, models, tmp_path):
    code, out, err = run(*flags(INPUTS, tmp_path, "--quiet"))
    assert (code, err) == (0, "")
    results, page = other_files(tmp_path)
    passed = [context["passed"] for context in results["contexts"]]
    assert re.findall(r"^TEST SAMPLE (\w+)\.$", out, re.M) == [
        "PASSED" if one else "FAILED" for one in passed
    ]
    first = results["contexts"][0]
    assert f"\nText:\n{first['text']}\n\nScores:\n{first['scores'][0]:.3f}\tTrue\n" in out
    accuracy = sum(passed) / 4
    assert f"TEST SUITE ACCURACY:\t{accuracy:.3f}\n" in out
    assert f"| Accuracy | {accuracy:.6g} | " in page
    assert results["accuracy"]["mean"] == accuracy
    assert results["settings"]["boundary"] == "joint"
    assert "## Settings and versions" in page


def test_a_finding_is_printed_before_every_context(run, models, tmp_path, monkeypatch):
    """Of the space: every query is made to be raised by it."""
    effect = Effect(4, {"as_published": 0.5, "with_blank": 2.0}, n_answers=8, n_raised=8)
    monkeypatch.setattr(evaluate, "effects_of", lambda *_: {"blank": effect})
    found, rule, *_ = run(*flags(INPUTS, tmp_path)).out.splitlines()
    assert found.startswith(
        "finding  With a space before the answer the accuracy is 2 instead of 0.5; see"
    )
    assert rule == command.RULE


def test_a_suite_of_which_nobody_knows_the_answers(run, models, tmp_path):
    code, out, _ = run(*flags(INPUTS, tmp_path, "--quiet", test="B"))
    assert code == 0
    assert "TEST SAMPLE" not in out
    assert "TEST SUITE ACCURACY:\tnan\naccuracy is disabled, since every context expects -1" in out
    results, page = other_files(tmp_path)
    assert results["accuracy"] is None
    assert "accuracy is disabled, since every context expects -1." in page
    assert "no query is right" not in page
    assert "Passed: " not in page


def test_one_open_context_is_left_out_of_the_accuracy(run, models, suite):
    contexts = [{"text": "Tova lived in Merrow.", "expected": k} for k in (0, -1, 1)]
    folder = suite(context=contexts)
    code, out, _ = run(*flags(folder, folder / "out", "--quiet"))
    assert code == 0
    assert out.count("TEST SAMPLE") == 2
    assert "ACCURACY:\t0.500\n" in out
    assert "contexts that expect -1, in no accuracy: 1\n" in out


def test_bad_contexts_fail_alone(run, models, suite):
    contexts = [
        {"text": "Tova lived in Merrow.", "expected": 0},
        {"text": "no expected"},
        {"text": " and" * 1100, "expected": 0},
        None,
    ]
    folder = suite(context=contexts)
    code, out, err = run(*flags(folder, folder / "out", "--quiet"))
    assert code == 1
    assert "failed: context 2 'no expected': no field \"expected\"" in err
    assert "failed: context 4: found null, expected an object" in err
    assert re.search(r"failed: context 3 ' and.*'…: query 0 'True': .*1024 positions", err)
    assert "3 failed, the others are kept" in err
    assert len(table(folder / "out")) == 2
    assert out.count("TEST SAMPLE") == 1
    assert "result   accuracy 1.000, 1 context\n" in out or "accuracy 0.000, 1 contexts\n" in out
    assert "interval" not in out  # one context has none
    assert out.splitlines()[-10].startswith("done     4 contexts, 3 failed in ")
    results, page = other_files(folder / "out")
    assert len(results["failures"]) == 3
    assert "## Failed: 3 contexts" in page
    assert re.search(r"^\| Accuracy \| [01] \| - \| 1 context \|$", page, re.M)


def test_every_context_failing(run, models, suite):
    folder = suite(context=[{"text": " and" * 1100, "expected": 0}])
    code, out, _ = run(*flags(folder, folder / "out", "--quiet"))
    assert code == 1
    assert "TEST SUITE ACCURACY:\tnan\n" in out
    assert "result   no context was scored\n" in out
    assert table(folder / "out") == []
    results, page = other_files(folder / "out")
    assert results["accuracy"] == {"n": 0, "mean": None, "low": None, "high": None}
    assert "| Accuracy | - | - | 0 contexts |" in page


def test_two_identical_queries_share_and_are_told(run, models, suite):
    folder = suite(queries=["True", "False", "True"])
    code, _, err = run(*flags(folder, folder / "out"))
    assert code == 0
    assert "query 'True' occurs 2 times" in err
    rows = table(folder / "out")
    assert rows[0]["score"] == rows[2]["score"]


def test_hostile_texts_come_back_as_they_are(run, models, suite):
    text = 'a "quoted", | cell\n\u05d0\u05d1 \u202e e\u0301 `x` <b>\r\nend\r'
    queries = ["True\nor, not", "é\u0301\u0301", "x" * 300, "True\rFalse", "\r\n"]
    folder = suite(
        context=[{"text": text, "expected": 1}], pretext="", posttext="", queries=queries
    )
    (folder / "towns.txt").write_bytes(b"\xef\xbb\xbfA\r\nprompt\r")
    assert run(*flags(folder, folder / "out", "--quiet")).code == 0
    rows = table(folder / "out")
    assert [row["query"] for row in rows] == queries
    assert {row["text"] for row in rows} == {text}
    _, page = other_files(folder / "out")
    assert "\u202e" not in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("name", "made"),
    [
        (("p", "t", "gpt2"), "p_t_gpt2"),
        (("p", "t", "Qwen/Qwen2.5"), "p_t_Qwen-Qwen2.5"),
        ((".p", "a//b", "c:d?*e."), "-p_a-b_c-d-e-"),
    ],
)
def test_names_of_files_are_the_published_scripts(name, made):
    assert command.run_name(*name) == made


def test_a_long_name_fits():
    name = command.run_name("p" * 200, "t" * 200, "m" * 200)
    assert len(name.encode()) <= command.LONGEST
    assert name != command.run_name("q" * 200, "t" * 200, "m" * 200)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--temperature", "0"), "temperature is 0.0, expected a number above 0"),
        (("--temp", "-1"), "temperature is -1.0, expected a number above 0"),
        (("--temp", "nan"), "--temp: nan, expected a finite number"),
        (("--temp", "inf"), "--temp: inf, expected a finite number"),
        (("--temp", "warm"), "'warm', expected a finite number"),
        (("--boundary", "exact"), "'exact', expected one of"),
        (("--test", "Z"), "towns_Z.json: no such file; for --test there are "),
        (("--prompt", "absent"), "absent.txt: no such file; for --prompt there are towns"),
        (("--prompt", "town"), "; is it towns?"),
        (("--input-dir", "absent"), "absent: no such folder, expected prompts and tests"),
    ],
)
def test_what_cannot_be_used(run, suite, monkeypatch, words, message):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    folder = suite()
    code, out, err = run(*flags(folder, folder / "out", *words))
    assert (code, out) == (2, "")
    assert message in err
    assert not (folder / "out").exists()


def test_outputs_are_kept_where_a_run_fails(run, suite, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(model_flags, "load_scorer", interrupted)
    folder = suite()
    (folder / "out").mkdir()
    path = folder / "out" / f"{command.run_name('towns', 'A', QWEN)}_results.csv"
    path.write_text("old", encoding="utf-8")
    assert run(*flags(folder, folder / "out")).code == 130
    assert [(one, one.read_text(encoding="utf-8")) for one in (folder / "out").iterdir()] == [
        (path, "old")
    ]


def test_a_hub_id_is_taken_from_the_cache_dir(run, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "cache" / "models--someone--tiny"
    shutil.copytree(CASES / "models/tiny-qwen2", repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit, encoding="utf-8")
    words = ("--cache-dir", tmp_path / "cache", "--quiet")
    ran = run(*flags(INPUTS, tmp_path / "out", *words, model="someone/tiny"))
    assert (ran.code, ran.err) == (0, "")
    assert (tmp_path / "out" / "towns_A_someone-tiny_results.csv").exists()
    results, _ = other_files(tmp_path / "out")
    assert (results["settings"]["model"], results["settings"]["revision"]) == (
        "someone/tiny",
        commit,
    )
    ran = run(*flags(INPUTS, tmp_path / "out", model="someone/tiny"))
    assert ran.code == 2
    assert (
        "model someone/tiny: no such folder, not in the hub's cache, and HF_HUB_OFFLINE is set; "
        "check the name, or give a local folder"
    ) in ran.err
    assert len(ran.err) <= 2 * 80  # two lines of a terminal


def test_runs_with_other_settings_keep_their_files(run, models, tmp_path):
    """The default run has the published name, and none of the others replaces its files."""
    variants = {
        "": (),
        "_norm": ("--norm",),
        "_temp2": ("--temp", 2),
        "_temp0.5": ("--temperature", 0.5),
        "_upstream": ("--boundary", "upstream"),
        "_first2": ("--limit", 2),
        "_truncate-left": ("--truncate", "left"),
        "_norm_temp2_separate": ("--boundary", "separate", "--temp", 2, "--normalize"),
    }
    stem = f"towns_A_{re.sub('/', '-', QWEN)}"
    kept = {}
    for words in variants.values():
        assert run(*flags(INPUTS, tmp_path, "--quiet", *words)).code == 0
        kept |= {one: one.read_bytes() for one in tmp_path.iterdir() if one not in kept}
    endings = (
        "_results.csv", "_results.json", "_report.md", "_report.html", "_results.csv.run.json",
    )  # fmt: skip
    names = {f"{stem}{variant}{ending}" for variant in variants for ending in endings}
    assert {one.name for one in kept} == names
    assert {one: one.read_bytes() for one in tmp_path.iterdir()} == kept


def test_every_flag_that_changes_the_numbers_is_in_the_name():
    words = ["probsem", "--prompt", "p", "--test", "t", "--model", "m"]

    def variant(*more):
        return command.variant(app.values(app.command("probsem"), [*words[1:], *more]))

    assert variant() == variant("--seed", "3", "--audit-noise", "4", "--mesh", "data=1") == []
    assert variant("--dtype", "bfloat16", "--quantize", "int8") == ["bfloat16", "int8"]
    assert variant("--revision", "v1.0") == ["revision-v1.0"]
    one, other = variant("--lora", "a/x"), variant("--lora", "b/x")
    assert one != other
    assert one[0].startswith("lora-a_x")
    separators = [variant("--answer-separator", text) for text in ("", " ", "\n")]
    assert len({one for [one] in separators}) == 3
    assert all(one.startswith("separator-") for [one] in separators)
    assert variant("--temp", "2.0000001") != variant("--temp", "2") == ["temp2"]
    assert command.run_name("p", "t", "m", *variant("--norm")) == "p_t_m_norm"


def test_the_report_shows_the_worst_under_their_texts(run, models, suite):
    contexts = [{"text": f"Tova -> {k} | lives.", "expected": 0} for k in range(51)]
    folder = suite(context=contexts)
    assert run(*flags(folder, folder / "out", "--quiet")).code == 0
    results, page = other_files(folder / "out")
    assert len(results["contexts"]) == 51
    assert "\n## Contexts (50 of 51 shown): worst first\n" in page
    right = [context["scores"][0] for context in results["contexts"]]
    worst = sorted(range(51), key=lambda k: (right[k] >= 0.5, right[k]))[:50]
    shown = re.findall(r"^### Tova -> (\d+) \\\| lives\.$", page, re.M)
    assert [int(k) for k in shown] == worst
    assert "-&gt;" not in page


def test_a_limit_and_the_other_spellings(run, models, tmp_path):
    words = ("--prompt", "towns", "--test", "A", "--model", QWEN, "--quiet", "--limit", 3)
    assert run("probsem", *words, "--input", INPUTS, "--output", tmp_path).code == 0
    results, _ = other_files(tmp_path)
    assert [one["context"] for one in results["contexts"]] == [1, 2, 3]
    assert (results["settings"]["limit"], results["accuracy"]["n"]) == (3, 3)
    [path] = tmp_path.glob("*_results.csv.run.json")
    assert strict(path.read_text(encoding="utf-8"))["failed"] == 0
