"""Several real processes on this machine, against one: the same files, byte for byte."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxscore.cli import distributed_flags
from jaxscore.engine import WINDOW
from jaxscore.errors import InputError
from jaxscore.io import interrupts, processes
from tests.conftest import CASES, ROOT, with_devices
from tests.journal.test_killed import complete, kept, models_in_copy

QWEN = str(CASES / "models/tiny-qwen2")
BOUND = 120  # seconds in which the others of a killed process end, on a busy machine


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(
    n: int,
    *words,
    devices: int = 1,
    cwd: Path = ROOT,
    started: int | None = None,
    module: str = "jaxscore",
):
    """`n` processes of one command, or the first `started` of them."""
    at = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", module, *map(str, words)]
    if n > 1:
        command += ["--distributed", "--coordinator", at, "--num-processes", str(n)]
    return [
        subprocess.Popen(
            command + (["--process-id", str(k)] if n > 1 else []),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=with_devices(devices),
            cwd=cwd,
        )
        for k in range(n if started is None else started)
    ]


def ended(running, *, within: float = 300) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each."""
    deadline = time.monotonic() + within
    try:
        reported = [one.communicate(timeout=deadline - time.monotonic()) for one in running]
    finally:
        for one in running:
            one.kill()
    return [(one.returncode, *said) for one, said in zip(running, reported, strict=True)]


def well(running) -> list[tuple[str, str]]:
    """What each said, all having ended with 0."""
    found = ended(running)
    assert [code for code, _, _ in found] == [0] * len(found), found
    return [(out, err) for _, out, err in found]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    draw, folder = random.Random(7), tmp_path_factory.mktemp("processes")
    words = [f"w{draw.randrange(10**4)}" for _ in range(100)]
    lines = [
        {
            "id": k,
            "context": " ".join(words[k % 20 : k % 20 + draw.randrange(1, 25)]),
            "continuation": " " + " ".join(draw.choices(words, k=draw.randrange(1, 12))),
        }
        for k in range(400)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "in.jsonl").write_text(text, encoding="utf-8")
    well(start(1, *score(folder, "one")))
    return folder


def score(folder: Path, name: str, *words) -> list:
    flags = ["--input", folder / "in.jsonl", "--output", folder / f"{name}.jsonl"]
    return ["score", "--model", QWEN, *flags, "--batch-tokens", 64, *words]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("n", "devices"), [(2, 2), (4, 1)])
def test_the_files_are_those_of_one_process(place, n, devices):
    name = f"{n}x{devices}"
    reported = well(start(n, *score(place, name), devices=devices))
    assert (place / f"{name}.jsonl").read_bytes() == (place / "one.jsonl").read_bytes()
    facts = json.loads((place / f"{name}.jsonl.run.json").read_text("utf-8"))
    alone = json.loads((place / "one.jsonl.run.json").read_text("utf-8"))
    assert facts["machine"]["processes"] == n
    assert facts["machine"]["devices"] == n * devices
    assert facts["mesh"] == f"data={n * devices},model=1"
    assert facts["plan"] == alone["plan"]
    assert "tokens given" in reported[0][0]
    for out, err in reported[1:]:  # silent, but that they wait
        assert out == ""
        [line] = err.splitlines()
        assert "waiting for the others" in line


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("mesh", ["data=2", "model=2"])
def test_a_batch_that_does_not_fit_in_one_process_is_halved_in_all(place, mesh):
    name = f"halved-{mesh}"
    words = score(place, name, "--mesh", mesh, "--batch-tokens", 1024)
    [(_, err), _] = well(start(2, *words, module="tests.io.short_of_memory"))
    assert "tokens do not fit in the device's memory; continuing with" in err
    facts = json.loads((place / f"{name}.jsonl.run.json").read_text("utf-8"))
    assert facts["batches_that_did_not_fit"]
    one, two = (
        [json.loads(line) for line in (place / f"{each}.jsonl").read_text("utf-8").splitlines()]
        for each in ("one", name)
    )
    for a, b in zip(one, two, strict=True):
        assert a["logprob"] == pytest.approx(b["logprob"], abs=1e-5)


