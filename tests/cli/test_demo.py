"""`demo`: each system shows on the embedded model what it is for."""

import json
import shlex
from pathlib import Path

import pytest

from jaxscore.cli import app, demo, model_flags
from jaxscore.cli.main import parse
from jaxscore.errors import InputError


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The exit code, the words printed and the folder of one run."""
    import contextlib
    import io

    from jaxscore.cli.main import main

    folder = tmp_path_factory.mktemp("demo") / "out"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(["demo", "--quiet", "--output-dir", str(folder)])
    return code, printed.getvalue(), folder


def value(out, measure):
    """(here, against) of a row of the table, as numbers."""
    [line] = [line for line in out.splitlines() if measure in line]
    words = line.split(measure)[1].split()
    numbers = [float(word) for word in words if word.replace(".", "", 1).isdigit()]
    return numbers[0], numbers[1]


@pytest.mark.parametrize(
    ("measure", "higher"),
    [
        ("probability of the answer with its support path", True),
        ("Brier score of the answers, 0 is best", False),
        ("multiple choice, share of right letters", True),
        ("true or false, share of right queries", True),
        ("score of right responses", True),
        ("most certain of 8, share of right answers", True),
        ("Borda vote of 8, share of right answers", True),
    ],
)
def test_each_measure_is_on_the_right_side_of_what_it_is_held_against(shown, measure, higher):
    code, out, _ = shown
    assert code == 0
    here, against = value(out, measure)
    assert (here > against) is higher, (here, against)


def test_the_reports_it_names_are_there_and_the_commands_it_prints_are_whole(shown):
    _, out, folder = shown
    printed, _, rows = out.partition("\n\n")
    reports = [Path(line.split()[-1]) for line in rows.splitlines()[1:8]]
    assert len(set(reports)) == 7
    for report in reports:
        assert report.is_relative_to(folder)
        assert report.stat().st_size, report
    assert sum(line.startswith("jaxscore ") for line in printed.splitlines()) == 8


def test_a_command_it_prints_can_be_tried_again(shown, run, tmp_path):
    _, out, folder = shown
    [printed] = [line for line in out.splitlines() if line.startswith("jaxscore probsem ")]
    words = [*shlex.split(printed)[1:], "--output-dir", str(tmp_path), "--quiet"]
    assert run(*words).code == 0
    tables = [path / "demo_truth_demo_results.csv" for path in (folder / "probsem", tmp_path)]
    assert tables[0].read_text(encoding="utf-8") == tables[1].read_text(encoding="utf-8")


def test_a_command_it_prints_has_the_flags_that_results_depend_on(capsys, monkeypatch):
    score = app.command("score")

    def command(name):
        names = ("input", "seed", "dtype", "quantize", "reproducible")
        options = [o for o in score.options if o.dest in names]
        return app.Command(name, "", options, lambda args: ran.append(args) or 1)

    ran = []
    args = parse(["demo", "--seed", "3", "--device", "cpu", "--quantize", "int8"])
    args.reproducible = True
    monkeypatch.setattr(demo.app, "command", command)
    commands = demo._Commands(args, None)
    commands.run("some-task", "--input", "a b")
    want = "jaxscore some-task --input 'a b' --quantize int8 --reproducible --seed 3\n"
    assert capsys.readouterr().out == want
    [given] = ran
    assert (given.quantize, given.reproducible) == ("int8", True)
    assert (given.seed, given.dtype, given.quiet, given.command) == (3, "auto", True, "some-task")
    assert (commands.n, commands.failures) == (1, [("some-task", "exit code 1")])


def test_only_flags_that_move_no_number_are_not_passed_on():
    """A flag that all commands get has to be passed on, or listed here as without effect."""
    flags = {*vars(parse(["demo"]))} - {"run", "command", "words"}
    processes = {"distributed", "coordinator", "num_processes", "process_id", "join_timeout"}
    of_no_matter = {"accept_config", "output_dir", "journal", "quiet", "trust_remote_code"}
    of_no_matter |= {"truncate"}
    assert flags - of_no_matter - processes == {*demo.PASSED_ON}


def test_what_it_prints_is_what_ran(run, tmp_path):
    place = tmp_path / "out"
    ran = run("demo", "--quantize", "int8", "--output-dir", place, "--quiet")
    assert ran.code == 0
    for line in ran.out.splitlines():
        if line.startswith("jaxscore "):
            runs_a_model = line.split()[1] not in ("select", "vote")
            assert (" --quantize int8" in line) is runs_a_model
    manifest = json.loads((place / "paths.json.run.json").read_text(encoding="utf-8"))
    assert manifest["flags"]["quantize"] == "int8"
    assert manifest["model"]["quantize"] == "int8"


def test_a_flag_without_meaning_here_is_refused(run, tmp_path):
    ran = run("demo", "--truncate", "left", "--output-dir", tmp_path / "out", "--quiet")
    assert (ran.code, ran.out) == (2, "")
    assert "--truncate left: no text of the demo is too long for its model; leave" in ran.err
    assert not (tmp_path / "out").exists()


def test_manifests_name_their_command(shown):
    _, _, folder = shown
    manifests = [*folder.rglob("*.run.json")]
    named = {json.loads(one.read_text(encoding="utf-8"))["command"] for one in manifests}
    assert {"paths", "chronologic", "probsem", "self-certainty"} <= named
    assert None not in named


def test_it_ends_with_the_closing_block(shown):
    _, out, folder = shown
    titles = [line[:9].strip() for line in out[out.index("\ndone") :].splitlines()]
    assert [*filter(None, titles)] == ["done", "shared", "model", "result", "files"]
    assert "\ndone     8 commands, 0 failed in " in out
    pages = sorted(folder.rglob("*.html"))
    assert len(pages) == 9
    assert out.endswith("\n         ".join([f"files    {folder}", *map(str, pages)]) + "\n")


def test_support_paths_help_in_most_items(shown):
    _, _, folder = shown
    gains = [
        one["absolute_improvement"]
        for item in json.loads((folder / "paths.json").read_text(encoding="utf-8"))
        for one in item["path_evaluations"]
    ]
    assert len(gains) == 24
    assert sum(gain > 0 for gain in gains) >= 23


@pytest.mark.slow
def test_a_second_run_takes_the_place_of_the_first_and_of_nothing_else(run, shown, tmp_path):
    # ProbSem's users have a folder of this name.
    mine = tmp_path / "inputs" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("kept")
    for place in (tmp_path, mine, mine / "below"):
        ran = run("demo", "--output-dir", place)
        assert (ran.code, ran.out) == (2, "")
        assert (
            "not the folder of an earlier demo" in ran.err or "cannot be used (Not a dir" in ran.err
        )
    assert mine.read_text() == "kept"
    _, _, folder = shown
    (folder / "stale").mkdir()
    (folder / "stale" / "file").touch()
    (folder / "link").symlink_to(tmp_path)
    (tmp_path / "other").symlink_to(folder)
    assert run("demo", "--quiet", "--output-dir", tmp_path / "other").code == 0
    assert not (folder / "stale").exists()
    assert not (folder / "link").is_symlink()
    assert mine.read_text() == "kept"


def test_a_run_that_cannot_start_leaves_the_earlier_one(run, shown, monkeypatch):
    def absent(*_, **__):
        raise InputError("no such device")

    _, _, folder = shown
    monkeypatch.setattr(model_flags, "load_scorer", absent)
    assert run("demo", "--output-dir", folder).code == 2
    assert (folder / "paths.json").is_file()
