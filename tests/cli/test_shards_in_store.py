"""Shards in emulators of stores on loopback, by workers that are killed and started again."""

import contextlib
import gzip
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.cli.test_ray_engine import actors, needs_ray
from tests.conftest import CASES, ROOT

STORES = {  # scheme -> packages, and what installs them
    "s3": (("s3fs", "moto", "flask"), "s3fs 'moto[s3,server]'"),
    "gs": (("gcsfs", "gcp_storage_emulator"), "gcsfs gcp-storage-emulator"),
}
MODEL = str(CASES / "models/tiny-qwen2")
SECRET = "a-secret-key"
N_SHARDS, N_LINES, N_WORKERS = 8, 60, 3


@pytest.fixture(scope="module", params=STORES)
def environment(request, tmp_path_factory):
    """Variables of a process that reach an emulator, which lives as long as the module.

    STORE is its scheme.
    """
    packages, install = STORES[request.param]
    for package in packages:
        pytest.importorskip(package, reason=f"needs pip install {install}")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = str(free.getsockname()[1])
    log = open(tmp_path_factory.mktemp("emulator") / "log", "wb")  # noqa: SIM115
    words = {
        "s3": ("moto.server", "-H", "127.0.0.1", "-p", port),
        "gs": ("gcp_storage_emulator", "start", "--host", "127.0.0.1", "--port", port,
               "--in-memory"),
    }  # fmt: skip
    server = subprocess.Popen([sys.executable, "-m", *words[request.param]], stdout=log, stderr=log)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port))):
                break
            time.sleep(0.2)
        yield os.environ | {
            "STORE": request.param,
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "RAY_AUTH_MODE": "disabled",
        }
    finally:
        server.kill()
        server.wait()
        log.close()