@pytest.mark.slow
def test_processes_share_the_programs_that_the_first_one_cached(place, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSCORE_CACHE", str(tmp_path))
    for n in range(2):
        words = score(place, f"cached{n}", "--batch-tokens", 1024)
        reported = well(start(2, *words, module="tests.io.count_cache_hits"))
        written = {path.name for path in (tmp_path / "xla").glob("*-cache")}
        assert written
        hits = [int(err.rpartition("from the cache: ")[2]) for _, err in reported]
        assert hits == [n * len(written)] * 2
    assert (place / "cached0.jsonl").read_bytes() == (place / "cached1.jsonl").read_bytes()


@pytest.mark.slow
def test_each_layer_over_two_processes(place):
    """Half of each layer in each process: the numbers of one process with two devices."""
    words = ("--mesh", "model=2", "--journal", "off")
    well(start(1, *score(place, "split1", *words), devices=2))
    well(start(2, *score(place, "split2", *words)))
    assert (place / "split2.jsonl").read_bytes() == (place / "split1.jsonl").read_bytes()
    one = [json.loads(line) for line in (place / "one.jsonl").read_text("utf-8").splitlines()]
    two = [json.loads(line) for line in (place / "split2.jsonl").read_text("utf-8").splitlines()]
    for a, b in zip(one, two, strict=True):
        assert a["sum_logprob"] == pytest.approx(b["sum_logprob"], abs=1e-4)


@pytest.mark.slow
def test_a_task_that_reads_labels_and_writes_text(tmp_path):
    """Multiple choice: generated text, label probabilities and reports, two processes and one."""
    questions = CASES / "chronologic" / "questions.jsonl"
    found = []
    for n in (1, 2):
        folder = tmp_path / str(n)
        words = ("chronologic", QWEN, questions, "--mcq", "--output-dir", folder)
        reported = well(start(n, *words))
        assert "\nresult   overall accuracy" in reported[0][0]
        [results] = folder.glob("eval_results_mcq_*.json")
        assert len(list(folder.glob("eval_report_mcq_*.md"))) == 1
        record = json.loads(results.read_text("utf-8"))
        found.append({name: record[name] for name in ("summary", "responses", "questions")})
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_others_with_a_message_and_a_rerun_goes_on(place, killed):
    """The first one is the coordinator, without which JAX aborts the others."""
    name = f"killed{killed}"
    output, journal = place / f"{name}.jsonl", place / f".jaxscore/{name}.jsonl.journal"
    running = start(3, *score(place, name))
    while all(one.poll() is None for one in running) and not kept(journal):
        time.sleep(0.02)
    running[killed].send_signal(signal.SIGKILL)
    found = ended(running, within=BOUND)
    assert found.pop(killed)[0] == -signal.SIGKILL
    for code, _, err in found:
        assert code == processes.LOST, err
        assert "error: another process of this run has ended" in err
        assert f"finished work is in {journal}" in err
    assert not output.exists()
    n_before = kept(journal)
    assert n_before > 0
    n_whole = complete(journal)
    [(out, _), *_] = well(start(2, *score(place, name)))
    assert f", {n_whole} of 400 texts come from it\n" in out
    assert output.read_bytes() == (place / "one.jsonl").read_bytes()


@pytest.mark.slow
def test_texts_that_have_begun_are_finished_by_all_and_a_rerun_goes_on(tmp_path):
    """Ctrl-C of the first process: the others end with it, after the same blocks of steps."""
    prompts = "".join(f'{{"prompt": "The cat {k}"}}\n' for k in range(48))
    (tmp_path / "in.jsonl").write_text(prompts, encoding="utf-8")

    def sample(name):
        words = ["sample", "--model", QWEN, "--input", tmp_path / "in.jsonl", "-n", 4]
        words += ["--output", tmp_path / name, "--max-new-tokens", 120, "--temperature", 0.9]
        return words

    def texts():
        return sum(one.n_texts for one in models_in_copy(tmp_path / ".jaxscore/two.json.journal"))

    well(start(1, *sample("one.json")))
    running = start(2, *sample("two.json"))
    while all(one.poll() is None for one in running) and not texts():
        time.sleep(0.02)
    running[0].send_signal(signal.SIGINT)
    found = ended(running, within=BOUND)
    assert [code for code, *_ in found] == [130, 130], found
    assert interrupts.NOTICE in found[0][2]
    n_before = texts()
    assert 0 < n_before < 192
    [(out, _), *_] = well(start(2, *sample("two.json")))
    assert f"journal  {tmp_path / '.jaxscore/two.json.journal'}, {n_before} of 192 texts" in out
    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes()


def start_apart(folder: Path, *words):
    """Two processes in the folders `0` and `1`, as two machines without a common disk."""
    at = f"127.0.0.1:{free_port()}"
    words += ("--distributed", "--coordinator", at, "--num-processes", 2, "--process-id")
    return [
        subprocess.Popen(
            [sys.executable, "-m", "jaxscore", *map(str, words), str(k)],
            cwd=folder / str(k),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=with_devices(1),
        )
        for k in range(2)
    ]


def refused(running, message: str) -> None:
    """At least one says why; the other one too, unless it sees first that that one has gone."""
    found = ended(running, within=BOUND)
    assert all(code not in (0, 1) for code, _, _ in found), found
    assert any(code == 2 and message in err for code, _, err in found), found


@pytest.mark.slow
def test_other_inputs_are_seen(tmp_path):
    """One line more, in a window of requests that the first does not have."""
    lines = [json.dumps({"context": "a", "continuation": f" b{k}"}) for k in range(WINDOW + 1)]
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        text = "\n".join(lines[: WINDOW + k]) + "\n"
        (tmp_path / str(k) / "in.jsonl").write_text(text, encoding="utf-8")
    words = ("score", "--model", QWEN, "--input", "in.jsonl", "--output", "out.jsonl")
    refused(start_apart(tmp_path, *words), "have other requests than process 0")
    assert not list(tmp_path.glob("*/out.jsonl"))


@pytest.mark.slow
def test_other_weights_are_seen(tmp_path, place):
    for k in range(2):
        model = tmp_path / str(k) / "model"
        shutil.copytree(CASES / "models/tiny-gpt2", model)
        shutil.copy(place / "in.jsonl", tmp_path / str(k))
    tensors = load_file(model / "model.safetensors")
    tensors = {name: tensor * np.float32(1.05) for name, tensor in tensors.items()}
    save_file(tensors, model / "model.safetensors")
    words = ("score", "--model", "model", "--input", "in.jsonl", "--output", "out.jsonl")
    refused(start_apart(tmp_path, *words), "have other weights or mesh than process 0")
    assert not list(tmp_path.glob("*/out.jsonl"))


@pytest.mark.slow
def test_one_that_has_nothing_left_to_do_is_met_by_the_other(tmp_path):
    """A file that an earlier run has finished, which only the first can see."""
    items = [{"model_input": "The cat", "output": [" sat", " ran away"]}]
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        (tmp_path / str(k) / "in.json").write_text(json.dumps(items), encoding="utf-8")
    words = ("self-certainty", "--model", QWEN, "--input-file", "in.json")
    well(start(1, *words, cwd=tmp_path / "0"))
    refused(start_apart(tmp_path, *words), "than process 0: each needs the same command")


@pytest.mark.slow
def test_too_few_come(place):
    running = start(2, *score(place, "few", "--join-timeout", 4), started=1)
    [(code, out, err)] = ended(running)
    assert (code, out) == (2, "")
    assert "process 0 of 2: not all processes came within 4 s" in err
    assert not (place / "few.jsonl").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("host:1", None, None), "belong together"),
        (("host:1", 2, 2), "expected 0 to 1"),
        (("host", 2, 0), "expected HOST:PORT"),
        ((None, None, None), "no run of several processes can be joined here"),
    ],
)
def test_places_that_cannot_be_joined(given, message):
    with pytest.raises(InputError, match=message):
        processes.join(*given)
    assert not processes.is_distributed()


