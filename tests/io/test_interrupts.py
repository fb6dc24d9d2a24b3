"""Ctrl-C lets what is in flight finish and keeps it; a second one ends at once."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from jaxscore.io import interrupts
from jaxscore.plan.requests import TokenSequence
from tests.conftest import CASES
from tests.journal.test_killed import complete, finish, kept, place, start  # noqa: F401


@pytest.mark.slow
def test_a_run_that_is_interrupted_keeps_what_is_finished_and_goes_on(place):  # noqa: F811
    finish(start(place, "undisturbed.jsonl"))
    journal = place / ".jaxscore/stopped.jsonl.journal"
    command = start(place, "stopped.jsonl")
    while command.is_running() and not kept(journal):
        time.sleep(0.01)
    command.interrupt()
    code, said = command.finish()
    assert code == 130, said
    assert interrupts.NOTICE in said
    assert f"finished work is in {journal}" in said
    assert "Traceback" not in said
    assert not (place / "stopped.jsonl").exists()
    n_before = complete(journal)
    assert n_before > 0
    said = finish(start(place, "stopped.jsonl"))
    assert f"{n_before} of" in said
    whole = (place / "undisturbed.jsonl").read_bytes()
    assert (place / "stopped.jsonl").read_bytes() == whole


def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)  # Python calls the handler between two steps of its own


def test_work_that_asks_is_not_torn(capsys):
    with interrupts.handle_interrupts():
        with interrupts.finish_on_interrupt():
            assert not interrupts.interrupt_requested()
            press()
            assert interrupts.interrupt_requested()
            with pytest.raises(KeyboardInterrupt):
                press()
        assert interrupts.NOTICE in capsys.readouterr().err


def test_elsewhere_it_ends_at_once_and_the_handler_before_comes_back():
    before = signal.getsignal(signal.SIGINT)
    with interrupts.handle_interrupts(), pytest.raises(KeyboardInterrupt):
        press()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_wish_ends_with_the_run_that_it_was_for():
    with interrupts.handle_interrupts(), interrupts.finish_on_interrupt():
        press()
        assert interrupts.interrupt_requested()
    assert not interrupts.interrupt_requested()


def test_another_thread_cannot_listen_and_works_all_the_same():
    found = []

    def work():
        with interrupts.handle_interrupts(), interrupts.finish_on_interrupt():
            found.append(interrupts.interrupt_requested())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_scores_of_the_batch_in_flight_are_kept(scorers, tmp_path, monkeypatch):
    """Asked to stop while the first batch computes, a run fetches all that it has sent."""
    from jaxscore import Request, Scorer

    path = tmp_path / "journal"
    scorer = Scorer.from_pretrained(
        str(CASES / "models/tiny-gpt2"), dtype="float32", journal=path, batch_tokens=64
    )
    requests = [Request(str(k), "", json.dumps({"n": k}) * 10) for k in range(12)]
    sent = []
    send = scorer.engine.dispatch.send

    def counted(*args):
        sent.append(len(args[1]))
        if len(sent) == 2:
            monkeypatch.setattr(interrupts, "interrupt_requested", lambda: True)
        return send(*args)

    monkeypatch.setattr(scorer.engine.dispatch, "send", counted)
    with pytest.raises(KeyboardInterrupt):
        scorer.score(requests)
    scorer.close()
    assert len(sent) == 2
    assert complete(path) >= 2


def child(code, **variables):
    """A process that runs this code and prints `ready`."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


IN_NATIVE_CODE = """
import hashlib, os
from jaxscore.io import interrupts
interrupts.PATIENCE = float(os.environ["PATIENCE"])
clean_up = lambda: os.unlink(os.environ["UNFINISHED"])
with interrupts.handle_interrupts(clean_up), interrupts.finish_on_interrupt():
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)  # looks at no signal for minutes
"""


@pytest.mark.parametrize(("n_pressed", "patience"), [(3, "300"), (2, "0.1")])
def test_a_main_thread_in_native_code_does_not_hold_the_end_up(tmp_path, n_pressed, patience):
    unfinished = tmp_path / "unfinished"
    unfinished.touch()
    process = child(IN_NATIVE_CODE, PATIENCE=patience, UNFINISHED=str(unfinished))
    for _ in range(n_pressed):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    # The first press may come before the native code begins, and is then answered, too.
    assert said.endswith("jaxscore: interrupted; unfinished files are left as they were\n")
    assert not unfinished.exists()


WITH_A_THREAD = """
import threading, time
import jaxscore.cli.main
from jaxscore.__main__ import run

def main():
    threading.Thread(target=time.sleep, args=(300,)).start()  # as native code that comes back late
    print("ready", flush=True)
    {ends}

jaxscore.cli.main.main = main
run()
"""


@pytest.mark.parametrize(("ends", "code"), [("return 130", 130), ("return 2", 2), ("1 / 0", 1)])
def test_no_thread_outlives_a_run_that_ends_early(ends, code):
    process = child(WITH_A_THREAD.format(ends=ends))
    process.communicate(timeout=20)
    assert process.returncode == code


