"""`--config`: the file's words, what overrides them, and every file in configs/."""

import contextlib
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from jaxscore.cli import app, listing
from jaxscore.cli import main as cli
from tests.cli.conftest import QWEN, run  # noqa: F401

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
PATHS = """\
command: paths
model: m
input: i.jsonl
output: o.json
"""


@pytest.fixture
def write(tmp_path):
    def call(text, *, encoding="utf-8"):
        path = tmp_path / "c.yaml"
        path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
        return str(path)

    return call


def parsed(path, *rest):
    return cli.parse(["--config", path, *rest])


def refusal(path, *rest):
    """What the command line says of a file."""
    error = io.StringIO()
    with pytest.raises(SystemExit) as stop, contextlib.redirect_stderr(error):
        parsed(path, *rest)
    assert stop.value.code == 2
    return error.getvalue()


def test_other_words_stay():
    for given in (
        [],
        ["paths", "--input", "i"],
        ["--version"],
        ["score", "--", "--config", "f"],
    ):
        assert app._split_config(list(given)) == (given, None)


def test_a_repeatable_flag_of_the_command_line_overrides_the_file(write):
    path = write("command: families\naccept-config: [a]\n")
    assert parsed(path).accept_config == ["a"]
    assert parsed(path, "--accept-config", "b", "--accept-config", "c").accept_config == ["b", "c"]


def test_a_flag_of_each_kind(write):
    text = PATHS + "max_samples: 3\nsystem-prompts: [One., two, 3]\nquiet: true\njournal: off\n"
    args = parsed(write(text))
    assert (args.command, args.model, args.input) == ("paths", "m", [Path("i.jsonl")])
    assert (args.limit, args.system_prompts) == (3, ["One.", "two", "3"])
    assert (args.quiet, args.journal, args.trust_remote_code) == (True, "off", False)
    assert not parsed(write(PATHS + "quiet: false\n")).quiet


@pytest.mark.parametrize(
    "word", ["on", "off", "yes", "no", "010", "1_0", "2024-01-01", "1e3", "-x"]
)
def test_values_are_taken_as_they_are_written(write, word):
    assert parsed(write(f"{PATHS}revision: {word}\n")).revision == word


@pytest.mark.parametrize("order", ["F", "FC", "CF", "FCM", "CFM", "CMF", "MF"])
@pytest.mark.parametrize("equals", [False, True])
def test_the_file_stands_anywhere_and_flags_override_it(write, order, equals):
    text = PATHS + "max-samples: 3\nsystem-prompts: [a, b]\nquiet: true\n"
    more = ["--max-samples", "5", "--system-prompts", "c", "--output=p.json"]
    path = write(text)
    parts = {
        "F": [f"--config={path}"] if equals else ["--config", path],
        "C": ["paths"],
        "M": more,
    }
    given = [word for part in order for word in parts[part]]
    args = cli.parse(given if "M" in order else [*given, *more])
    assert (args.limit, args.system_prompts, args.output) == (5, ["c"], Path("p.json"))
    assert (args.input, args.quiet) == ([Path("i.jsonl")], True)


CHRONOLOGIC = """\
command: chronologic
model: m
questions: q.jsonl
mcq: true
"""


def test_arguments_that_go_by_their_place(write):
    path = write(CHRONOLOGIC)
    args = parsed(path)
    assert (args.model, args.input, args.mcq) == ("m", [Path("q.jsonl")], True)
    args = parsed(path, "other", "--seed", "3")
    assert (args.model, args.input, args.seed) == ("other", [Path("q.jsonl")], 3)
    args = parsed(path, "chronologic", "other", "--seed", "3", "r.jsonl")
    assert (args.model, args.input) == ("other", [Path("r.jsonl")])
    assert parsed(path, "--", "-other").model == "-other"
    assert parsed(write("questions: -q\nmodel: -m\ncommand: chronologic\n")).model == "-m"


def test_flags_that_exclude_the_files(write):
    args = parsed(write(CHRONOLOGIC), "--full-eval")
    assert (args.full_eval, args.mcq) == (True, False)
    args = parsed(write("command: judge\nllm: [a, b]\n"), "--gpt", "c")
    assert (args.llm, args.gpt) == (None, "c")
    assert ":5: argument --full-eval: not allowed with argument --mcq" in refusal(
        write(CHRONOLOGIC + "full-eval: true\n")
    )