def test_a_place_without_the_flag_is_an_error():
    from jaxscore.cli.main import parse

    words = ["score", "--model", "m", "--input", "i", "--output", "o", "--process-id", "1"]
    args = parse(words)
    with pytest.raises(InputError, match="--process-id: only with --distributed"):
        distributed_flags.join_run(args).__enter__()


@pytest.mark.parametrize(
    ("count", "end", "code", "why"),
    [
        (2, "os.abort()", processes.LOST, processes.PEER_LOSS),
        (1, "os.abort()", 134, "ended by SIGABRT"),
        (2, "os.kill(os.getpid(), 9)", 137, "ended by SIGKILL"),
    ],
)
def test_a_process_that_a_signal_ends_is_followed_by_a_message(count, end, code, why, tmp_path):
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from jaxscore.io import processes\n"
        "def run():\n"
        f"    processes._Run.count = {count}\n"
        f"    processes.note_journal(Path({str(tmp_path)!r}))\n"
        f"    {end}\n"
        "def describe(label, why, journal):\n"
        "    return f'{why}, {journal}'\n"
        "sys.exit(processes.supervise(run, describe))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == code
    assert ran.stderr.endswith(f"{why}, {tmp_path}\n")


def test_a_process_reads_the_terminal_and_ctrl_c_ends_it():
    try:
        for end in os.openpty():
            os.close(end)
    except OSError as problem:
        pytest.skip(f"no pseudo-terminals here: {problem}")
    code = (
        "import signal, sys, time\n"
        "from jaxscore.io import processes\n"
        # Where tests run in the background, SIGINT is ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def run():\n"
        "    line = sys.stdin.readline().strip()\n"
        "    try:\n"
        "        print('read', line, flush=True)\n"
        # A signal that comes just before a read is noticed only after it.
        "        while True:\n"
        "            time.sleep(0.05)\n"
        "    except KeyboardInterrupt:\n"
        "        return 130\n"
        "sys.exit(processes.supervise(run, lambda *what: 'lost'))\n"
    )
    spawn = (
        "import os, pty, sys\n"
        "sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, '-c', sys.argv[1]])))\n"
    )
    command, pipe = [sys.executable, "-c", spawn, code], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0) as running:
        limit = threading.Timer(60, running.kill)
        limit.start()
        running.stdin.write(b"line\n")
        seen = b""
        while b"read line" not in seen:
            seen = running.stdout.readline()
            assert seen
        running.stdin.write(b"\x03")
        running.stdout.read()
        limit.cancel()
    assert running.returncode == 130


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_to_a_process_ends_its_child(number):
    code = (
        "import os, sys, time\n"
        "from jaxscore.io import processes\n"
        "def run():\n"
        "    print('started', flush=True)\n"
        "    time.sleep(60)\n"
        "processes.supervise(run, lambda *what: 'lost')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"started\n"
        running.send_signal(number)
        assert running.stdout.read() == b""  # at the end of both


def test_alone_nothing_is_asked_of_anyone():
    processes.verify_same("requests", b"digest")
    assert processes.broadcast_from_first(b"bytes") == b"bytes"
    assert processes.is_first()
    assert processes.process_label() == ""
    assert processes.leave(2) == 2
