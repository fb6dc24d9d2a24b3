"""`tools/golden.py`: two recordings of one case are equal, and each planted difference is found."""

import base64
import gzip
import json
import shutil
import sqlite3
import sys

import pytest

from tests.conftest import ROOT

sys.path.append(str(ROOT / "tools"))

import golden_cases
import golden_compare

DATED = '{"date": "2026-01-0%d", "took_seconds": 0.%d, "score": -1.25, "n": 3}\n'


def page(header, text="Accuracy"):
    block = json.dumps(header).encode()
    data = base64.b64encode(gzip.compress(len(block).to_bytes(4, "little") + block + b"\0\1"))
    return (
        f"<h1 class='x'>{text}</h1><style>p {{}}</style>"
        f'<script type="x" id="data">{data.decode()}</script><script>1 < 2</script>'
    )


def record(folder, run):
    """A recording with one file of each kind, different in what changes from run to run."""
    case = folder / "case" / "files"
    case.mkdir(parents=True)
    (case / f"report_2026010{run}_120000.json").write_text(DATED % (run, run))
    (case / "scores.jsonl").write_text(DATED % (run, run) * 2)
    (case / "table.csv").write_text("id,score\na,1.5\nb,2\n")
    (case / "page.html").write_text(page({"n": 3}))
    (case / "01.out").write_text(f"done     3 items in {run}.5 s\n| date | 2026-01-0{run} |\n")
    with sqlite3.connect(case / "a.journal") as journal:
        journal.execute("CREATE TABLE models (id, fingerprint, about, used)")
        journal.execute("INSERT INTO models VALUES (1, 'abcdef0123', '{}', ?)", [str(run)])
        for table in ("scores", "texts"):
            journal.execute(f"CREATE TABLE {table} (model, key, value)")
            journal.execute(f"INSERT INTO {table} VALUES (1, x'01', x'02')")
    return case


def replace(name, old, new):
    def change(case):
        path = case / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


def change_journal(case):
    with sqlite3.connect(case / "a.journal") as journal:
        journal.execute("UPDATE scores SET value = x'03'")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace("scores.jsonl", "-1.25", "-1.250001"), "[0].score: -1.25 -> -1.250001"),
        (replace("scores.jsonl", '"n": 3', '"n": 3.0'), "[0].n: 3 -> 3.0"),
        (replace("scores.jsonl", '"n": 3', '"m": 3'), "[0].m: (missing) -> 3"),
        (replace("table.csv", "1.5", "1.50"), ".rows[0].score: '1.5' -> '1.50'"),
        (replace("01.out", "3 items", "4 items"), "+done     4 items in <seconds>"),
        (lambda case: (case / "page.html").write_text(page({"n": 4})), ".data.n: 3 -> 4"),
        (lambda case: (case / "page.html").write_text(page({"n": 3}, "Skill")), "'Skill'"),
        (lambda case: (case / "table.csv").unlink(), "file is gone"),
        (lambda case: shutil.copy(case / "table.csv", case / "more.csv"), "new file"),
        (change_journal, ".scores.abcdef01 01: '02' -> '03'"),
    ],
)
def test_planted_difference_is_found(tmp_path, capsys, change, message):
    record(tmp_path / "before", 1)
    case = record(tmp_path / "after", 2)
    folders = tmp_path / "before", tmp_path / "after"
    assert golden_compare.compare_folders(*folders, None, 0) == 0
    assert "0 of 6 files differ" in capsys.readouterr().out
    change(case)
    assert golden_compare.compare_folders(*folders, None, 0) == 1
    out = capsys.readouterr().out
    assert message in out
    assert "1 of" in out


def test_inserted_element_of_a_page_is_one_difference(tmp_path, capsys):
    record(tmp_path / "before", 1)
    case = record(tmp_path / "after", 2)
    (case / "page.html").write_text("<p>New</p>" + page({"n": 3}))
    assert golden_compare.compare_folders(tmp_path / "before", tmp_path / "after", None, 0) == 1
    out = capsys.readouterr().out
    assert "page.html: 2 differences\n  .markup: +<p\n  .markup: +New\n" in out


def test_tolerance_ignores_rounding_of_floats_alone(tmp_path, capsys):
    record(tmp_path / "before", 1)
    replace("scores.jsonl", "-1.25", "-1.2500001")(record(tmp_path / "after", 2))
    assert golden_compare.compare_folders(tmp_path / "before", tmp_path / "after", None, 1e-6) == 0
    assert golden_compare.compare_folders(tmp_path / "before", tmp_path / "after", None, 1e-9) == 1


def test_cases_are_commands_or_shell_lines():
    from jaxscore.cli import listing

    for text in [*golden_cases.CASES.values(), golden_cases.ENDPOINT]:
        for line in map(str.strip, text.strip().splitlines()):
            known = line.split()[0] in (*listing.NAMES, "$", "--config", "--version", "--model")
            assert known or line.split()[0] in ("nothing", "socre")
