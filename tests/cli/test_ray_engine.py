"""`--engine ray`: shards scored by actors that are killed, and on nodes that disappear."""

import contextlib
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from jaxscore.cli import distributed_flags, ray_engine, shard_files, shards
from jaxscore.errors import Held, InputError
from tests.cli.conftest import QWEN
from tests.conftest import ROOT

N_SHARDS, N_LINES = 5, 150
GROWN = 100_000  # bytes of a journal's write-ahead log: it is created with 37,000
# Of manifests and their flags: what two runs differ in. A shard of a dead actor has other counts.
OF_A_RUN = ("output", "seconds", "counts", "programs", "versions")
FLAGS_OF_A_RUN = ("engine", "actors", "output")
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed (extra ray)"
)
# A cluster of three nodes on this machine; a line on stdin removes the last one.
NODES = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.remove_node(nodes[-1], allow_graceful=False)
sys.stdin.readline()
cluster.shutdown()
"""


@pytest.fixture
def data(tmp_path):
    """A folder of shards, and one file with all their lines."""
    folder, draw = tmp_path / "in", random.Random(3)
    folder.mkdir()
    for shard in range(N_SHARDS):
        with (folder / f"{shard}.jsonl").open("w") as file:
            for k in range(N_LINES):
                text = " ".join(f"w{draw.randrange(99)}" for _ in range(draw.randrange(1, 80)))
                line = {"id": f"{shard}-{k}", "context": text, "continuation": f" {text[:20]}"}
                file.write(json.dumps(line) + "\n")
    whole = "".join(path.read_text() for path in sorted(folder.iterdir()))
    (tmp_path / "all.jsonl").write_text(whole)
    return tmp_path


def start(data, source, output, *more, **variables):
    words = (sys.executable, "-m", "jaxscore", "score", "--model", QWEN, "--reproducible",
             "--quiet", "--no-html", "--batch-tokens", "512", "--input", source, "--output", output,
             *more)  # fmt: skip
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {"PYTHONPATH": paths, "RAY_AUTH_MODE": "disabled", **variables}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        words, cwd=data, env=os.environ | own, stdout=pipe, stderr=pipe, text=True
    )


def finish(process):
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return out


HEAD = "head_node.kill_gcs_server()"


def actors(data):
    """Process numbers of actors; of a node with another folder only those that began a shard."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_actor = (process / "cmdline").read_bytes().startswith(b"ray::MapWorker")
            if is_actor and (process / "cwd").resolve() == data.resolve():
                found.append(int(process.name))
    return found


def holds_journal(actor):
    with contextlib.suppress(OSError):
        opened = Path(f"/proc/{actor}/fd").iterdir()
        return any(os.readlink(file).endswith(".journal") for file in opened)
    return False


def wait_for_work(data, process):
    """Wait until the journals of two shards that are being scored have scores."""
    for _ in range(12_000):
        with contextlib.suppress(FileNotFoundError):  # the log of a shard that ends here
            sizes = [path.stat().st_size for path in data.glob("out/.jaxscore/*.journal-wal")]
            if sum(size > GROWN for size in sizes) == 2:
                return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("no two journals have grown")


def check_resumed(data):
    """See that a shard took some of its texts from the journal, and computed others."""
    counts = [json.loads(path.read_text())["counts"] for path in data.glob("out/*.run.json")]
    assert len(counts) == N_SHARDS
    assert any(0 < count["texts_from_journal"] < count["texts"] for count in counts), counts


def check_same_as_one_local_run(run, data):
    merged, one, local = data / "merged.jsonl", data / "one.jsonl", data / "local"
    assert run("merge", data / "out", "--output", merged).code == 0
    finish(start(data, "all.jsonl", one))
    assert merged.read_bytes() == one.read_bytes()
    finish(start(data, "in/0.jsonl", f"{local}/"))
    manifests = [
        json.loads((folder / "0.jsonl.run.json").read_text()) for folder in (data / "out", local)
    ]
    for manifest in manifests:
        for name in OF_A_RUN:
            del manifest[name]
        for name in FLAGS_OF_A_RUN:
            del manifest["flags"][name]
        del manifest["facts"]["seconds"], manifest["about"]["date"]
        manifest["outputs"] = manifest["outputs"]["0.jsonl"]["sha256"]
    assert manifests[0] == manifests[1]
    assert not list(data.rglob("*.part"))


