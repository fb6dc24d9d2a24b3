"""`jaxscore lm-eval`: lm-evaluation-harness' command line with jaxscore in it."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap

import pytest

from jaxscore.adapters.lm_eval import JaxscoreLM
from jaxscore.cli.lm_eval import with_model
from jaxscore.errors import install_extra
from tests.cli.conftest import run  # noqa: F401
from tests.conftest import ROOT
from tests.io.test_processes import start, well

HERE = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


def process(*words, **variables):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=300,
        cwd=ROOT, env={**os.environ, **HERE, **variables},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--tasks", "a"], ["--model", "jaxscore", "--tasks", "a"]),
        (["run", "--tasks", "a"], ["run", "--model", "jaxscore", "--tasks", "a"]),
        (["run", "--model=hf", "--tasks", "a"], None),
        (["-M", "hf", "--tasks", "a"], None),
        (["ls", "tasks"], None),
        (["validate", "--tasks", "a"], None),
        (["run"], None),
        (["run", "--help"], None),
        ([], None),
        (["--config", "configs/lm-eval.yaml"], None),
        (
            ["--config", "configs/lm-eval/demo_choices.yaml"],
            ["--model", "jaxscore", "--config", "configs/lm-eval/demo_choices.yaml"],
        ),
        (["-C", "no such file"], ["--model", "jaxscore", "-C", "no such file"]),
    ],
)
def test_the_model_is_put_in_where_none_is_named(given, wanted, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert with_model(given) == (given if wanted is None else wanted)


def test_without_lm_eval(run, monkeypatch):  # noqa: F811
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    code, out, err = run("lm-eval", "--tasks", "a")
    assert (code, out) == (2, "")
    assert err.endswith(f"is not installed; {install_extra('lm-eval')}\n")


def test_help_is_theirs():
    done = process("-m", "jaxscore", "lm-eval", "--help")
    assert done.returncode == 0, done.stderr
    assert "python -m jaxscore lm-eval --model_args pretrained=NAME" in done.stdout
    assert "validate" in done.stdout


@pytest.mark.slow
def test_bad_arguments_of_the_model(run, monkeypatch):  # noqa: F811
    monkeypatch.chdir(ROOT)
    code, _, err = run(
        "lm-eval", "--model_args", "pretrained=demo,quantise=int8",
        "--tasks", "demo_choices", "--include_path", "configs/lm-eval",
    )  # fmt: skip
    assert code == 2
    assert "quantise is not an argument of jaxscore; is it quantize?" in err


@pytest.fixture
def evaluating(run, monkeypatch):  # noqa: F811
    """`evaluating(what)`: the command where lm-evaluation-harness does what `what` does."""
    import lm_eval.__main__

    def get(what):
        monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", what)
        return run("lm-eval", "--tasks", "a")

    return get


@pytest.mark.parametrize("any_is_finished", [True, False])
def test_an_interruption_says_where_the_finished_work_is(evaluating, tmp_path, any_is_finished):
    journal = tmp_path / "journal"

    def interrupted():
        model = JaxscoreLM("demo", journal=journal)
        model.tok_encode("a")  # which loads it
        if any_is_finished:
            model.scorer.score(["a b"])
        raise KeyboardInterrupt

    code, _, err = evaluating(interrupted)
    assert code == 130
    reported = f"finished work is in {journal}, and the same command continues there" in err
    assert reported is any_is_finished


@pytest.mark.parametrize(
    ("code", "wanted", "reported"), [(None, 0, ""), (0, 0, ""), (3, 3, ""), ("no", 1, "no\n")]
)
def test_their_exit_code(code, wanted, reported, evaluating):
    found, out, err = evaluating(lambda: sys.exit(code))
    assert (found, out, err) == (wanted, "", reported)


def test_what_their_checks_refuse_is_a_message(evaluating):
    from lm_eval.config.evaluate_config import EvaluatorConfig

    code, out, err = evaluating(lambda: EvaluatorConfig.load_yaml_config("/no/such/file"))
    assert (code, out) == (2, "")
    assert err.startswith("jaxscore lm-eval: error: Config file not found: ")


def test_an_error_of_ours_keeps_its_traceback(evaluating):
    with pytest.raises(ValueError, match="invalid literal"):
        evaluating(lambda: int("x"))


# What runs below where torch and its kin cannot be imported.
WITHOUT_TORCH = """
    import sys

    class Hiding:
        def __init__(self, finder):
            self.finder = finder

        def find_spec(self, name, path=None, target=None):
            absent = name.partition(".")[0] in {"torch", "accelerate", "peft"}
            return None if absent else self.finder.find_spec(name, path, target)

        def __getattr__(self, name):
            return getattr(self.finder, name)

    sys.meta_path[:] = map(Hiding, sys.meta_path)
    from jaxscore.cli.main import main
    code = main(["lm-eval", "--config", "configs/lm-eval.yaml", "--output_path", sys.argv[1]])
    assert "torch" not in sys.modules
    sys.exit(code)
"""


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The folder that the example has written without torch."""
    folder = tmp_path_factory.mktemp("example")
    done = process("-c", textwrap.dedent(WITHOUT_TORCH), str(folder), HF_HOME=str(folder))
    assert done.returncode == 0, done.stderr
    assert "|demo_choices|" in done.stdout
    return folder


@pytest.mark.slow
def test_the_example_without_torch(example):
    [path] = example.glob("demo/results_*.json")
    results = json.loads(path.read_text("utf-8"))
    assert results["results"]["demo_choices"]["acc,none"] > 0.9
    assert results["results"]["demo_answers"]["exact_match,none"] > 0.5
    assert results["config"]["jaxscore"]["tokens_given"] > 0
    assert len(list(example.glob("demo/samples_*.jsonl"))) == 2


@pytest.mark.slow
def test_two_processes_find_the_numbers_of_one(example, tmp_path, monkeypatch):
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    words = ["lm-eval", "--config", "configs/lm-eval.yaml", "--limit", "4"]
    reported = well(start(2, *words, "--output_path", tmp_path))
    assert "|demo_choices|" in reported[0][0]
    assert all(out == "" for out, _ in reported[1:])

    def totals(folder, n=None):
        [path] = folder.glob("demo/samples_demo_choices_*.jsonl")
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return [float(total) for one in lines[:n] for [[total, _]] in one["resps"]]

    assert totals(tmp_path) == pytest.approx(totals(example, 4), abs=1e-4)