@pytest.mark.parametrize("module", ["numpy", "yaml", "jax"])
def test_while_modules_are_imported_it_is_one_line(tmp_path, module):
    """`numpy` is imported with the package, `yaml` with the commands, `jax` by the command."""
    stands_for = tmp_path / f"modules/{module}.py"
    stands_for.parent.mkdir()
    stands_for.write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(300)\n"
    )
    (tmp_path / "in.jsonl").write_text('{"context": "a", "continuation": " b"}\n')
    words = ["score", "--model", "demo", "--input", "in.jsonl", "--output", "out.jsonl"]
    done = subprocess.run(
        [sys.executable, "-m", "jaxscore", *words],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(stands_for.parent)},
    )
    assert done.returncode == 130
    assert re.fullmatch(r"jaxscore.*: interrupted.*\n", done.stderr)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in.jsonl", "modules"]


PRESSES = """
import json, os, signal, sys, time
import jaxscore.cli.main as cli
from jaxscore.engine.dispatch import Dispatch
from jaxscore.engine.planner import Planner
from jaxscore.io import interrupts
from jaxscore.text.encoder import TextEncoder

what, at, *words = sys.argv[1:]
counts, before = {"batches": 0, "texts": 0, "windows": 0}, {}
pressed = []

def count(owner, method, name, n):
    genuine = getattr(owner, method)
    def call(self, *args, **options):
        counts[name] += n(*args)
        if name == what and counts[name] >= int(at) and not before:
            if not pressed:
                pressed.append(True)
                os.kill(os.getpid(), signal.SIGINT)
            # The main thread may have begun to wait for this thread before it sees the signal:
            # it then calls the handler when it gets the next scores.
            deadline = time.monotonic() + 2
            while not interrupts._State.requested and time.monotonic() < deadline:
                time.sleep(0.001)
            if interrupts._State.requested:
                before.update(counts)
        return genuine(self, *args, **options)
    setattr(owner, method, call)

count(Dispatch, "send", "batches", lambda *_: 1)
count(TextEncoder, "encode", "texts", lambda requests, *_: len(requests))
count(Planner, "window", "windows", lambda *_: 1)
code = cli.main(words)
print(json.dumps({name: counts[name] - n for name, n in before.items()}))
sys.exit(code)
"""


def command_of(system, folder, output, *, n=6000):
    """Words of a command with n items."""
    words = [f"w{k * 7919 % 10**4}" for k in range(400)]
    with open(folder / "in.jsonl", "w", encoding="utf-8") as file:
        for k in range(n):
            head, tail = (" ".join(words[(k * m) % 390 :][:10]) for m in (3, 7))
            item = {"context": head, "continuation": f" {tail}"}
            if system == "choose":
                item = {"context": head, "options": [f" {tail}", " no"]}
            file.write(json.dumps({"id": k, **item}) + "\n")
    model = CASES / "models/tiny-gpt2"
    files = ["--input", folder / "in.jsonl", "--output", folder / output]
    return [system, "--model", model, *files, "--batch-tokens", 256, "--quiet"]


def run_code(code, *words):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("system", ["score", pytest.param("choose", marks=pytest.mark.slow)])
def test_after_ctrl_c_nothing_is_read_planned_or_sent(tmp_path, system):
    """While texts are tokenized, long before all of them are read."""
    code, out, err = run_code(PRESSES, "texts", 600, *command_of(system, tmp_path, "out.jsonl"))
    assert code == 130, err
    assert interrupts.NOTICE in err
    started = json.loads(out.splitlines()[-1])
    assert started["batches"] == started["windows"] == 0
    assert started["texts"] <= 1024  # of another thread, which had begun with them


@pytest.mark.slow
@pytest.mark.parametrize("system", ["score", "choose"])
def test_after_ctrl_c_sent_batches_are_kept_and_the_same_command_goes_on(tmp_path, system):
    whole = command_of(system, tmp_path, "whole.jsonl", n=600)
    assert run_code(PRESSES, "never", 0, *whole)[0] == 0
    words = command_of(system, tmp_path, "out.jsonl", n=600)
    code, out, err = run_code(PRESSES, "batches", 5, *words)
    assert code == 130, err
    started = json.loads(out.splitlines()[-1])
    assert started == {"batches": 0, "texts": 0, "windows": 0}
    assert not (tmp_path / "out.jsonl").exists()
    n_kept = complete(tmp_path / ".jaxscore/out.jsonl.journal")
    assert n_kept > 0
    code, out, err = run_code(PRESSES, "never", 0, *words)
    assert code == 0, err
    assert int(re.search(r"(\d+) of \d+ texts come from it", out)[1]) >= n_kept
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_windows_whose_scores_are_complete_come_before_the_interrupt(scorers, monkeypatch):
    """A caller without a journal can write them."""
    scorer = scorers("tiny-gpt2", batch_tokens=256)
    sequences = [TokenSequence(np.arange(k + 2, k + 22, dtype=np.int32), 1) for k in range(90)]
    windows = [sequences[k : k + 30] for k in range(0, 90, 30)]
    sent, taken = [], []
    send = scorer.engine.dispatch.send

    def counted(*args):
        sent.append(args)
        if sum(len(batches) for _, batches, *_ in sent) == 5:  # of the second window
            monkeypatch.setattr(interrupts, "interrupt_requested", lambda: True)
        return send(*args)

    monkeypatch.setattr(scorer.engine.dispatch, "send", counted)
    with pytest.raises(KeyboardInterrupt):
        taken.extend(scorer.engine.run(iter(windows)))
    assert [len(scores) for scores in taken] == [30]
    assert len(sent) == 5
