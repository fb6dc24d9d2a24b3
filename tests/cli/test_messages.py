"""What commands print: remarks and failures, and the closing block."""

import argparse
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxscore.analysis.margins import Decisions
from jaxscore.cli import messages
from jaxscore.shell.rounding_audit import Noise, Spread
from tests.cli.conftest import QWEN


def scorer(*, journal=None, given=12, unique=4, sampled_with_blank=0):
    model = SimpleNamespace(
        model_type="llama", implementation="native", dtype="float32", quantized=None
    )
    return SimpleNamespace(
        statistics=SimpleNamespace(
            tokens_given=given,
            tokens_unique=unique,
            tokens_scored=3,
            sequences_restored=1,
            sequences=2,
            sampled_with_blank=sampled_with_blank,
        ),
        models=(model,),
        journal=journal,
    )


def test_every_line(capsys, tmp_path):
    kept = tmp_path / "j"
    kept.touch()
    code = messages.print_closing_block(
        done="2 items",
        failures=[("a\nb", "why")],
        results=["the headline", "noise floor: none"],
        boundary="joint: of 2 requests separate would change 1",
        files=[Path("out.json"), Path("out\x1b.json")],
        scorer=scorer(journal=SimpleNamespace(path=kept, is_lost=False)),
        seconds=1.25,
    )
    captured = capsys.readouterr()
    assert code == 1
    assert captured.out.splitlines() == [
        "done     2 items, 1 failed in 1.2 s",
        "shared   12 tokens given, 4 computed, 3.0 given per computed token, 3 scored",
        "model    llama, native, float32",
        "result   the headline",
        "         noise floor: none",
        "boundary joint: of 2 requests separate would change 1",
        "files    out.json",
        "         out\\x1b.json",
        f"journal  {kept}, 1 of 2 texts come from it",
    ]
    assert captured.err == "failed: a\\nb: why\n1 failed, the others are kept\n"


def test_a_sample_with_blanks_is_named_in_the_journals_line(capsys, tmp_path):
    (kept := tmp_path / "j").touch()
    journal = SimpleNamespace(path=kept, is_lost=False)
    messages.print_closing_block(done="", scorer=scorer(journal=journal, sampled_with_blank=1))
    line = "1 of 2 texts come from it; the texts include sampled answers with a blank: 1\n"
    assert capsys.readouterr().out.endswith(line)


def test_what_there_is_not_has_no_line(capsys):
    assert messages.print_closing_block(done="3 files") == 0
    assert capsys.readouterr() == ("done     3 files, 0 failed\n", "")
    messages.print_closing_block(done="no request", scorer=scorer(given=0, unique=0))
    assert capsys.readouterr().out.splitlines()[1:] == ["model    llama, native, float32"]


def test_a_journal_without_a_file_is_not_named(capsys, tmp_path):
    """A run that computes nothing, as where every request fails, makes none."""
    absent = SimpleNamespace(path=tmp_path / "j", is_lost=False)
    messages.print_closing_block(done="1 item", scorer=scorer(journal=absent))
    assert "journal" not in capsys.readouterr().out


def test_the_noise_floor_is_told_where_an_audit_was_asked_for():
    assert messages.noise_lines(None, False, []) == []
    [line] = messages.noise_lines(None, True, [])
    assert line == "noise floor: no request was scored, so none was scored again"
    noise = Noise(
        n_requests=4,
        layouts=("alone", "one request a row"),
        spread={"logprob": Spread(2e-7, 1e-7)},
        n_tokens=9,
        n_greedy_differs=1,
    )
    [line] = messages.noise_lines(noise, True, [Decisions("sign", "logprob", 4e-7, 8, 2)])
    assert line == (
        "noise floor: 4 requests in 2 layouts move by at most 2e-07 (logprob); greedy differs on "
        "1 of 9 tokens; decisions within that: sign 2 of 8"
    )


def test_a_journal_that_is_removed_during_the_run_is_told_at_the_end(run, place, monkeypatch):
    from jaxscore.cli import system_command

    folder, real = place({"context": "a", "continuation": " b"}), system_command.run_declared
    journal = folder / ".jaxscore/out.jsonl.journal"

    def removes(*args, **settings):
        report = real(*args, **settings)
        journal.unlink()
        return report

    monkeypatch.setattr(system_command, "run_declared", removes)
    words = ("--input", folder / "in.jsonl", "--output", folder / "out.jsonl", "--quiet")
    ran = run("score", "--model", QWEN, *words)
    assert ran.code == 0
    assert f"journal  {journal} was removed or replaced during the run: " in ran.out
    assert not journal.exists()


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("utf-8", r"é مرحبا \ud83d"), ("ascii", r"\xe9 \u0645\u0631\u062d\u0628\u0627 \ud83d")],
)
def test_any_id_can_be_told(monkeypatch, encoding, shown):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict", write_through=True)
    monkeypatch.setattr(sys, "stderr", stream)
    args = argparse.Namespace(quiet=False)
    messages.remark(args, "é مرحبا \ud83d")
    assert messages.print_failures([("é مرحبا \ud83d", "why \ud83d")]) == 1
    remark, failed, count = raw.getvalue().decode(encoding).splitlines()
    assert remark == shown
    assert failed == rf"failed: {remark}: why \ud83d"
    assert count == "1 failed, the others are kept"


def test_failures_are_counted_where_they_are_too_many_to_list(capsys):
    n = messages.LISTED + 3
    assert messages.print_failures([(k, "why") for k in range(n)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-3:] == [
        f"failed: {messages.LISTED - 1}: why",
        "and 3 more",
        f"{n} failed, the others are kept",
    ]
    assert messages.print_failures([]) == 0
    assert capsys.readouterr().err == ""