def test_flags_with_some_values_or_none(write):
    judge = "command: judge\n"
    assert parsed(write(judge + "llm: [demo, d]\nsplit: test\n")).llm == ["demo", "d"]
    assert parsed(write(judge + "llm: true\nsplit: test\n")).llm == []
    assert parsed(write(judge + "llm: []\nsplit: test\n")).llm == []
    assert parsed(write(judge + "bem: true\nfolder: f\n")).bem == parsed(write(judge), "--bem").bem
    assert parsed(write(judge + "bem: some/model\n")).bem == "some/model"
    score = "command: score\nmodel: m\ninput: i.jsonl\noutput: o.jsonl\nagainst: ''\n"
    assert parsed(write(score)).against == ""
    usc = "command: usc-generate\nmodel: m\ninput-file: i.json\n"
    assert parsed(write(usc + "n: 4\n")).n == parsed(write(usc + "best_N: 4\n")).n == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.yaml: the file is empty|expected `key: value`"),
        ("- a\n", "expected `key: value` lines"),
        ("paths", "expected `key: value` lines"),
        ("model: m\n", 'c.yaml: no key "command", which says what to run'),
        ("command: path\n", "c.yaml:1: 'path' is not a command; is it paths?"),
        ("command: [paths]\n", "c.yaml:1: ['paths'] is not a command"),
        ("command:\n", "c.yaml:1: None is not a command"),
        ("command: zzz\n", "'zzz' is not a command; expected one of "),
        (PATHS + "max_sample: 3\n", "c.yaml:5: no key 'max-sample'; is it max-samples?"),
        (PATHS + "zzz: 3\n", "c.yaml:5: no key 'zzz'; expected one of accept-config, a"),
        (PATHS + "help: true\n", "no key 'help'"),
        (PATHS + "config: c.yaml\n", "no key 'config'"),
        (PATHS + "--quiet: true\n", "no key '--quiet'; is it quiet?"),
        (PATHS + "run: x\n", "no key 'run'"),
        (PATHS + "max-samples: x\n", "argument --limit/--max-samples: 'x', expected"),
        (PATHS + "max-samples: 0\n", "c.yaml:5: argument --limit/--max-samples: 0, expected"),
        (PATHS + "max-samples: 1.5\n", "'1.5', expected a whole number"),
        (PATHS + "max-samples: [3]\n", "c.yaml:5: max-samples is a list, expected a text or a"),
        (PATHS + "max-samples: true\n", "max-samples is true, expected a text or a number"),
        (PATHS + "max-samples:\n", "max-samples is empty, expected"),
        (PATHS + "max-samples: null\n", "max-samples is empty, expected"),
        (PATHS + "max-samples: {a: 1}\n", "c.yaml:5: max-samples: expected a text, a number"),
        (PATHS + "system-prompts: One.\n", "system-prompts is 'One.', expected a list"),
        (PATHS + "system-prompts: []\n", "--system-prompts: expected at least one argument"),
        (PATHS + "system-prompts: [a, [b]]\n", "system-prompts: its list holds more than"),
        (PATHS + "system-prompts: [a, true]\n", "system-prompts: its list holds more than"),
        (PATHS + "system-prompts: [a, null]\n", "system-prompts: its list holds more than"),
        (PATHS + 'revision: "a\\0b"\n', "c.yaml:5: revision is 'a\\x00b', expected text"),
        (PATHS + 'revision: "\\uD800"\n', "c.yaml:5: revision is '\\ud800', expected text"),
        (PATHS + "quiet: 1\n", "quiet is '1', expected true or false"),
        (PATHS + "quiet: yes\n", "quiet is 'yes', expected true or false"),
        (PATHS + "boundary: middle\n", "c.yaml:5: argument --boundary: 'middle', expected one of"),
        (PATHS + "model: n\n", "c.yaml:5: key 'model' is given twice, first at "),
        (PATHS + "max-samples: 1\nmax_samples: 2\n", "c.yaml:6: key 'max-samples' is given twice"),
        ("command: usc-generate\nn: 1\nbest-N: 2\n", "c.yaml:3: best-N is the same as n, at "),
        (PATHS + "system-prompts: &a [*a]\n", "system-prompts: its list holds more than"),
        (PATHS + "system-prompts: &a {b: *a}\n", "system-prompts: expected a text, a number"),
        ("? [a]\n: b\n", "c.yaml:1: a key is a list or a mapping"),
        ("<<: {a: b}\n", 'no key "command"|expected a text'),
        ("command: paths\n  model: m\n", "c.yaml:2: not usable YAML"),
        ("command: 'paths\n", "not usable YAML"),
        ("command: paths\n---\ncommand: score\n", "not usable YAML"),
        ("command: *x\n", "not usable YAML"),
        ("command: pa\x07ths\n", "not usable YAML"),
        ("[" * 5000, "not usable YAML"),
        (b"command: \xff\n", "c.yaml:1: byte 10 is not UTF-8"),
        ("command: !!python/object/apply:os.system [id]\n", "c.yaml:1: command: expected a text"),
        ("command: !!python/name:os.system ''\n", "c.yaml:1: command: expected a text"),
    ],
)  # fmt: skip
def test_a_file_of_no_use(write, text, message):
    found = refusal(write(text))
    assert any(part in found for part in message.split("|")), found
    assert "c.yaml" in found


