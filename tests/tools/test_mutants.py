"""`tools/mutants.py`: mutants have one place, are killed by a test that fails, and are resumed."""

import json
import sys

import pytest

from tests.conftest import ROOT
from tools import mutants

TEST = "import jaxscore.plan.a\n\ndef test_sum():\n    assert jaxscore.plan.a.add(1, 2) == 3\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A tree of one function with one test, and two mutants of it, of which one is equivalent."""
    (tmp_path / "jaxscore/plan").mkdir(parents=True)
    for package in ("jaxscore", "jaxscore/plan"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "jaxscore/plan/a.py").write_text("def add(x, y):\n    return x + y\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(TEST)
    table = [
        mutants.Mutant("minus", "plan", "test_a.py", "x + y", "x - y", "subtracts"),
        mutants.Mutant("equal", "plan", "test_a.py", "x + y", "y + x", "nothing"),
        mutants.Mutant("gone", "plan", "test_a.py", "x * y", "x", "no such text"),
    ]
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "MUTANTS", table)
    return tmp_path


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["mutants.py", *map(str, words)])
    return mutants.main()


def test_killed_and_surviving_mutants_are_reported_and_not_run_again(
    repository, monkeypatch, capsys
):
    results = repository / "results.json"
    words = "--results", results
    assert run(monkeypatch, *words) == 1
    out = capsys.readouterr().out
    assert "gone: does not apply: its text occurs 0 times in jaxscore/plan" in out
    found = json.loads(results.read_text())
    assert found["minus"]["killed_by"] == "tests/test_a.py::test_sum"
    assert found["equal"]["killed_by"] is None
    monkeypatch.setattr(mutants, "_run", None)  # a second run has nothing to do
    assert run(monkeypatch, *words) == 1
    assert "SURVIVED" in capsys.readouterr().out
    assert run(monkeypatch, *words, "--only", "minus") == 0
    assert (repository / "jaxscore/plan/a.py").read_text().count("x + y") == 1


def test_unknown_tests_are_no_kill(repository, monkeypatch):
    with pytest.raises(SystemExit, match="exit code 4"):
        run(monkeypatch, "--results", repository / "results.json", "--tests", "tests/missing.py")


def test_each_mutant_changes_one_place_of_its_folder():
    for mutant in mutants.MUTANTS:
        sources = (ROOT / "jaxscore" / mutant.folder).rglob("*.py")
        count = sum(source.read_text("utf-8").count(mutant.text) for source in sources)
        assert count == 1, mutant.name


def test_table_names_folders_and_tests_that_exist():
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 40
    for mutant in mutants.MUTANTS:
        assert (ROOT / "jaxscore" / mutant.folder).is_dir()
        assert mutant.paths
        assert all((ROOT / path.split("::")[0]).exists() for path in mutant.paths), mutant.name
