"""What every command says on stderr, whatever the user's ids hold."""

import argparse
import io
import sys

import pytest

from jaxscore.cli import messages


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
    assert messages.tell_failures([("é مرحبا \ud83d", "why \ud83d")]) == 1
    remark, failed, count = raw.getvalue().decode(encoding).splitlines()
    assert remark == shown
    assert failed == rf"failed: {remark}: why \ud83d"
    assert count == "1 failed, the others are kept"


def test_failures_are_counted_where_they_are_too_many_to_list(capsys):
    n = messages.SHOWN_FAILURES + 3
    assert messages.tell_failures([(k, "why") for k in range(n)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-3:] == [
        f"failed: {messages.SHOWN_FAILURES - 1}: why",
        "and 3 more",
        f"{n} failed, the others are kept",
    ]
    assert messages.tell_failures([]) == 0
    assert capsys.readouterr().err == ""