@needs_ray
@pytest.mark.slow
def test_killed_actor_gives_the_bytes_of_one_local_run(run, data):
    words = ("in/", "out/", "--engine", "ray", "--actors", "2")
    process = start(data, *words, RAY_ADDRESS="")
    wait_for_work(data, process)
    os.kill(actors(data)[0], signal.SIGKILL)
    assert f"done     {N_SHARDS} of {N_SHARDS} files" in finish(process)
    check_resumed(data)
    check_same_as_one_local_run(run, data)
    again = finish(start(data, *words, RAY_ADDRESS="nowhere"))
    assert f"{N_SHARDS} were finished" in again


@needs_ray
@pytest.mark.slow
def test_shards_of_a_node_that_disappears_are_scored_by_the_other(run, data):
    variables = os.environ | {"RAY_AUTH_MODE": "disabled"}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", NODES]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables) as nodes:
        try:
            address = nodes.stdout.readline().strip()
            process = start(data, "in/", "out/", "--engine", "ray", RAY_ADDRESS=address)
            wait_for_work(data, process)
            nodes.stdin.write("\n")
            nodes.stdin.flush()
            assert f"done     {N_SHARDS} of {N_SHARDS} files" in finish(process)
        finally:
            nodes.communicate("\n\n", timeout=60)
    check_resumed(data)
    check_same_as_one_local_run(run, data)


@needs_ray
@pytest.mark.slow
def test_shard_that_kills_each_process_fails(data):
    process = start(data, "in/0.jsonl", "out/", "--engine", "ray")
    killed = set()
    while process.poll() is None:
        for actor in filter(holds_journal, set(actors(data)) - killed):
            os.kill(actor, signal.SIGKILL)
            killed.add(actor)
        time.sleep(0.02)
    _, said = process.communicate()
    assert (process.returncode, len(killed)) == (2, ray_engine.RETRIES + 1), said
    assert ray_engine.LOST in said


@needs_ray
@pytest.mark.slow
def test_process_that_is_lost_before_its_shard_begins_ends_the_run(data):
    process = start(data, "in/0.jsonl", "out/", "--engine", "ray")
    killed = set()
    while process.poll() is None:
        for actor in set(actors(data)) - killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(actor, signal.SIGKILL)
                killed.add(actor)
        time.sleep(0.01)
    out, said = process.communicate()
    assert (process.returncode, out) == (2, ""), said
    assert said.startswith("jaxscore score: error: --engine ray: The actor is dead"), said
    assert len(killed) >= ray_engine.RETRIES + 2  # one shard


@needs_ray
@pytest.mark.slow
def test_lost_head_node_ends_the_run_with_a_message(data):
    nodes_of = NODES.replace("remove_node(nodes[-1], allow_graceful=False)", HEAD)
    variables = os.environ | {"RAY_AUTH_MODE": "disabled"}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", nodes_of]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables) as nodes:
        address = nodes.stdout.readline().strip()
        process = start(data, "in/", "out/", "--engine", "ray", RAY_ADDRESS=address)
        wait_for_work(data, process)
        stopped = actors(data)
        for actor in stopped:
            os.kill(actor, signal.SIGSTOP)  # the run does not end before the loss is seen
        nodes.stdin.write("\n")
        nodes.stdin.flush()
        _, said = process.communicate(timeout=120)
        for actor in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(actor, signal.SIGKILL)
        nodes.kill()
    assert process.returncode == 2
    assert said == (
        f"jaxscore score: error: --engine ray: the head node at {address} was lost; finished "
        "shards stay, and the same command goes on\n"
    )


