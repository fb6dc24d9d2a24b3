"""Flags, help, exit codes and devices."""

import os
import re
import subprocess
import sys

import pytest

import jaxscore
from jaxscore import cli
from jaxscore.errors import InputError
from tests.conftest import CASES

MODEL = str(CASES / "models/tiny-qwen2")


def test_underscores_and_hyphens_are_the_same_in_flags_and_texts_stay():
    words = ["paths", "--system_prompts", "a_b", "--max_samples=3", "--x_y=p_q", "--a-b", "-_"]
    assert cli.hyphenated(words) == [
        "paths", "--system-prompts", "a_b", "--max-samples=3", "--x-y=p_q", "--a-b", "-_",
    ]  # fmt: skip
    texts = ["--answer in snake_case, please", "---- a_b ----", "--", "--é_è", "a--b_c"]
    assert cli.hyphenated(texts) == [*texts[:3], "--é-è", texts[4]]


def test_the_parser_takes_both_spellings():
    for flag in ("--system-prompts-file", "--system_prompts_file"):
        args = cli.parser().parse_args(
            cli.hyphenated(["paths", "--model=m", "--input=i_1", "--output", "o_1", flag, "s_1"])
        )
        assert (args.system_prompts_file.name, args.input.name) == ("s_1", "i_1")


@pytest.mark.parametrize("command", ["score", "paths"])
def test_the_help_shows_input_and_output(capsys, command):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    fields = {
        "score": '"id" "context" "continuation" token_ids tokens logprob[] entropy[] '
        "self_certainty[] greedy[] sum_logprob mean_logprob perplexity mean_entropy "
        "mean_self_certainty n_tokens n_scored",
        "paths": '"id" "question" "paths" baseline_prob retrieved_prob absolute_improvement '
        "relative_improvement",
    }
    for word in f"{fields[command]} --model --device --dtype --batch-tokens --truncate".split():
        assert word in text
    assert "exit code: 0" in text


def test_the_other_helps(capsys):
    for words in (["--help"], ["demo", "--help"]):
        with pytest.raises(SystemExit) as stop:
            cli.main(words)
        assert stop.value.code == 0
        assert "demo" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"jaxscore {jaxscore.__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["nonesuch"], "invalid choice: 'nonesuch'"),
        (["score", "--model", "m"], "the following arguments are required: --input, --output"),
        # No flag is guessed from its beginning: a later flag would change what it means.
        (["score", "--mode", "m", "--input", "i", "--output", "o"], "required: --model"),
        (["score", *"--model m --input i --output o --trunc left".split()], "--trunc left"),
        (["score", *"--model m --input i --output o --nonesuch".split()], "--nonesuch"),
        (["score", *"--model m --input i --output o --batch-tokens 63".split()], "below the short"),
        (["score", *"--model m --input i --output o --batch-tokens x".split()], "'x' is not a who"),
        (["score", *"--model m --input i --output o --dtype int8".split()], "choice: 'int8'"),
        (["score", *"--model m --input i --output o --device abacus".split()], "choice: 'abacus'"),
        (["score", *"--model m --input i --output o --boundary middle".split()], "'middle'"),
        (["paths", *"--model m --input i --output o --max-samples 0".split()], "0 is not above 0"),
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

    monkeypatch.setattr(cli.demo, "run", run)
    assert cli.main(["demo"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message)


def test_an_error_of_ours_is_not_hidden(monkeypatch):
    def run(_):
        raise ZeroDivisionError

    monkeypatch.setattr(cli.demo, "run", run)
    with pytest.raises(ZeroDivisionError):
        cli.main(["demo"])


def process(*words, **environment):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("device", ["tpu", "cuda", "gpu"])
def test_a_device_that_is_absent(tmp_path, device):
    # No card is visible to the process, also where there is one.
    (tmp_path / "in.jsonl").write_text('{"continuation": "x"}\n', encoding="utf-8")
    ran = process(
        "-m", "jaxscore", "score", "--model", MODEL, "--input", tmp_path / "in.jsonl",
        "--output", tmp_path / "out.jsonl", "--device", device,
        CUDA_VISIBLE_DEVICES="", TPU_SKIP_MDS_QUERY="1",
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"error: --device {device}: JAX finds none here" in ran.stderr
    assert "leave --device out" in ran.stderr
    assert re.search(r"the extra \[(tpu|cuda)\]", ran.stderr)
    assert "Traceback" not in ran.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_device_is_not_changed_behind_the_users_back():
    # JAX keeps its first device, whatever it is told later.
    code = (
        "import jax; jax.devices()\n"
        "from jaxscore.errors import InputError\n"
        "from jaxscore.engine.platform import use_device\n"
        "use_device('cpu'); use_device(None)\n"
        "try:\n    use_device('tpu')\n"
        "except InputError as problem:\n    print(problem)\n"
    )
    ran = process("-c", code, JAX_PLATFORMS="cpu")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--device tpu: JAX finds none here (it runs on another device already)" in ran.stdout


def test_importing_the_package_is_quiet_and_touches_no_device():
    code = (
        "import jaxscore\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized())\n"
    )
    ran = process("-c", code)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "False\n", "")


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
        (["--output", out, "--revision", "main"], "has no revisions"),
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
