"""What every command says on stderr, whatever stands in the user's ids."""

import argparse
import io
import sys
from pathlib import Path

import pytest

from jaxscore import Request
from jaxscore.cli import parser
from jaxscore.commands import shared
from jaxscore.errors import InputError


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("utf-8", r"é مرحبا \ud83d"), ("ascii", r"\xe9 \u0645\u0631\u062d\u0628\u0627 \ud83d")],
)
def test_any_id_can_be_told(monkeypatch, encoding, shown):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict", write_through=True)
    monkeypatch.setattr(sys, "stderr", stream)
    args = argparse.Namespace(quiet=False)
    shared.remark(args, "é مرحبا \ud83d")
    assert shared.tell_failures([("é مرحبا \ud83d", "why \ud83d")]) == 1
    remark, failed, count = raw.getvalue().decode(encoding).splitlines()
    assert remark == shown
    assert failed == rf"failed: {remark}: why \ud83d"
    assert count == "1 failed, the others are kept"


def test_failures_are_counted_where_they_are_too_many_to_list(capsys):
    n = shared.SHOWN_FAILURES + 3
    assert shared.tell_failures([(k, "why") for k in range(n)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-3:] == [
        f"failed: {shared.SHOWN_FAILURES - 1}: why",
        "and 3 more",
        f"{n} failed, the others are kept",
    ]
    assert shared.tell_failures([]) == 0
    assert capsys.readouterr().err == ""


def test_the_flag_to_change_is_named(tmp_path):
    one, other = tmp_path / "a", tmp_path / "b"
    shared.check_output(one, None, other)
    with pytest.raises(InputError, match=r"--output .*a is an input of this run"):
        shared.check_output(one, other, one)
    with pytest.raises(InputError, match=r"--output-file .*a is an input of this run"):
        shared.check_output(one, Path(one), flag="--output-file")
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(InputError, match=r"--report .*a: not usable as a path"):
        shared.check_output(one, other, flag="--report")


def test_flags_of_no_effect_are_told(capsys):
    args = argparse.Namespace(**shared.UNUSED, quiet=False)
    shared.tell_unused(args, [*shared.UNUSED], "the server computes")
    assert capsys.readouterr().err == ""
    args.mesh, args.batch_tokens = "data=2", 64
    shared.tell_unused(args, [*shared.UNUSED], "the server computes")
    assert capsys.readouterr().err == "--mesh, --batch-tokens: of no effect, the server computes\n"


def test_what_is_unused_is_what_nobody_has_given():
    words = ["chronologic", "m", "q.jsonl"]
    args = parser().parse_args(words)
    assert {name: getattr(args, name) for name in shared.UNUSED} == shared.UNUSED


def test_long_answers_are_left_out_of_an_audit_that_encodes_them_for_each_token(scorers):
    long = " word" * 400
    assert len(long) > shared.AUDITED_CHARACTERS
    requests = [Request("a", "The cat", " sat"), Request("b", "The cat", long)]
    audit = shared.Audit(scorers("tiny-gpt2"), "separate", ["reencoded"])
    assert list(audit.watch(requests)) == requests
    assert (audit.n_requests, audit.n_too_long) == (1, 1)
    assert audit.text("separate", ["upstream"]).endswith(
        "; 1 of over 1000 characters were not looked at"
    )
    joint = shared.Audit(scorers("tiny-gpt2"), "separate", ["joint"])
    assert list(joint.watch(requests)) == requests
    assert (joint.n_requests, joint.n_too_long) == (2, 0)