def row(data, output):
    shard = shard_files.Shard(
        data / "in/0.jsonl", "0.jsonl", data / output / "0.jsonl", {"size": 1}
    )
    return {"shard": json.dumps(ray_engine._portable(shard))}


@pytest.fixture
def actor(data, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(ray_engine, "PAUSE", 0.01)
    words = ("score", "--model", QWEN, "--input", "in/", "--output", "out/", "--no-html")
    return ray_engine.Actor(words, str(data), None, "CPU", lambda _: 1)


def called(actor, row):
    name, code, problem, said = json.loads(actor(row)["outcome"])
    assert name == "0.jsonl"
    return code, problem, said


def test_actor_scores_a_shard_once(data, actor, monkeypatch):
    code, problem, _ = called(actor, row(data, "out"))
    assert (code, "not found on" in problem) == (2, True)
    (data / "out").mkdir()
    (data / "out/_shards-0.json").write_text("{}")
    lines = [{"continuation": " a"}, {"continuation": " too long" * 10_000}]
    (data / "in/0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, problem, said = called(actor, row(data, "out"))
    assert (code, problem) == (1, None)
    assert "in/0.jsonl:2: 50000 tokens" in said
    monkeypatch.setattr(shards, "score_shard", pytest.fail)  # a later call finds it finished
    identity = shard_files.identity_of(data / "in/0.jsonl")
    found = {**json.loads(row(data, "out")["shard"]), "identity": identity}
    manifest = data / "out/0.jsonl.run.json"
    made = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**made, "input_identity": identity}))
    assert called(actor, {"shard": json.dumps(found)}) == (1, None, "")


def test_error_of_an_actor_has_no_secrets(data, actor, monkeypatch):
    (data / "out").mkdir()
    (data / "out/_shards-0.json").write_text("{}")

    def fail(*_, **__):
        raise ValueError("at https://user:SECRET@host/x?sig=SECRET")

    monkeypatch.setattr(shards, "score_shard", fail)
    code, problem, said = called(actor, row(data, "out"))
    assert (code, problem) == (2, "ValueError: at https://host/x?...")
    assert "Traceback" in said
    assert "SECRET" not in said


def test_actor_waits_for_the_journal_of_a_lost_process(data, actor, monkeypatch):
    (data / "out").mkdir()
    (data / "out/_shards-0.json").write_text("{}")
    held = [Held("held"), Held("held"), 0]

    def score(*_: object, **__: object) -> int:
        if isinstance(found := held.pop(0), Exception):
            raise found
        return found

    monkeypatch.setattr(shards, "score_shard", score)
    assert called(actor, row(data, "out")) == (0, None, "")
    held += [Held("held")]
    monkeypatch.setattr(ray_engine, "PATIENCE", -1.0)
    assert called(actor, row(data, "out")) == (2, "held", "")


def test_actor_that_waits_for_a_journal_finds_the_shard_finished(data, actor, monkeypatch):
    (data / "out").mkdir()
    (data / "out/_shards-0.json").write_text("{}")
    score = shards.score_shard

    def finish_elsewhere(args, shard, *_: object, **__: object) -> int:
        identity = shard_files.identity_of(data / "in/0.jsonl")
        score(args, shard._replace(identity=identity), shards.ShardRun())
        raise Held("held")

    identity = shard_files.identity_of(data / "in/0.jsonl")
    facts = {**json.loads(row(data, "out")["shard"]), "identity": identity}
    monkeypatch.setattr(shards, "score_shard", finish_elsewhere)
    assert called(actor, {"shard": json.dumps(facts)}) == (0, None, "")


@pytest.mark.parametrize(
    ("kind", "words", "device"),
    [("GPU", (), "gpu"), ("CPU", (), None), ("GPU", ("--device", "cuda"), "cuda")],
)
def test_actor_takes_no_other_device_than_its_pool(data, actor, monkeypatch, kind, words, device):
    (data / "out").mkdir()
    (data / "out/_shards-0.json").write_text("{}")
    devices = []
    monkeypatch.setattr(shards, "score_shard", lambda args, *_, **__: devices.append(args.device))
    actor = ray_engine.Actor((*actor._words, *words), str(data), None, kind, lambda _: 1)
    called(actor, row(data, "out"))
    assert devices == [device]


