"""`results`: one csv and one table."""

import csv
import json

import pytest

from tests.systems.rag.test_results_table import experiment


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with experiments/ of two experiments."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    experiment(tmp_path / "experiments", "b", {"M": 0.1 + 0.2, "LLMeval_x": 0.5})
    experiment(tmp_path / "experiments", "a|c", {"M": 1.0, "EM": 0.25}, "generation_top_k: 5")
    return tmp_path


def table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_another_split_has_a_file_of_its_own(run, here):
    assert run("results", "--sort", "exp_folder")[0] == 0
    for path in (here / "experiments").glob("*/eval_dev_metrics.json"):
        path.with_name("eval_test_metrics.json").write_text('{"M": 0.25}', encoding="utf-8")
    assert run("results", "--split", "test", "--sort", "exp_folder")[0] == 0
    assert [row["M"] for row in table(here / "results/experiments.csv")] != ["0.25", "0.25"]
    assert [row["M"] for row in table(here / "results/experiments_test.csv")] == ["0.25", "0.25"]


def test_the_csv_and_the_table(run, here):
    code, out, err = run("results")
    assert (code, err) == (0, "")
    rows = table(here / "results/experiments.csv")
    assert [row["exp_folder"] for row in rows] == ["a|c", "b"]
    assert float(rows[1]["M"]) == 0.1 + 0.2  # to the last bit
    assert rows[1]["EM"] == rows[0]["LLMeval_x"] == ""
    lines = out.splitlines()
    assert lines == [
        "| exp_folder |      M |     EM | LLMeval_x |",
        "| ---------- | -----: | -----: | --------: |",
        "| a\\|c       | 1.0000 | 0.2500 |           |",
        "| b          | 0.3000 |        |    0.5000 |",
        "done     2 folders, 0 failed",
        "result   a table of 2 folders and 4 columns",
        "files    results/experiments.csv",
        "         results/experiments.csv.run.json",
    ]
    manifest = json.loads((here / "results/experiments.csv.run.json").read_text(encoding="utf-8"))
    assert (manifest["command"], manifest["failed"]) == ("results", 0)


def test_an_output_that_names_a_csv_is_the_file(run, here):
    code, out, _ = run("results", "--output", "new/table.csv")
    assert code == 0
    assert "files    new/table.csv\n         new/table.csv.run.json\n" in out
    assert len(table(here / "new/table.csv")) == 2
    (here / "old.csv").mkdir()
    assert run("results", "--output-dir", "old.csv").code == 0
    assert (here / "old.csv/experiments.csv").is_file()


def test_flags(run, here):
    words = ("results", "--experiments_folder", here / "experiments/", "--output_dir", here / "x")
    assert run(*words, "--format", "tiny", "--sort", "M", "--quiet")[::2] == (0, "")
    path, manifest = sorted((here / "x").iterdir())
    assert path.name == f"{here}/experiments_tiny.csv".replace("/", "_")
    assert manifest.name == f"{path.name}.run.json"
    assert [row["exp_folder"] for row in table(path)] == ["b", "a|c"]
    assert list(table(path)[0]) == ["exp_folder", "M"]  # the others are empty in every row


def test_no_format_replaces_the_table_of_another(run, here):
    for form in ("all", "tiny", "simple", "full"):
        assert run("results", "--format", form).code == 0
    found = {path.name: list(table(path)[0]) for path in (here / "results").glob("*.csv")}
    assert found == {
        "experiments.csv": ["exp_folder", "M", "EM", "LLMeval_x"],
        "experiments_tiny.csv": ["exp_folder", "M"],
        "experiments_simple.csv": ["exp_folder", "M", "EM"],
        "experiments_full.csv": ["exp_folder", "M", "EM"],
    }


def test_other_spellings(run, here):
    assert run("results", "--input", here / "experiments", "--output", here / "y").code == 0
    assert len(list((here / "y").glob("*.csv"))) == 1


def test_the_first_folders(run, here):
    code, out, _ = run("results", "--limit", 1)
    assert (code, "done     1 folder, 0 failed" in out) == (0, True)
    assert [row["exp_folder"] for row in table(here / "results/experiments_first1.csv")] == ["a|c"]
    assert not (here / "results/experiments.csv").exists()


def test_the_working_folder_has_a_name(run, here, monkeypatch):
    monkeypatch.chdir(here / "experiments")
    assert run("results", "--experiments-folder", ".", "--output-dir", here).code == 0
    assert (here / "experiments.csv").exists()


def test_a_damaged_experiment_is_named_and_the_others_stay(run, here):
    (here / "experiments/b/eval_dev_metrics.json").write_text("{", encoding="utf-8")
    code, _, err = run("results", "--quiet")
    assert code == 1
    assert err.startswith("failed: experiments/b: experiments/b/eval_dev_metrics.json:1: not JSON")
    assert [row["M"] for row in table(here / "results/experiments.csv")] == ["1.0", ""]


def test_nothing_to_show(run, here):
    code, _, err = run("results", "--split", "test")
    assert code == 2
    assert "none of its 2 folders holds eval_test_metrics.json" in err
    assert run("results", "--sort", "nothing").code == 2
    assert not (here / "results").exists()


def test_after_metrics(run, here):
    rows = [{"q_id": "a", "response": "Oslo", "label": ["Oslo"]}]
    path = here / "experiments/b/eval_dev_out.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    assert run("metrics").code == 0
    assert run("results", "--sort", "EM").code == 0
    assert table(here / "results/experiments.csv")[1]["EM"] == "1.0"


def test_a_carriage_return_is_inside_its_cell(run, here):
    experiment(here / "experiments", "c\rd", {"M": 2.0})
    assert run("results")[0] == 0
    rows = table(here / "results/experiments.csv")
    assert [(row["exp_folder"], row["M"]) for row in rows[2:]] == [("c\rd", "2.0")]
