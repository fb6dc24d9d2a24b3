"""`score --text`: a table of one text's tokens on the terminal."""

import os
import pty
import re
import subprocess
import sys

import pytest

from jaxscore.report import terminal
from tests.cli.conftest import QWEN

MODEL = ("score", "--model", QWEN)
LINE = re.compile(r"(\S+(?: \d/\d)?) +(-?\d+\.\d{3}|-) +(\d+|-) +(\d+\.\d{3}|-)(.*)")


def lines_of(out):
    """(token, log-probability, rank, entropy, alternatives) of each line of the table."""
    header, *lines = out.partition("\n\n")[0].splitlines()
    assert header.split() == ["token", "logprob", "rank", "entropy", "instead"]
    return [LINE.fullmatch(line).groups() for line in lines]


def test_numbers_are_those_of_score(run, scorers):
    code, out, err = run(*MODEL, "--text", "The cat", "--continuation", " sat on the mat.")
    assert (code, err) == (0, "")
    [scored] = scorers("tiny-qwen2").score(
        [("The cat", " sat on the mat.")], measures=["rank"], top=1
    )
    lines = lines_of(out)
    assert len(lines) == scored.n_tokens
    for k, (token, logprob, rank, entropy, others) in enumerate(lines):
        assert token == scored.tokens[k].replace("Ġ", "␣")
        assert float(logprob) == pytest.approx(scored.logprob[k], abs=6e-4)
        assert int(rank) == scored.measures["rank"][k]
        assert float(entropy) == pytest.approx(scored.entropy[k], abs=6e-4)
        best = scored.top.token[k][0].replace("Ġ", "␣").replace("Ċ", "⏎")
        assert rank == "1" or re.match(rf"  {re.escape(best)} +[\d.]+ %", others) or "\\x" in others
    nats = f"{scored.sum_logprob:.3f}"
    assert f"{scored.n_tokens} tokens: log-probability {nats} nats" in out


def test_white_space_parts_of_characters_and_a_first_token_without_probability(run):
    code, out, _ = run(*MODEL, "--text", "a\n\té 東\x1b")
    tokens = [line[0] for line in lines_of(out)]
    assert code == 0
    assert "⏎" in "".join(tokens)
    assert [token for token in tokens if "東" in token] == ["東 1/3", "東 2/3", "東 3/3"]
    assert r"\x1b" in tokens
    assert lines_of(out)[0][1:4] == ("-", "-", "-")
    assert "The first token has nothing before it" in out
    assert "\x1b" not in out


def test_columns_are_aligned_next_to_wide_characters():
    texts = ["東京", "a", "e\u0301", "🙂", "👩\u200d👧"]
    assert [terminal.width(text) for text in texts] == [4, 1, 1, 2, 4]
    assert {terminal.width(terminal.padded(text, 6)) for text in texts} == {6}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--text", "a", "--input", "x"), "argument --input: not allowed with argument --text"),
        (("--text", "a", "--output", "x"), "argument --output: not allowed with argument --text"),
        (("--text", ""), "--text: it is empty"),
        (("--text", "a", "--continuation", ""), "--continuation: it is empty"),
        *(
            (("--text", "a", *words), f"argument {words[0]}: not allowed with argument --text")
            for words in (
                ("--rows", "word"),
                ("--against", ""),
                ("--class", "a=1"),
                ("--no-html",),
                ("--shard", "0/2"),
                ("--by", "topic"),
            )
        ),
        (("--text", "a", "--api-base", "http://localhost:9"), "--api-base: an endpoint does not"),
        (("--continuation", "a", "--input", "x", "--output", "y"), "after the text of --text"),
        ((), "the following arguments are required: --input, --output"),
    ],
)
def test_what_does_not_fit_is_refused(run, words, message):
    code, out, err = run(*MODEL, *words)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.slow_after(10)
@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_has_colours_unless_it_declines_them(environment):
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxscore", *MODEL, "--text", "The cat\nsat. 東"],
        stdout=slave, stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "60", **environment},
    )  # fmt: skip
    os.close(slave)
    out = b""
    try:
        while part := os.read(master, 1 << 16):
            out += part
    except OSError:  # the end of a terminal
        pass
    finally:
        assert process.wait() == 0
        os.close(master)
    text = out.decode().replace("\r\n", "\n")
    assert ("\x1b[" in text) == (not environment)
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert ("The cat⏎\nsat. 東\n\ntoken" in plain) == (not environment)
    if not environment:
        table = plain.split("\n\n")[1]
        assert max(map(terminal.width, table.splitlines())) <= 60
