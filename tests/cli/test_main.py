"""Flags, help and exit codes."""

import dataclasses
import subprocess
import sys

import pytest

import jaxscore
from jaxscore.cli import app, demo, listing
from jaxscore.cli import main as cli
from jaxscore.errors import InputError
from tests.conftest import CASES, ROOT


def test_underscores_and_hyphens_are_the_same_in_flags_and_texts_stay():
    words = ["paths", "--system_prompts", "a_b", "--max_samples=3", "--x_y=p_q", "--a-b", "-_"]
    assert app.hyphenate(words) == [
        "paths", "--system-prompts", "a_b", "--max-samples=3", "--x-y=p_q", "--a-b", "-_",
    ]  # fmt: skip
    texts = ["--answer in snake_case, please", "---- a_b ----", "--", "--é_è", "a--b_c"]
    assert app.hyphenate(texts) == [*texts[:3], "--é-è", texts[4]]


def test_the_parser_takes_both_spellings():
    for flag in ("--system-prompts-file", "--system_prompts_file"):
        args = cli.parse(["paths", "--model=m", "--input=i_1", "--output", "o_1", flag, "s_1"])
        assert (args.system_prompts_file.name, args.input[0].name) == ("s_1", "i_1")
        assert args.command == "paths"


@pytest.mark.parametrize("name", listing.NAMES)
def test_a_list_flag_that_is_repeated_adds(name):
    """But for those whose words have places of their own, such as MODEL SHORT, and --input."""
    config = str(ROOT / f"configs/{name}.yaml")
    for option in app.command(name).options:
        if not option.names or not option.type.is_list or option.takes_address:
            continue
        if isinstance(option.metavar, tuple):
            continue
        flag, words = option.names[0], ["1", "2", "3"]
        if option.dest == "model":  # of judge, which is the same as --llm NAME
            continue
        if option.dest == "measures":
            words = ["rank", "varentropy,renyi2"]
        if option.dest in ("chat_template_arg", "class"):
            words = ["a=1", "b=2"]
        repeated = [word for given in words for word in (flag, given)]
        found = getattr(cli.parse(["--config", config, *repeated]), option.dest)
        assert [str(value) for value in found] == ",".join(words).split(","), flag


def test_repeated_inputs_add_up():
    words = ["score", "--model", "m", "--output", "o", "--input", "a", "--input", "b", "c"]
    assert [path.name for path in cli.parse(words).input] == ["a", "b", "c"]


def test_the_completion_script_completes_commands_and_flags(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--print-completion", "bash"])
    assert end.value.code == 0
    script = (
        capsys.readouterr().out
        + """
    for words in "jaxscore perp" "jaxscore score --summ"; do
      COMP_WORDS=($words); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_jaxscore
      echo "${COMPREPLY[@]}"
    done"""
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["perplexity", "--summary-only"]


@pytest.mark.parametrize("words", [[], ["fsh"]])
def test_completion_for_no_shell_names_those_that_exist(capsys, words):
    with pytest.raises(SystemExit) as end:
        cli.main(["--print-completion", *words])
    assert end.value.code == 2
    assert "expected one of 'bash', 'zsh'" in capsys.readouterr().err


def test_the_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"jaxscore {jaxscore.__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the command is missing; jaxscore --help lists them"),
        (["nonesuch"], "nonesuch: no such command; jaxscore --help lists them"),
        (["path"], "path: no such command; is it paths?"),
        (["usc_select"], "usc_select: no such command; is it usc-select?"),
        (["--model", "m", "score"], "--model comes before the command"),
        (["score", "--model", "m"], "the following arguments are required: --input, --output"),
        # No flag is guessed from its beginning: a later flag would change what it means.
        (["score", "--mode", "m", "--input", "i", "--output", "o"], "is it --model?"),
        (["score", *"--model m --input i --output o --trunc left".split()], "is it --truncate?"),
        (
            ["paths", "--systemprompts", "a"],
            "--systemprompts: no such flag; is it --system-prompts?",
        ),
        (["paths", "--max_sampels=3"], "--max-sampels: no such flag; is it --max-samples?"),
        (["score", "--confg", "f"], "--confg: no such flag; is it --config?"),
        (["score", "-model", "m"], "-model: no such flag; is it --model?"),
        (
            ["score", *"--model m --input i --output o --nonesuch".split()],
            "--nonesuch: no such flag; jaxscore score --help-all lists all flags",
        ),
        (["score", *"--model m --input i --output o --batch-tokens 63".split()], "63, expected"),
        (
            ["score", *"--model m --input i --output o --batch-tokens x".split()],
            "'x', expected",
        ),
        (["score", *"--model m --input i --output o --dtype int8".split()], "'int8', expected"),
        (
            ["score", *"--model m --input i --output o --device abacus".split()],
            "'abacus'",
        ),
        (["score", *"--model m --input i --output o --boundary middle".split()], "'middle'"),
        (
            ["paths", *"--model m --input i --output o --max-samples 0".split()],
            "0, expected",
        ),
    ],
)
def test_bad_usage(capsys, words, message):
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (InputError("file:3: why"), 2, "jaxscore demo: error: file:3: why\n"),
        (
            KeyboardInterrupt(),
            130,
            "jaxscore demo: interrupted; unfinished files are left as they were\n",
        ),
    ],
)
def test_what_a_command_raises_becomes_a_code(capsys, monkeypatch, raised, code, message):
    def run(_):
        raise raised

    monkeypatch.setattr(demo, "COMMAND", dataclasses.replace(demo.COMMAND, run=run))
    assert cli.main(["demo"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message)


def test_an_error_of_ours_is_not_hidden(monkeypatch):
    def run(_):
        raise ZeroDivisionError

    monkeypatch.setattr(demo, "COMMAND", dataclasses.replace(demo.COMMAND, run=run))
    with pytest.raises(ZeroDivisionError):
        cli.main(["demo"])


def test_importing_the_package_is_quiet_and_touches_no_device():
    code = (
        "import jaxscore, sys\n"
        "print('jax' in sys.modules, callable(jaxscore.evaluate))\n"
        "from jaxscore import Scorer\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized(), 'Scorer' in dir(jaxscore))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "False True\nFalse True\n", "")
    with pytest.raises(AttributeError, match="no attribute 'Scorrer'"):
        _ = jaxscore.Scorrer


def test_flags_that_cannot_be_meant(tmp_path, capsys):
    """Each ends with code 2 and says what is wrong, without a traceback."""
    good = tmp_path / "in.jsonl"
    good.write_text('{"continuation": "The cat"}\n', encoding="utf-8")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    model = str(CASES / "models" / "tiny-gpt2")
    out = str(tmp_path / "out.jsonl")
    for flags, said in (
        (["--output", out, "--batch-tokens", "1000000000000"], "is above"),
        (["--output", out, "--revision", "main"], "revisions are for hub ids"),
        (["--output", str(loop)], "loop"),
        (["--output", out + "\udcff"], "not UTF-8"),
    ):
        words = ["score", "--model", model, "--input", str(good), *flags]
        try:
            code = cli.main(words)
        except SystemExit as stopped:  # argparse's own
            code = stopped.code
        assert code == 2, flags
        assert said in capsys.readouterr().err
