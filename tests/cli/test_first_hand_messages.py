"""Messages and pages that first-hand trials asked for: each names the remedy as it is typed."""

import json

import pytest

from jaxscore.cli import app, help_pages, listing, results
from tests.cli.conftest import QWEN
from tests.cli.test_judge import GPT2

WITH_MODEL = [
    name
    for name in listing.NAMES
    if "--model" not in listing.REFUSED.get(name, {}) and "--model" in app.command(name).by_name
]


@pytest.mark.parametrize("name", WITH_MODEL)
def test_help_says_that_gguf_files_are_models(name):
    page = help_pages.page(app.command(name), everything=False)
    assert "GGUF" in page


@pytest.fixture
def score(run, tmp_path):
    """`score(*words)` on one text."""
    (tmp_path / "in.jsonl").write_text('{"continuation": "a b"}\n', encoding="utf-8")

    def call(*words, model=QWEN, source="in.jsonl", output="out.jsonl"):
        files = ("--input", tmp_path / source, "--output", tmp_path / output)
        return run("score", "--model", model, "--quiet", *files, *words)

    return call


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--top-k", 10), "only matters with --measures top_k; add that, or leave out --top-k"),
        (("--min-k", 0.5), "only matters with --measures min_k"),
        (
            ("--log-base", 10),
            "only matters with --unit word; add that, or leave out --log-base",
        ),
    ],
)
def test_a_setting_without_effect_names_the_flag_to_add(score, words, why):
    code, out, err = score(*words)
    assert (code, out) == (2, "")
    assert why in err


def test_a_missing_field_and_a_plain_text_name_the_remedy(score, tmp_path):
    (tmp_path / "cols.jsonl").write_text('{"prompt": "a", "answer": " b"}\n', encoding="utf-8")
    assert "add --column continuation=answer" in score(source="cols.jsonl").err
    (tmp_path / "essay.md").write_text("Once upon a time.\n", encoding="utf-8")
    code, _, err = score(source="essay.md")
    assert code == 2
    assert "essay.md:1: found plain text, expected one JSON object a line" in err
    assert "the name of a plain text ends in .txt" in err


def test_compare_names_the_output_of_a_report(run, score, tmp_path):
    assert score().code == 0
    report = tmp_path / "out.jsonl.report.json"
    for name, what in ((report, "a report without records"), ("out.jsonl.run.json", "a manifest")):
        code, _, err = run("compare", tmp_path / name, tmp_path / "out.jsonl")
        assert code == 2
        assert f"found {what}; give " in err
        assert "expected" not in err


def test_an_output_of_another_model_is_kept_unless_forced(score, tmp_path):
    assert score().code == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    code, out, err = score(model=GPT2)
    assert (code, out) == (2, "")
    assert f"made with --model {QWEN}, and this run has --model {GPT2}" in err
    assert "give another --output, or --force to replace it" in err
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert score().code == 0
    assert score("--force", model=GPT2).code == 0
    assert json.loads((tmp_path / "out.jsonl.run.json").read_text())["flags"]["model"] == GPT2


@pytest.mark.parametrize("folder", ["../experiments", ".experiments", "../../.e/x"])
def test_results_names_no_hidden_file(run, folder):
    args = app.values(results.COMMAND, ["--experiments-folder", folder])
    assert not results._path(args).name.startswith(".")
