"""The examples of jaxscore/README.md do what the page says."""

import ast
import json
import re
import shutil
import subprocess
import sys

import pytest

from jaxscore import systems
from jaxscore.cli import listing
from jaxscore.cli.main import main
from jaxscore.systems import SYSTEMS
from jaxscore.types.requests import Request
from tests.conftest import CASES, ROOT, with_devices

MODEL = str(CASES / "models/tiny-qwen2")
PAIRS = [
    {"id": "a", "good": "The cats sleep.", "bad": "The cats sleeps."},
    {"id": "b", "good": "She sleeps.", "bad": "She sleep."},
]


def blocks(heading, language):
    """Code of one language in a section of the page."""
    page = (ROOT / "jaxscore/README.md").read_text(encoding="utf-8")
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def hunks(heading):
    """(file, lines) of each hunk of the section's diff."""
    [diff] = blocks(heading, "diff")
    for part in diff.split("--- ")[1:]:
        file, _, changes = part.partition("\n")
        for hunk in changes.split("@@\n"):
            yield file, hunk.splitlines(keepends=True)


def apply(heading, folder):
    """Change the files as the section shows it; what a hunk starts from occurs once."""
    for file, lines in hunks(heading):
        old, new = ("".join(line[1:] for line in lines if line[0] in " " + sign) for sign in "-+")
        path = folder / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file}: {old}"
        path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def package(tmp_path):
    """A folder with a copy of the package."""
    shutil.copytree(
        ROOT / "jaxscore", tmp_path / "jaxscore", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Declare the page's system in this process, as its diff does."""
    (tmp_path / "systems").mkdir()
    [code] = blocks("Adding a system", "python")
    (tmp_path / "systems/pairs.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(systems, "__path__", [*systems.__path__, str(tmp_path / "systems")])
    [(_, lines)] = hunks("Adding a system")
    added = ast.literal_eval("{" + "".join(line[1:] for line in lines) + "}")["pairs"]
    monkeypatch.setitem(SYSTEMS, "pairs", added)
    monkeypatch.setitem(listing.GROUPS["score"], "pairs", added[1])
    monkeypatch.setattr(listing, "NAMES", (*listing.NAMES, "pairs"))
    yield
    for name in [name for name in sys.modules if name.startswith("jaxscore.systems.pairs")]:
        del sys.modules[name]


def test_example_system_has_a_command_a_report_and_a_comparison(
    system, tmp_path, capsys, scorers, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "pairs.jsonl"
    source.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS), encoding="utf-8")
    [command] = blocks("Adding a system", "sh")
    words = command.replace(" demo ", f" {MODEL} ").split()[1:]
    assert main(words) == 0
    assert "accuracy" in capsys.readouterr().out
    [*records] = map(json.loads, (tmp_path / "outputs/pairs.jsonl").read_text().splitlines())
    texts = [text for pair in PAIRS for text in (pair["good"], pair["bad"])]
    sums = [
        scored.sum_logprob
        for scored in scorers("tiny-qwen2").score([Request(text, "", text) for text in texts])
    ]
    for record, pair, good, bad in zip(records, PAIRS, sums[::2], sums[1::2], strict=True):
        assert record == {
            **pair,
            "gap": pytest.approx(good - bad, abs=1e-4),
            "is_right": good > bad,
        }
    outputs = {path.name for path in (tmp_path / "outputs").iterdir()}
    assert {f"pairs.jsonl.report.{end}" for end in ("html", "md", "json")} <= outputs
    assert main([*words[:-1], "outputs/means.jsonl", "--per-token"]) == 0
    assert main(["compare", "outputs/pairs.jsonl", "outputs/means.jsonl"]) == 0
    assert "log-probability of good less that of bad" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["pairs", "--help"])
    assert "--per-token" in capsys.readouterr().out


def test_example_changes_fit_the_files_that_they_name(package):
    for heading in ("Adding a system", "Adding a per-token measure"):
        apply(heading, package)


@pytest.mark.slow
def test_example_measure_is_a_field_of_score(package):
    apply("Adding a per-token measure", package)
    source = package / "in.jsonl"
    source.write_text('{"continuation": "The capital of Norway is Oslo."}\n', encoding="utf-8")
    words = [
        "score",
        "--model",
        MODEL,
        "--input",
        source,
        "--output",
        package / "out.jsonl",
        "--measures",
        "min_entropy",
    ]
    subprocess.run(
        [sys.executable, "-m", "jaxscore", *map(str, words)],
        cwd=package,
        env=with_devices(1) | {"PYTHONPATH": str(package)},
        check=True,
        capture_output=True,
    )
    record = json.loads((package / "out.jsonl").read_text(encoding="utf-8"))
    places = zip(record["min_entropy"], record["logprob"], record["greedy"], strict=True)
    known = [place for place in places if place[1] is not None]
    for least, logprob, is_greedy in known:
        assert 0 < least <= -logprob + 1e-6
        assert (least == pytest.approx(-logprob, abs=1e-5)) == is_greedy
    assert len(known) > 5