def test_a_list_that_repeats_itself_many_times_is_refused_at_once(write):
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + k)}: &{chr(98 + k)} [{', '.join(['*' + chr(97 + k)] * 9)}]\n" for k in range(20)
    )
    assert "its list holds more than" in refusal(write(bomb))


def test_a_list_may_hold_what_looks_like_a_flag(write):
    args = parsed(write(PATHS + "system-prompts: [a, --quiet, --]\n"))
    assert (args.system_prompts, args.quiet) == (["a", "--quiet", "--"], False)


def test_marks_and_line_ends_of_other_systems(write):
    text = PATHS.replace("\n", "\r\n") + "system-prompts: [שלום, e\u0301]\r\n"
    args = parsed(write("\ufeff" + text))
    assert (args.output, args.system_prompts) == (Path("o.json"), ["שלום", "e\u0301"])


def test_a_file_that_is_not_there(run, tmp_path):  # noqa: F811
    code, out, err = run("--config", tmp_path / "none.yaml")
    assert (code, out) == (2, "")
    assert "none.yaml: No such file or directory" in err


def test_flags_without_a_file(run):  # noqa: F811
    for given in (["--config"], ["score", "--config"], ["score", "--config="]):
        code, out, err = run(*given)
        assert (code, out, err) == (2, "", "jaxscore: error: --config: expected a file after it\n")
    code, _, err = run("score", "--config", "a", "--config", "b")
    assert (code, err) == (2, "jaxscore: error: --config is given 2 times, expected once\n")


def test_the_command_line_may_name_the_command_for_the_file(write):
    path = write(PATHS.replace("command: paths\n", ""))
    assert cli.parse(["paths", "--config", path]).input == [Path("i.jsonl")]
    assert 'no key "command"' in refusal(path)


def test_another_command_than_the_files(write):
    assert "c.yaml:1: the file is for paths, not for score" in refusal(write(PATHS), "score")


@pytest.mark.parametrize("rest", [["--nonesuch"], ["--max-samples", "x"], ["word"]])
def test_words_of_no_use_after_the_file(write, capsys, rest):
    with pytest.raises(SystemExit) as stop:
        parsed(write(PATHS), *rest)
    assert stop.value.code == 2
    assert "jaxscore paths: error: " in capsys.readouterr().err


def test_what_the_file_leaves_out_is_still_required(write, run):  # noqa: F811
    code, _, err = run("--config", write("command: paths\nmodel: m\n"), "--input", "i")
    assert code == 2
    assert "the following arguments are required: --output" in err


def test_help_of_the_files_command(write, capsys):
    with pytest.raises(SystemExit) as stop:
        parsed(write(PATHS), "--help")
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: jaxscore paths")
    assert "--system-prompts-file FILE" in text


def test_a_run(run, write, tmp_path, monkeypatch):  # noqa: F811
    """Paths are from the working directory, not from where the file is."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("in.jsonl").write_text('{"continuation": "The cat."}\n' * 2, encoding="utf-8")
    path = write(f"command: score\nmodel: {QWEN}\ninput: in.jsonl\noutput: o.jsonl\nquiet: true\n")
    code, out, err = run("--config", path, "--summary_only")
    assert (code, err) == (0, "")
    assert out.startswith("done     2 requests, 0 failed")
    lines = Path("o.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == [1, 2]
    assert "logprob" not in json.loads(lines[0])
    code, _, err = run("--config", path, "--output", "in.jsonl")
    assert code == 2
    assert "--output in.jsonl is an input of this run" in err


def test_there_is_a_file_for_each_command():
    assert {path.stem for path in CONFIGS} == {*listing.NAMES, *listing.PASSED_ON}


# One runs until a signal, the other is a file of another program: their commands' tests run them.
@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path for path in CONFIGS if path.stem not in ("serve", "lm-eval")],
    ids=lambda path: path.stem,
)
def test_the_first_line_of_each_file_runs_it(path, run, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    inputs = tmp_path / "jaxscore/demo/inputs"
    shutil.copytree(ROOT / "jaxscore/demo/inputs", inputs)
    samples = json.loads((inputs / "self_certainty.json").read_text(encoding="utf-8"))
    (inputs / "self_certainty.json").write_text(json.dumps(samples[:12]), encoding="utf-8")
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    shutil.copytree(ROOT / "configs", "configs")
    first = path.read_text(encoding="utf-8").splitlines()[0]
    steps = first.removeprefix("# ").split(" && ")
    assert steps[-1] == f"python -m jaxscore --config configs/{path.name}"
    for step in steps:
        if step.startswith("python -m jaxscore "):
            code, _, err = run(*step.split()[3:])
            assert code == 0, err
        else:
            subprocess.run(step, shell=True, check=True)
    assert {one.name for one in tmp_path.iterdir()} <= {"configs", "jaxscore", "outputs"}
    after = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    assert after == before  # a command writes nothing beside its inputs