def test_unreachable_address_is_an_error_without_its_password():
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = "127.0.0.1:{1}".format(*server.getsockname())
        ray_engine._check_reachable(place)
    for address in (place, f"ray://me:secret@{place}"):
        with pytest.raises(InputError, match=f"{place} cannot be reached") as found:
            ray_engine._check_reachable(address)
        assert "secret" not in str(found.value)
    ray_engine._check_reachable("auto")


@pytest.fixture
def ray(monkeypatch):
    """In place of Ray: a cluster without nodes."""
    ray = MagicMock()
    ray.exceptions.RayError = type("RayError", (Exception,), {})
    ray.nodes.return_value = []
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", ray.data)
    monkeypatch.setenv(ray_engine.ADDRESS, "auto")
    return ray


def outcomes(data, **flags):
    args = SimpleNamespace(**{"quiet": False, "actors": 2, "words": (), **flags})
    found = []
    for k in range(2):
        source, output = data / f"in/{k}.jsonl", data / f"out/{k}.jsonl"
        state = shards.State(False, False, False, None)
        found.append((shard_files.Shard(source, source.name, output, None), state))
    return list(ray_engine.outcomes(args, found, None))


def test_shard_without_outcome_fails_and_the_others_do_not(data, ray, capsys):
    results = ray.data.from_items.return_value.map.return_value.iter_batches
    results.return_value = [{"outcome": [json.dumps(["1.jsonl", 0, None, "said\n"])]}]
    assert outcomes(data) == [("1.jsonl", 0, None), ("0.jsonl", 2, ray_engine.NO_OUTCOME)]
    said = capsys.readouterr().err
    assert "--actors 2: there are places for 0 now; waiting" in said
    assert "said\n" in said


def test_pool_is_made_without_options_that_ray_data_does_not_take(data, ray):
    made = []

    def newer(fn, *, fn_constructor_args, compute, num_cpus):
        made.append((fn, num_cpus))
        return MagicMock()

    ray.data.from_items.return_value.map = newer
    outcomes(data)
    assert made == [(ray_engine.Actor, 1)]
    assert ray_engine._restarts(lambda fn, **options: fn, 7) == {"max_restarts": 7}


@pytest.mark.parametrize("part", ["init", "data.from_items"])
def test_error_of_ray_is_one_line_with_a_remedy(data, ray, part):
    problem = ray.exceptions.RayError("first of Ray\n  File\nNo module named 'jaxscore'\n")
    ray.configure_mock(**{f"{part}.side_effect": problem})
    expected = {
        "init": r"RAY_ADDRESS auto cannot be used \(first of Ray\)$",
        "data.from_items": "ray: No module named 'jaxscore'; every node needs this version of",
    }
    with pytest.raises(InputError, match=expected[part]):
        outcomes(data)


def test_empty_address_is_a_local_cluster(data, ray, monkeypatch):
    monkeypatch.setenv(ray_engine.ADDRESS, "")
    with pytest.raises(InputError, match="no node has 1 CPU"):
        outcomes(data)
    assert ray.init.call_args[0] == ("local",)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--actors", "2"), "only with --engine ray"),
        (("--engine", "ray", "--journal", "x"), "each shard has its own journal"),
        (("--engine", "ray", "--distributed"), "starts its own processes"),
        (("--engine", "ray", "--output", "out.jsonl"), "shards are files of a folder"),
    ],
)
def test_flags_that_contradict_the_engine_are_refused(run, data, monkeypatch, more, message):
    monkeypatch.setattr(distributed_flags, "join_run", lambda _: contextlib.nullcontext())
    output = f"{data}/out/"
    ran = run("score", "--model", QWEN, "--input", data / "in", "--output", output, *more)
    assert (ran.code, message in ran.err) == (2, True), ran.err