def store(environment, script):
    """What a script prints that has the store as `fs`, in a process of its own."""
    text = f"import fsspec, json; fs = fsspec.filesystem('{environment['STORE']}')\n{script}"
    command = [sys.executable, "-c", text]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def data(environment, tmp_path_factory):
    """Eight compressed shards in the store, and one local file of all lines."""
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(3)
    every = []
    for shard in range(N_SHARDS):
        lines = []
        for k in range(N_LINES):
            text = " ".join(f"w{draw.randrange(99)}" for _ in range(draw.randrange(1, 30)))
            line = {"id": f"{shard}-{k}", "context": text, "continuation": f" {text[:20]}"}
            lines.append(json.dumps(line) + "\n")
        every += lines
        (folder / f"{shard}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    (folder / "all.jsonl").write_text("".join(every))
    store(
        environment,
        f"fs.mkdir('bucket')\n"
        f"for k in range({N_SHARDS}):\n"
        f"    fs.put_file('{folder}/' + str(k) + '.jsonl.gz', f'bucket/data/{{k}}.jsonl.gz')",
    )
    return folder


def start(environment, *words, folder=None):
    command = [sys.executable, "-m", "jaxscore", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=folder
    )


def finish(process):
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert SECRET not in out + said
    return out


def scoring(source, output, *more):
    return ("score", "--model", MODEL, "--reproducible", "--quiet", "--no-html",
            "--input", source, "--output", output, *more)  # fmt: skip


@pytest.mark.slow
def test_killed_workers_give_the_bytes_of_one_local_run(environment, data, tmp_path):
    own = environment | {"JAXSCORE_CACHE": str(tmp_path / "cache")}
    draw = random.Random(7)

    bucket = f"{own['STORE']}://bucket"
    address = f"{bucket}/run/"

    def worker(k):
        return start(own, *scoring(f"{bucket}/data/", address, "--shard", f"{k}/{N_WORKERS}"))

    workers = [worker(k) for k in range(N_WORKERS)]
    n_killed = 0
    for _ in range(3):
        for k in (0, 1):
            time.sleep(draw.uniform(2, 6))
            if workers[k].poll() is None:
                workers[k].send_signal(signal.SIGKILL)
                n_killed += 1
            workers[k].communicate()
            workers[k] = worker(k)
    assert n_killed
    for process in workers:
        finish(process)
    again = finish(start(own, *scoring(f"{bucket}/data/", address)))
    assert f"done     0 of 8 files, {N_SHARDS} were finished" in again
    finish(start(own, "merge", address, "--output", tmp_path / "merged.jsonl"))
    finish(start(own, *scoring(data / "all.jsonl", tmp_path / "one.jsonl")))
    assert (tmp_path / "merged.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    names = json.loads(store(own, "print(json.dumps(fs.find('bucket/run')))"))
    endings = ("", ".run.json", ".report.md", ".report.json")
    shards = [f"bucket/run/{k}.jsonl.gz{ending}" for k in range(N_SHARDS) for ending in endings]
    [listing] = set(names) - set(shards)
    assert listing.startswith("bucket/run/_shards-")
    assert set(shards) < set(names)
    assert not list(tmp_path.rglob("*.part"))
    texts = json.loads(store(own, "print(json.dumps([fs.cat(n).decode('latin1') for n in "
                                  "fs.find('bucket/run')]))"))  # fmt: skip
    assert not any(SECRET in text for text in texts)


KILLED_AFTER_COPY = """
import os, signal
from jaxscore.cli import main
from jaxscore.io import upload
copy = upload._Copies.copy
def copy_and_die(self):
    copy(self)
    if self._n_copied > 1:  # beside the row of the model
        os.kill(os.getpid(), signal.SIGKILL)
upload.PERIOD, upload.SHARE, upload._Copies.copy = 0.01, 0, copy_and_die
main.main()
"""


@pytest.mark.slow
def test_worker_goes_on_where_a_killed_one_of_another_machine_ended(environment, data, tmp_path):
    output = f"{environment['STORE']}://bucket/moved/out.jsonl"
    words = scoring(data / "all.jsonl", output, "--batch-tokens", 64)
    machines = [environment | {"JAXSCORE_CACHE": str(tmp_path / name)} for name in "ab"]
    lost = subprocess.run(
        [sys.executable, "-c", KILLED_AFTER_COPY, *map(str, words)], env=machines[0]
    )
    assert lost.returncode == -signal.SIGKILL
    finish(start(machines[1], *words))
    found = json.loads(
        store(environment, "print(fs.cat('bucket/moved/out.jsonl.run.json').decode())")
    )
    counts = found["counts"]
    assert 0 < counts["texts_from_journal"] < counts["texts"] == N_SHARDS * N_LINES
    assert "journal" not in store(environment, "print(fs.find('bucket/moved'))")
    words = scoring(data / "all.jsonl", tmp_path / "one.jsonl", "--batch-tokens", 64)
    finish(start(machines[0], *words))
    written = store(environment, "print(fs.cat('bucket/moved/out.jsonl').decode(), end='')")
    assert written == (tmp_path / "one.jsonl").read_text()


@pytest.mark.slow
@needs_ray
def test_killed_actor_gives_the_bytes_of_one_local_run(environment, data, tmp_path):
    own = environment | {"JAXSCORE_CACHE": str(tmp_path / "cache")}
    if own["STORE"] != "s3":
        pytest.skip("Ray is tried with one store")
    output = "s3://bucket/ray/"
    words = scoring("s3://bucket/data/", output, "--engine", "ray", "--actors", 2)
    process = start(own, *words, folder=tmp_path)
    for _ in range(1200):
        if len(actors(tmp_path)) == 2 and list(tmp_path.rglob("*.journal")):
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    os.kill(actors(tmp_path)[0], signal.SIGKILL)
    assert f"done     {N_SHARDS} of {N_SHARDS} files" in finish(process)
    finish(start(own, "merge", output, "--output", tmp_path / "merged.jsonl"))
    finish(start(own, *scoring(data / "all.jsonl", tmp_path / "one.jsonl")))
    assert (tmp_path / "merged.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


def test_finished_output_of_another_run_is_not_replaced(environment, data, tmp_path):
    own = environment | {"JAXSCORE_CACHE": str(tmp_path / "cache")}
    bucket = f"{own['STORE']}://bucket"
    source, output = f"{bucket}/data/0.jsonl.gz", f"{bucket}/single/out.jsonl"
    finish(start(own, *scoring(source, output)))
    before = store(own, "print(fs.cat('bucket/single/out.jsonl'))")
    again = finish(start(own, *scoring(source, output)))
    assert f"nothing was left to do in {output}" in again
    other = start(own, *scoring(source, output, "--summary-only"))
    _, said = other.communicate(timeout=300)
    assert other.returncode == 2
    assert f"{output}: finished by another run, with --summary-only False" in said
    assert store(own, "print(fs.cat('bucket/single/out.jsonl'))") == before
